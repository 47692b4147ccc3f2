//! Choosing of positions, or of pools of them, and attention to them against f64, and bit equality over tables, threads, cuts
//! and neighbours.

use super::paged::{Line, Paged, gather};
use super::{Rng, close, same_bits, same_bits_everywhere};
use crate::reference::attention::{Variant, attend as plain_attend};
use crate::reference::index::score;
use crate::reference::kv::kept;
use crate::reference::pooling::pooled;
use brigade_kernels::{
    Attend, AttendVariant, Chosen, Compute, Index, KvLayout, KvRows, KvType, PoolSizes, Pooling,
    ValuePlace,
};

/// Heads of the index: more than a vector has lanes, and not a multiple of them.
const INDEX_HEADS: usize = 20;
/// Width of the index's heads.
const INDEX_DIM: usize = 36;
/// Query heads of the attention.
const HEADS: usize = 5;
const SCALE: f32 = 0.3;
/// Errors of sums in f32 of values below 1 over some hundred products.
const BOUND: f64 = 2e-5;

/// Sequences with keys of both kinds, and their pages in one pool.
struct Case {
    layout: KvLayout,
    sizes: PoolSizes,
    sequences: Paged,
    /// Rows of all sequences, one after the other.
    q: Vec<f32>,
    key: Vec<f32>,
    index_q: Vec<f32>,
    /// Keys, and of pools gates behind them.
    index_key: Vec<f32>,
    weights: Vec<f32>,
    /// Biases of the gates.
    bias: Vec<f32>,
}

impl Case {
    fn new(ty: KvType, sizes: PoolSizes, lens: &[usize]) -> Self {
        let layout = KvLayout {
            n_kv_head: 1,
            head_dim_k: 40,
            head_dim_v: 24,
            values: ValuePlace::InKeys,
            index_dim: sizes.kept_of(INDEX_DIM),
            ty,
        };
        let mut rng = Rng::new(sizes.width() as u64);
        let sequences = Paged::new(lens);
        let n = sequences.n_rows();
        Self {
            layout,
            sizes,
            sequences,
            q: rng.values(n * HEADS * layout.head_dim_k),
            key: rng.values(n * layout.head_dim_k),
            index_q: rng.values(n * INDEX_HEADS * INDEX_DIM),
            index_key: rng.values(n * layout.index_dim),
            weights: rng.values(n * INDEX_HEADS),
            bias: rng.values(sizes.positions * INDEX_DIM),
        }
    }

    fn pool(&self) -> Vec<Line> {
        self.sequences.pool(&self.layout, 0xee)
    }

    /// Writes rows `ranges` of the sequences, and returns their chosen pools and their attention.
    fn step(
        &self,
        compute: &Compute,
        pool: &mut [Line],
        ranges: &[std::ops::Range<usize>],
    ) -> Vec<f32> {
        let (parts, rows) = self.sequences.parts(ranges);
        let gather = |x: &[f32], width: usize| gather(x, width, &rows);
        let KvLayout { head_dim_k, head_dim_v, index_dim, .. } = self.layout;
        let pool: &mut [u8] = bytemuck::cast_slice_mut(pool);
        let (key, index_key) = (gather(&self.key, head_dim_k), gather(&self.index_key, index_dim));
        let new = KvRows { k: &key, v: None, index: Some(&index_key) };
        compute.kv_write(&self.layout, pool, &parts, &new);
        let (layout, sizes) = (&self.layout, self.sizes);
        if sizes.positions > 1 {
            let pooling = Pooling { positions: sizes.positions, bias: &self.bias };
            compute.pool_keys(layout, pool, &parts, pooling);
        }
        let index = Index { layout, pool, parts: &parts, n_head: INDEX_HEADS, sizes };
        let mut pools = vec![f32::NAN; rows.len() * sizes.per_row];
        let index_q = gather(&self.index_q, INDEX_HEADS * INDEX_DIM);
        compute.choose(&index, &index_q, &gather(&self.weights, INDEX_HEADS), &mut pools);
        let chosen = Chosen { sizes, pools: &pools };
        let mut room = vec![f32::NAN; Chosen::room_len(layout, sizes, rows.len())];
        let mut out = vec![0.0; rows.len() * HEADS * head_dim_v];
        let attend = Attend {
            layout,
            pool,
            parts: &parts,
            n_head: HEADS,
            scale: SCALE,
            variant: AttendVariant::default(),
        };
        let q = gather(&self.q, HEADS * head_dim_k);
        compute.attend_chosen(&attend, &chosen, &mut room, &q, &mut out);
        // Row by row, so that steps can be put together.
        let of_row = pools.chunks_exact(sizes.per_row).zip(out.chunks_exact(HEADS * head_dim_v));
        of_row.flat_map(|(pools, out)| [pools, out].concat()).collect()
    }

    /// Everything in one ubatch.
    fn whole(&self, compute: &Compute) -> Vec<f32> {
        let ranges: Vec<_> = self.sequences.lens.iter().map(|len| 0..*len).collect();
        self.step(compute, &mut self.pool(), &ranges)
    }

    /// The key of a pool of a sequence whose rows begin with row `first`, as its page keeps it, nearly.
    fn pool_key(&self, first: usize, pool: usize) -> Vec<f32> {
        let (n, width) = (self.sizes.positions, self.layout.index_dim);
        let of =
            |i| kept(self.layout.ty, &self.index_key[(first + pool * n + i) * width..][..width]);
        if n == 1 {
            return of(0);
        }
        let split = |row: Vec<f32>| (row[..INDEX_DIM].to_vec(), row[INDEX_DIM..].to_vec());
        let (keys, gates): (Vec<_>, Vec<_>) = (0..n).map(|i| split(of(i))).unzip();
        let key = pooled(&keys, &gates, &self.bias);
        kept(self.layout.ty, &key.iter().map(|x| *x as f32).collect::<Vec<f32>>())
    }

    /// By how much a score may be off. A pooled key may be rounded in the other direction.
    fn bound(&self) -> f64 {
        match (self.sizes.positions, self.layout.ty) {
            (1, _) | (_, KvType::F32) => BOUND,
            (_, KvType::F16) => 5e-3,
            (_, KvType::Q8_0) => 5e-2,
        }
    }

    /// The row's positions are good, and the attention to them is that of f64.
    fn check_row(&self, s: usize, i: usize, got: &[f32]) {
        let KvLayout { head_dim_k: dk, head_dim_v: dv, ty, .. } = self.layout;
        let PoolSizes { positions: n, per_row } = self.sizes;
        let (first, row) = (self.sequences.first_row(s), self.sequences.first_row(s) + i);
        let (pools, out) = got.split_at(per_row);
        let n_seen = (i + 1) / n;
        let pools: Vec<usize> = if n_seen <= per_row {
            assert!(pools.iter().all(|p| *p == 0.0), "row {i} chose though it sees all");
            (0..n_seen).collect()
        } else {
            pools.iter().map(|p| *p as usize).collect()
        };
        assert!(pools.is_sorted_by(|a, b| a < b), "row {i}: {pools:?}");
        assert!(pools.iter().all(|pool| *pool < n_seen), "row {i}: {pools:?} of {n_seen}");
        let q = &self.index_q[row * INDEX_HEADS * INDEX_DIM..][..INDEX_HEADS * INDEX_DIM];
        let weights = &self.weights[row * INDEX_HEADS..][..INDEX_HEADS];
        let score_of = |pool: usize| score(q, weights, &self.pool_key(first, pool));
        let least = pools.iter().map(|p| score_of(*p)).fold(f64::INFINITY, f64::min);
        let others = (0..n_seen).filter(|p| !pools.contains(p)).map(score_of);
        assert!(
            others.fold(f64::NEG_INFINITY, f64::max) <= least + self.bound(),
            "row {i} missed a better one"
        );
        let of_pools = pools.iter().flat_map(|pool| pool * n..(pool + 1) * n);
        let chosen: Vec<usize> = of_pools.chain(n_seen * n..i + 1).collect();
        let keys: Vec<Vec<f32>> =
            chosen.iter().map(|p| kept(ty, &self.key[(first + p) * dk..][..dk])).collect();
        let values: Vec<Vec<f32>> = keys.iter().map(|key| key[..dv].to_vec()).collect();
        for (h, out) in out.chunks_exact(dv).enumerate() {
            let q = &self.q[(row * HEADS + h) * dk..][..dk];
            let want = plain_attend(q, &keys, &values, SCALE, Variant::default());
            for (got, want) in out.iter().zip(want) {
                close(&format!("row {i}, head {h}"), *got, want, BOUND);
            }
        }
    }
}

#[test]
fn the_best_positions_are_chosen_and_attended_to() {
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for per_row in [1, 7, 64, 100] {
            check(&Case::new(ty, PoolSizes::single(per_row), &[150, 1, 64, 101]));
        }
    }
}

/// Some pools end with their page, and others lie over its end.
#[test]
fn the_best_pools_are_chosen_and_attended_to() {
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for (positions, per_row) in [(2, 1), (4, 16), (3, 5), (7, 9), (70, 1)] {
            check(&Case::new(ty, PoolSizes { positions, per_row }, &[150, 1, 64, 101]));
        }
    }
}

/// The rows of all sequences, on all tables.
fn check(case: &Case) {
    let out = same_bits_everywhere("chosen positions", |compute| case.whole(compute));
    let mut rows = out.chunks_exact(case.sizes.per_row + HEADS * case.layout.head_dim_v);
    for (s, len) in case.sequences.lens.iter().enumerate() {
        (0..*len).for_each(|i| case.check_row(s, i, rows.next().unwrap()));
    }
}

#[test]
fn steps_and_neighbours_change_no_bit() {
    steps_change_no_bit(&Case::new(KvType::F16, PoolSizes::single(30), &[150, 90]));
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for (positions, per_row) in [(4, 8), (3, 10), (9, 2)] {
            steps_change_no_bit(&Case::new(ty, PoolSizes { positions, per_row }, &[150, 90]));
        }
    }
}

fn steps_change_no_bit(case: &Case) {
    let width = case.sizes.per_row + HEADS * case.layout.head_dim_v;
    for kernels in crate::all_tables() {
        let compute = super::compute(kernels, 2);
        let whole = case.whole(&compute);
        let mut pool = case.pool();
        let mut outs = [Vec::new(), Vec::new()];
        let mut at = 0;
        for step in [1, 40, 3, 64, 42] {
            let ranges = [0, 1]
                .map(|s| at.min(case.sequences.lens[s])..(at + step).min(case.sequences.lens[s]));
            let out = case.step(&compute, &mut pool, &ranges);
            let (first, second) = out.split_at(ranges[0].len() * width);
            outs[0].extend_from_slice(first);
            outs[1].extend_from_slice(second);
            at += step;
        }
        same_bits("in steps", &outs.concat(), &whole);
    }
}

/// A long context: several spans, of which most rows of pages hold none that is chosen.
#[test]
fn equal_scores_go_to_the_earlier_positions() {
    for sizes in [PoolSizes::single(5), PoolSizes { positions: 3, per_row: 5 }] {
        let mut case = Case::new(KvType::F32, sizes, &[1100]);
        case.weights.fill(0.0);
        let out = same_bits_everywhere("equal scores", |compute| case.whole(compute));
        let width = 5 + HEADS * case.layout.head_dim_v;
        for row in out.chunks_exact(width).skip(sizes.width()) {
            assert_eq!(row[..5], [0.0, 1.0, 2.0, 3.0, 4.0]);
        }
    }
}
