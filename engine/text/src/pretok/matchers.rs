//! Matchers for the most used patterns, written by hand: they make one pass and never go back.
//!
//! Each gives the end of the piece that starts at a position. Positions are characters.

use super::class::{LETTER, MARK, NUMBER, SPACE, is_han};

/// The piece that is being split. Past its end every class is zero.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    pub chars: &'a [char],
    pub classes: &'a [u8],
}

impl Piece<'_> {
    fn class(&self, at: usize) -> u8 {
        self.classes.get(at).copied().unwrap_or(0)
    }

    fn is(&self, at: usize, mask: u8) -> bool {
        self.class(at) & mask != 0
    }

    fn char(&self, at: usize) -> Option<char> {
        self.chars.get(at).copied()
    }

    /// End of the longest run from `at` on whose characters have any class of `mask`.
    fn run(&self, at: usize, mask: u8) -> usize {
        at + self.classes[at.min(self.classes.len())..]
            .iter()
            .take_while(|c| **c & mask != 0)
            .count()
    }

    /// End of the run whose characters have no class of `mask`.
    fn run_not(&self, at: usize, mask: u8) -> usize {
        at + self.classes[at.min(self.classes.len())..]
            .iter()
            .take_while(|c| **c & mask == 0)
            .count()
    }

    fn line_breaks(&self, mut at: usize) -> usize {
        while matches!(self.char(at), Some('\r' | '\n')) {
            at += 1;
        }
        at
    }

    /// `'s 't 'm 'd 're 've 'll`, in any case if `fold`.
    fn contraction(&self, at: usize, fold: bool) -> Option<usize> {
        let letter = |i: usize| {
            let c = self.char(i)?;
            Some(if fold { c.to_ascii_lowercase() } else { c })
        };
        if self.char(at) != Some('\'') {
            return None;
        }
        match (letter(at + 1)?, letter(at + 2)) {
            ('s' | 't' | 'm' | 'd', _) => Some(at + 2),
            ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(at + 3),
            _ => None,
        }
    }

    /// ` ?[^\s...]+` followed by line breaks if `breaks`. `word` are the classes symbols exclude.
    fn symbols(&self, at: usize, word: u8, breaks: bool) -> Option<usize> {
        let start = at + usize::from(self.char(at) == Some(' '));
        let end = self.run_not(start, word | SPACE);
        if end == start {
            return None;
        }
        Some(if breaks { self.line_breaks(end) } else { end })
    }

    /// White space: `\s*[\r\n]+` if `breaks`, then `\s+(?!\S)`, then `\s+`.
    fn spaces(&self, at: usize, breaks: bool) -> Option<usize> {
        let end = self.run(at, SPACE);
        let last_break = self.chars[at..end].iter().rposition(|c| matches!(c, '\r' | '\n'));
        match last_break {
            Some(i) if breaks => Some(at + i + 1),
            _ if end == at => None,
            _ if end - at > 1 && end < self.chars.len() => Some(end - 1),
            _ => Some(end),
        }
    }

    /// GPT-2: contractions, words, numbers and symbols with at most one space before, white space.
    pub fn gpt2(&self, at: usize) -> usize {
        if let Some(end) = self.contraction(at, false) {
            return end;
        }
        let start = at + usize::from(self.char(at) == Some(' '));
        for class in [LETTER, NUMBER] {
            if self.is(start, class) {
                return self.run(start, class);
            }
        }
        self.symbols(at, LETTER | NUMBER, false)
            .or_else(|| self.spaces(at, false))
            .unwrap_or(at + 1)
    }

    /// Llama 3 and relatives: contractions in any case, a word with one leading sign, up to
    /// `digits` digits, symbols with the line breaks behind them, white space.
    pub fn llama3(&self, at: usize, digits: usize, marks: bool) -> usize {
        let word = if marks { LETTER | MARK } else { LETTER };
        if let Some(end) = self.contraction(at, true) {
            return end;
        }
        if self.is(at, word) {
            return self.run(at, word);
        }
        let leads = !self.is(at, NUMBER) && !matches!(self.char(at), Some('\r' | '\n'));
        if leads && self.is(at + 1, word) {
            return self.run(at + 1, word);
        }
        self.rest(at, digits, word)
    }

    /// Kimi K2: Han runs, then words of other letters with a leading sign and a contraction.
    pub fn kimi(&self, at: usize) -> usize {
        let han = |i: usize| self.char(i).is_some_and(is_han);
        let letter = |i: usize| self.is(i, LETTER) && !han(i);
        let mut end = at;
        while han(end) {
            end += 1;
        }
        if end > at {
            return end;
        }
        let leads = !self.is(at, LETTER | NUMBER) && !matches!(self.char(at), Some('\r' | '\n'));
        end += usize::from(leads);
        let start = end;
        while letter(end) {
            end += 1;
        }
        if end > start {
            return self.contraction(end, true).unwrap_or(end);
        }
        self.rest(at, 3, LETTER)
    }

    /// The alternatives after the word.
    fn rest(&self, at: usize, digits: usize, word: u8) -> usize {
        if self.is(at, NUMBER) {
            // Not `run`: a long number must not be walked once for each of its groups.
            return (at + 1..at + digits).find(|&i| !self.is(i, NUMBER)).unwrap_or(at + digits);
        }
        self.symbols(at, word | NUMBER, true).or_else(|| self.spaces(at, true)).unwrap_or(at + 1)
    }

    /// Groups of three from the right of each number. The text before a number is not split from
    /// its first group: llama.cpp's matcher has it so, and the ids must agree.
    pub fn number_groups(&self, out: &mut Vec<usize>) {
        let mut done = 0;
        let mut at = 0;
        while at < self.chars.len() {
            let number = self.run_not(at, NUMBER);
            at = self.run(number, NUMBER);
            let mut end = number + (at - number) % 3;
            end += if end == number { 3 } else { 0 };
            while end <= at {
                out.push(end - done);
                done = end;
                end += 3;
            }
        }
        out.push(self.chars.len() - done);
    }

    /// Splits before every position that has a multiple of three ASCII digits up to its run's end.
    pub fn ascii_groups(&self, out: &mut Vec<usize>) {
        let digit = |i: usize| self.chars.get(i).is_some_and(char::is_ascii_digit);
        let mut done = 0;
        let mut at = 0;
        while at < self.chars.len() {
            let run = at;
            while digit(at) {
                at += 1;
            }
            let mut border = run + (at - run) % 3;
            while border < at {
                out.push(border - done);
                done = border;
                border += 3;
            }
            at += 1;
        }
        out.push(self.chars.len() - done);
    }

    /// A run of newlines or of anything else.
    pub fn newlines(&self, at: usize) -> usize {
        let first = self.chars[at] == '\n';
        at + self.chars[at..].iter().take_while(|c| (**c == '\n') == first).count()
    }
}
