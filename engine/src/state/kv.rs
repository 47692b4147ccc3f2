//! The KV cache of one attention block: a pool of pages that all sequences share.
//!
//! Which page belongs to which sequence is decided by the coordinator and arrives with the ubatch. This file
//! owns the memory, and pairs the parts of a ubatch with their pages for the kernels.

use super::memory::Zeroed;
use super::{PartRows, Sequences};
use crate::batch::BlockId;
use crate::error::ModelError;
use crate::kernels::{Attend, AttendPart, AttendVariant, Compute, KvLayout};

/// Pages of keys and values.
pub struct KvCache {
    layout: KvLayout,
    pool: Zeroed<u8>,
}

impl KvCache {
    /// `n_blocks` zeroed pages; the system hands out memory as they are first written.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(layout: KvLayout, n_blocks: u32) -> Result<Self, ModelError> {
        let bytes = layout.page_bytes() as u64 * u64::from(n_blocks);
        usize::try_from(bytes)
            .ok()
            .and_then(Zeroed::new)
            .map(|pool| Self { layout, pool })
            .ok_or(ModelError::OutOfMemory { bytes, what: "KV pages" })
    }

    /// Shape of a page.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Bytes reserved.
    pub fn nbytes(&self) -> usize {
        self.pool.len()
    }

    /// The bytes of a page.
    pub fn page(&self, block: BlockId) -> &[u8] {
        let n = self.layout.page_bytes();
        &self.pool[block.0 as usize * n..][..n]
    }

    /// The bytes of a page.
    pub fn page_mut(&mut self, block: BlockId) -> &mut [u8] {
        let n = self.layout.page_bytes();
        &mut self.pool[block.0 as usize * n..][..n]
    }

    /// Copies one page to another.
    pub fn copy_page(&mut self, src: BlockId, dst: BlockId) {
        let n = self.layout.page_bytes();
        let src = src.0 as usize * n;
        self.pool.copy_within(src..src + n, dst.0 as usize * n);
    }

    /// Writes keys `[n_rows, n_kv_head * head_dim_k]` and values of the ubatch's rows.
    pub fn append(
        &mut self,
        compute: &Compute,
        parts: &[PartRows],
        sequences: &Sequences,
        k: &[f32],
        v: &[f32],
    ) {
        let parts = attend_parts(parts, sequences);
        compute.kv_write(&self.layout, &mut self.pool, &parts, k, v);
    }

    /// Attention of queries `[n_rows, n_head * head_dim_k]` over everything up to each row's own
    /// position that the variant lets it see; `out` is `[n_rows, n_head * head_dim_v]`.
    pub fn attend(
        &self,
        compute: &Compute,
        parts: &[PartRows],
        sequences: &Sequences,
        (scale, variant): (f32, AttendVariant<'_>),
        q: &[f32],
        out: &mut [f32],
    ) {
        let parts = attend_parts(parts, sequences);
        let (layout, pool) = (&self.layout, &self.pool[..]);
        let n_rows: usize = parts.iter().map(|part| part.n_rows).sum();
        let n_head = q.len() / n_rows / layout.head_dim_k;
        compute.attend(&Attend { layout, pool, parts: &parts, n_head, scale, variant }, q, out);
    }
}

/// The parts with their pages, as the kernels take them.
fn attend_parts<'a>(parts: &[PartRows], sequences: &'a Sequences) -> Vec<AttendPart<'a>> {
    let part = |part: &PartRows| AttendPart {
        first_row: part.rows.start,
        n_rows: part.rows.len(),
        first_pos: part.pos as usize,
        blocks: sequences.get(part.slot).map_or(&[], |sequence| &sequence.blocks),
    };
    parts.iter().map(part).collect()
}
