//! Workers one by one: how each is reached, what it says of itself, and whether it is still there.

pub(crate) mod conn;
pub(crate) mod departed;
pub(crate) mod dial;
pub(crate) mod facts;
pub(crate) mod heartbeats;
pub(crate) mod join;
pub(crate) mod lease;
pub(crate) mod member;
pub(crate) mod node_disk;
pub(crate) mod node_memory;
pub(crate) mod own_name;
pub(crate) mod placed_stage;
pub(crate) mod pulse;
pub(crate) mod reach;
pub(crate) mod roll;
