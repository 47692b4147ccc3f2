//! A synchronous library that runs layers `[a, b)` of a GGUF model: tokens or hidden rows in,
//! hidden rows or sampled tokens out. It knows nothing of networks, processes or clocks.
//!
//! Reading order: [`gguf`] (the file), [`quant`] (block formats), [`kernels`] (the op table),
//! [`arch`] (metadata to block specs), [`weights`] (tensors by name and shape), [`block`] (mixers
//! and FFNs), [`state`] (KV pages, slots), [`batch`] (the data plane's one type), [`stage`] (layers
//! plus their state), [`sample`], [`text`], [`constraint`]. Beside them: [`synth`] (random models), [`npy`].

pub mod arch;
pub mod batch;
pub mod block;
pub mod constraint;
pub mod error;
pub mod gguf;
pub mod kernels;
pub mod npy;
pub mod quant;
pub mod sample;
pub mod stage;
pub mod state;
pub mod synth;
pub mod text;
pub mod weights;
