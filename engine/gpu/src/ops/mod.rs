//! Ops: methods of [`Gpu`](crate::Gpu), a file for each family. Each checks its shapes (a mismatch is a bug of the caller and
//! panics) and records its kernels. Their meaning is that of the engine's `Compute` methods of the same names.

mod attend_plan;
mod attention;
mod best;
mod block_index;
mod conv;
mod delta;
mod depth;
mod dilated;
mod elementwise;
mod gates;
mod greatest;
mod index;
mod index_pages;
mod kv;
mod mamba;
mod mean_index;
mod moves;
mod pages;
mod pooling;
mod probe;
mod products;
mod rope;
mod route;
mod rows;
mod scan;
mod scatter;
mod ssd;
mod streams;
mod weigh;
mod wide;
mod wkv;
mod wkv7;

pub use attend_plan::Window;
pub use attention::{AttendPages, AttendVariant, DistanceBiases};
pub use block_index::{BlockIndexSpans, BlockSizes};
pub use conv::ConvSpans;
pub use delta::{Decay, DeltaRows, DeltaShape, KeyHeads};
pub use dilated::DilatedConv;
pub use gates::{GateBound, Xielu};
pub use index::{IndexSpans, PoolSizes};
pub use kv::KvSpans;
pub use mamba::{MambaRows, MambaSpans};
pub use mean_index::{BlockRope, MeanIndexSpans, NO_BLOCK};
pub use moves::Columns;
pub use pages::{KV_PAGE, KvType, PageLayout, PagePart, ValuePlace};
pub use pooling::{GatedSpans, PoolingSpans};
pub use products::{ExpertProduct, ExpertRows, ExpertTable, Product, WeightType, Weights};
pub use rope::RopeLayout;
pub use route::{
    ChooseBy, ExpertChoice, ExpertGroups, ExpertRoutes, ExpertWeights, LEAST_WEIGHT_SUM,
};
pub use scan::{ColumnsSpan, ScanPart, StateAt};
pub use ssd::{SsdInput, SsdShape, SsdSpans};
pub use streams::StreamShape;
pub use weigh::{SumStart, WeighedSpans, WeightsAt};
pub use wkv::{Wkv6Rows, Wkv7Rows};
pub use wkv7::Wkv7Spans;
