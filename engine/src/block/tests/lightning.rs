//! Lightning attention against its definition, token by token in f64.

use super::{Bench, Tensors, bits, close, noise, wide};
use crate::kernels::available;
use crate::spec::{BlockKind, LightningSpec};

const N_EMBD: usize = 40;
const N_ROWS: usize = 150;
const SPEC: LightningSpec = LightningSpec { n_head: 3, head_dim: 16, layer_share: 0.6, eps: 1e-5 };

fn tensors() -> Tensors {
    let n_inner = SPEC.n_head * SPEC.head_dim;
    let mut tensors = Tensors::default();
    let mut add = |part: &str, ne: &[usize]| tensors.add(&format!("blk.0.attn_{part}.weight"), ne);
    add("qkv", &[N_EMBD, 3 * n_inner]);
    add("gate", &[N_EMBD, n_inner]);
    add("norm_2", &[n_inner]);
    add("output", &[n_inner, N_EMBD]);
    tensors
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn plain(tensors: &Tensors, x: &[f32]) -> Vec<f64> {
    let (n_head, d) = (SPEC.n_head, SPEC.head_dim);
    let name = |part: &str| format!("blk.0.attn_{part}.weight");
    let mut states = vec![vec![0.0; d * d]; n_head];
    let mut out = Vec::new();
    for x in x.chunks_exact(N_EMBD) {
        let x = wide(x);
        let qkv: Vec<f64> =
            tensors.times(&name("qkv"), 0, &x).iter().map(|x| x * sigmoid(*x)).collect();
        let mut y = Vec::new();
        for (h, (state, qkv)) in states.iter_mut().zip(qkv.chunks_exact(3 * d)).enumerate() {
            // Slopes of ALiBi, less steep from layer to layer.
            let start = 2f64.powf(-2f64.powf(-((n_head as f64).log2() - 3.0)));
            let decay = (-start.powi(h as i32 + 1) * (f64::from(SPEC.layer_share) + 1e-5)).exp();
            let (q, k, v) = (&qkv[..d], &qkv[d..2 * d], &qkv[2 * d..]);
            for (i, row) in state.chunks_exact_mut(d).enumerate() {
                row.iter_mut().zip(v).for_each(|(s, v)| *s = *s * decay + k[i] * v);
            }
            y.extend((0..d).map(|j| (0..d).map(|i| q[i] * state[i * d + j]).sum::<f64>()));
        }
        let mean = y.iter().map(|y| y * y).sum::<f64>() / y.len() as f64;
        let norm = 1.0 / (mean + f64::from(SPEC.eps)).sqrt();
        let gate = tensors.times(&name("gate"), 0, &x);
        let weights = tensors.get(&name("norm_2"));
        let gated = y
            .iter()
            .zip(weights)
            .zip(&gate)
            .map(|((y, w), g)| y * norm * f64::from(*w) * sigmoid(*g));
        out.extend(tensors.times(&name("output"), 0, &gated.collect::<Vec<f64>>()));
    }
    out
}

#[test]
fn lightning_attention_matches_its_definition() {
    let (kind, tensors) = (BlockKind::Lightning(SPEC), tensors());
    let x = noise(N_ROWS * N_EMBD, 5);
    let want = plain(&tensors, &x);
    let mut first: Option<Vec<f32>> = None;
    for kernels in available() {
        for step in [N_ROWS, 1, 64, 33] {
            let mut bench = Bench::new(&kind, &tensors, N_EMBD, kernels);
            let mut out = Vec::new();
            for at in (0..N_ROWS).step_by(step) {
                let n = step.min(N_ROWS - at);
                out.extend(bench.step(&[(1, at, n)], None, &x[at * N_EMBD..(at + n) * N_EMBD]));
            }
            close("lightning attention", &out, &want, 2e-5);
            let first = first.get_or_insert_with(|| out.clone());
            assert!(bits(&out) == bits(first), "{} in steps of {step}", kernels.name);
        }
    }
}
