//! Decode with drafts of which a chosen share is right.
//!
//! A model of random weights does not say how often drafts are right in earnest. So the answers are drawn first without
//! drafts, and then drafted with as many wrong tokens as is asked for. Verification, what is taken back and the ways of it
//! all are real; only what is drafted is arranged.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use brigade_line::handle::{SeqEvent, Sequence};
use brigade_line::request::Request;
use serde::Serialize;

use super::{BenchArgs, Test, WARM_UP_PROMPT, WARM_UP_TOKENS, percent};
use crate::cli::output;
use crate::cli::session::{Session, SessionOptions, with_session};
use crate::cli::speculate::Speculate;

/// One row of the output.
#[derive(Clone, Debug, Serialize)]
struct Row {
    workers: usize,
    threads: u32,
    parallel: u32,
    /// Probability that a draft is right; none: nothing is drafted.
    forced: Option<f64>,
    tokens: u64,
    seconds: f64,
    tokens_per_second: f64,
    /// Over that of the row without drafts.
    gain: f64,
    /// Rows computed for each token.
    rows_per_token: f64,
    /// Ubatches for each token.
    ubatches_per_token: f64,
    stage_busy: Vec<f64>,
}

/// What every sequence said.
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
        for &odds in &args.speculate {
            let options = options(args, parallel, Some(odds), n_vocab);
            let answers = &answers;
            let (row, said) = with_session(options, async |session| {
                measured(session, args, parallel, Some((odds, answers))).await
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

/// A session whose drafts are right with probability `forced`.
fn options(args: &BenchArgs, parallel: u32, forced: Option<f64>, n_vocab: u32) -> SessionOptions {
    let mut options = SessionOptions::command(&args.model, &args.line, args.kv_type);
    options.max_seqs = parallel;
    options.ctx = Some(args.generate.max(WARM_UP_PROMPT + WARM_UP_TOKENS) + 2);
    options.speculate = match forced {
        Some(acceptance) => Speculate::Forced { acceptance, n_vocab },
        None => Speculate::Off,
    };
    options
}

/// The median of the runs with or without drafts, and what was said.
async fn measured(
    session: &Session,
    args: &BenchArgs,
    parallel: u32,
    drafts: Option<(f64, &Answers)>,
) -> Result<(Row, Answers)> {
    let info = session.ready().await?;
    let mut runs = Vec::new();
    let mut said = Answers::new();
    // The first one warms up: times of all sizes that are used have to be known.
    for run in 0..=args.repeat {
        let requests = requests(session, args.generate, parallel, drafts.map(|d| d.1))?;
        session.meter.take();
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
            runs.push((seconds, session.meter.take()));
        }
    }
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, records) = &runs[runs.len() / 2];
    let tokens = Test::Decode { n_gen: args.generate }.tokens(parallel);
    let n_rows: u64 = records.iter().map(|record| u64::from(record.n_rows)).sum();
    let row = Row {
        workers: info.stages.len(),
        threads: info.stages.iter().map(|stage| stage.threads).max().unwrap_or(0),
        parallel,
        forced: drafts.map(|d| d.0),
        tokens,
        seconds: *seconds,
        tokens_per_second: tokens as f64 / seconds,
        gain: 1.0,
        rows_per_token: n_rows as f64 / tokens as f64,
        ubatches_per_token: records.len() as f64 / tokens as f64,
        stage_busy: brigade_line::meter::summarise(records).stage_busy,
    };
    Ok((row, said))
}

/// One request for each sequence, with its answer as what is expected.
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
        "rows/token",
        "ubatches/token",
        "stages busy",
    ];
    let cells = |row: &Row| {
        let busy: Vec<String> = row.stage_busy.iter().copied().map(percent).collect();
        vec![
            row.workers.to_string(),
            row.threads.to_string(),
            row.parallel.to_string(),
            row.forced.map_or_else(|| "-".to_owned(), |odds| odds.to_string()),
            row.tokens.to_string(),
            format!("{:.3}", row.seconds),
            format!("{:.1}", row.tokens_per_second),
            format!("{:.2}", row.gain),
            format!("{:.2}", row.rows_per_token),
            format!("{:.2}", row.ubatches_per_token),
            busy.join(" "),
        ]
    };
    output::table(&head, &rows.iter().map(cells).collect::<Vec<_>>())
}
