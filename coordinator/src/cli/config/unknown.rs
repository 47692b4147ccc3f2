//! Suggestions for unknown names.

use super::near::near;
use super::options::{self, MODEL, NAME, Opt, SECTIONS, SHARE, Section, VERSION_KEY};
use crate::cli::hint;

/// A suggestion for an unknown section. A key that stands before all sections counts as one: it may be an option that belongs
/// into a section.
pub fn unknown_section(name: &str) -> String {
    let in_them = options::sections().iter().filter(|section| section.option(name).is_some());
    let in_them: Vec<String> = in_them.map(|section| format!("[{}]", section.name)).collect();
    if !in_them.is_empty() {
        return format!("it is an option, and stands in a section: {}", in_them.join(", "));
    }
    let known = SECTIONS.into_iter().chain([MODEL, SHARE, VERSION_KEY]);
    match near(name, known) {
        Some(meant) => format!("there is no such section; did you mean {meant:?}?"),
        None => {
            "there is no such section: there are [serve], [run], [worker], [[model]] and [[share]]"
                .to_owned()
        }
    }
}

/// A suggestion for an unknown key of a section.
pub fn unknown(section: &Section, of_model: bool, key: &str) -> String {
    let place = if of_model { "[[model]]".to_owned() } else { format!("[{}]", section.name) };
    let known: Vec<&Opt> =
        if of_model { section.of_a_model().collect() } else { section.options.iter().collect() };
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
