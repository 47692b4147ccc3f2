//! Chunked scans, the references of devices with fast products, against the f64 recurrences.

use super::delta::{GDN, Inputs, KDA};
use super::ssd::{Case, near, shape};
use super::{Rng, close, same_bits};
use crate::reference::chunked::{self, SsdRows};
use crate::reference::delta::Delta;
use brigade_kernels::{DeltaShape, KeyHeads};

/// Rows `first..end` of a sequence, the first at position `first_pos`; outputs, then the state, which was `state`.
fn run(shape: &DeltaShape, x: &Inputs, chunk: usize, first_pos: usize, cuts: &[usize]) -> Vec<f32> {
    let mut state = vec![0.0; shape.state_len()];
    let mut out = Vec::new();
    let mut first = 0;
    for &end in cuts {
        let rows = |all: &'_ [f32]| {
            let width = all.len() / (x.beta.len() / shape.n_head);
            all[first * width..end * width].to_vec()
        };
        let [q, k, v, decay, beta] = [&x.q, &x.k, &x.v, &x.decay, &x.beta].map(|all| rows(all));
        let x = Delta { q: &q, k: &k, v: &v, decay: &decay, beta: &beta };
        out.extend(chunked::delta(shape, &x, chunk, first_pos + first, &mut state));
        first = end;
    }
    out.extend(state);
    out
}

#[test]
fn the_delta_rule_matches_f64_for_mild_and_strong_decays() {
    let mut rng = Rng::new(90);
    for shape in [
        GDN,
        DeltaShape { n_head: 1, n_key_head: 1, ..KDA },
        DeltaShape { key_heads: KeyHeads::Tiled, d_k: 7, d_v: 5, ..GDN },
    ] {
        for (rate, first_pos, n) in [(0.001, 0, 100), (0.1, 5, 90), (1.0, 63, 66), (30.0, 0, 64)] {
            let x = Inputs::random(&mut rng, &shape, n, rate);
            let (mut want, state) = x.in_f64(&shape);
            want.extend(state);
            for chunk in [16, 64] {
                let out = run(&shape, &x, chunk, first_pos, &[n]);
                assert_eq!(out.len(), want.len());
                for (got, want) in out.iter().zip(&want) {
                    close("chunks of the delta rule", *got, *want, 1e-5);
                }
            }
        }
    }
}

#[test]
fn keys_that_are_nearly_parallel_are_solved_exactly() {
    let shape = DeltaShape { n_head: 1, n_key_head: 1, ..KDA };
    let mut x = Inputs::random(&mut Rng::new(91), &shape, 128, 0.01);
    let direction = x.k[..shape.d_k].to_vec();
    for key in x.k.chunks_exact_mut(shape.d_k) {
        key.iter_mut().zip(&direction).for_each(|(k, d)| *k = 0.1 * *k + d);
        let norm = key.iter().map(|k| k * k).sum::<f32>().sqrt();
        key.iter_mut().for_each(|k| *k /= norm);
    }
    let (want, _) = x.in_f64(&shape);
    for (got, want) in run(&shape, &x, 64, 0, &[128]).iter().zip(&want) {
        close("parallel keys", *got, *want, 1e-5);
    }
}

#[test]
fn cuts_at_borders_do_not_change_a_bit() {
    let x = Inputs::random(&mut Rng::new(93), &GDN, 150, 0.2);
    // Borders of chunks of 32 from position 40 on lie at rows 24, 56, 88, ...
    let whole = run(&GDN, &x, 32, 40, &[150]);
    same_bits("cut at borders", &run(&GDN, &x, 32, 40, &[24, 88, 120, 150]), &whole);
    assert!(run(&GDN, &x, 32, 40, &[30, 150]) != whole, "another cut shows");
}

#[test]
fn mamba_2_matches_f64_in_chunks_of_any_size() {
    let (n, first_pos) = (150, 27);
    for (shape, decay) in [
        (shape(4, 20, 7, 2), 0.01),
        (shape(6, 8, 16, 1), 1.0),
        (shape(2, 16, 16, 1), 30.0),
        (shape(2, 16, 16, 1), 300.0),
    ] {
        let case = Case::new(shape, n, decay, 95);
        let (y, after) = case.exact();
        let rows = SsdRows { x: &case.x, b: &case.b, c: &case.c, dt: &case.dt };
        for chunk in [16, 64, 256] {
            let mut state = case.state.clone();
            let got = chunked::ssd(&case.ssd, &rows, chunk, first_pos, &mut state);
            let what = format!("chunks of {chunk}, decay {decay}");
            near(&what, &got, &y, 5e-6);
            near(&what, &state, &after, 5e-6);
        }
    }
}
