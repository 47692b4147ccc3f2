//! The way into Vulkan: the loader, what devices say of themselves, drivers that are known to be bad, and a device opened
//! for work.

pub(super) mod drivers;
pub(super) mod facts;
pub(super) mod instance;
pub(super) mod logical;
pub(super) mod queues;
