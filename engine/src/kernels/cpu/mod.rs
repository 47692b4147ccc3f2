//! The kernels: algorithms once, generic over [`Simd`](super::simd::Simd), and one thin file for
//! each instruction set that only says how a lane operation is spelled there.
//!
//! Every function here that a table points to is `name::<S>`: it obtains the proof value and runs
//! its op under the instructions of `S`.

pub(super) mod act;
pub(super) mod attention;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod conv;
pub(super) mod elementwise;
pub(super) mod exp;
pub(super) mod matmul;
pub(super) mod matmul_f32;
pub(super) mod matmul_q8;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod norm;
pub(super) mod probe;
pub(super) mod rope;

use super::simd::{Op, Simd};

/// Runs `op` on the instructions of `S`.
#[inline]
fn run<S: Simd, O: Op>(op: O) -> O::Out {
    let s = S::detect().expect("a table is only handed out where its instructions were detected");
    s.run(op)
}
