//! Attention over depth against f64, and bit equality on all tables and thread counts, also of each row
//! alone.

use super::{Rng, close, same_bits, same_bits_everywhere};
use crate::reference::depth_attention::attend_depth;

#[test]
fn attention_over_depth_matches_f64() {
    let mut rng = Rng::new(91);
    for (n, d, n_sources) in [(1, 1, 1), (3, 24, 2), (5, 80, 9), (2, 7168, 9), (70, 100, 4)] {
        let sources: Vec<Vec<f32>> = (0..n_sources).map(|_| rng.values(n * d)).collect();
        let score: Vec<f32> = rng.values(d);
        let mix = |rows: std::ops::Range<usize>| {
            let part: Vec<&[f32]> =
                sources.iter().map(|source| &source[rows.start * d..rows.end * d]).collect();
            same_bits_everywhere("attend_depth", |compute| {
                let mut out = vec![f32::NAN; rows.len() * d];
                compute.attend_depth(&part, &score, 1e-5, &mut out);
                out
            })
        };
        let out = mix(0..n);
        for (r, out) in out.chunks_exact(d).enumerate() {
            let row: Vec<&[f32]> = sources.iter().map(|source| &source[r * d..][..d]).collect();
            // Scores are sums of d products of about 1, their error moves the weights.
            let bound = 3e-7 * (d as f64).sqrt() + 1e-6;
            for (got, want) in out.iter().zip(attend_depth(&row, &score, 1e-5)) {
                close("attend_depth", *got, want, bound);
            }
        }
        let last = mix(n - 1..n);
        same_bits("the last row alone", &last, &out[(n - 1) * d..]);
    }
}

#[test]
fn a_single_source_is_itself() {
    let mut rng = Rng::new(92);
    let (source, score) = (rng.spread(3 * 40), rng.values(40));
    let out = same_bits_everywhere("attend_depth", |compute| {
        let mut out = vec![0.0; source.len()];
        compute.attend_depth(&[&source], &score, 1e-5, &mut out);
        out
    });
    same_bits("one source", &out, &source);
}
