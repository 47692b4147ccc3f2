//! `bench --mixed`: how evenly streams get their tokens while prompts arrive.
//!
//! Some sequences draw tokens. As soon as all of them do, prompts are handed in, one after the other, until the first
//! sequence ends. The benchmark measures the time from one token of a sequence to its next. Times during which a
//! prompt was in work are kept apart from the others.

use std::time::Instant;

use anyhow::Result;
use brigade_line::handle::{SeqEvent, Sequence};
use brigade_line::measured::record::UbatchRecord;
use serde::Serialize;
use tokio::task::JoinSet;

/// Times between a stream's tokens, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Gaps {
    /// How many there were.
    pub(super) count: usize,
    /// Half of them were shorter.
    pub(super) p50_ms: f64,
    /// 99 of 100 were shorter.
    pub(super) p99_ms: f64,
    /// The longest gap.
    pub(super) worst_ms: f64,
}

/// The result of one mixed measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Mixed {
    /// Number of prompts that arrived.
    pub(super) prompts: usize,
    /// Tokens of each prompt.
    pub(super) prompt_tokens: u32,
    /// Median time from handing in a prompt to its first token, in milliseconds.
    pub(super) first_token_ms: f64,
    /// Gaps between tokens while a prompt was being computed.
    pub(super) during: Gaps,
    /// The scheduler's own bound of these gaps, in milliseconds: the largest of any ubatch with prompt rows. `None`:
    /// there was no such ubatch.
    pub(super) bound_ms: Option<f64>,
    /// Gaps between tokens while no prompt was.
    pub(super) quiet: Gaps,
}

impl Gaps {
    /// Statistics of times in seconds.
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * seconds.len() as f64).ceil() as usize;
            seconds.get(rank.saturating_sub(1)).copied().unwrap_or(0.0) * 1e3
        };
        Self { count: seconds.len(), p50_ms: at(0.5), p99_ms: at(0.99), worst_ms: at(1.0) }
    }
}

impl Mixed {
    /// From when each stream's tokens came, when each prompt was handed in and had its first token, and
    /// the ubatches of that time.
    pub(super) fn of(
        streams: &[Vec<Instant>],
        prompts: &[(Instant, Instant)],
        prompt_tokens: u32,
        records: &[UbatchRecord],
    ) -> Self {
        let (mut during, mut quiet) = (Vec::new(), Vec::new());
        for pair in streams.iter().flat_map(|times| times.windows(2)) {
            let in_work = prompts.iter().any(|(from, to)| *from < pair[1] && pair[0] < *to);
            let list = if in_work { &mut during } else { &mut quiet };
            list.push((pair[1] - pair[0]).as_secs_f64());
        }
        let waits = prompts.iter().map(|(from, to)| (*to - *from).as_secs_f64()).collect();
        Self {
            prompts: prompts.len(),
            prompt_tokens,
            first_token_ms: Gaps::of(waits).p50_ms,
            during: Gaps::of(during),
            bound_ms: records.iter().filter_map(|r| r.gap_bound).max().map(|us| us as f64 / 1e3),
            quiet: Gaps::of(quiet),
        }
    }
}

/// When a sequence's tokens came; `started` hears of the first one.
async fn times(
    mut sequence: Sequence,
    started: tokio::sync::mpsc::UnboundedSender<()>,
) -> Result<Vec<Instant>> {
    let mut times = Vec::new();
    while let Some(event) = sequence.next().await {
        match event {
            SeqEvent::Token(_) => {
                times.push(Instant::now());
                if times.len() == 1 {
                    // The receiver has given up, and reports that itself.
                    let _ = started.send(());
                }
            }
            SeqEvent::Failed(failure) => return Err(failure.into()),
            SeqEvent::Finished(_) | SeqEvent::Logits { .. } => {}
        }
    }
    Ok(times)
}

/// Runs `streams` to their end, and as many prompts from `prompt` beside them as fit in that time.
/// Returns when tokens came, and when each prompt was handed in and had its first token.
pub(super) async fn run(
    streams: Vec<Sequence>,
    prompt: impl AsyncFn(usize) -> Result<Sequence>,
) -> Result<(Vec<Vec<Instant>>, Vec<(Instant, Instant)>)> {
    let n_streams = streams.len();
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for stream in streams {
        tasks.spawn(times(stream, started.clone()));
    }
    drop(started);
    for _ in 0..n_streams {
        // `None`: a stream failed before its first token. Its task has the reason, see below.
        if starts.recv().await.is_none() {
            break;
        }
    }
    let (mut done, mut prompts) = (Vec::new(), Vec::new());
    while done.is_empty() {
        let from = Instant::now();
        let mut sequence = prompt(prompts.len()).await?;
        while let Some(event) = sequence.next().await {
            match event {
                SeqEvent::Token(_) => prompts.push((from, Instant::now())),
                SeqEvent::Failed(failure) => return Err(failure.into()),
                SeqEvent::Finished(_) | SeqEvent::Logits { .. } => {}
            }
        }
        while let Some(result) = tasks.try_join_next() {
            done.push(result??);
        }
    }
    while let Some(result) = tasks.join_next().await {
        done.push(result??);
    }
    Ok((done, prompts))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_told_apart_by_whether_a_prompt_was_in_work() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let streams = [vec![at(0), at(10), at(60), at(70)], vec![at(5), at(20)]];
        let record = |gap_bound| UbatchRecord { gap_bound, ..UbatchRecord::default() };
        let records = [None, Some(80_000), Some(75_000)].map(record);
        let mixed = Mixed::of(&streams, &[(at(12), at(50))], 64, &records);
        assert_eq!(mixed.bound_ms, Some(80.0));
        assert_eq!((mixed.prompts, mixed.prompt_tokens), (1, 64));
        assert_eq!((mixed.during.count, mixed.quiet.count), (2, 2));
        assert!((mixed.during.worst_ms - 50.0).abs() < 1e-6, "{mixed:?}");
        assert!((mixed.during.p50_ms - 15.0).abs() < 1e-6, "{mixed:?}");
        assert!((mixed.quiet.p99_ms - 10.0).abs() < 1e-6, "{mixed:?}");
        assert!((mixed.first_token_ms - 38.0).abs() < 1e-6, "{mixed:?}");
    }

    #[test]
    fn no_times_are_no_figures() {
        let mixed = Mixed::of(&[vec![]], &[], 64, &[]);
        assert_eq!((mixed.during, mixed.bound_ms), (Gaps::default(), None));
    }
}
