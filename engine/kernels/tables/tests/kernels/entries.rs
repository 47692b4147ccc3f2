//! Entries: how they are kept, chosen and attended to, against f64, and bit equality on all tables and thread counts.

use super::paged::Line;
use super::{Rng, close, same_bits, same_bits_everywhere};
use crate::reference::attention::{Variant, attend as plain_attend};
use crate::reference::index::score;
use crate::reference::kv::kept;
use brigade_kernels::{
    AttendEntries, AttendPart, ChooseEntries, ChosenEntries, Compute, EntryLayout, KV_PAGE, KvType,
    NewEntries, PageId, Vector, WriteEntries,
};

const HEADS: usize = 5;
const INDEX_HEADS: usize = 20;
const SCALE: f32 = 0.3;
/// Errors of sums in f32 of values below 1 over some hundred products.
const BOUND: f64 = 2e-5;
/// Keys near each row.
const NEAR: usize = 21;

/// A sequence's entries, and rows that see a number of them each.
struct Case {
    layout: EntryLayout,
    per_row: usize,
    blocks: Vec<PageId>,
    n_seen: Vec<usize>,
    keys: Vec<f32>,
    index: Vec<f32>,
    near: Vec<f32>,
    q: Vec<f32>,
    index_q: Vec<f32>,
    weights: Vec<f32>,
    sinks: Vector,
}

/// Rows that attend to entries and to keys near them.
struct Rows<'a> {
    parts: &'a [AttendPart<'a>],
    /// The entries that each row chose. Without them rows attend to all.
    lists: Option<&'a [u32]>,
    window: usize,
    near: &'a [f32],
    q: &'a [f32],
}

impl Case {
    fn new(layout: EntryLayout, per_row: usize, n_seen: &[usize]) -> Self {
        let mut rng = Rng::new(per_row as u64 + 7);
        let n = *n_seen.iter().max().unwrap();
        let n_pages = (n * layout.every).div_ceil(KV_PAGE);
        Self {
            layout,
            per_row,
            blocks: (0..n_pages as u32).rev().map(PageId).collect(),
            n_seen: n_seen.to_vec(),
            keys: rng.values(n * layout.width),
            index: rng.values(n * layout.index_dim),
            near: rng.values(NEAR * layout.width),
            q: rng.values(n_seen.len() * HEADS * layout.width),
            index_q: rng.values(n_seen.len() * INDEX_HEADS * layout.index_dim),
            weights: rng.values(n_seen.len() * INDEX_HEADS),
            sinks: rng.values(HEADS).into(),
        }
    }

    /// The pages after all entries were written, in two goes.
    fn pool(&self, compute: &Compute) -> Vec<Line> {
        let n_bytes = (self.blocks.len() * self.layout.page_bytes()).next_multiple_of(64);
        let mut pool = vec![Line([0xee; 64]); n_bytes / 64];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut pool);
        let (width, index_dim) = (self.layout.width, self.layout.index_dim);
        let n = self.keys.len() / width;
        for entries in [0..n / 3, n / 3..n] {
            let new = NewEntries { pages: &self.blocks, first: entries.start, n: entries.len() };
            let index = &self.index[entries.start * index_dim..entries.end * index_dim];
            compute.write_entries(WriteEntries {
                layout: &self.layout,
                pool: bytes,
                new: &[new],
                keys: &self.keys[entries.start * width..entries.end * width],
                index: (index_dim > 0).then_some(index),
            });
        }
        pool
    }

    /// Each row as a part of its own, at the first position that sees its entries.
    fn parts(&self) -> Vec<AttendPart<'_>> {
        let first_pos = |n: usize| (n * self.layout.every).saturating_sub(1);
        let rows = self.n_seen.iter().enumerate();
        rows.map(|(first_row, n)| AttendPart {
            pages: &self.blocks,
            first_pos: first_pos(*n),
            n_rows: 1,
            first_row,
        })
        .collect()
    }

    /// The choice and the attention of each row. Rows without a choice see all.
    fn run(&self, compute: &Compute) -> (Vec<Option<Vec<u32>>>, Vec<f32>) {
        let pool = self.pool(compute);
        let pool: &[u8] = bytemuck::cast_slice(&pool);
        let chosen = self.choose(compute, pool);
        let mut out = vec![0.0; self.q.len()];
        let of_row = HEADS * self.layout.width;
        for (part, out) in self.parts().into_iter().zip(out.chunks_exact_mut(of_row)) {
            let row = part.first_row;
            let window = self.n_near(row);
            let near = &self.near[..window * self.layout.width];
            let q = &self.q[row * of_row..][..of_row];
            let parts = &[AttendPart { first_row: 0, ..part }];
            let rows = Rows { parts, lists: chosen[row].as_deref(), window, near, q };
            self.attend(compute, pool, &rows, out);
        }
        (chosen, out)
    }

    /// The entries of each row that sees more than it attends to.
    fn choose(&self, compute: &Compute, pool: &[u8]) -> Vec<Option<Vec<u32>>> {
        let mut chosen = vec![None; self.n_seen.len()];
        if self.layout.index_dim == 0 {
            return chosen;
        }
        let per_row = self.per_row;
        let far: Vec<usize> = (0..chosen.len()).filter(|i| self.n_seen[*i] > per_row).collect();
        let mut lists = vec![7; far.len() * per_row];
        compute.choose_entries(ChooseEntries {
            layout: &self.layout,
            pool,
            parts: &self.parts(),
            n_head: INDEX_HEADS,
            per_row,
            q: &self.index_q,
            weights: &self.weights,
            out: &mut lists,
        });
        let lists = lists.chunks_exact(per_row);
        far.iter().zip(lists).for_each(|(row, list)| chosen[*row] = Some(list.to_vec()));
        chosen
    }

    fn attend(&self, compute: &Compute, pool: &[u8], rows: &Rows<'_>, out: &mut [f32]) {
        let Rows { parts, lists, window, near, q } = *rows;
        compute.attend_entries(AttendEntries {
            layout: &self.layout,
            pool: Some(pool),
            parts,
            chosen: lists.map(|lists| ChosenEntries { per_row: self.per_row, lists }),
            window,
            near,
            n_head: HEADS,
            scale: SCALE,
            sinks: Some(&self.sinks),
            q,
            out,
        });
    }

    /// All rows with the same window, one by one and together.
    fn check_batches(&self, compute: &Compute) {
        let pool = self.pool(compute);
        let pool: &[u8] = bytemuck::cast_slice(&pool);
        let (chosen, parts, width) = (self.choose(compute, pool), self.parts(), self.layout.width);
        let of_row = HEADS * width;
        let [mut apart, mut together] = [0, 1].map(|_| vec![f32::NAN; self.q.len()]);
        let (mut near, mut lists) = (Vec::new(), Vec::new());
        for (part, out) in parts.iter().zip(apart.chunks_exact_mut(of_row)) {
            let row = part.first_row;
            let own = &self.near[..NEAR.min(part.first_pos + 1) * width];
            let q = &self.q[row * of_row..][..of_row];
            let part = &[AttendPart { first_row: 0, ..*part }];
            let lists_of_row = chosen[row].as_deref();
            let rows = Rows { parts: part, lists: lists_of_row, window: NEAR, near: own, q };
            self.attend(compute, pool, &rows, out);
            near.extend_from_slice(own);
            lists.extend_from_slice(chosen[row].as_deref().unwrap_or_default());
        }
        let lists = (!lists.is_empty()).then_some(&lists[..]);
        let rows = Rows { parts: &parts, lists, window: NEAR, near: &near, q: &self.q };
        self.attend(compute, pool, &rows, &mut together);
        same_bits("rows together", &together, &apart);
    }

    fn n_near(&self, row: usize) -> usize {
        1 + row % NEAR
    }

    fn check(&self, chosen: &[Option<Vec<u32>>], out: &[f32]) {
        let EntryLayout { width, index_dim, ty, .. } = self.layout;
        let key = |e: usize| kept(ty, &self.keys[e * width..][..width]);
        let outs = out.chunks_exact(HEADS * width);
        for (row, (out, n)) in outs.zip(&self.n_seen).enumerate() {
            let entries: Vec<usize> = match &chosen[row] {
                None => (0..*n).collect(),
                Some(entries) => {
                    let entries: Vec<usize> = entries.iter().map(|e| *e as usize).collect();
                    assert!(entries.is_sorted_by(|a, b| a < b) && *entries.last().unwrap() < *n);
                    let q = &self.index_q[row * INDEX_HEADS * index_dim..];
                    let q = &q[..INDEX_HEADS * index_dim];
                    let weights = &self.weights[row * INDEX_HEADS..][..INDEX_HEADS];
                    let score_of = |e: usize| {
                        let key = kept(ty, &self.index[e * index_dim..][..index_dim]);
                        score(q, weights, &key)
                    };
                    let least = entries.iter().map(|e| score_of(*e)).fold(f64::INFINITY, f64::min);
                    let others = (0..*n).filter(|e| !entries.contains(e)).map(score_of);
                    let best = others.fold(f64::NEG_INFINITY, f64::max);
                    assert!(best <= least + BOUND, "row {row} missed a better one");
                    entries
                }
            };
            let near = self.near.chunks_exact(width).take(self.n_near(row));
            let keys: Vec<Vec<f32>> =
                entries.iter().map(|e| key(*e)).chain(near.map(|k| kept(ty, k))).collect();
            for (h, out) in out.chunks_exact(width).enumerate() {
                let q = &self.q[(row * HEADS + h) * width..][..width];
                let variant = Variant { sink: Some(self.sinks[h]), ..Variant::default() };
                let want = plain_attend(q, &keys, &keys, SCALE, variant);
                for (got, want) in out.iter().zip(want) {
                    close(&format!("row {row}, head {h}"), *got, want, BOUND);
                }
            }
        }
    }
}

#[test]
fn entries_are_chosen_and_attended_to_beside_near_keys() {
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for (every, index_dim, per_row) in [(4, 36, 7), (4, 36, 64), (128, 0, 0), (16, 0, 0)] {
            let layout = EntryLayout { every, width: 40, index_dim, ty };
            let case = Case::new(layout, per_row, &[0, 1, 6, 7, 8, 40, 64, 65, 170]);
            let out = same_bits_everywhere("entries", |compute| case.run(compute).1);
            let (chosen, again) =
                case.run(&super::compute(brigade_kernels_tables::available()[0], 1));
            same_bits("again", &again, &out);
            case.check(&chosen, &out);
            case.check_batches(&super::compute(brigade_kernels_tables::available()[0], 2));
        }
    }
}

/// More than a thread scores in one go, and more than are copied at once.
#[test]
fn many_entries_are_spans_and_batches_of_their_own() {
    let layout = EntryLayout { every: 4, width: 16, index_dim: 16, ty: KvType::F16 };
    let mut case = Case::new(layout, 9, &[2500; 3]);
    let out = same_bits_everywhere("many entries", |compute| case.run(compute).1);
    let (chosen, _) = case.run(&super::compute(brigade_kernels_tables::available()[0], 2));
    case.check(&chosen, &out);
    case.weights.fill(0.0);
    let (equal, _) = case.run(&super::compute(brigade_kernels_tables::available()[0], 2));
    assert_eq!(equal[2], Some((0..9).collect()), "equal scores go to the earlier entries");
    let all = EntryLayout { index_dim: 0, ..layout };
    let case = Case::new(all, 0, &[9000, 9000, 3]);
    let out = same_bits_everywhere("all entries", |compute| case.run(compute).1);
    case.check(&[None, None, None], &out);
    case.check_batches(&super::compute(brigade_kernels_tables::available()[0], 2));
}
