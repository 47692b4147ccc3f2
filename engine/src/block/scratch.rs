//! Buffers that are used again, so that a forward pass asks the system for memory only until it is warm.

/// A stack of spare buffers. Contents of a taken buffer are unspecified.
#[derive(Default)]
pub struct Scratch {
    spare: Vec<Vec<f32>>,
    n_grown: usize,
}

impl Scratch {
    /// A buffer of `len` values, stale ones among them.
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        // The tightest fit: layers that ask for the same lengths in turn get the same buffers again,
        // with nothing to fill.
        let fits = (0..self.spare.len()).filter(|i| self.spare[*i].capacity() >= len);
        let mut buffer = match fits.min_by_key(|i| self.spare[*i].capacity()) {
            Some(i) => self.spare.swap_remove(i),
            None => {
                self.n_grown += 1;
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.clear();
                buffer.reserve_exact(len);
                buffer
            }
        };
        buffer.resize(len, 0.0);
        buffer
    }

    /// How often a buffer was made or grown so far. It stays where it is once the pass is warm.
    pub fn n_grown(&self) -> usize {
        self.n_grown
    }

    /// Buffers that are here now: as many after one pass as after another, or somebody gives what was never taken.
    pub fn n_spare(&self) -> usize {
        self.spare.len()
    }

    /// Gives buffers back.
    pub fn give_all<const N: usize>(&mut self, buffers: [Vec<f32>; N]) {
        self.spare.extend(buffers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_ask_alike_get_the_same_buffers() {
        let mut scratch = Scratch::default();
        let mut layer = || {
            let (small, large) = (scratch.take(10), scratch.take(1000));
            let starts = [small.as_ptr(), large.as_ptr()];
            scratch.give_all([small, large]);
            starts
        };
        let first = layer();
        assert!((0..5).all(|_| layer() == first));
    }

    #[test]
    fn there_are_no_more_buffers_than_were_taken_at_once() {
        let mut scratch = Scratch::default();
        for len in 1..100 {
            let (a, b) = (scratch.take(len), scratch.take(2 * len));
            assert_eq!([a.len(), b.len()], [len, 2 * len]);
            scratch.give_all([a, b]);
            assert!(scratch.spare.len() <= 2);
        }
    }
}
