//! Sums over streams and over depth, weights of streams, and rows with sums in f64, beside the CPU's, bit for bit.

use brigade_gpu::{DilatedConv, Span, StreamShape, SumStart, WeighedSpans, WeightsAt};
use brigade_ops::{DilatedRows, ProductRoots, ScanPart, Vector, Weigh};

use crate::common::{Random, all_pairs, assert_same, compute, gpu, on, values_of};

/// Rows and columns: tiny, ragged, longer than a workgroup and than a piece.
const SHAPES: [(usize, usize); 9] =
    [(1, 1), (1, 7), (3, 15), (5, 16), (33, 64), (2, 257), (4, 2048), (2, 5000), (0, 8)];

#[test]
fn rows_of_sources_are_weighed_in_their_order() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(1));
    for (n, d) in SHAPES {
        for n_sources in [1, 4, 9] {
            for (stride, by_column) in [(d, false), (0, false), (d + 3, true)] {
                let sources: Vec<Vec<f32>> =
                    (0..n_sources).map(|_| random.values((n + 1) * (d + 3), 2.0)).collect();
                let per_source = if by_column { d } else { 2 };
                let row = n_sources * per_source + 5;
                let at = WeightsAt { first: 3, stride: row, step: per_source, by_column };
                let weights = random.values((n + 1) * row, 1.5);
                let out = random.values(n * d, 1.0);
                let on_gpu: Vec<_> = sources.iter().map(|x| on(&gpu, x)).collect();
                let spans: Vec<Span<'_>> = on_gpu.iter().map(|x| x.span()).collect();
                let slices: Vec<&[f32]> = sources.iter().map(|x| &x[..]).collect();
                let weights_there = on(&gpu, &weights);
                for start in [SumStart::Zero, SumStart::Own] {
                    let (mut there, mut here) = (on(&gpu, &out), out.clone());
                    let weights_span = weights_there.span();
                    let of = WeighedSpans { sources: &spans, stride, weights: weights_span, at };
                    gpu.weigh(there.span_mut(), d, start, &of);
                    compute.weigh(Weigh {
                        out: &mut here,
                        d,
                        start,
                        sources: slices.clone(),
                        firsts: vec![0; n_sources],
                        stride,
                        weights: &weights,
                        at,
                    });
                    let name = format!("{n} rows of {d}, {n_sources} sources, {at:?}, {start:?}");
                    assert_same(&name, &values_of(&there), &here);
                }
            }
        }
    }
}

#[test]
fn rows_attend_over_depth() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(2));
    for (n, d) in SHAPES {
        for n_sources in [1, 2, 16, 17, 40] {
            let sources: Vec<Vec<f32>> =
                (0..n_sources).map(|_| random.values(n * d, 2.0)).collect();
            let score = random.values(d, 1.0);
            let on_gpu: Vec<_> = sources.iter().map(|x| on(&gpu, x)).collect();
            let spans: Vec<Span<'_>> = on_gpu.iter().map(|x| x.span()).collect();
            let slices: Vec<&[f32]> = sources.iter().map(|x| &x[..]).collect();
            let (mut there, mut here) = (on(&gpu, &vec![9.0; n * d]), vec![9.0; n * d]);
            gpu.attend_depth(&spans, on(&gpu, &score).span(), 1e-5, there.span_mut());
            compute.attend_depth(&slices, &score, 1e-5, &mut here);
            let name = format!("{n} rows of {d}, {n_sources} sources");
            assert_same(&name, &values_of(&there), &here);
        }
    }
}

/// Rounds in which the matrix is balanced, if there is one, and whether weights come with it.
type Mixing = (Option<usize>, bool);

const ALL: [Mixing; 4] = [(None, false), (Some(1), true), (Some(20), true), (Some(2), false)];

#[test]
fn streams_get_their_weights() {
    weights_of_streams(&[1, 2, 3, 4], &ALL);
}

/// Apart, since drivers compile long for many streams: tests run beside each other.
#[test]
fn seven_streams_get_their_weights() {
    weights_of_streams(&[7], &[ALL[0], ALL[1], ALL[3]]);
}

#[test]
fn sixteen_streams_get_their_weights() {
    let all = gpu().is_some_and(|gpu| all_pairs(&gpu));
    weights_of_streams(&[16], &ALL[2..if all { 4 } else { 3 }]);
}

fn weights_of_streams(counts: &[usize], mixings: &[Mixing]) {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(3));
    for &n in counts {
        for &(rounds, mixes) in mixings {
            let shape = StreamShape { n, eps: 1e-6, magnitude: 2.0, post_eps: 0.25, rounds };
            let width = match (rounds, mixes) {
                (None, _) => 2 * n,
                (Some(_), true) => 2 * n + n * n,
                (Some(_), false) => n,
            };
            for n_rows in [0, 1, 65] {
                let base = random.values(width, 3.0);
                let scale = random.values(3, 4.0);
                let mut here = random.values(n_rows * width, 6.0);
                let mut there = on(&gpu, &here);
                let (base_there, scale_there) = (on(&gpu, &base), on(&gpu, &scale));
                let (b, s) = (base_there.span(), scale_there.span());
                gpu.stream_weights(&shape, b, s, there.span_mut());
                compute.stream_weights(&shape, &base, &scale, &mut here);
                let name = format!("{n_rows} rows, {shape:?}, {width} numbers");
                assert_same(&name, &values_of(&there), &here);
            }
        }
    }
}

/// All sizes of numbers, so that every case of the exponential and of the hyperbolic tangent is met.
#[test]
fn exponentials_are_those_of_libm() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(4));
    let any = |random: &mut Random| {
        let size = 2f32.powi(random.below(40) as i32 - 30);
        random.value() * size
    };
    let edges =
        [0.0, -0.0, 1.0, 0.2554, 0.2555, 0.5493, 0.5494, 10.0, 10.1, 88.7, 88.8, -87.4, -104.0];
    let mut x: Vec<f32> = (0..300_000).map(|_| any(&mut random)).collect();
    x.extend(edges);
    x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-20, -1e-20, 3e-8]);
    let mut there = on(&gpu, &x);
    gpu.plain_tanh(there.span_mut());
    let tanh: Vec<f32> = x.iter().map(|x| libm_tanh(&compute, *x)).collect();
    assert_same("tanh", &values_of(&there), &tanh);
    // What is read of one stream is a sigmoid.
    let shape = StreamShape { n: 1, eps: 0.0, magnitude: 1.0, post_eps: 0.0, rounds: None };
    let (base, scale) = ([0.0], [1.0]);
    let (mut there, mut here) = (on(&gpu, &x), x.clone());
    let (base_there, scale_there) = (on(&gpu, &base), on(&gpu, &scale));
    gpu.stream_weights(&shape, base_there.span(), scale_there.span(), there.span_mut());
    compute.stream_weights(&shape, &base, &scale, &mut here);
    assert_same("sigmoid", &values_of(&there), &here);
}

fn libm_tanh(compute: &brigade_engine::kernels::Compute, x: f32) -> f32 {
    let mut one = [x];
    compute.plain_tanh(&mut one);
    one[0]
}

/// Values of many sizes, so that sums in f64 are rounded.
fn uneven(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| random.value() * 2f32.powi(random.below(60) as i32 - 40)).collect()
}

#[test]
fn rows_with_sums_in_f64() {
    let Some(gpu) = gpu() else { return };
    if !gpu.facts().float64 {
        println!("skipped: {} has no f64", gpu.facts().name);
        return;
    }
    let (compute, mut random) = (compute(), Random(5));
    for (n, d) in SHAPES.into_iter().chain([(700, 33), (3000, 2)]) {
        let (x, y) = (uneven(&mut random, n * d), uneven(&mut random, n * d));
        let (x_there, y_there) = (on(&gpu, &x), on(&gpu, &y));
        let name = |op: &str| format!("{op}, {n} rows of {d}");
        let (mut there, mut here) = (on(&gpu, &x), x.clone());
        gpu.match_magnitudes(there.span_mut(), y_there.span(), d);
        compute.match_magnitudes(&mut here, &y, d);
        assert_same(&name("magnitudes"), &values_of(&there), &here);
        let (mut there, mut here) = (on(&gpu, &vec![1.0; n]), vec![1.0; n]);
        let (divisor, least) = (3.0, 1e-6);
        let (x_span, y_span, out) = (x_there.span(), y_there.span(), there.span_mut());
        gpu.product_roots(ProductRoots { x: x_span, y: y_span, d, divisor, least, out });
        let out = &mut here;
        compute.product_roots(ProductRoots { x: &x, y: &y, d, divisor, least, out });
        assert_same(&name("roots"), &values_of(&there), &here);
        for deviations in [1.644_853_6, -0.5, 0.0] {
            if d > 1 {
                let (mut there, mut here) = (on(&gpu, &x), x.clone());
                gpu.keep_above(there.span_mut(), d, deviations);
                compute.keep_above(&mut here, d, deviations);
                assert_same(&name("above"), &values_of(&there), &here);
            }
        }
    }
}

#[test]
fn rows_of_zeros_and_of_no_numbers_have_sums_too() {
    let Some(gpu) = gpu() else { return };
    if !gpu.facts().float64 {
        return;
    }
    let compute = compute();
    let rows = [
        [0.0; 4],
        [1.0; 4],
        [f32::INFINITY, 1.0, 2.0, 3.0],
        [f32::NAN, 1.0, 2.0, 3.0],
        [-1e-38, 1e-38, 3e38, -3e38],
    ];
    let x = rows.concat();
    let ones = on(&gpu, &[1.0; 20]);
    let (mut there, mut here) = (on(&gpu, &x), x.clone());
    gpu.keep_above(there.span_mut(), 4, 1.5);
    compute.keep_above(&mut here, 4, 1.5);
    assert_same("above", &values_of(&there), &here);
    let (mut there, mut here) = (on(&gpu, &x), x.clone());
    gpu.match_magnitudes(there.span_mut(), ones.span(), 4);
    compute.match_magnitudes(&mut here, &[1.0; 20], 4);
    assert_same("magnitudes", &values_of(&there), &here);
}

#[test]
fn convolutions_with_taps_apart_and_what_they_leave() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(6));
    for (channels, taps, apart) in [(1, 1, 1), (5, 4, 3), (70, 3, 2), (300, 2, 1)] {
        let conv = DilatedConv { channels, taps, apart };
        let part = |from, slot, first_row, n_rows| (from, slot, first_row, n_rows);
        for parts in [
            vec![part(2, 2, 0, 1)],
            vec![part(1, 1, 0, 3), part(0, 0, 3, 20), part(3, 3, 23, 0)],
            // Read in a slot that no part writes.
            vec![part(2, 1, 0, 1), part(2, 3, 1, 20)],
        ] {
            let scan_parts: Vec<ScanPart> = parts
                .iter()
                .map(|&(from, slot, first_row, n_rows)| ScanPart {
                    from,
                    slot,
                    first_pos: 0,
                    first_row,
                    n_rows,
                })
                .collect();
            let n_rows: usize = parts.iter().map(|part| part.3).sum();
            let x = random.values(n_rows * channels, 2.0);
            let weight = random.values(taps * channels, 1.0);
            let mut states = random.values(4 * conv.state_len(), 2.0);
            let (mut states_there, x_there) = (on(&gpu, &states), on(&gpu, &x));
            let (weight, mut there) = (Vector::from(weight), on(&gpu, &vec![0.0; x.len()]));
            gpu.dilated_conv(DilatedRows {
                conv: &conv,
                parts: &scan_parts,
                states: states_there.span(),
                x: x_there.span(),
                weight: &weight,
                out: there.span_mut(),
            });
            let mut here = vec![0.0; x.len()];
            compute.dilated_conv(DilatedRows {
                conv: &conv,
                parts: &scan_parts,
                states: &states,
                x: &x,
                weight: &weight,
                out: &mut here,
            });
            let name = format!("{conv:?} of {parts:?}");
            assert_same(&name, &values_of(&there), &here);
            gpu.keep_last_rows(&conv, &scan_parts, states_there.span_mut(), x_there.span());
            compute.keep_last_rows(&conv, &scan_parts, &mut states, &x);
            assert_same(&name, &values_of(&states_there), &states);
        }
    }
}
