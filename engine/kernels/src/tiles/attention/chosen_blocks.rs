//! Attention to blocks of positions: what is read of a sequence is the pages that chosen blocks lie in, where they lie. In
//! a page that holds other positions too, those have no weight. So what a row costs does not grow with its context.

pub use brigade_ops::NO_BLOCK;
use brigade_shapes::KV_PAGE;

/// Blocks that rows attend to, in the host's memory.
pub type ChosenBlocks<'a> = brigade_ops::ChosenBlocks<&'a [u32]>;

/// The positions of a page that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenPage {
    /// Number of the page within the sequence.
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

/// Appends the pages that `blocks` of so many positions lie in before position `end`, ascending.
///
/// # Panics
/// If the blocks do not ascend, or one lies behind `end`.
#[inline]
pub fn seen_pages(positions: usize, blocks: &[u32], end: usize, pages: &mut Vec<SeenPage>) {
    let first = pages.len();
    for block in blocks.iter().take_while(|block| **block != NO_BLOCK) {
        let start = *block as usize * positions;
        let end = (start + positions).min(end);
        assert!(start < end, "attend: block {block} lies behind its row");
        for page in start / KV_PAGE..end.div_ceil(KV_PAGE) {
            let from = start.saturating_sub(page * KV_PAGE);
            let n = (end - page * KV_PAGE).min(KV_PAGE) - from;
            let seen = u64::MAX >> (KV_PAGE - n) << from;
            match pages[first..].last_mut().filter(|last| last.page >= page) {
                Some(last) => {
                    assert!(
                        last.page == page && last.positions & seen == 0,
                        "attend: blocks {blocks:?} are out of order"
                    );
                    last.positions |= seen;
                }
                None => pages.push(SeenPage { page, positions: seen }),
            }
        }
    }
}
