//! clap's errors about a command line, and the options of the file that they concern.

use std::ffi::OsString;

use clap::CommandFactory;

use super::loaded::{Loaded, ModelEntry};
use super::options::Section;
use super::place::{Place, Problem};
use super::take::{Taken, take, with};
use crate::cli::Cli;

/// The options of the file that an error concerns: those that it names, or the one without which there is another
/// error.
pub fn remarks(args: &[OsString], section: &Section, taken: &mut Vec<Taken>) -> Vec<String> {
    let Some(text) = complaint(&with(args, section.name, taken)) else { return Vec::new() };
    let is_named = |key: &str| {
        text.split(&format!("--{key}"))
            .skip(1)
            .any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
    };
    let say = |one: &Taken| format!("--{} is at {}", one.option.key(), one.at);
    let named: Vec<String> =
        taken.iter().filter(|one| is_named(one.option.key())).map(say).collect();
    if named.is_empty() {
        guilty(args, section, taken).map(|at| say(&taken[at])).into_iter().collect()
    } else {
        named
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

/// Problems among the options that `section` has in the file, without a command line.
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
        let mut taken = take(section, loaded.section(section.name), model, &|_| false, &|_| false);
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

/// clap's error about a command line, without the usage.
fn complaint(words: &[OsString]) -> Option<String> {
    let error = Cli::command().try_get_matches_from(words).err()?;
    let text = error.to_string();
    let text = text.split("\n\n").next().unwrap_or_default();
    let lines = text.strip_prefix("error: ").unwrap_or(text).lines().map(str::trim);
    Some(lines.collect::<Vec<_>>().join(" "))
}
