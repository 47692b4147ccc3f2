//! The free parts of a slab.

use std::collections::BTreeMap;

/// Free parts, by where they start; neighbours are always joined.
#[derive(Debug)]
pub(crate) struct FreeParts(BTreeMap<u64, u64>);

impl FreeParts {
    /// All of `len` bytes are free.
    pub(crate) fn new(len: u64) -> Self {
        Self(BTreeMap::from([(0, len)]))
    }

    /// Takes `len` bytes out of the smallest part that has them, and says where they start.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let fitting = self.0.iter().filter(|(_, free)| **free >= len);
        let (start, free) = fitting.min_by_key(|(_, free)| **free).map(|(s, f)| (*s, *f))?;
        self.0.remove(&start);
        if free > len {
            self.0.insert(start + len, free - len);
        }
        Some(start)
    }

    /// Gives `len` bytes from `start` back.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        let (mut start, mut len) = (start, len);
        if let Some(next) = self.0.remove(&(start + len)) {
            len += next;
        }
        let before = self.0.range(..start).next_back().map(|(s, l)| (*s, *l));
        if let Some((s, l)) = before.filter(|(s, l)| s + l == start) {
            start = s;
            len += l;
        }
        self.0.insert(start, len);
    }

    /// Whether all of `len` bytes are free.
    pub(crate) fn is_whole(&self, len: u64) -> bool {
        self.0.get(&0) == Some(&len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_where_they_fit_best_and_join_again() {
        let mut free = FreeParts::new(1000);
        let parts: Vec<u64> = (0..10).map(|_| free.take(100).unwrap()).collect();
        assert_eq!(free.take(1), None);
        for i in [1, 3, 4, 8] {
            free.give(parts[i], 100);
        }
        assert_eq!(free.take(200), Some(300));
        assert_eq!(free.take(150), None);
        free.give(300, 200);
        for i in [0, 2, 5, 6, 7, 9] {
            free.give(parts[i], 100);
        }
        assert!(free.is_whole(1000));
    }
}
