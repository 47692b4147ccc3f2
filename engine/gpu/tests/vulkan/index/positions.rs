//! Choosing of positions and of pools of them.

use brigade_engine::kernels::Index;
use brigade_gpu::{Gpu, IndexSpans, KvLayout, KvType, PoolSizes, ValuePlace};

use super::{LENS, Paged, in_turn, some_ranges};
use crate::common::{Random, all_pairs, assert_same, compute, gpu, on, values_of};

/// Chooses `sizes` by an index of so many heads with keys of `dim`; with weights, or with none, where all scores are equal.
fn check(
    gpu: &Gpu,
    ty: KvType,
    sizes: PoolSizes,
    n_head: usize,
    dim: usize,
    lens: &[usize],
    scale: f32,
) {
    let (compute, mut random) = (compute(), Random(sizes.width() as u64));
    let index_dim = if sizes.positions == 1 { dim } else { 2 * dim };
    let values = ValuePlace::InKeys;
    let layout = KvLayout { n_kv_head: 1, head_dim_k: 20, head_dim_v: 8, values, index_dim, ty };
    let paged = Paged::new(layout, lens, &mut random);
    let pool = paged.there(gpu);
    // Of long contexts the last rows alone, where all take long.
    let is_long = lens.iter().any(|len| *len > 1000) && !all_pairs(gpu);
    for ranges in some_ranges(lens).into_iter().skip(usize::from(is_long)) {
        let n: usize = ranges.iter().map(|range| range.len()).sum();
        let q = random.values(n * n_head * dim, 1.0);
        let weights = random.values(n * n_head, scale);
        let mut here = vec![7.0; n * sizes.per_row];
        let PoolSizes { positions, per_row } = sizes;
        let on_cpu = Index {
            layout: &layout,
            pool: paged.bytes(),
            parts: &paged.parts(&ranges),
            n_head,
            sizes: PoolSizes { positions, per_row },
        };
        compute.choose(&on_cpu, &q, &weights, &mut here);
        let mut there = on(gpu, &vec![7.0; n * per_row]);
        let (q, weights) = (on(gpu, &q), on(gpu, &weights));
        let parts = paged.parts(&ranges);
        let on_gpu =
            IndexSpans { layout: &layout, pool: pool.span(), parts: &parts, n_head, sizes };
        gpu.choose(&on_gpu, q.span(), weights.span(), there.span_mut()).expect("room");
        let name = format!("{sizes:?} of {ty:?}, {n} rows, {n_head} heads of {dim}");
        assert_same(&name, &values_of(&there), &here);
    }
}

#[test]
fn positions_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (per_row, ty) in in_turn(&[1, 7, 64, 100]) {
        check(&gpu, ty, PoolSizes { positions: 1, per_row }, 20, 36, &LENS, 1.0);
    }
    let sizes = PoolSizes { positions: 1, per_row: 30 };
    check(&gpu, KvType::F32, sizes, 1, 1, &[70], 1.0);
    check(&gpu, KvType::F16, sizes, 64, 128, &[66], 1.0);
}

#[test]
fn pools_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for ((positions, per_row), ty) in in_turn(&[(2, 1), (4, 16), (3, 5), (7, 9), (70, 1)]) {
        check(&gpu, ty, PoolSizes { positions, per_row }, 20, 36, &LENS, 1.0);
    }
}

#[test]
fn of_equal_scores_the_earlier_are_chosen_in_long_contexts_too() {
    let Some(gpu) = gpu() else { return };
    for (positions, scale) in [(1, 0.0), (3, 0.0), (1, 1.0)] {
        check(&gpu, KvType::F32, PoolSizes { positions, per_row: 5 }, 3, 20, &[1100], scale);
    }
}
