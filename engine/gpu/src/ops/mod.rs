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
