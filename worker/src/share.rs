//! Which of a node's stages a process is.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Stages of a node.
pub const MAX_STAGES: usize = 64;

/// Which of a node's stages a process is: `2/3`, the second of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// From 1 on.
    pub number: usize,
    /// So many there are.
    pub of: usize,
}

impl Share {
    /// Stage `number`, from 1 on, `of` so many.
    pub fn new(number: usize, of: usize) -> Self {
        Self { number, of }
    }

    /// Its data folder, in that of its node.
    pub fn folder(self, node: &Path) -> PathBuf {
        node.join(format!("stage-{}", self.number))
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').map(|(number, of)| (number.parse(), of.parse()));
        match numbers {
            Some((Ok(number), Ok(of))) if (1..=of).contains(&number) && of <= MAX_STAGES => {
                Ok(Self { number, of })
            }
            _ => Err("is no stage of a node: write 2/3 for the second of three".to_owned()),
        }
    }
}
