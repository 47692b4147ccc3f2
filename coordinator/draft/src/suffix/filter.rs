//! A filter of an owner's answers that may contain a place. Searching each of them would take longer than everything
//! else.

use super::index::key;

/// Answers that can be told apart.
pub const MAX_ANSWERS: usize = u64::BITS as usize;
/// Last tokens of a context that are looked at: with fewer, nearly all answers would be named.
pub const WIDTH: usize = 2;
/// The smallest table, as a logarithm to base 2.
const MIN_BITS: u32 = 5;

/// For each hash of a place's context: a bit for each answer that has such a place. It may name answers that have none.
#[derive(Debug, Default, PartialEq)]
pub struct Filter {
    masks: Vec<u64>,
    bits: u32,
}

impl Filter {
    /// Bytes of a filter for so many places of all answers together.
    pub fn bytes_for(n_places: usize) -> usize {
        size_of::<u64>() << bits_for(n_places)
    }

    pub fn nbytes(&self) -> usize {
        self.masks.capacity() * size_of::<u64>()
    }

    /// An empty filter for so many places.
    pub fn new(n_places: usize) -> Self {
        let bits = bits_for(n_places);
        Self { masks: vec![0; 1 << bits], bits }
    }

    /// The answers that may have a place with this context.
    pub fn answers(&self, context: &[u32]) -> u64 {
        self.slot(context).map_or(0, |slot| self.masks[slot])
    }

    /// Answer `bit` has a place with this context.
    pub fn add(&mut self, context: &[u32], bit: u32) {
        if let Some(slot) = self.slot(context) {
            self.masks[slot] |= 1 << bit;
        }
    }

    /// Answer `bit`, which had a place with this context, is gone.
    pub fn remove(&mut self, context: &[u32], bit: u32) {
        if let Some(slot) = self.slot(context) {
            self.masks[slot] &= !(1 << bit);
        }
    }

    /// A filter of the same size without any answer.
    #[cfg(test)]
    pub fn emptied(&self) -> Self {
        Self { masks: vec![0; self.masks.len()], bits: self.bits }
    }

    fn slot(&self, context: &[u32]) -> Option<usize> {
        let end = context.last_chunk::<WIDTH>()?;
        (!self.masks.is_empty()).then(|| (key(end) >> (u32::BITS - self.bits)) as usize)
    }
}

/// Half as many masks as places: a hash then names two answers by chance.
fn bits_for(n_places: usize) -> u32 {
    n_places.next_power_of_two().ilog2().saturating_sub(1).max(MIN_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_named_until_it_is_removed() {
        let mut filter = Filter::new(100);
        assert_eq!(filter.nbytes(), Filter::bytes_for(100));
        let contexts: Vec<[u32; 3]> = (0..100).map(|i| [1, i, i + 1]).collect();
        for (i, context) in contexts.iter().enumerate() {
            filter.add(context, i as u32 % 64);
        }
        let has = |filter: &Filter, i: usize| filter.answers(&contexts[i]) & 1 << (i % 64) != 0;
        assert!((0..100).all(|i| has(&filter, i)));
        // Only the last tokens count, and one alone is no context.
        assert_eq!(filter.answers(&[9, 5, 6]), filter.answers(&contexts[5]));
        assert_eq!(filter.answers(&[6]), 0);
        for (i, context) in contexts.iter().enumerate() {
            filter.remove(context, i as u32 % 64);
        }
        assert!(filter.masks.iter().all(|mask| *mask == 0));
        assert_eq!(Filter::default().answers(&[1, 2, 3]), 0);
    }
}
