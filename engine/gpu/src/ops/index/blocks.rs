//! The index of MiniMax Sparse Attention. It scores blocks of positions for each head of keys and values of a row.
//! The head attends to the best of them and to the newest. A block's score is the greatest product of its positions
//! that the row sees. If blocks have the same score, the lower ones are chosen.

use brigade_ops::AttendPart;
use brigade_shapes::{BlockSizes, KV_PAGE, KvLayout, ValuePlace};
use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::ops::kv::index_pages::{IndexKeys, PageLists};
use crate::ops::rowwise::best_scores::{Best, Line, at_once};
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static SCORES: Shader = shader!("block_scores");

/// Queries of a workgroup.
const QUERIES: usize = 16;

/// The rows of a ubatch, and where the keys of their sequences are.
#[derive(Clone, Copy, Debug)]
pub struct BlockIndexSpans<'a> {
    /// Shape of the pages, which have keys of the index. The index has a query for each of their heads.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: Span<'a>,
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Positions of a block, and blocks chosen for a row.
    pub sizes: BlockSizes,
}

/// Neighbouring queries of a part; see `block_scores.comp`. Query `i` of a part is head `i % n_head` of row `i / n_head`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Tile {
    first: u32,
    in_part: u32,
    n: u32,
    first_pos: u32,
    pages: u32,
    line: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    tiles: u64,
    pages: u64,
    pool: u64,
    q: u64,
    scores: u64,
    page_bytes: u32,
    n_units: u32,
    pages_per_tile: u32,
    stride: u32,
    n_head: u32,
    dim: u32,
    width: u32,
    positions: u32,
}

/// Keys that are scored, and the layout of the scores.
struct Scored {
    keys: IndexKeys,
    /// Address of the lists of pages.
    pages: u64,
    n_head: usize,
    /// Positions of a block.
    positions: usize,
    /// Scores of a line.
    stride: usize,
}

impl Gpu {
    /// Writes the blocks that each head of each row attends to, ascending, as u32 to `out` `[n_rows, n_kv_head,
    /// per_row]`. A row that sees no more than `per_row` blocks attends to all, and its numbers are zeros. `false`: all
    /// rows do, and nothing is written.
    ///
    /// `q` is `[n_rows, n_kv_head * index_dim]`, rows as the parts number them. Keys of the rows themselves must be in
    /// their pages.
    ///
    /// # Errors
    /// Where there is no room for the scores.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie outside its pages
    /// or the pool.
    pub fn choose_blocks(
        &self,
        index: &BlockIndexSpans<'_>,
        q: Span<'_>,
        mut out: SpanMut<'_>,
    ) -> Result<bool, GpuError> {
        let BlockIndexSpans { layout, pool, parts, sizes } = *index;
        let BlockSizes { positions, per_row, newest } = sizes;
        assert!(positions > 0 && per_row > 0 && newest <= per_row, "choose_blocks: sizes");
        let (n_head, dim) = (layout.n_kv_head, layout.index_dim);
        assert!(n_head > 0 && dim > 0, "choose_blocks: pages without keys of an index");
        assert_eq!(layout.values, ValuePlace::Apart, "choose_blocks: keys that are rows");
        let n_rows = q.values() / (n_head * dim);
        assert_eq!(q.values(), n_rows * n_head * dim, "choose_blocks: length of q");
        assert_eq!(out.values(), n_rows * n_head * per_row, "choose_blocks: length of out");
        let keys = IndexKeys::new("choose_blocks", layout, pool.address(), pool.len());
        let lists = PageLists::new("choose_blocks", layout, pool.len(), parts, n_rows);
        let mut tiles = tiles(index, &lists);
        let Some(n_pos) = tiles.iter().map(|tile| tile.end(n_head)).max() else {
            return Ok(false);
        };

        self.fill(out.again(), 0.0);
        let pages = self.upload(bytemuck::cast_slice(&lists.pages)).address();
        let stride = n_pos.div_ceil(positions);
        let at_once = at_once(tiles.len(), QUERIES, stride);
        let mut scores = self.buffer(4 * stride * QUERIES * at_once, Purpose::Activations)?;
        let scored = Scored { keys, pages, n_head, positions, stride };
        let best = Best {
            wanted: per_row - newest,
            n_behind: newest,
            copies: 1,
            of_floats: false,
            as_floats: false,
            with_scores: false,
        };
        for tiles in tiles.chunks_mut(at_once) {
            let lines = lines_of(tiles, n_head, sizes);
            self.fill(scores.span_mut(), 0.0);
            self.block_scores(&scored, tiles, q, scores.span_mut());
            self.best(best, &lines, scores.span(), stride, out.again());
        }
        Ok(true)
    }

    /// Scores of the blocks that the tiles' queries see, `[lines, stride]`; zeros of others.
    fn block_scores(&self, scored: &Scored, tiles: &[Tile], q: Span<'_>, scores: SpanMut<'_>) {
        let Scored { keys, pages, n_head, positions, stride } = *scored;
        let n_pos = tiles.iter().map(|tile| tile.end(n_head)).max().unwrap_or(0);
        let pages_per_tile = n_pos.div_ceil(KV_PAGE);
        let n_units = tiles.len() * pages_per_tile;
        let push = Push {
            tiles: self.upload(bytemuck::cast_slice(tiles)).address(),
            pages,
            pool: keys.address,
            q: q.address(),
            scores: scores.address(),
            page_bytes: keys.page_bytes,
            n_units: count(n_units),
            pages_per_tile: count(pages_per_tile),
            stride: count(stride),
            n_head: n_head as u32,
            // Keys lie across, so pages have no more of their elements.
            dim: keys.width,
            width: keys.width,
            positions: count(positions),
        };
        // SAFETY: the kernel reads the tiles' queries, and the keys in pages that their lists name, up to the position of
        // the last query; it raises scores of blocks up to there in the queries' lines. All are there: callers have
        // checked.
        unsafe { self.dispatch(Order::After, &SCORES, &keys.constants, &push, lines(n_units)) };
    }
}

impl Tile {
    /// Positions that its last query sees.
    fn end(&self, n_head: usize) -> usize {
        self.first_pos as usize + (self.in_part + self.n - 1) as usize / n_head + 1
    }
}

/// The queries of rows that see more blocks than they attend to.
fn tiles(index: &BlockIndexSpans<'_>, lists: &PageLists) -> Vec<Tile> {
    let n_head = index.layout.n_kv_head;
    let of_part = |(part, pages): (&AttendPart<'_>, &u32)| {
        let near = index.sizes.width().saturating_sub(part.first_pos).min(part.n_rows);
        let (first, end, pages) = (near * n_head, part.n_rows * n_head, *pages);
        let (of_part, first_pos) = (part.first_row * n_head, count(part.first_pos));
        (first..end).step_by(QUERIES).map(move |start| Tile {
            first: count(of_part + start),
            in_part: count(start),
            n: (end - start).min(QUERIES) as u32,
            first_pos,
            pages,
            line: 0,
        })
    };
    index.parts.iter().zip(&lists.starts).flat_map(of_part).collect()
}

/// The lines of scores of the tiles' queries, whose numbers the tiles get.
fn lines_of(tiles: &mut [Tile], n_head: usize, sizes: BlockSizes) -> Vec<Line> {
    let mut lines = Vec::new();
    for tile in tiles {
        tile.line = lines.len() as u32;
        lines.extend((0..tile.n).map(|i| {
            let pos = tile.first_pos as usize + (tile.in_part + i) as usize / n_head;
            let older = (pos / sizes.positions + 1 - sizes.newest) as u32;
            Line { n: older, row: tile.first + i, behind: older }
        }));
    }
    lines
}
