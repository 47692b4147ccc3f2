//! Mamba-1's selective scan.

use brigade_engine::kernels;
use brigade_gpu::{ColumnsSpan, MambaRows, MambaSpans};

use super::{PARTS, Scan, n_rows, parts};
use crate::common::{Random, compute, gpu, on};

/// `[tiles, n_state, 16]` of what files hold as `[channels, n_state]`.
fn by_tile(a: &[f32], channels: usize) -> Vec<f32> {
    let n_state = a.len() / channels;
    let of = |i: usize| {
        let (tile, n, lane) = (i / (n_state * 16), i / 16 % n_state, i % 16);
        a.get((tile * 16 + lane) * n_state + n).copied().unwrap_or(0.0)
    };
    (0..channels.next_multiple_of(16) * n_state).map(of).collect()
}

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
    let tiled = by_tile(&a, channels);
    let buffers = [&tiled, &dt_bias, &d, &u, &dt, &b, &c, &gate].map(|x| on(&gpu, x));
    let spans = buffers.each_ref().map(|x| x.span());
    let [a_there, dt_bias_there, d_there, ..] = spans;
    let on_cpu = kernels::MambaScan::new(&a, &dt_bias, &d);
    let on_gpu = MambaSpans { channels, n_state, a: a_there, dt_bias: dt_bias_there, d: d_there };
    assert_eq!(on_gpu.state_len(), kernels::MambaScan::state_len(channels, n_state));
    // Lanes beyond the channels are 0 in states, as new slots are.
    let mut states = random.values(super::SLOTS * on_gpu.state_len(), 1.0);
    for (i, value) in states.iter_mut().enumerate() {
        if i % on_gpu.state_len() / (16 * n_state) * 16 + i % 16 >= channels {
            *value = 0.0;
        }
    }
    let scan = Scan {
        name: &format!("mamba of {channels} channels, {n_state} states, rate {rate}"),
        per_slot: on_gpu.state_len(),
        width: channels,
        on_cpu: &|parts, states, out| {
            let gate = kernels::Columns { data: &gate, stride, first_col: 5 };
            let rows = kernels::MambaRows { u: &u, dt: &dt, b: &b, c: &c, gate };
            compute.mamba_scan(&on_cpu, parts, states, rows, out);
        },
        on_gpu: &|gpu, parts, states, out| {
            let [.., u, dt, b, c, gate] = spans;
            let gate = ColumnsSpan { span: gate, stride, first_col: 5 };
            gpu.mamba_scan(&on_gpu, parts, states, MambaRows { u, dt, b, c, gate }, out);
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
