//! The GPU side of the engine: ops on device memory through Vulkan 1.3, which is loaded at run time.
//!
//! A [`Gpu`] hands out memory ([`GpuBuffer`]) and records ops ([`Gpu::run`]), each of which is a method too. They run
//! in the order in which they were recorded. A read of memory on the host waits for them first, by itself. The bits of
//! every op are those of the engine's kernel table `unfused`; but for products of many rows with [fast
//! math](DeviceOptions::fast_math).
//!
//! Nothing here knows models, layers or files, only addresses, shapes and packed bytes.

mod accelerator;
mod commands;
mod device;
mod error;
mod kind;
mod lock;
mod memory;
mod operands;
mod ops;
mod pipelines;
mod precompile;
mod transfer;
mod vulkan;

pub use brigade_ops::{DeviceClass, DeviceOptions};
pub use brigade_shapes::{
    BlockSizes, Decay, DeltaShape, DilatedConv, EntryLayout, ExpertGroups, ExpertWeights,
    GateBound, KV_PAGE, KeyHeads, KvLayout, KvType, LEAST_WEIGHT_SUM, PoolSizes, RopeLayout,
    SsdShape, StateAt, StreamShape, SumStart, ValuePlace, WeightsAt, Window, Xielu,
};
pub use device::Gpu;
pub use error::GpuError;
pub use kind::VULKAN;
pub use memory::Purpose;
pub use memory::span::{Span, SpanMut};
pub use operands::{OnGpu, ToGpu, span_mut_of, span_of};
pub use ops::BlockIndexSpans;
pub use ops::WeighedSpans;
pub use ops::{AttendPages, AttendVariant};
pub use ops::{ExpertRoutes, ExpertTable, ExpertWork, FormedExpertProduct};
pub use ops::{FormedProduct, RowForm, WeightType};
pub use ops::{IndexSpans, MAX_INDEX_HEADS, PoolingSpans};
pub use transfer::buffer::GpuBuffer;
pub use transfer::inbox::Inbox;
pub use transfer::milestone::{Fetch, Milestone};
pub use vulkan::facts::{GpuFacts, MatrixShape, MatrixType};
pub use vulkan::queues::TransferQueue;
