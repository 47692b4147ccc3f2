//! Rotary positions beside the CPU's, bit for bit.

use brigade_engine::kernels::{self, Compute, RopeParams, RopeTable, Yarn};
use brigade_gpu::RopeLayout;
use brigade_ops::{Angles, Rope};

use crate::common::{Random, assert_same, compute, gpu, on, values_of};

fn params(layout: kernels::RopeLayout, n_rot: usize, yarn: bool) -> RopeParams {
    let yarn =
        yarn.then_some(Yarn { ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0, n_ctx_orig: 4096 });
    let (freq_base, freq_scale) = (10_000.0, if yarn.is_some() { 0.25 } else { 1.0 });
    RopeParams { layout, n_rot, freq_base, freq_scale, freq_factors: None, attn_factor: 1.0, yarn }
}

/// Cosines and sines of every row: what the CPU makes of pairs (1, 0).
fn table(compute: &Compute, table: &RopeTable, layout: RopeLayout, n_rot: usize) -> Vec<f32> {
    let half = n_rot / 2;
    let place = |pair: usize| match layout {
        RopeLayout::Norm => (2 * pair, 2 * pair + 1),
        RopeLayout::Neox => (pair, half + pair),
    };
    let mut turned = vec![0.0; table.n_rows() * n_rot];
    turned.chunks_exact_mut(n_rot).for_each(|row| (0..half).for_each(|i| row[place(i).0] = 1.0));
    compute.rope(&mut turned, n_rot, table);
    let rows = turned.chunks_exact(n_rot);
    rows.flat_map(|row| {
        let cosines = (0..half).map(|i| row[place(i).0]);
        cosines.chain((0..half).map(|i| row[place(i).1])).collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn heads_are_rotated() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(1));
    let layouts = [
        (RopeLayout::Norm, kernels::RopeLayout::Norm),
        (RopeLayout::Neox, kernels::RopeLayout::Neox),
    ];
    let shapes = [(1, 1, 2, 2), (1, 3, 64, 64), (5, 2, 17, 10), (33, 4, 96, 32), (7, 32, 128, 128)];
    for (there, here) in layouts {
        for (n, heads, head_dim, n_rot) in shapes {
            for yarn in [false, true] {
                let positions: Vec<u32> = (0..n).map(|r| r * 997 % 40_000).collect();
                let on_cpu = RopeTable::new(&compute, &params(here, n_rot, yarn), &positions);
                for on_cpu in [on_cpu.backwards(), &on_cpu] {
                    let angles = table(&compute, on_cpu, there, n_rot);
                    let mut x = random.values(n as usize * heads * head_dim, 2.0);
                    x.iter_mut().step_by(13).for_each(|x| *x = 0.0);
                    let (mut x_there, angles) = (on(&gpu, &x), on(&gpu, &angles));
                    let angles = Angles { by_pair: angles.span(), n_rot, layout: there };
                    gpu.rope(Rope { x: x_there.span_mut(), head_dim, angles });
                    compute.rope(&mut x, head_dim, on_cpu);
                    let name =
                        format!("{n} rows of {heads} heads, {n_rot} of {head_dim} {there:?}");
                    assert_same(&name, &values_of(&x_there), &x);
                }
            }
        }
    }
}
