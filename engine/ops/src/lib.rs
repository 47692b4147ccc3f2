//! Ops as data: what the engine may ask of whatever computes, each with its operands, its meaning and its checks, written once.
//!
//! - [`Op`] is one of them. Its operands are generic over where they lie ([`Place`]): the CPU's kernels see slices ([`Host`]), a
//!   device sees its own memory, and blocks give [`View`]s of either ([`Anywhere`]).
//! - [`Carry`] takes operands from one place to another. How an operand's fields go is written beside it, once.
//! - [`Vector`] has values that stay as they are, such as weights of norms, of which a device may keep a copy.
//!
//! Each operand says its shapes as `[rows, cols]`, and `check` panics where they disagree: what is written from several threads
//! or workgroups at once rests on it. Nothing here computes, and no device is known here.

pub mod attention;
mod carry;
mod index;
mod moves;
mod op;
mod page_id;
mod pages;
mod place;
mod rowwise;
pub mod scan;
mod streams;
mod vector;
mod view;

pub use attention::{
    Attend, AttendChosen, AttendOver, AttendVariant, ChosenBlocks, DistanceBiases, KvWrite,
    NO_BLOCK,
};
pub use carry::Carry;
pub use index::{Choose, ChooseBlocks, PoolKeys, sees_more_blocks};
pub use moves::{FillColumns, GatherRows, HeadColumns, HeadsApart, HeadsTogether, RepeatRows};
pub use op::{Op, Operands};
pub use page_id::PageId;
pub use pages::{AttendPart, KvRows, NewEntries, WriteEntries};
pub use place::{Anywhere, Element, Host, Place};
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
pub use vector::{Copies, Vector};
pub use view::{Buffer, Part, PartMut, View, ViewMut};
