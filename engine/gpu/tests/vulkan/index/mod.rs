//! Indices of sparse attention and pools of rows beside the CPU's, bit for bit.

mod attend_blocks;
mod attend_chosen;
mod blocks;
mod entries;
mod means;
mod pooling;
mod positions;

use std::ops::Range;

use brigade_gpu::{Gpu, GpuBuffer, KV_PAGE, KvLayout, Purpose, ValuePlace};
use brigade_ops::{AttendPart, KvRows, PageId};

use crate::common::{KV_TYPES as TYPES, Random, compute, in_turn};

/// Lengths of sequences: more than two pages, one position, a whole page, and more than a page.
const LENS: [usize; 4] = [150, 1, 64, 101];

/// A cache line: pools start on one.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Sequences with their pages in one pool, the pages' order reversed.
struct Paged {
    lens: Vec<usize>,
    pages: Vec<Vec<PageId>>,
    pool: Vec<CacheLine>,
}

impl Paged {
    /// Sequences whose pages are full of NaN, but for keys of an index in all positions.
    fn new(layout: KvLayout, lens: &[usize], random: &mut Random) -> Self {
        let n_pages: usize = lens.iter().map(|len| len.div_ceil(KV_PAGE)).sum();
        let mut free = (0..n_pages as u32).rev().map(PageId);
        let of_len = |len: &usize| free.by_ref().take(len.div_ceil(KV_PAGE)).collect();
        let pages: Vec<Vec<PageId>> = lens.iter().map(of_len).collect();
        let pool = vec![CacheLine([0xff; 64]); n_pages * layout.page_bytes() / 64];
        let mut paged = Self { lens: lens.to_vec(), pages, pool };
        let of = |n: usize| lens.iter().sum::<usize>() * n;
        let k = random.values(of(layout.n_kv_head * layout.head_dim_k), 1.0);
        let beside = if layout.values == ValuePlace::Apart { layout.head_dim_v } else { 0 };
        let v = random.values(of(layout.n_kv_head * beside), 1.0);
        let index = random.values(of(layout.index_dim), 1.0);
        let mut pool = std::mem::take(&mut paged.pool);
        let rows = KvRows { k: &k[..], v: Some(&v), index: Some(&index) };
        let all = paged.all();
        let bytes = bytemuck::cast_slice_mut(&mut pool);
        compute().kv_write(&layout, bytes, &paged.parts(&all), &rows);
        paged.pool = pool;
        paged
    }

    /// All positions of the sequences.
    fn all(&self) -> Vec<Range<usize>> {
        self.lens.iter().map(|len| 0..*len).collect()
    }

    /// Rows at some positions of each sequence, numbered one sequence after the other.
    fn parts(&self, ranges: &[Range<usize>]) -> Vec<AttendPart<'_>> {
        let mut parts = Vec::new();
        let mut first_row = 0;
        for (pages, range) in self.pages.iter().zip(ranges) {
            let (first_pos, n_rows) = (range.start, range.len());
            parts.push(AttendPart { pages, first_pos, n_rows, first_row });
            first_row += n_rows;
        }
        parts
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.pool)
    }

    /// A copy of the pool on the GPU.
    fn there(&self, gpu: &Gpu) -> GpuBuffer {
        let mut buffer = gpu.buffer(self.bytes().len(), Purpose::States).expect("room");
        buffer.write(0, self.bytes());
        buffer
    }
}

/// Positions of the sequences at which they are asked: all, the last ones, one.
fn some_ranges(lens: &[usize]) -> [Vec<Range<usize>>; 3] {
    let of = |n: usize| lens.iter().map(|len| len.saturating_sub(n)..*len).collect();
    [of(usize::MAX), of(20), of(1)]
}

/// The words of a buffer.
fn words_of(buffer: &GpuBuffer) -> Vec<u32> {
    bytemuck::cast_slice(buffer.bytes()).to_vec()
}
