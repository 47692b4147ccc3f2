//! Weights of a token's streams.

use brigade_kernels::inner::doubly_stochastic;

#[test]
fn rows_and_columns_sum_to_one() {
    let mut matrix: Vec<f32> = (0..16).map(|i| ((i * 7 % 11) as f32 - 5.0) / 3.0).collect();
    doubly_stochastic(&mut matrix, 4, 20, 1e-6);
    for i in 0..4 {
        let row: f32 = matrix[i * 4..][..4].iter().sum();
        let column: f32 = matrix[i..].iter().step_by(4).sum();
        assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{row} {column}");
    }
    assert!(matrix.iter().all(|x| *x > 0.0));
    // One round leaves the columns at one.
    let mut once: Vec<f32> = (0..9).map(|i| (i * i % 7) as f32 / 4.0).collect();
    doubly_stochastic(&mut once, 3, 1, 0.0);
    let column: f32 = once.iter().step_by(3).sum();
    assert!((column - 1.0).abs() < 1e-6);
    let row: f32 = once[..3].iter().sum();
    assert!((row - 1.0).abs() > 1e-3, "rows come second: {row}");
}
