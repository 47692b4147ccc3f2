//! Entries, which stand for several positions each: writing them, choosing among them, and attention to them.

use brigade_gpu::{self as there, ToGpu};

use super::{Device, Lists, Memory, Rows, Scratch, Values, with_room};
use crate::kernels::{
    self, AttendPart, Entries, EntryIndex, EntryLayout, EntryRow, IndexedRow, Vector,
};
use crate::ops::Carry;

/// An index of entries, and the rows that it is asked for.
#[derive(Clone, Copy)]
pub struct EntryIndexOver<'a> {
    /// Shape of the pages.
    pub layout: &'a EntryLayout,
    /// The layer's pages of entries one after the other.
    pub pool: &'a Memory<u8>,
    /// The rows.
    pub parts: &'a [AttendPart<'a>],
    /// Entries that a row attends to at most.
    pub per_row: usize,
}

/// What rows attend to: entries, and the last positions before them.
#[derive(Clone, Copy)]
pub struct EntriesOver<'a> {
    /// Shape of the pages. Its type is that in which near keys are attended to as well.
    pub layout: &'a EntryLayout,
    /// The layer's pages of entries one after the other; `None`: there are no entries.
    pub pool: Option<&'a Memory<u8>>,
    /// The rows.
    pub parts: &'a [AttendPart<'a>],
    /// How many entries a row attends to that sees more, and which, `[n_far, per_row]`: of such rows in their order. `None`:
    /// all rows attend to all they see.
    pub chosen: Option<(usize, &'a Lists)>,
    /// The last positions that a row sees beside entries, its own included.
    pub window: usize,
    /// Keys of the positions that rows see of their windows, part by part, `[_, width]`: those before a part's first row,
    /// then those of its rows.
    pub near: &'a Rows,
    /// Factor on the scores.
    pub scale: f32,
    /// For each head a score without a value.
    pub sinks: &'a Vector,
}

impl Device {
    /// The entries of the rows that see more than `per_row`, `[n_far, per_row]`, rows in their order
    /// ([`Compute::choose_entries`](crate::kernels::Compute::choose_entries)). `q` is `[n_rows, n_head * index_dim]`,
    /// `weights` is `[n_rows, n_head]`.
    ///
    /// # Panics
    /// If shapes disagree, an entry lies outside its sequence's pages or the pool, or a GPU has no memory for it.
    pub fn choose_entries(&self, over: &EntryIndexOver<'_>, q: &Rows, weights: &Rows) -> Lists {
        let EntryIndexOver { layout, pool, parts, per_row } = *over;
        let n_head = weights.cols();
        let far: Vec<IndexedRow<'_>> =
            parts.iter().flat_map(|part| far_rows(layout, part, per_row)).collect();
        if far.is_empty() {
            return Lists::on(Vec::new());
        }
        if let (Some(gpu), Some(pool)) = (&self.gpu, pool.span()) {
            let index = there::EntryIndexSpans { layout, pool, parts, n_head, per_row };
            let lists = Lists::filled(gpu, far.len() * per_row, |out| {
                let (q, weights) = (q.on_gpu(gpu), weights.on_gpu(gpu));
                with_room(
                    "scores of entries",
                    gpu.choose_entries(&index, q, weights, out.span_mut()),
                );
                true
            });
            return lists.expect("it was filled");
        }
        let index = EntryIndex { layout, pool, rows: &far, n_head, per_row };
        Lists::on(self.compute.choose_entries(&index, q, weights).concat())
    }

    /// Attention to entries and to the positions right before rows
    /// ([`Compute::attend_entries`](crate::kernels::Compute::attend_entries)): `q` and `out` are `[n_rows, n_head * width]`.
    ///
    /// # Panics
    /// If shapes disagree, an entry lies outside its sequence's pages or the pool, or a GPU has no memory for it.
    pub fn attend_entries(
        &self,
        over: &EntriesOver<'_>,
        scratch: &Scratch,
        q: &Rows,
        out: &mut Rows,
    ) {
        let n_head = q.cols() / over.layout.width;
        let pool = over.pool.map(|pool| pool.span());
        if let (None | Some(Some(_)), Some((gpu, out))) = (pool, self.gpu_of(out)) {
            let attend = there::AttendEntries {
                layout: over.layout,
                pool: pool.flatten(),
                parts: over.parts,
                chosen: over.chosen.map(|(per_row, lists)| there::ChosenEntries {
                    per_row,
                    lists: ToGpu(gpu).read(lists.view()),
                }),
                window: over.window,
                near: over.near.on_gpu(gpu),
                n_head,
                scale: over.scale,
                sinks: Some(over.sinks),
            };
            let attended = gpu.attend_entries(&attend, q.on_gpu(gpu), out);
            return with_room("attention to entries", attended);
        }
        let attend = kernels::AttendEntries {
            layout: over.layout,
            pool: over.pool.map_or(&[], |pool| &pool[..]),
            rows: &over.rows(),
            n_head,
            scale: over.scale,
            sinks: Some(over.sinks),
        };
        let mut room = scratch.take(1, attend.room_len());
        self.compute.attend_entries(&attend, &mut room, q, out);
    }
}

impl<'a> EntriesOver<'a> {
    /// What each row attends to.
    fn rows(&self) -> Vec<EntryRow<'a>> {
        let width = self.layout.width;
        let near: &'a [f32] = self.near;
        let lists = self.chosen.map_or(&[][..], |(_, lists)| lists.on_host());
        let per_row = self.chosen.map_or(0, |(per_row, _)| per_row);
        let mut lists = lists.chunks_exact(per_row.max(1));
        let mut rows = Vec::new();
        let mut start = 0;
        for part in self.parts {
            let n_before = (self.window - 1).min(part.first_pos);
            for i in 0..part.n_rows {
                let pos = part.first_pos + i;
                let n_seen = self.pool.map_or(0, |_| self.layout.n_entries(pos + 1));
                let entries = match self.chosen {
                    Some(_) if n_seen > per_row => {
                        Entries::Chosen(lists.next().expect("a list for each such row"))
                    }
                    _ => Entries::First(n_seen),
                };
                let end = start + n_before + i + 1;
                let near = &near[(end - self.window.min(pos + 1)) * width..end * width];
                rows.push(EntryRow { blocks: part.pages, entries, near });
            }
            start += n_before + part.n_rows;
        }
        rows
    }
}

/// The rows of a part that see more entries than they attend to.
fn far_rows<'a>(
    layout: &EntryLayout,
    part: &AttendPart<'a>,
    per_row: usize,
) -> Vec<IndexedRow<'a>> {
    let AttendPart { pages: blocks, first_pos, n_rows, first_row } = *part;
    let row = |i| {
        let n_seen = layout.n_entries(first_pos + i + 1);
        (n_seen > per_row).then_some(IndexedRow { row: first_row + i, blocks, n_seen })
    };
    (0..n_rows).filter_map(row).collect()
}
