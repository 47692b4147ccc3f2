//! Limits of the machine, as the tables measure them.

use brigade_kernels::Compute;
use brigade_kernels::probe::{cache_bandwidth, f32_peak, int8_peak, memory_bandwidth, steps};

#[test]
fn limits_are_positive_on_every_table() {
    for kernels in crate::all_tables() {
        let compute = Compute::new(kernels, 1, None).expect("starts");
        let read = memory_bandwidth(&compute).expect("memory");
        let cached = cache_bandwidth(&compute, 1 << 20);
        let int8 = int8_peak(&compute);
        for limit in [read, cached, int8.narrow, int8.wide, f32_peak(&compute)] {
            assert!(limit.is_finite() && limit > 1e6, "{}: {limit}", kernels.name);
        }
        assert_eq!(
            [4.5, 6.6, 8.5].map(|bits| int8.of_bits(bits)),
            [int8.narrow, int8.narrow, int8.wide]
        );
    }
}

#[test]
fn every_step_of_arithmetic_is_counted() {
    for kernels in crate::all_tables() {
        let few = steps(kernels, 10);
        assert!(few.iter().all(|n| *n >= 10), "{}: {few:?}", kernels.name);
        assert_eq!(steps(kernels, 30), few.map(|n| 3 * n), "{}", kernels.name);
    }
}
