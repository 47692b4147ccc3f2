//! Records of kept prefixes below the stage's memory: in this worker's RAM, and on its disk.
//!
//! A kept state is lost with its slot: when others need the place, when the line is cut anew, when a process ends. A
//! **record** outlives it: the keys and values of one full page of one layer, or the state that is valid at one
//! position alone. Its [`Id`](crate::records::record::Id) is a hash of everything that its bits depend on: the tokens up to
//! there, which only the coordinator can name, and all else. So the same page is written once, and any later line finds it
//! layer by layer.
//!
//! - [`records`](crate::records) has their form, and the folder. Those of a page of all layers of a stage are one **bundle**.
//! - [`store`] is the index of records, and evicts the longest unused.
//! - [`save`] takes a state apart, and [`load`] puts it together.
//!
//! The coordinator decides what is kept, and whether to load or to compute. A damaged record counts as missing.

pub mod load;
pub mod save;
pub mod store;
pub mod wire;

/// Most bundles in the index, in memory and on the disk: their entries take memory too.
pub const MAX_BUNDLES: usize = 256 << 10;

/// Bytes that are copied out of a stage at once, between two ubatches: as far as they are not one page or one state of a layer.
/// They and the bundle that is made of them are a part of what a process takes itself
/// ([`PROCESS_BYTES`](crate::machine::memory::PROCESS_BYTES)).
pub const STEP_BYTES: usize = 8 << 20;

/// Bytes that a page or a state of a layer may have.
pub const MAX_STEP_BYTES: usize = 1 << 30;
