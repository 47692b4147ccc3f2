//! Workers, coordinators and files that are lost while requests run.

pub mod changed_files;
pub mod failures;
pub mod kept_layers;
pub mod replay;
pub mod restarts;
