//! Elementwise ops, norms, softmax and rotation against f64, and bit equality on all tables and thread
//! counts.

use super::{Rng, close, same_bits_everywhere};
use crate::reference::ops;
use brigade_kernels::{Compute, RopeLayout, RopeParams, RopeTable, Yarn};

/// Half a unit in the last place, relative.
const HALF_ULP: f64 = 1.0 / (1u64 << 24) as f64;

/// Lengths around the lane count, and one that is shared over threads.
const LENGTHS: [usize; 7] = [1, 15, 16, 17, 100, 4097, 70_000];

#[test]
fn rms_norm_matches_f64() {
    let mut rng = Rng::new(20);
    for (rows, d) in [(1, 1), (3, 8), (5, 80), (2, 1024), (40, 4096)] {
        let (x, weight) = (rng.spread(rows * d), rng.values(d));
        let out = same_bits_everywhere("rms_norm", |compute| {
            let mut out = vec![0.0; x.len()];
            compute.rms_norm(&x, &weight, 1e-5, &mut out);
            out
        });
        for (x, out) in x.chunks_exact(d).zip(out.chunks_exact(d)) {
            for (want, got) in ops::rms_norm(x, &weight, 1e-5).iter().zip(out) {
                // The sum of squares takes d / 16 + 4 roundings, the root halves them.
                let bound = (d as f64 / 32.0 + 8.0) * HALF_ULP * want.abs();
                close("rms_norm", *got, *want, bound + 1e-40);
            }
        }
    }
}

#[test]
fn elementwise_ops_match_f64() {
    let mut rng = Rng::new(21);
    for n in LENGTHS {
        let (x, y) = (rng.spread(n), rng.spread(n));
        let check = |what: &str,
                     roundings: f64,
                     op: &dyn Fn(&Compute, &mut [f32]),
                     want: &dyn Fn(f64, f64) -> (f64, f64)| {
            let out = same_bits_everywhere(what, |compute| {
                let mut out = x.clone();
                op(compute, &mut out);
                out
            });
            for ((x, y), got) in x.iter().zip(&y).zip(out) {
                let (value, magnitude) = want(f64::from(*x), f64::from(*y));
                close(what, got, value, roundings * HALF_ULP * magnitude + 1e-44);
            }
        };
        check("add", 1.0, &|c, out| c.add(out, &y), &|x, y| (x + y, (x + y).abs()));
        let s = 0.37f32;
        check("add_scaled", 1.0, &|c, out| c.add_scaled(out, &y, s), &|x, y| {
            let sum = x + y * f64::from(s);
            (sum, sum.abs())
        });
        check("scale", 1.0, &|c, out| c.scale(out, s), &|x, _| {
            (x * f64::from(s), (x * f64::from(s)).abs())
        });
        // The exponential's own error, the sum, the quotient and the product.
        check("silu_mul", 8.0, &|c, out| c.silu_mul(&x, &y, out), &|x, y| {
            let value = ops::silu_mul(x as f32, y as f32);
            (value, value.abs().max(1e-25))
        });
    }
}

#[test]
fn l2_norm_matches_f64() {
    let mut rng = Rng::new(26);
    for (rows, d) in [(1, 1), (3, 8), (5, 80), (2, 1024), (300, 128)] {
        let x = rng.spread(rows * d);
        let out = same_bits_everywhere("l2_norm", |compute| {
            let mut out = x.clone();
            compute.l2_norm(&mut out, d, 1e-6);
            out
        });
        for (x, out) in x.chunks_exact(d).zip(out.chunks_exact(d)) {
            for (want, got) in ops::l2_norm(x, 1e-6).iter().zip(out) {
                // As for the RMS norm.
                let bound = (d as f64 / 32.0 + 8.0) * HALF_ULP * want.abs();
                close("l2_norm", *got, *want, bound + 1e-40);
            }
        }
    }
}

#[test]
fn groups_are_normed_by_themselves_with_their_own_weights() {
    let mut rng = Rng::new(27);
    for (n, groups, d) in [(3, 1, 20), (5, 4, 16), (70, 3, 130)] {
        let (x, weights) = (rng.spread(n * groups * d), rng.values(groups * d));
        let out = same_bits_everywhere("group_rms_norm", |compute| {
            let mut out = x.clone();
            compute.group_rms_norm(&mut out, &weights, d, 1e-5);
            out
        });
        let rows = x.chunks_exact(d).zip(weights.chunks_exact(d).cycle());
        for ((x, weight), out) in rows.zip(out.chunks_exact(d)) {
            for (want, got) in ops::rms_norm(x, weight, 1e-5).iter().zip(out) {
                let bound = (d as f64 / 32.0 + 8.0) * HALF_ULP * want.abs();
                close("group_rms_norm", *got, *want, bound + 1e-40);
            }
        }
    }
}

#[test]
fn gates_and_activations_match_f64() {
    type Op<'a> = &'a dyn Fn(&Compute, &mut [f32]);
    let mut rng = Rng::new(28);
    for n in LENGTHS {
        let (x, y) = (rng.spread(n), rng.spread(n));
        let check = |what: &str, roundings: f64, op: Op<'_>, want: &dyn Fn(f64, f64) -> f64| {
            let out = same_bits_everywhere(what, |compute| {
                let mut out = x.clone();
                op(compute, &mut out);
                out
            });
            for ((x, y), got) in x.iter().zip(&y).zip(out) {
                let want = want(f64::from(*x), f64::from(*y));
                // Below e^-87 the kernels' exponential is 0; the products have factors up to 400.
                close(what, got, want, roundings * HALF_ULP * want.abs() + 1e-33);
            }
        };
        let silu = |x: f64| x * ops::sigmoid(x);
        check("mul", 1.0, &|c, x| c.mul(x, &y), &|x, y| x * y);
        // The exponential's own error (4 halves), the sum, the quotient and the product.
        check("silu_mul_inplace", 8.0, &|c, x| c.silu_mul_inplace(x, &y), &|x, y| x * silu(y));
        check("sigmoid_mul", 8.0, &|c, x| c.sigmoid_mul(x, &y), &|x, y| x * ops::sigmoid(y));
        check("silu", 8.0, &|c, x| c.silu(x), &|x, _| silu(x));
        check("sigmoid", 8.0, &|c, x| c.sigmoid(x), &|x, _| ops::sigmoid(x));
        // The exponential, the quotient, its square, the last sums.
        check("softplus", 12.0, &|c, x| c.softplus(x), &|x, _| ops::softplus(x));
        check("relu_squared", 1.0, &|c, x| c.relu_squared(x), &|x, _| ops::relu_squared(x));
    }
}

#[test]
fn sigmoid_and_softplus_have_their_limits() {
    let x = [-1e30, -100.0, 0.0, 100.0, 1e30];
    let both = same_bits_everywhere("limits", |compute| {
        let mut out = [x, x].concat();
        compute.sigmoid(&mut out[..5]);
        compute.softplus(&mut out[5..]);
        out
    });
    assert_eq!(both[..5], [0.0, 0.0, 0.5, 1.0, 1.0]);
    assert_eq!(both[5..], [0.0, 0.0, std::f32::consts::LN_2, 100.0, 1e30]);
}

#[test]
fn rows_are_scaled_by_their_own_factors() {
    let mut rng = Rng::new(29);
    let (x, factors) = (rng.values(7 * 50), rng.values(7));
    let out = same_bits_everywhere("scale_rows", |compute| {
        let mut out = x.clone();
        compute.scale_rows(&mut out, 50, &factors);
        out
    });
    for (i, got) in out.iter().enumerate() {
        assert_eq!(*got, x[i] * factors[i / 50]);
    }
}

#[test]
fn silu_has_its_limits() {
    let x = [-1e30, -100.0, -88.0, 0.0, 88.5, 1e30];
    let out = same_bits_everywhere("silu", |compute| {
        let mut out = vec![0.0; x.len()];
        compute.silu_mul(&x, &[1.0; 6], &mut out);
        out
    });
    assert!(out[..2].iter().all(|y| *y == 0.0), "{out:?}");
    assert!(out[2].abs() < 1e-35, "{out:?}");
    assert_eq!(out[3..], [0.0, 88.5, 1e30]);
}

#[test]
fn bias_is_added_to_each_row() {
    let mut rng = Rng::new(22);
    let (x, bias) = (rng.values(7 * 50), rng.values(50));
    let out = same_bits_everywhere("add_bias", |compute| {
        let mut out = x.clone();
        compute.add_bias(&mut out, &bias);
        out
    });
    for (i, got) in out.iter().enumerate() {
        assert_eq!(*got, x[i] + bias[i % 50]);
    }
}

#[test]
fn softmax_matches_f64() {
    let mut rng = Rng::new(23);
    for d in [1, 7, 16, 33, 1000] {
        let x: Vec<f32> = rng.values(4 * d).iter().map(|x| x * 20.0).collect();
        let out = same_bits_everywhere("softmax", |compute| {
            let mut out = x.clone();
            compute.softmax(&mut out, d);
            out
        });
        for (x, out) in x.chunks_exact(d).zip(out.chunks_exact(d)) {
            let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
            for (want, got) in ops::softmax(&x).iter().zip(out) {
                // An argument up to 40 carries half a unit of 40 into its exponential.
                close("softmax", *got, *want, (50.0 + d as f64 / 16.0) * HALF_ULP * want + 1e-40);
            }
        }
    }
}

fn params(layout: RopeLayout, n_rot: usize) -> RopeParams {
    RopeParams {
        layout,
        n_rot,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        freq_factors: None,
        attn_factor: 1.0,
        yarn: None,
    }
}

/// Rotates random heads and compares each pair with `angle(position, pair) -> (angle, magnitude)`.
fn check_rope(params: &RopeParams, head_dim: usize, angle: impl Fn(u32, usize) -> (f64, f64)) {
    let mut rng = Rng::new(24);
    let positions = [0, 1, 2, 63, 64, 1000, 30_000];
    let (n_heads, n_rot) = (3, params.n_rot);
    let x = rng.values(positions.len() * n_heads * head_dim);
    let out = same_bits_everywhere("rope", |compute| {
        let mut out = x.clone();
        let table = RopeTable::new(compute, params, &positions);
        assert_eq!(table.n_rows(), positions.len());
        compute.rope(&mut out, head_dim, &table);
        out
    });
    for (h, (x, out)) in x.chunks_exact(head_dim).zip(out.chunks_exact(head_dim)).enumerate() {
        assert_eq!(x[n_rot..], out[n_rot..], "what is not rotated stays");
        for i in 0..n_rot / 2 {
            let (a, b) = match params.layout {
                RopeLayout::Norm => (2 * i, 2 * i + 1),
                RopeLayout::Neox => (i, i + n_rot / 2),
            };
            let (angle, magnitude) = angle(positions[h / n_heads], i);
            let (want_a, want_b) = ops::rotate(x[a], x[b], angle);
            // The angle is a product of up to n_rot / 2 roundings.
            let bound = (n_rot as f64 * angle.abs() + 8.0) * HALF_ULP * magnitude;
            close("rope", out[a], want_a * magnitude, bound);
            close("rope", out[b], want_b * magnitude, bound);
        }
    }
}

fn plain_angle(p: u32, i: usize, n_rot: usize, base: f64) -> f64 {
    f64::from(p) * base.powf(-2.0 * i as f64 / n_rot as f64)
}

#[test]
fn rope_matches_f64_in_both_layouts() {
    for layout in [RopeLayout::Norm, RopeLayout::Neox] {
        for (n_rot, head_dim) in [(64, 64), (128, 128), (8, 8), (20, 80), (2, 6)] {
            check_rope(&params(layout, n_rot), head_dim, |p, i| {
                (plain_angle(p, i, n_rot, 10_000.0), 1.0)
            });
        }
    }
}

#[test]
fn a_table_backwards_turns_back() {
    for layout in [RopeLayout::Norm, RopeLayout::Neox] {
        let x = Rng::new(57).values(3 * 2 * 40);
        let out = same_bits_everywhere("rope and back", |compute| {
            let table = RopeTable::new(compute, &params(layout, 24), &[1, 40, 7]);
            let mut out = x.clone();
            compute.rope(&mut out, 40, &table);
            assert!(out.iter().zip(&x).any(|(out, x)| (out - x).abs() > 0.1), "it turns");
            compute.rope(&mut out, 40, table.backwards());
            out
        });
        out.iter().zip(&x).for_each(|(out, x)| close("rope", *out, f64::from(*x), 1e-6));
    }
}

#[test]
fn rope_scales_and_divides_angles() {
    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 / 8.0).collect();
    let mut params = params(RopeLayout::Norm, 64);
    params.freq_scale = 0.25;
    params.attn_factor = 1.5;
    params.freq_factors = Some(factors.clone());
    check_rope(&params, 64, |p, i| {
        (plain_angle(p, i, 64, 10_000.0) / f64::from(factors[i]) * 0.25, 1.5)
    });
}

#[test]
fn pairs_that_infinity_divides_stay_but_for_the_magnitude() {
    let still = |i: usize| i == 61 || i == 62;
    let mut params = params(RopeLayout::Neox, 128);
    params.freq_factors =
        Some((0..64).map(|i| if still(i) { f32::INFINITY } else { 1.0 }).collect());
    let angle = |p, i| if still(i) { 0.0 } else { plain_angle(p, i, 128, 10_000.0) };
    check_rope(&params, 128, |p, i| (angle(p, i), 1.0));
    params.freq_scale = 0.5;
    params.attn_factor = 1.5;
    check_rope(&params, 128, |p, i| (angle(p, i) * 0.5, 1.5));
    params.yarn = Some(Yarn { ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0, n_ctx_orig: 64 });
    params.freq_scale = 1.0;
    check_rope(&params, 128, |p, i| (angle(p, i), 1.5));
}

#[test]
fn yarn_mixes_by_the_ramp() {
    let mut params = params(RopeLayout::Neox, 64);
    params.freq_scale = 0.125;
    params.yarn = Some(Yarn { ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0, n_ctx_orig: 4096 });
    let dim = |beta: f64| {
        64.0 * (4096.0 / (beta * 2.0 * std::f64::consts::PI)).ln() / (2.0 * 10_000f64.ln())
    };
    let (low, high) = (dim(32.0).floor().max(0.0), dim(1.0).ceil().min(63.0));
    assert!(low > 0.0 && high < 32.0, "the ramp lies inside: {low} {high}");
    check_rope(&params, 64, |p, i| {
        let mix = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        let theta = plain_angle(p, i, 64, 10_000.0);
        (theta * 0.125 * (1.0 - mix) + theta * mix, 1.0 + 0.1 * 8f64.ln())
    });
}

#[test]
fn layer_norm_matches_f64_by_groups() {
    let mut rng = Rng::new(26);
    for (rows, groups, d) in [(1, 1, 2), (3, 1, 80), (2, 3, 64), (40, 1, 4096)] {
        let (x, w, b) =
            (rng.values(rows * groups * d), rng.values(groups * d), rng.values(groups * d));
        let out = same_bits_everywhere("group_layer_norm", |compute| {
            let mut out = x.clone();
            compute.group_layer_norm(&mut out, &w, &b, d, 1e-5);
            out
        });
        for (r, (x, out)) in x.chunks_exact(d).zip(out.chunks_exact(d)).enumerate() {
            let of = r % groups * d..(r % groups + 1) * d;
            for (want, got) in ops::layer_norm(x, &w[of.clone()], &b[of], 1e-5).iter().zip(out) {
                // Normed values are about 1; two of about 0.7 apart may be normed to ends of a row.
                close("group_layer_norm", *got, *want, 3e-6);
            }
        }
    }
}

#[test]
fn lerp_and_tanh_match_f64() {
    let mut rng = Rng::new(27);
    for (n, d) in [(1, 1), (5, 17), (3, 64), (9, 3000)] {
        let (x, to, share) = (rng.values(n * d), rng.values(n * d), rng.values(d));
        let out = same_bits_everywhere("lerp", |compute| {
            let mut out = x.clone();
            compute.lerp(&mut out, &to, &share);
            out
        });
        for (i, got) in out.iter().enumerate() {
            let (x, to) = (f64::from(x[i]), f64::from(to[i]));
            close("lerp", *got, x + (to - x) * f64::from(share[i % d]), 4e-7);
        }
        let wide: Vec<f32> = x.iter().map(|x| 30.0 * x).collect();
        let out = same_bits_everywhere("tanh", |compute| {
            let mut out = wide.clone();
            compute.tanh(&mut out);
            out
        });
        for (x, got) in wide.iter().zip(out) {
            let want = f64::from(*x).tanh();
            close("tanh", got, want, 5e-7 * want.abs());
        }
    }
}
