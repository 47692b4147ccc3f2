//! The kernels. Each algorithm is written once, generic over [`Simd`](super::simd::Simd). One thin crate for
//! each instruction set only says how a lane operation is spelled there.
//!
//! Every function here that a table points to is `name::<S>`. It obtains the proof that the CPU has the
//! instructions of `S`, and runs its op under them.

pub(crate) mod attention;
pub(crate) mod exp;
pub(crate) mod lanes;
pub(crate) mod probe;
pub(crate) mod products;
pub(crate) mod rowwise;
pub(crate) mod scan;

use super::simd::{LANES, Op, Simd};

/// The proof that this machine has the instructions of `S`. A call, so that what looks for them is compiled once.
#[inline(never)]
fn proof<S: Simd>() -> S {
    S::detect().expect("a table is only handed out where its instructions were detected")
}

/// Runs `op` on the instructions of `S`.
#[inline]
fn run<S: Simd, O: Op>(op: O) -> O::Out {
    proof::<S>().run(op)
}

/// A line of the cache.
#[repr(align(64))]
struct Line;

/// Aligns the stack of the function that this is inlined into. Vectors that registers do not hold would otherwise lie in two lines of
/// the cache, or in one, as the calls before have it, and a loop that keeps sums there be slower by a tenth or not.
#[inline(always)]
fn align_stack() {
    let line = Line;
    std::hint::black_box(&line);
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
