//! Attention of query rows over the pages of their sequences.
//!
//! A row walks its sequence's pages in order of position, page by page, for its scores, its softmax and its
//! sums. Every span of [`SPAN_PAGES`] pages starts afresh, and spans are merged in order. Spans lie at
//! absolute positions. So no bit depends on how rows, heads and spans are spread over threads.
//!
//! Rows beside a row change no bit of it either. They only share the reading of keys and values. Positions
//! beyond a row's own are never used, whatever a recycled page still holds there. In an encoder a row sees those of its
//! own part too, which is a whole text then.

use std::ops::Range;

use super::KV_PAGE;
use super::chosen_blocks::{ChosenBlocks, SeenPage};
use super::compute::Compute;
use super::kv::{KvLayout, ValuePlace};
use super::ops::Rows;
use super::scan::check_disjoint_rows;
use super::simd::LANES;
use crate::batch::BlockId;

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
    pub(super) fn n_near(&self, width: usize) -> usize {
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
    pub sinks: Option<&'a [f32]>,
    /// For each query head what a score loses for every position between it and its row (ALiBi, arXiv
    /// 2108.12409): after the scale and the bound.
    pub slopes: Option<&'a [f32]>,
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
    pub of_heads: &'a [f32],
    /// The farthest distance that is told from others.
    pub reach: usize,
}

impl<'a> DistanceBiases<'a> {
    /// Those of one head.
    fn of(&self, head: usize) -> &'a [f32] {
        let n = 2 * self.reach + 1;
        &self.of_heads[head * n..][..n]
    }
}

/// Which positions a row sees of those that it may see at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last so many, its own included.
    Sliding(u32),
    /// Those of its own chunk; chunks of so many positions lie side by side from position 0.
    Chunk(u32),
    /// Those at most half so many away, before and after it.
    Around(u32),
}

impl Window {
    /// The first position that a row at `pos` sees.
    pub fn first_visible(self, pos: usize) -> usize {
        match self {
            Self::Sliding(n) => (pos + 1).saturating_sub(n as usize),
            Self::Chunk(n) => pos / n.max(1) as usize * n.max(1) as usize,
            Self::Around(n) => pos.saturating_sub(n as usize / 2),
        }
    }

    /// Behind the last position that a row at `pos` sees of positions up to `end`.
    pub fn n_visible(self, pos: usize, end: usize) -> usize {
        match self {
            Self::Sliding(_) | Self::Chunk(_) => end,
            Self::Around(n) => end.min(pos + n as usize / 2 + 1),
        }
    }

    /// Positions that a row sees at most.
    pub fn width(self) -> u32 {
        match self {
            Self::Sliding(n) | Self::Chunk(n) => n,
            Self::Around(n) => n / 2 * 2 + 1,
        }
    }
}

/// Pages whose softmax is accumulated in one go; part of the arithmetic.
pub(super) const SPAN_PAGES: usize = 16;
/// Queries that share the reading of a page: whole steps of four, six and eight.
pub(super) const TILE_QUERIES: usize = 24;
/// Values before the weighted sum in a state: the greatest score, the sum of weights, padding.
pub(super) const STATE_HEAD: usize = LANES;
/// Tiles that each thread should find; with fewer, spans are spread as well.
const TILES_PER_THREAD: usize = 4;

/// One query head of one row.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    /// `[head_dim_k]`.
    pub(super) q: &'a [f32],
    /// Its row's position.
    pub(super) pos: usize,
    /// The first position it sees.
    pub(super) first_visible: usize,
    /// Behind the last position it sees.
    pub(super) n_visible: usize,
    /// What a score loses for every position between it and the row.
    pub(super) slope: Option<f32>,
    /// What a score gains by the distance, `[2 * reach + 1]`.
    pub(super) biases: Option<&'a [f32]>,
}

/// Some queries of one head over one span of pages.
pub(super) struct AttendTile<'a> {
    pub(super) layout: &'a KvLayout,
    pub(super) pool: &'a [u8],
    pub(super) blocks: &'a [BlockId],
    pub(super) kv_head: usize,
    pub(super) pages: SpanPages<'a>,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    /// At most [`TILE_QUERIES`], by ascending `n_visible` and `first_visible`.
    pub(super) queries: &'a [Query<'a>],
    /// One state for each query: [`STATE_HEAD`] values, then the weighted sum of values.
    pub(super) states: &'a mut [f32],
}

/// The pages of a span, in order.
#[derive(Clone)]
pub(super) enum SpanPages<'a> {
    /// All from one to another.
    All(Range<usize>),
    /// Those that hold chosen blocks.
    Chosen(&'a [SeenPage]),
}

impl SpanPages<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::All(pages) => pages.len(),
            Self::Chosen(pages) => pages.len(),
        }
    }

    /// The page at this place.
    pub(super) fn at(&self, place: usize) -> SeenPage {
        match self {
            Self::All(pages) => SeenPage::whole(pages.start + place),
            Self::Chosen(pages) => pages[place],
        }
    }

    /// The page that is read after the one at this place; it may be another span's, or none.
    pub(super) fn next(&self, place: usize) -> Option<usize> {
        match self {
            Self::All(pages) => Some(pages.start + place + 1),
            Self::Chosen(pages) => pages.get(place + 1).map(|seen| seen.page),
        }
    }
}

/// The states of one query, span after span, to be merged.
pub(super) struct AttendMerge<'a> {
    /// State of span `i` at `i * stride`.
    pub(super) states: &'a [f32],
    pub(super) stride: usize,
    pub(super) n_spans: usize,
    /// A score without a value.
    pub(super) sink: Option<f32>,
    /// `[head_dim_v]`.
    pub(super) out: &'a mut [f32],
}

/// Queries `queries` of head `kv_head` of part `part`; query `i` is head `i % group` of row
/// `i / group`.
struct Tile {
    part: usize,
    kv_head: usize,
    queries: Range<usize>,
    /// Of chosen blocks, among all such pages; empty where its queries see all.
    pages: Range<usize>,
    /// Spans before the first that any of its queries sees.
    skipped: usize,
    /// Spans from there.
    n_spans: usize,
    /// Index of the tile's first span among all.
    first_span: usize,
}

/// A call of [`Compute::attend`] with its shapes worked out.
struct AttendCall<'a> {
    attend: &'a Attend<'a>,
    q: &'a [f32],
    group: usize,
    state_len: usize,
    /// Most queries of a tile.
    most_queries: usize,
    tiles: Vec<Tile>,
    /// Pages of chosen blocks, tile after tile.
    pages: Vec<SeenPage>,
}

impl Compute {
    /// Attention: `q` is `[n_rows, n_head * head_dim_k]`, `out` is `[n_rows, n_head * head_dim_v]`,
    /// rows as the parts number them. Keys and values of the rows themselves must be in their pages.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie
    /// outside its blocks or the pool.
    pub fn attend(&self, attend: &Attend<'_>, q: &[f32], out: &mut [f32]) {
        let plan = AttendCall::new(attend, q, out.len());
        let out = Rows::new(out, attend.layout.head_dim_v);
        let n_tiles = plan.tiles.len();
        if n_tiles >= self.pool().threads() * TILES_PER_THREAD {
            self.pool().run(n_tiles, &|i, _| {
                let tile = &plan.tiles[i];
                let mut states = vec![0.0; tile.n_spans * plan.span_len()];
                for (span, states) in states.chunks_exact_mut(plan.span_len()).enumerate() {
                    self.attend_span(&plan, tile, span, states);
                }
                self.merge_tile(&plan, tile, &states, &out);
            });
            return;
        }
        let n_spans = plan.tiles.last().map_or(0, |tile| tile.first_span + tile.n_spans);
        let mut states = vec![0.0; n_spans * plan.span_len()];
        let spans = Rows::new(&mut states, plan.span_len());
        self.pool().run(n_spans, &|i, _| {
            let tile = &plan.tiles[plan.tiles.partition_point(|tile| tile.first_span <= i) - 1];
            // SAFETY: the pool hands out each span once.
            let states = unsafe { spans.rows(i..i + 1) };
            self.attend_span(&plan, tile, i - tile.first_span, states);
        });
        for tile in &plan.tiles {
            let states = &states[tile.first_span * plan.span_len()..];
            self.merge_tile(&plan, tile, states, &out);
        }
    }

    /// Fills the states of one span of a tile.
    fn attend_span(&self, plan: &AttendCall<'_>, tile: &Tile, span: usize, states: &mut [f32]) {
        let part = &plan.attend.parts[tile.part];
        let none =
            Query { q: &[], pos: 0, first_visible: 0, n_visible: 0, slope: None, biases: None };
        let mut queries = [none; TILE_QUERIES];
        let n_queries = tile.queries.len();
        for (query, i) in queries.iter_mut().zip(tile.queries.clone()) {
            *query = plan.query(tile, i);
        }
        let queries = &queries[..n_queries];
        (self.kernels().attend)(&mut AttendTile {
            layout: plan.attend.layout,
            pool: plan.attend.pool,
            blocks: part.blocks,
            kv_head: tile.kv_head,
            pages: plan.span_pages(tile, span, queries),
            scale: plan.attend.scale,
            softcap: plan.attend.variant.softcap,
            queries,
            states: &mut states[..n_queries * plan.state_len],
        });
    }

    /// Merges the spans of a tile's queries and writes their outputs.
    fn merge_tile(&self, plan: &AttendCall<'_>, tile: &Tile, states: &[f32], out: &Rows<'_, f32>) {
        for (t, i) in tile.queries.clone().enumerate() {
            let (row, head) = plan.row_and_head(tile, i);
            let at = row * plan.attend.n_head + head;
            (self.kernels().attend_merge)(&mut AttendMerge {
                states: &states[t * plan.state_len..],
                stride: plan.span_len(),
                // Its own, not the tile's: a later span must leave no trace. An earlier one that it does
                // not see has the weight 0 in the merge, which changes no sum.
                n_spans: match tile.pages.is_empty() {
                    true => {
                        let n_visible = plan.query(tile, i).n_visible;
                        n_visible.div_ceil(SPAN_PAGES * KV_PAGE) - tile.skipped
                    }
                    false => tile.n_spans,
                },
                sink: plan.attend.variant.sinks.map(|sinks| sinks[head]),
                // SAFETY: parts have no row in common (`AttendCall::new` checks that), so that a query belongs
                // to one tile, and each tile is merged once.
                out: unsafe { out.rows(at..at + 1) },
            });
        }
    }
}

impl<'a> AttendCall<'a> {
    fn new(attend: &'a Attend<'a>, q: &'a [f32], out_len: usize) -> Self {
        let (layout, n_head) = (attend.layout, attend.n_head);
        assert!(
            layout.values == ValuePlace::Apart || layout.head_dim_v <= layout.head_dim_k,
            "attend: values of {} in keys of {}",
            layout.head_dim_v,
            layout.head_dim_k
        );
        assert!(
            layout.n_kv_head > 0 && n_head.is_multiple_of(layout.n_kv_head),
            "attend: {n_head} query heads over {} heads",
            layout.n_kv_head
        );
        let q_row = n_head * layout.head_dim_k;
        let n_rows = q.len() / q_row.max(1);
        assert_eq!(q.len(), n_rows * q_row, "attend: length of q");
        assert_eq!(out_len, n_rows * n_head * layout.head_dim_v, "attend: length of out");
        assert!(
            attend.variant.sinks.is_none_or(|sinks| sinks.len() == n_head),
            "attend: a sink for each query head"
        );
        assert!(
            attend.variant.slopes.is_none_or(|slopes| slopes.len() == n_head),
            "attend: a slope for each query head"
        );
        assert!(
            attend.variant.biases.is_none_or(|b| b.of_heads.len() == n_head * (2 * b.reach + 1)),
            "attend: biases for each query head"
        );
        let sees_before = attend.variant.window.is_none() && !attend.variant.both_ways;
        assert!(
            attend.variant.blocks.is_none_or(|chosen| sees_before
                && chosen.blocks.len() == n_rows * layout.n_kv_head * chosen.sizes.per_row),
            "attend: chosen blocks for each head, of all positions before a row"
        );
        let mut plan = Self {
            attend,
            q,
            group: n_head / layout.n_kv_head,
            state_len: STATE_HEAD + layout.v_stride(),
            most_queries: 0,
            tiles: Vec::new(),
            pages: Vec::new(),
        };
        // Each row's output is written by the tiles of its part, from several threads.
        let rows = attend.parts.iter().map(|part| (part.first_row, part.n_rows));
        check_disjoint_rows(rows, n_rows, "attend");
        for (p, part) in attend.parts.iter().enumerate() {
            let n_near = match &attend.variant.blocks {
                Some(chosen) => part.n_near(chosen.n_near),
                None => part.n_rows,
            };
            for kv_head in 0..layout.n_kv_head {
                plan.add_tiles(p, kv_head, 0..n_near);
                for row in n_near..part.n_rows {
                    plan.add_tiles(p, kv_head, row..row + 1);
                }
            }
        }
        plan
    }

    /// Adds the tiles of rows of part `p`: of rows that see all before them, or of one that sees chosen blocks.
    fn add_tiles(&mut self, p: usize, kv_head: usize, rows: Range<usize>) {
        let part = &self.attend.parts[p];
        let pages = self.list_pages(part, kv_head, rows.end);
        let (first, end) = (rows.start * self.group, rows.end * self.group);
        self.most_queries = self.most_queries.max((end - first).min(TILE_QUERIES));
        for start in (first..end).step_by(TILE_QUERIES) {
            let queries = start..(start + TILE_QUERIES).min(end);
            let n_visible = self.visible(part, (queries.end - 1) / self.group).end;
            let first = self.visible(part, queries.start / self.group).start;
            let (skipped, n_spans) = match pages.is_empty() {
                true => {
                    let skipped = first / (SPAN_PAGES * KV_PAGE);
                    (skipped, n_visible.div_ceil(SPAN_PAGES * KV_PAGE) - skipped)
                }
                false => (0, pages.len().div_ceil(SPAN_PAGES)),
            };
            let first_span = self.tiles.last().map_or(0, |tile| tile.first_span + tile.n_spans);
            let pages = pages.clone();
            self.tiles.push(Tile {
                part: p,
                kv_head,
                queries,
                pages,
                skipped,
                n_spans,
                first_span,
            });
        }
    }

    /// Lists the pages of the blocks that a head of the row before `end_row` attends to, if it does not to all.
    fn list_pages(
        &mut self,
        part: &AttendPart<'_>,
        kv_head: usize,
        end_row: usize,
    ) -> Range<usize> {
        let start = self.pages.len();
        let is_far = |chosen: &ChosenBlocks<'_>| end_row > part.n_near(chosen.n_near);
        if let Some(chosen) = self.attend.variant.blocks.filter(is_far) {
            let (n, n_head) = (chosen.sizes.per_row, self.attend.layout.n_kv_head);
            let at = ((part.first_row + end_row - 1) * n_head + kv_head) * n;
            chosen.pages(&chosen.blocks[at..at + n], part.first_pos + end_row, &mut self.pages);
        }
        start..self.pages.len()
    }

    /// The pages of a tile's span, for these queries of it.
    fn span_pages(&self, tile: &Tile, span: usize, queries: &[Query<'_>]) -> SpanPages<'_> {
        if !tile.pages.is_empty() {
            let pages = &self.pages[tile.pages.clone()];
            let pages = pages.chunks(SPAN_PAGES).nth(span).expect("as many spans as pages have");
            return SpanPages::Chosen(pages);
        }
        let n_pages = queries[queries.len() - 1].n_visible.div_ceil(KV_PAGE);
        let span = tile.skipped + span;
        let first_page = (queries[0].first_visible / KV_PAGE).max(span * SPAN_PAGES);
        SpanPages::All(first_page..((span + 1) * SPAN_PAGES).min(n_pages))
    }

    /// Values of the states of a tile's span.
    fn span_len(&self) -> usize {
        self.most_queries * self.state_len
    }

    /// Row and query head of query `i` of a tile's part and head.
    fn row_and_head(&self, tile: &Tile, i: usize) -> (usize, usize) {
        let row = self.attend.parts[tile.part].first_row + i / self.group;
        (row, tile.kv_head * self.group + i % self.group)
    }

    fn query(&self, tile: &Tile, i: usize) -> Query<'a> {
        let (row, head) = self.row_and_head(tile, i);
        let dk = self.attend.layout.head_dim_k;
        let at = (row * self.attend.n_head + head) * dk;
        let (part, variant) = (&self.attend.parts[tile.part], &self.attend.variant);
        let Range { start: first_visible, end: n_visible } = self.visible(part, i / self.group);
        Query {
            q: &self.q[at..at + dk],
            pos: part.first_pos + i / self.group,
            first_visible,
            n_visible,
            slope: variant.slopes.map(|slopes| slopes[head]),
            biases: variant.biases.map(|biases| biases.of(head)),
        }
    }

    /// The positions that row `row` of a part sees. Neither end goes back from one row to the next.
    fn visible(&self, part: &AttendPart<'_>, row: usize) -> Range<usize> {
        let variant = &self.attend.variant;
        let pos = part.first_pos + row;
        let end = if variant.both_ways { part.first_pos + part.n_rows } else { pos + 1 };
        match variant.window {
            None => 0..end,
            Some(window) => window.first_visible(pos)..window.n_visible(pos, end),
        }
    }
}
