//! Attention to blocks of positions: what is read of a sequence is the pages that chosen blocks lie in, where they lie. In
//! a page that holds other positions too, those have no weight. So what a row costs does not grow with its context.

use super::block_index::BlockSizes;
use super::kv::KV_PAGE;

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
pub(in crate::kernels) struct SeenPage {
    pub(in crate::kernels) page: usize,
    /// Bit `i`: whether position `i` of the page is among them.
    pub(in crate::kernels) positions: u64,
}

impl SeenPage {
    /// A page of which no position is left out.
    pub(in crate::kernels) fn whole(page: usize) -> Self {
        Self { page, positions: u64::MAX }
    }
}

impl ChosenBlocks<'_> {
    /// Appends the pages that `blocks` lie in before position `end`, ascending.
    pub(in crate::kernels) fn pages(&self, blocks: &[u32], end: usize, pages: &mut Vec<SeenPage>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(positions: usize, blocks: &[u32], end: usize) -> Vec<(usize, u64)> {
        let sizes = BlockSizes { positions, per_row: blocks.len(), newest: 0 };
        let mut pages = vec![SeenPage::whole(9)];
        ChosenBlocks { sizes, n_near: 0, blocks: &[] }.pages(blocks, end, &mut pages);
        assert_eq!(pages.remove(0), SeenPage::whole(9));
        pages.into_iter().map(|seen| (seen.page, seen.positions)).collect()
    }

    #[test]
    fn pages_hold_the_positions_of_their_blocks() {
        let all = u64::MAX;
        assert_eq!(pages(64, &[0, 2], 1000), [(0, all), (2, all)]);
        assert_eq!(pages(128, &[1, 3], 1000), [(2, all), (3, all), (6, all), (7, all)]);
        assert_eq!(pages(8, &[0, 1, 7, 9], 1000), [(0, 0xff00_0000_0000_ffff), (1, 0xff00)]);
        // Blocks over the ends of pages, two of them in one page.
        assert_eq!(pages(48, &[1, 2], 1000), [(0, all << 48), (1, all), (2, 0xffff)]);
    }

    #[test]
    fn nothing_is_read_behind_the_last_block() {
        assert_eq!(pages(8, &[1, NO_BLOCK, NO_BLOCK], 1000), [(0, 0xff00)]);
    }

    #[test]
    fn the_last_block_ends_with_its_row() {
        assert_eq!(pages(128, &[0, 1], 130), [(0, u64::MAX), (1, u64::MAX), (2, 3)]);
        assert_eq!(pages(128, &[1], 192), [(2, u64::MAX)]);
        assert_eq!(pages(8, &[3], 25), [(0, 1 << 24)]);
    }
}
