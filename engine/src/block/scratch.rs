//! Reusable buffers, so that a forward pass asks the system for memory only while it warms up.

/// A stack of spare buffers. Contents of a taken buffer are unspecified.
#[derive(Default)]
pub struct Scratch {
    spare: Vec<Vec<f32>>,
}

impl Scratch {
    /// A buffer of `len` values, stale ones among them.
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let fits = self.spare.iter().position(|b| b.capacity() >= len);
        let mut buffer = match fits {
            Some(i) => self.spare.swap_remove(i),
            None => self.spare.pop().unwrap_or_default(),
        };
        buffer.resize(len, 0.0);
        buffer
    }

    /// Gives buffers back.
    pub fn give_all<const N: usize>(&mut self, buffers: [Vec<f32>; N]) {
        self.spare.extend(buffers);
    }
}
