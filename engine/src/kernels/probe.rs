//! The limits of this machine, measured in a tenth of a second each: what every figure of speed is
//! printed beside.
//!
//! They are taken with the table and the threads that will do the work, because that is what bounds
//! it. Each is the best of many slices of a millisecond or two: what the machine can do, not what
//! its other tenants left at that moment.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::aligned::AlignedBytes;
use super::compute::Compute;
use super::error::KernelError;
use super::simd::LANES;

/// How long a limit is measured.
const PROBE_TIME: Duration = Duration::from_millis(100);
/// Memory read in turn: beyond every cache.
const READ_BYTES: usize = 192 << 20;
/// Bytes that each thread reads in a slice.
const READ_SLICE: usize = 16 << 20;
/// Bytes of a chunk of reading.
const READ_CHUNK: usize = 1 << 20;
/// Threads beyond which a slice does not grow.
const MAX_READERS: usize = READ_BYTES / READ_SLICE;
/// Rounds of arithmetic in a slice.
const TURNS: usize = 200_000;
/// Operations of a four-byte dot product: a multiplication and an addition for each byte.
const DOT_OPS: usize = 2 * 4 * LANES;
/// Operations of a fused step.
const FMA_OPS: usize = 2 * LANES;

/// Bytes a second that all threads together read from memory.
///
/// # Errors
/// [`KernelError::Memory`] when there is none to read.
pub fn memory_bandwidth(compute: &Compute) -> Result<f64, KernelError> {
    let mut bytes = AlignedBytes::zeroed(READ_BYTES)?;
    bytes.fill(1);
    let threads = compute.pool().threads();
    let slices: Vec<&[u8]> = bytes.chunks_exact(READ_SLICE * threads.min(MAX_READERS)).collect();
    let read = compute.kernels().probe_read;
    Ok(best_slice(|i| {
        let chunks: Vec<&[u8]> = slices[i % slices.len()].chunks(READ_CHUNK).collect();
        compute.pool().run(chunks.len(), &|i, _| {
            black_box(read(chunks[i]));
        });
        slices[0].len()
    }))
}

/// 8-bit integer operations a second of all threads together, additions and multiplications counted.
pub fn int8_peak(compute: &Compute) -> f64 {
    arithmetic(compute, compute.kernels().probe_dots) * DOT_OPS as f64
}

/// f32 operations a second of all threads together, additions and multiplications counted.
pub fn f32_peak(compute: &Compute) -> f64 {
    arithmetic(compute, compute.kernels().probe_fmas) * FMA_OPS as f64
}

/// Steps a second.
fn arithmetic(compute: &Compute, steps: fn(usize) -> usize) -> f64 {
    best_slice(|_| {
        let total = AtomicUsize::new(0);
        compute.pool().run(compute.pool().threads(), &|_, _| {
            total.fetch_add(steps(TURNS), Ordering::Relaxed);
        });
        total.into_inner()
    })
}

/// The highest rate of `slice(number)`, which returns what it did.
fn best_slice(slice: impl Fn(usize) -> usize) -> f64 {
    let (start, mut best) = (Instant::now(), 0.0f64);
    for i in 0.. {
        let begin = Instant::now();
        let done = slice(i) as f64;
        best = best.max(done / begin.elapsed().as_secs_f64());
        if start.elapsed() >= PROBE_TIME {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;

    #[test]
    fn limits_are_positive_on_every_table() {
        for kernels in available() {
            let compute = Compute::new(kernels, 1, None).expect("starts");
            let read = memory_bandwidth(&compute).expect("memory");
            for limit in [read, int8_peak(&compute), f32_peak(&compute)] {
                assert!(limit.is_finite() && limit > 1e6, "{}: {limit}", kernels.name);
            }
        }
    }
}
