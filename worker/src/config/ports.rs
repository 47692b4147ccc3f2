//! Ports in a row, one for each stage of a node, where its stages shall not have one port together.

use std::fmt;
use std::str::FromStr;

/// `--stage-ports`: the first port and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// The first of them.
    pub fn first(self) -> u16 {
        self.first
    }

    /// How many they are.
    pub fn count(self) -> usize {
        usize::from(self.last - self.first) + 1
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let both = text.split_once('-').map(|(first, last)| (first.parse(), last.parse()));
        match both {
            Some((Ok(first), Ok(last))) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err("is no range of ports: write the first and the last, as in 7070-7073".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let ports: Ports = "7070-7073".parse().unwrap();
        assert_eq!(
            (ports.first(), ports.count(), ports.to_string()),
            (7070, 4, "7070-7073".into())
        );
        assert_eq!("65535-65535".parse::<Ports>().unwrap().count(), 1);
        for text in ["", "7070", "0-3", "7073-7070", "1-65536", "a-b", "7070-"] {
            assert!(text.parse::<Ports>().is_err(), "{text}");
        }
    }
}
