//! The table `unfused` on AVX-VNNI: products with its four-byte dot product, all else as `unfused` on AVX2.

#![cfg(target_arch = "x86_64")]

use std::sync::LazyLock;

use brigade_kernels::Kernels;
use brigade_kernels::lanes::Unfused;
use brigade_kernels_avx2::AvxVnni;
use brigade_kernels_unfused_avx2::TABLE as AVX2;

/// The table.
pub static TABLE: LazyLock<Kernels> =
    LazyLock::new(|| Kernels::with_products_of::<Unfused<AvxVnni>>(&AVX2));
