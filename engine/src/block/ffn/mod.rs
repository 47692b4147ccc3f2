//! Feed-forward blocks: the dense FFN, and mixtures of experts.

pub(super) mod branches;
pub(super) mod experts;
pub(super) mod mlp;
pub(super) mod moe;
pub(super) mod token_experts;
