//! The table of AVX-VNNI: products with the four-byte dot product as one instruction, all else as the table of AVX2.
//!
//! Processors have it that have no AVX-512, such as those of laptops. The lanes are those of `brigade-kernels-avx2`.

#![cfg(target_arch = "x86_64")]

use std::sync::LazyLock;

use brigade_kernels::Kernels;
use brigade_kernels_avx2::{AvxVnni, TABLE as AVX2};

/// The table of AVX2, with products compiled for AVX-VNNI.
pub static TABLE: LazyLock<Kernels> = LazyLock::new(|| Kernels::with_products_of::<AvxVnni>(&AVX2));
