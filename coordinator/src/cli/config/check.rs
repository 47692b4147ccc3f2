//! `brigade config check`: all problems of the files, each with file, line and key.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::json;

use super::complaint::contradictions;
use super::loaded::{Loaded, Setting};
use super::merge;
use super::options;
use super::place::Problem;
use super::source;
use super::{ConfigFile, complain};
use crate::cli::printing::output;

/// The permission bit with which any user can read a file.
const OTHERS_READ: u32 = 0o004;

/// Runs the command.
///
/// # Errors
/// There is something wrong, or no file.
pub fn execute(file: &ConfigFile, as_json: bool) -> Result<()> {
    let Some(path) = merge::file(file.config.as_deref()) else {
        bail!("no file is named, and there is no {}: give --config FILE", merge::DEFAULT_FILE)
    };
    let loaded = source::read(&path);
    let problems = problems(&loaded);
    let warnings = open_secrets(&loaded);
    if as_json {
        output::json(&json!({"files": loaded.files, "wrong": problems, "warnings": warnings}))?;
    } else {
        complain(&problems);
        for warning in &warnings {
            output::remark(format_args!("warning: {warning}"));
        }
    }
    let n_files = loaded.files.len();
    let files = if n_files == 1 { "file" } else { "files" };
    if !problems.is_empty() {
        bail!("{} wrong in {n_files} {files}", problems.len())
    }
    let n = loaded.sections.values().flatten().count();
    let of_models: usize = loaded.models.iter().map(|model| model.settings.len()).sum();
    if as_json {
        Ok(())
    } else {
        output::line(format_args!("nothing is wrong: {n_files} {files}, {} options", n + of_models))
    }
}

/// Problems of single options, or, if there are none, of options together.
pub fn problems(loaded: &Loaded) -> Vec<Problem> {
    if loaded.problems.is_empty() {
        options::sections().iter().flat_map(|s| contradictions(s, loaded)).collect()
    } else {
        loaded.problems.clone()
    }
}

/// Secrets in files that others can read.
fn open_secrets(loaded: &Loaded) -> Vec<Problem> {
    let is_open = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & OTHERS_READ != 0)
    };
    let of = |(name, settings): (&&'static str, &Vec<Setting>)| -> Vec<Problem> {
        let section = options::section(name);
        let is_secret = |setting: &&Setting| {
            section.and_then(|s| s.option(&setting.key)).is_some_and(options::Opt::is_secret)
        };
        let open = settings.iter().filter(is_secret).filter(|setting| is_open(&setting.at.file));
        let warn = |setting: &Setting| Problem {
            at: setting.at.clone(),
            key: setting.key.clone(),
            what: format!(
                "every user of this machine can read this secret: put it into a file of its own ({}-file), or chmod o-r this one",
                setting.key
            ),
        };
        open.map(warn).collect()
    };
    loaded.sections.iter().flat_map(of).collect()
}
