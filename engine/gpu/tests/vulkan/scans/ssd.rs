//! Tests of Mamba-2's recurrence.

use brigade_gpu::{GpuBuffer, Span, SsdShape};
use brigade_ops::{Columns, Ssd, SsdInput, SsdScan};

use super::{PARTS, SLOTS, Scan, n_rows, parts};
use crate::common::{Random, compute, gpu, on};

/// An operand's columns lie between others, as in a model: a row has this many more.
const BESIDE: usize = 6;
/// How many of the others come before the operand's own.
const BEFORE: usize = 2;

/// An operand on the GPU.
fn there(buffer: &GpuBuffer, width: usize) -> Columns<Span<'_>> {
    Columns { values: buffer.span(), stride: width + BESIDE, first_col: BEFORE }
}

/// An operand on the CPU.
fn here(data: &[f32], width: usize) -> Columns<&[f32]> {
    Columns { values: data, stride: width + BESIDE, first_col: BEFORE }
}

/// Compares the GPU with the CPU, with decays of about `e^-rate` a token and inputs of about `scale`. States begin with the value
/// `states`; `None`: with several random ones ([`Scan::check_all`]).
fn check(shape: SsdShape, rate: f32, scale: f32, random: &mut Random, states: Option<f32>) {
    let Some(gpu) = gpu() else { return };
    let compute = compute();
    let SsdShape { n_head, n_state, n_group, .. } = shape;
    let n = n_rows(&parts(&PARTS));
    let widths = [shape.n_inner(), n_group * n_state, n_group * n_state, n_head];
    let [x, b, c, dt] = widths.map(|width| random.values(n * (width + BESIDE), scale));
    let dt: Vec<f32> = dt.iter().map(|v| 3.0 * v).collect();
    let a: Vec<f32> = (0..n_head).map(|_| -rate * (1.0 + 0.5 * random.value())).collect();
    let (d, bias) = (random.values(n_head, 1.0), random.values(n_head, scale));
    let buffers = [&x, &b, &c, &dt].map(|x| on(&gpu, x));
    let ssd = &Ssd::new(shape, a.into(), d.into(), bias.into());
    let [x_there, b_there, c_there, dt_there] = &buffers;
    let scan = Scan {
        name: &format!("ssd of {shape:?}, rate {rate}"),
        per_slot: shape.state_len(),
        width: shape.n_inner(),
        on_cpu: &|parts, states, out| {
            let [x, b, c, dt] =
                [(&x, 0), (&b, 1), (&c, 2), (&dt, 3)].map(|(x, i)| here(x, widths[i]));
            compute.ssd(SsdScan { ssd, parts, states, input: SsdInput { x, b, c, dt }, out });
        },
        on_gpu: &|gpu, parts, states, out| {
            let input = SsdInput {
                x: there(x_there, widths[0]),
                b: there(b_there, widths[1]),
                c: there(c_there, widths[2]),
                dt: there(dt_there, widths[3]),
            };
            gpu.ssd(SsdScan { ssd, parts, states, input, out });
        },
    };
    match states {
        Some(value) => scan.check(&parts(&PARTS), &vec![value; SLOTS * shape.state_len()]),
        None => scan.check_all(random),
    }
}

fn shape(n_head: usize, head_dim: usize, n_state: usize, n_group: usize) -> SsdShape {
    SsdShape { n_head, head_dim, n_state, n_group }
}

#[test]
fn all_shapes_have_the_bits_of_the_cpu() {
    let mut random = Random(51);
    let shapes = [
        shape(1, 1, 1, 1),
        shape(6, 20, 7, 2),
        shape(4, 64, 16, 4),
        shape(2, 80, 33, 2),
        shape(2, 64, 128, 1),
        shape(1, 32, 256, 1),
    ];
    for shape in shapes {
        check(shape, 0.2, 1.0, &mut random, None);
    }
}

#[test]
fn decays_to_nothing_have_the_bits_of_the_cpu() {
    let mut random = Random(52);
    check(shape(6, 20, 7, 2), 60.0, 1.0, &mut random, None);
    // Without inputs a state only decays, until kernels take what is too small for 0. An output may then be -0.
    check(shape(2, 16, 5, 1), 0.9, 0.0, &mut random, Some(1e-20));
}
