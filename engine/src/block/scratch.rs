//! Buffers that are used again, so that a forward pass asks the system for memory only until it is warm. A buffer goes
//! back by itself when nobody has it any more.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where buffers come from, and go back to.
#[derive(Clone, Default)]
pub struct Scratch(Arc<Mutex<Spare>>);

/// Buffers that nobody has, at the greatest length that somebody asked for.
#[derive(Default)]
struct Spare {
    buffers: Vec<Vec<f32>>,
    n_grown: usize,
}

/// Values in memory of a scratch, to which it goes back; or in memory of their own.
#[derive(Default)]
pub struct Buffer {
    /// At least `len` of them, so that nothing is filled when a longer buffer is taken again.
    values: Vec<f32>,
    len: usize,
    home: Option<Scratch>,
}

impl Scratch {
    /// A buffer of `len` values, stale ones among them.
    pub fn take(&self, len: usize) -> Buffer {
        let spare = &mut *self.spare();
        // The tightest fit: layers that ask for the same lengths in turn get the same buffers again.
        let fits = (0..spare.buffers.len()).filter(|i| spare.buffers[*i].len() >= len);
        let values = match fits.min_by_key(|i| spare.buffers[*i].len()) {
            Some(i) => spare.buffers.swap_remove(i),
            None => {
                spare.n_grown += 1;
                let mut values = spare.buffers.pop().unwrap_or_default();
                values.clear();
                values.reserve_exact(len);
                values.resize(len, 0.0);
                values
            }
        };
        Buffer { values, len, home: Some(self.clone()) }
    }

    /// A buffer that begins as a copy of `x`.
    pub fn copy_of(&self, x: &[f32]) -> Buffer {
        let mut buffer = self.take(x.len());
        buffer.copy_from_slice(x);
        buffer
    }

    /// How often a buffer was made or grown so far. It stays where it is once the pass is warm.
    pub fn n_grown(&self) -> usize {
        self.spare().n_grown
    }

    /// Buffers that are here now: as many after one pass as after another, or somebody keeps one.
    pub fn n_spare(&self) -> usize {
        self.spare().buffers.len()
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// Takes the values of `x`, as many as it has.
    pub fn set(&mut self, x: &[f32]) {
        if self.values.len() < x.len() {
            self.values.resize(x.len(), 0.0);
        }
        self.len = x.len();
        self.copy_from_slice(x);
    }

    /// Keeps the first `len` values.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "the first {len} of {} values", self.len);
        self.len = len;
    }

    /// The values, to be kept beyond the pass: copied where the memory is the scratch's.
    pub fn into_vec(mut self) -> Vec<f32> {
        match self.home {
            Some(_) => self.to_vec(),
            None => {
                let mut values = std::mem::take(&mut self.values);
                values.truncate(self.len);
                values
            }
        }
    }
}

impl From<Vec<f32>> for Buffer {
    /// Values in memory of their own.
    fn from(values: Vec<f32>) -> Self {
        Self { len: values.len(), values, home: None }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.spare().buffers.push(std::mem::take(&mut self.values));
        }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_ask_alike_get_the_same_buffers() {
        let scratch = Scratch::default();
        let layer = || {
            let (small, large) = (scratch.take(10), scratch.take(1000));
            [small.as_ptr(), large.as_ptr()]
        };
        let first = layer();
        assert!((0..5).all(|_| layer() == first));
    }

    #[test]
    fn there_are_no_more_buffers_than_were_taken_at_once() {
        let scratch = Scratch::default();
        for len in 1..100 {
            let (a, b) = (scratch.take(len), scratch.take(2 * len));
            assert_eq!([a.len(), b.len()], [len, 2 * len]);
            drop((a, b));
            assert!(scratch.n_spare() <= 2);
        }
    }

    #[test]
    fn what_is_kept_beyond_the_pass_leaves_the_buffer_behind() {
        let scratch = Scratch::default();
        assert_eq!(scratch.copy_of(&[1.0, 2.0]).into_vec(), [1.0, 2.0]);
        assert_eq!((scratch.n_spare(), scratch.n_grown()), (1, 1));
        let own = vec![3.0];
        let at = own.as_ptr();
        let kept = Buffer::from(own).into_vec();
        assert_eq!(kept.as_ptr(), at, "moved, not copied");
        assert_eq!(scratch.n_spare(), 1);
    }
}
