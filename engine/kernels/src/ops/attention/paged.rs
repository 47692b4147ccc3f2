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

use crate::compute::Compute;
use crate::tiles::attention::chosen_blocks::{ChosenBlocks, SeenPage, seen_pages};
use crate::tiles::attention::paged::{
    Attend, AttendMerge, AttendPart, AttendTile, Query, SPAN_PAGES, STATE_HEAD, SpanPages,
    TILE_QUERIES,
};
use crate::tiles::out_rows::Rows;
use brigade_ops::Host;
use brigade_ops::attention::check_over;
use brigade_shapes::KV_PAGE;

/// Tiles that each thread should find; with fewer, spans are spread as well.
const TILES_PER_THREAD: usize = 4;

/// Queries `queries` of head `kv_head` of part `part`; query `i` is head `i % group` of row
/// `i / group`.
struct Tile {
    part: usize,
    kv_head: usize,
    queries: Range<usize>,
    /// Range among all pages with chosen blocks; empty where the queries see all.
    pages: Range<usize>,
    /// Spans before the first that any of its queries sees.
    skipped: usize,
    /// Number of spans from there on.
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
            blocks: part.pages,
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
                n_spans: if tile.pages.is_empty() {
                    let n_visible = plan.query(tile, i).n_visible;
                    n_visible.div_ceil(SPAN_PAGES * KV_PAGE) - tile.skipped
                } else {
                    tile.n_spans
                },
                sink: plan.attend.variant.sinks.map(|sinks| sinks[head]),
                // SAFETY: parts have no row in common (`check_over`), so that a query belongs
                // to one tile, and each tile is merged once.
                out: unsafe { out.rows(at..at + 1) },
            });
        }
    }
}

impl<'a> AttendCall<'a> {
    fn new(attend: &'a Attend<'a>, q: &'a [f32], out_len: usize) -> Self {
        let (layout, n_head) = (attend.layout, attend.n_head);
        check_over::<Host>("attend", attend, q.len(), out_len);
        let mut plan = Self {
            attend,
            q,
            group: n_head / layout.n_kv_head,
            state_len: STATE_HEAD + layout.v_stride(),
            most_queries: 0,
            tiles: Vec::new(),
            pages: Vec::new(),
        };
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
            let (skipped, n_spans) = if pages.is_empty() {
                let skipped = first / (SPAN_PAGES * KV_PAGE);
                (skipped, n_visible.div_ceil(SPAN_PAGES * KV_PAGE) - skipped)
            } else {
                (0, pages.len().div_ceil(SPAN_PAGES))
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
            let (blocks, end) = (&chosen.blocks[at..at + n], part.first_pos + end_row);
            seen_pages(chosen.sizes.positions, blocks, end, &mut self.pages);
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
