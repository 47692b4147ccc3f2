//! Memory of packed weights: matrices lie side by side, and what goes takes nothing of its neighbours.

use brigade_kernels::PackedMatrix;
use brigade_quant::GgmlType;

use super::{Rng, compute};

/// Alignment of every matrix.
const LINE: usize = 64;

#[test]
fn matrices_of_any_size_lie_apart_and_stay_as_they_are() {
    let compute = compute(brigade_kernels_tables::select(None).unwrap(), 1);
    let mut rng = Rng::new(9);
    // From some bytes to more than a slab holds, in an order that leaves gaps.
    let sizes = [
        (1, 1),
        (33, 700),
        (1, 17),
        (2_000, 900),
        (5, 64),
        (70, 5_000),
        (17_000, 1_024),
        (40, 513),
    ];
    let mut packed: Vec<(PackedMatrix, Vec<u8>)> = Vec::new();
    for round in 0..3 {
        for (rows, cols) in sizes {
            let values = rng.values(rows * cols);
            let source: &[u8] = bytemuck::cast_slice(&values);
            let matrix = PackedMatrix::pack(&compute, GgmlType::F32, rows, cols, source).unwrap();
            assert!((matrix.bytes().as_ptr() as usize).is_multiple_of(LINE), "{rows} x {cols}");
            let bytes = matrix.bytes().to_vec();
            packed.push((matrix, bytes));
        }
        let mut at = 0;
        packed.retain(|_| {
            at += 1;
            at % 3 != round
        });
        for (i, (matrix, bytes)) in packed.iter().enumerate() {
            assert!(matrix.bytes() == bytes, "matrix {i} has changed in round {round}");
        }
    }
    assert!(packed.len() > sizes.len());
}
