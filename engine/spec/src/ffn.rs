//! FFNs as data: dense ones, mixtures of experts, and what stands between their matrices.

use brigade_shapes::{ExpertGroups, GateBounds, SwiGluClamp, SwiGluLimit, Xielu};

/// The function between the up and down matrices of an FFN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate x) * up x` (SwiGLU, arXiv 2002.05202).
    SwiGlu,
    /// SwiGLU with both factors bounded: `b tanh(gate x / b) sigmoid(gate x) * l tanh(up x / l)`.
    BoundedSilu(GateBounds),
    /// `max(up x, 0)²`; there is no gate matrix.
    ReluSquared,
    /// `gelu(gate x) * up x`, by the hyperbolic tangent.
    GeGlu,
    /// `max(gate x, 0) * up x`.
    ReGlu,
    /// `gelu(up x)`; there is no gate matrix.
    Gelu,
    /// `max(up x, 0)`; there is no gate matrix.
    Relu,
    /// SwiGLU with bounds and a 1 added to what is gated: see
    /// the clamped SwiGLU.
    ClampedSwiGlu(SwiGluClamp),
    /// `xielu(up x)`; there is no gate matrix.
    Xielu(Xielu),
    /// SwiGLU whose gate is bounded from above and whose other factor is bounded from both sides: see
    /// the limited SwiGLU.
    LimitedSwiGlu(SwiGluLimit),
}

impl Activation {
    /// Whether there is a gate matrix beside the way up.
    #[inline]
    pub fn is_gated(self) -> bool {
        !matches!(self, Self::ReluSquared | Self::Gelu | Self::Relu | Self::Xielu(_))
    }
}

/// Dense FFN: `down(activation(up x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Width between the two matrices.
    pub n_ff: usize,
    /// Between the tensor's stem and `.weight`: `""`, or `"_shexp"` for a shared expert.
    pub suffix: &'static str,
    /// Function between the matrices.
    pub activation: Activation,
    /// Whether the gate's rows are the first half of the way up's tensor.
    pub fused: bool,
    /// Epsilon of an RMS norm (`ffn_sub_norm`) before the way down; `None` without it.
    pub sub_norm: Option<f32>,
    /// The gate's values lose the mean of their row and this many of its standard deviations, and count from 0 on; `None`:
    /// they are as they are.
    pub gate_above: Option<f32>,
}

impl MlpSpec {
    /// An FFN of a layer, with the usual names of tensors.
    pub fn new(n_ff: usize, activation: Activation) -> Self {
        Self { n_ff, suffix: "", activation, fused: false, sub_norm: None, gate_above: None }
    }

    /// A layer's SwiGLU FFN.
    pub fn swiglu(n_ff: usize) -> Self {
        Self::new(n_ff, Activation::SwiGlu)
    }
}

/// Mixture of experts; a token is computed by the `n_used` that its router scores highest.
///
/// [`MoeSpec::new`] is Mixtral's; the fields are what others vary.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Experts in the layer.
    pub n_expert: usize,
    /// Experts a token uses.
    pub n_used: usize,
    /// Inner width of an expert.
    pub n_ff: usize,
    /// Function between an expert's matrices.
    pub activation: Activation,
    /// Rule by which the router's logits become weights.
    pub router: Router,
    /// Whether a bias (`exp_probs_b.bias`) is added to the weights for the choice alone.
    pub selection_bias: bool,
    /// Rows, one for each token, of a table that says which experts it uses (`ffn_gate_tid2eid`): the router gives their
    /// weights alone. `None`: it chooses them too.
    pub by_token: Option<usize>,
    /// Groups of experts that are chosen first; `None` where all experts compete.
    pub groups: Option<ExpertGroups>,
    /// Whether the chosen weights are divided by their sum.
    pub norm_weights: bool,
    /// Multiplies the chosen weights, after that division.
    pub weights_scale: f32,
    /// Whether the router reads the residual stream as it came into the layer, not the block's own rows.
    pub routes_early: bool,
    /// Whether weights multiply what an expert reads, not what it gives.
    pub weigh_input: bool,
    /// Multiplies the sum of all experts, the shared one included.
    pub output_scale: f32,
    /// Narrower rows that the experts work in; `None`: rows as wide as the model.
    pub latent: Option<LatentSpec>,
    /// Epsilon of the norms of the two branches, the shared expert and the others. Each branch then reads rows that are
    /// not normed, and has norms of its own before and behind it. `None`: both read the same normed rows.
    pub branch_eps: Option<f32>,
    /// Experts that groups of them share.
    pub adjugates: Option<AdjugateSpec>,
    /// An expert that every token uses.
    pub shared: Option<SharedExpertSpec>,
}

impl MoeSpec {
    /// SwiGLU experts under a softmax router, weights divided by their sum, nothing shared.
    pub fn new(n_expert: usize, n_used: usize, n_ff: usize) -> Self {
        Self {
            n_expert,
            n_used,
            n_ff,
            activation: Activation::SwiGlu,
            router: Router::Softmax,
            selection_bias: false,
            by_token: None,
            groups: None,
            norm_weights: true,
            weights_scale: 1.0,
            routes_early: false,
            weigh_input: false,
            output_scale: 1.0,
            latent: None,
            branch_eps: None,
            adjugates: None,
            shared: None,
        }
    }
}

/// A width of experts' own: a matrix before all of them narrows the rows, one after their sum widens it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentSpec {
    /// Width of the latent rows.
    pub width: usize,
    /// Stem in the names of the tensors: `ffn_<stem>_down`, `ffn_<stem>_up` and `ffn_<stem>_norm`.
    pub stem: &'static str,
    /// Epsilon of an RMS norm of the experts' sum before it is widened; `None` without it.
    pub norm_eps: Option<f32>,
}

/// An expert for each group of consecutive experts (`ffn_{gate,up,down}_chexps`). It reads the sum of the chosen experts,
/// and what it gives is added to that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdjugateSpec {
    /// Experts of a group; divides their number.
    pub per_group: usize,
    /// Width between the group's matrices.
    pub n_ff: usize,
    /// Multiplies the sum of the adjugates.
    pub scale: f32,
}

impl AdjugateSpec {
    /// Adjugates that a token uses, of `n_expert` experts of which it uses `n_used`.
    #[inline]
    pub fn n_used(&self, n_expert: usize, n_used: usize) -> usize {
        n_used.min(n_expert / self.per_group)
    }
}

/// Computation of the experts' weights from a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// The choice by the logits themselves, then softmax over the chosen.
    SoftmaxOfChosen,
    /// `sqrt(softplus(z))` of each logit.
    SqrtSoftplus,
}

/// The expert that every token uses, added to the others.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpertSpec {
    /// Sizes and tensors of the expert.
    pub mlp: MlpSpec,
    /// Whether it is multiplied by `sigmoid(w · x)` (`ffn_gate_inp_shexp`).
    pub gated: bool,
}

impl SharedExpertSpec {
    /// An un-gated one of inner width `n_ff`.
    pub fn new(n_ff: usize, activation: Activation) -> Self {
        Self { mlp: MlpSpec { suffix: "_shexp", ..MlpSpec::new(n_ff, activation) }, gated: false }
    }
}
