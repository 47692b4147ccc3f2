//! Mixture of experts (Mixtral, arXiv 2401.04088; DeepSeekMoE, arXiv 2401.06066). A router chooses the
//! experts of each token. Rows are then gathered by expert, so that all rows of an expert are one product.
//!
//! The outputs of a token's experts are added to the shared expert's, in the order in which the router chose
//! them. So the result does not depend on which tokens share an expert.

use super::branches::Branches;
use super::experts::{Experts, ExpertsShape};
use super::token_experts::TokenExperts;
use crate::block::linear::Linear;
use crate::block::{Block, BlockCx, Mlp};
use crate::device::{Device, Rows};
use crate::kernels::{ChooseBy, ExpertChoice, ExpertWeights, KernelError, Vector};
use crate::ops::Routing;
use crate::spec::{AdjugateSpec, LatentSpec, ModelError, MoeSpec, Router, SharedExpertSpec};
use crate::state::BlockState;
use crate::weights::WeightLoader;

/// Stem of the tensor that takes part in the choice of experts alone.
const SELECTION_BIAS: &str = "exp_probs_b";

/// Weights of one mixture.
pub struct Moe {
    spec: MoeSpec,
    /// To the experts' logits.
    router: Linear,
    selection_bias: Option<Vector>,
    /// Table of experts by token, where tokens have experts of their own.
    by_token: Option<TokenExperts>,
    /// Projections to and from the experts' width, where that is not the model's.
    latent: Option<Latent>,
    /// Norms of the branches, where the shared expert and the others have norms of their own.
    branches: Option<Branches>,
    experts: Experts,
    adjugates: Option<Adjugates>,
    shared: Option<Shared>,
}

/// The way into the experts' own width and back.
struct Latent {
    narrow: Linear,
    /// Weight and epsilon of a norm of the experts' sum.
    norm: Option<(Vector, f32)>,
    widen: Linear,
}

/// Experts that groups of experts share: they read the sum of the chosen experts.
struct Adjugates {
    spec: AdjugateSpec,
    experts: Experts,
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
        let selection_bias = if spec.selection_bias {
            // Converters write it with and without the usual end of a name.
            let plain = format!("{stem}.{SELECTION_BIAS}");
            let name = if loader.has(&plain) { plain } else { format!("{plain}.bias") };
            Some(loader.vector(&name, n)?)
        } else {
            None
        };
        let by_token = match spec.by_token {
            Some(n_vocab) => Some(TokenExperts::load(stem, n_vocab, spec.n_used, n, loader)?),
            None => None,
        };
        let branches = match spec.branch_eps {
            Some(eps) => Some(Branches::load(stem, n_embd, eps, loader)?),
            None => None,
        };
        let MoeSpec { n_ff, activation, weigh_input, .. } = *spec;
        let shape = ExpertsShape { n, n_ff, width, activation, weigh_input };
        let experts = Experts::load(stem, "exps", shape, loader)?;
        let adjugates = match spec.adjugates {
            Some(of) => {
                let shape = ExpertsShape {
                    n: n / of.per_group,
                    n_ff: of.n_ff,
                    width: n_embd,
                    activation,
                    weigh_input: false,
                };
                let experts = Experts::load(stem, "chexps", shape, loader)?;
                Some(Adjugates { spec: of, experts })
            }
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
            selection_bias,
            by_token,
            latent,
            experts,
            adjugates,
            shared: match &spec.shared {
                Some(shared) => Some(Shared::load(shared, stem, n_embd, loader)?),
                None => None,
            },
            spec: spec.clone(),
        })
    }
}

impl Moe {
    /// Experts of each size.
    fn all_experts(&self) -> impl Iterator<Item = &Experts> {
        let adjugates = self.adjugates.as_ref().map(|adjugates| &adjugates.experts);
        adjugates.into_iter().chain([&self.experts])
    }
}

impl Block for Moe {
    fn nbytes(&self) -> usize {
        let adjugates = self.adjugates.as_ref().map_or(0, |a| a.experts.nbytes());
        let latent = self.latent.iter().flat_map(|latent| [&latent.narrow, &latent.widen]);
        latent.chain([&self.router]).map(Linear::nbytes).sum::<usize>()
            + self.experts.nbytes()
            + adjugates
            + self.by_token.as_ref().map_or(0, TokenExperts::nbytes)
            + self.shared.as_ref().map_or(0, Shared::nbytes)
    }

    fn nbytes_beside(&self) -> usize {
        let adjugates = self.adjugates.as_ref().map_or(0, |a| a.experts.nbytes_beside());
        self.experts.nbytes_beside() + adjugates
    }

    fn make_room(&self, device: &Device) -> Result<(), KernelError> {
        self.all_experts().try_for_each(|of| of.make_room(device))
    }

    fn make_copies(&self, device: &Device) {
        self.all_experts().for_each(|of| of.make_copies(device));
    }

    fn forward(&self, cx: &mut BlockCx<'_>, _: &mut BlockState, x: &Rows) -> Rows {
        if let Some(branches) = &self.branches {
            return self.forward_branches(cx, branches, x);
        }
        let probs = self.probs(cx, if self.spec.routes_early { cx.rows.layer_input } else { x });
        let routing = self.route(cx.device, cx.rows.tokens, &probs);
        let narrow = self.latent.as_ref().map(|latent| latent.narrow.forward(cx, x));
        let input = narrow.as_ref().unwrap_or(x);
        // Where experts lie elsewhere, the shared one is computed here meanwhile.
        let sent = self.experts.send(cx.device, input, &routing);
        let shared = self.shared.as_ref().map(|shared| shared.forward(cx, x));
        let mut out = match &self.latent {
            Some(latent) => {
                let sum = self.experts.sum(&cx.experts_place(), input, &routing, sent, None);
                latent.add(
                    cx,
                    sum,
                    shared.unwrap_or_else(|| cx.scratch.zeros(x.n_rows(), x.cols())),
                )
            }
            None => self.experts.sum(&cx.experts_place(), input, &routing, sent, shared),
        };
        if let Some(adjugates) = &self.adjugates {
            self.add_adjugates(cx, adjugates, &probs, &mut out);
        }
        if self.spec.output_scale != 1.0 {
            cx.device.scale(&mut out, self.spec.output_scale);
        }
        out
    }
}

impl Moe {
    /// [`Moe::forward`] where the shared expert and the others have norms of their own.
    fn forward_branches(&self, cx: &mut BlockCx<'_>, branches: &Branches, x: &Rows) -> Rows {
        let eps = branches.eps;
        let normed = |cx: &BlockCx<'_>, weight: &Vector| {
            let mut normed = cx.scratch.take(x.n_rows(), x.cols());
            cx.device.rms_norm(x, weight, eps, &mut normed);
            normed
        };
        let probs = self.probs(cx, &normed(cx, &branches.router));
        let routing = self.route(cx.device, cx.rows.tokens, &probs);
        let [before, behind] = &branches.experts;
        let rows = normed(cx, before);
        let sent = self.experts.send(cx.device, &rows, &routing);
        let mut out = match &self.shared {
            Some(shared) => {
                let [before, behind] = &branches.shared;
                let rows = normed(cx, before);
                let mut out = shared.forward(cx, &rows);
                cx.device.rms_norm_inplace(&mut out, behind, eps);
                out
            }
            None => cx.scratch.zeros(x.n_rows(), x.cols()),
        };
        let mut sum = self.experts.sum(&cx.experts_place(), &rows, &routing, sent, None);
        cx.device.rms_norm_inplace(&mut sum, behind, eps);
        cx.device.add(&mut out, &sum);
        out
    }

    /// Adds to the sum of the experts, `out`, what the adjugates of their groups make of it.
    fn add_adjugates(
        &self,
        cx: &BlockCx<'_>,
        Adjugates { spec, experts }: &Adjugates,
        probs: &Rows,
        out: &mut Rows,
    ) {
        let n_expert = self.spec.n_expert;
        let n_used = spec.n_used(n_expert, self.spec.n_used);
        let by = ChooseBy::GroupsOfBest(spec.per_group);
        let choice = ExpertChoice { n_expert, n_used, by, weights: ExpertWeights::Normed(1.0) };
        let routing = cx.device.route(&choice, probs);
        let sent = experts.send(cx.device, out, &routing);
        let sum = experts.sum(&cx.experts_place(), out, &routing, sent, None);
        cx.device.add_scaled(out, &sum, spec.scale);
    }

    /// The router's scores of each expert, `[n_rows, n_expert]`.
    fn probs(&self, cx: &BlockCx<'_>, x: &Rows) -> Rows {
        let mut probs = self.router.forward(cx, x);
        match self.spec.router {
            Router::Softmax => cx.device.softmax(&mut probs, self.spec.n_expert),
            Router::Sigmoid => cx.device.sigmoid(&mut probs),
            Router::SoftmaxOfChosen => {}
            Router::SqrtSoftplus => {
                cx.device.softplus(&mut probs);
                cx.device.sqrt(&mut probs);
            }
        }
        probs
    }

    /// Chooses experts for every row.
    fn route(&self, device: &Device, tokens: &[u32], probs: &Rows) -> Routing {
        let MoeSpec { n_expert, n_used, groups, weights_scale, .. } = self.spec;
        let known: Vec<u32>;
        let by = match &self.by_token {
            Some(experts) => {
                let tokens = tokens[..probs.n_rows()].iter();
                known = tokens.flat_map(|token| experts.of(*token)).copied().collect();
                ChooseBy::Known(&known)
            }
            None => ChooseBy::Score { bias: self.selection_bias.as_ref(), groups },
        };
        let weights = match self.spec.router {
            Router::SoftmaxOfChosen => ExpertWeights::Softmax(weights_scale),
            _ if self.spec.norm_weights => ExpertWeights::Normed(weights_scale),
            _ => ExpertWeights::Scaled(weights_scale),
        };
        device.route(&ExpertChoice { n_expert, n_used, by, weights }, probs)
    }
}

impl Latent {
    /// Adds the experts' sum to `out`, through the way back.
    fn add(&self, cx: &BlockCx<'_>, mut sum: Rows, mut out: Rows) -> Rows {
        if let Some((weight, eps)) = &self.norm {
            cx.device.rms_norm_inplace(&mut sum, weight, *eps);
        }
        cx.device.add(&mut out, &self.widen.forward(cx, &sum));
        out
    }

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
        let gate = if spec.gated {
            let name = format!("{stem}.ffn_gate_inp_shexp.weight");
            let weight = loader.row(&name, n_embd)?;
            Some(Linear::of(loader, &name, weight)?)
        } else {
            None
        };
        Ok(Self { mlp: Mlp::load(&spec.mlp, stem, n_embd, loader)?, gate })
    }

    fn forward(&self, cx: &mut BlockCx<'_>, x: &Rows) -> Rows {
        let mut out = self.mlp.forward(cx, &mut BlockState::None, x);
        if let Some(w) = &self.gate {
            let mut weights = w.forward(cx, x);
            cx.device.sigmoid(&mut weights);
            cx.device.scale_rows(&mut out, x.cols(), &weights);
        }
        out
    }

    fn nbytes(&self) -> usize {
        self.mlp.nbytes() + self.gate.as_ref().map_or(0, Linear::nbytes)
    }
}
