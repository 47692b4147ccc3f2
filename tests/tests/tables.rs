//! The op tables of one machine agree about whole models: integer parts are exact, floats are added in
//! another order, and what that makes of the logits stays within the limits stated here.
//!
//! All tables that this machine has, or the one that `BRIGADE_TEST_KERNELS` names beside `reference`.
//! `--nocapture` prints the distances of every golden model.

use brigade_engine::arch;
use brigade_engine::gguf::Gguf;
use brigade_tests::golden::Golden;
use brigade_tests::line::{self, Line, LineConfig};

/// Limit of ||a - b|| / ||b|| over the logits of 100 positions, models in f32.
const F32_LIMIT: f64 = 1e-5;
/// The same for quantised models: an activation near the border of two 8-bit codes may fall to either.
const QUANT_LIMIT: f64 = 2e-2;

#[test]
fn golden_models_are_the_same_on_every_table_within_the_stated_distance() {
    let tables = line::compared_tables();
    let mut largest = [0.0_f64; 2];
    for golden in Golden::folders() {
        for (name, entry) in &golden.manifest.models {
            let path = golden.model(entry);
            if let Err(reason) = arch::describe(&Gguf::open(&path).unwrap()) {
                println!("{name:20} skipped: {reason}");
                continue;
            }
            let logits = |table| {
                let config = LineConfig { kernels: Some(table), ..LineConfig::default() };
                Line::open(&path, &config).logits(&golden.manifest.tokens, 64)
            };
            let all: Vec<_> = tables.iter().map(|table| logits(table.name)).collect();
            let is_quantised = !entry.is_f32(name);
            let limit = if is_quantised { QUANT_LIMIT } else { F32_LIMIT };
            for (pair, names) in all.windows(2).zip(tables.windows(2)) {
                let error = distance(&pair[0], &pair[1]);
                println!("{name:20} {} and {}: {error:.2e}", names[0].name, names[1].name);
                assert!(error <= limit, "{name}: {error:e}");
                let largest = &mut largest[usize::from(is_quantised)];
                *largest = largest.max(error);
            }
        }
    }
    println!("largest distance: f32 models {:.2e}, quantised {:.2e}", largest[0], largest[1]);
}

/// ||a - b|| / ||b|| over all rows together.
fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    assert_eq!((a.len(), a[0].len()), (b.len(), b[0].len()));
    let (mut difference, mut norm) = (0.0, 0.0);
    for (&a, &b) in a.iter().flatten().zip(b.iter().flatten()) {
        difference += (f64::from(a) - f64::from(b)).powi(2);
        norm += f64::from(b).powi(2);
    }
    (difference / norm).sqrt()
}
