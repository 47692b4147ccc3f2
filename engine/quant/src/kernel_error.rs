//! Errors of kernels, sorted by the action that the caller can take. It stands here, below specs and kernels, as both
//! name it.

use crate::GgmlType;

/// A refusal of this module. Shapes that disagree inside one call are bugs of the caller and panic.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No table of that name. Choose one of those listed.
    #[error("unknown kernels \"{name}\": this machine offers {}", available.join(", "))]
    UnknownTable {
        /// The name asked for.
        name: String,
        /// Names that are accepted here.
        available: Vec<&'static str>,
    },
    /// The system gave no thread. Ask for fewer.
    #[error("cannot start {threads} compute threads (ask for fewer): {source}")]
    Threads {
        /// Number of threads that were asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No kernel multiplies with this type. Choose a model in another one.
    #[error("not supported yet: multiplying with {0} weights")]
    Unsupported(GgmlType),
    /// Row length and block size disagree. The file is damaged or of an unknown layout.
    #[error("{ty} weights need rows of a multiple of {block} elements, not {cols}")]
    Cols {
        /// Type of the weights.
        ty: GgmlType,
        /// Elements in a block.
        block: usize,
        /// Elements in a row.
        cols: usize,
    },
    /// Bytes and shape disagree. The file is damaged.
    #[error("{ty} weights of {rows} rows by {cols} are not {bytes} bytes")]
    Length {
        /// Type of the weights.
        ty: GgmlType,
        /// Rows of the matrix.
        rows: usize,
        /// Elements in a row.
        cols: usize,
        /// Length of the bytes that were given.
        bytes: usize,
    },
    /// A device refused the work. Its text says what to do.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An index has more heads than a GPU's kernels take. Give its layers to other workers.
    #[error(
        "an index of {heads} heads has more than the kernels of a GPU take ({most}): give its layers to workers with \
         --device cpu"
    )]
    IndexHeads {
        /// Heads of the index.
        heads: usize,
        /// Most that there may be.
        most: usize,
    },
    /// No memory for packed weights. Give the worker fewer layers.
    #[error("no memory for {bytes} bytes of packed weights: {source}")]
    Memory {
        /// Bytes that were asked for.
        bytes: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Error of a device beside the host's cores.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct DeviceError {
    /// Class of the error, by the action that the caller can take.
    pub fault: DeviceFault,
    /// Description of the error and the remedy, for operators.
    pub text: String,
}

/// Kinds of such refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// The device has no memory for this: the caller should give it less. Give it less.
    OutOfMemory,
    /// The device failed, and may work when it is opened again.
    Failed,
    /// The device cannot be used for this.
    Unfit,
}
