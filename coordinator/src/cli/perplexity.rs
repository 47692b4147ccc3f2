//! `brigade perplexity` measures how well a model predicts a text.
//!
//! The text is cut into chunks of `--ctx` tokens. Each chunk is computed on its own, behind a BOS token where
//! the model wants one. Its second half is scored, as llama.cpp's tool does it. The logits behind the scores
//! can be saved, and compared with those of another run (another wire type, cache type or quantisation).

mod base;
mod compare;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use brigade_line::handle::SeqEvent;
use brigade_line::request::Request;
use clap::{Args, ValueEnum};
use serde_json::json;

use self::base::{Base, Scored};
use self::compare::{Difference, Mean, nll};
use crate::cli::options::args::{KvArg, LineArgs, ModelArgs};
use crate::cli::options::input;
use crate::cli::printing::npy::RowFile;
use crate::cli::printing::output;
use crate::cli::running::session::{Session, SessionOptions, with_session};

/// Chunk length where --ctx is not given.
const DEFAULT_CTX: u32 = 512;

/// Chunks computed at once, so that all stages are busy.
const CHUNKS_AT_ONCE: u32 = 4;

/// Measure how well a model predicts a text.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade perplexity -m model.gguf -f wiki.test.raw --ctx 512

What a smaller wire type costs, as distance from a run with f32 everywhere:
  brigade perplexity -m model.gguf -f wiki.test.raw --kv-type f32 --save-logits exact
  brigade perplexity -m model.gguf -f wiki.test.raw --kv-type f32 --wire-type q8_0 --base exact

A file of logits takes 4 bytes for each scored token and token of the vocabulary.")]
pub struct PerplexityArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// The text; - is standard input
    #[arg(short, long)]
    file: PathBuf,
    /// Tokens of a chunk
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CTX, value_parser = clap::value_parser!(u32).range(4..))]
    ctx: u32,
    /// Chunks to compute at most
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    kv_type: KvArg,
    /// Write the logits of the scored tokens to a file, for --base
    #[arg(long, value_name = "FILE")]
    save_logits: Option<PathBuf>,
    /// Compare with the logits in this file, saved with the same text, --ctx and --chunks
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) line: LineArgs,
}

/// Runs the command.
pub async fn execute(args: PerplexityArgs) -> Result<()> {
    let mut options = SessionOptions::command(&args.model, &args.line, args.kv_type);
    options.ctx = Some(args.ctx);
    options.max_seqs = CHUNKS_AT_ONCE;
    let text = input::read_text(&args.file)?;
    with_session(options, async |session| measure(session, &args, &text).await).await
}

/// The result over all scored rows.
struct Measured {
    nll: Mean,
    saved: Option<RowFile>,
    base: Option<(Base, Difference)>,
}

impl Measured {
    fn start(args: &PerplexityArgs, scored: &Scored) -> Result<Self> {
        let saved = args.save_logits.as_deref().map(|path| base::create(path, scored));
        let base = args.base.as_deref().map(|path| Base::open(path, scored));
        let base = base.transpose()?.map(|base| (base, Difference::default()));
        Ok(Self { nll: Mean::default(), saved: saved.transpose()?, base })
    }

    /// The next scored row, and the token that came after it.
    fn row(&mut self, row: &[f32], next: u32) -> Result<()> {
        self.nll.add(nll(row, next));
        if let Some(saved) = &mut self.saved {
            saved.row(row)?;
        }
        if let Some((base, difference)) = &mut self.base {
            difference.add(base.row()?, row, next);
        }
        Ok(())
    }
}

async fn measure(session: &Session, args: &PerplexityArgs, text: &str) -> Result<()> {
    let scored = Scored {
        n_vocab: session.limits.now().n_vocab,
        chunks: chunks(session, args, text)?,
        n_ctx: args.ctx,
    };
    let n_chunks = scored.chunks.len();
    let mut measured = Measured::start(args, &scored)?;
    for (group_index, group) in scored.chunks.chunks(CHUNKS_AT_ONCE as usize).enumerate() {
        let mut sequences = Vec::new();
        for chunk in group {
            let request = Request::logits(chunk.clone(), &session.limits.now())?;
            sequences.push((chunk, session.submit(request).await?));
        }
        for (i, (chunk, mut sequence)) in sequences.into_iter().enumerate() {
            let mut expected = 0;
            while let Some(event) = sequence.next().await {
                match event {
                    SeqEvent::Logits { pos, row } => {
                        ensure!(pos == expected, "logits of position {pos} came, not {expected}");
                        expected += 1;
                        if scored.is_scored(pos) {
                            measured.row(&row, chunk[pos as usize + 1])?;
                        }
                    }
                    SeqEvent::Failed(failure) => return Err(failure.into()),
                    SeqEvent::Token(_) | SeqEvent::Finished(_) => {}
                }
            }
            let done = group_index * CHUNKS_AT_ONCE as usize + i + 1;
            output::remark(format_args!("[{done}/{n_chunks}] {:.4}", measured.nll.mean().exp()));
        }
    }
    report(args, measured, n_chunks)
}

/// The text as chunks of tokens.
fn chunks(session: &Session, args: &PerplexityArgs, text: &str) -> Result<Vec<Vec<u32>>> {
    let tokenizer = session.model.text.tokenizer();
    let tokens = tokenizer.encode(text, true, false)?;
    let n_ctx = args.ctx as usize;
    let mut chunks: Vec<Vec<u32>> = tokens.chunks_exact(n_ctx).map(<[u32]>::to_vec).collect();
    if chunks.is_empty() {
        bail!("the text has {} tokens: at least one chunk of {n_ctx} is needed", tokens.len());
    }
    chunks.truncate(args.chunks.unwrap_or(usize::MAX).max(1));
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos()) {
        chunks.iter_mut().for_each(|chunk| chunk[0] = bos);
    }
    Ok(chunks)
}

fn report(args: &PerplexityArgs, measured: Measured, n_chunks: usize) -> Result<()> {
    let Measured { nll, saved, base } = measured;
    let perplexity = nll.mean().exp();
    // From the error of the mean of the logarithms.
    let error = nll.standard_error() * perplexity;
    if let Some(saved) = saved {
        saved.finish()?;
    }
    let base = base.map(|(_, difference)| difference);
    if args.json {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned())
        };
        return output::json(&json!({
            "perplexity": perplexity,
            "standard_error": error,
            "chunks": n_chunks,
            "scored_tokens": nll.count(),
            "ctx": args.ctx,
            "wire_type": name(args.line.wire_type.to_possible_value()),
            "kv_type": name(args.kv_type.to_possible_value()),
            "base": base.map(|base| base.json()),
        }));
    }
    output::line(format_args!(
        "perplexity {perplexity:.4} +/- {error:.4} over {n_chunks} chunks of {} tokens",
        args.ctx
    ))?;
    match base {
        Some(base) => output::line(format_args!("{base}")),
        None => Ok(()),
    }
}
