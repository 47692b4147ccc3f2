//! Models by name, in front of all commands: `-m hf:user/repo:Q4_K_M` becomes the path of a file before a command begins.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use brigade_gguf::Gguf;
use brigade_hub::name::ModelName;
use brigade_hub::own_folder::Own;
use brigade_hub::pattern::Pattern;
use brigade_hub::remote::Remote;
use brigade_hub::resolver::{Described, Found, Resolver, Watch};
use brigade_hub::settings::Settings;
use brigade_line::model::Model;
use brigade_plan::{format_bytes, parse_bytes};
use clap::Args;

use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::units;
use crate::cli::printing::output;
use crate::cli::printing::progress::Bar;

/// The folder of models in the data folder.
const FOLDER: &str = "models";

/// How often progress is told where it cannot be drawn.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// How llama.cpp's programs write a name of Hugging Face's.
const OF_LLAMA_CPP: [&str; 3] = ["-hf", "-hfr", "--hf-repo"];

/// What is said about models by name.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Models by name")]
pub struct HubArgs {
    /// Folder that models are fetched into [default: models in the data folder]
    #[arg(long, value_name = "DIR", env = "BRIGADE_DOWNLOAD_DIR")]
    pub download_dir: Option<PathBuf>,
    /// Folder of GGUF files that -m finds by their names, without ending; nothing in it is ever changed or deleted
    #[arg(long, value_name = "DIR", env = "BRIGADE_MODELS_DIR")]
    pub models_dir: Option<PathBuf>,
    /// Fetch no models and ask no hub: a model that is not on this machine is an error
    #[arg(long, env = "BRIGADE_OFFLINE", value_parser = clap::builder::BoolishValueParser::new())]
    pub offline: bool,
    /// With workers on other machines: send each its layers from here, and do not have it fetch them itself from where the
    /// model is
    #[arg(long)]
    pub push: bool,
    /// A host that models may be fetched from although its address is of this machine or network, beside that of
    /// HF_ENDPOINT; repeatable
    #[arg(long, value_name = "HOST[:PORT]", env = "BRIGADE_PRIVATE_HOSTS", value_delimiter = ',')]
    pub private_host: Vec<String>,
}

/// Models that requests may have fetched.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Models by name")]
pub struct AllowArgs {
    /// Let requests whose key may load (brigade key create --may-load) have models fetched whose names are like this:
    /// hf:USER/REPO:QUANT, with * for any text in REPO and QUANT, such as hf:bartowski/*; repeatable
    #[arg(
        long = "allow-pull",
        value_name = "PATTERN",
        requires = "pull_budget",
        conflicts_with = "no_auth"
    )]
    pub patterns: Vec<Pattern>,
    /// Disk space for models that requests have fetched: the least recently used one that is not loaded is deleted when
    /// another one needs its room. Such as 200G
    #[arg(long = "pull-budget", id = "pull_budget", value_name = "SIZE", value_parser = parse_bytes, requires = "patterns")]
    pub budget: Option<u64>,
}

impl HubArgs {
    /// These arguments and the environment.
    ///
    /// # Errors
    /// No folder is named.
    pub fn settings(&self, data_dir: &DataDirArgs) -> Result<Settings> {
        let data_dir = data_dir.path().context("models by name are kept in the data folder")?;
        let folder = self.download_dir.clone().unwrap_or_else(|| data_dir.join(FOLDER));
        let mut settings = Settings::from_env(folder, data_dir, &|name| std::env::var(name).ok());
        settings.offline |= self.offline;
        settings.models_dir.clone_from(&self.models_dir);
        settings.private_hosts.clone_from(&self.private_host);
        Ok(settings)
    }

    /// The file that `model` names, fetched if need be. `None`: it is a path, and means itself.
    ///
    /// # Errors
    /// There is no such model, or it cannot be had.
    pub fn find(&self, model: &Path, data_dir: &DataDirArgs) -> Result<Option<Found>> {
        if let ModelName::Path(path) = ModelName::parse(model)? {
            self.hold(&path, data_dir);
            return Ok(None);
        }
        let settings = self.settings(data_dir)?;
        let watcher = Watcher::new();
        Ok(Resolver::new(&settings, &watcher).find(model)?)
    }

    /// The file of the operator's folder that `model` names. `None`: it is a path or another name.
    ///
    /// # Errors
    /// There is no such model in the folder, or it cannot be used.
    pub fn filed(&self, model: &Path, data_dir: &DataDirArgs) -> Result<Option<PathBuf>> {
        if self.models_dir.is_none() {
            return Ok(None);
        }
        let (settings, watcher) = (self.settings(data_dir)?, Watcher::new());
        Ok(Resolver::new(&settings, &watcher).filed(model)?)
    }

    /// A model whose weights are not fetched here: by each worker for itself, or in passing with --push. `None`: it is a path,
    /// it is here, or it has to be here.
    ///
    /// # Errors
    /// As [`HubArgs::find`].
    pub fn remote(
        &self,
        model: &Path,
        data_dir: &DataDirArgs,
    ) -> Result<Option<(Found, Arc<Remote>)>> {
        if matches!(ModelName::parse(model)?, ModelName::Path(_)) {
            return Ok(None);
        }
        let (settings, watcher) = (self.settings(data_dir)?, Watcher::new());
        let is_enough = |path: &Path| Gguf::open_header_only(path).is_ok();
        let found = Resolver::new(&settings, &watcher).remote(model, self.push, &is_enough)?;
        // Heads that judge texts are computed here, of tensors that are here.
        let found = found.filter(|(found, _)| {
            Model::open_header_only(&found.path).is_ok_and(|m| !m.spec.is_encoder())
        });
        Ok(found.map(|(found, remote)| (found, Arc::new(remote))))
    }

    /// The file that tells about `model`, for who needs no weights: of a name that is not here, the beginnings of its files.
    /// `None`: it is a path, and means itself.
    ///
    /// # Errors
    /// There is no such model, or it cannot be asked about.
    pub fn describe(&self, model: &Path, data_dir: &DataDirArgs) -> Result<Option<Described>> {
        if matches!(ModelName::parse(model)?, ModelName::Path(_)) {
            return Ok(None);
        }
        let (settings, watcher) = (self.settings(data_dir)?, Watcher::new());
        let is_enough = |path: &Path| Gguf::open_header_only(path).is_ok();
        Ok(Resolver::new(&settings, &watcher).describe(model, &is_enough)?)
    }

    /// Marks a file in brigade's own folder as in use, so that it is not pruned. A path may lead into that folder
    /// too.
    fn hold(&self, path: &Path, data_dir: &DataDirArgs) {
        let folder = self.download_dir.clone().or_else(|| Some(data_dir.find()?.join(FOLDER)));
        let own = folder.filter(|folder| folder.is_dir()).map(|folder| Own::new(&folder));
        if let Some((place, own)) = own.and_then(|own| Some((own.relative(path)?, own))) {
            own.hold(&place);
        }
    }
}

/// Shows downloads: as a bar, or now and then as a line.
pub struct Watcher {
    bar: Bar,
    told: Cell<Option<(Instant, u64)>>,
}

impl Watcher {
    /// A progress display that has shown nothing yet.
    pub fn new() -> Self {
        Self { bar: Bar::new(), told: Cell::new(None) }
    }
}

impl Watch for Watcher {
    fn say(&self, text: &str) {
        output::remark(format_args!("{}", output::plain(text)));
    }

    fn show(&self, what: &str, done: u64, total: u64) {
        if self.bar.is_drawn() {
            return self.bar.download(what, done, total);
        }
        let now = Instant::now();
        match self.told.get() {
            None => self.told.set(Some((now, done))),
            Some((at, before)) if now - at >= TOLD_EVERY => {
                self.told.set(Some((now, done)));
                let per_second = done.saturating_sub(before) as f64 / (now - at).as_secs_f64();
                let left =
                    units::span((total.saturating_sub(done) as f64 / per_second.max(1.0)) as u64);
                let (done, total, speed) =
                    (format_bytes(done), format_bytes(total), format_bytes(per_second as u64));
                self.say(&format!("{what}: {done} of {total}, {speed}/s, {left} left"));
            }
            Some(_) => {}
        }
    }
}

/// The arguments, with `-hf USER/REPO:QUANT` as llama.cpp has it written as `-m hf:USER/REPO:QUANT`.
pub fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut out, mut is_name, mut is_text) = (Vec::new(), false, false);
    for argument in given {
        let text = argument.to_str().map(str::to_string);
        let option = text.as_deref().filter(|_| !is_text && !is_name);
        let (flag, value) = option.map_or(("", None), |option| match option.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (option, None),
        });
        is_text |= option == Some("--");
        match (is_name, OF_LLAMA_CPP.contains(&flag), value) {
            (true, ..) => out.push(named(text.as_deref().unwrap_or_default())),
            (false, true, Some(value)) => out.extend(["-m".into(), named(value)]),
            (false, true, None) => out.push("-m".into()),
            (false, false, _) => out.push(argument),
        }
        is_name = !is_name && OF_LLAMA_CPP.contains(&flag) && value.is_none();
    }
    out
}

fn named(repo: &str) -> OsString {
    let is_full = repo.starts_with("hf:") || repo.starts_with("hf.co/") || repo.contains("://");
    if is_full { repo.into() } else { format!("hf:{repo}").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_llama_cpp_are_names_here() {
        let of = |line: &str| {
            let given = line.split(' ').map(OsString::from);
            let out: Vec<String> =
                arguments(given).iter().map(|a| a.to_string_lossy().into_owned()).collect();
            out.join(" ")
        };
        assert_eq!(of("run -hf u/r:Q4_K_M -p hi"), "run -m hf:u/r:Q4_K_M -p hi");
        assert_eq!(of("run --hf-repo=u/r -n 1"), "run -m hf:u/r -n 1");
        assert_eq!(of("run -hf hf.co/u/r"), "run -m hf.co/u/r");
        assert_eq!(of("run -- -hf u/r"), "run -- -hf u/r");
        assert_eq!(of("run -h -f x"), "run -h -f x");
    }
}
