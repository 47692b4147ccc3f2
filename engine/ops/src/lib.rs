//! Ops as data: what the engine may ask of whatever computes, each with its operands, its meaning and its checks, written once.
//!
//! - [`Op`] is one of them. Its operands are generic over where they lie ([`Place`]): the CPU's kernels see slices ([`Host`]), a
//!   device sees its own memory, and blocks give [`View`]s of either ([`Anywhere`]).
//! - [`Carry`] takes operands from one place to another. How an operand's fields go is written beside it, once.
//! - [`Vector`] has values that stay as they are, such as weights of norms. [`Derived`] is what a device keeps of values.
//! - [`Accelerator`] is a device beside the host, which runs ops that it supports. Its memory is a [`Buffer`]. A [`DeviceKind`] says
//!   which there are, and opens one.
//!
//! Each operand says its shapes as `[rows, cols]`, and `check` panics where they disagree: what is written from several threads
//! or workgroups at once rests on it. Nothing here computes, and no one device is known here.

mod accelerator;
pub mod attention;
mod carry;
mod derived;
mod device_kind;
mod entries;
mod experts;
pub mod greatest;
mod index;
mod moves;
mod op;
mod page_id;
mod pages;
mod place;
mod pooling;
mod products;
mod rope;
mod routing;
mod rowwise;
pub mod scan;
mod streams;
mod vector;
mod view;

pub use accelerator::{
    Accelerator, AcceleratorCounts, AcceleratorFacts, AcceleratorState, Fetch, Fill, Handed, Inbox,
    KernelTime, Matrices, Milestone, Purpose, Table, ToFetch,
};
pub use attention::{
    Attend, AttendChosen, AttendOver, AttendVariant, ChosenBlocks, DistanceBiases, KvWrite,
    NO_BLOCK,
};
pub use carry::Carry;
pub use derived::Derived;
pub use device_kind::{
    DeviceClass, DeviceFacts, DeviceKind, DeviceOptions, MatrixUnits, OpenDevice,
};
pub use entries::{
    AttendEntries, ChooseEntries, ChosenEntries, NewEntries, WriteEntries, n_before, n_far,
};
pub use experts::{
    AddExpertBiases, AddPairs, AddToPairs, ExpertProduct, ExpertProducts, ExpertRows, PairsOf,
    Route, RowsOfPairs, WeighPairs,
};
pub use greatest::{FewGreatest, Greatest};
pub use index::{
    Choose, ChooseBlocks, ChooseByMeans, PoolKeys, sees_more_blocks, sees_more_whole_blocks,
};
pub use moves::{
    AddPicked, Copy, CopyParts, CopySlot, FillColumns, GatherRows, HalvesToPairs, HeadColumns,
    HeadsApart, HeadsTogether, RepeatRows,
};
pub use op::{Op, Operands};
pub use page_id::PageId;
pub use pages::{AttendPart, KvRows};
pub use place::{Anywhere, Element, Host, Place};
pub use pooling::{GatedRow, PoolGated};
pub use products::{Product, Products, Weights};
pub use rope::{Angles, Rope};
pub use routing::{PairLists, PairSpans, Routes, Routing, RoutingPart, Share};
pub use rowwise::{Combine, DecayFactors, Function, Lerp, Map, Norm, NormBy, Pairing, RmsNorm};
pub use scan::{
    Columns, Conv, ConvRows, DeltaRows, DeltaScan, FLUSH_EVERY, MambaRows, MambaScan, MambaWeights,
    ScanPart, Ssd, SsdInput, SsdScan, Wkv6, Wkv6Decay, Wkv6Rows, Wkv7, Wkv7Bonus, Wkv7Prepare,
    Wkv7Rows, Wkv7Weights,
};
pub use streams::{
    AttendDepth, DilatedRows, KeepAbove, KeepLastRows, MatchMagnitudes, ProductRoots,
    StreamWeights, Weigh,
};
pub use vector::Vector;
pub use view::{Buffer, Part, PartMut, View, ViewMut};
