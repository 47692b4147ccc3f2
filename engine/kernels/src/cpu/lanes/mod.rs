//! Lanes that need no instruction set of their own, and what those of x86 have in common.

pub(crate) mod scalar;
pub(crate) mod unfused;
#[cfg(target_arch = "x86_64")]
pub mod x86;
