//! Functions of each value beside the CPU's, bit for bit.

use brigade_engine::kernels::{self, Compute};
use brigade_gpu::{GateBound, Gpu, Span, SpanMut, Xielu};
use brigade_ops::{Vector, Wkv6Decay};

use crate::common::{Random, assert_same, compute, gpu, on, values_of};

/// Numbers of values: none, one, around a vector's end, more than a workgroup's.
const LENGTHS: [usize; 7] = [0, 1, 15, 16, 17, 300, 70_001];

/// Values of every size that models have, with some zeros.
fn values(random: &mut Random, n: usize) -> Vec<f32> {
    let one = |i: usize| match i % 11 {
        0 => 0.0,
        1 => random.value() * 100.0,
        2 => random.value() * 1e-3,
        _ => random.value() * 4.0,
    };
    (0..n).map(one).collect()
}

type OnGpu<'a> = &'a dyn Fn(&Gpu, SpanMut<'_>);
type OnCpu<'a> = &'a dyn Fn(&Compute, &mut [f32]);

/// Runs a function of one operand on both.
fn check(name: &str, on_gpu: OnGpu<'_>, on_cpu: OnCpu<'_>) {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(1));
    for n in LENGTHS {
        let mut x = values(&mut random, n);
        let mut there = on(&gpu, &x);
        on_gpu(&gpu, there.span_mut());
        on_cpu(&compute, &mut x);
        assert_same(&format!("{name} of {n}"), &values_of(&there), &x);
    }
}

type With<'a> = &'a dyn Fn(&Gpu, SpanMut<'_>, Span<'_>);
type WithOnCpu<'a> = &'a dyn Fn(&Compute, &mut [f32], &[f32]);

/// Runs a function of two operands on both.
fn check_with(name: &str, on_gpu: With<'_>, on_cpu: WithOnCpu<'_>) {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(2));
    for n in LENGTHS {
        let (mut x, y) = (values(&mut random, n), values(&mut random, n));
        let (mut there, y_there) = (on(&gpu, &x), on(&gpu, &y));
        on_gpu(&gpu, there.span_mut(), y_there.span());
        on_cpu(&compute, &mut x, &y);
        assert_same(&format!("{name} of {n}"), &values_of(&there), &x);
    }
}

#[test]
fn sums_and_products() {
    check_with("add", &|g, x, y| g.add(x, y), &|c, x, y| c.add(x, y));
    check_with("mul", &|g, x, y| g.mul(x, y), &|c, x, y| c.mul(x, y));
    let scaled: With<'_> = &|g, x, y| g.add_scaled(x, y, 0.3);
    check_with("add_scaled", scaled, &|c, x, y| c.add_scaled(x, y, 0.3));
    check("scale", &|g, x| g.scale(x, -1.7), &|c, x| c.scale(x, -1.7));
    check("sqrt", &|g, x| g.sqrt(x), &|_, x| x.iter_mut().for_each(|x| *x = x.sqrt()));
}

#[test]
fn activations() {
    check("silu", &|g, x| g.silu(x), &|c, x| c.silu(x));
    check("sigmoid", &|g, x| g.sigmoid(x), &|c, x| c.sigmoid(x));
    check("tanh", &|g, x| g.tanh(x), &|c, x| c.tanh(x));
    check("softplus", &|g, x| g.softplus(x), &|c, x| c.softplus(x));
    check("relu", &|g, x| g.relu(x), &|c, x| c.relu(x));
    check("relu_squared", &|g, x| g.relu_squared(x), &|c, x| c.relu_squared(x));
    check("gelu", &|g, x| g.gelu(x), &|c, x| c.gelu(x));
    check("softcap", &|g, x| g.softcap(x, 3.0), &|c, x| c.softcap(x, 3.0));
    check("clamp", &|g, x| g.clamp(x, 1.5), &|c, x| c.clamp(x, 1.5));
    let (alpha_n, alpha_p, beta, eps) = (0.8, 0.7, 0.5, -1e-6);
    check("xielu", &|g, x| g.xielu(x, Xielu { alpha_n, alpha_p, beta, eps }), &|c, x| {
        c.xielu(x, kernels::Xielu { alpha_n, alpha_p, beta, eps })
    });
}

#[test]
fn gates() {
    let silu: With<'_> = &|g, x, y| g.silu_mul_inplace(x, y);
    check_with("silu_mul", silu, &|c, x, y| c.silu_mul_inplace(x, y));
    check_with("sigmoid_mul", &|g, x, y| g.sigmoid_mul(x, y), &|c, x, y| c.sigmoid_mul(x, y));
    check_with("relu_mul", &|g, x, y| g.relu_mul(x, y), &|c, x, y| c.relu_mul(x, y));
    check_with("gelu_mul", &|g, x, y| g.gelu_mul(x, y), &|c, x, y| c.gelu_mul(x, y));
    let (alpha, limit) = (1.702, 3.0);
    check_with(
        "clamped_swiglu_mul",
        &|g, x, y| g.clamped_swiglu_mul(x, y, alpha, limit),
        &|c, x, y| c.clamped_swiglu_mul(x, y, kernels::SwiGluClamp { alpha, limit }),
    );
    let bounds = [
        (GateBound::Before, kernels::GateBound::Before),
        (GateBound::After, kernels::GateBound::After),
    ];
    for (there, gate) in bounds {
        check_with(
            "limited_swiglu_mul",
            &|g, x, y| g.limited_swiglu_mul(x, y, limit, there),
            &|c, x, y| c.limited_swiglu_mul(x, y, kernels::SwiGluLimit { limit, gate }),
        );
    }
    for linear in [None, Some(2.5)] {
        let gate = 4.0;
        check_with(
            "bounded_gate_mul",
            &|g, x, y| g.bounded_gate_mul(x, y, gate, linear),
            &|c, x, y| c.bounded_gate_mul(x, y, kernels::GateBounds { gate, linear }),
        );
    }
}

/// Shapes of rows: one value, one row, one column, ragged, larger.
const ROWS: [(usize, usize); 6] = [(1, 1), (1, 48), (5, 1), (3, 17), (7, 64), (33, 1040)];

#[test]
fn operands_by_column_and_by_row() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(3));
    for (n, d) in ROWS {
        let x = values(&mut random, n * d);
        let (row, rates) = (values(&mut random, d), values(&mut random, d));
        let (factors, to) = (values(&mut random, n), values(&mut random, n * d));
        let (row_there, rates_there) = (on(&gpu, &row), on(&gpu, &rates));
        let (factors_there, to_there) = (on(&gpu, &factors), on(&gpu, &to));
        let both = |name: &str, on_gpu: OnGpu<'_>, on_cpu: OnCpu<'_>| {
            let (mut there, mut here) = (on(&gpu, &x), x.clone());
            on_gpu(&gpu, there.span_mut());
            on_cpu(&compute, &mut here);
            assert_same(&format!("{name} of {n} rows of {d}"), &values_of(&there), &here);
        };
        let (row_on, rates_on) = (row_there.span(), rates_there.span());
        both("add_bias", &|g, x| g.add_bias(x, row_on), &|c, x| c.add_bias(x, &row));
        let columns: OnGpu<'_> = &|g, x| g.scale_columns(x, row_on);
        both("scale_columns", columns, &|c, x| c.scale_columns(x, &row));
        let scale: OnGpu<'_> = &|g, x| g.scale_rows(x, d, factors_there.span());
        both("scale_rows", scale, &|c, x| c.scale_rows(x, d, &factors));
        let lerp: OnGpu<'_> = &|g, x| g.lerp(x, to_there.span(), rates_on);
        both("lerp", lerp, &|c, x| c.lerp(x, &to, &rates));
        let decay: OnGpu<'_> = &|g, x| g.decay_factors(x, row_on, rates_on);
        both("decay_factors", decay, &|c, x| c.decay_factors(x, &row, &rates));
        let bounded: OnGpu<'_> = &|g, x| g.bounded_decay_factors(x, row_on, rates_on, -5.0);
        both("bounded", bounded, &|c, x| c.bounded_decay_factors(x, &row, &rates, -5.0));
        if d % 16 == 0 {
            let bias = &Vector::from(row.clone());
            let there: OnGpu<'_> = &|g, w| g.wkv6_decay(Wkv6Decay { w, bias });
            both("wkv6", there, &|c, w| c.wkv6_decay(Wkv6Decay { w, bias }));
        }
    }
}

#[test]
fn a_product_with_silu_goes_to_another_place() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(4));
    let (gate, up) = (values(&mut random, 1000), values(&mut random, 1000));
    let (gate_there, up_there) = (on(&gpu, &gate), on(&gpu, &up));
    let (mut there, mut here) = (on(&gpu, &[0.0; 1000]), [0.0; 1000]);
    gpu.silu_mul(gate_there.span(), up_there.span(), there.span_mut());
    compute.silu_mul(&gate, &up, &mut here);
    assert_same("silu_mul", &values_of(&there), &here);
    assert_same("up stays", &values_of(&up_there), &up);
}
