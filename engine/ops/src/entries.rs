//! Entries, which stand for several positions each: a key that is its value too, and a key of an index. Writing them, choosing among
//! them, and attention to them.

use brigade_shapes::EntryLayout;

use crate::carry::{carried, mapped};
use crate::page_id::PageId;
use crate::pages::AttendPart;
use crate::place::Place;
use crate::scan::check_disjoint_rows;
use crate::vector::Vector;

/// Entries of a sequence that became complete.
#[derive(Clone, Copy, Debug)]
pub struct NewEntries<'a> {
    /// Pages of the sequence.
    pub pages: &'a [PageId],
    /// Number of the first entry; the others follow.
    pub first: usize,
    /// Number of entries.
    pub n: usize,
}

/// Writes entries to their pages, rounded to the type of `layout`: of the sequences of `new` one after the other.
pub struct WriteEntries<'a, P: Place> {
    /// Shape of the pages.
    pub layout: &'a EntryLayout,
    /// The layer's pages of entries one after the other, starting on a multiple of 64 bytes.
    pub pool: P::Write<'a, u8>,
    /// Sequences and their new entries, in the order of `keys`.
    pub new: &'a [NewEntries<'a>],
    /// `[n, width]`.
    pub keys: P::Read<'a, f32>,
    /// `[n, index_dim]`; `None` without an index.
    pub index: Option<P::Read<'a, f32>>,
}

/// The entries that each row attends to which sees more than `per_row`, ascending: those with the greatest
/// `Σ_h weights[h] * max(q[h] · key, 0)`, of equal ones the earlier. Entries that the rows complete must be in their pages.
pub struct ChooseEntries<'a, P: Place> {
    /// Shape of the pages, whose entries have keys of an index.
    pub layout: &'a EntryLayout,
    /// The layer's pages of entries one after the other, starting on a multiple of 64 bytes.
    pub pool: P::Read<'a, u8>,
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Heads of the index; they share its keys.
    pub n_head: usize,
    /// Entries that a row attends to at most.
    pub per_row: usize,
    /// `[n_rows, n_head * index_dim]`.
    pub q: P::Read<'a, f32>,
    /// `[n_rows, n_head]`: weight of each head's score.
    pub weights: P::Read<'a, f32>,
    /// `[n_far, per_row]`: of the rows that see more ([`n_far`]), in their order.
    pub out: P::Write<'a, u32>,
}

/// Attention to entries and to the positions right before rows, side by side in one softmax. Entries that the rows complete must be
/// in their pages.
pub struct AttendEntries<'a, P: Place> {
    /// Shape of the pages. Its type is that in which near keys are attended to as well.
    pub layout: &'a EntryLayout,
    /// The layer's pages of entries one after the other, starting on a multiple of 64 bytes; `None`: there are no entries.
    pub pool: Option<P::Read<'a, u8>>,
    /// The rows that attend, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Entries that rows attend to; `None`: all they see.
    pub chosen: Option<ChosenEntries<P::Read<'a, u32>>>,
    /// The last positions that a row sees beside entries, its own included; at least 1.
    pub window: usize,
    /// Keys of the positions that rows see of their windows, part by part, `[_, width]`: those before a part's first row
    /// ([`n_before`]), then those of its rows.
    pub near: P::Read<'a, f32>,
    /// Query heads; they share the keys, which are the values too.
    pub n_head: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// For each head a score without a value.
    pub sinks: Option<&'a Vector>,
    /// `[n_rows, n_head * width]`.
    pub q: P::Read<'a, f32>,
    /// `[n_rows, n_head * width]`.
    pub out: P::Write<'a, f32>,
}

/// The entries that rows attend to which see more.
#[derive(Clone, Copy, Debug)]
pub struct ChosenEntries<L> {
    /// Number of entries that are chosen for each such row.
    pub per_row: usize,
    /// `[n_far, per_row]`: ascending, of the rows that see more ([`n_far`]), in their order.
    pub lists: L,
}

carried!(WriteEntries { layout: same, pool: write, new: same, keys: read, index: some_read });
carried!(ChooseEntries {
    layout: same,
    pool: read,
    parts: same,
    n_head: same,
    per_row: same,
    q: read,
    weights: read,
    out: write,
});
carried!(AttendEntries {
    layout: same,
    pool: some_read,
    parts: same,
    chosen: some_rows,
    window: same,
    near: read,
    n_head: same,
    scale: same,
    sinks: same,
    q: read,
    out: write,
});
mapped!(ChosenEntries { per_row: same, lists: read });

/// Rows of `parts` that see more than `per_row` entries.
///
/// # Panics
/// If entries stand for no positions.
pub fn n_far(layout: &EntryLayout, parts: &[AttendPart<'_>], per_row: usize) -> usize {
    assert!(layout.every > 0, "entries of no positions");
    let near = per_row.saturating_add(1).saturating_mul(layout.every) - 1;
    parts.iter().map(|part| part.n_rows - part.n_near(near)).sum()
}

/// Positions before a part that its first row sees of its window.
pub fn n_before(part: &AttendPart<'_>, window: usize) -> usize {
    (window - 1).min(part.first_pos)
}

impl<P: Place> WriteEntries<'_, P> {
    /// Panics if shapes disagree. Gives the number of entries.
    pub fn check(&self) -> usize {
        let n = self.new.iter().map(|new| new.n).sum::<usize>();
        assert_eq!(P::len(&self.keys), n * self.layout.width, "write_entries: keys");
        let of_index = self.index.as_ref().map_or(0, P::len);
        assert_eq!(of_index, n * self.layout.index_dim, "write_entries: keys of an index");
        n
    }
}

impl<P: Place> ChooseEntries<'_, P> {
    /// Panics if shapes disagree, or parts share a row. Gives the number of rows.
    pub fn check(&self) -> usize {
        let Self { layout, parts, n_head, per_row, .. } = self;
        let dim = layout.index_dim;
        let has_sizes = *n_head > 0 && dim > 0 && *per_row > 0;
        assert!(has_sizes, "choose_entries: an index without sizes");
        let n = P::len(&self.weights);
        let n_rows = n / n_head;
        assert_eq!(n, n_rows * n_head, "choose_entries: weights");
        assert_eq!(P::len(&self.q), n * dim, "choose_entries: length of q");
        let n_out = n_far(layout, parts, *per_row) * per_row;
        assert_eq!(P::len_mut(&self.out), n_out, "choose_entries: length of out");
        check_disjoint_rows(rows_of(parts), n_rows, "choose_entries");
        n_rows
    }
}

impl<P: Place> AttendEntries<'_, P> {
    /// Panics if shapes disagree, parts share a row, or there are not as many near keys or lists as there should be. Gives the number
    /// of rows.
    pub fn check(&self) -> usize {
        let Self { layout, parts, n_head, window, .. } = self;
        let of_row = n_head * layout.width;
        assert!(*window > 0 && of_row > 0, "attend_entries: rows without keys");
        let n = P::len(&self.q);
        let n_rows = n / of_row;
        assert_eq!(n, n_rows * of_row, "attend_entries: length of q");
        assert_eq!(P::len_mut(&self.out), n, "attend_entries: length of out");
        check_disjoint_rows(rows_of(parts), n_rows, "attend_entries");
        let n_near = parts.iter().map(|part| n_before(part, *window) + part.n_rows).sum::<usize>();
        assert_eq!(P::len(&self.near), n_near * layout.width, "attend_entries: near keys");
        if let Some(ChosenEntries { per_row, lists }) = &self.chosen {
            let n_far = self.pool.map_or(0, |_| n_far(layout, parts, *per_row));
            assert_eq!(P::len(lists), n_far * per_row, "attend_entries: chosen entries");
        }
        n_rows
    }
}

/// The first row of each part, and how many it has.
fn rows_of(parts: &[AttendPart<'_>]) -> impl Iterator<Item = (usize, usize)> {
    parts.iter().map(|part| (part.first_row, part.n_rows))
}
