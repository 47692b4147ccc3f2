//! The work of experts: pairs of a row and one of its experts, sorted by expert on the device and cut in pieces for
//! products.

use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::Span;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};
use crate::transfer::buffer::GpuBuffer;

static SORT: Shader = shader!("route_pairs");

/// Words of a piece.
const PIECE_WORDS: usize = 3;

/// The pairs that each expert works on, in lists on the device: for each pair the row of activations that it reads, and pieces
/// of the pairs. Kernels alone write them: their numbers are below what they count.
#[derive(Debug)]
pub struct ExpertWork {
    /// The row of each pair, and behind these the pieces.
    lists: GpuBuffer,
    n_rows: usize,
    n_pairs: usize,
    n_expert: usize,
    piece_rows: usize,
    n_pieces: usize,
}

/// Addresses of the kernel's lists beside those of the work. Each has a word for each pair, as it was chosen or sorted.
#[derive(Clone, Copy, Default)]
pub(crate) struct PairLists {
    /// Experts of the pairs as they were chosen.
    pub(crate) ids: u64,
    /// Weights of these experts.
    pub(crate) weights: u64,
    /// For each of these its number among the sorted ones.
    pub(crate) pairs: u64,
    /// The expert of each sorted pair.
    pub(crate) experts: u64,
    /// Weight of each sorted pair.
    pub(crate) pair_weights: u64,
}

/// The rows whose pairs are sorted.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Rows {
    /// All: `pairs`, `experts` and `pair_weights` are written.
    All,
    /// Some: `ids` and `pairs` are read, and the latter become the rows of the work.
    Some,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    ids: u64,
    weights: u64,
    pairs: u64,
    rows: u64,
    experts: u64,
    pair_weights: u64,
    pieces: u64,
    n_pairs: u32,
    n_used: u32,
    n_expert: u32,
    n_pieces: u32,
    piece_rows: u32,
    pad: u32,
}

impl Gpu {
    /// Sorts pairs by expert, `n_used` for each row, and writes the lists of `work`.
    ///
    /// # Safety
    /// The lists that are read have a word for each pair of the work; those that are written too, and are the caller's to write.
    /// Numbers of pairs that are read are below the rows that the work may list.
    pub(crate) unsafe fn sort_pairs(
        &self,
        work: &ExpertWork,
        n_used: usize,
        lists: &PairLists,
        of: Rows,
    ) {
        if work.n_pairs == 0 {
            return;
        }
        let PairLists { ids, weights, pairs, experts, pair_weights } = *lists;
        let push = Push {
            ids,
            weights,
            pairs,
            rows: work.rows().address(),
            experts,
            pair_weights,
            pieces: work.pieces().address(),
            n_pairs: count(work.n_pairs),
            n_used: count(n_used),
            n_expert: count(work.n_expert),
            n_pieces: count(work.n_pieces),
            piece_rows: count(work.piece_rows),
            pad: 0,
        };
        let constants = [room(work.n_expert), u32::from(of == Rows::Some)];
        // SAFETY: the lists are those that the kernel reads and writes (promised by the caller). Each pair gets a place of its own
        // below their count, since experts' counts add up to that; there are no more pieces than have room (`expert_work`). Its
        // shared memory has room for all experts.
        unsafe { self.dispatch(Order::After, &SORT, &constants, &push, lines(work.n_expert)) };
    }

    /// Room for the work on `n_pairs` pairs of `n` rows, which read the rows of `there`.
    pub(crate) fn expert_work(
        &self,
        n: usize,
        there: usize,
        n_pairs: usize,
        n_expert: usize,
    ) -> Result<ExpertWork, GpuError> {
        let piece_rows = piece_rows(n, n_pairs, n_expert);
        // An expert has at most one piece that is not full.
        let n_pieces = n_pairs.min(n_pairs / piece_rows + n_expert.min(n_pairs));
        let lists = self.buffer(4 * (n_pairs + PIECE_WORDS * n_pieces), Purpose::Activations)?;
        Ok(ExpertWork { lists, n_rows: there, n_pairs, n_expert, piece_rows, n_pieces })
    }
}

impl ExpertWork {
    /// Rows that the pairs read some of.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Pairs of a row and one of its experts.
    pub fn n_pairs(&self) -> usize {
        self.n_pairs
    }

    /// Experts that rows were routed to.
    pub fn n_expert(&self) -> usize {
        self.n_expert
    }

    /// The row of each pair, u32.
    pub fn rows(&self) -> Span<'_> {
        self.lists.span().part(0..4 * self.n_pairs)
    }

    /// Pieces of the pairs, each of one expert: its id, the first pair, how many they are, u32. Pieces behind the
    /// last have no pairs.
    pub fn pieces(&self) -> Span<'_> {
        self.lists.span().part(4 * self.n_pairs..self.lists.len())
    }

    /// Most pieces that there may be.
    pub(crate) fn n_pieces(&self) -> usize {
        self.n_pieces
    }

    /// Most pairs of a piece.
    pub fn piece_rows(&self) -> usize {
        self.piece_rows
    }
}

/// Most pairs of a piece. With few rows a piece has all rows of an expert. With more it has as many as an expert has on
/// average, about: products of more than eight rows fill up sixteens of them.
fn piece_rows(n_rows: usize, n_pairs: usize, n_expert: usize) -> usize {
    match n_pairs.div_ceil(n_expert) {
        _ if n_rows <= 8 => n_rows.max(1).next_power_of_two(),
        0..=8 => 8,
        9..=24 => 16,
        25..=48 => 32,
        _ => 64,
    }
}

/// Room in shared memory for `n` numbers: few sizes, so that there are few kernels.
pub(crate) fn room(n: usize) -> u32 {
    count(n).next_power_of_two().max(16)
}
