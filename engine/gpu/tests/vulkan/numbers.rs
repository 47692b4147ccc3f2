//! The functions of `numbers.glsl` beside what the CPU computes, bit for bit.

use brigade_engine::kernels::Compute;
use brigade_gpu::{Gpu, SpanMut};

use crate::common::{Random, compute, gpu, on, values_of, words_on};

const DIV: u32 = 0;
const SQRT: u32 = 1;
const F16_TO_F32: u32 = 3;
const F32_TO_F16: u32 = 4;
const ROUND: u32 = 5;
const ADD: u32 = 6;
const MUL: u32 = 7;
const MUL_ADD: u32 = 8;
const LOW_OF_TWO: u32 = 9;
const HIGH_OF_TWO: u32 = 10;

/// Bits at and around every edge that a float has.
fn edges() -> Vec<u32> {
    let positive = [
        0,
        1,
        2,
        0x0000_ffff,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x00ff_ffff,
        0x0100_0000,
        0x3380_0000,
        0x3f7f_ffff,
        0x3f80_0000,
        0x3f80_0001,
        0x4000_0000,
        0x4040_0000,
        0x4b7f_ffff,
        0x4b80_0000,
        0x7e80_0000,
        0x7f00_0000,
        0x7f7f_fffe,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7fc0_0000,
    ];
    positive.iter().flat_map(|&bits| [bits, bits | 0x8000_0000]).collect()
}

/// Bits of the two operands of a function, for many calls: call `i` gets `a[i]` and `b[i]`.
struct Pairs {
    a: Vec<u32>,
    b: Vec<u32>,
}

impl Pairs {
    /// Both operands of a call are the same.
    fn of_same(x: Vec<u32>) -> Self {
        Self { a: x.clone(), b: x }
    }
}

/// Pairs of edges, then pairs of any bits, then pairs of like size.
fn pairs(n: usize) -> Pairs {
    let edges = edges();
    let mut pairs: Vec<(u32, u32)> =
        edges.iter().flat_map(|&a| edges.iter().map(move |&b| (a, b))).collect();
    let mut random = Random(7);
    while pairs.len() < n {
        let bits = random.bits();
        let (a, b) = (bits as u32, (bits >> 32) as u32);
        pairs.push((a, b));
        pairs.push((a & 0x807f_ffff | 0x3f80_0000, b & 0x807f_ffff | 0x3f00_0000));
    }
    let (a, b) = pairs.into_iter().unzip();
    Pairs { a, b }
}

/// Runs one function over pairs, and compares with `wanted`; returns how many differ, of those that `counts` lets count.
fn differing(
    function: u32,
    pairs: &Pairs,
    wanted: impl Fn(u32, u32) -> u32,
    counts: impl Fn(u32, u32, u32) -> bool,
) -> Option<Vec<(u32, u32, u32, u32)>> {
    let (gpu, Pairs { a, b }) = (gpu()?, pairs);
    let (a_on, b_on, mut y) = (words_on(&gpu, a), words_on(&gpu, b), words_on(&gpu, a));
    gpu.probe_numbers(function, a_on.span(), b_on.span(), y.span_mut());
    gpu.finish().expect("no failure");
    let y: &[u32] = bytemuck::cast_slice(y.bytes());
    let all = a.iter().zip(b).zip(y).map(|((&a, &b), &y)| (a, b, y, wanted(a, b)));
    Some(all.filter(|&(a, b, y, w)| y != w && counts(a, b, w)).collect())
}

fn nan(bits: u32) -> bool {
    f32::from_bits(bits).is_nan()
}

/// Differences where not both are NaN.
#[track_caller]
fn assert_exact(function: u32, pairs: &Pairs, wanted: impl Fn(u32, u32) -> u32) {
    let Some(wrong) = differing(function, pairs, wanted, |_, _, _| true) else { return };
    let wrong: Vec<_> = wrong.into_iter().filter(|&(_, _, y, w)| !(nan(y) && nan(w))).collect();
    let first: Vec<_> = wrong.iter().take(8).collect();
    assert!(wrong.is_empty(), "{} of {} differ: {first:x?}", wrong.len(), pairs.a.len());
}

fn float(f: impl Fn(f32, f32) -> f32) -> impl Fn(u32, u32) -> u32 {
    move |a, b| f(f32::from_bits(a), f32::from_bits(b)).to_bits()
}

#[test]
fn quotients_are_rounded_to_nearest_even() {
    assert_exact(DIV, &pairs(4_000_000), float(|a, b| a / b));
}

#[test]
fn roots_are_rounded_to_nearest_even() {
    let mut pairs = pairs(4_000_000);
    // A device that flushes subnormal numbers may take one for 0, whose root is itself.
    pairs.a.iter_mut().filter(|x| f32::from_bits(**x).is_subnormal()).for_each(|x| *x = 0);
    assert_exact(SQRT, &pairs, float(|a, _| a.sqrt()));
    // Squares of 24 bits and their neighbours, where a rounding is closest.
    let near = (0..1_000_000u32).map(|i| {
        let root = f32::from_bits(0x3f80_0000 + i * 16);
        (root * root).to_bits() + i % 3 - 1
    });
    let near: Vec<u32> = near.collect();
    assert_exact(SQRT, &Pairs::of_same(near), float(|a, _| a.sqrt()));
}

#[test]
fn every_f16_widens_exactly_and_f32_narrows_to_the_nearest() {
    let halves: Vec<u32> = (0..0x1_0000).collect();
    let same = Pairs::of_same(halves);
    let widened = |h: u32| half::f16::from_bits(h as u16).to_f32().to_bits();
    assert_exact(F16_TO_F32, &same, |h, _| widened(h));
    // What lies between two halves, and around the middle.
    let mut near: Vec<u32> = edges();
    for h in 0..0x1_0000 {
        let half_step = 1 << 12;
        for bits in [0, 1, half_step - 1, half_step, half_step + 1, 2 * half_step - 1] {
            near.push(widened(h).wrapping_add(bits));
        }
    }
    near.extend(pairs(1_000_000).a);
    let narrowed = |x: u32, _| u32::from(half::f16::from_f32(f32::from_bits(x)).to_bits());
    let Some(wrong) = differing(F32_TO_F16, &Pairs::of_same(near), narrowed, |a, _, _| !nan(a))
    else {
        return;
    };
    assert!(wrong.is_empty(), "{} differ: {:x?}", wrong.len(), &wrong[..wrong.len().min(8)]);
}

/// Attention has two at once, for which the sign of a zero is of no importance.
#[test]
fn every_f16_beside_any_other_widens_exactly_but_for_the_sign_of_zero() {
    let halves: Vec<u32> = (0..0x1_0000).collect();
    for turn in [0, 1, 0x3ff, 0x8001, 0xfc00] {
        let others = halves.iter().map(|h| h.wrapping_mul(0x9e37) ^ turn).collect();
        let widened = |h: u32, _| (half::f16::from_bits(h as u16).to_f32() + 0.0).to_bits();
        let pairs = Pairs { a: halves.clone(), b: others };
        assert_exact(LOW_OF_TWO, &pairs, widened);
        assert_exact(HIGH_OF_TWO, &pairs, widened);
    }
}

#[test]
fn integers_are_rounded_half_to_even() {
    let mut random = Random(3);
    let halves = (-200_000..200_000).map(|i| i as f32 * 0.5);
    let any = (0..400_000).map(|_| random.value() * 1e6);
    let x: Vec<u32> = halves.chain(any).map(f32::to_bits).collect();
    let wanted = |x: u32, _| f32::from_bits(x).round_ties_even() as i32 as u32;
    assert_exact(ROUND, &Pairs::of_same(x), wanted);
}

#[test]
fn sums_and_products_are_those_of_the_cpu_where_nothing_is_subnormal() {
    let pairs = pairs(2_000_000);
    let subnormal = |bits: u32| f32::from_bits(bits).is_subnormal();
    type Op = (u32, fn(f32, f32) -> f32);
    let ops: [Op; 3] = [(ADD, |a, b| a + b), (MUL, |a, b| a * b), (MUL_ADD, |a, b| a * a + b)];
    for (function, op) in ops {
        let Some(wrong) = differing(function, &pairs, float(op), |_, _, w| !nan(w)) else { return };
        let flushed = |&(a, b, _, w): &(u32, u32, u32, u32)| {
            let [a, b] = [a, b].map(f32::from_bits);
            // What is rounded up to the least normal number may be flushed before.
            let tiny = |x: f64| x.abs() < f64::from(f32::MIN_POSITIVE);
            let product = if function == MUL {
                f64::from(a) * f64::from(b)
            } else {
                f64::from(a) * f64::from(a)
            };
            subnormal(w) || a.is_subnormal() || b.is_subnormal() || function != ADD && tiny(product)
        };
        let (flushed, wrong): (Vec<_>, Vec<_>) = wrong.into_iter().partition(flushed);
        println!("function {function}: {} results differ by subnormals", flushed.len());
        let first: Vec<_> = wrong.iter().take(8).collect();
        assert!(wrong.is_empty(), "{function}: {} differ: {first:x?}", wrong.len());
    }
}

#[test]
fn activations_have_the_bits_of_the_cpu_over_their_whole_range() {
    let Some(gpu) = gpu() else { return };
    let compute = compute();
    // Steps of every size: bits at equal distances, subnormals left out.
    let magnitudes = (0x0080_0000..0x7f80_0000u32).step_by(3001);
    let x: Vec<f32> = magnitudes
        .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
        .chain([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 88.37, -87.33, -87.4])
        .collect();
    type OnGpu = fn(&Gpu, SpanMut<'_>);
    type OnCpu = fn(&Compute, &mut [f32]);
    let ops: [(&str, OnGpu, OnCpu); 4] = [
        ("silu", |gpu, x| gpu.silu(x), |cpu, x| cpu.silu(x)),
        ("sigmoid", |gpu, x| gpu.sigmoid(x), |cpu, x| cpu.sigmoid(x)),
        ("tanh", |gpu, x| gpu.tanh(x), |cpu, x| cpu.tanh(x)),
        ("softplus", |gpu, x| gpu.softplus(x), |cpu, x| cpu.softplus(x)),
    ];
    for (name, on_gpu, on_cpu) in ops {
        let (mut there, mut here) = (on(&gpu, &x), x.clone());
        on_gpu(&gpu, there.span_mut());
        on_cpu(&compute, &mut here);
        let there = values_of(&there);
        let pairs = x.iter().zip(there.iter().zip(&here));
        let wrong: Vec<_> = pairs
            .filter(|(_, (g, c))| g.to_bits() != c.to_bits() && !(g.is_nan() && c.is_nan()))
            .collect();
        println!(
            "{name}: {} of {} differ: {:?}",
            wrong.len(),
            x.len(),
            &wrong[..wrong.len().min(5)]
        );
        assert!(wrong.is_empty(), "{name}");
    }
}
