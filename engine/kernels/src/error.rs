//! What the kernels refuse, sorted by what the caller can do about it.

use brigade_quant::GgmlType;

/// A refusal of this module. Shapes that disagree inside one call are bugs of the caller and panic.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No table of that name. Choose one of those listed.
    #[error("unknown kernels \"{name}\": this machine offers {}", available.join(", "))]
    UnknownTable {
        /// The name asked for.
        name: String,
        /// Names that [`select`](crate::select) accepts here.
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
    /// A GPU refused. Its text says what to do.
    #[error(transparent)]
    Gpu(#[from] brigade_gpu::GpuError),
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
