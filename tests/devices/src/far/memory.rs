//! Far memory: words of a device that the host cannot read without its calls. Words lie there in another order than
//! with the host, and each is another: a slice of it means nothing to code that does not decode it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use brigade_ops::{Buffer, Part};
use brigade_quant::DeviceError;

/// Words of a row. Rows lie transposed: the first words of all rows, then the second ones.
const ROW: usize = 16;
/// Bytes of a word.
const WORD: usize = size_of::<u32>();

/// A word as it lies there.
fn to_far(word: u32) -> u32 {
    word.rotate_left(9) ^ 0xa5c3_5a3c
}

/// A word as the host knows it.
fn from_far(word: u32) -> u32 {
    (word ^ to_far(0)).rotate_right(9)
}

/// A buffer in far memory.
#[derive(Debug)]
pub struct FarBuffer {
    words: RwLock<Vec<u32>>,
    /// Length in bytes.
    len: usize,
    /// Number of copies that the host asked for.
    reads: Arc<AtomicU64>,
}

/// Bytes of a far buffer that an op reads.
#[derive(Clone, Copy, Debug)]
pub struct FarView<'a> {
    buffer: &'a FarBuffer,
    first: usize,
    len: usize,
}

/// Bytes of a far buffer that an op writes.
#[derive(Debug)]
pub struct FarViewMut<'a>(FarView<'a>);

impl FarBuffer {
    /// A buffer of `len` bytes, which decode to zeros.
    pub fn zeros(len: usize, reads: &Arc<AtomicU64>) -> Self {
        let n_rows = len.div_ceil(ROW * WORD);
        Self { words: RwLock::new(vec![to_far(0); n_rows * ROW]), len, reads: reads.clone() }
    }

    /// A copy of these.
    pub fn of(bytes: &[u8], reads: &Arc<AtomicU64>) -> Self {
        let buffer = Self::zeros(bytes.len(), reads);
        buffer.encode(0, bytes);
        buffer
    }

    /// A view of the whole buffer.
    pub fn view(&self) -> FarView<'_> {
        FarView { buffer: self, first: 0, len: self.len }
    }

    /// Some of the bytes as the host knows them: whole words.
    fn decode(&self, bytes: Range<usize>) -> Vec<u32> {
        assert!(bytes.end <= self.len, "bytes {bytes:?} of {}", self.len);
        let far = self.to_read();
        let n_rows = far.len() / ROW;
        words_of(bytes).map(|i| from_far(far[i % ROW * n_rows + i / ROW])).collect()
    }

    /// Writes whole words from byte `at` on.
    fn encode(&self, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len.saturating_sub(at), "{} bytes at {at}", bytes.len());
        let mut far = self.to_write();
        let n_rows = far.len() / ROW;
        let words = bytes.chunks_exact(WORD).map(bytemuck::pod_read_unaligned);
        for (i, word) in words_of(at..at + bytes.len()).zip(words) {
            far[i % ROW * n_rows + i / ROW] = to_far(word);
        }
    }

    fn to_read(&self) -> RwLockReadGuard<'_, Vec<u32>> {
        self.words.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn to_write(&self) -> RwLockWriteGuard<'_, Vec<u32>> {
        self.words.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The words that some bytes are.
///
/// # Panics
/// If these are not whole words.
fn words_of(bytes: Range<usize>) -> Range<usize> {
    let Range { start, end } = bytes;
    assert!(start.is_multiple_of(WORD) && end.is_multiple_of(WORD), "bytes {bytes:?} of words");
    start / WORD..end / WORD
}

impl Buffer for FarBuffer {
    fn len(&self) -> usize {
        self.len
    }

    fn address(&self) -> u64 {
        self.to_read().as_ptr() as u64
    }

    fn read(&self, bytes: Range<usize>, out: &mut Vec<u8>) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        out.extend_from_slice(bytemuck::cast_slice(&self.decode(bytes)));
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.encode(at, bytes);
    }
}

impl<'a> FarView<'a> {
    /// View of a part of a far buffer.
    ///
    /// # Panics
    /// If the buffer is another device's.
    pub fn of(part: Part<'a>) -> Self {
        let (buffer, bytes) = part.within::<FarBuffer>().expect("a buffer of far memory");
        Self { buffer, first: bytes.start, len: bytes.len() }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The words as the host has them.
    pub fn decode(&self) -> Vec<u32> {
        self.buffer.decode(self.first..self.first + self.len)
    }
}

impl<'a> FarViewMut<'a> {
    /// A view of bytes that have no other user.
    pub fn new(view: FarView<'a>) -> Self {
        Self(view)
    }

    /// The words, to be read.
    pub fn view(&self) -> FarView<'a> {
        self.0
    }

    /// Writes all of them.
    ///
    /// # Panics
    /// If these are not as many.
    pub fn encode(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.0.len, "bytes that an op wrote");
        self.0.buffer.encode(self.0.first, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_copies_can_be_read() {
        let (reads, words) = (Arc::default(), (1..=100).collect::<Vec<u32>>());
        let mut buffer = FarBuffer::of(bytemuck::cast_slice(&words), &reads);
        buffer.write(4 * 50, bytemuck::cast_slice(&[200u32, 201]));
        let mut copy = Vec::new();
        buffer.read(4 * 48..4 * 54, &mut copy).unwrap();
        let copy: Vec<u32> = bytemuck::pod_collect_to_vec(&copy);
        assert_eq!(copy, [49, 50, 200, 201, 53, 54]);
        let far = buffer.to_read().clone();
        assert!(far.iter().all(|word| !words.contains(word)), "{far:?}");
        assert!(from_far(far[1]) == 17, "rows lie transposed");
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        assert_eq!(FarBuffer::zeros(8, &reads).view().decode(), [0, 0]);
    }
}
