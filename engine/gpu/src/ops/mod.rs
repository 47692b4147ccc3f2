//! Ops: methods of [`Gpu`](crate::Gpu), a folder for each family. Each checks its shapes (a mismatch is a bug of the caller and
//! panics) and records its kernels. Their meaning is that of the engine's `Compute` methods of the same names.

mod attention;
mod experts;
mod index;
mod kv;
mod probe;
mod products;
mod rowwise;
mod run;
mod scan;

pub use attention::paged::{AttendPages, AttendVariant};
pub use experts::routing::ExpertRoutes;
pub use index::blocks::BlockIndexSpans;
pub use index::positions::{IndexSpans, MAX_INDEX_HEADS};
pub use kv::pooling::PoolingSpans;
pub use products::expert_work::ExpertWork;
pub use products::{ExpertTable, FormedExpertProduct, FormedProduct, RowForm, WeightType};
pub use rowwise::weighted_sums::WeighedSpans;
