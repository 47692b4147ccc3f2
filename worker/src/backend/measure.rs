//! Measures at start how fast this machine computes, with the threads and the kernels that will serve. The
//! planner cuts layers by it.
//!
//! Reading memory bounds decode. Matrix products bound prefill, so the kernels' own products are timed, not
//! the peak of the arithmetic, with a type of weights for each class of products. It takes two tenths of a second. The best
//! of short samples counts, so that a busy moment does not decide. Classes take turns, so that it slows none more than another.

use std::hint::black_box;
use std::time::{Duration, Instant};

use brigade_engine::device::Device;
use brigade_engine::kernels::{KernelError, PackedMatrix, probe};
use brigade_quant::GgmlType;
use serde::{Deserialize, Serialize};

use super::product_class::{ByClass, ProductClass};

/// Sides of a CPU's product: a slice of a layer's matrix, and rows as a ubatch of a prompt has.
const PRODUCT_DIM: usize = 1024;
const PRODUCT_OUT: usize = 512;
const PRODUCT_ROWS: usize = 128;
/// The type that a GPU reads here: bytes, which it reads as fast as its memory allows.
const GPU_TYPE: GgmlType = GgmlType::Q8_0;
/// Sides of the products that measure a GPU: those of a layer of a large model.
const GPU_DIM: usize = 4096;
const GPU_OUT: usize = 4096;
const GPU_ROWS: usize = 256;
/// Matrices that a GPU reads in turn, so that none is in its caches when it is read again.
const GPU_MATRICES: usize = 8;
/// Products of many rows that a GPU computes before it is waited for: the wait is then a small part.
const GPU_PRODUCTS: usize = 4;
/// One in software is slow enough with one matrix and fewer rows: with all of them it takes ten seconds.
const SOFTWARE_MATRICES: usize = 1;
const SOFTWARE_ROWS: usize = 16;
/// Bytes that are sent to measure the way to a GPU: about the matrices of an expert, several times in each of several
/// runs.
const SENT_BYTES: usize = 4 << 20;
const SENT_COPIES: usize = 24;
const SENT_RUNS: usize = 3;
/// The byte that fills the weights: as f16 and f32 it makes ordinary numbers.
const WEIGHT_BYTE: u8 = 0x3c;
/// Time for the products of one type; the fastest counts.
const PRODUCT_TIME: Duration = Duration::from_millis(25);
/// The factor by which measuring may take longer on a busy machine, for example when several workers start together.
/// It ends earlier when enough samples were taken.
const BUSY_FACTOR: u32 = 6;
const LEAST_RUNS: u32 = 8;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// Memory read, 10^9 bytes a second.
    pub gb_per_second: f64,
    /// Products as prefill does them, quantising included, 10^9 operations a second (a multiply-add is two), by the class of
    /// weights. Equal ones: one figure counts for all.
    pub gop_per_second: ByClass<f64>,
}

/// Measures a device, on the calling thread and its others.
///
/// # Errors
/// The kernels refuse the product's weights, or there is no memory for them.
pub fn measure(device: &Device) -> Result<Speeds, KernelError> {
    if device.is_host() {
        let sides = Sides { n_rows: PRODUCT_ROWS, out: PRODUCT_OUT, dim: PRODUCT_DIM };
        return Ok(Speeds {
            gb_per_second: probe::memory_bandwidth(device.host())? / 1e9,
            gop_per_second: of_classes(device, sides, 1)?,
        });
    }
    measure_gpu(device, GPU_OUT, GPU_DIM)
}

/// The same of a GPU, with matrices `[out, dim]`.
fn measure_gpu(device: &Device, out: usize, dim: usize) -> Result<Speeds, KernelError> {
    let sides = |n_rows| Sides { n_rows, out, dim };
    let n = if device.is_on_cores() { SOFTWARE_MATRICES } else { GPU_MATRICES };
    let matrices = packed(device, GPU_TYPE, sides(1), n)?;
    let n_bytes: usize = matrices.iter().map(PackedMatrix::nbytes).sum();
    let matrices = [matrices];
    let read = least_seconds(device, &matrices, sides(1), n)?;
    let gop_per_second = if device.is_on_cores() {
        // Each product takes long there, so one type counts for all classes.
        let seconds = least_seconds(device, &matrices, sides(SOFTWARE_ROWS), n)?;
        ByClass::all(sides(SOFTWARE_ROWS).operations(n) / seconds[0] / 1e9)
    } else {
        drop(matrices);
        of_classes(device, sides(GPU_ROWS), GPU_PRODUCTS)?
    };
    Ok(Speeds { gb_per_second: n_bytes as f64 / read[0] / 1e9, gop_per_second })
}

/// 10^9 operations a second of `n` products with one matrix, for each class.
fn of_classes(device: &Device, sides: Sides, n: usize) -> Result<ByClass<f64>, KernelError> {
    let of_class = |class: ProductClass| packed(device, class.measured_type(), sides, 1);
    let matrices = ProductClass::ALL.map(of_class).into_iter().collect::<Result<Vec<_>, _>>()?;
    let seconds = least_seconds(device, &matrices, sides, n)?;
    let of = |class: ProductClass| sides.operations(n) / seconds[class as usize] / 1e9;
    Ok(ByClass::from_fn(of))
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

/// Sides of a product.
#[derive(Clone, Copy)]
struct Sides {
    n_rows: usize,
    out: usize,
    dim: usize,
}

impl Sides {
    /// Operations of `n` products; a multiply-add is two.
    fn operations(self, n: usize) -> f64 {
        (2 * n * self.n_rows * self.out * self.dim) as f64
    }
}

/// `n` matrices `[out, dim]` of type `ty`.
fn packed(
    device: &Device,
    ty: GgmlType,
    sides: Sides,
    n: usize,
) -> Result<Vec<PackedMatrix>, KernelError> {
    let bytes = vec![WEIGHT_BYTE; sides.out * ty.row_bytes(sides.dim).unwrap_or(0)];
    (0..n).map(|_| device.pack(ty, sides.out, sides.dim, &bytes)).collect()
}

/// Seconds of `n` products with the matrices of each of `all`, in their fastest run: one product after the other, and a GPU is
/// waited for once for all `n`, as in a forward pass.
fn least_seconds(
    device: &Device,
    all: &[Vec<PackedMatrix>],
    sides: Sides,
    n: usize,
) -> Result<Vec<f64>, KernelError> {
    let scratch = device.scratch();
    let (mut x, mut y) =
        (scratch.take(sides.n_rows, sides.dim), scratch.take(sides.n_rows, sides.out));
    device.fill(&mut x, 0.5);
    let (mut seconds, mut runs) = (vec![f64::INFINITY; all.len()], 0);
    let (begun, time) = (Instant::now(), PRODUCT_TIME * all.len() as u32);
    let is_over = |runs| {
        let took = begun.elapsed();
        took >= time && (runs >= LEAST_RUNS || took >= BUSY_FACTOR * time)
    };
    while runs == 0 || !is_over(runs) {
        runs += 1;
        for (matrices, least) in all.iter().zip(&mut seconds) {
            let started = Instant::now();
            matrices.iter().cycle().take(n).for_each(|w| device.multiply(w, &x, &mut y));
            device.finish()?;
            *least = least.min(started.elapsed().as_secs_f64());
        }
    }
    black_box(y.read());
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use brigade_engine::device::Devices;

    use super::*;

    /// The first GPU, or a line that says that there is none.
    fn gpu() -> Option<Device> {
        let opened = Devices::default().open(&"vulkan:0".parse().unwrap(), 1, None);
        opened.inspect_err(|reason| println!("skipped: {reason}")).ok()
    }

    #[test]
    fn speeds_are_numbers() {
        let kernels = brigade_engine::kernels::select(None).unwrap();
        let device = Device::cpu(kernels, 1, None).unwrap();
        let Speeds { gb_per_second, gop_per_second } = measure(&device).unwrap();
        assert!(gb_per_second.is_finite() && gb_per_second > 0.0, "{gb_per_second}");
        for speed in gop_per_second.values() {
            assert!(speed.is_finite() && speed > 0.0, "{gop_per_second:?}");
        }
        assert_eq!(gop_per_second.common(), None, "each class is measured");
    }

    #[test]
    fn a_gpu_has_a_speed_for_each_class() {
        let Some(device) = gpu() else { return };
        // One in software takes too long with the sides of a large model.
        let sides = Sides { n_rows: 8, out: 64, dim: 512 };
        let speeds = of_classes(&device, sides, GPU_PRODUCTS).unwrap();
        for speed in speeds.values() {
            assert!(speed.is_finite() && speed > 0.0, "{speeds:?}");
        }
        assert_eq!(speeds.common(), None, "each class is measured");
    }

    #[test]
    fn a_gpu_reads_and_computes_and_is_sent_to_at_some_speed() {
        let Some(device) = gpu() else { return };
        let Speeds { gb_per_second, gop_per_second } = measure_gpu(&device, 64, 512).unwrap();
        let sent = sent_per_second(&device).unwrap();
        for speed in gop_per_second.values().into_iter().chain([gb_per_second, sent]) {
            assert!(speed.is_finite() && speed > 0.0, "{gb_per_second} {gop_per_second:?} {sent}");
        }
        let is_equal = gop_per_second.common().is_some();
        assert_eq!(is_equal, device.is_on_cores(), "one type counts for all in software alone");
    }
}
