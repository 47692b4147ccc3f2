//! The workload for which cuts are balanced: prompts, generated tokens, or both.
//!
//! The head computes rows that want a token: every generated one, but hardly any of a prompt. Cuts that suit
//! decoding therefore give the last stage fewer layers, and make the other stages slower in prefill. No cut
//! is best at both, unless the head costs nothing.

use std::fmt;
use std::str::FromStr;

/// Prompt tokens for each generated one beyond which decoding only decides between cuts that are equal in prefill.
const ONLY_PROMPTS: f64 = 1e6;

/// The workload that cuts are balanced for: how many prompt tokens are computed for each generated one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance(f64);

impl Balance {
    /// Generated tokens alone: layers and head.
    pub const DECODE: Self = Self(0.0);
    /// Equal numbers of prompt tokens and generated ones. Prefill and decode then lose about the same share to a head
    /// that cannot be cut.
    pub const MIXED: Self = Self(1.0);
    /// Prompts alone: layers only.
    pub const PREFILL: Self = Self(ONLY_PROMPTS);

    /// Prompt tokens for each generated one.
    pub fn prompt_per_generated(self) -> f64 {
        self.0
    }
}

impl Default for Balance {
    fn default() -> Self {
        Self::MIXED
    }
}

impl FromStr for Balance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "decode" => Ok(Self::DECODE),
            "mixed" => Ok(Self::MIXED),
            "prefill" => Ok(Self::PREFILL),
            number => match number.parse() {
                Ok(n) if (0.0..=ONLY_PROMPTS).contains(&n) => Ok(Self(n)),
                _ => Err(format!(
                    "{text:?} is neither prefill, decode nor mixed, nor a number of prompt tokens for each \
                     generated one"
                )),
            },
        }
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DECODE => f.write_str("decode"),
            Self::MIXED => f.write_str("mixed"),
            Self::PREFILL => f.write_str("prefill"),
            Self(number) => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_have_names_and_numbers() {
        for name in ["prefill", "decode", "mixed", "2.5"] {
            assert_eq!(name.parse::<Balance>().unwrap().to_string(), name);
        }
        assert_eq!("1".parse(), Ok(Balance::MIXED));
        for bad in ["", "both", "-1", "NaN", "inf", "1e9"] {
            assert!(bad.parse::<Balance>().is_err(), "{bad}");
        }
    }
}
