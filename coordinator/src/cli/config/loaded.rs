//! The contents of the files: options with their values and places.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::place::{Place, Problem};
use super::value::Value;

/// An option's value in a file.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The option's long name.
    pub key: String,
    /// The value in the file.
    pub value: Value,
    /// The place of the value in the file.
    pub at: Place,
    /// The number of its file: later ones have the last word.
    pub file_no: usize,
}

/// A `[[model]]` table.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// The model's name.
    pub name: String,
    /// Where it is first named.
    pub at: Place,
    /// The options of the model.
    pub settings: Vec<Setting>,
}

/// The contents of all files together.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The files, in the order in which they were read.
    pub files: Vec<PathBuf>,
    /// Options of each section.
    pub sections: BTreeMap<&'static str, Vec<Setting>>,
    /// Models in the order of the files.
    pub models: Vec<ModelEntry>,
    /// All problems of the files.
    pub problems: Vec<Problem>,
}

impl Loaded {
    /// Options of `section`; empty where the files do not have it.
    pub fn section(&self, name: &str) -> &[Setting] {
        self.sections.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}
