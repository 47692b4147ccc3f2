//! FFNs in every variant, dense and with experts, against a plain computation that takes token by token.

use super::{Bench, Tensors, bits, close, noise, wide};
use crate::device::{DeviceName, Devices};
use crate::kernels::{
    ExpertGroups, GateBound, GateBounds, SwiGluClamp, SwiGluLimit, Xielu, available, unfused,
};
use crate::spec::{Activation, BlockKind, LatentSpec, MlpSpec, MoeSpec, Router, SharedExpertSpec};

const N_EMBD: usize = 48;
const N_FF: usize = 32;
const N_EXPERT: usize = 12;
const N_ROWS: usize = 37;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

fn activated(activation: Activation, gate: &[f64], up: &[f64]) -> Vec<f64> {
    match activation {
        Activation::SwiGlu => gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u).collect(),
        Activation::BoundedSilu(GateBounds { gate: b, linear }) => {
            let bounded = |x: f64, bound: f32| f64::from(bound) * (x / f64::from(bound)).tanh();
            let up = up.iter().map(|u| linear.map_or(*u, |l| bounded(*u, l)));
            gate.iter().zip(up).map(|(g, u)| bounded(*g, b) * sigmoid(*g) * u).collect()
        }
        Activation::ReluSquared => up.iter().map(|u| u.max(0.0).powi(2)).collect(),
        Activation::GeGlu => gate.iter().zip(up).map(|(g, u)| gelu(*g) * u).collect(),
        Activation::Gelu => up.iter().map(|u| gelu(*u)).collect(),
        Activation::ReGlu => gate.iter().zip(up).map(|(g, u)| g.max(0.0) * u).collect(),
        Activation::Relu => up.iter().map(|u| u.max(0.0)).collect(),
        Activation::ClampedSwiGlu(SwiGluClamp { alpha, limit }) => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let gates = gate.iter().map(|g| g.min(limit)).map(|g| g * sigmoid(alpha * g));
            gates.zip(up).map(|(g, u)| g * (u.clamp(-limit, limit) + 1.0)).collect()
        }
        Activation::Xielu(Xielu { alpha_n, alpha_p, beta, eps }) => {
            let [alpha_n, alpha_p, beta, eps] = [alpha_n, alpha_p, beta, eps].map(f64::from);
            let of = |x: f64| {
                if x > 0.0 {
                    alpha_p * x * x + beta * x
                } else {
                    alpha_n * (x.min(eps).exp_m1() - x) + beta * x
                }
            };
            up.iter().map(|u| of(*u)).collect()
        }
        Activation::LimitedSwiGlu(SwiGluLimit { limit, gate: bound }) => {
            let limit = f64::from(limit);
            let silu = |g: f64| g * sigmoid(g);
            let gates = gate.iter().map(|g| match bound {
                GateBound::Before => silu(g.min(limit)),
                GateBound::After => silu(*g).min(limit),
            });
            gates.zip(up).map(|(g, u)| g * u.clamp(-limit, limit)).collect()
        }
    }
}

/// Adds the matrices (and biases) of a dense FFN, and the norm inside it.
fn mlp_tensors(tensors: &mut Tensors, spec: &MlpSpec, biases: bool) {
    if spec.sub_norm.is_some() {
        tensors.add("blk.0.ffn_sub_norm.weight", &[spec.n_ff]);
    }
    let gate = spec.activation.is_gated().then_some(("gate", N_EMBD, spec.n_ff));
    for (part, cols, rows) in
        gate.into_iter().chain([("up", N_EMBD, spec.n_ff), ("down", spec.n_ff, N_EMBD)])
    {
        let stem = format!("blk.0.ffn_{part}{}", spec.suffix);
        tensors.add(&format!("{stem}.weight"), &[cols, rows]);
        if biases {
            tensors.add(&format!("{stem}.bias"), &[rows]);
        }
    }
}

fn plain_mlp(tensors: &Tensors, spec: &MlpSpec, x: &[f64]) -> Vec<f64> {
    let affine = |part: &str, x: &[f64]| {
        let stem = format!("blk.0.ffn_{part}{}", spec.suffix);
        let mut y = tensors.times(&format!("{stem}.weight"), 0, x);
        if let Some((_, bias)) = tensors.0.get(&format!("{stem}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += f64::from(*b));
        }
        y
    };
    let gate = if spec.activation.is_gated() { affine("gate", x) } else { Vec::new() };
    let mut inner = activated(spec.activation, &gate, &affine("up", x));
    if let Some(eps) = spec.sub_norm {
        let mean = inner.iter().map(|x| x * x).sum::<f64>() / inner.len() as f64;
        let weights = &tensors.0["blk.0.ffn_sub_norm.weight"].1;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        inner.iter_mut().zip(weights).for_each(|(x, w)| *x *= factor * f64::from(*w));
    }
    affine("down", &inner)
}

/// Router and experts have biases, in the tests, where the weights are softmaxed last: as in gpt-oss.
fn has_biases(spec: &MoeSpec) -> bool {
    spec.router == Router::SoftmaxOfChosen
}

/// Adds row `row` of a bias `[n, width]`, if there is one.
fn add_bias(tensors: &Tensors, name: &str, row: usize, y: &mut [f64]) {
    if let Some((_, bias)) = tensors.0.get(name) {
        let bias = &bias[row * y.len()..][..y.len()];
        y.iter_mut().zip(bias).for_each(|(y, b)| *y += f64::from(*b));
    }
}

fn moe_tensors(spec: &MoeSpec, fused: bool) -> Tensors {
    let mut tensors = Tensors::default();
    let width = spec.latent.map_or(N_EMBD, |latent| latent.width);
    let mut add = |part: &str, ne: &[usize]| tensors.add(&format!("blk.0.{part}"), ne);
    add("ffn_gate_inp.weight", &[N_EMBD, N_EXPERT]);
    if spec.activation.is_gated() {
        add("ffn_gate_exps.weight", &[width, N_FF, N_EXPERT]);
    }
    add("ffn_up_exps.weight", &[width, N_FF, N_EXPERT]);
    add("ffn_down_exps.weight", &[N_FF, width, N_EXPERT]);
    if spec.selection_bias {
        add("exp_probs_b.bias", &[N_EXPERT]);
    }
    if has_biases(spec) {
        add("ffn_gate_inp.bias", &[N_EXPERT]);
        add("ffn_gate_exps.bias", &[N_FF, N_EXPERT]);
        add("ffn_up_exps.bias", &[N_FF, N_EXPERT]);
        add("ffn_down_exps.bias", &[width, N_EXPERT]);
    }
    if let Some(latent) = spec.latent {
        let name = |part: &str| format!("ffn_{}_{part}.weight", latent.stem);
        add(&name("down"), &[N_EMBD, width]);
        add(&name("up"), &[width, N_EMBD]);
        if latent.norm_eps.is_some() {
            add(&name("norm"), &[width]);
        }
    }
    if let Some(shared) = &spec.shared {
        if shared.gated {
            add("ffn_gate_inp_shexp.weight", &[N_EMBD]);
        }
        mlp_tensors(&mut tensors, &shared.mlp, false);
    }
    if fused {
        fuse(&mut tensors, width);
    }
    tensors
}

/// Puts gate and up of each expert into one tensor.
fn fuse(tensors: &mut Tensors, width: usize) {
    let mut take = |part: &str| tensors.0.remove(&format!("blk.0.{part}.weight")).unwrap().1;
    let (gate, up) = (take("ffn_gate_exps"), take("ffn_up_exps"));
    let pairs = gate.chunks_exact(N_FF * width).zip(up.chunks_exact(N_FF * width));
    let both = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
    tensors.put("blk.0.ffn_gate_up_exps.weight", &[width, 2 * N_FF, N_EXPERT], both);
}

/// Experts and weights of a token, by the definition: scores, groups, the best, their weights.
fn plain_choice(tensors: &Tensors, spec: &MoeSpec, x: &[f64]) -> Vec<(usize, f64)> {
    let mut logits = tensors.times("blk.0.ffn_gate_inp.weight", 0, x);
    add_bias(tensors, "blk.0.ffn_gate_inp.bias", 0, &mut logits);
    let probs: Vec<f64> = match spec.router {
        Router::Sigmoid => logits.iter().map(|x| sigmoid(*x)).collect(),
        Router::SoftmaxOfChosen => logits.clone(),
        Router::SqrtSoftplus => logits.iter().map(|x| x.exp().ln_1p().sqrt()).collect(),
        Router::Softmax => {
            let total: f64 = logits.iter().map(|x| x.exp()).sum();
            logits.iter().map(|x| x.exp() / total).collect()
        }
    };
    let mut scores = probs.clone();
    if spec.selection_bias {
        let bias = tensors.get("blk.0.exp_probs_b.bias");
        scores.iter_mut().zip(bias).for_each(|(s, b)| *s += f64::from(*b));
    }
    if let Some(groups) = spec.groups {
        let size = N_EXPERT / groups.count;
        let mut ranked: Vec<(f64, usize)> = (0..groups.count)
            .map(|g| {
                let mut group = scores[g * size..(g + 1) * size].to_vec();
                group.sort_by(|a, b| b.total_cmp(a));
                (group[0] + group[1], g)
            })
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, g) in &ranked[groups.used..] {
            scores[g * size..(g + 1) * size].fill(f64::NEG_INFINITY);
        }
    }
    let mut order: Vec<usize> = (0..N_EXPERT).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(spec.n_used);
    if spec.router == Router::SoftmaxOfChosen {
        let total: f64 = order.iter().map(|e| logits[*e].exp()).sum();
        return order.into_iter().map(|e| (e, logits[e].exp() / total)).collect();
    }
    let sum: f64 = order.iter().map(|e| probs[*e]).sum();
    let norm = if spec.norm_weights { sum } else { 1.0 };
    let scale = f64::from(spec.weights_scale);
    order.into_iter().map(|e| (e, probs[e] / norm * scale)).collect()
}

/// `tensors` are the un-fused ones.
fn plain_moe(tensors: &Tensors, spec: &MoeSpec, x: &[f64]) -> Vec<f64> {
    let name = |part: &str| format!("blk.0.ffn_{part}.weight");
    let input = match spec.latent {
        Some(latent) => tensors.times(&name(&format!("{}_down", latent.stem)), 0, x),
        None => x.to_vec(),
    };
    let mut sum = vec![0.0; input.len()];
    for (expert, weight) in plain_choice(tensors, spec, x) {
        let affine = |part: &str, x: &[f64]| {
            let mut y = tensors.times(&name(part), expert, x);
            add_bias(tensors, &format!("blk.0.ffn_{part}.bias"), expert, &mut y);
            y
        };
        let (input_weight, weight) = if spec.weigh_input { (weight, 1.0) } else { (1.0, weight) };
        let input: Vec<f64> = input.iter().map(|x| x * input_weight).collect();
        let gate =
            if spec.activation.is_gated() { affine("gate_exps", &input) } else { Vec::new() };
        let inner = activated(spec.activation, &gate, &affine("up_exps", &input));
        let y = affine("down_exps", &inner);
        sum.iter_mut().zip(y).for_each(|(s, y)| *s += weight * y);
    }
    if let Some(latent) = spec.latent {
        if let Some(eps) = latent.norm_eps {
            let mean = sum.iter().map(|s| s * s).sum::<f64>() / sum.len() as f64;
            let factor = 1.0 / (mean + f64::from(eps)).sqrt();
            let weight = tensors.get(&name(&format!("{}_norm", latent.stem)));
            sum.iter_mut().zip(weight).for_each(|(s, w)| *s *= factor * f64::from(*w));
        }
        sum = tensors.times(&name(&format!("{}_up", latent.stem)), 0, &sum);
    }
    if let Some(shared) = &spec.shared {
        let weight = if shared.gated {
            sigmoid(tensors.times(&name("gate_inp_shexp"), 0, x)[0])
        } else {
            1.0
        };
        let y = plain_mlp(tensors, &shared.mlp, x);
        sum.iter_mut().zip(y).for_each(|(s, y)| *s += weight * y);
    }
    sum.iter().map(|s| s * f64::from(spec.output_scale)).collect()
}

/// All rows together against `plain`, then alone and in two parts for the same bits.
fn check(what: &str, kind: &BlockKind, tensors: &Tensors, plain: impl Fn(&[f64]) -> Vec<f64>) {
    let x = noise(N_ROWS * N_EMBD, 5);
    let want: Vec<f64> = x.chunks_exact(N_EMBD).flat_map(|x| plain(&wide(x))).collect();
    let mut first = None;
    for kernels in available() {
        let mut bench = Bench::new(kind, tensors, N_EMBD, kernels);
        let together = bench.forward(&[], None, &x);
        close(what, &together, &want, 2e-5);
        let alone: Vec<f32> =
            x.chunks_exact(N_EMBD).flat_map(|x| bench.forward(&[], None, x)).collect();
        assert!(bits(&together) == bits(&alone), "{what}: rows alone, {}", kernels.name);
        let (head, tail) = x.split_at(11 * N_EMBD);
        let parts = [bench.forward(&[], None, head), bench.forward(&[], None, tail)].concat();
        assert!(bits(&together) == bits(&parts), "{what}: rows in parts, {}", kernels.name);
        let first = first.get_or_insert_with(|| together.clone());
        assert!(bits(&together) == bits(first), "{what}: tables differ, {}", kernels.name);
    }
}

#[test]
fn dense_ffns_match_f64() {
    let situ = |linear| Activation::BoundedSilu(GateBounds { gate: 4.0, linear });
    let clamp = Activation::ClampedSwiGlu(SwiGluClamp { alpha: 1.702, limit: 0.8 });
    let limited = |gate| Activation::LimitedSwiGlu(SwiGluLimit { limit: 0.8, gate });
    let bounded = [limited(GateBound::Before), limited(GateBound::After), clamp];
    let xielu = Activation::Xielu(Xielu { alpha_n: 1.3, alpha_p: 0.9, beta: 0.5, eps: -1e-6 });
    let others = [situ(None), situ(Some(2.5)), Activation::GeGlu, Activation::Gelu, xielu];
    let others = others.into_iter().chain([Activation::Relu, Activation::ReGlu]).chain(bounded);
    for activation in [Activation::SwiGlu, Activation::ReluSquared].into_iter().chain(others) {
        for (biases, sub_norm) in [(false, None), (true, None), (false, Some(1e-5))] {
            let spec = MlpSpec { activation, sub_norm, ..MlpSpec::swiglu(N_FF) };
            let mut tensors = Tensors::default();
            mlp_tensors(&mut tensors, &spec, biases);
            let kind = BlockKind::Mlp(spec.clone());
            check(&format!("{spec:?}"), &kind, &tensors, |x| plain_mlp(&tensors, &spec, x));
        }
    }
}

/// Mixtures that differ in all that a spec says of them.
fn variants() -> Vec<MoeSpec> {
    let relu = Activation::ReluSquared;
    let base = MoeSpec::new(N_EXPERT, 3, N_FF);
    let shared = Some(SharedExpertSpec::new(40, Activation::SwiGlu));
    let gated = shared.clone().map(|shared| SharedExpertSpec { gated: true, ..shared });
    let groups = Some(ExpertGroups { count: 4, used: 2 });
    let sigmoid = MoeSpec { router: Router::Sigmoid, selection_bias: true, ..base.clone() };
    let latent = |width| LatentSpec { width, stem: "latent", norm_eps: None };
    let normed = LatentSpec { width: 24, stem: "routed", norm_eps: Some(1e-5) };
    let situ = Activation::BoundedSilu(GateBounds { gate: 4.0, linear: Some(25.0) });
    vec![
        MoeSpec { norm_weights: false, ..base.clone() },
        MoeSpec { shared: shared.clone(), ..base.clone() },
        MoeSpec { shared: gated, ..base.clone() },
        MoeSpec { weights_scale: 2.5, shared, ..sigmoid.clone() },
        MoeSpec { groups, ..sigmoid.clone() },
        MoeSpec { router: Router::SqrtSoftplus, weights_scale: 1.5, ..sigmoid.clone() },
        MoeSpec { groups, norm_weights: false, ..base.clone() },
        MoeSpec {
            activation: relu,
            latent: Some(latent(24)),
            shared: Some(SharedExpertSpec::new(40, relu)),
            ..sigmoid.clone()
        },
        MoeSpec {
            activation: situ,
            latent: Some(normed),
            shared: Some(SharedExpertSpec::new(40, situ)),
            ..sigmoid
        },
        MoeSpec { latent: Some(latent(16)), ..base.clone() },
        MoeSpec {
            router: Router::SoftmaxOfChosen,
            activation: Activation::ClampedSwiGlu(SwiGluClamp { alpha: 1.702, limit: 0.8 }),
            ..base.clone()
        },
        MoeSpec {
            router: Router::Sigmoid,
            norm_weights: false,
            weigh_input: true,
            output_scale: 0.7,
            activation: Activation::GeGlu,
            ..base.clone()
        },
        base,
    ]
}

#[test]
fn experts_in_every_variant_match_f64() {
    for spec in &variants() {
        let tensors = moe_tensors(spec, false);
        let kind = BlockKind::Moe(spec.clone());
        check(&format!("{spec:?}"), &kind, &tensors, |x| plain_moe(&tensors, spec, x));
    }
}

/// Experts on a GPU: the bits of the kernels without fused steps. Once weights and kernels are where they are used, the
/// host hands work over and does not wait for any of it.
#[test]
fn experts_on_a_gpu_have_the_bits_of_unfused_and_wait_for_nothing() {
    let devices = Devices::default();
    let name: DeviceName = "vulkan:0".parse().unwrap();
    let gpu = || devices.open(&name, 2, None);
    if let Err(reason) = gpu() {
        println!("skipped: {reason}");
        return;
    }
    let x = noise(N_ROWS * N_EMBD, 5);
    for spec in &variants() {
        let tensors = moe_tensors(spec, false);
        let kind = BlockKind::Moe(spec.clone());
        let want = Bench::new(&kind, &tensors, N_EMBD, unfused()).forward(&[], None, &x);
        let mut bench = Bench::on(gpu().unwrap(), &kind, &tensors, N_EMBD);
        for n_rows in [N_ROWS, 1, N_ROWS, 1] {
            let len = n_rows * N_EMBD;
            let out = bench.forward(&[], None, &x[..len]);
            assert!(bits(&out) == bits(&want[..len]), "{spec:?}: {n_rows} rows");
        }
        assert_eq!(bench.waits, 0, "{spec:?}");
    }
}

#[test]
fn a_fused_way_up_is_the_same_ffn() {
    let spec = MlpSpec::swiglu(N_FF);
    let [mut unfused, mut fused] = [Tensors::default(), Tensors::default()];
    mlp_tensors(&mut unfused, &spec, false);
    mlp_tensors(&mut fused, &spec, false);
    let gate = fused.0.remove("blk.0.ffn_gate.weight").unwrap().1;
    let up = fused.0.remove("blk.0.ffn_up.weight").unwrap().1;
    fused.put("blk.0.ffn_up.weight", &[N_EMBD, 2 * N_FF], [gate, up].concat());
    let x = noise(N_ROWS * N_EMBD, 7);
    let run = |spec: &MlpSpec, tensors: &Tensors| {
        let kind = BlockKind::Mlp(spec.clone());
        Bench::new(&kind, tensors, N_EMBD, available()[0]).forward(&[], None, &x)
    };
    let fused = run(&MlpSpec { fused: true, ..spec.clone() }, &fused);
    assert!(bits(&fused) == bits(&run(&spec, &unfused)));
}

#[test]
fn fused_gates_are_the_same_experts() {
    let spec = MoeSpec::new(N_EXPERT, 3, N_FF);
    let kind = BlockKind::Moe(spec.clone());
    let x = noise(N_ROWS * N_EMBD, 6);
    let run = |fused| {
        let tensors = moe_tensors(&spec, fused);
        Bench::new(&kind, &tensors, N_EMBD, available()[0]).forward(&[], None, &x)
    };
    assert!(bits(&run(true)) == bits(&run(false)));
}
