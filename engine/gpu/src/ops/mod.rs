//! Ops: methods of [`Gpu`](crate::Gpu), a file for each family. Each checks its shapes (a mismatch is a bug of the caller and
//! panics) and records its kernels. Their meaning is that of the engine's `Compute` methods of the same names.

mod elementwise;
mod gates;
mod kv;
mod moves;
mod pages;
mod probe;
mod products;
mod rope;
mod rows;
mod scatter;

pub use gates::{GateBound, Xielu};
pub use kv::KvSpans;
pub use moves::Columns;
pub use pages::{KV_PAGE, KvType, PageLayout, PagePart, ValuePlace};
pub use products::{Product, WeightType, Weights};
pub use rope::RopeLayout;
