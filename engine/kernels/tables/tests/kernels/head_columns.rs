//! Columns of heads, apart and together.

use brigade_kernels::{Compute, HeadColumns};
use brigade_kernels_tables::select;

#[test]
fn every_value_finds_its_place_on_any_number_of_threads() {
    // Enough for several chunks.
    let (n, n_head) = (301, 7);
    let columns = HeadColumns { stride: 24, first: 5, width: 16 };
    let from: Vec<f32> = (0..n * n_head * columns.stride).map(|i| i as f32).collect();
    for threads in [1, 3] {
        let compute = Compute::new(select(None).unwrap(), threads, None).unwrap();
        let mut apart = vec![-1.0; n * n_head * columns.width];
        compute.heads_apart(&from, n_head, columns, &mut apart);
        for (i, head, column) in [(0, 0, 0), (300, 6, 15), (17, 3, 9), (150, 0, 15)] {
            let value = apart[(head * n + i) * columns.width + column];
            let wanted = from[(i * n_head + head) * columns.stride + columns.first + column];
            assert_eq!(value, wanted, "row {i}, head {head}, column {column}");
        }
        let mut back = vec![-2.0; from.len()];
        compute.heads_together(&apart, n_head, columns, &mut back);
        for (i, (back, from)) in back.iter().zip(&from).enumerate() {
            let column = i % columns.stride;
            let taken = (columns.first..columns.first + columns.width).contains(&column);
            assert_eq!(*back, if taken { *from } else { -2.0 }, "value {i}");
        }
    }
}
