//! The stage of a node that a process runs.

use std::str::FromStr;

use brigade_proto::address::MAX_STAGES_AT_ADDRESS;

use super::turns;

/// Stages of a node.
pub const MAX_STAGES: usize = MAX_STAGES_AT_ADDRESS as usize;

/// The number of a node's stage that a process runs: `2/3`, the second of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The stage's number, from 1 on.
    pub number: usize,
    /// The number of stages.
    pub of: usize,
    /// The files that it shares with the others; `None`: it computes at any time, and has an equal part of the memory.
    pub inherited: Option<Inherited>,
}

/// Numbers of the files in memory that all stages of a node have, as a process inherits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The locks by which stages take turns.
    pub turns: turns::Inherited,
    /// The ledger of the node's memory.
    pub ledger: i32,
}

impl Share {
    /// Stage `number`, from 1 on, `of` so many.
    pub fn new(number: usize, of: usize) -> Self {
        Self { number, of, inherited: None }
    }

    /// The command-line argument for the process: `2/3:7,8,9`.
    pub fn argument(self) -> String {
        match self.inherited {
            Some(Inherited { turns: [next, turn], ledger }) => {
                format!("{self}:{next},{turn},{ledger}")
            }
            None => self.to_string(),
        }
    }

    /// The stage's number in addresses.
    pub fn in_address(self) -> u8 {
        // At most `MAX_STAGES`, which is one.
        self.number as u8
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
        let (share, files) = match text.split_once(':') {
            Some((share, files)) => (share, Some(files)),
            None => (text, None),
        };
        let numbers = share.split_once('/').map(|(number, of)| (number.parse(), of.parse()));
        match (numbers, files.map(inherited)) {
            (Some((Ok(number), Ok(of))), None | Some(Some(_)))
                if (1..=of).contains(&number) && of <= MAX_STAGES =>
            {
                Ok(Self { number, of, inherited: files.and_then(inherited) })
            }
            _ => Err("is not a stage of a node: write 2/3 for the second of three".to_owned()),
        }
    }
}

/// The numbers of inherited files: `7,8,9`.
fn inherited(text: &str) -> Option<Inherited> {
    let mut numbers = text.split(',').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    let files = Inherited { turns: [next()?, next()?], ledger: next()? };
    numbers.next().is_none().then_some(files)
}
