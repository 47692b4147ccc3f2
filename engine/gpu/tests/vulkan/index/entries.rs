//! Entries (rows of a cache that stand for several positions each): written, chosen and attended to, on the host and on a GPU.

use std::ops::Range;

use brigade_gpu::{EntryLayout, Gpu, GpuBuffer, KV_PAGE, KvType, Purpose};
use brigade_ops::{
    AttendEntries, AttendPart, ChooseEntries, ChosenEntries, NewEntries, PageId, Vector,
    WriteEntries, n_before, n_far,
};

use super::{CacheLine, TYPES, some_ranges, words_of};
use crate::common::{
    Random, all_pairs, assert_same, bytes_of, compute, gpu, on, values_of, words_on,
};

const HEADS: usize = 5;
const INDEX_HEADS: usize = 20;

/// Sequences with all their entries, in one pool of pages in reversed order.
struct Case {
    layout: EntryLayout,
    lens: Vec<usize>,
    pages: Vec<Vec<PageId>>,
    pool: Vec<CacheLine>,
    there: GpuBuffer,
}

impl Case {
    /// Writes all entries on the host and on the GPU, in two goes, and compares the bytes of the pages.
    fn new(gpu: &Gpu, layout: EntryLayout, lens: &[usize], random: &mut Random) -> Self {
        let n_pages: usize = lens.iter().map(|len| len.div_ceil(KV_PAGE)).sum();
        let mut free = (0..n_pages as u32).rev().map(PageId);
        let of_len = |len: &usize| free.by_ref().take(len.div_ceil(KV_PAGE)).collect();
        let pages: Vec<Vec<PageId>> = lens.iter().map(of_len).collect();
        let n_lines = (n_pages * layout.page_bytes()).div_ceil(64);
        let mut pool = vec![CacheLine([0xee; 64]); n_lines];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut pool);
        let mut there = gpu.buffer(bytes.len(), Purpose::States).expect("room");
        there.write(0, bytes);
        let n = |len: &usize| len / layout.every;
        for go in [|n: usize| 0..n / 3, |n: usize| n / 3..n] {
            let total: usize = lens.iter().map(|len| go(n(len)).len()).sum();
            let keys = random.values(total * layout.width, 2.0);
            let index = random.values(total * layout.index_dim, 1.0);
            let new: Vec<NewEntries<'_>> = pages
                .iter()
                .zip(lens)
                .map(|(pages, len)| {
                    let Range { start: first, end } = go(n(len));
                    NewEntries { pages, first, n: end - first }
                })
                .collect();
            let has_index = layout.index_dim > 0;
            compute().write_entries(WriteEntries {
                layout: &layout,
                pool: &mut *bytes,
                new: &new,
                keys: &keys,
                index: has_index.then_some(&index),
            });
            let (keys, index) = (on(gpu, &keys), on(gpu, &index));
            gpu.write_entries(WriteEntries {
                layout: &layout,
                pool: there.span_mut(),
                new: &new,
                keys: keys.span(),
                index: has_index.then_some(index.span()),
            });
        }
        assert!(bytes_of(&there) == bytes, "pages of {layout:?}");
        Self { layout, lens: lens.to_vec(), pages, pool, there }
    }

    fn parts(&self, ranges: &[Range<usize>]) -> Vec<AttendPart<'_>> {
        let mut first_row = 0;
        let mut parts = Vec::new();
        for (pages, range) in self.pages.iter().zip(ranges) {
            let (first_pos, n_rows) = (range.start, range.len());
            parts.push(AttendPart { pages, first_pos, n_rows, first_row });
            first_row += n_rows;
        }
        parts
    }

    /// Chooses entries on host and GPU. Returns the lists of the rows that see more entries than they may choose.
    fn choose(
        &self,
        gpu: &Gpu,
        parts: &[AttendPart<'_>],
        per_row: usize,
        random: &mut Random,
    ) -> Vec<u32> {
        let (layout, n) = (&self.layout, parts.iter().map(|part| part.n_rows).sum::<usize>());
        let (n_head, q) = (INDEX_HEADS, random.values(n * INDEX_HEADS * layout.index_dim, 1.0));
        let weights = random.values(n * INDEX_HEADS, 1.0);
        let mut here = vec![7; n_far(layout, parts, per_row) * per_row];
        compute().choose_entries(ChooseEntries {
            layout,
            pool: bytemuck::cast_slice(&self.pool),
            parts,
            n_head,
            per_row,
            q: &q,
            weights: &weights,
            out: &mut here,
        });
        let mut there = words_on(gpu, &vec![7; here.len()]);
        let (q, weights) = (on(gpu, &q), on(gpu, &weights));
        gpu.choose_entries(ChooseEntries {
            layout,
            pool: self.there.span(),
            parts,
            n_head,
            per_row,
            q: q.span(),
            weights: weights.span(),
            out: there.span_mut(),
        })
        .expect("room");
        assert!(words_of(&there) == here, "{per_row} entries of {layout:?}, {n} rows");
        here
    }

    /// Attends on both, to a window and to entries, or to the window alone.
    fn attend(
        &self,
        gpu: &Gpu,
        parts: &[AttendPart<'_>],
        window: usize,
        chosen: Option<(usize, &[u32])>,
        random: &mut Random,
        has_entries: bool,
    ) {
        let layout = &self.layout;
        let n: usize = parts.iter().map(|part| part.n_rows).sum();
        let n_near: usize = parts.iter().map(|part| n_before(part, window) + part.n_rows).sum();
        let near = random.values(n_near * layout.width, 2.0);
        let q = random.values(n * HEADS * layout.width, 1.0);
        let sinks: Vector = random.values(HEADS, 2.0).into();
        let mut want = vec![0.0; q.len()];
        compute().attend_entries(AttendEntries {
            layout,
            pool: has_entries.then_some(bytemuck::cast_slice(&self.pool)),
            parts,
            chosen: chosen.map(|(per_row, lists)| ChosenEntries { per_row, lists }),
            window,
            near: &near,
            n_head: HEADS,
            scale: 0.3,
            sinks: Some(&sinks),
            q: &q,
            out: &mut want,
        });
        let mut out = on(gpu, &vec![f32::NAN; q.len()]);
        let [q, near] = [&q[..], &near].map(|values| on(gpu, values));
        let all = words_on(gpu, chosen.map_or(&[][..], |(_, lists)| lists));
        gpu.attend_entries(AttendEntries {
            layout,
            pool: has_entries.then_some(self.there.span()),
            parts,
            chosen: chosen.map(|(per_row, _)| ChosenEntries { per_row, lists: all.span() }),
            window,
            near: near.span(),
            n_head: HEADS,
            scale: 0.3,
            sinks: Some(&sinks),
            q: q.span(),
            out: out.span_mut(),
        })
        .expect("room");
        let name = format!("{layout:?}, window of {window}, {n} rows");
        assert_same(&name, &values_of(&out), &want);
    }
}

#[test]
fn entries_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    // Each type at one distance of entries, and each other distance with one type.
    let apart = [(16, 20, KvType::F16), (128, 0, KvType::Q8_0), (64, 16, KvType::F32)];
    for (every, index_dim, ty) in TYPES.map(|ty| (4, 36, ty)).into_iter().chain(apart) {
        let layout = EntryLayout { every, width: 20, index_dim, ty };
        let mut random = Random(every as u64);
        let case = Case::new(&gpu, layout, &[260, 3, 129, 64], &mut random);
        let sizes = [(7, 9), (1, 1), (64, 70)];
        for (i, ranges) in some_ranges(&case.lens).into_iter().enumerate() {
            let parts = case.parts(&ranges);
            // All rows with one size: they take long in software.
            for &(per_row, window) in &sizes[..if i == 0 && !all_pairs(&gpu) { 1 } else { 3 }] {
                case.attend(&gpu, &parts, window, None, &mut random, true);
                if index_dim > 0 {
                    let chosen = case.choose(&gpu, &parts, per_row, &mut random);
                    let chosen = Some((per_row, &chosen[..]));
                    case.attend(&gpu, &parts, window, chosen, &mut random, true);
                }
            }
            case.attend(&gpu, &parts, 5, None, &mut random, false);
        }
    }
}

#[test]
fn wide_and_many_entries_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for ty in TYPES {
        let layout = EntryLayout { every: 4, width: 512, index_dim: 128, ty };
        let mut random = Random(5);
        let case = Case::new(&gpu, layout, &[5000], &mut random);
        let [_, last, _] = some_ranges(&case.lens);
        let parts = case.parts(&last);
        let chosen = case.choose(&gpu, &parts, 40, &mut random);
        case.attend(&gpu, &parts, 128, Some((40, &chosen)), &mut random, true);
        case.attend(&gpu, &parts, 128, None, &mut random, true);
    }
}
