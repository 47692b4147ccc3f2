//! The command line with the file behind it: flag before environment before file.
//!
//! What the file says is put among the arguments, so that clap's parsers, ranges and messages are those of flags. What is
//! given otherwise, or would contradict that, is left out.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};

use super::options::{self, Opt, Section};
use super::source::{Loaded, ModelEntry, Place, Problem, Setting};
use super::value::Value;
use crate::cli::{Cli, Command};

/// The file that is read where none is named and it exists.
pub const DEFAULT_FILE: &str = "/etc/brigade/brigade.toml";
/// In the place of a file's name: no file is read.
pub const NO_FILE: &str = "none";
/// Where systemd puts what `LoadCredential=` names. Values of the file may begin with it.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
/// The option that says which model.
pub const MODEL: &str = "model";
/// The option that says by which name clients call it.
const SERVED_NAME: &str = "served-model-name";

/// What a command line is put together for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To run it.
    Run,
    /// To show what it would do. Values that begin with systemd's folder of credentials stay as they are written: what only
    /// looks is in no service.
    Show,
    /// To show what the file has for it; a command line may be needed to complete that.
    ShowFile,
}

/// Why there is no command to run.
#[derive(Debug)]
pub enum Refused {
    /// What clap says about arguments, and which of them are not the user's own.
    Arguments(Box<clap::Error>, Vec<String>),
    /// The file is wrong.
    File(Vec<Problem>),
}

impl From<clap::Error> for Refused {
    fn from(error: clap::Error) -> Self {
        Self::Arguments(Box::new(error), Vec::new())
    }
}

/// A value that the file gave.
#[derive(Debug)]
pub struct Taken {
    /// The option.
    pub option: &'static Opt,
    /// Its value.
    pub value: Value,
    /// Where it stands.
    pub at: Place,
}

/// A command line and what the file added to it.
#[derive(Debug)]
pub struct Merged {
    /// All arguments as clap reads them.
    pub matches: ArgMatches,
    /// What the file gave.
    pub taken: Vec<Taken>,
    /// The model whose options are used.
    pub model: Option<ModelEntry>,
}

/// Reads the command line, the environment and the file.
///
/// # Errors
/// One of them is wrong.
pub fn parse(args: &[OsString]) -> Result<Cli, Refused> {
    let Some((section, path)) = of_file(args) else { return Ok(Cli::try_parse_from(args)?) };
    let loaded = Loaded::read(&path);
    if !loaded.problems.is_empty() {
        return Err(Refused::File(loaded.problems));
    }
    let mut merged = merge(args, section, &loaded, Purpose::Run)?;
    let mut cli = Cli::from_arg_matches_mut(&mut merged.matches)?;
    if let Some(model) = &merged.model {
        let file = model.settings.iter().find(|setting| setting.key == MODEL);
        let file = file.and_then(|setting| setting.value.texts().first()).map(PathBuf::from);
        cli.command.set_model(file);
    }
    Ok(cli)
}

/// The section of these arguments' command, and the file that is to be read for it, if there is one.
fn of_file(args: &[OsString]) -> Option<(&'static Section, PathBuf)> {
    // Most commands have nothing to do with it.
    args.iter().find(|arg| options::SECTIONS.iter().any(|name| *arg == *name))?;
    let (section, matches) = leniently(args)?;
    let named = matches.get_one::<PathBuf>(options::CONFIG).cloned();
    Some((section, file(named.as_deref())?))
}

/// The file that is read where `named` was named; `None`: none.
pub fn file(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(path) if path == Path::new(NO_FILE) => None,
        Some(path) => Some(path.to_owned()),
        None => {
            let path = PathBuf::from(DEFAULT_FILE);
            (path.exists() || path.with_extension("d").is_dir()).then_some(path)
        }
    }
}

/// What arguments and variables say, even where they are not complete without the file.
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
    // What clap says without a command line to read, it says below.
    let said = leniently(args).map(|(_, matches)| matches).unwrap_or_default();
    let is_said = |option: &Opt| {
        let source =
            said.try_contains_id(option.id()).ok().and_then(|_| said.value_source(option.id()));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let own = loaded.section(section.name);
    let model = match choose(section, loaded, &said, own) {
        // What they have in common is shown.
        Err(_) if purpose == Purpose::ShowFile => None,
        chosen => chosen.map_err(|problem| Refused::File(vec![problem]))?,
    };
    let mut taken = take(section, own, model.as_ref(), &is_said);
    if purpose == Purpose::Run {
        let found = taken.iter_mut().try_for_each(Taken::find_credentials);
        found.map_err(|problem| Refused::File(vec![problem]))?;
    }
    let words = with(args, section.name, &taken);
    let command = Cli::command().ignore_errors(purpose == Purpose::ShowFile);
    match command.try_get_matches_from(words) {
        Ok(matches) => Ok(Merged { matches, taken, model }),
        Err(error) => {
            let remarks = remarks(args, section, &mut taken);
            Err(Refused::Arguments(Box::new(error), remarks))
        }
    }
}

/// Which `[[model]]` the command is about: the one that is named, or the only one.
fn choose(
    section: &Section,
    loaded: &Loaded,
    said: &ArgMatches,
    own: &[Setting],
) -> Result<Option<ModelEntry>, Problem> {
    let models = &loaded.models;
    if section.option(MODEL).is_none() || models.is_empty() {
        return Ok(None);
    }
    let find = |name: &OsStr| models.iter().find(|model| OsStr::new(&model.name) == name).cloned();
    let names = || models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(wanted) = said.get_raw(MODEL).and_then(|mut values| values.next()) {
        // Whatever is no name of these is a file, which has none of their options.
        return Ok(find(wanted));
    }
    if let Some(setting) = own.iter().find(|setting| setting.key == MODEL) {
        let wanted = setting.value.texts().first().map(String::as_str).unwrap_or_default();
        return find(OsStr::new(wanted)).map(Some).ok_or_else(|| Problem {
            at: setting.at.clone(),
            key: MODEL.to_owned(),
            what: format!("no [[model]] is called {wanted:?}: there are {}", names()),
        });
    }
    match &models[..] {
        [only] => Ok(Some(only.clone())),
        _ => Err(Problem {
            at: models[1].at.clone(),
            key: MODEL.to_owned(),
            what: format!(
                "there are {} models, and `brigade {}` has one at a time: choose with -m NAME, of {}",
                models.len(),
                section.name,
                names()
            ),
        }),
    }
}

/// The settings of the file that stand. A model's come before its section's, and those of later files before those of
/// earlier ones; what contradicts any before it is left out.
fn take(
    section: &'static Section,
    own: &[Setting],
    model: Option<&ModelEntry>,
    is_said: &dyn Fn(&Opt) -> bool,
) -> Vec<Taken> {
    let of_model = model.iter().flat_map(|model| &model.settings).map(|setting| (1, setting));
    let mut settings: Vec<(usize, &Setting)> =
        own.iter().map(|setting| (0, setting)).chain(of_model).collect();
    settings.sort_by_key(|(layer, setting)| std::cmp::Reverse((*layer, setting.file_no)));
    let said: Vec<&Opt> = section.options.iter().filter(|option| is_said(option)).collect();
    let mut taken: Vec<((usize, usize), Taken)> = Vec::new();
    for (layer, setting) in settings {
        // `run` lacks some options of a server's lines.
        let Some(option) = section.option(&setting.key) else { continue };
        let is_chosen = model.is_some() && option.key() == MODEL;
        let rank = (layer, setting.file_no);
        let is_there = said.iter().any(|other| other.id() == option.id())
            || taken.iter().any(|(_, other)| other.option.id() == option.id());
        let is_excluded = said.iter().any(|other| section.conflict(option, other))
            || taken.iter().any(|(other, by)| *other > rank && section.conflict(option, by.option));
        if is_chosen || is_there || is_excluded {
            continue;
        }
        let value = setting.value.clone();
        taken.push((rank, Taken { option, value, at: setting.at.clone() }));
    }
    let mut taken: Vec<Taken> = taken.into_iter().map(|(_, taken)| taken).collect();
    if let (Some(model), Some(option)) = (model, section.option(SERVED_NAME))
        && !is_said(option)
        && taken.iter().all(|other| other.option.key() != SERVED_NAME)
    {
        let value = Value::List(vec![model.name.clone()]);
        taken.push(Taken { option, value, at: model.at.clone() });
    }
    taken
}

impl Taken {
    /// Puts systemd's folder of credentials in the place of its name.
    fn find_credentials(&mut self) -> Result<(), Problem> {
        let prefix = format!("${CREDENTIALS}/");
        let texts = match &mut self.value {
            Value::Switch(_) => return Ok(()),
            Value::One(text) => std::slice::from_mut(text),
            Value::List(texts) => &mut texts[..],
        };
        for text in texts {
            let Some(name) = text.strip_prefix(&prefix) else { continue };
            let folder = std::env::var(CREDENTIALS).map_err(|_| Problem {
                at: self.at.clone(),
                key: self.option.key().to_owned(),
                what: format!(
                    "${CREDENTIALS} is not set: it is in services of systemd whose unit has LoadCredential={name}:FILE"
                ),
            })?;
            *text = format!("{folder}/{name}");
        }
        Ok(())
    }
}

/// The arguments with those of the file behind the command's name.
fn with(args: &[OsString], command: &str, taken: &[Taken]) -> Vec<OsString> {
    let at = args.iter().position(|arg| arg == command).map_or(args.len(), |at| at + 1);
    let (before, behind) = args.split_at(at);
    let added = taken.iter().flat_map(|taken| taken.value.arguments(taken.option));
    before.iter().cloned().chain(added.map(OsString::from)).chain(behind.iter().cloned()).collect()
}

/// Which options of the file an error is about: those that it names, or the one without which there is another error.
fn remarks(args: &[OsString], section: &Section, taken: &mut Vec<Taken>) -> Vec<String> {
    let Some(text) = complaint(&with(args, section.name, taken)) else { return Vec::new() };
    let is_named = |key: &str| {
        text.split(&format!("--{key}"))
            .skip(1)
            .any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
    };
    let say = |one: &Taken| format!("--{} is at {}", one.option.key(), one.at);
    let named: Vec<String> =
        taken.iter().filter(|one| is_named(one.option.key())).map(say).collect();
    match named.is_empty() {
        true => guilty(args, section, taken).map(|at| say(&taken[at])).into_iter().collect(),
        false => named,
    }
}

/// The last option of the file without which there would be another complaint about `args`, or none.
fn guilty(args: &[OsString], section: &Section, taken: &mut Vec<Taken>) -> Option<usize> {
    taken.sort_by(|a, b| a.at.cmp(&b.at));
    let said = complaint(&with(args, section.name, taken));
    (0..taken.len()).rev().find(|at| {
        let one = taken.remove(*at);
        let other = complaint(&with(args, section.name, taken));
        taken.insert(*at, one);
        other != said
    })
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
}

/// What makes no sense of the options that `section` has in the file, without a command line beside them.
pub fn contradictions(section: &'static Section, loaded: &Loaded) -> Vec<Problem> {
    // One model after the other, as `-m` would choose it.
    let models: Vec<Option<&ModelEntry>> = match &loaded.models[..] {
        models if section.name == "serve" && !models.is_empty() => {
            models.iter().map(Some).collect()
        }
        _ => vec![None],
    };
    let start: [OsString; 2] = ["brigade".into(), section.name.into()];
    // A command line may have to complete it: that is nothing that the file says.
    let of_nothing = complaint(&start);
    let mut problems = Vec::new();
    for model in models {
        let mut taken = take(section, loaded.section(section.name), model, &|_| false);
        let what = complaint(&with(&start, section.name, &taken));
        let Some(what) = what.filter(|what| of_nothing.as_ref() != Some(what)) else { continue };
        let whole = || Place { file: loaded.files.first().cloned().unwrap_or_default(), line: 0 };
        let found = guilty(&start, section, &mut taken).map(|at| &taken[at]);
        let key = found.map_or("", |one| one.option.key()).to_owned();
        problems.push(Problem { at: found.map_or_else(whole, |one| one.at.clone()), key, what });
    }
    problems.sort();
    problems.dedup();
    problems
}

/// What clap says about a command line, without its usage.
fn complaint(words: &[OsString]) -> Option<String> {
    let error = Cli::command().try_get_matches_from(words).err()?;
    let text = error.to_string();
    let text = text.split("\n\n").next().unwrap_or_default();
    let lines = text.strip_prefix("error: ").unwrap_or(text).lines().map(str::trim);
    Some(lines.collect::<Vec<_>>().join(" "))
}
