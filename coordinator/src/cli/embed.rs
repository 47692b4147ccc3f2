//! `brigade embed` prints a vector for each line of a file: of an encoder, or of a decoder whose rows are pooled.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use brigade_dialect::pooling::Pooling;
use brigade_engine::heads::Heads;
use brigade_line::handle::Failure;
use brigade_line::request::Request;
use brigade_line::vector::{normalize, pool};
use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::cli::options::args::{KvArg, LineArgs, ModelArgs};
use crate::cli::options::input;
use crate::cli::printing::output;
use crate::cli::running::session::{Session, SessionOptions, with_session};

/// Texts in the line at once, so that ubatches are full and all stages busy.
const TEXTS_AT_ONCE: usize = 16;

/// Make vectors of texts
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade embed -m bge-small.gguf -f sentences.txt
  brigade embed -m nomic-embed.gguf -f sentences.txt --pooling mean --json
  echo 'search_query: what is a bucket brigade?' | brigade embed -m nomic-embed.gguf -f -

Every line of the file is a text. A line of the output is its vector: numbers with spaces between them.")]
pub struct EmbedArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// The texts, one a line; - is standard input
    #[arg(short, long)]
    file: PathBuf,
    /// How the rows of a text become one vector [default: as the model's file says]
    #[arg(long, value_enum)]
    pooling: Option<PoolingArg>,
    /// Leave vectors as long as they are, instead of making them 1 long
    #[arg(long)]
    no_normalize: bool,
    /// Positions of the context, a text's tokens at most [default: what the model was trained on, as far as memory allows; of an encoder at most 4096]
    #[arg(long, value_name = "N", aliases = ["ctx-size", "context-size", "context-length", "max-model-len", "num-ctx"])]
    ctx: Option<u32>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvArg::F32)]
    kv_type: KvArg,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) line: LineArgs,
}

/// [`Pooling`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PoolingArg {
    /// The mean of all rows
    Mean,
    /// The first row
    Cls,
    /// The last row
    Last,
}

impl From<PoolingArg> for Pooling {
    fn from(arg: PoolingArg) -> Self {
        match arg {
            PoolingArg::Mean => Self::Mean,
            PoolingArg::Cls => Self::First,
            PoolingArg::Last => Self::Last,
        }
    }
}

/// Runs the command.
pub async fn execute(args: EmbedArgs) -> Result<()> {
    let mut options = SessionOptions::command(&args.model, &args.line, args.kv_type);
    options.ctx = args.ctx;
    options.max_seqs = TEXTS_AT_ONCE as u32;
    let text = input::read_text(&args.file)?;
    if text.is_empty() {
        bail!("{} is empty: give a text on each line", args.file.display());
    }
    with_session(options, async |session| embed(session, &args, &text).await).await
}

/// A text that is in the line.
struct Running {
    n_tokens: usize,
    vector: JoinHandle<Result<Vec<f32>, Failure>>,
}

async fn embed(session: &Session, args: &EmbedArgs, text: &str) -> Result<()> {
    let pooling = args.pooling.map_or(session.model.text.pooling(), Pooling::from);
    let (mut printed, began) = (Printed::new(args, &session.model.heads), Instant::now());
    let mut running = VecDeque::new();
    for (index, line) in text.lines().enumerate() {
        if running.len() == TEXTS_AT_ONCE {
            printed.next(running.pop_front()).await?;
        }
        let tokens = session.model.text.encode_prompt(line)?;
        let n_tokens = tokens.len();
        let request = Request::hidden(tokens, pooling, &session.limits.now())
            .with_context(|| format!("line {}", index + 1))?;
        let sequence = session.submit(request).await?;
        running.push_back(Running { n_tokens, vector: tokio::spawn(pool(sequence, pooling)) });
    }
    while let Some(next) = running.pop_front() {
        printed.next(Some(next)).await?;
    }
    printed.end(session.model.name(), began.elapsed().as_secs_f64())
}

/// Vectors as they are printed, in the order of their texts.
struct Printed<'a> {
    args: &'a EmbedArgs,
    heads: &'a Heads,
    n_texts: usize,
    n_tokens: usize,
    /// With `--json`: what is printed at the end.
    objects: Vec<serde_json::Value>,
}

impl<'a> Printed<'a> {
    fn new(args: &'a EmbedArgs, heads: &'a Heads) -> Self {
        Self { args, heads, n_texts: 0, n_tokens: 0, objects: Vec::new() }
    }

    /// Waits for the next vector and prints it.
    async fn next(&mut self, running: Option<Running>) -> Result<()> {
        let Some(Running { n_tokens, vector }) = running else { return Ok(()) };
        let pooled = vector.await.context("a text's rows were not read")??;
        let mut vector = self.heads.vector(pooled);
        if !self.args.no_normalize {
            normalize(&mut vector);
        }
        let index = self.n_texts;
        self.n_texts += 1;
        self.n_tokens += n_tokens;
        if self.args.json {
            self.objects
                .push(json!({ "index": index, "prompt_tokens": n_tokens, "embedding": vector }));
            return Ok(());
        }
        let mut out = io::stdout().lock();
        let words: Vec<String> = vector.iter().map(f32::to_string).collect();
        Ok(writeln!(out, "{}", words.join(" "))?)
    }

    fn end(self, model: &str, seconds: f64) -> Result<()> {
        let Self { n_texts, n_tokens, .. } = self;
        let rate = |n: usize| n as f64 / seconds.max(f64::MIN_POSITIVE);
        if self.args.json {
            output::json(&json!({
                "model": model,
                "data": self.objects,
                "prompt_tokens": n_tokens,
                "seconds": seconds,
                "texts_per_second": rate(n_texts),
            }))?;
        }
        output::remark(format_args!(
            "{n_texts} texts of {n_tokens} tokens at {:.1} texts/s, {:.1} t/s",
            rate(n_texts),
            rate(n_tokens)
        ));
        Ok(())
    }
}
