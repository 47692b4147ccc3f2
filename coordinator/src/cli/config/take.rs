//! Chooses the options of the file for a command line: the command's model, and the options that neither a flag nor a
//! variable sets.

use std::ffi::{OsStr, OsString};

use clap::ArgMatches;

use super::loaded::{Loaded, ModelEntry, Setting};
use super::options::{Opt, Section};
use super::place::{Place, Problem};
use super::value::Value;

/// Where systemd puts what `LoadCredential=` names. Values of the file may begin with it.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
/// The command that has many models at a time.
const SERVE: &str = "serve";
/// The option that says which model.
pub const MODEL: &str = "model";
/// The option that says by which name clients call it.
const SERVED_NAME: &str = "served-model-name";

/// A value that the file gave.
#[derive(Debug)]
pub struct Taken {
    /// The definition of the option.
    pub option: &'static Opt,
    /// The value in the file.
    pub value: Value,
    /// The place of the value in the file.
    pub at: Place,
}

impl Taken {
    /// Puts systemd's folder of credentials in the place of its name.
    ///
    /// # Errors
    /// The value begins with that name, and systemd has given no folder.
    pub fn find_credentials(&mut self) -> Result<(), Problem> {
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

/// All `[[model]]`s, where there are several and the command line of `serve` chooses none.
pub fn all<'l>(
    section: &Section,
    loaded: &'l Loaded,
    said: &ArgMatches,
    own: &[Setting],
) -> &'l [ModelEntry] {
    if section.name == SERVE && loaded.models.len() > 1 && !is_chosen(said, own) {
        &loaded.models
    } else {
        &[]
    }
}

/// Whether a model was named, in the arguments or in a section of the file.
pub fn is_chosen(said: &ArgMatches, own: &[Setting]) -> bool {
    said.get_raw(MODEL).is_some() || own.iter().any(|own| own.key == MODEL)
}

/// The `[[model]]` of the command: the one that is named, or the only one.
pub fn choose(
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
        // Any other name is a file, which has no options of these models.
        return Ok(find(wanted));
    }
    if let Some(setting) = own.iter().find(|setting| setting.key == MODEL) {
        let wanted = setting.value.texts().first().map(String::as_str).unwrap_or_default();
        return find(OsStr::new(wanted)).map(Some).ok_or_else(|| Problem {
            at: setting.at.clone(),
            key: MODEL.to_owned(),
            what: format!("no [[model]] is called {wanted:?}: the names are {}", names()),
        });
    }
    match &models[..] {
        [only] => Ok(Some(only.clone())),
        _ => Err(Problem {
            at: models[1].at.clone(),
            key: MODEL.to_owned(),
            what: format!(
                "there are {} models, and this command is for one: choose with -m NAME, of {}",
                models.len(),
                names()
            ),
        }),
    }
}

/// The settings of the file that stand. A model's come before its section's, and those of later files before those of
/// earlier ones. A setting is left out that contradicts one of a higher rank. `is_said`: the command line or a variable decides
/// the option. `is_set`: these do more than turn it off.
pub fn take(
    section: &'static Section,
    own: &[Setting],
    model: Option<&ModelEntry>,
    is_said: &dyn Fn(&Opt) -> bool,
    is_set: &dyn Fn(&Opt) -> bool,
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
        let is_excluded = said.iter().any(|other| is_set(other) && section.conflict(option, other))
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

/// The arguments with those of the file behind the command's name.
pub fn with(args: &[OsString], command: &str, taken: &[Taken]) -> Vec<OsString> {
    let at = args.iter().position(|arg| arg == command).map_or(args.len(), |at| at + 1);
    let (before, behind) = args.split_at(at);
    let added = taken.iter().flat_map(|taken| taken.value.arguments(taken.option));
    before.iter().cloned().chain(added.map(OsString::from)).chain(behind.iter().cloned()).collect()
}
