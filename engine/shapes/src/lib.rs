//! Sizes and layouts that kernels, GPUs, models and the planner have in common. Plain facts: nothing here computes on
//! values, and nothing is depended on.
//!
//! - [`KvLayout`] and [`EntryLayout`] say how pages lie. [`Window`], [`PoolSizes`] and [`BlockSizes`] say which positions a
//!   row sees.
//! - The others are shapes of ops: rotary positions, gates, convolutions, recurrences, experts, streams, sums.

mod delta;
mod dilated;
mod entries;
mod experts;
mod gates;
mod index;
mod mamba;
mod pages;
mod rope;
mod scan;
mod ssd;
mod streams;
mod weigh;
mod window;

pub use delta::{Decay, DeltaShape, KeyHeads};
pub use dilated::{DilatedConv, MAX_CONV_TAPS};
pub use entries::EntryLayout;
pub use experts::{ChooseBy, ExpertChoice, ExpertGroups, ExpertWeights, LEAST_WEIGHT_SUM};
pub use gates::{GateBound, GateBounds, SwiGluClamp, SwiGluLimit, Xielu};
pub use index::{BlockSizes, PoolSizes};
pub use mamba::mamba_state_len;
pub use pages::{KV_PAGE, KvLayout, KvType, SCALE_ELEMS, ValuePlace};
pub use rope::RopeLayout;
pub use scan::StateAt;
pub use ssd::SsdShape;
pub use streams::StreamShape;
pub use weigh::{SumStart, WeightsAt};
pub use window::Window;

/// Lanes of a vector: rows of a weight panel, positions of a page, neighbours in a row.
pub const LANES: usize = 16;
