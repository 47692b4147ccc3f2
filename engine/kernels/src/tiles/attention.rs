//! What attention takes, and the tiles that its kernels see. How rows, heads and spans are spread over threads changes no
//! bit: `ops/attention` says why.

use brigade_shapes::Window;
use std::ops::Range;

use super::chosen_blocks::{ChosenBlocks, SeenPage};
use crate::BlockId;
use crate::simd::LANES;
use brigade_ops::Vector;
use brigade_shapes::KvLayout;

/// Consecutive positions of one sequence, and where its pages are.
#[derive(Clone, Copy, Debug)]
pub struct AttendPart<'a> {
    /// The sequence's pages: number `i` holds positions `i * KV_PAGE ..`.
    pub blocks: &'a [BlockId],
    /// Position of the first row.
    pub first_pos: usize,
    /// Rows, at consecutive positions.
    pub n_rows: usize,
    /// Index of the first row in `q`, `k`, `v` and `out`. Parts are in the order of their rows, and no row is
    /// in two of them.
    pub first_row: usize,
}

impl AttendPart<'_> {
    /// Rows, the first ones, that see no more than `width` positions.
    #[inline]
    pub(crate) fn n_near(&self, width: usize) -> usize {
        width.saturating_sub(self.first_pos).min(self.n_rows)
    }
}

/// One layer's attention over all rows of a ubatch. Each row sees its own position and those before; in an encoder all of
/// its part.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// Shape of the pages.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: &'a [u8],
    /// The rows.
    pub parts: &'a [AttendPart<'a>],
    /// Query heads, a multiple of the layout's heads; consecutive ones share a head.
    pub n_head: usize,
    /// Factor on the scores, usually `1 / sqrt(head_dim_k)`.
    pub scale: f32,
    /// What few models change of the softmax.
    pub variant: AttendVariant<'a>,
}

/// What few models change of a layer's attention; the default changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttendVariant<'a> {
    /// What a row sees of the positions before it; `None`: all of them.
    pub window: Option<Window>,
    /// Bound of the scores: `cap * tanh(score / cap)` after the scale.
    pub softcap: Option<f32>,
    /// For each query head a score without a value: `exp` of it joins the sum of the weights.
    pub sinks: Option<&'a Vector>,
    /// For each query head what a score loses for every position between it and its row (ALiBi, arXiv
    /// 2108.12409): after the scale and the bound.
    pub slopes: Option<&'a Vector>,
    /// What scores gain by the distance.
    pub biases: Option<DistanceBiases<'a>>,
    /// Whether a row sees the positions of its part that come after its own. The part is all of its sequence.
    pub both_ways: bool,
    /// The blocks that a row's heads see of the positions before it; `None`: all. Not beside a window, nor where rows see
    /// those after them.
    pub blocks: Option<ChosenBlocks<'a>>,
}

/// What a score gains by how far its position is ahead of the row's own (T5, arXiv 1910.10683, section 2.1): after the
/// scale and the bound.
#[derive(Clone, Copy, Debug)]
pub struct DistanceBiases<'a> {
    /// `[n_head, 2 * reach + 1]`: of the distances `-reach..=reach`. Farther ones count as the farthest.
    pub of_heads: &'a Vector,
    /// The farthest distance that is told from others.
    pub reach: usize,
}

impl<'a> DistanceBiases<'a> {
    /// Those of one head.
    #[inline]
    pub(crate) fn of(&self, head: usize) -> &'a [f32] {
        let n = 2 * self.reach + 1;
        &self.of_heads[head * n..][..n]
    }
}

/// Pages whose softmax is accumulated in one go; part of the arithmetic.
pub(crate) const SPAN_PAGES: usize = 16;

/// Queries that share the reading of a page: whole steps of four, six and eight.
pub(crate) const TILE_QUERIES: usize = 24;

/// Values before the weighted sum in a state: the greatest score, the sum of weights, padding.
pub(crate) const STATE_HEAD: usize = LANES;

/// One query head of one row.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// `[head_dim_k]`.
    pub(crate) q: &'a [f32],
    /// Its row's position.
    pub(crate) pos: usize,
    /// The first position it sees.
    pub(crate) first_visible: usize,
    /// Behind the last position it sees.
    pub(crate) n_visible: usize,
    /// What a score loses for every position between it and the row.
    pub(crate) slope: Option<f32>,
    /// What a score gains by the distance, `[2 * reach + 1]`.
    pub(crate) biases: Option<&'a [f32]>,
}

/// Some queries of one head over one span of pages.
pub(crate) struct AttendTile<'a> {
    pub(crate) layout: &'a KvLayout,
    pub(crate) pool: &'a [u8],
    pub(crate) blocks: &'a [BlockId],
    pub(crate) kv_head: usize,
    pub(crate) pages: SpanPages<'a>,
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
    /// At most [`TILE_QUERIES`], by ascending `n_visible` and `first_visible`.
    pub(crate) queries: &'a [Query<'a>],
    /// One state for each query: [`STATE_HEAD`] values, then the weighted sum of values.
    pub(crate) states: &'a mut [f32],
}

/// The pages of a span, in order.
#[derive(Clone)]
pub(crate) enum SpanPages<'a> {
    /// All from one to another.
    All(Range<usize>),
    /// Those that hold chosen blocks.
    Chosen(&'a [SeenPage]),
}

impl SpanPages<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::All(pages) => pages.len(),
            Self::Chosen(pages) => pages.len(),
        }
    }

    /// The page at this place.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> SeenPage {
        match self {
            Self::All(pages) => SeenPage::whole(pages.start + place),
            Self::Chosen(pages) => pages[place],
        }
    }

    /// The page that is read after the one at this place; it may be another span's, or none.
    #[inline]
    pub(crate) fn next(&self, place: usize) -> Option<usize> {
        match self {
            Self::All(pages) => Some(pages.start + place + 1),
            Self::Chosen(pages) => pages.get(place + 1).map(|seen| seen.page),
        }
    }
}

/// The states of one query, span after span, to be merged.
pub(crate) struct AttendMerge<'a> {
    /// State of span `i` at `i * stride`.
    pub(crate) states: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) n_spans: usize,
    /// A score without a value.
    pub(crate) sink: Option<f32>,
    /// `[head_dim_v]`.
    pub(crate) out: &'a mut [f32],
}
