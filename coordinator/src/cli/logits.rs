//! `brigade logits` writes the logits at every position of a prompt to a `.npy` file.

use std::path::PathBuf;

use anyhow::{Result, bail};
use brigade_line::handle::SeqEvent;
use brigade_line::request::Request;
use clap::Args;
use serde_json::json;

use crate::cli::options::args::{KvArg, LineArgs, ModelArgs};
use crate::cli::options::units::{TokenIds, token_ids};
use crate::cli::printing::npy::{RowFile, refuse_overwrite};
use crate::cli::printing::output;
use crate::cli::running::session::{Session, SessionOptions, with_session};

/// Write the logits at every position of a prompt.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade logits -m model.gguf --tokens 1,2,3 --out logits.npy
  brigade logits -m model.gguf -p 'Hello' --workers 3 --ubatch 7 --out logits.npy

The file is f32 [n_tokens, n_vocab]. The KV cache is f32 here unless --kv-type says otherwise.")]
pub struct LogitsArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// The prompt
    #[arg(
        short,
        long,
        allow_hyphen_values = true,
        required_unless_present = "tokens",
        conflicts_with = "tokens"
    )]
    prompt: Option<String>,
    /// The prompt as token ids; nothing is added to them
    #[arg(long, value_parser = token_ids)]
    tokens: Option<TokenIds>,
    /// The file to write
    #[arg(long, value_name = "FILE.npy")]
    out: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    /// Positions of the context [default: as many as --tokens has, or the model's own, as far as memory allows]
    #[arg(long, value_name = "N", aliases = ["ctx-size", "context-size", "context-length", "max-model-len", "num-ctx"])]
    ctx: Option<u32>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvArg::F32)]
    kv_type: KvArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) line: LineArgs,
}

/// Runs the command.
pub async fn execute(args: LogitsArgs) -> Result<()> {
    refuse_overwrite(&args.out, args.force)?;
    let mut options = SessionOptions::command(&args.model, &args.line, args.kv_type);
    let n_tokens = args.tokens.as_ref().map(|TokenIds(ids)| ids.len().max(1) as u32);
    options.ctx = args.ctx.or(n_tokens);
    with_session(options, async |session| write(session, &args).await).await
}

async fn write(session: &Session, args: &LogitsArgs) -> Result<()> {
    let tokens = match (&args.tokens, &args.prompt) {
        (Some(TokenIds(ids)), _) => ids.clone(),
        (None, Some(text)) => session.model.text.encode_prompt(text)?,
        (None, None) => bail!("no prompt: give -p TEXT or --tokens 1,2,3"),
    };
    let n_tokens = tokens.len();
    let request = Request::logits(tokens, &session.limits.now())?;
    let n_vocab = session.limits.now().n_vocab as usize;
    let mut file = RowFile::create(&args.out, n_tokens, n_vocab)?;
    let mut sequence = session.submit(request).await?;
    while let Some(event) = sequence.next().await {
        match event {
            SeqEvent::Logits { row, .. } => file.row(&row)?,
            SeqEvent::Failed(failure) => return Err(failure.into()),
            SeqEvent::Token(_) | SeqEvent::Finished(_) => {}
        }
    }
    file.finish()?;
    if args.json {
        return output::json(&json!({ "file": args.out, "shape": [n_tokens, n_vocab] }));
    }
    output::line(format_args!("{}: f32 [{n_tokens}, {n_vocab}]", args.out.display()))?;
    Ok(())
}
