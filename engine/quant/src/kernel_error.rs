//! What kernels refuse, sorted by what the caller can do about it. It stands here, below specs and kernels, as both name it.

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
        /// Threads asked for.
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
        /// Weight type.
        ty: GgmlType,
        /// Elements in a block.
        block: usize,
        /// Elements in a row.
        cols: usize,
    },
    /// Bytes and shape disagree. The file is damaged.
    #[error("{ty} weights of {rows} rows by {cols} are not {bytes} bytes")]
    Length {
        /// Weight type.
        ty: GgmlType,
        /// Rows.
        rows: usize,
        /// Elements in a row.
        cols: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// A device refused. Its text says what to do.
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
        /// Bytes asked for.
        bytes: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// What a device beside the host's cores refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct DeviceError {
    /// What the caller can do about it.
    pub fault: DeviceFault,
    /// What happened and what to do, for operators.
    pub text: String,
}

/// Kinds of such refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// It has no memory for this. Give it less.
    OutOfMemory,
    /// It failed, and may work when it is opened again.
    Failed,
    /// It cannot be used for this.
    Unfit,
}
