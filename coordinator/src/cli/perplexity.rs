//! `brigade perplexity`: how well a model predicts a text.
//!
//! The text is cut into chunks of `--ctx` tokens, each computed on its own, with BOS first where
//! the model wants it; the second half of each chunk is scored, as llama.cpp's tool does it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::args::{KvArg, LineArgs, ModelArgs};
use super::session::{Session, SessionOptions, with_session};
use super::{input, output};
use crate::handle::SeqEvent;
use crate::request::Request;

/// Chunk length where --ctx is not given.
const DEFAULT_CTX: u32 = 512;

/// Chunks computed at once, so that all stages are busy.
const CHUNKS_AT_ONCE: u32 = 4;

/// Measure how well a model predicts a text.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  brigade perplexity -m model.gguf -f wiki.test.raw --ctx 512")]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
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
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    line: LineArgs,
}

/// Runs the command.
pub async fn execute(args: PerplexityArgs) -> Result<()> {
    let mut options = SessionOptions::command(&args.model, &args.line, args.kv_type);
    options.ctx = Some(args.ctx);
    options.max_seqs = CHUNKS_AT_ONCE;
    let text = input::read_text(&args.file)?;
    with_session(options, async |session| measure(session, &args, &text).await).await
}

/// Sums over scored tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    n: usize,
    nll: f64,
    nll_squared: f64,
}

impl Score {
    fn add(&mut self, other: Self) {
        self.n += other.n;
        self.nll += other.nll;
        self.nll_squared += other.nll_squared;
    }

    fn perplexity(&self) -> f64 {
        (self.nll / self.n as f64).exp()
    }

    /// Standard error of the perplexity, from that of the mean of the logarithms.
    fn error(&self) -> f64 {
        let n = self.n as f64;
        let mean = self.nll / n;
        let variance = (self.nll_squared / n - mean * mean).max(0.0);
        (variance / (n - 1.0).max(1.0)).sqrt() * self.perplexity()
    }
}

async fn measure(session: &Session, args: &PerplexityArgs, text: &str) -> Result<()> {
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
    let n_chunks = chunks.len();
    let mut total = Score::default();
    for (group_index, group) in chunks.chunks(CHUNKS_AT_ONCE as usize).enumerate() {
        let mut sequences = Vec::new();
        for chunk in group {
            let request = Request::logits(chunk.clone(), &session.limits)?;
            sequences.push((chunk, session.submit(request).await?));
        }
        for (i, (chunk, mut sequence)) in sequences.into_iter().enumerate() {
            while let Some(event) = sequence.next().await {
                match event {
                    SeqEvent::Logits { pos, row } => total.add(score(chunk, pos as usize, &row)),
                    SeqEvent::Failed(failure) => return Err(failure.into()),
                    SeqEvent::Token(_) | SeqEvent::Finished(_) => {}
                }
            }
            let done = group_index * CHUNKS_AT_ONCE as usize + i + 1;
            eprintln!("[{done}/{n_chunks}] {:.4}", total.perplexity());
        }
    }
    let (perplexity, error) = (total.perplexity(), total.error());
    if args.json {
        return output::json(&json!({
            "perplexity": perplexity,
            "standard_error": error,
            "chunks": n_chunks,
            "scored_tokens": total.n,
            "ctx": n_ctx,
        }));
    }
    output::line(format_args!(
        "perplexity {perplexity:.4} +/- {error:.4} over {n_chunks} chunks of {n_ctx} tokens"
    ))?;
    Ok(())
}

/// The token after `pos`, if it is one of the scored half.
fn score(chunk: &[u32], pos: usize, row: &[f32]) -> Score {
    let first = chunk.len() / 2;
    match chunk.get(pos + 1) {
        Some(&next) if pos >= first => {
            let nll = -log_softmax(row, next as usize);
            Score { n: 1, nll, nll_squared: nll * nll }
        }
        _ => Score::default(),
    }
}

/// Logarithm of the probability of `index` under softmax of `row`, summed in f64.
fn log_softmax(row: &[f32], index: usize) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|v| f64::from(v - max).exp()).sum();
    f64::from(row[index] - max) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_logits_have_the_vocabulary_as_perplexity() {
        let row = [0.5f32; 8];
        let mut total = Score::default();
        for pos in 0..4 {
            total.add(score(&[1, 2, 3, 4], pos, &row));
        }
        assert_eq!(total.n, 1);
        assert!((total.perplexity() - 8.0).abs() < 1e-9);
        assert!(total.error().abs() < 1e-9);
    }
}
