//! Merges the file into the command line: a flag wins over the environment, and that over the file.
//!
//! Options of the file become arguments, so that clap's parsers, ranges and messages hold for them. Options that are
//! given in another way, or would contradict those, are left out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};

use super::complaint::remarks;
use super::loaded::{Loaded, ModelEntry};
use super::options::{self, Opt, Section};
use super::place::Problem;
use super::source::{self, is_there};
use super::switches::Switched;
use super::take::{MODEL, Taken, all, choose, is_chosen, take, with};
use crate::cli::{Cli, Command};

/// The file that is read where none is named and it exists.
pub const DEFAULT_FILE: &str = "/etc/brigade/brigade.toml";
/// The value of `--config` with which no file is read.
pub const NO_FILE: &str = "none";

/// The purpose for which a command line is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To run the command.
    Run,
    /// To show the effective options. Values that begin with systemd's folder of credentials stay as they are
    /// written: what only looks is in no service.
    Show,
    /// To show the file's options; a command line may be needed to complete them.
    ShowFile,
}

/// Why there is no command to run.
#[derive(Debug)]
pub enum Refused {
    /// clap's error about the arguments, with remarks about those that come from the file.
    Arguments(Box<clap::Error>, Vec<String>),
    /// The file is wrong.
    File(Vec<Problem>),
}

impl From<clap::Error> for Refused {
    fn from(error: clap::Error) -> Self {
        Self::Arguments(Box::new(error), Vec::new())
    }
}

/// A command line and what the file added to it.
#[derive(Debug)]
pub struct Merged {
    /// All arguments as clap reads them.
    pub matches: ArgMatches,
    /// Options that came from the file.
    pub taken: Vec<Taken>,
    /// The model whose options are used.
    pub model: Option<ModelEntry>,
    /// Switches that the command line turns off.
    pub off: Vec<String>,
}

/// Reads the command line, the environment and the file.
///
/// # Errors
/// One of them is wrong.
pub fn parse(args: &[OsString]) -> Result<Cli, Refused> {
    let Some((section, path)) = of_file(args) else { return Ok(Cli::try_parse_from(args)?) };
    let loaded = path.map(|path| source::read(&path)).unwrap_or_default();
    if !loaded.problems.is_empty() {
        return Err(Refused::File(loaded.problems));
    }
    let models = of_fleet(args, section, &loaded);
    let of = |model: Option<&ModelEntry>| {
        of_merged(merge_for(args, section, &loaded, model.cloned(), Purpose::Run)?)
    };
    let mut cli = match models.first() {
        first @ Some(_) => of(first)?,
        None => of_merged(merge(args, section, &loaded, Purpose::Run)?)?,
    };
    for model in models.iter().skip(1) {
        cli.command.add_model(of(Some(model))?.command);
    }
    if cli.command.has_folder() && !is_model_chosen(args, &loaded, section) {
        cli.command.add_folder(of(None)?.command, loaded.models.is_empty());
    }
    if cli.command.allows_pulls() {
        let is_alone = loaded.models.is_empty() && !is_model_chosen(args, &loaded, section);
        cli.command.add_pulls(of(None)?.command, is_alone);
    }
    Ok(cli)
}

/// Whether the command line, a variable or the file chooses the model.
fn is_model_chosen(args: &[OsString], loaded: &Loaded, section: &Section) -> bool {
    let said = leniently(args).map(|(_, matches)| matches).unwrap_or_default();
    is_chosen(&said, loaded.section(section.name))
}

/// The models that the command is about, where it is about several.
fn of_fleet<'l>(args: &[OsString], section: &Section, loaded: &'l Loaded) -> &'l [ModelEntry] {
    let said = leniently(args).map(|(_, matches)| matches).unwrap_or_default();
    all(section, loaded, &said, loaded.section(section.name))
}

fn of_merged(mut merged: Merged) -> Result<Cli, Refused> {
    let mut cli = Cli::from_arg_matches_mut(&mut merged.matches)?;
    if let Some(model) = &merged.model {
        let file = model.settings.iter().find(|setting| setting.key == MODEL);
        let file = file.and_then(|setting| setting.value.texts().first()).map(PathBuf::from);
        cli.command.set_model(file);
    }
    Ok(cli)
}

/// The section of these arguments' command, if it has one, and the file that is to be read for it, if there is one.
fn of_file(args: &[OsString]) -> Option<(&'static Section, Option<PathBuf>)> {
    // Most commands have nothing to do with it.
    args.iter().find(|arg| options::SECTIONS.iter().any(|name| *arg == *name))?;
    let (section, matches) = leniently(args)?;
    let named = matches.get_one::<PathBuf>(options::CONFIG).cloned();
    Some((section, file(named.as_deref())))
}

/// The file that is read where `named` was named; `None`: none.
pub fn file(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(path) if path == Path::new(NO_FILE) => None,
        Some(path) => Some(path.to_owned()),
        None => {
            let path = PathBuf::from(DEFAULT_FILE);
            (is_there(&path) || path.with_extension("d").is_dir()).then_some(path)
        }
    }
}

/// Parses arguments and variables, even where they are incomplete without the file.
fn leniently(args: &[OsString]) -> Option<(&'static Section, ArgMatches)> {
    let mut matches = Cli::command().ignore_errors(true).try_get_matches_from(args).ok()?;
    let (name, matches) = matches.remove_subcommand()?;
    Some((options::section(&name)?, matches))
}

/// Puts what the file says among the arguments `args`, a command line of `section`.
///
/// # Errors
/// No model can be chosen, or the options together make no sense.
pub fn merge(
    args: &[OsString],
    section: &'static Section,
    loaded: &Loaded,
    purpose: Purpose,
) -> Result<Merged, Refused> {
    let said = Switched::read(args, section).args;
    let said = leniently(&said).map(|(_, matches)| matches).unwrap_or_default();
    let model = match choose(section, loaded, &said, loaded.section(section.name)) {
        // Options that all models share are shown.
        Err(_) if purpose == Purpose::ShowFile => None,
        chosen => chosen.map_err(|problem| Refused::File(vec![problem]))?,
    };
    merge_for(args, section, loaded, model, purpose)
}

/// The same for a model that was chosen.
fn merge_for(
    args: &[OsString],
    section: &'static Section,
    loaded: &Loaded,
    model: Option<ModelEntry>,
    purpose: Purpose,
) -> Result<Merged, Refused> {
    let switched = Switched::read(args, section);
    // If clap cannot parse this, it reports the error below.
    let said = leniently(&switched.args).map(|(_, matches)| matches).unwrap_or_default();
    let is_said = |option: &Opt| {
        let source =
            said.try_contains_id(option.id()).ok().and_then(|_| said.value_source(option.id()));
        let is_given = matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        is_given || switched.is_off(option)
    };
    let own = loaded.section(section.name);
    let is_set = |option: &Opt| is_said(option) && !switched.is_off(option);
    let mut taken = take(section, own, model.as_ref(), &is_said, &is_set);
    if purpose == Purpose::Run {
        let found = taken.iter_mut().try_for_each(Taken::find_credentials);
        found.map_err(|problem| Refused::File(vec![problem]))?;
    }
    let words = with(&switched.args, section.name, &taken);
    let command = without_variables(&switched, section).ignore_errors(purpose == Purpose::ShowFile);
    match command.try_get_matches_from(words) {
        Ok(matches) => Ok(Merged { matches, taken, model, off: switched.off }),
        Err(error) => {
            let remarks = remarks(&switched.args, section, &mut taken);
            Err(Refused::Arguments(Box::new(error), remarks))
        }
    }
}

/// The command line's definition without the variables of switches that are turned off.
fn without_variables(switched: &Switched, section: &Section) -> clap::Command {
    let off = |command: clap::Command| {
        switched.off.iter().fold(command, |command, id| command.mut_arg(id, |arg| arg.env(None)))
    };
    Cli::command().mut_subcommand(section.name, off)
}

impl Command {
    /// Puts the file of a model in the place of its name.
    fn set_model(&mut self, file: Option<PathBuf>) {
        match self {
            Self::Serve(args) => args.set_model(file),
            Self::Run(args) => args.set_model(file),
            _ => {}
        }
    }

    /// Whether it serves the models of a folder.
    fn has_folder(&self) -> bool {
        matches!(self, Self::Serve(args) if args.models_dir().is_some())
    }

    /// The options of the models of a folder; whether they are the only ones.
    fn add_folder(&mut self, base: Self, is_alone: bool) {
        if let (Self::Serve(args), Self::Serve(base)) = (self, base) {
            args.add_folder(*base, is_alone);
        }
    }

    /// Whether its requests may have models fetched.
    fn allows_pulls(&self) -> bool {
        matches!(self, Self::Serve(args) if args.allows_pulls())
    }

    /// The options of models that requests have fetched; whether they are the only ones.
    fn add_pulls(&mut self, base: Self, is_alone: bool) {
        if let (Self::Serve(args), Self::Serve(base)) = (self, base) {
            args.add_pulls(*base, is_alone);
        }
    }

    /// Adds another model to the same server.
    fn add_model(&mut self, other: Self) {
        if let (Self::Serve(args), Self::Serve(other)) = (self, other) {
            args.others.push(*other);
        }
    }
}
