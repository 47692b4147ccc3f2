//! The kernels. Each algorithm is written once, generic over [`Simd`](super::simd::Simd). One thin file for
//! each instruction set only says how a lane operation is spelled there.
//!
//! Every function here that a table points to is `name::<S>`. It obtains the proof that the CPU has the
//! instructions of `S`, and runs its op under them.

pub(super) mod act;
pub(super) mod attention;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod bounded_gate;
pub(super) mod conv;
pub(super) mod delta;
pub(super) mod delta_plain;
pub(super) mod depth_attention;
pub(super) mod elementwise;
pub(super) mod exp;
pub(super) mod gates;
pub(super) mod index;
pub(super) mod kv;
pub(super) mod mamba;
pub(super) mod matmul;
pub(super) mod matmul_f32;
pub(super) mod matmul_few;
pub(super) mod matmul_many;
pub(super) mod matmul_q8;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod norm;
pub(super) mod pooling;
pub(super) mod probe;
pub(super) mod rope;
pub(super) mod ssd;
pub(super) mod ssd_plain;
pub(super) mod unfused;
pub(super) mod wkv6;
pub(super) mod wkv7;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::simd::{LANES, Op, Simd};

/// Runs `op` on the instructions of `S`.
#[inline]
fn run<S: Simd, O: Op>(op: O) -> O::Out {
    let s = S::detect().expect("a table is only handed out where its instructions were detected");
    s.run(op)
}

/// Replaces subnormal values by zero.
#[inline(always)]
fn flush_subnormals<S: Simd>(s: S, values: &mut [[f32; LANES]]) {
    for values in values {
        let v = s.load(values);
        let size = s.max(v, s.sub(s.zero(), v));
        s.store(s.select_gt(s.splat(f32::MIN_POSITIVE), size, s.zero(), v), values);
    }
}
