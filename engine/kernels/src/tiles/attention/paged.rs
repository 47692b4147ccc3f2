//! Operands of attention, and the tiles that its kernels see. The spread of rows, heads and spans over threads changes
//! no bit: `ops/attention/paged` says why.

use std::ops::Range;

use super::chosen_blocks::SeenPage;
use crate::simd::LANES;
use brigade_ops::PageId;
pub use brigade_ops::{AttendPart, DistanceBiases};
use brigade_shapes::KvLayout;

/// Pages, rows and softmax of attention, in the host's memory.
pub type Attend<'a> = brigade_ops::AttendOver<'a, &'a [u8], &'a [u32]>;

/// Changes to attention that only some models have, in the host's memory.
pub type AttendVariant<'a> = brigade_ops::AttendVariant<'a, &'a [u32]>;

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
    /// Position of the query's row.
    pub(crate) pos: usize,
    /// The first position it sees.
    pub(crate) first_visible: usize,
    /// Behind the last position it sees.
    pub(crate) n_visible: usize,
    /// Slope: a score loses so much for every position between it and the row.
    pub(crate) slope: Option<f32>,
    /// Biases that scores gain by the distance, `[2 * reach + 1]`.
    pub(crate) biases: Option<&'a [f32]>,
}

/// Some queries of one head over one span of pages.
pub(crate) struct AttendTile<'a> {
    pub(crate) layout: &'a KvLayout,
    pub(crate) pool: &'a [u8],
    pub(crate) blocks: &'a [PageId],
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
    /// Pages with chosen blocks.
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
