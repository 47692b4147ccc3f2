//! The table that runs everywhere: plain arrays as lanes. It is what others are held to.

use brigade_kernels::Kernels;
use brigade_kernels::lanes::Scalar;

/// All kernels, compiled for plain scalar code.
pub static TABLE: Kernels = Kernels::of::<Scalar>();
