//! How much is kept of prompts and answers, for later requests that begin alike.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::units::{format_bytes, format_bytes_up, parse_bytes};
use super::{MAX_KEEP, ModelFacts, PlanSettings, SequenceBytes};

/// Pages that memory for kept states counts for each of them, beside what it takes however long it is: 512 positions,
/// of which the most are shared in the prompts of agents.
const PAGES_OF_EACH: u64 = 8;

/// What the operator gives to kept states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// So many, in pages that no running sequence needs.
    States(u32),
    /// Bytes on all stages together, beside those for running sequences.
    Memory(u64),
}

impl Keep {
    /// Nothing is kept.
    pub const NOTHING: Self = Self::States(0);

    /// Whether nothing is kept.
    pub fn is_nothing(self) -> bool {
        matches!(self, Self::States(0) | Self::Memory(0))
    }
}

/// `2G` is memory, and a number alone counts states; 0 is nothing.
impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return parse_bytes(text).map(Self::Memory);
        }
        let most =
            || format!("{text} is not from 0 to {MAX_KEEP} states: give a size such as 2G instead");
        let states = text.parse().ok().filter(|n| *n <= MAX_KEEP);
        states.map(Self::States).ok_or_else(most)
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::States(n) => write!(f, "{n}"),
            Self::Memory(bytes) => f.write_str(&format_bytes(*bytes)),
        }
    }
}

/// Bytes on all stages together.
struct Each {
    /// Of a kept state, however long it is.
    state: u64,
    /// Of a page.
    page: u64,
}

impl Each {
    fn of(settings: &PlanSettings, model: &ModelFacts) -> Self {
        let sequence = SequenceBytes::of(&model.layers, settings.windows);
        Self {
            state: sequence.window_bytes + sequence.conv_bytes + sequence.scan_bytes,
            page: sequence.kv_bytes_per_token * u64::from(settings.block_positions),
        }
    }

    /// Of a state with its pages.
    fn bytes(&self) -> u64 {
        self.state + PAGES_OF_EACH * self.page
    }
}

/// What is to be kept, as a line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptRoom {
    /// Most kept states.
    pub states: u32,
    /// Pages for them beside those of running sequences.
    pub pages: u32,
}

impl KeptRoom {
    /// Nothing.
    pub const NONE: Self = Self { states: 0, pages: 0 };

    /// The room that the settings ask for in a model.
    pub fn of(settings: &PlanSettings, model: &ModelFacts) -> Self {
        let bytes = match settings.keep {
            Keep::States(states) => return Self { states, pages: 0 },
            Keep::Memory(bytes) => bytes,
        };
        let Each { state, page } = Each::of(settings, model);
        let by_memory = bytes.checked_div(Each { state, page }.bytes()).unwrap_or(0);
        let by_memory = by_memory.min(MAX_KEEP.into());
        let pages = (bytes - by_memory * state).checked_div(page).unwrap_or(0);
        // A state that takes pages alone needs no memory of its own: those of running sequences hold it when they are idle.
        let at_least = if state == 0 && bytes > 0 { 4 * u64::from(settings.max_seqs) } else { 0 };
        let states = by_memory.max(at_least).min(MAX_KEEP.into()) as u32;
        // A state that has nothing but its place has no pages.
        let pages = if states > 0 { u32::try_from(pages).unwrap_or(u32::MAX) } else { 0 };
        Self { states, pages }
    }

    /// Says so where the memory for kept states holds none.
    pub fn shortage(self, settings: &PlanSettings, model: &ModelFacts) -> Option<String> {
        let is_short = self.states == 0 && !settings.keep.is_nothing();
        let each = Each::of(settings, model).bytes();
        is_short.then(|| {
            format!(
                "nothing is kept of prompts: --keep {} is less than the {} that one state takes",
                settings.keep,
                format_bytes_up(each)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_counts_states_and_a_size_is_memory() {
        let read = |text: &str| text.parse::<Keep>();
        assert_eq!(read("16"), Ok(Keep::States(16)));
        assert_eq!(read("0"), Ok(Keep::NOTHING));
        assert_eq!(read("2G"), Ok(Keep::Memory(2 << 30)));
        assert_eq!(read("1.5MiB"), Ok(Keep::Memory(3 << 19)));
        assert!(read("0").is_ok_and(Keep::is_nothing) && read("0M").is_ok_and(Keep::is_nothing));
        assert!(read("2147483648").is_err_and(|said| said.contains("a size such as 2G")));
        assert!(read("some").is_err());
    }
}
