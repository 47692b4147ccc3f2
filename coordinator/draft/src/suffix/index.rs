//! An index of places with equal contexts: hash chains over the places of a text.
//!
//! A *place* lies between two tokens. The tokens before it are its context, and those behind it may be drafted. For
//! each of [`LEVELS`] lengths, the places whose contexts end alike lie in a chain, newest first. A chain is a ring
//! with a pointer to its oldest place. So a text can be indexed in both directions: forwards as it grows, and
//! backwards through a long prompt, whose newest part is wanted first. A chain may hold contexts that only share a
//! hash, so its reader compares tokens.

/// Tokens of context that places have in common, for each kind of chain. Matches shorter than the first are not found.
pub const LEVELS: [usize; N_LEVELS] = [1, 4];
/// The number of kinds of chains.
pub const N_LEVELS: usize = 2;
/// The longest context that a hash covers.
const WIDEST: usize = LEVELS[N_LEVELS - 1];
/// Fewest places that there is room for in an index that grows.
const MIN_PLACES: usize = 32;

/// An odd factor for each distance from the context's end.
const FACTORS: [u64; WIDEST] = factors();

const fn factors() -> [u64; WIDEST] {
    let (mut factors, mut i, mut state) = ([0; WIDEST], 0, 0u64);
    while i < WIDEST {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        factors[i] = (z ^ (z >> 27)) | 1;
        i += 1;
    }
    factors
}

/// The hash of a few tokens, at most [`WIDEST`].
pub fn key(tokens: &[u32]) -> u32 {
    (sum(tokens, &FACTORS) >> 32) as u32
}

/// Tokens from the last to the first, by factors.
fn sum(tokens: &[u32], factors: &[u64]) -> u64 {
    let products = tokens.iter().rev().zip(factors);
    products.fold(0, |sum, (token, factor)| {
        sum.wrapping_add((u64::from(*token) + 1).wrapping_mul(*factor))
    })
}

/// Hashes of the end of a context, for each level that it is long enough for.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    keys: [u32; N_LEVELS],
    n: usize,
}

impl Keys {
    /// The hashes of the end of `context`.
    pub fn new(context: &[u32]) -> Self {
        let mut keys = [0; N_LEVELS];
        let n = LEVELS.iter().take_while(|width| context.len() >= **width).count();
        for (hash, width) in keys.iter_mut().zip(LEVELS).take(n) {
            *hash = key(&context[context.len() - width..]);
        }
        Self { keys, n }
    }

    /// The levels that the context is long enough for, with their hashes.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = (usize, u32)> {
        self.keys.into_iter().enumerate().take(self.n)
    }
}

/// The chains of a text's places. Place `i` is before token `base + i`. The caller holds the text and the base.
#[derive(Debug, Default)]
pub struct Index {
    /// For each level and hash: the oldest place of the chain plus 1; 0: the chain is empty.
    oldest: Vec<u32>,
    /// The logarithm to base 2 of a level's part of `oldest`.
    bits: u32,
    /// For each place and level: the next older place of its chain. Behind the oldest comes the newest.
    older: Vec<[u32; N_LEVELS]>,
}

impl Index {
    /// An index of `n` places that are added from the last to the first with [`Self::add_oldest`].
    pub fn backwards(n: usize) -> Self {
        let bits = bits_for(n);
        let oldest = vec![0; if n == 0 { 0 } else { N_LEVELS << bits }];
        Self { oldest, bits, older: vec![[0; N_LEVELS]; n] }
    }

    /// Bytes of [`Self::backwards`] of `n` places.
    pub fn bytes_backwards(n: usize) -> usize {
        if n == 0 { 0 } else { bytes(N_LEVELS << bits_for(n), n) }
    }

    /// Bytes of memory in use.
    pub fn nbytes(&self) -> usize {
        bytes(self.oldest.capacity(), self.older.capacity())
    }

    /// Bytes that [`Self::add_newest`] would take more than are held now.
    pub fn growth(&self) -> usize {
        match self.grown() {
            Some((n, bits)) => bytes(N_LEVELS << bits, n) - self.nbytes(),
            None => 0,
        }
    }

    /// Adds the place behind all others. Its context is `text` up to `base` plus the number of places.
    pub fn add_newest(&mut self, text: &[u32], base: usize) {
        if let Some((n, bits)) = self.grown() {
            self.older.reserve_exact(n - self.older.len());
            if bits != self.bits || self.oldest.is_empty() {
                self.bits = bits;
                // Free what there is first: both together might be more than was asked for.
                self.oldest = Vec::new();
                self.oldest = vec![0; N_LEVELS << bits];
                for at in 0..self.older.len() {
                    self.link_newest(at, &text[..base + at]);
                }
            }
        }
        let at = self.older.len();
        self.older.push([0; N_LEVELS]);
        self.link_newest(at, &text[..base + at]);
    }

    /// Adds the place `at`, which is before all that were added, to an index made with [`Self::backwards`].
    pub fn add_oldest(&mut self, at: usize, context: &[u32]) {
        for (level, key) in Keys::new(context).levels() {
            let slot = self.slot(level, key);
            let next = match self.oldest[slot].checked_sub(1) {
                Some(oldest) => {
                    std::mem::replace(&mut self.older[oldest as usize][level], at as u32)
                }
                None => at as u32,
            };
            self.older[at][level] = next;
            self.oldest[slot] = at as u32 + 1;
        }
    }

    /// Gives back room for places to come.
    pub fn shrink(&mut self) {
        self.older.shrink_to_fit();
    }

    /// The places whose contexts have this hash, newest first.
    pub fn chain(&self, level: usize, key: u32) -> Chain<'_> {
        let end = if self.oldest.is_empty() { 0 } else { self.oldest[self.slot(level, key)] };
        let next = end.checked_sub(1).map(|oldest| self.older[oldest as usize][level]);
        Chain { older: &self.older, level, next, end: end.wrapping_sub(1) }
    }

    fn link_newest(&mut self, at: usize, context: &[u32]) {
        for (level, key) in Keys::new(context).levels() {
            let slot = self.slot(level, key);
            let next = match self.oldest[slot].checked_sub(1) {
                Some(oldest) => {
                    std::mem::replace(&mut self.older[oldest as usize][level], at as u32)
                }
                None => {
                    self.oldest[slot] = at as u32 + 1;
                    at as u32
                }
            };
            self.older[at][level] = next;
        }
    }

    fn slot(&self, level: usize, key: u32) -> usize {
        (level << self.bits) + (key >> (u32::BITS - self.bits)) as usize
    }

    /// Places that there is room for, and bits, once one more was added: where that asks for more than there is.
    fn grown(&self) -> Option<(usize, u32)> {
        let n = self.older.len();
        (n == self.older.capacity()).then(|| {
            let more = n + (n / 4).max(MIN_PLACES);
            (more, bits_for(more))
        })
    }
}

/// The number of hash bits for `n` places, with few collisions in a chain.
fn bits_for(n: usize) -> u32 {
    n.max(MIN_PLACES).next_power_of_two().ilog2()
}

/// Bytes of so many entries of both tables.
fn bytes(n_oldest: usize, n_older: usize) -> usize {
    n_oldest * size_of::<u32>() + n_older * size_of::<[u32; N_LEVELS]>()
}

/// Places of a chain, newest first.
#[derive(Debug)]
pub struct Chain<'a> {
    older: &'a [[u32; N_LEVELS]],
    level: usize,
    next: Option<u32>,
    end: u32,
}

impl Iterator for Chain<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let at = self.next?;
        self.next = (at != self.end).then(|| self.older[at as usize][self.level]);
        Some(at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places of all chains for the context's end, by definition.
    fn same(
        text: &[u32],
        n_places: usize,
        base: usize,
        context: &[u32],
        level: usize,
    ) -> Vec<usize> {
        let end = &context[context.len() - LEVELS[level]..];
        (0..n_places).rev().filter(|at| text[..base + at].ends_with(end)).collect()
    }

    fn found(
        index: &Index,
        text: &[u32],
        base: usize,
        context: &[u32],
        level: usize,
    ) -> Vec<usize> {
        let (_, key) = Keys::new(context).levels().nth(level).expect("a long context");
        let end = &context[context.len() - LEVELS[level]..];
        index.chain(level, key).filter(|at| text[..base + at].ends_with(end)).collect()
    }

    #[test]
    fn both_directions_find_all_places_newest_first() {
        let text: Vec<u32> = (0..600u32).map(|i| i * i % 7 % 3).collect();
        let mut forwards = Index::default();
        let mut backwards = Index::backwards(text.len());
        let base = 3;
        for n in 0..text.len() - base {
            let growth = forwards.growth();
            let before = forwards.nbytes();
            forwards.add_newest(&text, base);
            assert_eq!(forwards.nbytes(), before + growth, "{n} places");
        }
        assert_eq!(backwards.nbytes(), Index::bytes_backwards(text.len()));
        for from in (1..text.len()).rev() {
            backwards.add_oldest(from, &text[..from]);
            if from % 100 == 1 {
                for level in 0..N_LEVELS {
                    let all = same(&text, text.len(), 0, &text, level);
                    let so_far: Vec<_> = all.into_iter().filter(|at| *at >= from).collect();
                    assert_eq!(found(&backwards, &text, 0, &text, level), so_far);
                }
            }
        }
        for level in 0..N_LEVELS {
            let all = same(&text, text.len() - base, base, &text, level);
            assert!(all.len() > 10);
            assert_eq!(found(&forwards, &text, base, &text, level), all);
        }
    }

    #[test]
    fn an_empty_index_takes_nothing_and_has_nothing() {
        for index in [Index::default(), Index::backwards(0)] {
            assert_eq!(index.nbytes(), 0);
            assert_eq!(index.chain(0, 12345).count(), 0);
        }
    }
}
