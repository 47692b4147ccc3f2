//! The table that runs everywhere: plain arrays as lanes. It is what others are held to.

use brigade_kernels::Kernels;
use brigade_kernels::lanes::Scalar;

/// The table.
pub static TABLE: Kernels = Kernels::of::<Scalar>();
