//! Mixture of gated experts (Mixtral, arXiv 2401.04088): softmax router, the best experts of each
//! token, rows gathered by expert so that each expert's rows are one product.
//!
//! A token's experts are summed in the order of selection, so the result does not depend on which
//! tokens share an expert.

use std::ops::Range;

use super::{BlockCx, Mlp};
use crate::arch::MoeSpec;
use crate::error::ModelError;
use crate::kernels::{ActRows, MatmulJob, PackedMatrix};
use crate::weights::WeightLoader;

/// The smallest sum that chosen weights are divided by (the smallest normal f16).
const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

/// Weights of one mixture.
pub struct Moe {
    spec: MoeSpec,
    router: PackedMatrix,
    gate: Vec<PackedMatrix>,
    up: Vec<PackedMatrix>,
    down: Vec<PackedMatrix>,
    shared: Option<Mlp>,
}

impl Moe {
    /// Loads `<stem>.ffn_gate_inp`, `ffn_{gate,up,down}_exps` and the shared expert.
    pub fn load(
        spec: &MoeSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (n, n_ff) = (spec.n_expert, spec.n_ff);
        let name = |part: &str| format!("{stem}.ffn_{part}.weight");
        Ok(Self {
            router: loader.matrix(&name("gate_inp"), n, n_embd)?,
            gate: loader.experts(&name("gate_exps"), n, n_ff, n_embd)?,
            up: loader.experts(&name("up_exps"), n, n_ff, n_embd)?,
            down: loader.experts(&name("down_exps"), n, n_embd, n_ff)?,
            shared: match &spec.shared {
                Some(shared) => Some(Mlp::load(shared, stem, n_embd, loader)?),
                None => None,
            },
            spec: spec.clone(),
        })
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`.
    pub fn forward(&self, cx: &mut BlockCx<'_>, x: &ActRows<'_>, out: &mut [f32]) {
        let routing = self.route(cx, x);
        let n_embd = x.cols();
        let n_pairs = routing.rows.len();
        let mut gathered = cx.scratch.take(n_pairs * n_embd);
        for (row, out) in routing.rows.iter().zip(gathered.chunks_exact_mut(n_embd)) {
            out.copy_from_slice(x.row(*row as usize));
        }
        let expert_x = ActRows::new(cx.compute, &gathered, n_embd, &[&self.gate[0], &self.up[0]]);
        let mut gate = cx.scratch.take(n_pairs * self.spec.n_ff);
        let mut up = cx.scratch.take(n_pairs * self.spec.n_ff);
        let mut both = jobs(&self.gate, &expert_x, &routing.spans, &mut gate);
        both.extend(jobs(&self.up, &expert_x, &routing.spans, &mut up));
        cx.compute.matmul(&mut both);
        drop(both);
        drop(expert_x);
        let mut inner = cx.scratch.take(n_pairs * self.spec.n_ff);
        cx.compute.silu_mul(&gate, &up, &mut inner);
        let inner_x = ActRows::new(cx.compute, &inner, self.spec.n_ff, &[&self.down[0]]);
        let mut expert_out = cx.scratch.take(n_pairs * n_embd);
        cx.compute.matmul(&mut jobs(&self.down, &inner_x, &routing.spans, &mut expert_out));
        match &self.shared {
            Some(shared) => shared.forward(cx, x, out),
            None => out.fill(0.0),
        }
        for (row, out) in out.chunks_exact_mut(n_embd).enumerate() {
            for choice in &routing.choices[row * self.spec.n_used..][..self.spec.n_used] {
                let from = &expert_out[choice.pair * n_embd..][..n_embd];
                cx.compute.add_scaled(out, from, choice.weight);
            }
        }
        drop(inner_x);
        cx.scratch.give_all([gathered, gate, up, inner, expert_out]);
    }

    /// The matrices that multiply the block's input.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        let mut inputs = vec![&self.router];
        inputs.extend(self.shared.iter().flat_map(Mlp::inputs));
        inputs
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        let experts = [&self.gate, &self.up, &self.down].into_iter().flatten();
        experts.chain([&self.router]).map(PackedMatrix::nbytes).sum::<usize>()
            + self.shared.as_ref().map_or(0, Mlp::nbytes)
    }

    /// Chooses experts for every row and lays the (row, expert) pairs out expert by expert.
    fn route(&self, cx: &mut BlockCx<'_>, x: &ActRows<'_>) -> Routing {
        let n = x.n_rows();
        let mut probs = cx.scratch.take(n * self.spec.n_expert);
        let job = MatmulJob { w: &self.router, x, rows: 0..n, out: &mut probs };
        cx.compute.matmul(&mut [job]);
        let mut picks = Vec::with_capacity(n * self.spec.n_used);
        cx.compute.softmax(&mut probs, self.spec.n_expert);
        for probs in probs.chunks_exact(self.spec.n_expert) {
            picks.extend(choose(probs, &self.spec));
        }
        cx.scratch.give_all([probs]);
        Routing::new(picks, self.spec.n_expert, self.spec.n_used)
    }
}

/// The experts of one row in descending order of probability (ties: the lower id), with weights.
fn choose(probs: &[f32], spec: &MoeSpec) -> Vec<(usize, f32)> {
    let mut order: Vec<usize> = (0..probs.len()).collect();
    order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]).then(a.cmp(&b)));
    order.truncate(spec.n_used);
    let mut sum = 0.0;
    for &e in &order {
        sum += probs[e];
    }
    let norm = if spec.norm_weights { sum.max(MIN_WEIGHT_SUM) } else { 1.0 };
    order.into_iter().map(|e| (e, probs[e] / norm)).collect()
}

/// Which expert computes what, as pairs (row, expert) sorted by expert.
struct Routing {
    /// Row of each pair.
    rows: Vec<u32>,
    /// For each expert that has rows: its id and its pairs.
    spans: Vec<(usize, Range<usize>)>,
    /// For each row its `n_used` choices in order of selection.
    choices: Vec<Choice>,
}

#[derive(Clone, Copy)]
struct Choice {
    pair: usize,
    weight: f32,
}

impl Routing {
    fn new(picks: Vec<(usize, f32)>, n_expert: usize, n_used: usize) -> Self {
        let mut starts = vec![0usize; n_expert + 1];
        for (expert, _) in &picks {
            starts[expert + 1] += 1;
        }
        for e in 0..n_expert {
            starts[e + 1] += starts[e];
        }
        let spans = (0..n_expert)
            .map(|e| (e, starts[e]..starts[e + 1]))
            .filter(|(_, pairs)| !pairs.is_empty())
            .collect();
        let mut next = starts;
        let mut rows = vec![0u32; picks.len()];
        let mut choices = Vec::with_capacity(picks.len());
        for (i, (expert, weight)) in picks.into_iter().enumerate() {
            let pair = next[expert];
            next[expert] += 1;
            rows[pair] = (i / n_used) as u32;
            choices.push(Choice { pair, weight });
        }
        Self { rows, spans, choices }
    }
}

/// One product for each expert that has rows; `out[n_pairs, rows of a matrix]`.
fn jobs<'a>(
    experts: &'a [PackedMatrix],
    x: &'a ActRows<'a>,
    spans: &[(usize, Range<usize>)],
    mut out: &'a mut [f32],
) -> Vec<MatmulJob<'a>> {
    let mut jobs = Vec::with_capacity(spans.len());
    for (expert, pairs) in spans {
        let w = &experts[*expert];
        let (mine, rest) = std::mem::take(&mut out).split_at_mut(pairs.len() * w.rows());
        out = rest;
        jobs.push(MatmulJob { w, x, rows: pairs.clone(), out: mine });
    }
    jobs
}
