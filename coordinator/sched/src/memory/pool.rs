//! A fixed set of numbered places (slots) that are taken and given back.
//!
//! The same numbers are valid on every stage, so there is one pool for all. A number that was given back may
//! be taken at once. Each stage runs ubatches in order, so the close of the old owner is ahead of the open of
//! the new one.

/// Marks for the numbers `0..total` that are taken.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Free ids; the last one is taken next.
    free: Vec<u32>,
    taken: Vec<bool>,
}

impl Pool {
    /// A pool with all of `0..total` free; the lowest are taken first.
    pub fn new(total: u32) -> Self {
        Self { free: (0..total).rev().collect(), taken: vec![false; total as usize] }
    }

    pub fn total(&self) -> u32 {
        self.taken.len() as u32
    }

    pub fn n_free(&self) -> u32 {
        self.free.len() as u32
    }

    pub fn n_taken(&self) -> u32 {
        self.total() - self.n_free()
    }

    /// Takes `n` ids, or none if fewer are free.
    pub fn take(&mut self, n: u32) -> Option<Vec<u32>> {
        let keep = self.free.len().checked_sub(n as usize)?;
        let mut ids = self.free.split_off(keep);
        ids.reverse();
        for &id in &ids {
            self.taken[id as usize] = true;
        }
        Some(ids)
    }

    /// Gives an id back.
    ///
    /// # Panics
    /// If it is not taken: two owners would then share a place and corrupt each other.
    pub fn give_back(&mut self, id: u32) {
        assert!(self.taken[id as usize], "place {id} was given back twice");
        self.taken[id as usize] = false;
        self.free.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_all_or_nothing_and_counts() {
        let mut pool = Pool::new(4);
        assert_eq!(pool.take(3), Some(vec![0, 1, 2]));
        assert_eq!(pool.take(2), None);
        assert_eq!((pool.n_free(), pool.n_taken(), pool.total()), (1, 3, 4));
        pool.give_back(1);
        assert_eq!(pool.take(2), Some(vec![1, 3]));
        assert_eq!(pool.take(0), Some(vec![]));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_double_release_is_a_bug() {
        let mut pool = Pool::new(1);
        pool.take(1);
        pool.give_back(0);
        pool.give_back(0);
    }
}
