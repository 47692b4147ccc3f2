//! Shared code of the end-to-end tests: real processes, fake and hostile peers, simulated lines, and the documents.

pub mod agents;
pub mod bench;
pub mod browser;
pub mod documents;
pub mod fakes;
pub mod hostile;
pub mod hub;
pub mod liar;
pub mod lines;
pub mod named;
pub mod older;
pub mod process;
pub mod proxy;
pub mod schemas;
pub mod secure;
pub mod streams;
pub mod talker;
pub mod up_share;
