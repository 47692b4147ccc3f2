//! Decode with drafts of which a chosen share is right.
//!
//! A model with random weights does not show how often drafts are right in practice. So the answers are drawn first
//! without drafts. Then the same answers are drafted with a given share of wrong tokens. Verification, taking back
//! and transport are real; only the drafts are made up.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use brigade_draft::Source;
use brigade_line::handle::{SeqEvent, Sequence};
use brigade_line::measured::record::UbatchRecord;
use brigade_line::request::Request;
use brigade_sched::{DRAFT_DEPTHS, DraftCounts, Forecast};
use serde::Serialize;

use super::{BenchArgs, Test, WARM_UP_PROMPT, WARM_UP_TOKENS, percent};
use crate::cli::options::speculate::Speculate;
use crate::cli::printing::output;
use crate::cli::running::session::{Session, SessionOptions, with_session};

/// How the next tokens of streams are drafted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Drafts {
    /// Probability that one is right.
    odds: f64,
    /// Whether a stream has one part with drafts at a time.
    sync: bool,
}

impl Drafts {
    fn most_windows(self) -> Option<u32> {
        self.sync.then_some(1)
    }
}

/// One row of the output.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    workers: usize,
    threads: u32,
    parallel: u32,
    /// Probability that a draft is right; none: nothing is drafted.
    forced: Option<f64>,
    /// A stream has one part with drafts on the line at a time.
    sync: bool,
    tokens: u64,
    seconds: f64,
    tokens_per_second: f64,
    /// The speed over that of the row without drafts.
    gain: f64,
    /// The measured speed over the forecast of one stream, from the measured times and the share of right drafts.
    of_forecast: Option<f64>,
    /// Rows computed for each token.
    rows_per_token: f64,
    /// Ubatches for each token.
    ubatches_per_token: f64,
    /// Tokens drawn from a part.
    tokens_per_part: f64,
    /// Share of the stages' time that went into rows that gave no token.
    in_vain: f64,
    /// Share of a stream's time in which two of its windows or more were in flight that gave tokens.
    overlapped: f64,
    /// Share of the drafts that were right, by how far ahead they were.
    right_by_depth: Vec<(&'static str, Option<f64>)>,
    stage_busy: Vec<f64>,
}

/// The answer of each sequence.
type Answers = Vec<Arc<[u32]>>;

/// Runs `bench --speculate`.
pub(super) async fn execute(args: &BenchArgs) -> Result<()> {
    if args.generate < 2 {
        bail!("--speculate measures decode: --gen of at least 2 is needed");
    }
    if let Some(bad) = args.speculate.iter().find(|odds| !(0.0..=1.0).contains(*odds)) {
        bail!("--speculate {bad}: a probability from 0 to 1 is needed");
    }
    let mut rows = Vec::new();
    for &parallel in &args.parallel {
        let without = with_session(options(args, parallel, None, 0), async |session| {
            let measured = measured(session, args, parallel, None).await?;
            Ok((measured, session.limits.now().n_vocab))
        });
        let ((without, answers), n_vocab) = without.await?;
        let base = without.tokens_per_second;
        rows.push(without);
        let ways: &[bool] = if args.sync { &[true, false] } else { &[false] };
        let all =
            args.speculate.iter().flat_map(|&odds| ways.iter().map(move |&sync| (odds, sync)));
        for drafts in all.map(|(odds, sync)| Drafts { odds, sync }) {
            let options = options(args, parallel, Some(drafts), n_vocab);
            let answers = &answers;
            let (row, said) = with_session(options, async |session| {
                measured(session, args, parallel, Some((drafts, answers))).await
            })
            .await?;
            if said != *answers {
                bail!("the answers with drafts are not those without: please report this");
            }
            rows.push(Row { gain: row.tokens_per_second / base, ..row });
        }
    }
    if args.json {
        return output::json(&rows);
    }
    print(&rows)
}

/// A session with such drafts.
fn options(
    args: &BenchArgs,
    parallel: u32,
    drafts: Option<Drafts>,
    n_vocab: u32,
) -> SessionOptions {
    let mut options = SessionOptions::command(&args.model, &args.line, args.kv_type);
    options.max_seqs = parallel;
    options.ctx = Some(args.generate.max(WARM_UP_PROMPT + WARM_UP_TOKENS) + 2);
    options.speculate = match drafts {
        Some(Drafts { odds: acceptance, .. }) => Speculate::Forced { acceptance, n_vocab },
        None => Speculate::Off,
    };
    options.max_windows = drafts.and_then(Drafts::most_windows);
    options
}

/// The figures of one run.
struct Measured {
    seconds: f64,
    records: Vec<UbatchRecord>,
    counts: DraftCounts,
}

/// The median of the runs with or without drafts, and the answers.
async fn measured(
    session: &Session,
    args: &BenchArgs,
    parallel: u32,
    drafts: Option<(Drafts, &Answers)>,
) -> Result<(Row, Answers)> {
    let info = session.ready().await?;
    let mut runs = Vec::new();
    let mut said = Answers::new();
    // The first one warms up: times of all sizes that are used have to be known.
    for run in 0..=args.repeat {
        let requests = requests(session, args.generate, parallel, drafts.map(|d| d.1))?;
        session.meter.take();
        let before = session.meter.drafts();
        let start = Instant::now();
        let mut sequences = Vec::new();
        for request in requests {
            sequences.push(session.submit(request).await?);
        }
        said.clear();
        for sequence in &mut sequences {
            said.push(tokens_of(sequence).await?.into());
        }
        let seconds = start.elapsed().as_secs_f64();
        if run > 0 {
            let (records, counts) = (session.meter.take(), session.meter.drafts().since(&before));
            runs.push(Measured { seconds, records, counts });
        }
    }
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let drafts = drafts.map(|(drafts, _)| drafts);
    let Measured { seconds, records, counts } = &runs[runs.len() / 2];
    let [right, wrong] = counts.judged(Source::Forced);
    let odds = right as f64 / (right + wrong).max(1) as f64;
    let forecast = drafts.filter(|_| parallel == 1).map(|drafts| {
        let forecast = forecast(session, info.stages.len(), &runs);
        forecast.tokens_per_second(odds, drafts.most_windows())
    });
    let tokens = Test::Decode { n_gen: args.generate }.tokens(parallel);
    let n_rows: u64 = records.iter().map(|record| u64::from(record.n_rows)).sum();
    let tokens_per_second = tokens as f64 / seconds;
    let row = Row {
        workers: info.stages.len(),
        threads: info.stages.iter().map(|stage| stage.threads).max().unwrap_or(0),
        parallel,
        forced: drafts.map(|drafts| drafts.odds),
        sync: drafts.is_some_and(|drafts| drafts.sync),
        tokens,
        seconds: *seconds,
        tokens_per_second,
        gain: 1.0,
        of_forecast: forecast.map(|forecast| tokens_per_second / forecast),
        rows_per_token: n_rows as f64 / tokens as f64,
        ubatches_per_token: records.len() as f64 / tokens as f64,
        tokens_per_part: counts.tokens_per_part(),
        in_vain: counts.share_in_vain(),
        overlapped: counts.overlapped_us as f64 / 1e6 / seconds / f64::from(parallel),
        right_by_depth: right_by_depth(counts),
        stage_busy: brigade_line::measured::meter::summarise(records).stage_busy,
    };
    Ok((row, said))
}

/// The measurements of all runs, as input of the scheduler's forecast.
fn forecast(session: &Session, n_stages: usize, runs: &[Measured]) -> Forecast {
    let prefixes = session.model.spec.prefixes(true);
    let mut forecast = Forecast::new(n_stages, session.model.default_rows(None), prefixes);
    for record in runs.iter().flat_map(|run| &run.records).filter(|record| !record.has_stale) {
        forecast.observe(record.n_rows, record.done - record.sent, &record.stages);
    }
    forecast
}

/// The share of right drafts by depth, for forced drafts.
fn right_by_depth(counts: &DraftCounts) -> Vec<(&'static str, Option<f64>)> {
    let share = |[right, wrong]: [u64; 2]| {
        (right + wrong > 0).then(|| right as f64 / (right + wrong) as f64)
    };
    let shares = counts.by_depth(Source::Forced).map(share);
    DRAFT_DEPTHS.into_iter().zip(shares).collect()
}

/// One request for each sequence, with its answer as the expected text.
fn requests(
    session: &Session,
    n_gen: u32,
    parallel: u32,
    answers: Option<&Answers>,
) -> Result<Vec<Request>> {
    let test = Test::Decode { n_gen };
    let request = |sequence: u32| {
        let drafts = answers.map(|answers| answers[sequence as usize].clone());
        Ok(Request { drafts, ..test.request(sequence, session)? })
    };
    (0..parallel).map(request).collect()
}

/// All tokens of a sequence.
async fn tokens_of(sequence: &mut Sequence) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    while let Some(event) = sequence.next().await {
        match event {
            SeqEvent::Token(token) => tokens.push(token.id),
            SeqEvent::Failed(failure) => return Err(failure.into()),
            _ => {}
        }
    }
    Ok(tokens)
}

fn print(rows: &[Row]) -> Result<()> {
    let head = [
        "workers",
        "threads",
        "parallel",
        "forced",
        "tokens",
        "seconds",
        "tokens/s",
        "gain",
        "of forecast",
        "rows/token",
        "ubatches/token",
        "tokens/part",
        "in vain",
        "overlapped",
        "stages busy",
    ];
    let cells = |row: &Row| {
        let busy: Vec<String> = row.stage_busy.iter().copied().map(percent).collect();
        let forced = row.forced.map_or_else(|| "-".to_owned(), |odds| odds.to_string());
        let way = if row.sync { ", one at a time" } else { "" };
        vec![
            row.workers.to_string(),
            row.threads.to_string(),
            row.parallel.to_string(),
            format!("{forced}{way}"),
            row.tokens.to_string(),
            format!("{:.3}", row.seconds),
            format!("{:.1}", row.tokens_per_second),
            format!("{:.2}", row.gain),
            row.of_forecast.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}")),
            format!("{:.2}", row.rows_per_token),
            format!("{:.2}", row.ubatches_per_token),
            format!("{:.2}", row.tokens_per_part),
            format!("{:.1}%", 100.0 * row.in_vain),
            percent(row.overlapped),
            busy.join(" "),
        ]
    };
    output::table(&head, &rows.iter().map(cells).collect::<Vec<_>>())?;
    for row in rows.iter().filter(|row| row.forced.is_some()) {
        let right = row
            .right_by_depth
            .iter()
            .filter_map(|(depth, share)| Some(format!("{depth}: {}", percent((*share)?))));
        let odds = row.forced.unwrap_or_default();
        let way = if row.sync { ", one at a time" } else { "" };
        let right: Vec<String> = right.collect();
        output::line(format_args!(
            "forced {odds}{way}: right by how far ahead {}",
            right.join(", ")
        ))?;
    }
    Ok(())
}
