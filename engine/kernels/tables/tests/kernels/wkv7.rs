//! RWKV-7's time mixing against f64, and the same bits for every cut.

use super::scan_parts::{N_ROWS, states_may_be_read_elsewhere};
use super::{Rng, close, compute, same_bits, same_bits_everywhere};
use crate::reference::wkv7::{Wkv7 as Plain, prepare};
use brigade_kernels::{
    FLUSH_EVERY, ScanPart, Vector, Wkv7, Wkv7Bonus, Wkv7Prepare, Wkv7Rows, Wkv7Weights,
};

/// Rows of some heads.
struct Case {
    n_heads: usize,
    d: usize,
    r: Vec<f32>,
    w: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    kappa: Vec<f32>,
    kappa_a: Vec<f32>,
}

impl Case {
    fn new(n_heads: usize, d: usize, n: usize, rng: &mut Rng) -> Self {
        let width = n_heads * d;
        let mut kappa = rng.values(n * width);
        for head in kappa.chunks_exact_mut(d) {
            let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
            head.iter_mut().for_each(|x| *x /= length);
        }
        let kappa_a = kappa.iter().map(|x| x * (0.5 + 0.5 * rng.value())).collect();
        Self {
            n_heads,
            d,
            r: rng.values(n * width),
            w: rng.values(n * width).iter().map(|x| 0.75 + 0.25 * x).collect(),
            k: rng.values(n * width),
            v: rng.values(n * width),
            kappa,
            kappa_a,
        }
    }

    fn width(&self) -> usize {
        self.n_heads * self.d
    }

    fn rows(&self, range: std::ops::Range<usize>) -> Wkv7Rows<'_> {
        let cut = |x| cut(x, range.clone(), self.width());
        Wkv7Rows {
            r: cut(&self.r),
            w: cut(&self.w),
            k: cut(&self.k),
            v: cut(&self.v),
            kappa: cut(&self.kappa),
            kappa_a: cut(&self.kappa_a),
        }
    }

    /// `[n, width]` for rows `range` from a state of zeros.
    fn plain(&self, range: std::ops::Range<usize>) -> Vec<f64> {
        let (d, width) = (self.d, self.width());
        let mut out = vec![0.0; range.len() * width];
        for head in 0..self.n_heads {
            let rows = self.rows(range.clone());
            let of = |x: &[f32]| -> Vec<f32> {
                x.chunks_exact(width).flat_map(|x| &x[head * d..][..d]).copied().collect()
            };
            let [r, w, k] = [rows.r, rows.w, rows.k].map(of);
            let [v, kappa, kappa_a] = [rows.v, rows.kappa, rows.kappa_a].map(of);
            let (r, w, k) = (&r[..], &w[..], &k[..]);
            let (v, kappa, kappa_a) = (&v[..], &kappa[..], &kappa_a[..]);
            let plain = Plain { d, r, w, k, v, kappa, kappa_a }.run();
            for (i, y) in plain.into_iter().enumerate() {
                out[i / d * width + head * d + i % d] = y;
            }
        }
        out
    }
}

fn cut(x: &[f32], range: std::ops::Range<usize>, width: usize) -> &[f32] {
    &x[range.start * width..range.end * width]
}

fn part(slot: usize, first_pos: usize, first_row: usize, n_rows: usize) -> ScanPart {
    ScanPart::in_place(slot, first_pos, first_row, n_rows)
}

#[test]
fn matches_f64_for_several_heads_and_parts() {
    let mut rng = Rng::new(90);
    for (n_heads, d) in [(1, 16), (3, 32), (2, 64)] {
        let case = Case::new(n_heads, d, 24, &mut rng);
        let out = same_bits_everywhere("wkv7", |compute| {
            let mut states = vec![0.0; 3 * case.width() * d];
            let mut out = vec![0.0; 24 * case.width()];
            let parts = [part(2, 7, 0, 15), part(0, 0, 15, 9)];
            compute.wkv7(Wkv7 {
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
            close("wkv7", *got, *want, 2e-6 * d as f64);
        }
    }
}

#[test]
fn states_of_another_slot_are_read() {
    let case = Case::new(2, 32, N_ROWS, &mut Rng::new(99));
    states_may_be_read_elsewhere("wkv7", 64 * 32, 64, |compute, parts, states, out| {
        compute.wkv7(Wkv7 { n_heads: 2, d: 32, parts, states, rows: case.rows(0..N_ROWS), out });
    });
}

#[test]
fn cuts_do_not_change_a_bit() {
    let mut rng = Rng::new(91);
    let n = FLUSH_EVERY + 9;
    let case = Case::new(2, 32, n, &mut rng);
    for kernels in crate::all_tables() {
        let compute = compute(kernels, 2);
        let run = |cuts: &[usize]| {
            let mut states = vec![0.0; 64 * 32];
            let mut out = Vec::new();
            let mut first = 0;
            for &end in cuts {
                let mut rows = vec![0.0; (end - first) * 64];
                let parts = [part(0, first, 0, end - first)];
                compute.wkv7(Wkv7 {
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

#[test]
fn preparation_matches_f64() {
    let mut rng = Rng::new(92);
    let (n, n_heads, d) = (5, 3, 32);
    let width = n_heads * d;
    let mut vector = || rng.values(width).into();
    let weights = Wkv7Weights { w0: vector(), a0: vector(), k_k: vector(), k_a: vector() };
    let [w, k, a] = [0; 3].map(|_| rng.values(n * width));
    let len = n * width;
    let out = same_bits_everywhere("wkv7_prepare", |compute| {
        let (mut w, mut k, mut a) = (w.clone(), k.clone(), a.clone());
        let mut kappa = vec![f32::NAN; len];
        compute.wkv7_prepare(Wkv7Prepare {
            weights: &weights,
            d,
            w: &mut w,
            k: &mut k,
            a: &mut a,
            kappa: &mut kappa,
        });
        [w, k, kappa, a].concat()
    });
    for i in 0..len {
        let (c, head) = (i % width, i / d * d);
        let f = |x: &[f32], i: usize| f64::from(x[i]);
        let squares = (0..d).map(|j| f(&k, head + j) * f(&weights.k_k, (head + j) % width));
        let length = squares.map(|x| x * x).sum::<f64>().sqrt();
        let (k_k, k_a) = (f(&weights.k_k, c), f(&weights.k_a, c));
        let (w, a) = (f(&w, i) + f(&weights.w0, c), f(&a, i) + f(&weights.a0, c));
        let want = prepare(w, f(&k, i), a, k_k, k_a, length);
        for (part, want) in want.into_iter().enumerate() {
            close("wkv7_prepare", out[part * len + i], want, 2e-6);
        }
    }
}

#[test]
fn bonus_matches_f64() {
    let mut rng = Rng::new(93);
    let (n_heads, d) = (3, 32);
    let case = Case::new(n_heads, d, 4, &mut rng);
    let (r_k, base) = (rng.values(n_heads * d), rng.values(4 * n_heads * d));
    let out = same_bits_everywhere("wkv7_bonus", |compute| {
        let mut out = base.clone();
        compute.wkv7_bonus(Wkv7Bonus {
            out: &mut out,
            d,
            rows: case.rows(0..4),
            r_k: &Vector::from(r_k.clone()),
        });
        out
    });
    for (i, got) in out.iter().enumerate() {
        let head = i / d * d;
        let term = |j: usize| f64::from(case.r[head + j]) * f64::from(case.k[head + j]);
        let sum: f64 = (0..d).map(|j| term(j) * f64::from(r_k[(head + j) % (n_heads * d)])).sum();
        close("wkv7_bonus", *got, f64::from(base[i]) + f64::from(case.v[i]) * sum, 1e-5);
    }
}
