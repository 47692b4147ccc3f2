//! KV pages with their reference counts: running sequences and kept states hold them.
//!
//! The same page numbers are valid on every stage, so there is one pool for all. A page whose positions are all
//! computed is never written again. So any number of sequences that begin alike may hold it, and it is free when none
//! does. Another sequence may take it at once, because each stage runs ubatches in order.

use std::collections::BTreeSet;

use brigade_engine::batch::PageId;

/// Holder of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A running sequence: it gives the page back when it ends.
    Running,
    /// A kept sequence: it gives the page back as soon as another needs it.
    Kept,
}

#[derive(Clone, Copy, Debug, Default)]
struct Holds {
    running: u32,
    kept: u32,
}

impl Holds {
    fn of(&mut self, holder: Holder) -> &mut u32 {
        match holder {
            Holder::Running => &mut self.running,
            Holder::Kept => &mut self.kept,
        }
    }

    fn any(self) -> bool {
        self.running + self.kept > 0
    }
}

/// All pages of a line.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Free ids; the last one is taken next.
    free: Vec<u32>,
    holds: Vec<Holds>,
    /// Pages that some running sequence holds.
    n_running: u32,
}

impl Pages {
    /// `total` free pages; the lowest are taken first, but those of `last` after all others.
    pub fn new(total: u32, last: &[PageId]) -> Self {
        let holds = vec![Holds::default(); total as usize];
        let last: BTreeSet<u32> = last.iter().map(|block| block.0).filter(|b| *b < total).collect();
        let others = (0..total).rev().filter(|block| !last.contains(block));
        let free = last.iter().rev().copied().chain(others).collect();
        Self { free, holds, n_running: 0 }
    }

    /// Takes `n` pages, or none if fewer are free: of `wanted`, in its order, those that are, in place of others.
    pub fn take_like(&mut self, wanted: &[PageId], n: u32, holder: Holder) -> Option<Vec<PageId>> {
        if self.n_free() < n {
            return None;
        }
        let mut is_free = vec![false; self.holds.len()];
        self.free.iter().for_each(|block| is_free[*block as usize] = true);
        let mut place = |block: &PageId| {
            let free = is_free.get_mut(block.0 as usize)?;
            std::mem::take(free).then_some(*block)
        };
        let same: Vec<Option<PageId>> = wanted.iter().take(n as usize).map(&mut place).collect();
        let taken: BTreeSet<u32> = same.iter().flatten().map(|block| block.0).collect();
        self.free.retain(|block| !taken.contains(block));
        taken.iter().for_each(|block| self.add(PageId(*block), holder));
        let others = self.take(n - taken.len() as u32, holder)?;
        let mut others = others.into_iter();
        let missing = n as usize - same.len();
        let all = same.into_iter().chain(std::iter::repeat_n(None, missing));
        all.map(|block| block.or_else(|| others.next())).collect()
    }

    pub fn total(&self) -> u32 {
        self.holds.len() as u32
    }

    pub fn n_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Pages that running sequences hold, each counted once.
    pub fn n_running(&self) -> u32 {
        self.n_running
    }

    /// How often a page is held.
    pub fn n_holders(&self, id: PageId) -> u32 {
        let holds = self.holds[id.0 as usize];
        holds.running + holds.kept
    }

    /// How many of these no running sequence holds.
    pub fn n_kept_of(&self, ids: &[PageId]) -> u32 {
        ids.iter().filter(|id| self.holds[id.0 as usize].running == 0).count() as u32
    }

    /// Pages that are held for kept sequences alone.
    pub fn n_kept_only(&self) -> u32 {
        self.total() - self.n_free() - self.n_running
    }

    /// Takes `n` pages, or none if fewer are free.
    pub fn take(&mut self, n: u32, holder: Holder) -> Option<Vec<PageId>> {
        let rest = self.free.len().checked_sub(n as usize)?;
        let ids: Vec<PageId> = self.free.drain(rest..).rev().map(PageId).collect();
        for &id in &ids {
            self.add(id, holder);
        }
        Some(ids)
    }

    /// Adds a holder to a page that is held already.
    ///
    /// # Panics
    /// If the page is free: its content could change at any time.
    pub fn share(&mut self, id: PageId, holder: Holder) {
        assert!(self.holds[id.0 as usize].any(), "page {} was shared but is free", id.0);
        self.add(id, holder);
    }

    /// Removes a holder of a page.
    ///
    /// # Panics
    /// If it has no such holder: two owners would then share a page and corrupt each other.
    pub fn give_back(&mut self, id: PageId, holder: Holder) {
        let holds = &mut self.holds[id.0 as usize];
        let left = holds.of(holder).checked_sub(1);
        *holds.of(holder) = left.expect("a page was given back twice");
        if holder == Holder::Running && left == Some(0) {
            self.n_running -= 1;
        }
        if !holds.any() {
            self.free.push(id.0);
        }
    }

    fn add(&mut self, id: PageId, holder: Holder) {
        let count = self.holds[id.0 as usize].of(holder);
        *count += 1;
        if holder == Holder::Running && *count == 1 {
            self.n_running += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> Vec<PageId> {
        ids.iter().copied().map(PageId).collect()
    }

    fn counts(pages: &Pages) -> (u32, u32, u32) {
        (pages.n_free(), pages.n_running(), pages.n_kept_only())
    }

    #[test]
    fn takes_all_or_nothing_and_counts() {
        let mut pages = Pages::new(4, &[]);
        assert_eq!(pages.take(3, Holder::Running), Some(ids(&[0, 1, 2])));
        assert_eq!(pages.take(2, Holder::Running), None);
        assert_eq!(counts(&pages), (1, 3, 0));
        pages.give_back(PageId(1), Holder::Running);
        assert_eq!(pages.take(2, Holder::Kept), Some(ids(&[1, 3])));
        assert_eq!(counts(&pages), (0, 2, 2));
        assert_eq!(pages.take(0, Holder::Running), Some(vec![]));
    }

    #[test]
    fn pages_that_somebody_had_are_taken_again_where_they_are_free() {
        let mut pages = Pages::new(8, &ids(&[1, 0, 9]));
        assert_eq!(pages.take(2, Holder::Running), Some(ids(&[2, 3])));
        let like = pages.take_like(&ids(&[1, 2, 9, 0]), 5, Holder::Running);
        assert_eq!(like, Some(ids(&[1, 4, 5, 0, 6])));
        assert_eq!(counts(&pages), (1, 7, 0));
        assert_eq!(pages.take_like(&ids(&[7]), 2, Holder::Running), None);
        assert_eq!(pages.take_like(&ids(&[7, 6, 5]), 1, Holder::Kept), Some(ids(&[7])));
    }

    #[test]
    fn a_shared_page_is_free_when_its_last_holder_lets_go() {
        let mut pages = Pages::new(1, &[]);
        let page = pages.take(1, Holder::Running).unwrap()[0];
        pages.share(page, Holder::Kept);
        pages.share(page, Holder::Running);
        assert_eq!(counts(&pages), (0, 1, 0));
        pages.give_back(page, Holder::Running);
        pages.give_back(page, Holder::Running);
        assert_eq!(counts(&pages), (0, 0, 1));
        pages.give_back(page, Holder::Kept);
        assert_eq!(counts(&pages), (1, 0, 0));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_double_release_is_a_bug() {
        let mut pages = Pages::new(1, &[]);
        pages.take(1, Holder::Kept);
        pages.give_back(PageId(0), Holder::Running);
    }
}
