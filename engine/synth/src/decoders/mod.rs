//! Synthetic decoders with ordinary attention, each as it differs from llama's block.

pub(super) mod classic;
pub(super) mod dense;
pub(super) mod gated;
pub(super) mod gemma;
pub(super) mod later_dense;
pub(super) mod mixtures;
pub(super) mod passes;
pub(super) mod pictured;
pub(super) mod plain;
pub(super) mod switched;
pub(super) mod thinned;
pub(super) mod transformer;
pub(super) mod unrotated;
