//! Gated pools against f64, and bit equality on all tables and thread counts, also of each pool alone.

use super::{Rng, close, same_bits, same_bits_everywhere};
use crate::kernels::GatedRow;
use crate::kernels::reference::pooled::pool_gated;

#[test]
fn gated_pools_match_f64() {
    let mut rng = Rng::new(191);
    for (n_pools, n_rows, width) in [(1, 1, 1), (3, 4, 24), (7, 8, 512), (2, 128, 80), (90, 8, 64)]
    {
        let values: Vec<f32> = rng.values(n_pools * n_rows * width);
        let gates: Vec<f32> = rng.values(n_pools * n_rows * width);
        let row = |p: usize, i: usize| {
            let at = (p * n_rows + i) * width..(p * n_rows + i + 1) * width;
            GatedRow { values: &values[at.clone()], gates: &gates[at] }
        };
        // The first pool is short.
        let rows = |p: usize| -> Vec<GatedRow<'_>> {
            let n = if p == 0 { n_rows.div_ceil(2) } else { n_rows };
            (0..n).map(|i| row(p, i)).collect()
        };
        let pools: Vec<_> = (0..n_pools).map(rows).collect();
        let of = |pools: &[Vec<GatedRow<'_>>]| {
            same_bits_everywhere("pool_gated", |compute| {
                let mut out = vec![f32::NAN; pools.len() * width];
                compute.pool_gated(pools, width, &mut out);
                out
            })
        };
        let out = of(&pools);
        for (rows, out) in pools.iter().zip(out.chunks_exact(width)) {
            for (got, want) in out.iter().zip(pool_gated(rows)) {
                close("pool_gated", *got, want, 1e-5);
            }
        }
        let last = of(&pools[n_pools - 1..]);
        same_bits("the last pool alone", &last, &out[(n_pools - 1) * width..]);
    }
}

#[test]
fn a_gate_far_above_the_others_gives_its_row() {
    let values = [[1.0f32, -2.0], [3.0, 4.0], [-5.0, 6.0]];
    let gates = [[0.0f32, 500.0], [300.0, 0.0], [-1e30, -400.0]];
    let rows = values.iter().zip(&gates).map(|(values, gates)| GatedRow { values, gates });
    let out = same_bits_everywhere("pool_gated", |compute| {
        let mut out = vec![0.0; 2];
        compute.pool_gated(&[rows.clone().collect()], 2, &mut out);
        out
    });
    same_bits("far gates", &out, &[3.0, -2.0]);
}
