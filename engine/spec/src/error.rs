//! Errors of a model, sorted by the action that the caller can take.

use brigade_gguf::GgufError;
use brigade_quant::QuantError;

use brigade_quant::KernelError;

/// A model that cannot be described or loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file is damaged, or lacks something: take another file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The metadata or tensors contradict each other: take another file.
    #[error("bad model: {0}")]
    Bad(String),
    /// The file is fine, but uses something that is not implemented: take another model or quant.
    #[error("not supported yet: {0}")]
    Unsupported(String),
    /// A block format that is not implemented, or a row that is not whole blocks.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// A kernel refused a weight: take another quant.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The state does not fit in memory: fewer slots, a smaller context, or more stages.
    #[error("cannot allocate {bytes} bytes of {what}")]
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: u64,
        /// KV pages, recurrent state, ...
        what: &'static str,
    },
}
