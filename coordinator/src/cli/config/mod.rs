//! `brigade config` checks, shows and writes the configuration file.
//!
//! Reading order:
//!
//! - [`options`] derives the allowed options from clap's definitions.
//! - [`source`] reads the file and its drop-ins into [`loaded`]. `one_file` reads one of them, `value` a value.
//!   `place` has problems with their places. `unknown` and `near` suggest right names for wrong ones.
//! - [`merge`] adds the file's options to a command's arguments. `take` chooses them, and `complaint` attributes
//!   clap's errors. `switches` are turned off by the command line.
//! - `check` and `show` are the commands; [`text`] and [`schema`] write the definitions down, for people and for editors.

mod check;
mod complaint;
mod loaded;
pub mod merge;
mod near;
mod one_file;
mod options;
pub mod place;
mod schema;
mod show;
mod source;
mod switches;
mod take;
mod text;
mod unknown;
mod value;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

pub use merge::{Refused, parse};

use crate::cli::printing::output;

/// Where options may stand beside the command line.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigFile {
    /// File of options, which count where the command line and the environment do not set them; none: read no file
    /// [default: /etc/brigade/brigade.toml, where it exists]
    #[arg(long, value_name = "FILE", env = "BRIGADE_CONFIG")]
    pub config: Option<PathBuf>,
}

/// Check, show and write the file of options.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade config init --config brigade.toml     a file with all options, commented out
  brigade config check --config brigade.toml
  brigade config show serve --ctx 4096          what this command line means, and where each value comes from
  brigade config schema > brigade.schema.json   for editors

--SWITCH=false turns off what the file turns on. What counts: a flag, then an environment variable, then the files of
the folder brigade.d beside brigade.toml (the last by name first), then brigade.toml.")]
pub struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say all that is wrong with the file and its drop-ins, each with its line
    Check(CheckArgs),
    /// Print the values that count, and where each comes from
    Show(ShowArgs),
    /// Write a file that has all options, commented out
    Init(InitArgs),
    /// Print the file's JSON Schema
    Schema,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ShowArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A command with its arguments: serve, run or worker [default: all three, without arguments]
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct InitArgs {
    /// The file to write; -: print it [default: /etc/brigade/brigade.toml]
    #[arg(long, value_name = "FILE", env = "BRIGADE_CONFIG", default_value = merge::DEFAULT_FILE, hide_default_value = true)]
    config: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// Runs the command.
///
/// # Errors
/// The file is wrong, or cannot be written.
pub fn execute(args: ConfigArgs) -> Result<()> {
    match args.action {
        Action::Check(args) => check::execute(&args.file, args.json),
        Action::Show(args) => show::execute(&args.file, &args.command, args.json),
        Action::Init(args) => init(&args),
        Action::Schema => output::json(&schema::schema()),
    }
}

fn init(args: &InitArgs) -> Result<()> {
    let text = text::commented();
    let path = &args.config;
    if path.as_os_str() == "-" {
        return output::line(format_args!("{}", text.trim_end()));
    }
    if path == Path::new(merge::NO_FILE) {
        bail!("`{}` means that no file is read: name a file with --config FILE", merge::NO_FILE);
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true);
    if args.force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let file = match options.open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{} exists: --force replaces it", path.display())
        }
        opened => opened,
    };
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    output::line(format_args!("{} has all options, commented out", path.display()))
}

/// The models that the configuration file names. The file is that of `BRIGADE_CONFIG`, or the system's.
///
/// # Errors
/// The file is invalid, so the list could be incomplete.
pub fn model_names() -> Result<Vec<String>> {
    Ok(said(take::MODEL)?.into_iter().flat_map(|setting| setting.value.texts().to_vec()).collect())
}

/// The folder that an option of that file names for `serve`, or else for `run`.
///
/// # Errors
/// As [`model_names`].
pub fn folder(key: &str) -> Result<Option<PathBuf>> {
    let Some(loaded) = loaded()? else { return Ok(None) };
    let sections = ["serve", "run"].into_iter().map(|section| loaded.section(section));
    let of_models = loaded.models.iter().map(|model| &model.settings[..]);
    let said = |settings: &[loaded::Setting]| {
        let last = settings.iter().rfind(|setting| setting.key == key)?;
        last.value.texts().first().map(PathBuf::from)
    };
    Ok(sections.chain(of_models).find_map(said))
}

/// The values of an option in that file: of models first, then of commands.
fn said(key: &str) -> Result<Vec<loaded::Setting>> {
    let Some(loaded) = loaded()? else { return Ok(Vec::new()) };
    let of_models = loaded.models.iter().flat_map(|model| &model.settings);
    let all = of_models.chain(loaded.sections.values().flatten());
    Ok(all.filter(|setting| setting.key == key).cloned().collect())
}

/// The contents of that file; `None` where it does not exist.
fn loaded() -> Result<Option<loaded::Loaded>> {
    let named = std::env::var_os("BRIGADE_CONFIG").filter(|path| !path.is_empty());
    let Some(path) = merge::file(named.as_ref().map(Path::new)) else { return Ok(None) };
    let loaded = source::read(&path);
    if let Some(problem) = loaded.problems.first() {
        bail!("{problem}: correct the file first, which may name models");
    }
    Ok(Some(loaded))
}

/// All problems of a text, as `check` reports them for a file at `path`.
pub fn wrong_in(path: &Path, text: &str) -> Vec<place::Problem> {
    let mut loaded = loaded::Loaded::default();
    one_file::OneFile { path, text, file_no: 0 }.add_to(&mut loaded);
    check::problems(&loaded)
}

/// Says what is wrong with files, a line for each.
pub fn complain(problems: &[place::Problem]) {
    for problem in problems {
        output::remark(format_args!("{}", output::plain(&problem.to_string())));
    }
}
