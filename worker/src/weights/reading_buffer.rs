//! Memory that tensors are read into while a stage is loaded. One tensor after the other is read and packed, so all of
//! them use the same memory. It comes straight from the system, and goes back to it when the loading ends: an
//! allocator would keep as much as the largest tensor has.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use brigade_engine::device::Mapping;

/// Memory for tensors, which is lent to one at a time. Where several are read at once, each has memory of its own. It takes none
/// before the first one is read.
#[derive(Clone, Default)]
pub struct ReadingBuffer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Memory that no tensor has now.
    spare: Option<Mapping>,
    /// Whether no more tensors are to come.
    is_over: bool,
}

/// The first bytes of a [`ReadingBuffer`], until they are dropped.
pub struct LentBytes {
    /// There until it is given back.
    map: Option<Mapping>,
    len: usize,
    home: ReadingBuffer,
}

impl ReadingBuffer {
    /// `len` bytes of any value.
    ///
    /// # Errors
    /// The system has no memory for them.
    pub fn lend(&self, len: usize) -> io::Result<LentBytes> {
        // Where it is too short, a longer one takes its place.
        let spare = self.state(|state| state.spare.take()).filter(|map| map.len() >= len);
        let map = match spare {
            Some(map) => map,
            None => Mapping::new(len)?,
        };
        Ok(LentBytes { map: Some(map), len, home: self.clone() })
    }

    /// Gives the memory back to the system, and no more is kept: everything is loaded, or loading has failed.
    pub fn end(&self) {
        self.state(|state| {
            state.is_over = true;
            state.spare = None;
        });
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LentBytes {
    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_mut().map_or(&mut [], |map| &mut map[..self.len])
    }
}

impl AsRef<[u8]> for LentBytes {
    fn as_ref(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[..self.len])
    }
}

impl Drop for LentBytes {
    fn drop(&mut self) {
        let map = self.map.take();
        self.home.state(|state| {
            let has_longer =
                state.spare.as_ref().map(|spare| spare.len()) > map.as_ref().map(|map| map.len());
            if !state.is_over && !has_longer {
                state.spare = map;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes: &LentBytes) -> *const u8 {
        bytes.as_ref().as_ptr()
    }

    #[test]
    fn one_tensor_after_the_other_has_the_same_memory() {
        let buffer = ReadingBuffer::default();
        let mut first = buffer.lend(9000).unwrap();
        first.bytes_mut().fill(7);
        let place = at(&first);
        drop(first);
        let second = buffer.lend(100).unwrap();
        assert_eq!((at(&second), second.as_ref()), (place, &[7; 100][..]));
        let beside = buffer.lend(100).unwrap();
        assert_ne!(at(&beside), place, "nobody else has the bytes of a tensor");
        drop(second);
        drop(beside);
        assert_eq!(at(&buffer.lend(9000).unwrap()), place, "the longest is kept");
    }

    #[test]
    fn nothing_is_kept_when_all_is_loaded() {
        let buffer = ReadingBuffer::default();
        let has_spare = || buffer.state(|state| state.spare.is_some());
        drop(buffer.lend(5000).unwrap());
        assert!(has_spare());
        let last = buffer.lend(5000).unwrap();
        buffer.end();
        drop(last);
        assert!(!has_spare());
        drop(buffer.lend(100).unwrap());
        assert!(!has_spare());
    }
}
