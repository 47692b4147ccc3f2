//! A synchronous library that runs layers `[a, b)` of a GGUF model. Tokens or hidden rows go in; hidden rows
//! or sampled tokens come out. It knows nothing of networks or processes, and no
//! result depends on a clock.
//!
//! Reading order:
//!
//! - [`gguf`] is the file format, [`quant`] has the block formats. [`ops`] is what can be computed, as data, [`kernels`] computes
//!   it on the host.
//! - [`spec`] has what a model is made of, as data. `brigade-models` makes it of metadata, and a stage is loaded by it.
//!   [`weights`] hands out tensors by name and shape.
//! - [`block`] has mixers and FFNs. [`state`] has KV pages and slots. [`batch`] has the ubatch.
//! - `residual` has how blocks meet the residual stream. [`stage`] is layers with their state. [`sample`] draws tokens.
//! - [`heads`] are what stands behind the last layer of models that make vectors: they judge a text in rerankers, or move its
//!   vector to another space.
//! - [`device`] opens GPUs and the host, and runs ops there. [`control_vectors`] are added behind layers. [`error`] has what can
//!   fail.
//! - [`constraint`] says which tokens may follow in an answer that has to fit a grammar.
//!
//! Text, architectures and random models are crates of their own (`brigade-text`, `brigade-models`, `brigade-synth`),
//! which this one does not need: a change there compiles this crate and its kernels not again.

pub use brigade_gguf as gguf;
pub use brigade_ops as ops;
pub use brigade_quant as quant;
pub use brigade_spec as spec;

pub mod batch;
pub mod block;
pub mod constraint;
pub mod control_vectors;
pub mod device;
pub mod error;
pub mod heads;
mod residual;
pub mod sample;
pub mod stage;
pub mod state;
pub mod weights;

/// Everything that computes on many numbers on the host, with the tables that this machine can run.
pub mod kernels {
    pub use brigade_kernels::*;
    pub use brigade_kernels_tables::{available, fast, select, unfused};
}
