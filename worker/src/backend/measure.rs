//! Measures at start how fast this machine computes, with the threads and the kernels that will serve. The
//! planner cuts layers by it.
//!
//! Reading memory bounds decode. Matrix products bound prefill, so the kernels' own products are timed, not
//! the peak of the arithmetic. It takes a tenth of a second. The best of short samples counts, so that a busy
//! moment does not decide.

use std::hint::black_box;
use std::time::{Duration, Instant};

use brigade_engine::device::Device;
use brigade_engine::kernels::{KernelError, PackedMatrix, probe};
use brigade_quant::GgmlType;
use serde::{Deserialize, Serialize};

/// Sides of a CPU's product: a slice of a layer's matrix, and rows as a ubatch of a prompt has.
const PRODUCT_DIM: usize = 1024;
const PRODUCT_OUT: usize = 512;
const PRODUCT_ROWS: usize = 128;
/// The type of most models' weights. On CPUs types differ by the instructions of a product.
const PRODUCT_TYPE: GgmlType = GgmlType::Q4_K;
/// The type that a GPU multiplies here: bytes, which it reads as fast as its memory allows.
const GPU_TYPE: GgmlType = GgmlType::Q8_0;
/// Sides of the products that measure a GPU: those of a layer of a large model.
const GPU_DIM: usize = 4096;
const GPU_OUT: usize = 4096;
const GPU_ROWS: usize = 256;
/// Matrices that a GPU reads in turn, so that none is in its caches when it is read again.
const GPU_MATRICES: usize = 8;
/// One in software is slow enough with one matrix and fewer rows: with all of them it takes ten seconds.
const SOFTWARE_MATRICES: usize = 1;
const SOFTWARE_ROWS: usize = 16;
/// Bytes that are sent to measure the way to a GPU: about the matrices of an expert, several times in each of several
/// runs.
const SENT_BYTES: usize = 4 << 20;
const SENT_COPIES: usize = 24;
const SENT_RUNS: usize = 3;
/// Time for products; the fastest counts.
const PRODUCT_TIME: Duration = Duration::from_millis(30);
/// The factor by which measuring may take longer on a busy machine, for example when several workers start together.
/// It ends earlier when enough samples were taken.
const BUSY_FACTOR: u32 = 20;
const LEAST_RUNS: u32 = 16;

/// The variable in which a stage is told what the first stage of its node has measured, as JSON; `--speed` counts before it.
pub const MEASURED_VARIABLE: &str = "BRIGADE_MEASURED";

/// What a worker has measured of its machine, for the other stages of its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The kernel table or the device that it is about; a device was tested too.
    pub device: String,
    /// How fast that is.
    pub own: Speeds,
    /// The host beside a GPU, where experts may lie there.
    pub beside: Option<Beside>,
}

/// The host beside a GPU, and the way there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// How fast the host is.
    pub host: Speeds,
    /// The way to the GPU.
    pub sent: Sending,
}

/// The way of experts' weights from the host's memory to a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sending {
    /// Copies, 10^9 bytes a second; 0: no experts are sent there.
    pub gb_per_second: f64,
    /// Whether the GPU computes meanwhile.
    pub is_beside: bool,
}

/// Measured speeds of all threads together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// Memory read, 10^9 bytes a second.
    pub gb_per_second: f64,
    /// Products as prefill does them, quantising included, 10^9 operations a second (a multiply-add is two).
    pub gop_per_second: f64,
}

/// Measures a device, on the calling thread and its others.
///
/// # Errors
/// The kernels refuse the product's weights, or there is no memory for them.
pub fn measure(device: &Device) -> Result<Speeds, KernelError> {
    let per_second = |(seconds, work): (f64, f64)| work / seconds / 1e9;
    if device.is_host() {
        let operations = products(device, PRODUCT_TYPE, 1, PRODUCT_ROWS, PRODUCT_OUT, PRODUCT_DIM)?;
        return Ok(Speeds {
            gb_per_second: probe::memory_bandwidth(device.host())? / 1e9,
            gop_per_second: per_second((operations.seconds, operations.operations)),
        });
    }
    let (n, n_rows) = if device.is_on_cores() {
        (SOFTWARE_MATRICES, SOFTWARE_ROWS)
    } else {
        (GPU_MATRICES, GPU_ROWS)
    };
    let read = products(device, GPU_TYPE, n, 1, GPU_OUT, GPU_DIM)?;
    let computed = products(device, GPU_TYPE, n, n_rows, GPU_OUT, GPU_DIM)?;
    Ok(Speeds {
        gb_per_second: per_second((read.seconds, read.bytes)),
        gop_per_second: per_second((computed.seconds, computed.operations)),
    })
}

/// Bytes a second that come from the host's memory to a GPU's, as experts come that are sent there.
///
/// # Errors
/// The GPU has no memory for them, or failed.
pub fn sent_per_second(device: &Device) -> Result<f64, KernelError> {
    let bytes = vec![1u8; SENT_BYTES];
    // The first run makes the memory that both see.
    device.send_copies(&bytes, 1)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..SENT_RUNS {
        let started = Instant::now();
        device.send_copies(&bytes, SENT_COPIES)?;
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    Ok((SENT_COPIES * SENT_BYTES) as f64 / fastest)
}

/// The fastest run of some products.
struct Run {
    seconds: f64,
    /// Bytes of weights that were read.
    bytes: f64,
    /// A multiply-add is two.
    operations: f64,
}

/// Multiplies `n_rows` rows with each of `n` matrices `[out, dim]` of type `ty`, one after the other: a GPU is waited for once for all of
/// them, as in a forward pass.
fn products(
    device: &Device,
    ty: GgmlType,
    n: usize,
    n_rows: usize,
    out: usize,
    dim: usize,
) -> Result<Run, KernelError> {
    let bytes = vec![1; out * ty.row_bytes(dim).unwrap_or(0)];
    let matrix = |_| device.pack(ty, out, dim, &bytes);
    let matrices: Vec<PackedMatrix> = (0..n).map(matrix).collect::<Result<_, _>>()?;
    let scratch = device.scratch();
    let (mut x, mut y) = (scratch.take(n_rows, dim), scratch.take(n_rows, out));
    device.fill(&mut x, 0.5);
    let (mut fastest, mut runs) = (f64::INFINITY, 0);
    let begun = Instant::now();
    let is_over = |runs| {
        let took = begun.elapsed();
        took >= PRODUCT_TIME && (runs >= LEAST_RUNS || took >= BUSY_FACTOR * PRODUCT_TIME)
    };
    while runs == 0 || !is_over(runs) {
        runs += 1;
        let started = Instant::now();
        matrices.iter().for_each(|w| device.multiply(w, &x, &mut y));
        device.finish()?;
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    black_box(y.read());
    let nbytes: usize = matrices.iter().map(PackedMatrix::nbytes).sum();
    let operations = 2 * n * n_rows * out * dim;
    Ok(Run { seconds: fastest, bytes: nbytes as f64, operations: operations as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_numbers() {
        let kernels = brigade_engine::kernels::select(None).unwrap();
        let device = Device::cpu(kernels, 1, None).unwrap();
        let Speeds { gb_per_second, gop_per_second } = measure(&device).unwrap();
        assert!(gb_per_second.is_finite() && gb_per_second > 0.0, "{gb_per_second}");
        assert!(gop_per_second.is_finite() && gop_per_second > 0.0, "{gop_per_second}");
    }
}
