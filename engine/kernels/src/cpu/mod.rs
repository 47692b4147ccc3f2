//! The kernels. Each algorithm is written once, generic over [`Simd`](super::simd::Simd). One thin crate for
//! each instruction set only says how a lane operation is spelled there.
//!
//! Every function here that a table points to is `name::<S>`. It obtains the proof that the CPU has the
//! instructions of `S`, and runs its op under them.

pub(crate) mod act;
pub(crate) mod arithmetic;
pub(crate) mod attention;
pub(crate) mod bounded_gate;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod delta_plain;
pub(crate) mod depth_attention;
pub(crate) mod elementwise;
pub(crate) mod exp;
pub(crate) mod gates;
pub(crate) mod index;
pub(crate) mod kv;
pub(crate) mod mamba;
pub(crate) mod matmul;
pub(crate) mod matmul_f32;
pub(crate) mod matmul_few;
pub(crate) mod matmul_many;
pub(crate) mod matmul_q8;
mod matmul_ways;
pub(crate) mod norm;
pub(crate) mod pooling;
pub(crate) mod probe;
pub(crate) mod rope;
pub(crate) mod scalar;
pub(crate) mod ssd;
pub(crate) mod ssd_plain;
pub(crate) mod unfused;
pub(crate) mod wkv6;
pub(crate) mod wkv7;
#[cfg(target_arch = "x86_64")]
pub mod x86;

use super::simd::{LANES, Op, Simd};

/// The proof that this machine has the instructions of `S`.
#[inline]
fn proof<S: Simd>() -> S {
    S::detect().expect("a table is only handed out where its instructions were detected")
}

/// Runs `op` on the instructions of `S`.
#[inline]
fn run<S: Simd, O: Op>(op: O) -> O::Out {
    proof::<S>().run(op)
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
