//! Memory straight from the system and straight back to it, in huge pages where it has them.
//!
//! The allocator asks for no huge pages, since it would hold many of them for a few bytes each. What is large and is read again
//! and again has mappings of its own.

use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// A mapping from which on huge pages pay: the length of one on the usual processors.
pub const HUGE_FROM: usize = 2 << 20;

/// A fixed number of bytes, zero at first, from a page's start.
pub struct Mapping(MmapMut);

impl Mapping {
    /// `len` zero bytes, at least one. They take no memory before they are touched.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(len: usize) -> io::Result<Self> {
        // No mapping is empty.
        let map = MmapMut::map_anon(len.max(1))?;
        #[cfg(target_os = "linux")]
        if len >= HUGE_FROM
            && let Err(reason) = map.advise(memmap2::Advice::HugePage)
        {
            // Advice only: with small pages a core takes longer to find where they are.
            tracing::debug!(%reason, "no huge pages for a large mapping");
        }
        Ok(Self(map))
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
