//! Choosing of blocks by the means of their keys against f64, and bit equality over tables, threads, cuts and neighbours.

use brigade_kernels::inner::add_index_key;
use std::ops::Range;

use super::paged::{Line, Paged, gather};
use super::{Rng, close, same_bits, same_bits_everywhere};
use crate::reference::kv::kept;
use crate::reference::mean_index::{normed_mean, score};
use brigade_kernels::{
    BlockSizes, ChooseByMeans, Compute, KvLayout, KvRows, KvType, NO_BLOCK, ValuePlace,
};

const KV_HEADS: usize = 2;
const HEADS: usize = 5;
const DIM: usize = 36;
const EPS: f32 = 1e-5;

/// Sequences with keys of an index, and their pages in one pool.
struct Case {
    layout: KvLayout,
    sizes: BlockSizes,
    sequences: Paged,
    /// Rows of all sequences, one after the other.
    q: Vec<f32>,
    keys: Vec<f32>,
    norm: Vec<f32>,
}

impl Case {
    /// Blocks of so many positions, of which a row attends to `whole` and to what is behind.
    fn new(ty: KvType, positions: usize, whole: usize, lens: &[usize]) -> Self {
        let layout = KvLayout {
            n_kv_head: KV_HEADS,
            head_dim_k: 8,
            head_dim_v: 8,
            values: ValuePlace::Apart,
            index_dim: DIM,
            ty,
        };
        let (mut rng, sequences) = (Rng::new(positions as u64), Paged::new(lens));
        let n = sequences.n_rows();
        Self {
            layout,
            sizes: BlockSizes { positions, per_row: whole + 1, newest: 1 },
            sequences,
            q: rng.values(n * HEADS * DIM),
            keys: rng.values(n * DIM),
            norm: rng.values(DIM),
        }
    }

    /// Writes rows `ranges` of the sequences, and returns their choice, `[n_rows, KV_HEADS, per_row]`. It is zeros
    /// where all rows attend to all.
    fn step(&self, compute: &Compute, pool: &mut [Line], ranges: &[Range<usize>]) -> Vec<f32> {
        let (parts, rows) = self.sequences.parts(ranges);
        let other = vec![0.0; rows.len() * KV_HEADS * 8];
        let index = gather(&self.keys, DIM, &rows);
        let written = KvRows { k: &other, v: Some(&other), index: Some(&index) };
        compute.kv_write(&self.layout, bytemuck::cast_slice_mut(pool), &parts, &written);
        let mut chosen = vec![7; rows.len() * KV_HEADS * self.sizes.per_row];
        compute.choose_by_means(ChooseByMeans {
            layout: &self.layout,
            pool: bytemuck::cast_slice(pool),
            parts: &parts,
            n_head: HEADS,
            sizes: self.sizes,
            norm: &self.norm,
            eps: EPS,
            rope: None,
            q: &gather(&self.q, HEADS * DIM, &rows),
            out: &mut chosen,
        });
        chosen.into_iter().map(|block| block as f32).collect()
    }

    fn pool(&self) -> Vec<Line> {
        // Full of NaN, as a recycled pool may be.
        self.sequences.pool(&self.layout, 0xff)
    }

    fn whole(&self, compute: &Compute) -> Vec<f32> {
        let ranges: Vec<_> = self.sequences.lens.iter().map(|len| 0..*len).collect();
        self.step(compute, &mut self.pool(), &ranges)
    }

    /// Row `i` of sequence `s` against the definition.
    fn check_row(&self, s: usize, i: usize, got: &[f32]) {
        let BlockSizes { positions, per_row, .. } = self.sizes;
        let (first, whole) = (self.sequences.first_row(s), per_row - 1);
        let (of_head, others) = got.split_at(per_row);
        assert_eq!(of_head, others, "heads differ");
        let n_whole = (i + 1) / positions;
        if n_whole <= whole {
            assert!(of_head.iter().all(|b| *b == 0.0), "row {i} chose though it sees all");
            return;
        }
        let behind = if (i + 1).is_multiple_of(positions) { NO_BLOCK } else { n_whole as u32 };
        assert_eq!(of_head[whole], behind as f32, "row {i}");
        let key = |pos: usize| kept(self.layout.ty, &self.keys[(first + pos) * DIM..][..DIM]);
        let q = &self.q[(first + i) * HEADS * DIM..][..HEADS * DIM];
        let scores: Vec<f64> = (0..n_whole)
            .map(|block| {
                let keys: Vec<Vec<f32>> =
                    (block * positions..(block + 1) * positions).map(key).collect();
                score(q, &normed_mean(&keys, &self.norm, f64::from(EPS)))
            })
            .collect();
        let chosen: Vec<usize> = of_head[..whole].iter().map(|b| *b as usize).collect();
        assert!(chosen.is_sorted_by(|a, b| a < b) && chosen[whole - 1] < n_whole, "{chosen:?}");
        let mut best = scores.clone();
        best.sort_by(|a, b| b.total_cmp(a));
        // Scores that are nearly the same may be taken for each other.
        let sum: f64 = chosen.iter().map(|block| scores[*block]).sum();
        close(&format!("row {i}"), sum as f32, best[..whole].iter().sum(), 1e-4);
    }
}

const CASES: [[usize; 2]; 5] = [[4, 4], [1, 7], [8, 1], [5, 3], [64, 1]];

#[test]
fn the_best_whole_blocks_are_chosen_and_what_is_behind_them() {
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for [positions, whole] in CASES {
            let case = Case::new(ty, positions, whole, &[150, 3, 200]);
            let what = format!("{ty:?} [{positions}, {whole}]");
            let got = same_bits_everywhere(&what, |compute| case.whole(compute));
            let mut rows = got.chunks_exact(KV_HEADS * case.sizes.per_row);
            for (s, len) in case.sequences.lens.iter().enumerate() {
                (0..*len).for_each(|i| case.check_row(s, i, rows.next().unwrap()));
            }
        }
    }
}

/// A row's own block is not whole until its last position is there: what comes later in the ubatch must not be seen.
#[test]
fn steps_and_neighbours_change_no_bit() {
    for [positions, whole] in CASES {
        let case = Case::new(KvType::F16, positions, whole, &[150, 90]);
        let compute = super::compute(brigade_kernels_tables::select(None).unwrap(), 2);
        let at_once = case.whole(&compute);
        let of_row = KV_HEADS * case.sizes.per_row;
        for step in [1, 7, 64] {
            let (mut pool, mut got) = (case.pool(), vec![Vec::new(), Vec::new()]);
            for at in (0..150).step_by(step) {
                let range = |len: usize| at.min(len)..(at + step).min(len);
                let out = case.step(&compute, &mut pool, &[range(150), range(90)]);
                let (first, second) = out.split_at(range(150).len() * of_row);
                got[0].extend_from_slice(first);
                got[1].extend_from_slice(second);
            }
            same_bits(
                &format!("[{positions}, {whole}] in steps of {step}"),
                &got.concat(),
                &at_once,
            );
        }
    }
}

/// Keys of an index are read back as they were rounded, from both ways in which they lie.
#[test]
fn keys_are_read_as_they_were_kept() {
    for (values, ty) in [
        (ValuePlace::Apart, KvType::F32),
        (ValuePlace::Apart, KvType::Q8_0),
        (ValuePlace::InKeys, KvType::F16),
        (ValuePlace::InKeys, KvType::Q8_0),
    ] {
        let (n_kv_head, head_dim_k, head_dim_v) = (1, 16, 16);
        let layout = KvLayout { n_kv_head, head_dim_k, head_dim_v, values, index_dim: DIM, ty };
        let sequences = Paged::new(&[70]);
        let compute = super::compute(brigade_kernels_tables::select(None).unwrap(), 1);
        let mut pool = sequences.pool(&layout, 0xff);
        let index = Rng::new(3).values(70 * DIM);
        let k = vec![0.0; 70 * 16];
        let v = if values == ValuePlace::Apart { k.clone() } else { Vec::new() };
        let (parts, _) = sequences.parts(std::slice::from_ref(&(0..70)));
        let written = KvRows { k: &k, v: Some(&v), index: Some(&index) };
        compute.kv_write(&layout, bytemuck::cast_slice_mut(&mut pool), &parts, &written);
        for pos in [0, 1, 63, 64, 69] {
            let page = sequences.blocks[0][pos / 64].0 as usize;
            let mut sum = vec![0.0; DIM];
            let keys = layout.index(bytemuck::cast_slice(&pool), page);
            add_index_key(&layout, keys, pos % 64, &mut sum);
            assert_eq!(sum, kept(ty, &index[pos * DIM..][..DIM]), "{values:?} {ty:?} {pos}");
        }
    }
}
