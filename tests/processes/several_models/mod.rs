//! Servers of several models, and nodes of several stages.

pub mod crowds;
pub mod dropped_records;
pub mod fleet;
pub mod fleet_plan;
pub mod fleet_pool;
pub mod loads;
pub mod models_dir;
pub mod nodes;
pub mod pulled;
pub mod shared_cache;
