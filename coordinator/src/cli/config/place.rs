//! Where something stands in a file, and what is wrong with it.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use thiserror::Error;

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
