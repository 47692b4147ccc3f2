//! Limits of the machine, as the tables measure them.

use brigade_kernels::Compute;
use brigade_kernels::probe::{cache_bandwidth, f32_peak, int8_peak, memory_bandwidth};

#[test]
fn limits_are_positive_on_every_table() {
    for kernels in crate::all_tables() {
        let compute = Compute::new(kernels, 1, None).expect("starts");
        let read = memory_bandwidth(&compute).expect("memory");
        let cached = cache_bandwidth(&compute, 1 << 20);
        for limit in [read, cached, int8_peak(&compute), f32_peak(&compute)] {
            assert!(limit.is_finite() && limit > 1e6, "{}: {limit}", kernels.name);
        }
    }
}
