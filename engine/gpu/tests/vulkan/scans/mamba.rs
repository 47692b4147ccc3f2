//! Tests of Mamba-1's selective scan.

use brigade_ops::{Columns, MambaRows, MambaScan, MambaWeights};

use super::{PARTS, Scan, n_rows, parts};
use crate::common::{Random, compute, gpu, on};

/// Runs a case with states' rates of decay in `e^±3` times `rate`.
fn check(channels: usize, n_state: usize, rate: f32, random: &mut Random) {
    let Some(gpu) = gpu() else { return };
    let compute = compute();
    let n = n_rows(&parts(&PARTS));
    let a: Vec<f32> =
        random.values(channels * n_state, 3.0).iter().map(|a| -rate * a.exp()).collect();
    let (dt_bias, d) = (random.values(channels, 1.0), random.values(channels, 1.0));
    let [u, dt] = [1.0, 4.0].map(|scale| random.values(n * channels, scale));
    let [b, c] = [1.0; 2].map(|scale| random.values(n * n_state, scale));
    let stride = channels + 7;
    let gate = random.values(n * stride, 4.0);
    let buffers = [&u, &dt, &b, &c, &gate].map(|x| on(&gpu, x));
    let spans = buffers.each_ref().map(|x| x.span());
    let weights = &MambaWeights::new(&a, &dt_bias, &d);
    // Lanes beyond the channels are 0 in states, as new slots are.
    let mut states = random.values(super::SLOTS * weights.state_len(), 1.0);
    for (i, value) in states.iter_mut().enumerate() {
        if i % weights.state_len() / (16 * n_state) * 16 + i % 16 >= channels {
            *value = 0.0;
        }
    }
    let scan = Scan {
        name: &format!("mamba of {channels} channels, {n_state} states, rate {rate}"),
        per_slot: weights.state_len(),
        width: channels,
        on_cpu: &|parts, states, out| {
            let gate = Columns { values: &gate[..], stride, first_col: 5 };
            let rows = MambaRows { u: &u[..], dt: &dt, b: &b, c: &c, gate };
            compute.mamba_scan(MambaScan { weights, parts, states, rows, out });
        },
        on_gpu: &|gpu, parts, states, out| {
            let [u, dt, b, c, gate] = spans;
            let gate = Columns { values: gate, stride, first_col: 5 };
            let rows = MambaRows { u, dt, b, c, gate };
            gpu.mamba_scan(MambaScan { weights, parts, states, rows, out });
        },
    };
    scan.check(&parts(&PARTS), &states);
}

#[test]
fn all_sizes_have_the_bits_of_the_cpu() {
    let mut random = Random(53);
    for (channels, n_state) in [(1, 1), (16, 16), (37, 5), (72, 16), (33, 64)] {
        check(channels, n_state, 0.1, &mut random);
    }
}

#[test]
fn decays_to_nothing_have_the_bits_of_the_cpu() {
    check(40, 16, 100.0, &mut Random(54));
}
