//! The index of MiniMax Sparse Attention. It scores blocks of positions for each head of keys and values of a row. The
//! head attends to the best of them and to the newest.
//!
//! A product of a query and a key is a sum in the order of their elements. A block's score is the greatest product of
//! its positions that the row sees, whatever the order in which they come. So no bit depends on how rows and pages
//! are spread over threads, or on what is in the ubatch besides. If blocks have the same score, the lower ones are
//! chosen.

use std::ops::Range;

use super::positions::{best_places, ordered};
use crate::compute::Compute;
use crate::tiles::attention::block_index::ProductTile;
use crate::tiles::attention::paged::{AttendPart, TILE_QUERIES};
use crate::tiles::out_rows::Rows;
use brigade_ops::PageId;
use brigade_ops::scan::check_disjoint_rows;
use brigade_shapes::BlockSizes;
use brigade_shapes::{KV_PAGE, KvLayout, ValuePlace};

/// The rows of a ubatch, and where the keys of their sequences are.
#[derive(Clone, Copy, Debug)]
pub struct BlockIndex<'a> {
    /// Shape of the pages, which have keys of the index. The index has a query for each of their heads.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: &'a [u8],
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Positions of a block, and blocks chosen for a row.
    pub sizes: BlockSizes,
}

/// Pages whose products a thread has at once.
const SPAN_PAGES: usize = 16;

/// Tiles whose scores are kept at once.
const TILES_AT_ONCE: usize = 16;

/// Queries `queries` of a part; query `i` is head `i % n_head` of row `i / n_head`.
struct Tile<'a> {
    part: &'a AttendPart<'a>,
    queries: Range<usize>,
}

impl Compute {
    /// The blocks that each head of each row attends to, ascending: `[n_rows, n_kv_head, per_row]`. A row that sees no
    /// more than `per_row` blocks attends to all, and its numbers are zeros. `None`: all rows do.
    ///
    /// `q` is `[n_rows, n_kv_head * index_dim]`, rows as the parts number them. Keys of the rows themselves must be in
    /// their pages.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie outside its
    /// blocks or the pool.
    pub fn choose_blocks(&self, index: &BlockIndex<'_>, q: &[f32]) -> Option<Vec<u32>> {
        let BlockSizes { positions, per_row, newest } = index.sizes;
        assert!(positions > 0 && per_row > 0 && newest <= per_row, "choose_blocks: sizes");
        let (n_head, dim) = (index.layout.n_kv_head, index.layout.index_dim);
        assert!(dim > 0, "choose_blocks: pages without keys of an index");
        assert_eq!(index.layout.values, ValuePlace::Apart, "choose_blocks: keys that are rows");
        let n_rows = q.len() / (n_head * dim);
        assert_eq!(q.len(), n_rows * n_head * dim, "choose_blocks: length of q");
        let rows = index.parts.iter().map(|part| (part.first_row, part.n_rows));
        check_disjoint_rows(rows, n_rows, "choose_blocks");
        let tiles: Vec<Tile<'_>> = index.parts.iter().flat_map(|part| index.tiles(part)).collect();
        if tiles.is_empty() {
            return None;
        }
        let mut chosen = vec![0; n_rows * n_head * per_row];
        let out = Rows::new(&mut chosen, per_row);
        for tiles in tiles.chunks(TILES_AT_ONCE) {
            let scores = self.block_scores(index, tiles, q);
            self.pool().run(tiles.len(), &|t, _| {
                let tile = &tiles[t];
                for (of_tile, i) in tile.queries.clone().enumerate() {
                    let place = tile.part.first_row * n_head + i;
                    // SAFETY: parts have no row in common, so that a query is in one tile, and the pool hands out
                    // each tile once.
                    let out = unsafe { out.rows(place..place + 1) };
                    let n_seen = index.sizes.n_seen(tile.part.first_pos + i / n_head);
                    scores.best(t, of_tile, n_seen, newest, out);
                }
            });
        }
        Some(chosen)
    }

    /// Scores of the blocks that the tiles' queries see.
    fn block_scores(&self, index: &BlockIndex<'_>, tiles: &[Tile<'_>], q: &[f32]) -> BlockScores {
        let n_pos = tiles.iter().map(|tile| tile.n_visible(index)).max().unwrap_or(0);
        let blocks = (SPAN_PAGES * KV_PAGE / index.sizes.positions).max(1);
        let n_spans = n_pos.div_ceil(blocks * index.sizes.positions);
        let mut scores = BlockScores {
            of_spans: vec![0; tiles.len() * n_spans * TILE_QUERIES * blocks],
            blocks,
            n_spans,
        };
        let of_spans = Rows::new(&mut scores.of_spans, TILE_QUERIES * blocks);
        self.pool().run(tiles.len() * n_spans, &|task, _| {
            // SAFETY: the pool hands out each span of each tile once.
            let out = unsafe { of_spans.rows(task..task + 1) };
            let first = task % n_spans * blocks;
            self.score_span(index, &tiles[task / n_spans], first..first + blocks, q, out);
        });
        scores
    }

    /// Scores of the blocks of one span for a tile's queries, `[TILE_QUERIES, blocks]`.
    fn score_span(
        &self,
        index: &BlockIndex<'_>,
        tile: &Tile<'_>,
        blocks: Range<usize>,
        q: &[f32],
        out: &mut [u32],
    ) {
        let (n_head, dim) = (index.layout.n_kv_head, index.layout.index_dim);
        let start = blocks.start * index.sizes.positions;
        let end = (blocks.end * index.sizes.positions).min(tile.n_visible(index));
        if start >= end {
            return;
        }
        let place = |i: usize| (tile.part.first_row * n_head + i) * dim;
        let queries: Vec<&[f32]> = tile.queries.clone().map(|i| &q[place(i)..][..dim]).collect();
        let of_page = |block: &PageId| index.layout.index(index.pool, block.0 as usize);
        let (keys, end_page) = (index.layout.of_index(), end.div_ceil(KV_PAGE));
        let mut products = Vec::new();
        for first in (start / KV_PAGE..end_page).step_by(SPAN_PAGES) {
            let pages = first..(first + SPAN_PAGES).min(end_page);
            let keys_of: Vec<&[u8]> = tile.part.pages[pages.clone()].iter().map(of_page).collect();
            products.resize(queries.len() * pages.len() * KV_PAGE, 0.0);
            (self.kernels().index_products)(&mut ProductTile {
                keys: &keys,
                pages: &keys_of,
                queries: &queries,
                out: &mut products,
            });
            let new = start.max(pages.start * KV_PAGE)..end.min(pages.end * KV_PAGE);
            let out = out.chunks_exact_mut(blocks.len()).zip(tile.queries.clone());
            for ((out, i), products) in out.zip(products.chunks_exact(pages.len() * KV_PAGE)) {
                let n_visible = tile.part.first_pos + i / n_head + 1;
                let new = new.start..new.end.min(n_visible);
                let products = &products[new.start - pages.start * KV_PAGE..];
                raise(out, blocks.start, index.sizes.positions, new, products);
            }
        }
    }
}

/// Raises the scores of blocks from `first_block` on, of `size` positions each, to the products at `positions`.
fn raise(
    scores: &mut [u32],
    first_block: usize,
    size: usize,
    positions: Range<usize>,
    mut products: &[f32],
) {
    let mut pos = positions.start;
    while pos < positions.end {
        let block = pos / size;
        let n = ((block + 1) * size).min(positions.end) - pos;
        let (of_block, rest) = products.split_at(n);
        let score = &mut scores[block - first_block];
        *score = of_block.iter().fold(*score, |best, x| best.max(rank(*x)));
        (pos, products) = (pos + n, rest);
    }
}

impl<'a> BlockIndex<'a> {
    /// The queries of a part's rows that see more blocks than they attend to.
    fn tiles(&self, part: &'a AttendPart<'a>) -> impl Iterator<Item = Tile<'a>> + use<'a> {
        let n_head = self.layout.n_kv_head;
        let (first, end) = (part.n_near(self.sizes.width()) * n_head, part.n_rows * n_head);
        let tile =
            move |start: usize| Tile { part, queries: start..(start + TILE_QUERIES).min(end) };
        (first..end).step_by(TILE_QUERIES).map(tile)
    }
}

impl Tile<'_> {
    /// Positions that its last query sees.
    fn n_visible(&self, index: &BlockIndex<'_>) -> usize {
        self.part.first_pos + (self.queries.end - 1) / index.layout.n_kv_head + 1
    }
}

/// Scores of blocks, as [`rank`] makes them; 0 of those that a query does not see.
struct BlockScores {
    /// `[n_tiles, n_spans, TILE_QUERIES, blocks]`.
    of_spans: Vec<u32>,
    /// Number of blocks in a span.
    blocks: usize,
    n_spans: usize,
}

impl BlockScores {
    /// The best of the `n_seen` blocks that query `query` of tile `tile` sees, and the `newest`: as many as `out` takes.
    fn best(&self, tile: usize, query: usize, n_seen: usize, newest: usize, out: &mut [u32]) {
        let (older, blocks) = (n_seen - newest, self.blocks);
        let span = |i: usize| {
            &self.of_spans[((tile * self.n_spans + i) * TILE_QUERIES + query) * blocks..]
        };
        let scores = (0..self.n_spans).flat_map(|i| &span(i)[..blocks]).take(older);
        let n = out.len() - newest;
        let newest = older as u32..n_seen as u32;
        let chosen = best_places(scores.copied(), n).into_iter().chain(newest);
        out.iter_mut().zip(chosen).for_each(|(out, block)| *out = block);
    }
}

/// A number that is ordered as products are: 0 and -0 are the same, and what is no number is the least.
fn rank(product: f32) -> u32 {
    ordered(product.max(f32::NEG_INFINITY) + 0.0)
}
