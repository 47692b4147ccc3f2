//! Reads one file, key by key.

use std::borrow::Cow;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::loaded::{Loaded, ModelEntry, Setting};
use super::options::{self, KEYS, MODEL, NAME, SHARE, SHARE_PREFIX, Section, VERSION, VERSION_KEY};
use super::place::{Place, Problem};
use super::unknown::{unknown, unknown_section};
use super::value::Value;

/// A key with its value, both with where they stand.
type Entry<'a, 'i> = (&'a Spanned<Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// A table's entries as they stand in the file.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// A file that is being read.
pub struct OneFile<'a> {
    /// The file's path.
    pub path: &'a Path,
    /// The text of the file.
    pub text: &'a str,
    /// The file's number: 0 is the first.
    pub file_no: usize,
}

impl OneFile<'_> {
    /// Adds its values and its errors.
    pub fn add_to(&self, loaded: &mut Loaded) {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        let mut bad_lines = Vec::new();
        for error in errors {
            let start = error.span().map_or(0, |span| span.start);
            let problem = self.problem(start, "", error.message().to_owned());
            bad_lines.push(problem.at.line);
            loaded.problems.push(problem);
        }
        if let Err(problem) = self.check_version(table.get_ref()) {
            // A newer version may give its other keys a meaning that this program does not know.
            return loaded.problems.push(problem);
        }
        let before = loaded.problems.len();
        for (key, value) in in_order(table.get_ref()) {
            self.add_section(key, value, loaded);
        }
        // A value on a line that cannot be parsed is not reported a second time.
        let after = loaded.problems.split_off(before);
        loaded.problems.extend(after.into_iter().filter(|p| !bad_lines.contains(&p.at.line)));
    }

    /// Where byte `at` stands.
    fn place(&self, at: usize) -> Place {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Place { file: self.path.to_owned(), line }
    }

    fn problem(&self, at: usize, key: &str, what: String) -> Problem {
        Problem { at: self.place(at), key: key.to_owned(), what }
    }

    /// Checks the version: the first file must have it, and no file may have a newer one.
    fn check_version(&self, table: &DeTable<'_>) -> Result<(), Problem> {
        let Some((key, value)) = table.get_key_value(VERSION_KEY) else {
            return if self.file_no > 0 || table.is_empty() {
                Ok(())
            } else {
                let what = format!(
                    "put `{VERSION_KEY} = {VERSION}` first: it is the version of this file's format"
                );
                Err(self.problem(0, VERSION_KEY, what))
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
        key: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        loaded: &mut Loaded,
    ) {
        let (name, at) = (key.get_ref().as_ref(), key.span().start);
        if name == VERSION_KEY {
            return;
        }
        if name == SHARE {
            return self.add_shares(at, value.get_ref(), loaded);
        }
        if name == MODEL {
            return self.add_models(at, value.get_ref(), loaded);
        }
        let problem = match (options::section(name), value.get_ref()) {
            (Some(section), DeValue::Table(table)) => {
                let settings = self.settings(section, false, table, loaded);
                let has = |setting: &Setting| {
                    setting.key == SHARE_PREFIX && setting.file_no == self.file_no
                };
                if settings.iter().any(has) && loaded.section(name).iter().any(has) {
                    let what = format!("[[{SHARE}]] says the same: keep one of them");
                    return loaded.problems.push(self.problem(at, SHARE_PREFIX, what));
                }
                merge(loaded.sections.entry(section.name).or_default(), settings);
                return;
            }
            (Some(_), _) => format!("a section is needed: [{name}]"),
            (None, _) => unknown_section(name),
        };
        loaded.problems.push(self.problem(at, name, problem));
    }

    /// Keys that share prompts: as the server's option has them.
    fn add_shares(&self, at: usize, value: &DeValue<'_>, loaded: &mut Loaded) {
        let Some(items) = value.as_array() else {
            let what = "keys that share stand in sections of two brackets each: [[share]]";
            return loaded.problems.push(self.problem(at, SHARE, what.to_owned()));
        };
        let option = options::section("serve").and_then(|serve| serve.option(SHARE_PREFIX));
        let Some(option) = option else { return };
        let has =
            |setting: &Setting| setting.key == SHARE_PREFIX && setting.file_no == self.file_no;
        if loaded.section("serve").iter().any(has) {
            let what = format!("{SHARE_PREFIX} says the same in [serve]: keep one of them");
            return loaded.problems.push(self.problem(at, SHARE, what));
        }
        let read = items.iter().map(|item| {
            let at = item.span().start;
            keys_of(item.get_ref()).map_err(|what| self.problem(at, SHARE, what))
        });
        let groups: Vec<String> = match read.collect() {
            Ok(groups) => groups,
            Err(problem) => return loaded.problems.push(problem),
        };
        match Value::list(option, groups) {
            Ok(value) => {
                let (key, at, file_no) = (SHARE_PREFIX.to_owned(), self.place(at), self.file_no);
                let setting = Setting { key, value, at, file_no };
                merge(loaded.sections.entry("serve").or_default(), vec![setting]);
            }
            Err(what) => loaded.problems.push(self.problem(at, SHARE, what)),
        }
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

    /// The name of a model, which must differ from those before it in this file.
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
            let read = option.and_then(|option| {
                if of_model && !section.is_of_a_model(option) {
                    Err("it is an option of the server, and stands in [serve]".to_owned())
                } else {
                    Value::read(option, value.get_ref())
                }
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

/// The names in a `[[share]]`, as the command line would have them.
fn keys_of(section: &DeValue<'_>) -> Result<String, String> {
    let needed = || format!("a list of names is needed: {KEYS} = [\"NAME\", \"NAME\"]");
    let table = section.as_table().ok_or_else(|| "a section is needed: [[share]]".to_owned())?;
    if let Some((other, _)) = table.iter().find(|(key, _)| key.get_ref() != KEYS) {
        return Err(format!("[[share]] has no {:?}: it has {KEYS}", other.get_ref()));
    }
    let names = table.get(KEYS).and_then(|value| value.get_ref().as_array()).ok_or_else(needed)?;
    let names = names.iter().map(|name| name.get_ref().as_str());
    Ok(names.collect::<Option<Vec<_>>>().ok_or_else(needed)?.join(","))
}

/// Puts the settings of a later file over those of earlier ones.
fn merge(settings: &mut Vec<Setting>, later: Vec<Setting>) {
    settings.retain(|setting| later.iter().all(|new| new.key != setting.key));
    settings.extend(later);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Loaded {
        let mut loaded = Loaded::default();
        OneFile { path: Path::new("a.toml"), text, file_no: 0 }.add_to(&mut loaded);
        loaded
    }

    #[test]
    fn keys_that_share_are_the_servers_option() {
        let group = "[[share]]\nkeys = [\"ann\", \"bob\"]\n";
        let loaded =
            read(&format!("version = 1\n{group}[[share]]\nkeys = [\"c\", \"d\"]\n[serve]\n"));
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        let [setting] = loaded.section("serve") else { panic!("{loaded:?}") };
        assert_eq!((setting.key.as_str(), setting.at.line), (SHARE_PREFIX, 2));
        assert_eq!(setting.value.texts(), ["ann,bob", "c,d"]);
        let twice = "[serve]\nshare-prefix = [\"a,b\"]\n";
        for (text, line, says) in [
            ("[[share]]\nkeys = [\"ann\"]\n", 2, "two names"),
            ("[[share]]\nkeys = \"ann\"\n", 2, "a list of names"),
            ("[[share]]\nnames = []\n", 2, "it has keys"),
            ("[share]\nkeys = []\n", 2, "two brackets"),
            (&format!("{twice}{group}"), 4, "keep one"),
            (&format!("{group}{twice}"), 4, "keep one"),
        ] {
            let problems = read(&format!("version = 1\n{text}")).problems;
            assert_eq!((problems.len(), problems[0].at.line), (1, line), "{problems:?}");
            assert!(problems[0].what.contains(says), "{}", problems[0].what);
        }
    }
}
