//! `brigade detokenize` turns token ids into text.

use anyhow::Result;
use clap::Args;

use super::tokenize::tokenizer;
use crate::cli::options::args::ModelArgs;
use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::units::{TokenIds, token_ids};
use crate::cli::printing::output;

/// Turn token ids into text.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  brigade detokenize -m model.gguf 1,15043,3186")]
pub struct DetokenizeArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) data_dir: DataDirArgs,
    /// Ids: 1,2,3 or a JSON list
    #[arg(value_parser = token_ids)]
    ids: TokenIds,
    /// Show control tokens as their text
    #[arg(long)]
    special: bool,
    /// Print the text as a JSON string
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn execute(args: DetokenizeArgs) -> Result<()> {
    let text = tokenizer(&args.model)?.detokenize(&args.ids.0, args.special)?;
    if args.json {
        output::line(format_args!("{}", serde_json::to_string(&text)?))?;
    } else {
        output::line(format_args!("{text}"))?;
    }
    Ok(())
}
