//! Rows and the pages of their sequences: what attention and indexes of every kind have in common.

use brigade_shapes::KV_PAGE;

use crate::carry::mapped;
use crate::page_id::PageId;

/// Consecutive positions of one sequence, and where its pages are.
#[derive(Clone, Copy, Debug)]
pub struct AttendPart<'a> {
    /// The sequence's pages: number `i` holds positions `i * KV_PAGE ..`.
    pub pages: &'a [PageId],
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
    #[inline]
    pub fn n_near(&self, width: usize) -> usize {
        width.saturating_sub(self.first_pos).min(self.n_rows)
    }

    /// The pages that positions up to that behind the last row lie in, from number `first` on.
    ///
    /// # Panics
    /// If the part has rows outside its pages, or one of these is none of `n_pages`.
    pub fn used(&self, op: &str, first: usize, n_pages: usize) -> &[PageId] {
        let end = self.first_pos + self.n_rows;
        let n = end.div_ceil(KV_PAGE);
        assert!(n <= self.pages.len(), "{op}: {end} positions in {} pages", self.pages.len());
        let used = &self.pages[first..n];
        let fits = used.iter().all(|page| (page.0 as usize) < n_pages);
        assert!(fits, "{op}: a page outside the pool");
        used
    }
}

/// Keys and values that rows write to their pages.
#[derive(Clone, Copy, Debug)]
pub struct KvRows<V> {
    /// Keys, `[n_rows, n_kv_head * head_dim_k]`.
    pub k: V,
    /// Values, `[n_rows, n_kv_head * head_dim_v]`; `None` where they are in the keys.
    pub v: Option<V>,
    /// Keys of an index, `[n_rows, index_dim]`, with gates behind them where they are pooled.
    pub index: Option<V>,
}

mapped!(KvRows { k: read, v: some_read, index: some_read });
