//! The chunked delta rule against the f64 recurrence. Cuts at borders of chunks change no bit.

use super::delta::{GDN, Inputs, KDA};
use super::{Rng, close, compute, same_bits, same_bits_everywhere};
use crate::kernels::{Compute, DeltaShape, KeyHeads, ScanPart, available};

/// Runs the pieces that end at `cuts`, the first row at position `first_pos`; outputs, then the state.
fn run(
    compute: &Compute,
    shape: &DeltaShape,
    chunk: usize,
    x: &Inputs,
    first_pos: usize,
    cuts: &[usize],
) -> Vec<f32> {
    let mut states = vec![0.0; shape.state_len()];
    let mut out = vec![0.0; x.v.len()];
    let mut first = 0;
    for &end in cuts {
        let pos = first_pos + first;
        let part = ScanPart { slot: 0, first_pos: pos, first_row: first, n_rows: end - first };
        compute.delta_chunked(shape, chunk, &[part], &mut states, x.rows(shape), &mut out);
        first = end;
    }
    out.extend(states);
    out
}

#[test]
fn matches_the_recurrence_for_mild_and_strong_decays() {
    let mut rng = Rng::new(90);
    let shapes = [
        DeltaShape { n_head: 1, n_key_head: 1, ..KDA },
        GDN,
        DeltaShape { key_heads: KeyHeads::Tiled, d_k: 7, d_v: 5, ..GDN },
        DeltaShape { n_head: 2, n_key_head: 2, d_k: 24, d_v: 40, ..KDA },
        DeltaShape { n_head: 1, n_key_head: 1, d_k: 128, d_v: 48, ..KDA },
    ];
    for shape in shapes {
        for (rate, first_pos, n) in [(0.001, 0, 200), (0.1, 5, 150), (1.0, 63, 66), (30.0, 0, 128)]
        {
            let x = Inputs::random(&mut rng, &shape, n, rate);
            let (want, _) = x.in_f64(&shape);
            for chunk in [16, 32, 64] {
                let out = same_bits_everywhere("delta_chunked", |compute| {
                    run(compute, &shape, chunk, &x, first_pos, &[n])
                });
                for (got, want) in out.iter().zip(&want) {
                    close("delta_chunked", *got, *want, 1e-5);
                }
            }
        }
    }
}

#[test]
fn keys_that_are_nearly_parallel_are_solved_exactly() {
    let mut x = Inputs::random(&mut Rng::new(91), &KDA, 128, 0.01);
    let direction = x.k[..KDA.d_k].to_vec();
    for key in x.k.chunks_exact_mut(KDA.d_k) {
        key.iter_mut().zip(&direction).for_each(|(k, d)| *k = 0.1 * *k + d);
        let norm = key.iter().map(|k| k * k).sum::<f32>().sqrt();
        key.iter_mut().for_each(|k| *k /= norm);
    }
    let (want, _) = x.in_f64(&KDA);
    for kernels in available() {
        let out = run(&compute(kernels, 1), &KDA, 64, &x, 0, &[128]);
        for (got, want) in out.iter().zip(&want) {
            close("delta_chunked", *got, *want, 1e-5);
        }
    }
}

#[test]
fn the_state_continues_as_the_recurrence_leaves_it() {
    let mut rng = Rng::new(92);
    for shape in [KDA, GDN] {
        let x = Inputs::random(&mut rng, &shape, 100, 0.05);
        for kernels in available() {
            let compute = compute(kernels, 1);
            let chunked = run(&compute, &shape, 32, &x, 0, &[100]);
            let recurrence = run(&compute, &shape, 32, &x, 0, &(1..=100).collect::<Vec<_>>());
            for (a, b) in chunked.iter().zip(&recurrence) {
                close("state", *a, f64::from(*b), 1e-5);
            }
        }
    }
}

#[test]
fn cuts_at_borders_do_not_change_a_bit() {
    let x = Inputs::random(&mut Rng::new(93), &KDA, 200, 0.2);
    for kernels in available() {
        let compute = compute(kernels, 2);
        // Borders of chunks of 32 from position 40 on lie at rows 24, 56, 88, ...
        let whole = run(&compute, &KDA, 32, &x, 40, &[200]);
        let cut = run(&compute, &KDA, 32, &x, 40, &[10, 24, 88, 120, 190, 195, 200]);
        same_bits("cut at borders and within the ends", &cut, &whole);
    }
}
