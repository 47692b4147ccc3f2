//! The places of texts at which a stream's last tokens stood before, and following them token by token.

use super::index::{Index, Keys, LEVELS};

/// The longest match that is looked for. A match that is followed may become longer.
pub const DEPTH: usize = 64;
/// Places that are followed at once: the newest.
pub const MAX_PLACES: usize = 32;
/// Places of a chain that are compared in one search: the newest.
pub const MAX_STEPS: usize = 64;

/// The end of a stream's tokens and of those in flight behind them.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    tokens: [u32; DEPTH],
    n: usize,
}

impl Context {
    /// The last tokens of `sure` and `ahead`.
    pub fn new(sure: &[u32], ahead: &[u32]) -> Self {
        let n_ahead = ahead.len().min(DEPTH);
        let n_sure = sure.len().min(DEPTH - n_ahead);
        let n = n_sure + n_ahead;
        let mut tokens = [0; DEPTH];
        tokens[..n_sure].copy_from_slice(&sure[sure.len() - n_sure..]);
        tokens[n_sure..n].copy_from_slice(&ahead[ahead.len() - n_ahead..]);
        Self { tokens, n }
    }

    /// The tokens, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.n]
    }

    /// How many of the last tokens are the last of `text` too.
    pub fn matched(&self, text: &[u32]) -> usize {
        let pairs = text.iter().rev().zip(self.tokens().iter().rev());
        pairs.take_while(|(a, b)| a == b).count()
    }
}

/// A text whose places can be found.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The text's number among those that are searched together.
    pub text: u32,
    pub tokens: &'a [u32],
    pub index: &'a Index,
    /// The token that the index's first place is before.
    pub base: usize,
}

/// A place before a token of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The number of the text.
    pub text: u32,
    /// The token that follows the place, by its position in the text.
    pub next: u32,
}

/// Places whose contexts end like the stream, newest first.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// Last tokens of the stream that are in the contexts of all of them.
    pub matched: usize,
    n: usize,
    places: [Place; MAX_PLACES],
}

impl Cursor {
    /// A cursor at one place.
    pub fn at(place: Place, matched: usize) -> Self {
        let mut places = [Place::default(); MAX_PLACES];
        places[0] = place;
        Self { matched, n: 1, places }
    }

    /// The places with the longest match of at least `least` tokens. `parts` go from the newest to the oldest.
    pub fn search<'a>(
        context: &Context,
        least: usize,
        parts: impl Iterator<Item = Part<'a>> + Clone,
    ) -> Option<Self> {
        let keys = Keys::new(context.tokens());
        // Longer matches are in the chains of higher levels, so the first level with a match has the longest.
        keys.levels().rev().find_map(|(level, key)| {
            let mut best = Self { matched: 0, n: 0, places: [Place::default(); MAX_PLACES] };
            let places = parts.clone().flat_map(|part| {
                part.index.chain(level, key).map(move |at| (part, part.base + at))
            });
            for (part, next) in places.take(MAX_STEPS) {
                let matched = context.matched(&part.tokens[..next]);
                if matched > best.matched {
                    (best.matched, best.n) = (matched, 0);
                }
                if matched == best.matched && best.n < MAX_PLACES {
                    best.places[best.n] = Place { text: part.text, next: next as u32 };
                    best.n += 1;
                }
            }
            // Strangers with the same hash match less.
            (best.matched >= LEVELS[level].max(least)).then_some(best)
        })
    }

    /// The newest of the cursor's places.
    pub fn newest(&self) -> Place {
        self.places[0]
    }

    /// A token was said: keeps the places that it follows and behind which more is to come, and goes behind it. `next` has
    /// the token behind a place, the one that was said among them. Says whether any is left; if not, the cursor is void.
    pub fn follow(&mut self, token: u32, next: impl Fn(Place) -> Option<u32>) -> bool {
        let mut n = 0;
        for i in 0..self.n {
            let place = self.places[i];
            let behind = Place { next: place.next + 1, ..place };
            if next(place) == Some(token) && next(behind).is_some() {
                self.places[n] = behind;
                n += 1;
            }
        }
        (self.n, self.matched) = (n, self.matched + 1);
        n > 0
    }

    /// The token that follows most places, of several the one that follows a newer place, and its share of the places.
    pub fn likely(&self, next: impl Fn(Place) -> Option<u32>) -> Option<(u32, f32)> {
        let places = &self.places[..self.n];
        if let [place] = places {
            return next(*place).map(|token| (token, 1.0));
        }
        let mut tokens = [0; MAX_PLACES];
        for (token, place) in tokens.iter_mut().zip(places) {
            *token = next(*place)?;
        }
        let tokens = &tokens[..self.n];
        let (mut best, mut most) = (None, 0);
        for (i, token) in tokens.iter().enumerate() {
            // A token from here on occurs at most as often as tokens are left.
            if self.n - i <= most {
                break;
            }
            let count = tokens[i..].iter().filter(|other| *other == token).count();
            if count > most {
                (best, most) = (Some(*token), count);
            }
        }
        best.map(|token| (token, most as f32 / self.n as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_the_end_of_both() {
        let long: Vec<u32> = (0..100).collect();
        assert_eq!(Context::new(&long, &[7, 8]).tokens(), [&long[38..], &[7, 8]].concat());
        assert_eq!(Context::new(&[1, 2], &[3]).tokens(), [1, 2, 3]);
        assert_eq!(Context::new(&[1], &long).tokens(), &long[36..]);
        assert_eq!(Context::new(&[], &[]).matched(&[1]), 0);
        assert_eq!(Context::new(&[4, 2], &[3]).matched(&[1, 2, 3]), 2);
        assert_eq!(Context::new(&long, &[]).matched(&long), DEPTH);
    }

    #[test]
    fn the_most_frequent_token_is_likely_and_of_several_the_newest() {
        let mut cursor = Cursor::at(Place { text: 0, next: 0 }, 3);
        for next in 1..6 {
            cursor.places[cursor.n] = Place { text: 0, next };
            cursor.n += 1;
        }
        let behind = |tokens: [u32; 6]| move |place: Place| Some(tokens[place.next as usize]);
        assert_eq!(cursor.likely(behind([1, 2, 2, 1, 3, 4])), Some((1, 2.0 / 6.0)));
        assert_eq!(cursor.likely(behind([1, 2, 3, 4, 3, 4])), Some((3, 2.0 / 6.0)));
        assert_eq!(cursor.likely(behind([1, 2, 2, 2, 2, 9])), Some((2, 4.0 / 6.0)));
        // Places that differ are left, and so are texts that end.
        let ends = |place: Place| (place.next < 3).then_some(2);
        let mut ending = cursor;
        assert!(ending.follow(2, ends));
        assert_eq!((ending.matched, ending.n, ending.newest()), (4, 2, Place { text: 0, next: 1 }));
        assert_eq!(ending.likely(ends), Some((2, 1.0)));
        assert!(!cursor.follow(2, |_| Some(1)));
        assert_eq!(cursor.likely(|_| Some(1)), None);
    }
}
