//! Sequences of several lengths with their pages in one pool, for tests of what reads and writes pages.

use std::ops::Range;

use brigade_kernels::PageId;
use brigade_kernels::{AttendPart, KV_PAGE, KvLayout};

/// A cache line: pools start on one.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// Sequences, whose rows are numbered one sequence after the other.
pub(super) struct Paged {
    pub(super) lens: Vec<usize>,
    pub(super) blocks: Vec<Vec<PageId>>,
}

impl Paged {
    /// Pages of a sequence lie behind one another from the pool's end.
    pub(super) fn new(lens: &[usize]) -> Self {
        let n_pages: usize = lens.iter().map(|len| len.div_ceil(KV_PAGE)).sum();
        let mut free = (0..n_pages as u32).rev().map(PageId);
        let blocks =
            lens.iter().map(|len| free.by_ref().take(len.div_ceil(KV_PAGE)).collect()).collect();
        Self { lens: lens.to_vec(), blocks }
    }

    /// Rows of all sequences.
    pub(super) fn n_rows(&self) -> usize {
        self.lens.iter().sum()
    }

    /// The number of a sequence's first row.
    pub(super) fn first_row(&self, s: usize) -> usize {
        self.lens[..s].iter().sum()
    }

    /// Pages full of a byte, as a recycled pool may be.
    pub(super) fn pool(&self, layout: &KvLayout, byte: u8) -> Vec<Line> {
        let n_pages: usize = self.blocks.iter().map(Vec::len).sum();
        vec![Line([byte; 64]); n_pages * layout.page_bytes() / 64]
    }

    /// The parts of rows `ranges` of the sequences, and these rows' numbers.
    pub(super) fn parts(&self, ranges: &[Range<usize>]) -> (Vec<AttendPart<'_>>, Vec<usize>) {
        let (mut parts, mut rows) = (Vec::new(), Vec::new());
        for (s, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            parts.push(AttendPart {
                pages: &self.blocks[s],
                first_pos: range.start,
                n_rows: range.len(),
                first_row: rows.len(),
            });
            rows.extend(range.clone().map(|i| self.first_row(s) + i));
        }
        (parts, rows)
    }
}

/// Some rows of `x` `[n, width]`, one after the other.
pub(super) fn gather(x: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    rows.iter().flat_map(|row| x[row * width..][..width].to_vec()).collect()
}
