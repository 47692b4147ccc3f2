//! `brigade pull`, `models`, `rm` and `prune`: models by name on this machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use brigade_gguf::Gguf;
use brigade_hub::local_models::{self, Row, Taken};
use brigade_hub::resolver::Resolver;
use brigade_hub::settings::Settings;
use brigade_line::clock;
use brigade_plan::format_bytes;
use clap::Args;
use serde_json::json;

use super::config;
use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::hub::{HubArgs, Watcher};
use crate::cli::options::units;
use crate::cli::printing::output;

/// Characters of a commit that are shown.
const SHOWN_COMMIT: usize = 8;

/// The cell of a table for an unknown value.
const NOTHING: &str = "-";

/// Where models by name are, and where they come from.
#[derive(Debug, Args)]
struct FromArgs {
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

impl FromArgs {
    fn settings(&self) -> Result<Settings> {
        // The settings of `serve`, so that it uses the pulled files, and only files that it may have fetched are
        // deleted.
        let (mut hub, mut data_dir) = (self.hub.clone(), self.data_dir.clone());
        for (folder, key) in [
            (&mut data_dir.data_dir, "data-dir"),
            (&mut hub.download_dir, "download-dir"),
            (&mut hub.models_dir, "models-dir"),
        ] {
            if folder.is_none() {
                *folder = config::folder(key)?;
            }
        }
        hub.settings(&data_dir)
    }
}

/// Fetch a model by name, or the state that its source has now.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade pull hf:bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M
  brigade pull hf:unsloth/DeepSeek-V3-GGUF:UD-Q2_K_XL      all files of a split model
  brigade pull ollama:llama3.3:70b
  brigade pull https://example.com/model.gguf

HF_TOKEN is for gated and private repositories, HF_ENDPOINT names another hub, HTTPS_PROXY a proxy.
A model that was pulled before is fetched anew only where its source has changed.")]
pub struct PullArgs {
    /// What to fetch: hf:USER/REPO[:QUANT], ollama:NAME[:TAG] or https://HOST/FILE.gguf
    #[arg(value_name = "NAME")]
    name: PathBuf,
    #[command(flatten)]
    from: FromArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List the models on this machine that can be named.
#[derive(Debug, Args)]
#[command(after_help = "\
What brigade has fetched comes first, then what lies in --models-dir, in the caches of Hugging Face's and llama.cpp's
programs and in Ollama's store. These are used where they lie, and never deleted.")]
pub struct ModelsArgs {
    #[command(flatten)]
    from: FromArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Delete a model that brigade has fetched.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The name, as `brigade models` has it; repeatable
    #[arg(value_name = "NAME", required = true)]
    names: Vec<PathBuf>,
    #[command(flatten)]
    from: FromArgs,
}

/// Delete models that brigade has fetched and that are not in use.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  brigade prune --unused-since 30d          says what it would delete
  brigade prune --unused-since 30d --yes    deletes it")]
pub struct PruneArgs {
    /// Models that were not run for this time, such as 12h, 30d
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = units::duration)]
    unused_since: Duration,
    /// Delete, and not only say what would be deleted
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    from: FromArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `brigade pull`.
pub fn pull(args: &PullArgs) -> Result<()> {
    let settings = args.from.settings()?;
    let watcher = Watcher::new();
    let (found, is_news) = Resolver::new(&settings, &watcher).pull(&args.name)?;
    drop(watcher);
    let (entry, path) = (&found.entry, found.path.display());
    if args.json {
        let files: Vec<_> = entry
            .files
            .iter()
            .map(|file| json!({ "size": file.size, "sha256": file.sha256 }))
            .collect();
        return output::json(&json!({
            "name": entry.name,
            "path": found.path,
            "commit": entry.commit,
            "licence": entry.licence,
            "quant": entry.quant,
            "files": files,
            "changed": is_news,
        }));
    }
    let state = if is_news { "" } else { ", as before" };
    let commit = entry
        .commit
        .get(..SHOWN_COMMIT)
        .map_or(String::new(), |commit| format!(", commit {commit}"));
    let licence = entry
        .licence
        .as_ref()
        .map_or(String::new(), |licence| format!(", licence {}", output::plain(licence)));
    let size = format_bytes(entry.size());
    output::line(format_args!("{}: {size}{commit}{licence}{state}", entry.name))?;
    output::line(format_args!("{path}"))
}

/// Runs `brigade models`.
pub fn models(args: &ModelsArgs) -> Result<()> {
    let check = |path: &Path| Gguf::open(path).map(drop).map_err(|error| error.to_string());
    let mut rows = local_models::list(&args.from.settings()?, &check)?;
    for row in rows.iter_mut().filter(|row| row.wrong.is_none()) {
        let unknown = row.licence.is_none();
        row.licence = if unknown { licence_in(&row.path) } else { row.licence.take() };
    }
    if args.json {
        let all: Vec<_> = rows.iter().map(as_json).collect();
        return output::json(&all);
    }
    if rows.is_empty() {
        return output::line(format_args!(
            "no models yet: brigade pull hf:USER/REPO:QUANT fetches one"
        ));
    }
    let now = clock::unix_now();
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row, now)).collect();
    output::table(&["name", "quant", "size", "licence", "last used", "where"], &cells)?;
    for row in &rows {
        if let Some(why) = &row.wrong {
            let (name, why) = (output::plain(&row.name), output::plain(why));
            output::line(format_args!("{name} cannot be used: {why}"))?;
        }
    }
    Ok(())
}

fn as_json(row: &Row) -> serde_json::Value {
    json!({
        "name": row.name,
        "quant": row.quant,
        "size": row.size,
        "licence": row.licence,
        "last_used": row.last_used,
        "store": row.store,
        "path": row.path,
        "on_request": row.on_request,
        "wrong": row.wrong,
    })
}

fn cells(row: &Row, now: u64) -> Vec<String> {
    let used = row.last_used.map(|at| format!("{} ago", units::span(now.saturating_sub(at))));
    let nothing = || NOTHING.to_string();
    vec![
        row.name.clone(),
        row.quant.clone(),
        format_bytes(row.size),
        row.licence.clone().unwrap_or_else(nothing),
        used.unwrap_or_else(nothing),
        if row.on_request { format!("{}, on request", row.store) } else { row.store.to_string() },
    ]
}

/// The licence in a file's metadata; `None` also for a file that cannot be read.
fn licence_in(path: &Path) -> Option<String> {
    let gguf = Gguf::open_header_only(path).ok()?;
    gguf.meta().opt_str("general.license").ok().flatten().map(str::to_string)
}

/// Runs `brigade rm`.
pub fn rm(args: &RmArgs) -> Result<()> {
    let settings = args.from.settings()?;
    for name in &args.names {
        let taken = local_models::remove(&settings, name, &configured()?)?;
        output::line(format_args!(
            "deleted {}, {}",
            taken.what.join(", "),
            format_bytes(taken.bytes)
        ))?;
    }
    Ok(())
}

/// Runs `brigade prune`.
pub fn prune(args: &PruneArgs) -> Result<()> {
    let settings = args.from.settings()?;
    let taken =
        local_models::prune(&settings, args.unused_since.as_secs(), &configured()?, args.yes)?;
    if args.json {
        let Taken { what, files, bytes, kept } = &taken;
        return output::json(
            &json!({ "deleted": args.yes, "models": what, "files": files, "bytes": bytes, "kept": kept }),
        );
    }
    let verb = if args.yes { "deleted" } else { "would delete" };
    for what in &taken.what {
        output::line(format_args!("{verb} {}", output::plain(what)))?;
    }
    for kept in &taken.kept {
        output::line(format_args!("kept: {}", output::plain(kept)))?;
    }
    let (n, bytes) = (taken.files.len(), format_bytes(taken.bytes));
    output::line(format_args!(
        "{n} files, {bytes}{}",
        if args.yes || n == 0 { "" } else { "; --yes deletes them" }
    ))
}

/// Names that this machine's configuration has: they stay.
fn configured() -> Result<Vec<String>> {
    let variable = std::env::var("BRIGADE_MODEL").ok().filter(|name| !name.is_empty());
    let mut names = config::model_names()?;
    names.extend(variable);
    Ok(names)
}
