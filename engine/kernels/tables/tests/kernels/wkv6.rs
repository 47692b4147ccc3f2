//! RWKV-6's time mixing against f64, and the same bits for every cut.

use std::ops::Range;

use super::scan_parts::{N_ROWS, states_may_be_read_elsewhere};
use super::{Rng, close, compute, same_bits, same_bits_everywhere};
use crate::reference::wkv6::{Wkv6 as Plain, decay};
use brigade_kernels::{FLUSH_EVERY, ScanPart, Vector, Wkv6, Wkv6Decay, Wkv6Rows};

/// Rows of some heads: r, w, k and v.
struct Case {
    n_heads: usize,
    d: usize,
    rows: [Vec<f32>; 4],
    own: Option<Vec<f32>>,
}

impl Case {
    fn new(n_heads: usize, d: usize, n: usize, has_own: bool, rng: &mut Rng) -> Self {
        let width = n_heads * d;
        let mut rows = [0; 4].map(|_| rng.values(n * width));
        rows[1].iter_mut().for_each(|w| *w = 0.75 + 0.25 * *w);
        Self { n_heads, d, rows, own: has_own.then(|| rng.values(width)) }
    }

    fn width(&self) -> usize {
        self.n_heads * self.d
    }

    fn rows(&self, range: Range<usize>) -> Wkv6Rows<'_> {
        let width = self.width();
        let cut = |i: usize| &self.rows[i][range.start * width..range.end * width];
        Wkv6Rows { r: cut(0), w: cut(1), k: cut(2), v: cut(3), own: self.own.as_deref() }
    }

    /// `[n, width]` for rows `range` from a state of zeros.
    fn plain(&self, range: Range<usize>) -> Vec<f64> {
        let (d, width) = (self.d, self.width());
        let rows = self.rows(range.clone());
        let mut out = vec![0.0; range.len() * width];
        for head in 0..self.n_heads {
            let of = |x: &[f32]| -> Vec<f32> {
                x.chunks_exact(width).flat_map(|x| &x[head * d..][..d]).copied().collect()
            };
            let [r, w, k, v] = [rows.r, rows.w, rows.k, rows.v].map(of);
            let own = rows.own.map(|own| &own[head * d..][..d]);
            let plain = Plain { d, r: &r, w: &w, k: &k, v: &v, own }.run();
            for (i, y) in plain.into_iter().enumerate() {
                out[i / d * width + head * d + i % d] = y;
            }
        }
        out
    }
}

fn part(slot: usize, first_pos: usize, first_row: usize, n_rows: usize) -> ScanPart {
    ScanPart::in_place(slot, first_pos, first_row, n_rows)
}

#[test]
fn matches_f64_for_several_heads_and_parts() {
    let mut rng = Rng::new(95);
    for (n_heads, d, has_own) in [(1, 16, true), (3, 32, false), (2, 64, true), (2, 64, false)] {
        let case = Case::new(n_heads, d, 24, has_own, &mut rng);
        let out = same_bits_everywhere("wkv6", |compute| {
            let mut states = vec![0.0; 3 * case.width() * d];
            let mut out = vec![0.0; 24 * case.width()];
            let parts = [part(2, 7, 0, 15), part(0, 0, 15, 9)];
            compute.wkv6(Wkv6 {
                n_heads,
                d,
                parts: &parts,
                states: &mut states,
                rows: case.rows(0..24),
                out: &mut out,
            });
            out
        });
        let mut want = case.plain(0..15);
        want.extend(case.plain(15..24));
        for (got, want) in out.iter().zip(&want) {
            // Sums over d keys of states of about 4, each some ten roundings old.
            close("wkv6", *got, *want, 2e-6 * d as f64);
        }
    }
}

#[test]
fn states_of_another_slot_are_read() {
    let case = Case::new(2, 32, N_ROWS, true, &mut Rng::new(98));
    states_may_be_read_elsewhere("wkv6", 64 * 32, 64, |compute, parts, states, out| {
        compute.wkv6(Wkv6 { n_heads: 2, d: 32, parts, states, rows: case.rows(0..N_ROWS), out });
    });
}

#[test]
fn cuts_do_not_change_a_bit() {
    let mut rng = Rng::new(96);
    let n = FLUSH_EVERY + 9;
    for has_own in [true, false] {
        let case = Case::new(2, 32, n, has_own, &mut rng);
        for kernels in crate::all_tables() {
            let compute = compute(kernels, 2);
            let run = |cuts: &[usize]| {
                let mut states = vec![0.0; 64 * 32];
                let mut out = Vec::new();
                let mut first = 0;
                for &end in cuts {
                    let mut rows = vec![0.0; (end - first) * 64];
                    let parts = [part(0, first, 0, end - first)];
                    compute.wkv6(Wkv6 {
                        n_heads: 2,
                        d: 32,
                        parts: &parts,
                        states: &mut states,
                        rows: case.rows(first..end),
                        out: &mut rows,
                    });
                    out.extend(rows);
                    first = end;
                }
                out.extend(states);
                out
            };
            let whole = run(&[n]);
            same_bits("single rows", &run(&(1..=n).collect::<Vec<_>>()), &whole);
            same_bits("three pieces", &run(&[2, FLUSH_EVERY, n]), &whole);
        }
    }
}

#[test]
fn decays_match_f64() {
    let mut rng = Rng::new(97);
    let (w, bias) = (rng.values(3 * 48), rng.values(48));
    // From hardly any decay to all of it, and what no type holds on the way.
    let bias: Vec<f32> = bias.iter().enumerate().map(|(i, b)| b + i as f32 / 4.0 - 6.0).collect();
    let far = [-200.0, 200.0].map(|bias| vec![bias; 48]);
    for bias in [bias, far[0].clone(), far[1].clone()] {
        let out = same_bits_everywhere("wkv6_decay", |compute| {
            let mut w = w.clone();
            compute.wkv6_decay(Wkv6Decay { w: &mut w, bias: &Vector::from(bias.clone()) });
            w
        });
        for (i, got) in out.iter().enumerate() {
            let want = decay(f64::from(w[i]) + f64::from(bias[i % 48]));
            close("wkv6_decay", *got, want, 2e-6);
        }
    }
}
