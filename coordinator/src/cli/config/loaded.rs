//! What files say: options with their values and places.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::place::{Place, Problem};
use super::value::Value;

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
    /// What `section` says.
    pub fn section(&self, name: &str) -> &[Setting] {
        self.sections.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}
