//! The tiling of attention for the device: tiles of queries that share the reading of pages, and spans of pages. Spans
//! start afresh and lie at absolute positions. So no bit depends on the rows beside a row, nor on how its part is cut
//! into tiles.

use std::ops::Range;

use brigade_ops::AttendPart;
use brigade_shapes::{KV_PAGE, KvLayout, Window};
use bytemuck::{Pod, Zeroable};

/// Pages whose softmax is accumulated in one go; part of the arithmetic.
const SPAN_PAGES: usize = 16;

/// Positions of a span.
const SPAN_POSITIONS: usize = SPAN_PAGES * KV_PAGE;

/// Values before the weighted sum in a state.
const STATE_HEAD: usize = 4;

/// Most queries of a tile.
const MAX_TILE: usize = 16;

/// Most values of a tile's queries: the shader has all of them at hand.
const MAX_TILE_VALUES: usize = 2304;

/// Bytes of the states that are kept at once, about.
const STATE_BYTES: usize = 64 << 20;

/// Positions that rows see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) window: Option<Window>,
    /// Also the positions of its part that come after a row's own.
    pub(super) both_ways: bool,
}

/// Some queries of a part, for all heads of keys and values; see `attend_tile.glsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct Tile {
    first_row: u32,
    first_pos: u32,
    n_rows: u32,
    pages: u32,
    first_query: u32,
    n_queries: u32,
    first_span: u32,
    n_spans: u32,
    first_state: u32,
    first_list: u32,
}

/// Tiles that are computed together.
pub(super) struct Batch {
    /// Queries that a tile has room for.
    pub(super) tile: usize,
    /// Whether their queries read the pages of lists.
    pub(super) is_listed: bool,
    pub(super) tiles: Vec<Tile>,
    /// For each span the number of its tile.
    pub(super) spans: Vec<u32>,
}

/// All tiles of a call.
pub(super) struct Plan {
    pub(super) batches: Vec<Batch>,
    /// Pages that the tiles name, sequence after sequence.
    pub(super) pages: Vec<u32>,
    /// Rows that read the pages of lists, once for each head of keys and values: the row's number, and the end of the
    /// positions that it sees.
    pub(super) far_rows: Vec<[u32; 2]>,
}

/// Rows that do not read all pages they see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    /// Rows that see no more positions than this read all.
    pub(super) n_near: usize,
    /// Pages that a list has room for.
    pub(super) most: usize,
}

impl Plan {
    /// Cuts `parts`, whose pages must be among the `n_pages` of their pool, for `group` query heads to each head of keys.
    ///
    /// # Panics
    /// If a part lies outside its pages or a page outside the pool.
    pub(super) fn new(
        layout: &KvLayout,
        parts: &[AttendPart<'_>],
        group: usize,
        sight: Sight,
        listed: Option<Listed>,
        n_pages: usize,
    ) -> Self {
        let mut plan = Self { batches: Vec::new(), pages: Vec::new(), far_rows: Vec::new() };
        let n_near = |part: &AttendPart<'_>| match listed {
            None => part.n_rows,
            Some(listed) => part.n_near(listed.n_near),
        };
        let size_of = |part: &AttendPart<'_>| tile_size(layout, n_near(part) * group);
        let mut sizes: Vec<usize> = parts.iter().map(size_of).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let firsts: Vec<u32> =
            parts.iter().map(|part| plan.list_pages(part, sight, n_pages)).collect();
        for size in sizes {
            let room = (STATE_BYTES / state_bytes(layout, size)).max(1);
            plan.batches.push(Batch::new(size, false));
            for (part, pages) in parts.iter().zip(&firsts).filter(|(part, _)| size_of(part) == size)
            {
                let end = n_near(part) * group;
                for start in (0..end).step_by(size) {
                    let queries = start..end.min(start + size);
                    plan.add(Tile::of(part, *pages, queries, group, sight), room);
                }
            }
        }
        if let Some(listed) = listed {
            plan.add_listed(layout, parts, &firsts, group, listed);
        }
        plan.batches.retain(|batch| !batch.tiles.is_empty());
        plan
    }

    /// Adds the tiles of rows that read the pages of lists, each row's by itself.
    fn add_listed(
        &mut self,
        layout: &KvLayout,
        parts: &[AttendPart<'_>],
        firsts: &[u32],
        group: usize,
        listed: Listed,
    ) {
        let size = tile_size(layout, group);
        let room = (STATE_BYTES / state_bytes(layout, size)).max(1);
        let sight = Sight { window: None, both_ways: false };
        self.batches.push(Batch::new(size, true));
        for (part, pages) in parts.iter().zip(firsts) {
            for row in part.n_near(listed.n_near)..part.n_rows {
                let first_list = (self.far_rows.len() * layout.n_kv_head) as u32;
                let end = part.first_pos + row + 1;
                self.far_rows.push([(part.first_row + row) as u32, end as u32]);
                let n_spans = listed.most.min(end.div_ceil(KV_PAGE)).div_ceil(SPAN_PAGES) as u32;
                for start in (row * group..(row + 1) * group).step_by(size) {
                    let queries = start..((row + 1) * group).min(start + size);
                    let tile = Tile::of(part, *pages, queries, group, sight);
                    self.add(Tile { first_span: 0, n_spans, first_list, ..tile }, room);
                }
            }
        }
    }

    /// Bytes of the states of the largest batch.
    pub(super) fn state_bytes(&self, layout: &KvLayout) -> usize {
        let bytes = |batch: &Batch| batch.spans.len() * state_bytes(layout, batch.tile);
        self.batches.iter().map(bytes).max().unwrap_or(0)
    }

    /// Lists the pages that a part's rows see. Returns where page 0 would be in the list, wrapping below its start.
    fn list_pages(&mut self, part: &AttendPart<'_>, sight: Sight, n_pages: usize) -> u32 {
        if part.n_rows == 0 {
            return 0;
        }
        let first = sight.first_visible(part.first_pos) / KV_PAGE;
        let end = sight.end_visible(part, part.n_rows - 1).div_ceil(KV_PAGE);
        part.used("attend", first, n_pages);
        let start = self.pages.len() as u32;
        self.pages.extend(part.pages[first..end].iter().map(|page| page.0));
        start.wrapping_sub(first as u32)
    }

    /// Adds a tile to the last batch, or to a new one where that has no room.
    fn add(&mut self, tile: Tile, room: usize) {
        let n_spans = tile.n_spans as usize;
        let is_full = |batch: &Batch| !batch.tiles.is_empty() && batch.spans.len() + n_spans > room;
        if let Some(full) = self.batches.last().filter(|batch| is_full(batch)) {
            let next = Batch::new(full.tile, full.is_listed);
            self.batches.push(next);
        }
        let batch = self.batches.last_mut().expect("there is one before any tile");
        let number = batch.tiles.len() as u32;
        batch.tiles.push(Tile { first_state: batch.spans.len() as u32, ..tile });
        batch.spans.extend(std::iter::repeat_n(number, n_spans));
    }
}

impl Batch {
    fn new(tile: usize, is_listed: bool) -> Self {
        Self { tile, is_listed, tiles: Vec::new(), spans: Vec::new() }
    }
}

impl Tile {
    /// Some queries of a part whose page 0 is at `pages` of the list of all pages, and the spans that they see.
    fn of(
        part: &AttendPart<'_>,
        pages: u32,
        queries: Range<usize>,
        group: usize,
        sight: Sight,
    ) -> Self {
        let end = sight.end_visible(part, (queries.end - 1) / group);
        let first_span =
            sight.first_visible(part.first_pos + queries.start / group) / SPAN_POSITIONS;
        Self {
            first_row: part.first_row as u32,
            first_pos: part.first_pos as u32,
            n_rows: part.n_rows as u32,
            pages,
            first_query: queries.start as u32,
            n_queries: queries.len() as u32,
            first_span: first_span as u32,
            n_spans: (end.div_ceil(SPAN_POSITIONS) - first_span) as u32,
            first_state: 0,
            first_list: 0,
        }
    }
}

/// Queries of a tile, for a part that has so many for each head of keys: a power of two.
fn tile_size(layout: &KvLayout, n_queries: usize) -> usize {
    let width = layout.head_dim_k.next_multiple_of(crate::ops::kv::pages::LANES);
    let most = (MAX_TILE_VALUES / width).clamp(1, MAX_TILE);
    let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
    n_queries.max(1).next_power_of_two().min(most)
}

/// Bytes of the states of one span of a tile, for all heads.
fn state_bytes(layout: &KvLayout, tile: usize) -> usize {
    let state = STATE_HEAD + layout.head_dim_v.next_multiple_of(crate::ops::kv::pages::LANES);
    layout.n_kv_head * tile * state * size_of::<f32>()
}

impl Sight {
    /// The first position that a row at `pos` sees.
    fn first_visible(self, pos: usize) -> usize {
        self.window.map_or(0, |window| window.first_visible(pos))
    }

    /// End of the positions that row `row` of a part sees.
    fn end_visible(self, part: &AttendPart<'_>, row: usize) -> usize {
        let pos = part.first_pos + row;
        let end = if self.both_ways { part.first_pos + part.n_rows } else { pos + 1 };
        self.window.map_or(end, |window| window.n_visible(pos, end))
    }
}
