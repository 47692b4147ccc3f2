//! Pools of rows by a gate, at hand and in pages.

use brigade_engine::kernels::Pooling;
use brigade_gpu::{KvLayout, PoolingSpans, ValuePlace};
use brigade_ops::{GatedRow, PoolGated};

use super::{Paged, TYPES, some_ranges};
use crate::common::{Random, assert_same, bytes_of, compute, gpu, on, values_of};

#[test]
fn pools_of_rows_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(70));
    for (n_pools, n_rows, width) in [(1, 1, 1), (3, 4, 24), (7, 8, 512), (2, 128, 80), (90, 8, 64)]
    {
        let n = n_pools * n_rows;
        let (values, mut gates) = (random.values(n * width, 1.0), random.values(n * width, 5.0));
        // One far above the others, and one below all.
        gates[0] = 1e30;
        gates[n * width - 1] = -1e30;
        let (values_there, gates_there) = (on(&gpu, &values), on(&gpu, &gates));
        // The first pool is short.
        let rows = |p: usize| {
            let n = if p == 0 { n_rows.div_ceil(2) } else { n_rows };
            (0..n).map(move |i| (p * n_rows + i) * width..(p * n_rows + i + 1) * width)
        };
        let here: Vec<Vec<_>> = (0..n_pools)
            .map(|p| {
                let row = |at: std::ops::Range<usize>| GatedRow {
                    values: &values[at.clone()],
                    gates: &gates[at],
                };
                rows(p).map(row).collect()
            })
            .collect();
        let there: Vec<Vec<_>> = (0..n_pools)
            .map(|p| {
                let row = |at: std::ops::Range<usize>| GatedRow {
                    values: values_there.span().part(4 * at.start..4 * at.end),
                    gates: gates_there.span().part(4 * at.start..4 * at.end),
                };
                rows(p).map(row).collect()
            })
            .collect();
        let mut out = vec![0.0; n_pools * width];
        let mut out_there = on(&gpu, &out);
        compute.pool_gated(PoolGated { pools: here, width, out: &mut out });
        gpu.pool_gated(PoolGated { pools: there, width, out: out_there.span_mut() });
        assert_same(&format!("{n_pools} pools of {n_rows}"), &values_of(&out_there), &out);
    }
}

#[test]
fn pages_with_keys_of_pools_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(71));
    let (lens, dim) = ([150, 1, 64, 101], 20);
    for ty in TYPES {
        let (index_dim, values) = (2 * dim, ValuePlace::InKeys);
        let layout =
            KvLayout { n_kv_head: 1, head_dim_k: 16, head_dim_v: 16, values, index_dim, ty };
        for positions in [2, 4, 5, 64, 70] {
            let bias = random.values(positions * dim, 1.0);
            let bias_there = on(&gpu, &bias);
            let mut paged = Paged::new(layout, &lens, &mut random);
            for ranges in some_ranges(&lens) {
                let mut there = paged.there(&gpu);
                let parts = paged.parts(&ranges);
                let pooling = PoolingSpans { positions, bias: bias_there.span() };
                gpu.pool_keys(&layout, there.span_mut(), &parts, pooling).expect("room");
                let mut pool = std::mem::take(&mut paged.pool);
                let bytes = bytemuck::cast_slice_mut(&mut pool);
                let pooling = Pooling { positions, bias: &bias };
                compute.pool_keys(&layout, bytes, &paged.parts(&ranges), pooling);
                paged.pool = pool;
                assert!(bytes_of(&there) == paged.bytes(), "pools of {positions}, {ty:?}");
            }
        }
    }
}
