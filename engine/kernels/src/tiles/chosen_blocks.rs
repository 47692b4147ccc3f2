//! Attention to blocks of positions: what is read of a sequence is the pages that chosen blocks lie in, where they lie. In
//! a page that holds other positions too, those have no weight. So what a row costs does not grow with its context.

use brigade_shapes::BlockSizes;
use brigade_shapes::KV_PAGE;

/// Which blocks rows attend to.
#[derive(Clone, Copy, Debug)]
pub struct ChosenBlocks<'a> {
    /// Of the blocks, and how many a row attends to at most.
    pub sizes: BlockSizes,
    /// Rows that see no more positions than this attend to all they see.
    pub n_near: usize,
    /// `[n_rows, n_kv_head, per_row]`: the blocks of each head of keys and values, ascending, none twice. Where a row
    /// attends to fewer, [`NO_BLOCK`] stands behind the last.
    pub blocks: &'a [u32],
}

/// Stands for no block.
pub const NO_BLOCK: u32 = u32::MAX;

/// What a query sees of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenPage {
    /// Which of the sequence.
    pub page: usize,
    /// Bit `i`: whether position `i` of the page is among them.
    pub positions: u64,
}

impl SeenPage {
    /// A page of which no position is left out.
    #[inline]
    pub fn whole(page: usize) -> Self {
        Self { page, positions: u64::MAX }
    }
}

impl ChosenBlocks<'_> {
    /// Appends the pages that `blocks` lie in before position `end`, ascending.
    ///
    /// # Panics
    /// If the blocks do not ascend, or one lies behind `end`.
    #[inline]
    pub fn pages(&self, blocks: &[u32], end: usize, pages: &mut Vec<SeenPage>) {
        let first = pages.len();
        for block in blocks.iter().take_while(|block| **block != NO_BLOCK) {
            let start = *block as usize * self.sizes.positions;
            let end = (start + self.sizes.positions).min(end);
            assert!(start < end, "attend: block {block} lies behind its row");
            for page in start / KV_PAGE..end.div_ceil(KV_PAGE) {
                let from = start.saturating_sub(page * KV_PAGE);
                let n = (end - page * KV_PAGE).min(KV_PAGE) - from;
                let positions = u64::MAX >> (KV_PAGE - n) << from;
                match pages[first..].last_mut().filter(|last| last.page >= page) {
                    Some(last) => {
                        assert!(
                            last.page == page && last.positions & positions == 0,
                            "attend: blocks {blocks:?} are out of order"
                        );
                        last.positions |= positions;
                    }
                    None => pages.push(SeenPage { page, positions }),
                }
            }
        }
    }
}
