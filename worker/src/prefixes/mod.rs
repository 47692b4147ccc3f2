//! Records of kept prefixes below the stage's memory: in this worker's RAM, and on its disk.
//!
//! A kept state goes with the slot that has it: when others need the place, when the line is cut anew, when a process
//! ends. A **record** is what is left: the keys and values of one full page of one layer, or what is good for one position
//! alone. It has no name but what its bits depend on: the tokens up to there, as a hash that only the coordinator can make
//! ([`record::Id::chain`]), and all else ([`record::Id::line`]). So the same page is written once, whoever has it, and
//! any later line finds it layer by layer.
//!
//! - [`record`] is the form of records: those of a page of all layers of a stage are one **bundle**.
//! - [`folder`] has bundles as files, and reads them again at the start.
//! - [`store`] knows what is here, and lets the longest unused go.
//! - [`save`] takes a state apart, and [`load`] puts it together.
//!
//! Nothing here decides what is kept, or whether to load or to compute: that is the coordinator's. Whatever is wrong with
//! a record, it is as if it were not here.

pub mod folder;
pub mod load;
pub mod record;
pub mod save;
pub mod store;
pub mod wire;

/// Stands for tokens, a line, a realm or an owner.
pub type Key = [u8; 16];

/// Where records lie, in the cache's folder.
pub const FOLDER: &str = "prefixes";

/// Records that nobody has read for so many days are dropped.
pub const MAX_AGE_DAYS: u64 = 30;

/// Bundles that are known at most, in memory and on the disk: what is known of them takes memory too.
pub const MAX_BUNDLES: usize = 256 << 10;

/// Bytes that are copied out of a stage at once, between two ubatches: as far as they are not one page or one state.
pub const STEP_BYTES: usize = 8 << 20;

/// Bytes that are copied at once if a page or a state is so large.
pub const MAX_STEP_BYTES: usize = 1 << 30;
