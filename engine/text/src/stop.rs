//! Finds stop strings in a stream of text, across the borders of tokens.

use aho_corasick::{AhoCorasick, MatchKind};

use super::TextError;

/// Most stop strings of one request.
pub const MAX_STOPS: usize = 64;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Watches a text for stop strings and withholds what could begin one.
///
/// The stop string that is complete first ends the text; of several that end at the same place the
/// longest. The result does not depend on how the text is cut.
#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    finder: Option<AhoCorasick>,
    /// The end of the text so far, if it can begin a stop string.
    held: String,
    stopped: Option<usize>,
}

/// The text that may be shown after a piece was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that is certain to be in front of any stop string.
    pub text: String,
    /// Index of the stop string that ended the text.
    pub stopped: Option<usize>,
}

impl StopMatcher {
    /// Watches for `stops`; none is fine.
    ///
    /// # Errors
    /// A stop string is empty or too long, or there are too many.
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        if stops.len() > MAX_STOPS {
            return Err(TextError::BadStop(format!(
                "{} stop strings, the limit is {MAX_STOPS}",
                stops.len()
            )));
        }
        for (i, stop) in stops.iter().enumerate() {
            if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
                return Err(TextError::BadStop(format!(
                    "stop string {i} has {} bytes, it must have 1 to {MAX_STOP_BYTES}",
                    stop.len()
                )));
            }
        }
        let finder = if stops.is_empty() {
            None
        } else {
            // Standard matching reports the match that ends first, the longest one there.
            Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::Standard)
                    .build(&stops)
                    .map_err(|e| TextError::BadStop(e.to_string()))?,
            )
        };
        Ok(Self { stops, finder, held: String::new(), stopped: None })
    }

    /// Adds a piece of text. After a stop everything is swallowed.
    pub fn push(&mut self, text: &str) -> StopOutcome {
        let Some(finder) = &self.finder else {
            return StopOutcome { text: text.to_owned(), stopped: None };
        };
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped: self.stopped };
        }
        self.held.push_str(text);
        let mut seen = std::mem::take(&mut self.held);
        if let Some(found) = finder.find(&seen) {
            self.stopped = Some(found.pattern().as_usize());
            seen.truncate(found.start());
        } else {
            self.held = seen.split_off(seen.len() - self.possible_start(&seen));
        }
        StopOutcome { text: seen, stopped: self.stopped }
    }

    /// The end of the text without a stop: what was withheld.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of `text` that a stop string begins with. It starts at a character:
    /// a stop string does.
    fn possible_start(&self, text: &str) -> usize {
        let text = text.as_bytes();
        let longest = |stop: &String| {
            let stop = stop.as_bytes();
            let most = text.len().min(stop.len() - 1);
            (1..=most).rev().find(|&n| text[text.len() - n..] == stop[..n]).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect()).unwrap()
    }

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut m = matcher(stops);
        let mut text = String::new();
        let mut stopped = None;
        for piece in pieces {
            let out = m.push(piece);
            text.push_str(&out.text);
            stopped = out.stopped;
        }
        text.push_str(&m.finish());
        (text, stopped)
    }

    #[test]
    fn a_stop_string_across_tokens_is_found_and_not_shown() {
        assert_eq!(run(&["\nUser:"], &["Hi", "\n", "Us", "er", ": x"]), ("Hi".into(), Some(0)));
    }

    #[test]
    fn a_false_start_is_shown_as_soon_as_it_is_one() {
        let mut m = matcher(&["###END"]);
        assert_eq!(m.push("a##").text, "a");
        assert_eq!(m.push("#E").text, "");
        assert_eq!(m.push("x").text, "###Ex");
        assert_eq!(m.push("##").text, "");
        assert_eq!(m.finish(), "##");
    }

    #[test]
    fn the_first_complete_one_wins_and_the_longest_of_those() {
        assert_eq!(run(&["abcde", "bcd"], &["xabcde"]), ("xa".into(), Some(1)));
        assert_eq!(run(&["c", "abc"], &["xabc"]), ("x".into(), Some(1)));
    }

    #[test]
    fn bad_stop_strings_are_refused() {
        assert!(StopMatcher::new(vec![String::new()]).is_err());
        assert!(StopMatcher::new(vec!["x".repeat(MAX_STOP_BYTES + 1)]).is_err());
        assert!(StopMatcher::new(vec!["x".into(); MAX_STOPS + 1]).is_err());
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    /// The definition, on the whole text.
    fn by_definition(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let head = &text.as_bytes()[..end];
            let hits = stops.iter().enumerate().filter(|(_, s)| head.ends_with(s.as_bytes()));
            if let Some((i, s)) = hits.max_by_key(|(i, s)| (s.len(), usize::MAX - i)) {
                return (text[..end - s.len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_cut_gives_what_the_definition_says(
            stops in prop::collection::btree_set("[abé]{1,4}", 1..4),
            pieces in prop::collection::vec("[abé]{0,3}", 0..10),
        ) {
            let stops: Vec<String> = stops.into_iter().collect();
            let borrowed: Vec<&str> = stops.iter().map(String::as_str).collect();
            let parts: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let mut got = run(&borrowed, &parts);
            let want = by_definition(&stops, &pieces.concat());
            if pieces.is_empty() { got.1 = want.1; }
            prop_assert_eq!(got, want);
        }
    }
}
