//! `brigade synth` writes a model with random weights, in the shape of a real one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use brigade_gguf::Gguf;
use brigade_plan::format_bytes;
use brigade_synth::{AdapterSpec, Arch, FileType, Shape, Spec, write_adapter, write_telling};
use clap::Args;
use serde_json::json;

use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::hub::HubArgs;
use crate::cli::options::input;
use crate::cli::printing::npy::{part_name, refuse_overwrite};
use crate::cli::printing::output;
use crate::cli::printing::progress;

/// Write a seeded random model of a supported architecture.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade synth --arch llama --size 0.6b --quant Q4_K_M --out ref.gguf
  brigade synth --arch qwen3moe --size 30b-a3b --header-only --out big.gguf
  brigade plan -m big.gguf --workers 3 --explain
  brigade synth --adapter-of ref.gguf --rank 8 --out adapter.gguf

The text of such a model is babble; its speed is that of a trained one.")]
pub struct SynthArgs {
    /// Architecture, e.g. llama, qwen3
    #[arg(long, required_unless_present = "adapter_of")]
    arch: Option<String>,
    /// Write a random low-rank adapter of this model instead, for --lora
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["arch", "size", "quant", "header_only"])]
    adapter_of: Option<PathBuf>,
    /// Rank of the adapter
    #[arg(long, value_name = "N", default_value_t = 8, requires = "adapter_of")]
    rank: u32,
    /// Alpha of the adapter: its changes are scaled by alpha divided by the rank [default: its rank]
    #[arg(long, value_name = "X", requires = "adapter_of")]
    alpha: Option<f32>,
    /// Size of the model; for an unknown one, the command lists the known ones
    #[arg(long, default_value = "0.6b")]
    size: String,
    /// Types of the weights, as llama.cpp names them
    #[arg(long, default_value = "Q4_K_M")]
    quant: String,
    /// Seed of the random weights: the same seed gives the same model
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
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

impl SynthArgs {
    /// Finds what the name of the model means that an adapter is for.
    ///
    /// # Errors
    /// There is no such model, or it cannot be had.
    pub fn find(&mut self) -> Result<()> {
        let filed = self.adapter_of.as_ref().map(|model| self.hub.filed(model, &self.data_dir));
        if let Some(path) = filed.transpose()?.flatten() {
            self.adapter_of = Some(path);
        }
        let found = self.adapter_of.as_ref().map(|model| self.hub.find(model, &self.data_dir));
        if let Some(found) = found.transpose()?.flatten() {
            self.adapter_of = Some(found.path);
        }
        Ok(())
    }
}

/// Runs the command.
pub fn execute(args: SynthArgs) -> Result<()> {
    if let Some(model) = &args.adapter_of {
        return write_adapter_of(model, &args);
    }
    let arch = args.arch.as_deref().context("--arch says what to make")?;
    let spec = Spec {
        arch: Arch::named(arch)?,
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
        // Half a model is useless. If it cannot be removed, the error stays the same.
        let _ = std::fs::remove_file(&part);
    }
    finish(&args, &part, written?)
}

/// Writes a random adapter of a model.
fn write_adapter_of(model: &Path, args: &SynthArgs) -> Result<()> {
    let model = input::open_model(model, |path| Gguf::open_header_only(path))?;
    let rank = args.rank as usize;
    if rank == 0 {
        bail!("--rank is 0: a change has a rank of 1 at least");
    }
    let spec = AdapterSpec { rank, alpha: args.alpha.unwrap_or(rank as f32), seed: args.seed };
    refuse_overwrite(&args.out, args.force)?;
    let part = part_name(&args.out);
    let written = write_adapter(&model, &spec, &part);
    if written.is_err() {
        // As above.
        let _ = std::fs::remove_file(&part);
    }
    finish(args, &part, written?)
}

/// Renames the finished file, and reports it.
fn finish(args: &SynthArgs, part: &Path, nbytes: u64) -> Result<()> {
    std::fs::rename(part, &args.out)
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    if args.json {
        return output::json(&json!({ "file": args.out, "bytes": nbytes }));
    }
    output::line(format_args!("{}: {}", args.out.display(), format_bytes(nbytes)))?;
    Ok(())
}
