//! Causal convolutions.

use brigade_engine::kernels;
use brigade_gpu::{ColumnsSpan, ConvSpans, StateAt};

use super::{PARTS, Scan, n_rows, parts};
use crate::common::{Random, compute, gpu, on};

/// `[taps, channels]` of what files hold as `[channels, taps]`.
fn by_tap(weight: &[f32], taps: usize) -> Vec<f32> {
    let channels = weight.len() / taps;
    (0..weight.len()).map(|i| weight[i % channels * taps + i / channels]).collect()
}

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
        let conv = kernels::Conv::new(&weight, taps, Some(bias.clone().into()), silu);
        // The state lies amidst others of its slot.
        let per_slot = conv.state_len() + 23;
        let on_gpu = [by_tap(&weight, taps), bias, x.clone()].map(|x| on(&gpu, &x));
        let [weight, bias, x_there] = &on_gpu;
        let (weight, bias) = (weight.span(), bias.span());
        let there = ConvSpans { taps, channels, weight, bias, silu };
        assert_eq!(there.state_len(), conv.state_len());
        Scan {
            name: &format!("conv of {taps} taps, {channels} channels"),
            per_slot,
            width: channels,
            on_cpu: &|parts, states, out| {
                let at = kernels::StateAt { per_slot, first: 7 };
                let x = kernels::Columns { data: &x, stride, first_col: 3 };
                compute.conv_at(&conv, parts, states, at, x, out);
            },
            on_gpu: &|gpu, parts, states, out| {
                let at = StateAt { per_slot, first: 7 };
                let x = ColumnsSpan { span: x_there.span(), stride, first_col: 3 };
                gpu.conv(&there, parts, states, at, x, out);
            },
        }
        .check_all(&mut random);
    }
}
