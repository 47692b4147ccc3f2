//! The atomics of the threads' pool. Its tests put others in their place, which count and delay.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
