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
use brigade_engine::quant::GgmlType;

/// Sides of the int8 product: a slice of a layer's matrix, and of a prefill ubatch.
const PRODUCT_DIM: usize = 1024;
const PRODUCT_OUT: usize = 256;
const PRODUCT_ROWS: usize = 32;
/// Sides of the products that measure a GPU: those of a layer of a large model.
const GPU_DIM: usize = 4096;
const GPU_OUT: usize = 4096;
const GPU_ROWS: usize = 256;
const GPU_READ_OUT: usize = 16384;
/// Time for products; the fastest counts.
const PRODUCT_TIME: Duration = Duration::from_millis(30);

/// Measured speeds of all threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Memory read, 10^9 bytes a second.
    pub gb_per_second: f64,
    /// int8 products as prefill does them, 10^9 operations a second (a multiply-add is two).
    pub gop_per_second: f64,
}

/// Measures a device, on the calling thread and its others.
///
/// # Errors
/// The kernels refuse the product's weights, or there is no memory for them.
pub fn measure(device: &Device) -> Result<Speeds, KernelError> {
    let gb_per_second = match device.has_gpu() {
        false => probe::memory_bandwidth(device.host())? / 1e9,
        true => {
            let (seconds, bytes) = product(device, [1, GPU_READ_OUT, GPU_DIM])?;
            bytes as f64 / seconds / 1e9
        }
    };
    let sizes = match device.has_gpu() {
        false => [PRODUCT_ROWS, PRODUCT_OUT, PRODUCT_DIM],
        true => [GPU_ROWS, GPU_OUT, GPU_DIM],
    };
    let (seconds, _) = product(device, sizes)?;
    let operations = 2.0 * sizes.iter().product::<usize>() as f64;
    Ok(Speeds { gb_per_second, gop_per_second: operations / seconds / 1e9 })
}

/// Seconds of the fastest product of `n_rows` rows with int8 weights `[out, dim]`, and the bytes of these.
fn product(device: &Device, [n_rows, out, dim]: [usize; 3]) -> Result<(f64, usize), KernelError> {
    let ty = GgmlType::Q8_0;
    let bytes = vec![1; out * ty.row_bytes(dim).unwrap_or(0)];
    let w = device.place(PackedMatrix::pack(device.host(), ty, out, dim, &bytes)?)?;
    let scratch = device.scratch();
    let (mut x, mut y) = (scratch.take(n_rows, dim), scratch.take(n_rows, out));
    x.fill(0.5);
    let mut fastest = f64::INFINITY;
    let until = Instant::now() + PRODUCT_TIME;
    while fastest.is_infinite() || Instant::now() < until {
        let started = Instant::now();
        device.multiply(&w, &x, &mut y);
        device.finish()?;
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    black_box(&y[..]);
    Ok((fastest, w.nbytes()))
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
