//! Mixture of experts (Mixtral, arXiv 2401.04088; DeepSeekMoE, arXiv 2401.06066). A router chooses the
//! experts of each token. Rows are then gathered by expert, so that all rows of an expert are one product.
//!
//! The outputs of a token's experts are added to the shared expert's, in the order in which the router chose
//! them. So the result does not depend on which tokens share an expert.

use std::ops::Range;

use super::branches::Branches;
use super::linear::{Linear, Projection, project_all};
use super::mlp::activate;
use super::routing::{Routing, choose};
use super::{BlockCx, Mlp};
use crate::arch::{LatentSpec, MoeSpec, Router, SharedExpertSpec};
use crate::error::ModelError;
use crate::kernels::{ActRows, PackedMatrix};
use crate::weights::WeightLoader;

/// Stem of the tensor that takes part in the choice of experts alone.
const SELECTION_BIAS: &str = "exp_probs_b";

/// Weights of one mixture.
pub struct Moe {
    spec: MoeSpec,
    /// To the experts' logits.
    router: Linear,
    selection_bias: Option<Vec<f32>>,
    /// Where experts work in another width.
    latent: Option<Latent>,
    /// Where the shared expert and the others have norms of their own.
    branches: Option<Branches>,
    /// Empty where the activation has no gate.
    gate: Vec<Linear>,
    up: Vec<Linear>,
    down: Vec<Linear>,
    /// Of gates, ways up and ways down, `[n_expert, rows]` each, where the file has them.
    biases: [Option<Vec<f32>>; 3],
    shared: Option<Shared>,
}

/// The way into the experts' own width and back.
struct Latent {
    narrow: Linear,
    /// Weight and epsilon of a norm of the experts' sum.
    norm: Option<(Vec<f32>, f32)>,
    widen: Linear,
}

/// The expert that every token uses.
struct Shared {
    mlp: Mlp,
    /// One row: the sigmoid of its product with a token is the expert's weight.
    gate: Option<Linear>,
}

impl Moe {
    /// Loads `<stem>.ffn_gate_inp`, `ffn_{gate,up,down}_exps` (or `ffn_gate_up_exps`), and what else
    /// the spec has.
    pub fn load(
        spec: &MoeSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let n = spec.n_expert;
        let name = |part: &str| format!("{stem}.ffn_{part}.weight");
        let latent = match &spec.latent {
            None => None,
            Some(latent) => Some(Latent::load(latent, stem, n_embd, loader)?),
        };
        let width = spec.latent.map_or(n_embd, |latent| latent.width);
        let fused = name("gate_up_exps");
        let [gate, up] = match spec.activation.is_gated() {
            true if loader.has(&fused) => {
                Linear::fused_experts(loader, &fused, n, spec.n_ff, width)?
            }
            true => [
                Linear::experts(loader, &name("gate_exps"), n, spec.n_ff, width)?,
                Linear::experts(loader, &name("up_exps"), n, spec.n_ff, width)?,
            ],
            false => [Vec::new(), Linear::experts(loader, &name("up_exps"), n, spec.n_ff, width)?],
        };
        let selection_bias = match spec.selection_bias {
            true => {
                // Converters write it with and without the usual end of a name.
                let plain = format!("{stem}.{SELECTION_BIAS}");
                let name = if loader.has(&plain) { plain } else { format!("{plain}.bias") };
                Some(loader.vector(&name, n)?)
            }
            false => None,
        };
        let mut bias = |part: &str, rows: usize| {
            let name = format!("{stem}.ffn_{part}_exps.bias");
            match loader.has(&name) {
                true => loader.values(&name, &[rows, n]).map(Some),
                false => Ok(None),
            }
        };
        let biases = [bias("gate", spec.n_ff)?, bias("up", spec.n_ff)?, bias("down", width)?];
        let branches = match spec.branch_eps {
            Some(eps) => Some(Branches::load(stem, n_embd, eps, loader)?),
            None => None,
        };
        // What stands beside it as a scale is for its input, where there are branches.
        let router = match branches {
            Some(_) => {
                let (ty, bytes) = loader.raw(&name("gate_inp"), &[n_embd, n])?;
                let weight = loader.pack(ty, n, n_embd, &bytes)?;
                Linear::of(loader, &name("gate_inp"), weight)?
            }
            None => Linear::matrix(loader, &name("gate_inp"), n, n_embd)?,
        };
        Ok(Self {
            router: router.with_bias(loader.opt_vector(&format!("{stem}.ffn_gate_inp.bias"), n)?),
            branches,
            biases,
            selection_bias,
            latent,
            gate,
            up,
            down: Linear::experts(loader, &name("down_exps"), n, width, spec.n_ff)?,
            shared: match &spec.shared {
                Some(shared) => Some(Shared::load(shared, stem, n_embd, loader)?),
                None => None,
            },
            spec: spec.clone(),
        })
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`.
    pub fn forward(&self, cx: &mut BlockCx<'_>, x: &ActRows<'_>, out: &mut [f32]) {
        if let Some(branches) = &self.branches {
            return self.forward_branches(cx, branches, x, out);
        }
        let routing = match self.spec.routes_early {
            true => {
                let inputs = [&self.router.weight];
                let rows = ActRows::new(cx.compute, cx.layer_input, x.cols(), &inputs);
                self.route(cx, &rows)
            }
            false => self.route(cx, x),
        };
        match &self.shared {
            Some(shared) => shared.forward(cx, x, out),
            None => out.fill(0.0),
        }
        match &self.latent {
            Some(latent) => self.add_latent(cx, latent, x, &routing, out),
            None => self.add_experts(cx, x, &routing, out),
        }
        if self.spec.output_scale != 1.0 {
            cx.compute.scale(out, self.spec.output_scale);
        }
    }

    /// [`Moe::forward`] where the shared expert and the others have norms of their own.
    fn forward_branches(
        &self,
        cx: &mut BlockCx<'_>,
        branches: &Branches,
        x: &ActRows<'_>,
        out: &mut [f32],
    ) {
        let (width, eps) = (x.cols(), branches.eps);
        let mut normed = cx.scratch.take(out.len());
        out.fill(0.0);
        if let Some(shared) = &self.shared {
            let [before, behind] = &branches.shared;
            cx.compute.rms_norm(x.values(), before, eps, &mut normed);
            let rows = ActRows::new(cx.compute, &normed, width, &shared.inputs());
            shared.forward(cx, &rows, out);
            cx.compute.rms_norm_inplace(out, behind, eps);
        }
        cx.compute.rms_norm(x.values(), &branches.router, eps, &mut normed);
        let routing =
            self.route(cx, &ActRows::new(cx.compute, &normed, width, &[&self.router.weight]));
        let [before, behind] = &branches.experts;
        cx.compute.rms_norm(x.values(), before, eps, &mut normed);
        let mut sum = cx.scratch.take(out.len());
        sum.fill(0.0);
        let rows = ActRows::new(cx.compute, &normed, width, &[]);
        self.add_experts(cx, &rows, &routing, &mut sum);
        drop(rows);
        cx.compute.rms_norm_inplace(&mut sum, behind, eps);
        cx.compute.add(out, &sum);
        cx.scratch.give_all([normed, sum]);
    }

    /// [`Moe::add_experts`] through the experts' own width.
    fn add_latent(
        &self,
        cx: &mut BlockCx<'_>,
        Latent { narrow, norm, widen }: &Latent,
        x: &ActRows<'_>,
        routing: &Routing,
        out: &mut [f32],
    ) {
        let n = x.n_rows();
        let mut input = cx.scratch.take(n * narrow.rows());
        cx.project(&mut [narrow.job(x, &mut input)]);
        let mut sum = cx.scratch.take(input.len());
        sum.fill(0.0);
        let narrow_x = ActRows::new(cx.compute, &input, narrow.rows(), &[]);
        self.add_experts(cx, &narrow_x, routing, &mut sum);
        if let Some((weight, eps)) = norm {
            cx.compute.rms_norm_inplace(&mut sum, weight, *eps);
        }
        let mut wide = cx.scratch.take(out.len());
        widen.forward(cx, &sum, &mut wide);
        cx.compute.add(out, &wide);
        drop(narrow_x);
        cx.scratch.give_all([input, sum, wide]);
    }

    /// Adds the weighted outputs of the chosen experts to `out`, in the width that they work in.
    fn add_experts(
        &self,
        cx: &mut BlockCx<'_>,
        x: &ActRows<'_>,
        routing: &Routing,
        out: &mut [f32],
    ) {
        let (width, n_pairs) = (x.cols(), routing.rows.len());
        let mut gathered = cx.scratch.take(n_pairs * width);
        for (row, out) in routing.rows.iter().zip(gathered.chunks_exact_mut(width)) {
            out.copy_from_slice(x.row(*row as usize));
        }
        if self.spec.weigh_input {
            cx.compute.scale_rows(&mut gathered, width, &routing.weights());
        }
        let adapters = cx.adapters.picked(routing.rows.iter().map(|row| *row as usize));
        let inputs = self.gate.first().into_iter().chain(self.up.first());
        let inputs: Vec<_> = inputs.map(|w| &w.weight).collect();
        let expert_x = ActRows::new(cx.compute, &gathered, width, &inputs);
        let mut up = cx.scratch.take(n_pairs * self.spec.n_ff);
        let mut gate = cx.scratch.take(if self.gate.is_empty() { 0 } else { up.len() });
        let mut both = jobs(&self.up, &expert_x, &routing.spans, &mut up);
        if !self.gate.is_empty() {
            both.extend(jobs(&self.gate, &expert_x, &routing.spans, &mut gate));
        }
        project_all((cx.compute, cx.scratch), &adapters, &mut both);
        drop(both);
        drop(expert_x);
        let [gate_bias, up_bias, down_bias] = &self.biases;
        add_biases(cx, gate_bias.as_deref(), &routing.spans, self.spec.n_ff, &mut gate);
        add_biases(cx, up_bias.as_deref(), &routing.spans, self.spec.n_ff, &mut up);
        activate(cx.compute, self.spec.activation, &gate, &mut up);
        let inner_x = ActRows::new(cx.compute, &up, self.spec.n_ff, &[&self.down[0].weight]);
        let mut expert_out = cx.scratch.take(n_pairs * width);
        let mut down = jobs(&self.down, &inner_x, &routing.spans, &mut expert_out);
        project_all((cx.compute, cx.scratch), &adapters, &mut down);
        drop(down);
        add_biases(cx, down_bias.as_deref(), &routing.spans, width, &mut expert_out);
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            for choice in routing.choices(row) {
                let from = &expert_out[choice.pair * width..][..width];
                let weight = if self.spec.weigh_input { 1.0 } else { choice.weight };
                cx.compute.add_scaled(out, from, weight);
            }
        }
        drop(inner_x);
        cx.scratch.give_all([gathered, gate, up, expert_out]);
    }

    /// The matrices that multiply the block's input.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        if self.branches.is_some() {
            // Their products read rows that the block norms itself.
            return Vec::new();
        }
        // An early router reads other rows.
        let own = (!self.spec.routes_early).then_some(&self.router.weight);
        let mut inputs: Vec<_> = own.into_iter().collect();
        inputs.extend(self.latent.iter().map(|latent| &latent.narrow.weight));
        inputs.extend(self.shared.iter().flat_map(Shared::inputs));
        inputs
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        let experts = [&self.gate, &self.up, &self.down].into_iter().flatten();
        let latent = self.latent.iter().flat_map(|latent| [&latent.narrow, &latent.widen]);
        experts.chain(latent).chain([&self.router]).map(Linear::nbytes).sum::<usize>()
            + self.shared.as_ref().map_or(0, Shared::nbytes)
    }

    /// Chooses experts for every row and lays the (row, expert) pairs out expert by expert.
    fn route(&self, cx: &mut BlockCx<'_>, x: &ActRows<'_>) -> Routing {
        let (n, n_expert) = (x.n_rows(), self.spec.n_expert);
        let mut probs = cx.scratch.take(n * n_expert);
        cx.project(&mut [self.router.job(x, &mut probs)]);
        match self.spec.router {
            Router::Softmax => cx.compute.softmax(&mut probs, n_expert),
            Router::Sigmoid => cx.compute.sigmoid(&mut probs),
            Router::SoftmaxOfChosen => {}
        }
        let mut picks = Vec::with_capacity(n * self.spec.n_used);
        for probs in probs.chunks_exact(n_expert) {
            picks.extend(choose(probs, self.selection_bias.as_deref(), &self.spec));
        }
        cx.scratch.give_all([probs]);
        if self.spec.router == Router::SoftmaxOfChosen {
            let mut weights: Vec<f32> = picks.iter().map(|pick| pick.1).collect();
            cx.compute.softmax(&mut weights, self.spec.n_used);
            for (pick, weight) in picks.iter_mut().zip(weights) {
                pick.1 = weight * self.spec.weights_scale;
            }
        }
        Routing::new(picks, n_expert, self.spec.n_used)
    }
}

impl Latent {
    fn load(
        spec: &LatentSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.ffn_{}_{part}.weight", spec.stem);
        let norm = match spec.norm_eps {
            Some(eps) => Some((loader.vector(&name("norm"), spec.width)?, eps)),
            None => None,
        };
        Ok(Self {
            narrow: Linear::matrix(loader, &name("down"), spec.width, n_embd)?,
            norm,
            widen: Linear::matrix(loader, &name("up"), n_embd, spec.width)?,
        })
    }
}

impl Shared {
    fn load(
        spec: &SharedExpertSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let gate = match spec.gated {
            true => {
                let name = format!("{stem}.ffn_gate_inp_shexp.weight");
                let weight = loader.row(&name, n_embd)?;
                Some(Linear::of(loader, &name, weight)?)
            }
            false => None,
        };
        Ok(Self { mlp: Mlp::load(&spec.mlp, stem, n_embd, loader)?, gate })
    }

    fn forward(&self, cx: &mut BlockCx<'_>, x: &ActRows<'_>, out: &mut [f32]) {
        self.mlp.forward(cx, x, out);
        if let Some(w) = &self.gate {
            let mut weights = cx.scratch.take(x.n_rows());
            cx.project(&mut [w.job(x, &mut weights)]);
            cx.compute.sigmoid(&mut weights);
            cx.compute.scale_rows(out, x.cols(), &weights);
            cx.scratch.give_all([weights]);
        }
    }

    fn inputs(&self) -> Vec<&PackedMatrix> {
        let mut inputs = self.mlp.inputs();
        inputs.extend(self.gate.iter().map(|gate| &gate.weight));
        inputs
    }

    fn nbytes(&self) -> usize {
        self.mlp.nbytes() + self.gate.as_ref().map_or(0, Linear::nbytes)
    }
}

/// Adds to the rows of each expert its bias of `biases`, `[n_expert, width]`.
fn add_biases(
    cx: &BlockCx<'_>,
    biases: Option<&[f32]>,
    spans: &[(usize, Range<usize>)],
    width: usize,
    out: &mut [f32],
) {
    let Some(biases) = biases else { return };
    for (expert, pairs) in spans {
        let rows = &mut out[pairs.start * width..pairs.end * width];
        cx.compute.add_bias(rows, &biases[expert * width..][..width]);
    }
}

/// One projection for each expert that has rows; `out[n_pairs, rows of a matrix]`.
fn jobs<'a>(
    experts: &'a [Linear],
    x: &'a ActRows<'a>,
    spans: &[(usize, Range<usize>)],
    mut out: &'a mut [f32],
) -> Vec<Projection<'a>> {
    let mut jobs = Vec::with_capacity(spans.len());
    for (expert, pairs) in spans {
        let w = &experts[*expert];
        let (mine, rest) = std::mem::take(&mut out).split_at_mut(pairs.len() * w.rows());
        out = rest;
        jobs.push(w.job_of(x, pairs.clone(), mine));
    }
    jobs
}
