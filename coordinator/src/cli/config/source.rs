//! The file and its drop-ins, read: which option has which value, where that stands, and all that is wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::near::near;
use super::options::{self, MODEL, NAME, Opt, SECTIONS, Section};
use super::value::Value;
use crate::cli::hint;

/// The version of the file that this program reads, and those before it.
pub const VERSION: i128 = 1;
/// The key that it stands at.
const VERSION_KEY: &str = "version";
/// Longest file: it is written by hand.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Most drop-ins.
const MAX_DROP_INS: usize = 100;
/// The ending of drop-ins.
const ENDING: &str = "toml";

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1; 0 is the file as a whole.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}:{line}", self.file.display()),
        }
    }
}

/// Something that is wrong with a file.
#[derive(Clone, Debug, Error, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[error("{at}: {}{what}", if key.is_empty() { String::new() } else { format!("{key}: ") })]
pub struct Problem {
    /// Where.
    pub at: Place,
    /// Which key; empty where it is none.
    pub key: String,
    /// What, and what to do about it.
    pub what: String,
}

/// An option's value in a file.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The option's name.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where it stands.
    pub at: Place,
    /// The number of its file: later ones have the last word.
    pub file_no: usize,
}

/// A `[[model]]`.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// What it is called.
    pub name: String,
    /// Where it is first named.
    pub at: Place,
    /// Its options.
    pub settings: Vec<Setting>,
}

/// What the files say together.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The files, in the order in which they were read.
    pub files: Vec<PathBuf>,
    /// Options by section.
    pub sections: BTreeMap<&'static str, Vec<Setting>>,
    /// Models, in order.
    pub models: Vec<ModelEntry>,
    /// All that is wrong.
    pub problems: Vec<Problem>,
}

impl Loaded {
    /// Reads `path` and the drop-ins beside it.
    pub fn read(path: &Path) -> Self {
        let mut loaded = Self::default();
        let folder = path.with_extension("d");
        let drop_ins = match drop_ins(&folder) {
            Ok(paths) => paths,
            Err(error) => {
                loaded.wrong(Place { file: folder, line: 0 }, "", error.to_string());
                Vec::new()
            }
        };
        // Drop-ins alone are enough.
        let main = (path.exists() || drop_ins.is_empty()).then(|| path.to_owned());
        for file in main.into_iter().chain(drop_ins) {
            loaded.add(file);
        }
        loaded.problems.sort();
        loaded
    }

    /// What `section` says.
    pub fn section(&self, name: &str) -> &[Setting] {
        self.sections.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    fn wrong(&mut self, at: Place, key: &str, what: String) {
        self.problems.push(Problem { at, key: key.to_owned(), what });
    }

    fn add(&mut self, path: PathBuf) {
        let file_no = self.files.len();
        self.files.push(path.clone());
        let whole = Place { file: path.clone(), line: 0 };
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) => return self.wrong(whole, "", error.to_string()),
        };
        let file = OneFile { path: &path, text: &text, file_no };
        let (table, errors) = DeTable::parse_recoverable(&text);
        let mut bad_lines = Vec::new();
        for error in errors {
            let at = file.place(error.span().map_or(0, |span| span.start));
            bad_lines.push(at.line);
            self.wrong(at, "", error.message().to_owned());
        }
        let before = self.problems.len();
        if let Err(problem) = file.check_version(table.get_ref()) {
            // What a newer version means by its other keys, this program does not know.
            return self.problems.push(problem);
        }
        for (key, value) in in_order(table.get_ref()) {
            file.add_section(key, value, self);
        }
        // What stands on a line that cannot be read is not wrong a second time.
        let after = self.problems.split_off(before);
        self.problems.extend(after.into_iter().filter(|p| !bad_lines.contains(&p.at.line)));
    }
}

/// The drop-ins of a folder, in the order of their names.
fn drop_ins(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            paths.push(path);
        }
    }
    if paths.len() > MAX_DROP_INS {
        return Err(io::Error::other(format!(
            "{} drop-ins are too many: at most {MAX_DROP_INS}",
            paths.len()
        )));
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let mut file = File::open(path)?.take(MAX_FILE_BYTES + 1);
    match file.read_to_string(&mut text) {
        Ok(n) if n as u64 > MAX_FILE_BYTES => {
            Err(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes")))
        }
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(io::Error::other("it is not UTF-8 text"))
        }
        Err(error) => Err(error),
    }
}

/// A key with its value, both with where they stand.
type Entry<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// A table's entries as they stand in the file.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// One file, for places in it.
struct OneFile<'a> {
    path: &'a Path,
    text: &'a str,
    file_no: usize,
}

impl OneFile<'_> {
    /// Where byte `at` stands.
    fn place(&self, at: usize) -> Place {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Place { file: self.path.to_owned(), line }
    }

    fn problem(&self, at: usize, key: &str, what: String) -> Problem {
        Problem { at: self.place(at), key: key.to_owned(), what }
    }

    /// The version: the first file has to say it, and no file may say a newer one.
    fn check_version(&self, table: &DeTable<'_>) -> Result<(), Problem> {
        let Some((key, value)) = table.get_key_value(VERSION_KEY) else {
            return match self.file_no > 0 || table.is_empty() {
                true => Ok(()),
                false => {
                    let what = format!(
                        "put `{VERSION_KEY} = {VERSION}` first: it says how this file is meant"
                    );
                    Err(self.problem(0, VERSION_KEY, what))
                }
            };
        };
        let number = value.get_ref().as_integer();
        let number = number.and_then(|n| i128::from_str_radix(n.as_str(), n.radix()).ok());
        let what = match number {
            Some(n) if (1..=VERSION).contains(&n) => return Ok(()),
            Some(n) if n > VERSION => format!(
                "this file has version {n}, and this program ({}) reads version {VERSION} and older ones: use a newer program, \
                 or write the file as version {VERSION}",
                env!("CARGO_PKG_VERSION")
            ),
            _ => format!("`{VERSION_KEY} = {VERSION}` is needed"),
        };
        Err(self.problem(key.span().start, VERSION_KEY, what))
    }

    fn add_section(
        &self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        loaded: &mut Loaded,
    ) {
        let (name, at) = (key.get_ref().as_ref(), key.span().start);
        if name == VERSION_KEY {
            return;
        }
        if name == MODEL {
            return self.add_models(at, value.get_ref(), loaded);
        }
        let problem = match (options::section(name), value.get_ref()) {
            (Some(section), DeValue::Table(table)) => {
                let settings = self.settings(section, false, table, loaded);
                merge(loaded.sections.entry(section.name).or_default(), settings);
                return;
            }
            (Some(_), _) => format!("a section is needed: [{name}]"),
            (None, _) => unknown_section(name),
        };
        loaded.problems.push(self.problem(at, name, problem));
    }

    fn add_models(&self, at: usize, value: &DeValue<'_>, loaded: &mut Loaded) {
        let Some(items) = value.as_array() else {
            let what = "models stand in sections of two brackets each: [[model]]".to_owned();
            return loaded.problems.push(self.problem(at, MODEL, what));
        };
        let mut names: Vec<String> = Vec::new();
        for item in items.iter() {
            let at = item.span().start;
            let Some(table) = item.get_ref().as_table() else {
                let what = "a section is needed: [[model]]".to_owned();
                loaded.problems.push(self.problem(at, MODEL, what));
                continue;
            };
            let name = match self.name(at, table, &names) {
                Ok(name) => name,
                Err(problem) => {
                    loaded.problems.push(problem);
                    String::new()
                }
            };
            let Some(serve) = options::section("serve") else { continue };
            let settings = self.settings(serve, true, table, loaded);
            names.push(name.clone());
            match loaded.models.iter_mut().find(|model| model.name == name) {
                Some(model) => merge(&mut model.settings, settings),
                None => loaded.models.push(ModelEntry { name, at: self.place(at), settings }),
            }
        }
    }

    /// What a model is called, unlike those before it in this file.
    fn name(&self, at: usize, table: &DeTable<'_>, before: &[String]) -> Result<String, Problem> {
        let Some((key, value)) = table.get_key_value(NAME) else {
            return Err(self.problem(
                at,
                NAME,
                format!("each [[{MODEL}]] has one: {NAME} = \"...\""),
            ));
        };
        let at = key.span().start;
        match value.get_ref().as_str() {
            Some("") | None => Err(self.problem(at, NAME, "a text is needed".to_owned())),
            Some(name) if before.iter().any(|other| other == name) => {
                Err(self.problem(at, NAME, format!("two models are called {name:?}")))
            }
            Some(name) => Ok(name.to_owned()),
        }
    }

    /// The options of a table, those of a model or of a section.
    fn settings(
        &self,
        section: &Section,
        of_model: bool,
        table: &DeTable<'_>,
        loaded: &mut Loaded,
    ) -> Vec<Setting> {
        let mut settings = Vec::new();
        for (key, value) in in_order(table) {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            if of_model && name == NAME {
                continue;
            }
            let option = section.option(name).ok_or_else(|| unknown(section, of_model, name));
            let read = option.and_then(|option| match of_model && !section.is_of_a_model(option) {
                true => Err("it is an option of the server, and stands in [serve]".to_owned()),
                false => Value::read(option, value.get_ref()),
            });
            match read {
                Ok(value) => {
                    let (key, at, file_no) = (name.to_owned(), self.place(at), self.file_no);
                    settings.push(Setting { key, value, at, file_no });
                }
                Err(what) => loaded.problems.push(self.problem(at, name, what)),
            }
        }
        settings
    }
}

/// Puts the settings of a later file over those of earlier ones.
fn merge(settings: &mut Vec<Setting>, later: Vec<Setting>) {
    settings.retain(|setting| later.iter().all(|new| new.key != setting.key));
    settings.extend(later);
}

fn unknown_section(name: &str) -> String {
    let in_them = options::sections().iter().filter(|section| section.option(name).is_some());
    let in_them: Vec<String> = in_them.map(|section| format!("[{}]", section.name)).collect();
    if !in_them.is_empty() {
        return format!("it is an option, and stands in a section: {}", in_them.join(", "));
    }
    let known = SECTIONS.into_iter().chain([MODEL, VERSION_KEY]);
    match near(name, known) {
        Some(meant) => format!("there is no such section; did you mean {meant:?}?"),
        None => {
            "there is no such section: there are [serve], [run], [worker] and [[model]]".to_owned()
        }
    }
}

/// What may have been meant by a key that a section does not have.
fn unknown(section: &Section, of_model: bool, key: &str) -> String {
    let place = if of_model { "[[model]]".to_owned() } else { format!("[{}]", section.name) };
    let known: Vec<&Opt> = match of_model {
        true => section.of_a_model().collect(),
        false => section.options.iter().collect(),
    };
    let dashed = key.replace('_', "-");
    if let Some(option) = known.iter().find(|option| option.aliases().contains(&&*dashed)) {
        return format!("it is called {:?} here", option.key());
    }
    let keys = known.iter().map(|option| option.key()).chain(of_model.then_some(NAME));
    if let Some(meant) = near(key, keys) {
        return format!("{place} has no such option; did you mean {meant:?}?");
    }
    let others = options::sections().iter().filter(|other| other.option(key).is_some());
    let others: Vec<String> = others.map(|other| format!("[{}]", other.name)).collect();
    match (&others[..], hint(&format!("--{dashed}"))) {
        ([], Some(hint)) => format!("{place} has no such option: {hint}"),
        ([], None) => {
            format!("{place} has no such option: `brigade config init` writes all that there are")
        }
        _ => format!("{place} has no such option; {} has", others.join(" and ")),
    }
}
