//! What the end-to-end tests share: real processes, fake and hostile peers, lines of stages, golden models,
//! simulated lines, and the documents.

pub mod bench;
pub mod browser;
pub mod documents;
pub mod each;
pub mod fakes;
pub mod golden;
pub mod hostile;
pub mod kinds;
pub mod liar;
pub mod line;
pub mod lines;
pub mod modules;
pub mod older;
pub mod process;
pub mod proxy;
pub mod schemas;
pub mod secure;
pub mod streams;
pub mod talker;
pub mod up_share;
