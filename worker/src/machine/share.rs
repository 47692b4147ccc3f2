//! The stage of a node that a process runs.

use std::str::FromStr;

use brigade_proto::address::MAX_STAGES_AT_ADDRESS;

use super::turns::Inherited;

/// Stages of a node.
pub const MAX_STAGES: usize = MAX_STAGES_AT_ADDRESS as usize;

/// The number of a node's stage that a process runs: `2/3`, the second of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The stage's number, from 1 on.
    pub number: usize,
    /// The number of stages.
    pub of: usize,
    /// The locks by which it takes turns with the others; `None`: it computes at any time.
    pub turns: Option<Inherited>,
}

impl Share {
    /// Stage `number`, from 1 on, `of` so many.
    pub fn new(number: usize, of: usize) -> Self {
        Self { number, of, turns: None }
    }

    /// The command-line argument for the process: `2/3:7,8`.
    pub fn argument(self) -> String {
        match self.turns {
            Some([next, turn]) => format!("{self}:{next},{turn}"),
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
        let (share, turns) = match text.split_once(':') {
            Some((share, turns)) => (share, Some(turns)),
            None => (text, None),
        };
        let numbers = share.split_once('/').map(|(number, of)| (number.parse(), of.parse()));
        let turns = turns.map(|turns| {
            let (next, turn) = turns.split_once(',')?;
            Some([next.parse().ok()?, turn.parse().ok()?])
        });
        match (numbers, turns) {
            (Some((Ok(number), Ok(of))), None | Some(Some(_)))
                if (1..=of).contains(&number) && of <= MAX_STAGES =>
            {
                Ok(Self { number, of, turns: turns.flatten() })
            }
            _ => Err("is not a stage of a node: write 2/3 for the second of three".to_owned()),
        }
    }
}
