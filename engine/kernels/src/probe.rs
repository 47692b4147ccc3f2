//! Measures the limits of this machine, in a tenth of a second each. Every figure of speed is printed beside
//! them.
//!
//! They are measured with the table and the threads that will do the work, because these bound it. Each limit
//! is the best of many slices of a millisecond or two: it is what the machine can do, not what its other
//! tenants left at that moment.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::ahead::{Cache, asking};
use super::aligned::AlignedBytes;
use super::compute::Compute;
use super::cpu::products::matmul_few::PREFETCH;
use super::simd::LANES;
use super::table::Kernels;
use brigade_quant::KernelError;

/// Duration of one measurement.
const PROBE_TIME: Duration = Duration::from_millis(100);
/// Least memory that is read in turn, and most; between them [`CACHES`] times the last cache.
const READ_BYTES: usize = 192 << 20;
const MOST_READ_BYTES: usize = 1 << 30;
/// Sizes of the last cache that must pass before a byte is read again.
const CACHES: usize = 4;
/// Bytes that each thread reads in a slice.
const READ_SLICE: usize = 16 << 20;
/// Least bytes that a thread reads again and again.
const LEAST_SHARE: usize = 4096;
/// Caches of a processor that are looked at.
const MAX_CACHES: usize = 8;
/// Bytes of a chunk of reading.
const READ_CHUNK: usize = 1 << 20;
/// Threads beyond which a slice does not grow.
const MAX_READERS: usize = READ_BYTES / READ_SLICE;
/// Rounds of arithmetic in a slice.
const TURNS: usize = 200_000;
/// Operations of a four-byte dot product: a multiplication and an addition for each byte.
const DOT_OPS: usize = 2 * 4 * LANES;
/// Bits of a weight, its share of the scales among them, from which on its codes fill the byte.
const WIDE_BITS: f64 = 8.0;
/// Operations of a fused step.
const FMA_OPS: usize = 2 * LANES;
/// Operations of a sum of pairs.
const PAIR_OPS: usize = 2 * 2 * LANES;

/// Bytes a second that all threads together read from memory: plainly, or asking for lines ahead into either cache, whichever is
/// quickest.
///
/// # Errors
/// [`KernelError::Memory`] when there is none to read.
pub fn memory_bandwidth(compute: &Compute) -> Result<f64, KernelError> {
    let wanted = (CACHES * last_cache_bytes()).clamp(READ_BYTES, MOST_READ_BYTES);
    let mut bytes = AlignedBytes::zeroed(wanted)?;
    bytes.fill(1);
    let threads = compute.pool().threads();
    let slices: Vec<&[u8]> = bytes.chunks_exact(READ_SLICE * threads.min(MAX_READERS)).collect();
    let read = compute.kernels().probe_read;
    Ok(best_slice(|i| {
        let chunks: Vec<&[u8]> = slices[i % slices.len()].chunks(READ_CHUNK).collect();
        let (cache, ahead) =
            [(Cache::First, 0), (Cache::First, PREFETCH), (Cache::Second, PREFETCH)][i % 3];
        compute.pool().run(chunks.len(), &|i, _| {
            black_box(asking(cache, || read(chunks[i], ahead)));
        });
        slices[0].len()
    }))
}

/// Bytes a second that all threads together read of `n` bytes that they read again and again: the speed of
/// the cache that holds them.
pub fn cache_bandwidth(compute: &Compute, n: usize) -> f64 {
    let threads = compute.pool().threads();
    let share = n.div_ceil(threads).max(LEAST_SHARE);
    let bytes = vec![1u8; share * threads];
    let (read, times) = (compute.kernels().probe_read, READ_SLICE.div_ceil(share));
    best_slice(|_| {
        compute.pool().run(threads, &|i, _| {
            for _ in 0..times {
                black_box(read(black_box(&bytes[i * share..][..share]), 0));
            }
        });
        times * bytes.len()
    })
}

/// Bytes of the largest cache that the system names; 0 where it names none.
fn last_cache_bytes() -> usize {
    let sizes = (0..MAX_CACHES).filter_map(|i| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{i}/size");
        std::fs::read_to_string(path).ok()?.trim().strip_suffix('K')?.parse::<usize>().ok()
    });
    sizes.max().unwrap_or(0).saturating_mul(1024)
}

/// Operations a second of all threads together with 8-bit activations, additions and multiplications counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Int8Peak {
    /// Operations a second with codes of four bits.
    pub narrow: f64,
    /// Operations a second with weights that use all eight bits. As many, where one instruction does either.
    pub wide: f64,
}

impl Int8Peak {
    /// The one that bounds products with weights of `bits` bits each.
    pub fn of_bits(self, bits: f64) -> f64 {
        if bits < WIDE_BITS { self.narrow } else { self.wide }
    }
}

/// Measures both rates, one after the other.
pub fn int8_peak(compute: &Compute) -> Int8Peak {
    let rate = |dots| arithmetic(compute, dots) * DOT_OPS as f64;
    let kernels = compute.kernels();
    Int8Peak { narrow: rate(kernels.probe_narrow_dots), wide: rate(kernels.probe_wide_dots) }
}

/// f32 operations a second of all threads together, additions and multiplications counted.
pub fn f32_peak(compute: &Compute) -> f64 {
    arithmetic(compute, compute.kernels().probe_fmas) * FMA_OPS as f64
}

/// Operations a second of all threads together in pairs of bfloat16 values, additions and multiplications counted; `None`
/// where the table has no such products.
pub fn pairs_peak(compute: &Compute) -> Option<f64> {
    let pairs = compute.kernels().pairs.as_ref()?;
    Some(arithmetic(compute, pairs.probe) * PAIR_OPS as f64)
}

/// Four-byte dot products with narrow and wide weights, and fused steps, that a thread does in `turns` rounds: what is
/// counted of each slice.
pub fn steps(kernels: &Kernels, turns: usize) -> [usize; 3] {
    [
        (kernels.probe_narrow_dots)(turns),
        (kernels.probe_wide_dots)(turns),
        (kernels.probe_fmas)(turns),
    ]
}

/// Steps a second that all threads compute.
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
