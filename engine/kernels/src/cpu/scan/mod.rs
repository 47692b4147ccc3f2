//! Recurrences over the rows of a sequence: convolutions, and the scans of Mamba, the delta rule and RWKV.

pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod delta_plain;
pub(crate) mod mamba;
pub(crate) mod ssd;
pub(crate) mod ssd_plain;
pub(crate) mod wkv6;
pub(crate) mod wkv7;
