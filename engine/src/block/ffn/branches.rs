//! The norms of a mixture whose shared expert is a branch of its own beside the other experts. Each branch norms its
//! input and its output, and the router norms its input as well.

use crate::kernels::Vector;
use crate::spec::ModelError;
use crate::weights::WeightLoader;

/// Weights of these norms, `[n_embd]` each.
pub(super) struct Branches {
    /// Weights of the norms before the shared expert and behind it.
    pub shared: [Vector; 2],
    /// Weights of the norms before the other experts and behind their sum.
    pub experts: [Vector; 2],
    /// Weight of the norm before the router.
    pub router: Vector,
    /// Epsilon of them all.
    pub eps: f32,
}

impl Branches {
    /// Loads `<stem>.ffn_norm`, `post_ffw_norm_1`, `pre_ffw_norm_2`, `post_ffw_norm_2` and `ffn_gate_inp.scale`. Routers
    /// read rows that are divided by the root of their width, too.
    pub(super) fn load(
        stem: &str,
        n_embd: usize,
        eps: f32,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let mut norm = |name: &str| loader.vector(&format!("{stem}.{name}"), n_embd);
        let shared = [norm("ffn_norm.weight")?, norm("post_ffw_norm_1.weight")?];
        let experts = [norm("pre_ffw_norm_2.weight")?, norm("post_ffw_norm_2.weight")?];
        let root = (n_embd as f32).sqrt();
        let router = norm("ffn_gate_inp.scale")?.into_iter().map(|weight| weight / root).collect();
        Ok(Self { shared, experts, router, eps })
    }
}
