//! The lane operations of each instruction set against the arrays of the reference, bit for bit.

use super::Rng;
use brigade_kernels::inner::{EXP_ERROR, exp};
use brigade_kernels::lanes::{LANES, Op, Scalar, Simd};

/// Runs an op on every instruction set of this machine; all must agree with the reference.
fn on_all<O: Op + Copy>(op: O) -> O::Out
where
    O::Out: PartialEq + std::fmt::Debug,
{
    let want = Scalar.run(op);
    #[cfg(target_arch = "x86_64")]
    {
        agree::<brigade_kernels_avx2::Avx2, O>(op, &want);
        agree::<brigade_kernels_avx2::AvxVnni, O>(op, &want);
        agree::<brigade_kernels_avx512::Avx512, O>(op, &want);
        agree::<brigade_kernels_avx512::bf16::Avx512Bf16, O>(op, &want);
        agree::<brigade_kernels_software::Avx512, O>(op, &want);
    }
    #[cfg(target_arch = "aarch64")]
    agree::<brigade_kernels_neon::Neon, O>(op, &want);
    want
}

fn agree<S: Simd, O: Op>(op: O, want: &O::Out)
where
    O::Out: PartialEq + std::fmt::Debug,
{
    match S::detect() {
        Some(s) => assert_eq!(&s.run(op), want, "{}", S::NAME),
        None => println!("this machine has no {}: skipped", S::NAME),
    }
}

fn bits(values: [f32; LANES]) -> [u32; LANES] {
    values.map(f32::to_bits)
}

#[derive(Clone, Copy)]
struct Floats {
    a: [f32; LANES],
    b: [f32; LANES],
    c: [f32; LANES],
}

impl Op for Floats {
    type Out = Vec<[u32; LANES]>;
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> Self::Out {
        let (a, b, c) = (s.load(&self.a), s.load(&self.b), s.load(&self.c));
        let results = [
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.fma(a, b, c),
            s.max(a, b),
            s.select_gt(a, b, c, a),
            s.swap_pairs(a),
            s.to_f32(s.round_i32(a)),
            s.splat(s.sum(a)),
            s.splat(s.max_lane(a)),
            exp(s, a),
        ];
        let mut half = [0u16; LANES];
        s.store_f16(a, &mut half);
        let mut out: Self::Out = vec![half.map(u32::from)];
        for v in results.into_iter().chain([s.load_f16(&half), s.load_bf16(&half)]) {
            let mut lanes = [0.0; LANES];
            s.store(v, &mut lanes);
            out.push(bits(lanes));
        }
        out
    }
}

#[test]
fn float_operations_agree_on_every_instruction_set() {
    let mut rng = Rng::new(1);
    for round in 0..2000 {
        let scale = 10.0f32.powi(round % 9 - 4);
        let lanes = |rng: &mut Rng| std::array::from_fn(|_| rng.value() * scale);
        on_all(Floats { a: lanes(&mut rng), b: lanes(&mut rng), c: lanes(&mut rng) });
    }
    let edge = [
        0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 65504.0, 65520.0, 1e-8, 6e-8, 1e-40, 100.0,
        -87.4, 3e4,
    ];
    on_all(Floats { a: edge, b: [1.0; LANES], c: [-0.0; LANES] });
}

#[derive(Clone, Copy)]
struct Pairs {
    w: [[f32; LANES]; 2],
    x: [[f32; LANES]; 2],
    acc: [f32; LANES],
}

impl Op for Pairs {
    type Out = [[u32; LANES]; 2];
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> Self::Out {
        let pair = |[first, second]: [[f32; LANES]; 2]| s.pair(s.load(&first), s.load(&second));
        let (w, x) = (pair(self.w), pair(self.x));
        [s.bits_f32(w), s.dot_pairs(s.load(&self.acc), w, x)].map(|v| {
            let mut lanes = [0.0; LANES];
            s.store(v, &mut lanes);
            bits(lanes)
        })
    }
}

/// A value that is rounded to seven bits behind the point, by the rule that the half goes to the even one.
fn rounded(x: f32) -> f32 {
    let unit = 2f64.powi(x.abs().log2().floor() as i32 - 7);
    ((f64::from(x) / unit).round_ties_even() * unit) as f32
}

#[test]
fn pairs_of_bfloat16_agree_on_every_instruction_set() {
    let mut rng = Rng::new(5);
    for round in 0..2000 {
        let scale = 10.0f32.powi(round % 9 - 4);
        let mut lanes = || std::array::from_fn(|_| rng.value() * scale);
        let op = Pairs { w: [lanes(), lanes()], x: [lanes(), lanes()], acc: lanes() };
        let [pairs, sums] = on_all(op);
        for i in 0..LANES {
            let [w0, w1, x0, x1] = [op.w[0][i], op.w[1][i], op.x[0][i], op.x[1][i]].map(rounded);
            assert_eq!(
                pairs[i],
                w0.to_bits() >> 16 | w1.to_bits(),
                "{:?}",
                [op.w[0][i], op.w[1][i]]
            );
            assert_eq!(f32::from_bits(sums[i]), op.acc[i] + w1 * x1 + w0 * x0);
        }
    }
    // Halves between two values, and the ends of the range.
    let edge = [
        1.0 + 1.0 / 256.0,
        1.0 + 3.0 / 256.0,
        -1.0 - 1.0 / 256.0,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        65504.0,
        3.3961776e38,
        1e-30,
        1.0,
        -2.5,
        3.0,
        256.0,
        257.0,
    ];
    let [pairs, _] = on_all(Pairs { w: [edge, edge], x: [[0.0; LANES]; 2], acc: [0.0; LANES] });
    let halves = pairs.map(|pair| pair >> 16);
    assert_eq!(halves[..5], [0x3f80, 0x3f82, 0xbf80, 0x7f80, 0x7f80], "{halves:x?}");
}

#[derive(Clone, Copy)]
struct Integers {
    codes: [u8; 64],
    x: [i8; 64],
    table: [u8; 16],
    signed: bool,
}

impl Op for Integers {
    type Out = Vec<[i32; LANES]>;
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> Self::Out {
        let codes = s.load_bytes(&self.codes);
        let x_bytes = self.x.map(|b| b as u8);
        let x = s.load_bytes(&x_bytes);
        let low = s.and_i(codes, s.splat_i(0x0f0f_0f0f));
        let small = s.and_i(codes, s.splat_i(0x7f7f_7f7f));
        let sixteen: &[u8; LANES] = self.codes.first_chunk().expect("64 bytes");
        let halves: [u16; LANES] =
            std::array::from_fn(|i| u16::from_le_bytes([self.codes[2 * i], self.codes[2 * i + 1]]));
        let mut results = vec![
            s.shl_i(codes, 3),
            s.shr_i(codes, 5),
            s.shl_i(codes, 0),
            s.or_i(low, s.shl_i(low, 4)),
            s.add_i(codes, x),
            s.lookup(&self.table, low),
            s.load_u8(sixteen),
            s.load_i8(sixteen),
            s.load_u16(&halves),
            s.splat_bytes(&[self.x[0], self.x[1], self.x[2], self.x[3]]),
            s.splat_i(s.sum_i(codes)),
            s.dot4(s.splat_i(7), small, x),
        ];
        if self.signed {
            // One start for all lanes, so all lanes get the same activations.
            let quad = s.splat_bytes(&[self.x[0], self.x[1], self.x[2], self.x[3]]);
            let sum: i32 = self.x[..4].iter().map(|&b| i32::from(b)).sum();
            results.push(s.dot4_signed(s.signed_start(-sum), codes, quad));
        }
        let to_lanes = |v: S::I| {
            // Through bytes, because there is no plain store of integers.
            let byte = |n: u32| {
                let mut out = [0i8; LANES];
                s.store_low_bytes(s.shr_i(v, 8 * n), &mut out);
                out.map(|b| b as u8)
            };
            let bytes = [byte(0), byte(1), byte(2), byte(3)];
            std::array::from_fn(|i| i32::from_le_bytes(bytes.map(|b| b[i])))
        };
        results.into_iter().map(to_lanes).collect()
    }
}

#[test]
fn integer_operations_agree_on_every_instruction_set() {
    let mut rng = Rng::new(2);
    for _ in 0..5000 {
        let op = Integers {
            codes: std::array::from_fn(|_| rng.bits() as u8),
            x: std::array::from_fn(|_| (rng.bits() as i8).max(-127)),
            table: std::array::from_fn(|_| rng.bits() as u8),
            signed: true,
        };
        on_all(op);
    }
}

#[test]
fn the_largest_products_do_not_saturate() {
    for (code, x) in [(255u8, 127i8), (255, -127), (0, 127), (0, -127), (127, 127), (128, -127)] {
        let op = Integers { codes: [code; 64], x: [x; 64], table: [0; 16], signed: true };
        let out = on_all(op);
        let small = i32::from(code & 127);
        assert_eq!(out[11], [7 + 4 * small * i32::from(x); LANES], "dot4 of {code} and {x}");
        let signed = i32::from(code) - 128;
        assert_eq!(out[12], [4 * signed * i32::from(x); LANES], "dot4_signed of {code} and {x}");
    }
}

#[derive(Clone, Copy)]
struct Exp([f32; LANES]);

impl Op for Exp {
    type Out = [u32; LANES];
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> Self::Out {
        let mut out = [0.0; LANES];
        s.store(exp(s, s.load(&self.0)), &mut out);
        bits(out)
    }
}

#[test]
fn exp_keeps_its_error_bound_over_its_whole_range() {
    let mut x = -87.33f32;
    let mut worst = 0.0f64;
    while x < 88.37 {
        let lanes: [f32; LANES] = std::array::from_fn(|i| x + i as f32 * 1e-4);
        let got = on_all(Exp(lanes)).map(f32::from_bits);
        for (x, y) in lanes.iter().zip(got).filter(|(x, _)| **x <= 88.37) {
            let want = f64::from(*x).exp();
            worst = worst.max((f64::from(y) - want).abs() / want);
        }
        x += LANES as f32 * 1e-4;
    }
    println!("worst relative error of exp: {worst:e}");
    assert!(worst <= EXP_ERROR, "{worst:e}");
}

#[test]
fn exp_has_the_stated_ends() {
    let mut lanes = [0.0; LANES];
    lanes[..7].copy_from_slice(&[
        -87.34,
        -1e30,
        f32::NEG_INFINITY,
        88.38,
        1e30,
        f32::INFINITY,
        0.0,
    ]);
    let got = on_all(Exp(lanes)).map(f32::from_bits);
    let end = f32::INFINITY;
    assert_eq!(got[..7], [0.0, 0.0, 0.0, end, end, end, 1.0]);
    let nan = Scalar.run(Exp([f32::NAN; LANES])).map(f32::from_bits);
    assert!(nan.iter().all(|x| x.is_nan()));
}
