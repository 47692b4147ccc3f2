//! Memory for the pages of a layer with a window: only pages that a row to come can see have some.
//!
//! The coordinator hands out pages for whole sequences, and all layers know them by the same ids. A layer with a window
//! gives a page a place in memory when it is first written, and takes the place back when no row to come sees the page.
//! No other code has to know: a page that no row sees is never read.
//!
//! There can be as many places as pages, so that one is always to be had. The lowest free one goes first, and memory
//! that was never touched takes none. So a layer uses about as much as [`pages_kept`](crate::spec::pages_kept) says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Sequence;
use crate::batch::PageId;
use crate::kernels::{KV_PAGE, Window};

/// The pages of a sequence of `len` positions that a row behind them sees, or one that was the first of some at `pos`.
pub(super) fn visible(window: Window, pos: u32, len: u32) -> std::ops::Range<usize> {
    let end = (len as usize).div_ceil(KV_PAGE);
    (window.first_visible(pos as usize) / KV_PAGE).min(end)..end
}

/// The places of a layer's pages.
pub(super) struct Places {
    pub(super) window: Window,
    /// Place of each page.
    of_page: Vec<Option<u32>>,
    /// Places that had a page and have none now.
    free: BinaryHeap<Reverse<u32>>,
    /// Places that ever had a page: all below this.
    n_touched: u32,
}

impl Places {
    pub(super) fn new(window: Window, n_blocks: u32) -> Self {
        let of_page = vec![None; n_blocks as usize];
        Self { window, of_page, free: BinaryHeap::new(), n_touched: 0 }
    }

    /// Place of a page; `None`: no row to come sees it.
    pub(super) fn get(&self, page: PageId) -> Option<PageId> {
        self.of_page[page.0 as usize].map(PageId)
    }

    /// Place of a page, which gets one if it has none.
    pub(super) fn take(&mut self, page: PageId) -> PageId {
        let place = &mut self.of_page[page.0 as usize];
        PageId(*place.get_or_insert_with(|| match self.free.pop() {
            Some(Reverse(free)) => free,
            None => {
                self.n_touched += 1;
                self.n_touched - 1
            }
        }))
    }

    /// Whether [`Self::take`] would touch memory for a page that was not touched yet.
    pub(super) fn would_touch(&self, page: PageId) -> bool {
        self.free.is_empty() && self.get(page).is_none()
    }

    /// Takes the places back of all pages but those that rows to come see: `open` has each sequence with the position of
    /// the first of them.
    pub(super) fn keep_visible<'a>(&mut self, open: impl Iterator<Item = (u32, &'a Sequence)>) {
        let mut seen = vec![false; self.of_page.len()];
        for (pos, sequence) in open {
            for page in &sequence.blocks[visible(self.window, pos, sequence.len)] {
                seen[page.0 as usize] = true;
            }
        }
        for (place, _) in self.of_page.iter_mut().zip(seen).filter(|(_, seen)| !seen) {
            self.free.extend(place.take().map(Reverse));
        }
    }

    /// Takes all places back.
    pub(super) fn clear(&mut self) {
        self.keep_visible(std::iter::empty());
    }

    /// Places that ever had a page.
    #[cfg(test)]
    pub(super) fn n_touched(&self) -> u32 {
        self.n_touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(len: u32, blocks: &[u32]) -> Sequence {
        let blocks = blocks.iter().map(|&b| PageId(b)).collect();
        let plane = crate::batch::SlotId(0);
        Sequence { len, sure: len, plane, blocks, sampler: None, adapters: [].into() }
    }

    #[test]
    fn only_what_a_row_to_come_sees_keeps_its_place() {
        let mut places = Places::new(Window::Sliding(65), 8);
        let all = sequence(192, &[5, 6, 7]);
        assert_eq!([5, 6, 7].map(|b| places.take(PageId(b)).0), [0, 1, 2]);
        // The row at position 192 sees 128 and those behind it; one at 191 sees 127 too.
        places.keep_visible([(191, &all)].into_iter());
        assert_eq!([5, 6, 7].map(|b| places.get(PageId(b)).map(|p| p.0)), [None, Some(1), Some(2)]);
        places.keep_visible([(192, &all)].into_iter());
        assert_eq!([5, 6, 7].map(|b| places.get(PageId(b)).map(|p| p.0)), [None, None, Some(2)]);
        assert!(!places.would_touch(PageId(1)));
        // The lowest free ones come first, and what has a place keeps it.
        assert_eq!([1, 7, 2, 3].map(|b| places.take(PageId(b)).0), [0, 2, 1, 3]);
        assert!(places.would_touch(PageId(0)) && !places.would_touch(PageId(3)));
        places.clear();
        assert_eq!((places.take(PageId(6)).0, places.n_touched()), (0, 4));
    }

    #[test]
    fn a_page_that_two_sequences_share_stays_while_one_sees_it() {
        let mut places = Places::new(Window::Sliding(64), 8);
        let (short, long) = (sequence(64, &[0]), sequence(300, &[0, 1, 2, 3, 4]));
        for page in 0..5 {
            places.take(PageId(page));
        }
        places.keep_visible([(64, &short), (300, &long)].into_iter());
        let has = |places: &Places| (0..5).filter(|&b| places.get(PageId(b)).is_some()).collect();
        let kept: Vec<u32> = has(&places);
        assert_eq!(kept, [0, 3, 4]);
        places.keep_visible([(300, &long)].into_iter());
        let kept: Vec<u32> = has(&places);
        assert_eq!(kept, [3, 4]);
    }

    #[test]
    fn chunks_begin_afresh() {
        assert_eq!(visible(Window::Chunk(128), 127, 127), 0..2);
        assert_eq!(visible(Window::Chunk(128), 128, 128), 2..2);
        assert_eq!(visible(Window::Chunk(128), 130, 200), 2..4);
        assert_eq!(visible(Window::Sliding(1), 0, 0), 0..0);
    }
}
