//! Readers of the keys that several architectures share.

pub(crate) mod adapters;
pub(crate) mod attention;
pub(crate) mod decoder;
pub(crate) mod encoder;
pub(crate) mod experts;
pub(crate) mod hparams;
pub(crate) mod hyper;
pub(crate) mod lending;
pub(crate) mod limits;
pub(crate) mod mamba2;
pub(crate) mod mla;
pub(crate) mod model;
pub(crate) mod own_drafts;
pub(crate) mod passes;
pub(crate) mod rope;
pub(crate) mod sections;
pub(crate) mod switch;
pub(crate) mod transformer;

pub use hparams::Hparams;
