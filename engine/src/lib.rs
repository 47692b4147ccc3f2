//! A synchronous library that runs layers `[a, b)` of a GGUF model. Tokens or hidden rows go in; hidden rows
//! or sampled tokens come out. It knows nothing of networks, processes or clocks.
//!
//! Reading order:
//!
//! - [`gguf`] is the file format, [`quant`] has the block formats, [`kernels`] the op table.
//! - [`arch`] makes block specs of metadata. [`weights`] hands out tensors by name and shape.
//! - [`block`] has mixers and FFNs. [`state`] has KV pages and slots. [`batch`] has the ubatch.
//! - [`stage`] is layers with their state. [`sample`] draws tokens. [`text`] turns text into tokens and back.
//! - [`heads`] judge a text in rerankers, or move its vector to another space.
//! - [`constraint`] says which tokens may follow in an answer that has to fit a grammar.
//! - Beside them, [`synth`] makes random models, and [`npy`] reads and writes arrays.

pub use brigade_quant as quant;

pub mod arch;
pub mod batch;
pub mod block;
pub mod constraint;
pub mod control_vectors;
pub mod device;
pub mod error;
pub mod gguf;
pub mod heads;
pub mod npy;
pub mod sample;
pub mod stage;
pub mod state;
pub mod synth;
pub mod text;
pub mod weights;

/// Everything that computes on many numbers, with the tables that this machine can run.
pub mod kernels {
    pub use brigade_kernels::*;
    pub use brigade_kernels_tables::{available, select, unfused};
}
