//! Large mappings in huge pages, which allocations share: each is the next piece of the newest one.
//!
//! Pieces are never used again. A dropped piece gives its memory back to the system at once, whole pages of it; the
//! mapping goes with its last piece.

use std::ops::Range;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapOptions, MmapRaw};

use brigade_quant::KernelError;

/// Bytes of a slab, or as many as one allocation needs. Unused parts take no memory.
const SLAB: usize = 64 << 20;

/// Length and alignment of huge pages on the usual processors.
const HUGE_PAGE: usize = 2 << 20;

/// Alignment of pieces: a cache line.
const LINE: usize = 64;

/// No system has larger pages that are not huge.
const LARGEST_PAGE: usize = 64 << 10;

/// The slab that the next piece is taken from.
static NEWEST: Mutex<Newest> = Mutex::new(Newest { slab: Weak::new(), used: 0 });

struct Newest {
    slab: Weak<Slab>,
    /// Bytes of it that are in pieces.
    used: usize,
}

/// A mapping of zero bytes.
struct Slab {
    map: MmapRaw,
    /// The part of the map that is given out; it begins with a huge page.
    part: Range<usize>,
}

impl Slab {
    /// One that has room for `len` bytes.
    fn new(len: usize) -> Result<Self, KernelError> {
        let room = len.max(SLAB).next_multiple_of(HUGE_PAGE);
        let map = MmapOptions::new()
            .len(room + HUGE_PAGE)
            .map_anon()
            .map_err(|source| KernelError::Memory { bytes: len, source })?;
        let map = MmapRaw::from(map);
        let start = map.as_ptr().align_offset(HUGE_PAGE);
        #[cfg(target_os = "linux")]
        // Advice only: without huge pages the weights read more slowly.
        if let Err(reason) = map.advise_range(memmap2::Advice::HugePage, start, room) {
            tracing::debug!(%reason, "no huge pages for packed weights");
        }
        Ok(Self { map, part: start..start + room })
    }
}

/// Bytes of its own, from a cache line's start.
pub(crate) struct Piece {
    slab: Arc<Slab>,
    /// In the slab's map, within its part.
    at: usize,
    len: usize,
}

impl Piece {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`KernelError::Memory`] when the system has none.
    pub(crate) fn zeroed(len: usize) -> Result<Self, KernelError> {
        // Nothing panics while it is held.
        let mut newest = NEWEST.lock().unwrap_or_else(PoisonError::into_inner);
        let there = newest.slab.upgrade().and_then(|slab| {
            let at = slab.part.start + newest.used;
            (at + len <= slab.part.end).then_some((slab, at))
        });
        if let Some((slab, at)) = there {
            newest.used = (at + len).next_multiple_of(LINE) - slab.part.start;
            return Ok(Self { slab, at, len });
        }
        let slab = Arc::new(Slab::new(len)?);
        let at = slab.part.start;
        *newest = Newest { slab: Arc::downgrade(&slab), used: len.next_multiple_of(LINE) };
        Ok(Self { slab, at, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the map, which lives as long as `self` and is readable and initialised (zeros); no
        // other piece has any of these bytes, so nobody writes them while `self` is borrowed.
        unsafe { slice::from_raw_parts(self.slab.map.as_ptr().add(self.at), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the map is writable; `self` is borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.slab.map.as_mut_ptr().add(self.at), self.len) }
    }
}

impl Drop for Piece {
    /// Gives whole pages back. The slab may live on for a long time: of a stage that is cut anew, some layers stay.
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        {
            let start = self.slab.map.as_ptr() as usize + self.at;
            let first = start.next_multiple_of(LARGEST_PAGE) - start + self.at;
            let end = self.at + self.len;
            let last = end - (start + self.len) % LARGEST_PAGE;
            if first >= last {
                return;
            }
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the pages are whole and lie within this piece, whose bytes nobody reads any more.
            let gone = unsafe { self.slab.map.unchecked_advise_range(advice, first, last - first) };
            if let Err(reason) = gone {
                tracing::debug!(%reason, "memory of dropped weights stays until their neighbours go");
            }
        }
    }
}
