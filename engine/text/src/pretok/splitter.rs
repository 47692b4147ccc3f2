//! Runs the steps of a pre-tokenizer over a text.
//!
//! Patterns do not see the text itself, but a stand-in for it, character for character:
//!
//! - A pattern with categories (`\p{..}`) sees ASCII as it is. For every other character it sees one letter, which
//!   stands for the character's major category.
//! - A pattern without categories sees the characters, except that white space beyond ASCII is a vertical
//!   tab.
//!
//! Each pattern sees one piece only, so look-ahead and `$` stop at its end.

use fancy_regex::{Regex, RegexBuilder};

use super::class::{LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, class_of};
use super::matchers::Piece;
use super::{Pretok, Step};
use crate::TextError;

/// Steps of the backtracking engine for one match. A white-space run takes a few per character.
const BACKTRACK_LIMIT: usize = 1 << 30;

/// Stands for white space beyond ASCII.
const VERTICAL_TAB: char = '\x0b';

/// Stand-ins of categories, outside ASCII so that they never meet a literal of a pattern.
const STAND_INS: [(u8, char); 5] = [
    (NUMBER, '\u{d1}'),
    (LETTER, '\u{d2}'),
    (PUNCTUATION, '\u{d3}'),
    (MARK, '\u{d4}'),
    (SYMBOL, '\u{d5}'),
];
/// Stands for everything else.
const OTHER_STAND_IN: char = '\u{d0}';

/// ASCII members of each category, as class items.
const ASCII_MEMBERS: [(char, u8, &str); 5] = [
    ('N', NUMBER, "0-9"),
    ('L', LETTER, "A-Za-z"),
    ('P', PUNCTUATION, r"!-\#%-*,-/:;?@\[-\]_\{\}"),
    ('M', MARK, ""),
    ('S', SYMBOL, r"\$\+<->\^`\|\~"),
];

/// The compiled steps of a pre-tokenizer.
pub struct Splitter {
    steps: Vec<Compiled>,
}

enum Compiled {
    Hand(Step),
    Regex { regex: Regex, categories: bool },
}

/// The text in forms that the steps need.
struct Source<'a> {
    text: &'a str,
    chars: Vec<char>,
    classes: Vec<u8>,
}

/// A stand-in text and where each character starts in it (one more entry than characters).
struct StandIn {
    text: String,
    starts: Vec<usize>,
}

impl Splitter {
    /// Compiles the steps of `pre`.
    pub fn new(pre: &Pretok) -> Result<Self, TextError> {
        let compile = |step: &Step| match step {
            Step::Regex(pattern) => {
                let categories = pattern.contains(r"\p{");
                let regex = RegexBuilder::new(&collapse(pattern))
                    .backtrack_limit(BACKTRACK_LIMIT)
                    .build()
                    .map_err(|e| TextError::Unsupported(format!("pattern {pattern}: {e}")))?;
                Ok::<_, TextError>(Compiled::Regex { regex, categories })
            }
            step => Ok(Compiled::Hand(step.clone())),
        };
        Ok(Self { steps: pre.steps.iter().map(compile).collect::<Result<_, TextError>>()? })
    }

    /// Calls `each` with every piece of `text`, in order; together they are the text.
    pub fn split<'a>(&self, text: &'a str, mut each: impl FnMut(&'a str)) -> Result<(), TextError> {
        let source = Source::new(text);
        let mut pieces = vec![source.chars.len()];
        let mut stand_ins: [Option<StandIn>; 2] = [None, None];
        for step in &self.steps {
            pieces = match step {
                Compiled::Hand(step) => source.split_by_hand(step, &pieces),
                Compiled::Regex { regex, categories } => stand_ins[usize::from(*categories)]
                    .get_or_insert_with(|| source.stand_in(*categories))
                    .split(regex, &pieces)?,
            };
        }
        let mut rest = source.text;
        let mut chars = source.chars.iter();
        for n in pieces {
            let bytes = chars.by_ref().take(n).map(|c| c.len_utf8()).sum();
            let (piece, after) = rest.split_at(bytes);
            rest = after;
            if !piece.is_empty() {
                each(piece);
            }
        }
        Ok(())
    }
}

impl<'a> Source<'a> {
    fn new(text: &'a str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let classes = chars.iter().map(|&c| class_of(c)).collect();
        Self { text, chars, classes }
    }

    fn split_by_hand(&self, step: &Step, pieces: &[usize]) -> Vec<usize> {
        let mut out = Vec::with_capacity(pieces.len());
        let mut start = 0;
        for &n in pieces {
            let range = start..start + n;
            let piece = Piece { chars: &self.chars[range.clone()], classes: &self.classes[range] };
            start += n;
            match *step {
                Step::Gpt2 => each_piece(n, &mut out, |at| piece.gpt2(at)),
                Step::Llama3 { digits, marks } => {
                    each_piece(n, &mut out, |at| piece.llama3(at, digits, marks));
                }
                Step::Kimi => each_piece(n, &mut out, |at| piece.kimi(at)),
                Step::Newlines => each_piece(n, &mut out, |at| piece.newlines(at)),
                Step::NumberGroups => piece.number_groups(&mut out),
                Step::AsciiGroups => piece.ascii_groups(&mut out),
                Step::Regex(_) => unreachable!("compiled apart"),
            }
        }
        out
    }

    fn stand_in(&self, categories: bool) -> StandIn {
        let mut text = String::with_capacity(self.text.len());
        let mut starts = Vec::with_capacity(self.chars.len() + 1);
        for (&c, &class) in self.chars.iter().zip(&self.classes) {
            starts.push(text.len());
            text.push(match c {
                c if c.is_ascii() => c,
                _ if class & SPACE != 0 => VERTICAL_TAB,
                _ if categories => stand_in_of(class),
                c => c,
            });
        }
        starts.push(text.len());
        StandIn { text, starts }
    }
}

/// Walks a piece of `n` characters from end to end of what `end_of` matches.
fn each_piece(n: usize, out: &mut Vec<usize>, end_of: impl Fn(usize) -> usize) {
    let mut at = 0;
    while at < n {
        let end = end_of(at);
        out.push(end - at);
        at = end;
    }
}

impl StandIn {
    fn split(&self, regex: &Regex, pieces: &[usize]) -> Result<Vec<usize>, TextError> {
        let mut out = Vec::with_capacity(pieces.len());
        let mut start = 0;
        for &n in pieces {
            let (from, to) = (self.starts[start], self.starts[start + n]);
            let mut done = start;
            let mut at = start;
            for found in regex.find_iter(&self.text[from..to]) {
                let found = found.map_err(|e| {
                    TextError::Unsupported(format!(
                        "this text is too hard for the model's pre-tokenizer: {e}"
                    ))
                })?;
                // Character positions by walking on: matches come in order.
                while self.starts[at] < from + found.start() {
                    at += 1;
                }
                if at > done {
                    out.push(at - done);
                }
                done = at;
                while self.starts[at] < from + found.end() {
                    at += 1;
                }
                out.push(at - done);
                done = at;
            }
            if done < start + n {
                out.push(start + n - done);
            }
            start += n;
        }
        Ok(out)
    }
}

fn stand_in_of(class: u8) -> char {
    STAND_INS.iter().find(|(bit, _)| class & bit != 0).map_or(OTHER_STAND_IN, |(_, c)| *c)
}

/// Rewrites categories into what stands for them; the rest of the pattern stays.
fn collapse(pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        if let Some(name) = rest.strip_prefix(r"\p{").and_then(|r| r.chars().next()) {
            let end = rest.find('}').map_or(rest.len(), |i| i + 1);
            let items: String = ASCII_MEMBERS
                .iter()
                .filter(|(n, ..)| *n == name)
                .map(|(_, bit, ascii)| format!("{}{ascii}", stand_in_of(*bit)))
                .collect();
            out.push_str(&if in_class { items } else { format!("[{items}]") });
            rest = &rest[end..];
            continue;
        }
        let len = match c {
            '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => c.len_utf8(),
        };
        in_class = match c {
            '[' => true,
            ']' => false,
            _ => in_class,
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_become_stand_ins_inside_and_outside_classes() {
        assert_eq!(collapse(r"\p{N}+"), "[\u{d1}0-9]+");
        assert_eq!(collapse(r"[^\s\p{Lu}\]x]"), "[^\\s\u{d2}A-Za-z\\]x]");
        assert_eq!(collapse("[一-龥]+"), "[一-龥]+");
    }

    #[test]
    fn ascii_members_agree_with_the_classes() {
        for (name, bit, _) in ASCII_MEMBERS {
            let regex = Regex::new(&collapse(&format!(r"^\p{{{name}}}$"))).unwrap();
            for c in (0..128u8).map(char::from) {
                let by_regex = regex.is_match(c.encode_utf8(&mut [0; 4])).unwrap();
                assert_eq!(by_regex, class_of(c) & bit != 0, "{c:?} in {name}");
            }
        }
    }
}
