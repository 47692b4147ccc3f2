//! `brigade synth` writes a model with random weights, in the shape of a real one.

use std::path::PathBuf;

use anyhow::{Context, Result};
use brigade_engine::synth::{Arch, FileType, Shape, Spec, write_telling};
use clap::Args;
use serde_json::json;

use super::npy::{part_name, refuse_overwrite};
use super::{output, progress};
use crate::plan::format_bytes;

/// Write a seeded random model of a supported architecture.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade synth --arch llama --size 0.6b --quant Q4_K_M --out ref.gguf
  brigade synth --arch qwen3moe --size 30b-a3b --header-only --out big.gguf
  brigade plan -m big.gguf --workers 3 --explain

The text of such a model is babble; its speed is that of a trained one.")]
pub struct SynthArgs {
    /// Architecture, e.g. llama, qwen3
    #[arg(long)]
    arch: String,
    /// Size; an unknown one lists those there are
    #[arg(long, default_value = "0.6b")]
    size: String,
    /// Types of the weights, as llama.cpp names them
    #[arg(long, default_value = "Q4_K_M")]
    quant: String,
    /// Two seeds, two models
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write metadata and tensor directory only: enough for plan and inspect
    #[arg(long)]
    header_only: bool,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn execute(args: SynthArgs) -> Result<()> {
    let spec = Spec {
        arch: Arch::named(&args.arch)?,
        shape: Shape::named(&args.size)?,
        quant: FileType::named(&args.quant)?,
        seed: args.seed,
        header_only: args.header_only,
    };
    refuse_overwrite(&args.out, args.force)?;
    let part = part_name(&args.out);
    let bar = progress::Bar::new();
    let written = write_telling(&spec, &part, &mut |done, total| {
        bar.show("writing weights", done, total);
    });
    drop(bar);
    if written.is_err() {
        // Half a model helps nobody; that it cannot be removed changes nothing about the error.
        let _ = std::fs::remove_file(&part);
    }
    let nbytes = written?;
    std::fs::rename(&part, &args.out)
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    if args.json {
        return output::json(&json!({ "file": args.out, "bytes": nbytes }));
    }
    output::line(format_args!("{}: {}", args.out.display(), format_bytes(nbytes)))?;
    Ok(())
}
