//! The worker's services: the control service and its streams, the lane, and what a worker tells a coordinator by
//! itself.

pub mod control;
pub mod copies;
pub mod copy_sender;
pub mod gather;
pub mod join;
pub mod lane;
pub mod push;
pub mod transfer;
