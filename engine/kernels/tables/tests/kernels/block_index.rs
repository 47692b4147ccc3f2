//! Choosing of blocks and attention to them against f64, and bit equality over tables, threads, cuts and neighbours.

use std::ops::Range;
use std::slice::from_ref as one;

use super::paged::{Line, Paged, gather};
use super::{Rng, close, same_bits, same_bits_everywhere};
use crate::reference::attention::{Variant, attend as plain_attend};
use crate::reference::block_index::{choose, scores};
use crate::reference::kv::kept;
use brigade_kernels::{
    Attend, AttendVariant, BlockIndex, BlockSizes, ChosenBlocks, Compute, KvLayout, KvRows, KvType,
    ValuePlace,
};

/// Query heads: three for each head of keys and values.
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const SCALE: f32 = 0.3;
/// Errors of sums in f32 of values below 1 over some hundred products.
const BOUND: f64 = 2e-5;

/// Sequences with keys, values and keys of an index, and their pages in one pool.
struct Case {
    layout: KvLayout,
    sizes: BlockSizes,
    sequences: Paged,
    /// Rows of all sequences, one after the other.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    index_q: Vec<f32>,
    index_k: Vec<f32>,
}

fn sizes(positions: usize, per_row: usize, newest: usize) -> BlockSizes {
    BlockSizes { positions, per_row, newest }
}

impl Case {
    fn new(ty: KvType, sizes: BlockSizes, lens: &[usize]) -> Self {
        let values = ValuePlace::Apart;
        let (n_kv_head, head_dim_k, head_dim_v, index_dim) = (KV_HEADS, 40, 24, 36);
        let layout = KvLayout { n_kv_head, head_dim_k, head_dim_v, values, index_dim, ty };
        let mut rng = Rng::new(sizes.positions as u64);
        let sequences = Paged::new(lens);
        let n = sequences.n_rows();
        Self {
            layout,
            sizes,
            sequences,
            q: rng.values(n * HEADS * head_dim_k),
            k: rng.values(n * KV_HEADS * head_dim_k),
            v: rng.values(n * KV_HEADS * head_dim_v),
            index_q: rng.values(n * KV_HEADS * index_dim),
            index_k: rng.values(n * index_dim),
        }
    }

    /// Full of NaN, as a recycled pool may be.
    fn pool(&self) -> Vec<Line> {
        self.sequences.pool(&self.layout, 0xff)
    }

    fn write(&self, compute: &Compute, pool: &mut [Line], ranges: &[Range<usize>]) {
        let (parts, rows) = self.sequences.parts(ranges);
        let KvLayout { head_dim_k, head_dim_v, index_dim, .. } = self.layout;
        let k = gather(&self.k, KV_HEADS * head_dim_k, &rows);
        let v = gather(&self.v, KV_HEADS * head_dim_v, &rows);
        let index = gather(&self.index_k, index_dim, &rows);
        let pool: &mut [u8] = bytemuck::cast_slice_mut(pool);
        compute.kv_write(
            &self.layout,
            pool,
            &parts,
            &KvRows { k: &k, v: Some(&v), index: Some(&index) },
        );
    }

    /// The blocks of rows that were written; `None` where they attend to all.
    fn choose(
        &self,
        compute: &Compute,
        pool: &[Line],
        ranges: &[Range<usize>],
    ) -> Option<Vec<u32>> {
        let (parts, rows) = self.sequences.parts(ranges);
        let (layout, sizes, pool) = (&self.layout, self.sizes, bytemuck::cast_slice(pool));
        let q = gather(&self.index_q, KV_HEADS * layout.index_dim, &rows);
        compute.choose_blocks(&BlockIndex { layout, pool, parts: &parts, sizes }, &q)
    }

    fn attend(
        &self,
        compute: &Compute,
        pool: &[Line],
        ranges: &[Range<usize>],
        blocks: Option<&[u32]>,
    ) -> Vec<f32> {
        let (parts, rows) = self.sequences.parts(ranges);
        let blocks = blocks.map(|blocks| ChosenBlocks {
            sizes: self.sizes,
            n_near: self.sizes.width(),
            blocks,
        });
        let attend = Attend {
            layout: &self.layout,
            pool: bytemuck::cast_slice(pool),
            parts: &parts,
            n_head: HEADS,
            scale: SCALE,
            variant: AttendVariant { blocks, ..AttendVariant::default() },
        };
        let q = gather(&self.q, HEADS * self.layout.head_dim_k, &rows);
        let mut out = vec![f32::NAN; rows.len() * HEADS * self.layout.head_dim_v];
        compute.attend(&attend, &q, &mut out);
        out
    }

    /// Values of a row of [`Self::step`].
    fn width(&self) -> usize {
        KV_HEADS * self.sizes.per_row + HEADS * self.layout.head_dim_v
    }

    /// Writes rows `ranges` of the sequences, and returns their chosen blocks and their attention.
    fn step(&self, compute: &Compute, pool: &mut [Line], ranges: &[Range<usize>]) -> Vec<f32> {
        self.write(compute, pool, ranges);
        let chosen = self.choose(compute, pool, ranges);
        let out = self.attend(compute, pool, ranges, chosen.as_deref());
        let of_row = HEADS * self.layout.head_dim_v;
        let n = KV_HEADS * self.sizes.per_row;
        let chosen = chosen.unwrap_or_else(|| vec![0; out.len() / of_row * n]);
        let chosen: Vec<f32> = chosen.into_iter().map(|block| block as f32).collect();
        // Row by row, so that steps can be put together.
        let rows = chosen.chunks_exact(n).zip(out.chunks_exact(of_row));
        rows.flat_map(|(chosen, out)| [chosen, out].concat()).collect()
    }

    /// Everything in one ubatch.
    fn whole(&self, compute: &Compute) -> Vec<f32> {
        let ranges: Vec<_> = self.sequences.lens.iter().map(|len| 0..*len).collect();
        self.step(compute, &mut self.pool(), &ranges)
    }

    /// One row of [`Self::step`] against the definition.
    fn check_row(&self, s: usize, i: usize, got: &[f32]) {
        let (ty, first) = (self.layout.ty, self.sequences.first_row(s));
        let KvLayout { head_dim_k: dk, head_dim_v: dv, index_dim: di, .. } = self.layout;
        let (chosen, out) = got.split_at(KV_HEADS * self.sizes.per_row);
        let row = first + i;
        for h in 0..KV_HEADS {
            let index_keys: Vec<Vec<f32>> =
                (first..=row).map(|r| kept(ty, &self.index_k[r * di..][..di])).collect();
            let q = &self.index_q[(row * KV_HEADS + h) * di..][..di];
            let scores = scores(q, &index_keys, self.sizes);
            let blocks = self.check_choice(&scores, &chosen[h * self.sizes.per_row..]);
            let size = self.sizes.positions;
            let seen = blocks.iter().flat_map(|b| *b as usize * size..(*b as usize + 1) * size);
            let seen: Vec<usize> = seen.filter(|pos| *pos <= i).map(|pos| first + pos).collect();
            let rows_of = |x: &[f32], dim: usize| -> Vec<Vec<f32>> {
                seen.iter().map(|r| kept(ty, &x[(r * KV_HEADS + h) * dim..][..dim])).collect()
            };
            let (keys, values) = (rows_of(&self.k, dk), rows_of(&self.v, dv));
            for q_head in h * HEADS / KV_HEADS..(h + 1) * HEADS / KV_HEADS {
                let q = &self.q[(row * HEADS + q_head) * dk..][..dk];
                let want = plain_attend(q, &keys, &values, SCALE, Variant::default());
                for (got, want) in out[q_head * dv..].iter().zip(want) {
                    close(&format!("row {i}, head {q_head}"), *got, want, BOUND);
                }
            }
        }
    }

    /// The blocks that a head attends to, which are those of the definition but for scores that are nearly the same.
    fn check_choice(&self, scores: &[f64], chosen: &[f32]) -> Vec<u32> {
        let wanted = choose(scores, self.sizes);
        if scores.len() <= self.sizes.per_row {
            let n = self.sizes.per_row;
            assert!(chosen[..n].iter().all(|b| *b == 0.0), "chose though it sees all");
            return wanted;
        }
        let chosen: Vec<u32> = chosen[..wanted.len()].iter().map(|b| *b as u32).collect();
        assert!(chosen.is_sorted_by(|a, b| a < b), "{chosen:?}");
        let of = |blocks: &[u32]| blocks.iter().map(|b| scores[*b as usize]).sum::<f64>();
        assert!(
            chosen == wanted || (of(&chosen) - of(&wanted)).abs() < BOUND,
            "chose {chosen:?}, wanted {wanted:?}"
        );
        let newest = scores.len() - self.sizes.newest..scores.len();
        assert!(newest.into_iter().all(|b| chosen.contains(&(b as u32))), "{chosen:?}");
        chosen
    }
}

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

#[test]
fn the_best_blocks_are_chosen_and_attended_to() {
    let sizes = [
        sizes(8, 3, 1),
        sizes(64, 2, 1),
        sizes(128, 1, 1),
        // Over the ends of pages, and a row that need not see itself.
        sizes(48, 3, 2),
        sizes(100, 2, 0),
        sizes(1, 7, 3),
    ];
    for sizes in sizes {
        for ty in TYPES {
            let case = Case::new(ty, sizes, &[270, 1, 64, 130]);
            let out = same_bits_everywhere("chosen blocks", |compute| case.whole(compute));
            let mut rows = out.chunks_exact(case.width());
            for (s, len) in case.sequences.lens.iter().enumerate() {
                (0..*len).for_each(|i| case.check_row(s, i, rows.next().unwrap()));
            }
        }
    }
}

/// Several spans of scores, and of chosen pages.
#[test]
fn long_contexts_match_f64() {
    for sizes in [sizes(8, 100, 1), sizes(128, 9, 1), sizes(1500, 1, 1)] {
        let case = Case::new(KvType::F16, sizes, &[2300]);
        let rows = [0..1, 1490..1492, 2299..2300];
        let out = same_bits_everywhere("long contexts", |compute| {
            let mut pool = case.pool();
            case.write(compute, &mut pool, one(&(0..2300)));
            let step = |range: &Range<usize>| case.step(compute, &mut pool, one(range));
            rows.iter().flat_map(step).collect()
        });
        let got = out.chunks_exact(case.width());
        rows.into_iter().flatten().zip(got).for_each(|(i, got)| case.check_row(0, i, got));
    }
}

#[test]
fn steps_and_neighbours_change_no_bit() {
    for sizes in [sizes(8, 3, 1), sizes(64, 1, 1)] {
        let case = Case::new(KvType::F16, sizes, &[150, 90]);
        for kernels in crate::all_tables() {
            let compute = super::compute(kernels, 2);
            let whole = case.whole(&compute);
            let mut pool = case.pool();
            let mut outs = [Vec::new(), Vec::new()];
            let mut at = 0;
            for step in [1, 40, 3, 64, 42] {
                let ranges = [0, 1].map(|s| {
                    at.min(case.sequences.lens[s])..(at + step).min(case.sequences.lens[s])
                });
                let out = case.step(&compute, &mut pool, &ranges);
                let (first, second) = out.split_at(ranges[0].len() * case.width());
                outs[0].extend_from_slice(first);
                outs[1].extend_from_slice(second);
                at += step;
            }
            same_bits("in steps", &outs.concat(), &whole);
        }
    }
}

#[test]
fn equal_scores_go_to_the_lower_blocks() {
    let mut case = Case::new(KvType::F32, sizes(16, 4, 1), &[1200]);
    case.index_q.fill(0.0);
    let out = same_bits_everywhere("equal scores", |compute| case.whole(compute));
    for (i, row) in out.chunks_exact(case.width()).enumerate().skip(64) {
        for head in row[..KV_HEADS * 4].chunks_exact(4) {
            assert_eq!(*head, [0.0, 1.0, 2.0, (i / 16) as f32], "row {i}");
        }
    }
}

/// Rows that see no more blocks than they attend to.
#[test]
fn rows_that_see_all_have_the_bits_of_dense_attention() {
    let case = Case::new(KvType::F16, sizes(8, 9, 1), &[100]);
    let compute = super::compute(brigade_kernels_tables::available()[0], 2);
    let mut pool = case.pool();
    case.write(&compute, &mut pool, one(&(0..100)));
    let chosen = case.choose(&compute, &pool, one(&(0..100))).unwrap();
    let sparse = case.attend(&compute, &pool, one(&(0..100)), Some(&chosen));
    let dense = case.attend(&compute, &pool, one(&(0..100)), None);
    let (near, far) = sparse.split_at(72 * HEADS * case.layout.head_dim_v);
    same_bits("near rows", near, &dense[..near.len()]);
    assert!(far.iter().zip(&dense[near.len()..]).any(|(a, b)| a != b));
    assert!(case.choose(&compute, &pool, one(&(0..72))).is_none());
}

/// Pages that the row does not attend to may hold any bytes.
#[test]
fn other_pages_are_not_read() {
    let case = Case::new(KvType::F32, sizes(64, 3, 1), &[1000]);
    let compute = super::compute(brigade_kernels_tables::available()[0], 2);
    let mut pool = case.pool();
    case.write(&compute, &mut pool, one(&(0..1000)));
    let row = one(&(999..1000));
    let chosen = case.choose(&compute, &pool, row).unwrap();
    let before = case.attend(&compute, &pool, row, Some(&chosen));
    let page = case.layout.page_bytes() / 64;
    for (i, block) in case.sequences.blocks[0].iter().enumerate() {
        if !chosen.contains(&(i as u32)) {
            pool[block.0 as usize * page..][..page].fill(Line([0xff; 64]));
        }
    }
    same_bits("beside NaN", &case.attend(&compute, &pool, row, Some(&chosen)), &before);
}
