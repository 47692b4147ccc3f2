//! Places in files, and problems at them.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use thiserror::Error;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The file's path.
    pub file: PathBuf,
    /// The line, from 1; 0 means the file as a whole.
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
    /// The place of the problem.
    pub at: Place,
    /// The key in question; empty where there is none.
    pub key: String,
    /// The problem, and a remedy.
    pub what: String,
}
