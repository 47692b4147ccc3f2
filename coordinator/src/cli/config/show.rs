//! `brigade config show`: the effective values, and the source of each.

use std::ffi::OsString;

use anyhow::{Result, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;
use serde_json::{Value, json};

use super::loaded::{Loaded, ModelEntry, Setting};
use super::merge::{self, Merged, Purpose, Refused};
use super::options::{self, Kind, Opt, Section};
use super::source;
use super::take;
use super::{ConfigFile, complain};
use crate::cli::printing::output;

/// The replacement for secrets.
const REDACTED: &str = "(secret)";

/// Runs the command.
///
/// # Errors
/// The file or the command line is wrong.
pub fn execute(file: &ConfigFile, command: &[OsString], as_json: bool) -> Result<()> {
    let loaded = match merge::file(file.config.as_deref()) {
        Some(path) => source::read(&path),
        None => Loaded::default(),
    };
    if !loaded.problems.is_empty() {
        complain(&loaded.problems);
        bail!("the file is wrong");
    }
    let lines: Vec<Vec<OsString>> = match command {
        [] => options::SECTIONS.iter().map(|name| vec![(*name).into()]).collect(),
        words => vec![words.to_vec()],
    };
    let purpose = if command.is_empty() { Purpose::ShowFile } else { Purpose::Show };
    let mut values = serde_json::Map::new();
    for words in lines {
        let Some(section) = words[0].to_str().and_then(options::section) else {
            bail!("{}: show takes serve, run or worker", words[0].display())
        };
        let shown = section_of(section, &words, &loaded, purpose)?;
        if as_json {
            drop(values.insert(section.name.to_owned(), json!(shown)))
        } else {
            print(&format!("[{}]", section.name), &shown)?
        }
    }
    if command.is_empty() {
        let models: Vec<_> = loaded.models.iter().map(of_model).collect();
        if as_json {
            drop(values.insert(options::MODEL.to_owned(), json!(models)))
        } else {
            models.iter().try_for_each(|shown| print("[[model]]", shown))?
        }
    }
    if as_json { output::json(&values) } else { Ok(()) }
}

/// The options that the file has for a model, with their places.
fn of_model(model: &ModelEntry) -> Vec<Shown> {
    let serve = options::section("serve");
    let of = |setting: &Setting| {
        let option = serve.and_then(|section| section.option(&setting.key))?;
        let value = match &setting.value {
            super::value::Value::Switch(is_on) => Value::from(*is_on),
            value => as_json(option, Some(value.texts())),
        };
        Some(Shown { key: setting.key.clone(), value, from: setting.at.to_string() })
    };
    let name = Shown {
        key: options::NAME.to_owned(),
        value: Value::from(model.name.as_str()),
        from: model.at.to_string(),
    };
    std::iter::once(name).chain(model.settings.iter().filter_map(of)).collect()
}

/// An option's value and where it comes from.
#[derive(Debug, serde::Serialize)]
struct Shown {
    key: String,
    value: Value,
    from: String,
}

fn section_of(
    section: &'static Section,
    words: &[OsString],
    loaded: &Loaded,
    purpose: Purpose,
) -> Result<Vec<Shown>> {
    let args: Vec<OsString> =
        std::iter::once("brigade".into()).chain(words.iter().cloned()).collect();
    let merged = match merge::merge(&args, section, loaded, purpose) {
        Ok(merged) => merged,
        Err(Refused::Arguments(error, remarks)) => {
            let text = error.to_string();
            bail!(
                "{}\n{}",
                text.strip_prefix("error: ").unwrap_or(&text).trim_end(),
                remarks.join("\n")
            )
        }
        Err(Refused::File(problems)) => {
            complain(&problems);
            bail!("the file is wrong")
        }
    };
    let Some((_, matches)) = merged.matches.subcommand() else { return Ok(Vec::new()) };
    Ok(section.options.iter().map(|option| shown(option, matches, &merged)).collect())
}

fn shown(option: &Opt, matches: &ArgMatches, merged: &Merged) -> Shown {
    let (texts, from) = found(option, matches, merged);
    let value = match option.kind() {
        Kind::Switch => Value::from(matches.get_flag(option.id())),
        _ => as_json(option, texts.as_deref()),
    };
    Shown { key: option.key().to_owned(), value, from }
}

/// A value as JSON; null where there is none.
fn as_json(option: &Opt, texts: Option<&[String]>) -> Value {
    let one = |text: &String| match (option.is_secret(), option.kind()) {
        (true, _) => Value::from(REDACTED),
        (false, Kind::Integer | Kind::Number) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()))
        }
        (false, _) => Value::from(text.as_str()),
    };
    match texts {
        None => Value::Null,
        Some(texts) if option.is_list() => texts.iter().map(one).collect(),
        Some(texts) => texts.first().map_or(Value::Null, one),
    }
}

/// The texts of an option's value, `None` where it has none, and where they come from.
fn found(option: &Opt, matches: &ArgMatches, merged: &Merged) -> (Option<Vec<String>>, String) {
    let of_model = merged.model.iter().flat_map(|model| &model.settings);
    if option.key() == take::MODEL
        && let Some(setting) = of_model.into_iter().find(|setting| setting.key == take::MODEL)
    {
        return (Some(setting.value.texts().to_vec()), setting.at.to_string());
    }
    if let Some(taken) = merged.taken.iter().find(|taken| taken.option.id() == option.id()) {
        return (Some(taken.value.texts().to_vec()), taken.at.to_string());
    }
    if merged.off.iter().any(|id| id == option.id()) {
        return (None, "command line".to_owned());
    }
    let raw = matches.get_raw(option.id());
    let texts = raw.map(|raw| raw.map(|text| text.to_string_lossy().into_owned()).collect());
    let from = match matches.value_source(option.id()) {
        Some(ValueSource::CommandLine) => "command line".to_owned(),
        Some(ValueSource::EnvVariable) => {
            format!("environment variable {}", option.env().unwrap_or_default())
        }
        Some(_) => "default".to_owned(),
        None => "not set".to_owned(),
    };
    (texts, from)
}

/// Prints a section as the file would have it.
fn print(heading: &str, shown: &[Shown]) -> Result<()> {
    output::line(format_args!("{heading}"))?;
    for Shown { key, value, from } in shown {
        match value {
            Value::Null => output::line(format_args!("# {key} is {from}"))?,
            // JSON's notation of texts, numbers and lists is also valid TOML.
            value => output::line(format_args!("{:<40} # {from}", format!("{key} = {value}")))?,
        }
    }
    output::line(format_args!(""))
}
