//! Tests of causal convolutions.

use brigade_gpu::StateAt;
use brigade_ops::{Columns, Conv, ConvRows};

use super::{PARTS, Scan, n_rows, parts};
use crate::common::{Random, compute, gpu, on};

#[test]
fn convolutions_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(50));
    let n = n_rows(&parts(&PARTS));
    for (channels, taps, silu) in
        [(1, 2, false), (16, 4, true), (37, 3, true), (80, 5, true), (200, 8, false)]
    {
        let (weight, bias) = (random.values(channels * taps, 1.0), random.values(channels, 1.0));
        let stride = channels + 5;
        let x = random.values(n * stride, 3.0);
        let conv = &Conv::new(&weight, taps, Some(bias.into()), silu);
        // The state lies amidst others of its slot.
        let per_slot = conv.state_len() + 23;
        let x_there = on(&gpu, &x);
        let at = StateAt { per_slot, first: 7 };
        Scan {
            name: &format!("conv of {taps} taps, {channels} channels"),
            per_slot,
            width: channels,
            on_cpu: &|parts, states, out| {
                let x = Columns { values: &x[..], stride, first_col: 3 };
                compute.conv(ConvRows { conv, parts, states, at, x, out });
            },
            on_gpu: &|gpu, parts, states, out| {
                let x = Columns { values: x_there.span(), stride, first_col: 3 };
                gpu.conv(ConvRows { conv, parts, states, at, x, out });
            },
        }
        .check_all(&mut random);
    }
}
