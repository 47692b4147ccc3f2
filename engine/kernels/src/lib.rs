//! Everything that computes on many numbers: the op table that is chosen once at start, packed weights,
//! activations, attention over KV pages, and the threads that run them.
//!
//! The promise: for a given row of input, the bits of its output do not depend on the rows beside it, on the
//! number of threads, or on which table is in use. Every kernel is written once over sixteen virtual lanes
//! ([`simd`]). A table is that code compiled for one instruction set, and a crate of its own beside `src`; this crate
//! compiles none. The plain meaning of each op stands in `tables/tests/kernels/reference`, and every table is tested
//! against it.
//!
//! Nothing here knows models, layers, files or GPUs, only slices, shapes and packed matrices.
//!
//! Each layer knows only those before it:
//!
//! 1. [`simd`], the lanes; [`pool`], the threads; memory and errors.
//! 2. [`tiles`], what kernels see of operands, most of which are in `brigade_ops`; [`format`], how packed weights lie.
//! 3. [`cpu`], the kernels over any lanes, and the plain lanes ([`lanes`] hands on what tables are made of).
//! 4. [`table`], the kernels of one instruction set; [`compute`], a table with its threads.
//! 5. [`ops`], each op over the threads, and all by their names ([`Compute::run`]); [`probe`], the limits of the machine.
//!
//! [`inner`] is for the tests of the tables alone. They stand in `tables/tests`, so that kernels are compiled once.

mod ahead;
mod aligned;
mod compute;
mod cpu;
mod format;
mod ops;
mod pinning;
mod pool;
pub mod probe;
mod shares;
mod simd;
mod slab;
mod sync;
mod table;
mod tiles;

pub use brigade_ops::{
    AttendEntries, ChooseByMeans, ChooseEntries, ChosenEntries, Conv, ConvRows, DeltaScan, Derived,
    DilatedRows, GatedRow, Host, MambaScan, MambaWeights, NewEntries, PageId, PoolGated, Product,
    ProductRoots, Products, Ssd, SsdScan, Vector, Weigh, Weights, Wkv6, Wkv6Decay, Wkv7, Wkv7Bonus,
    Wkv7Prepare, Wkv7Weights, WriteEntries,
};
pub use brigade_quant::{DeviceError, DeviceFault, KernelError};
pub use brigade_shapes::{
    BlockSizes, ChooseBy, Decay, DeltaShape, DilatedConv, EntryLayout, ExpertChoice, ExpertGroups,
    ExpertWeights, GateBound, GateBounds, KV_PAGE, KeyHeads, KvLayout, KvType, MAX_CONV_TAPS,
    PoolSizes, RopeLayout, SsdShape, StateAt, StreamShape, SumStart, SwiGluClamp, SwiGluLimit,
    ValuePlace, WeightsAt, Window, Xielu,
};
pub use compute::Compute;
pub use ops::attention::chosen::Chosen;
pub use ops::experts::job::{ExpertRun, ExpertsJob};
pub use ops::index::blocks::BlockIndex;
pub use ops::index::positions::Index;
pub use ops::kv::pages::KvRows;
pub use ops::kv::pooling::Pooling;
pub use ops::rowwise::moves::HeadColumns;
pub use pool::{MAX_THREADS, Pool};
pub use table::{Kernels, NUMERICS, NUMERICS_PAIRS, NUMERICS_UNFUSED, fast_numerics};
pub use tiles::attention::chosen_blocks::{ChosenBlocks, NO_BLOCK};
pub use tiles::attention::paged::{Attend, AttendPart, AttendVariant, DistanceBiases};
pub use tiles::attention::rope::{RopeParams, RopeTable, Yarn};
pub use tiles::products::activations::ActRows;
pub use tiles::products::pack::PackedMatrix;
pub use tiles::scan::delta::DeltaRows;
pub use tiles::scan::mamba::MambaRows;
pub use tiles::scan::ssd::SsdInput;
pub use tiles::scan::wkv6::Wkv6Rows;
pub use tiles::scan::wkv7::Wkv7Rows;
pub use tiles::scan::{Columns, FLUSH_EVERY, ScanPart};

/// Parts of which the tables are made.
pub mod lanes {
    pub use crate::cpu::lanes::scalar::Scalar;
    pub use crate::cpu::lanes::unfused::Unfused;
    #[cfg(target_arch = "x86_64")]
    pub use crate::cpu::lanes::x86;
    pub use crate::simd::{Cache, LANES, Op, Simd, chained};
}

/// Items for the kernels' own tests only.
pub mod inner {
    pub use crate::cpu::exp::{EXP_ERROR, exp};
    pub use crate::cpu::products::matmul_f32::RUN;
    pub use crate::cpu::products::matmul_many::MANY_ROWS;
    pub use crate::ops::rowwise::stream_weights::doubly_stochastic;
    pub use crate::tiles::attention::chosen_blocks::{SeenPage, seen_pages};
    pub use crate::tiles::attention::kv_pages::add_index_key;
    pub use crate::tiles::products::activations::{ACT_BLOCK, ActBlock};
}
