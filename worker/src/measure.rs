//! Measures at start how fast this machine computes, with the threads and the kernels that will serve. The
//! planner cuts layers by it.
//!
//! Reading memory bounds decode. Matrix products bound prefill, so the kernels' own products are timed, not
//! the peak of the arithmetic. It takes a tenth of a second. The best of short samples counts, so that a busy
//! moment does not decide.

use std::hint::black_box;
use std::time::{Duration, Instant};

use brigade_engine::kernels::{Compute, KernelError, PackedMatrix, probe};
use brigade_engine::quant::GgmlType;

/// Sides of the int8 product: a slice of a layer's matrix, and of a prefill ubatch.
const PRODUCT_DIM: usize = 1024;
const PRODUCT_OUT: usize = 256;
const PRODUCT_ROWS: usize = 32;
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

/// Measures, on the calling thread and `compute`'s others.
///
/// # Errors
/// The kernels refuse the product's weights, or there is no memory for them.
pub fn measure(compute: &Compute) -> Result<Speeds, KernelError> {
    let gb_per_second = probe::memory_bandwidth(compute)? / 1e9;
    Ok(Speeds { gb_per_second, gop_per_second: product_speed(compute)? })
}

fn product_speed(compute: &Compute) -> Result<f64, KernelError> {
    let ty = GgmlType::Q8_0;
    let bytes = vec![1; PRODUCT_OUT * ty.row_bytes(PRODUCT_DIM).unwrap_or(0)];
    let w = PackedMatrix::pack(compute, ty, PRODUCT_OUT, PRODUCT_DIM, &bytes)?;
    let rows = vec![0.5; PRODUCT_ROWS * PRODUCT_DIM];
    let mut out = vec![0.0; PRODUCT_ROWS * PRODUCT_OUT];
    let mut fastest = f64::INFINITY;
    let until = Instant::now() + PRODUCT_TIME;
    while fastest.is_infinite() || Instant::now() < until {
        let started = Instant::now();
        compute.multiply(&w, &rows, &mut out);
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    black_box(&out);
    let operations = 2.0 * (PRODUCT_ROWS * PRODUCT_OUT * PRODUCT_DIM) as f64;
    Ok(operations / fastest / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_numbers() {
        let kernels = brigade_engine::kernels::select(None).unwrap();
        let compute = Compute::new(kernels, 1, None).unwrap();
        let Speeds { gb_per_second, gop_per_second } = measure(&compute).unwrap();
        assert!(gb_per_second.is_finite() && gb_per_second > 0.0, "{gb_per_second}");
        assert!(gop_per_second.is_finite() && gop_per_second > 0.0, "{gop_per_second}");
    }
}
