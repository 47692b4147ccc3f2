//! `brigade tokenize` turns text into token ids.

use std::path::PathBuf;

use anyhow::Result;
use brigade_gguf::Gguf;
use brigade_text::Tokenizer;
use clap::Args;

use crate::cli::options::args::ModelArgs;
use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::input;
use crate::cli::printing::output;

/// Turn text into token ids, printed as a JSON list.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade tokenize -m model.gguf 'Hello world'
  brigade tokenize -m model.gguf -f prompt.txt --no-bos

The model may be a vocabulary-only GGUF.")]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) data_dir: DataDirArgs,
    /// The text
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    text: Option<String>,
    /// Read the text from a file; - is standard input
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Do not add BOS and EOS where the model asks for them
    #[arg(long)]
    no_bos: bool,
    /// Special tokens in the text are plain text
    #[arg(long)]
    no_special: bool,
    /// Print JSON (the list is JSON already)
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn execute(args: TokenizeArgs) -> Result<()> {
    let text = match (args.text, args.file) {
        (Some(text), _) => text,
        (None, Some(path)) => input::read_text(&path)?,
        (None, None) => String::new(),
    };
    let tokenizer = tokenizer(&args.model)?;
    let ids = tokenizer.encode(&text, !args.no_bos, !args.no_special)?;
    output::line(format_args!("{}", serde_json::to_string(&ids)?))?;
    Ok(())
}

/// The tokenizer of a model, whose tensors are not looked at.
pub fn tokenizer(model: &ModelArgs) -> Result<Tokenizer> {
    let path = model.path()?;
    let gguf = input::open_model(&path, |path| Gguf::open_header_only(path))?;
    input::open_model(&path, |_| Tokenizer::from_gguf(&gguf))
}
