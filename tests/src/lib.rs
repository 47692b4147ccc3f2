//! Shared harness of the end-to-end tests.

pub mod fakes;
pub mod golden;
pub mod hostile;
pub mod liar;
pub mod line;
pub mod lines;
pub mod modules;
pub mod process;
pub mod proxy;
pub mod up_share;
