//! The gated delta rule.

use brigade_gpu::{Decay, DeltaShape, GpuBuffer, KeyHeads, Span};
use brigade_ops::{Columns, DeltaRows, DeltaScan};

use super::{PARTS, Scan, n_rows, parts};
use crate::common::{Random, compute, gpu, on};

const KDA: DeltaShape = DeltaShape {
    n_head: 3,
    n_key_head: 3,
    key_heads: KeyHeads::Grouped,
    d_k: 32,
    d_v: 32,
    decay: Decay::PerChannel,
};

const GDN: DeltaShape = DeltaShape { n_head: 4, n_key_head: 2, decay: Decay::PerHead, ..KDA };

/// Unit heads, `[n, heads, d]` with `beside` further columns in each row.
fn unit(random: &mut Random, n: usize, width: usize, d: usize, beside: usize) -> Vec<f32> {
    let mut x = random.values(n * (width + beside), 1.0);
    for head in x.chunks_exact_mut(width + beside).flat_map(|row| row[2..][..width].chunks_mut(d)) {
        let norm = head.iter().map(|x| x * x).sum::<f32>().sqrt();
        head.iter_mut().for_each(|x| *x /= norm);
    }
    x
}

/// Columns of rows that are 5 wider, 2 of them before.
fn there(buffer: &GpuBuffer, width: usize) -> Columns<Span<'_>> {
    Columns { values: buffer.span(), stride: width + 5, first_col: 2 }
}

fn here(data: &[f32], width: usize) -> Columns<&[f32]> {
    Columns { values: data, stride: width + 5, first_col: 2 }
}

/// Runs a case with log decays of mean `-rate`.
fn check(shape: DeltaShape, rate: f32, random: &mut Random) {
    let Some(gpu) = gpu() else { return };
    let compute = compute();
    let n = n_rows(&parts(&PARTS));
    let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = shape;
    let keys = n_key_head * d_k;
    let widths = [keys, keys, n_head * d_v, shape.decay_len(), n_head];
    let [q, k] = [0; 2].map(|_| unit(random, n, keys, d_k, 5));
    let [v, decay, beta] = [2, 3, 4].map(|i: usize| random.values(n * (widths[i] + 5), 1.0));
    let decay: Vec<f32> = decay.iter().map(|x| (-rate * 2.0 * x.abs()).exp()).collect();
    let beta: Vec<f32> = beta.iter().map(|x| x.abs()).collect();
    let data = [q, k, v, decay, beta];
    let buffers = data.each_ref().map(|x| on(&gpu, x));
    Scan {
        name: &format!("delta of {shape:?}, rate {rate}"),
        per_slot: shape.state_len(),
        width: n_head * d_v,
        on_cpu: &|parts, states, out| {
            let [q, k, v, decay, beta] = [0, 1, 2, 3, 4].map(|i: usize| here(&data[i], widths[i]));
            let x = DeltaRows { q, k, v, decay, beta };
            compute.delta_scan(DeltaScan { shape: &shape, parts, states, x, out });
        },
        on_gpu: &|gpu, parts, states, out| {
            let [q, k, v, decay, beta] =
                [0, 1, 2, 3, 4].map(|i: usize| there(&buffers[i], widths[i]));
            let x = DeltaRows { q, k, v, decay, beta };
            gpu.delta_scan(DeltaScan { shape: &shape, parts, states, x, out });
        },
    }
    .check_all(random);
}

#[test]
fn all_shapes_have_the_bits_of_the_cpu() {
    let mut random = Random(55);
    let shapes = [
        KDA,
        GDN,
        DeltaShape { key_heads: KeyHeads::Tiled, ..GDN },
        DeltaShape { d_k: 24, d_v: 72, n_head: 1, n_key_head: 1, ..KDA },
        DeltaShape { d_k: 7, d_v: 5, key_heads: KeyHeads::Tiled, ..GDN },
        DeltaShape { d_k: 1, d_v: 1, ..KDA },
        DeltaShape { n_head: 1, n_key_head: 1, d_k: 128, d_v: 128, ..KDA },
    ];
    for shape in shapes {
        check(shape, 0.05, &mut random);
    }
}

#[test]
fn decays_to_nothing_have_the_bits_of_the_cpu() {
    let mut random = Random(56);
    for shape in [KDA, GDN] {
        check(shape, 12.0, &mut random);
    }
}
