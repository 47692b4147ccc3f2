//! Everything that computes on many numbers: the op table that is chosen once at start, packed weights,
//! activations, attention over KV pages, and the threads that run them.
//!
//! The promise: for a given row of input, the bits of its output do not depend on the rows beside it, on the
//! number of threads, or on which table is in use. Every kernel is written once over sixteen virtual lanes
//! ([`simd`]). A table is that code compiled for one instruction set. The plain meaning of each op stands in
//! [`reference`], and every table is tested against it.
//!
//! Nothing here knows models, layers or files, only slices, shapes and packed matrices.
//!
//! Reading order: [`simd`] has the lanes, [`pool`] the threads, [`act`] and [`pack`] the operands. A block
//! calls [`matmul`], [`ops`], [`rope`] and [`attention`]. [`cpu`] has the kernels behind them.

mod act;
mod aligned;
mod attend_entries;
mod attention;
mod block_index;
mod bounded_gate;
mod choose_entries;
mod chosen;
mod chosen_blocks;
mod column_slices;
mod compute;
mod conv;
mod cpu;
mod delta;
mod depth_attention;
mod entries;
mod error;
mod format;
mod gates;
mod head_columns;
mod index;
mod kv;
mod mamba;
mod matmul;
mod mean_index;
mod ops;
mod pack;
mod pool;
mod pooling;
pub mod probe;
mod reference;
mod rope;
mod scan;
mod simd;
mod ssd;
mod table;
mod wkv6;
mod wkv7;

pub use act::{ActForms, ActRows};
pub use attend_entries::{AttendEntries, Entries, EntryRow};
pub use attention::{Attend, AttendPart, AttendVariant, DistanceBiases, Window};
pub use block_index::{BlockIndex, BlockSizes};
pub use bounded_gate::GateBounds;
pub use choose_entries::{EntryIndex, IndexedRow};
pub use chosen::Chosen;
pub use chosen_blocks::{ChosenBlocks, NO_BLOCK};
pub use compute::Compute;
pub use conv::{Columns, Conv, MAX_CONV_TAPS, StateAt};
pub use delta::{Decay, DeltaRows, DeltaShape, KeyHeads};
pub use entries::{EntryLayout, NewEntries};
pub use error::KernelError;
pub use gates::{GateBound, SwiGluClamp, SwiGluLimit, Xielu};
pub use head_columns::HeadColumns;
pub use index::{Index, PoolSizes};
pub use kv::{KvLayout, KvRows, KvType, ValuePlace};
pub use mamba::{MambaRows, MambaScan};
pub use matmul::MatmulJob;
pub use mean_index::MeanIndex;
pub use pack::PackedMatrix;
pub use pool::{MAX_THREADS, Pool};
pub use pooling::{GatedRow, Pooling};
pub use rope::{RopeLayout, RopeParams, RopeTable, Yarn};
pub use scan::{FLUSH_EVERY, ScanPart};
pub use ssd::{Ssd, SsdInput, SsdShape};
pub use table::{Kernels, NUMERICS, available, select};
pub use wkv6::Wkv6Rows;
pub use wkv7::{Wkv7Rows, Wkv7Weights};

/// Positions in a KV page. Attention accumulates page by page, so this is part of the arithmetic.
pub const KV_PAGE: usize = 64;

#[cfg(test)]
mod tests;
