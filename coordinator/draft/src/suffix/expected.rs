//! The client's prediction, and the stream's place in it.
//!
//! A stream begins at its beginning. Where it says something else the place is lost; an edited text goes on some way
//! further. So the place is found again at the next stretch, behind where it was last certain, that ends like the stream.

use std::ops::Range;

use super::cursor::{Context, Cursor, Place};

/// Last tokens that must agree where a lost place is found again.
pub const ANCHOR: usize = 3;
/// Tokens that must agree before a place that was found is certain: a wrong one moves nothing before.
pub const CERTAIN: usize = 8;
/// Tokens that are searched in each direction for a lost place.
pub const SCAN: usize = 8192;

/// A text, and the place in it.
#[derive(Debug)]
pub struct Expected {
    tokens: Vec<u32>,
    /// The place of the next token; `None` while it is lost.
    at: Option<Cursor>,
    /// The last certain place.
    home: usize,
}

impl Expected {
    /// The text, with the stream before it.
    pub fn new(tokens: &[u32]) -> Self {
        let at = (!tokens.is_empty()).then(|| Cursor::at(Place::default(), 0));
        Self { tokens: tokens.to_vec(), at, home: 0 }
    }

    pub fn nbytes(&self) -> usize {
        self.tokens.capacity() * size_of::<u32>()
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The place, where it is known.
    pub fn at(&self) -> Option<Cursor> {
        self.at
    }

    /// A token was said.
    pub fn push(&mut self, token: u32) {
        let Some(at) = &mut self.at else { return };
        if !at.follow(token, |place| self.tokens.get(place.next as usize).copied()) {
            self.at = None;
        } else if at.matched >= CERTAIN {
            self.home = at.newest().next as usize;
        }
    }

    /// The place is here, as [`Self::found`] has it.
    pub fn go_to(&mut self, found: Option<Cursor>) {
        self.at = found;
    }

    /// The places in `places` that may stand directly behind `token`. Places are compared in whole chunks.
    fn behind(&self, token: u32, places: Range<usize>) -> impl DoubleEndedIterator<Item = usize> {
        const CHUNK: usize = 64;
        let Range { start, end } = places;
        let before = self.tokens.get(start - 1..end.max(start) - 1).unwrap_or_default();
        let chunks = before.chunks(CHUNK).enumerate();
        let has = move |chunk: &[u32]| chunk.iter().fold(false, |has, one| has | (*one == token));
        chunks.filter(move |(_, chunk)| has(chunk)).flat_map(move |(i, chunk)| {
            let from = start + i * CHUNK;
            from..from + chunk.len()
        })
    }

    /// Where a stream that ends with `context` goes on, if its place is lost.
    pub fn found(&self, context: &Context) -> Option<Cursor> {
        let end = context.tokens().last_chunk::<ANCHOR>()?;
        let is_one = |next: &usize| self.tokens[..*next].ends_with(end);
        let matched = |next: usize| context.matched(&self.tokens[..next]);
        // A place has a token behind it.
        let (first, border) = (ANCHOR, self.tokens.len().min(self.home + 1).max(ANCHOR));
        let ahead = border..self.tokens.len().min(border.saturating_add(SCAN));
        let behind = first.max(border.saturating_sub(SCAN))..border.min(self.tokens.len());
        let next = self.behind(end[ANCHOR - 1], ahead).find(is_one).or_else(|| {
            let mut places = self.behind(end[ANCHOR - 1], behind).rev();
            places.find(|next| is_one(next) && matched(*next) >= CERTAIN)
        })?;
        Some(Cursor::at(Place { text: 0, next: next as u32 }, matched(next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the tokens of `said`, and finds the place after each; returns the token that is expected next.
    fn next(expected: &mut Expected, said: &[u32]) -> Option<u32> {
        for n in 1..=said.len() {
            expected.push(said[n - 1]);
            if expected.at.is_none() {
                expected.go_to(expected.found(&Context::new(&said[..n], &[])));
            }
        }
        let place = expected.at?.newest();
        expected.tokens.get(place.next as usize).copied()
    }

    #[test]
    fn it_begins_at_the_beginning_and_follows() {
        let text: Vec<u32> = (10..30).collect();
        let mut expected = Expected::new(&text);
        assert_eq!(next(&mut expected, &[]), Some(10));
        assert_eq!(next(&mut expected, &text[..5]), Some(15));
        assert_eq!(Expected::new(&[]).at().map(|at| at.matched), None);
    }

    #[test]
    fn after_a_change_the_next_place_that_agrees_is_taken() {
        // The same three tokens stand at several places.
        let mut text: Vec<u32> = (100..160).collect();
        for at in [5, 30, 50] {
            text[at..at + 3].copy_from_slice(&[1, 2, 3]);
        }
        let edited = |tokens: &[u32]| [&text[..20], tokens].concat();
        let after = |tokens: &[u32]| next(&mut Expected::new(&text), &edited(tokens));
        // Replaced, left out, put in: the text goes on further behind, never at 5 again.
        assert_eq!(after(&[7, 8, 1, 2]), None);
        assert_eq!(after(&[7, 8, 1, 2, 3]), Some(text[33]));
        assert_eq!(after(&text[45..48]), Some(text[48]));
        assert_eq!(after(&[&[7, 7][..], &text[20..23]].concat()), Some(text[23]));
        // A wrong find does not move the certain place, so the following tokens are found from there.
        let wrong = [1, 2, 3, text[33], 9];
        assert_eq!(after(&wrong[..4]), Some(text[34]));
        assert_eq!(after(&[&wrong[..], &text[21..24]].concat()), Some(text[24]));
    }

    #[test]
    fn places_far_away_and_at_the_ends_are_found() {
        let text: Vec<u32> = (0..3 * SCAN as u32).collect();
        let found = |tokens: &[u32], home: usize, end: &[u32]| {
            let expected = Expected { tokens: tokens.to_vec(), at: None, home };
            expected.found(&Context::new(end, &[])).map(|at| at.newest().next as usize)
        };
        for home in [0, 1, 63, 64, 65, 200, SCAN - 1, SCAN, 2 * SCAN, text.len() - 1, text.len()] {
            for next in [3, 4, 66, 67, 129, 1000, SCAN, SCAN + 1, 2 * SCAN, text.len() - 1] {
                let end = &text[next.saturating_sub(CERTAIN)..next];
                let border = text.len().min(home + 1).max(ANCHOR);
                let ahead = next >= border && next - border < SCAN;
                let behind = next < border && border - next <= SCAN && next >= CERTAIN;
                let wanted = (ahead || behind).then_some(next);
                assert_eq!(found(&text, home, end), wanted, "{next} from {home}");
            }
            // Nothing follows at the end of the text.
            assert_eq!(found(&text, home, &text[text.len() - CERTAIN..]), None);
        }
        for n in 0..ANCHOR + 1 {
            assert_eq!(found(&text[..n], 0, &text[..n]), None);
        }
    }

    #[test]
    fn going_back_needs_more_that_agrees() {
        let text: Vec<u32> = (100..160).collect();
        let after =
            |n: usize| next(&mut Expected::new(&text), &[&text[..40], &text[3..3 + n]].concat());
        assert_eq!(after(CERTAIN - 1), None);
        assert_eq!(after(CERTAIN), Some(text[3 + CERTAIN]));
    }
}
