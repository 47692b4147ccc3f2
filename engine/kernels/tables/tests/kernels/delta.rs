//! The delta rule against f64, and the same bits for every cut, thread count and table.

use super::scan_parts::{N_ROWS, states_may_be_read_elsewhere};
use super::{Rng, close, compute, same_bits, same_bits_everywhere};
use crate::reference::delta::{Delta, delta_scan as plain};
use crate::reference::ops;
use brigade_kernels::{
    Columns, Compute, Decay, DeltaRows, DeltaScan, DeltaShape, FLUSH_EVERY, KeyHeads, ScanPart,
};

/// Operands of a sequence, rows back to back.
pub(super) struct Inputs {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) decay: Vec<f32>,
    pub(super) beta: Vec<f32>,
}

impl Inputs {
    /// Unit keys and queries, log decays of mean `-rate`, rates of correction between 0 and 1.
    pub(super) fn random(rng: &mut Rng, shape: &DeltaShape, n: usize, rate: f32) -> Self {
        let keys = n * shape.n_key_head * shape.d_k;
        let mut unit = || {
            let mut x = rng.values(keys);
            for head in x.chunks_exact_mut(shape.d_k) {
                let norm = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                head.iter_mut().for_each(|x| *x /= norm);
            }
            x
        };
        let (q, k) = (unit(), unit());
        let v = rng.values(n * shape.n_head * shape.d_v);
        let log = |x: f32| (-rate * 2.0 * x.abs()).exp();
        let decay = rng.values(n * shape.decay_len()).into_iter().map(log).collect();
        let beta = rng.values(n * shape.n_head).into_iter().map(f32::abs).collect();
        Self { q, k, v, decay, beta }
    }

    /// Rows `first..` as the op takes them.
    pub(super) fn rows(&self, shape: &DeltaShape) -> DeltaRows<'_> {
        let keys = shape.n_key_head * shape.d_k;
        DeltaRows {
            q: Columns::whole(&self.q, keys),
            k: Columns::whole(&self.k, keys),
            v: Columns::whole(&self.v, shape.n_head * shape.d_v),
            decay: Columns::whole(&self.decay, shape.decay_len()),
            beta: Columns::whole(&self.beta, shape.n_head),
        }
    }

    /// Outputs of the f64 recurrence from an empty state, and the state after it.
    pub(super) fn in_f64(&self, shape: &DeltaShape) -> (Vec<f64>, Vec<f64>) {
        let mut state = vec![0.0; shape.state_len()];
        let Self { q, k, v, decay, beta } = self;
        let out = plain(shape, &Delta { q, k, v, decay, beta }, &mut state);
        (out, state)
    }
}

pub(super) const KDA: DeltaShape = DeltaShape {
    n_head: 3,
    n_key_head: 3,
    key_heads: KeyHeads::Grouped,
    d_k: 32,
    d_v: 32,
    decay: Decay::PerChannel,
};

pub(super) const GDN: DeltaShape =
    DeltaShape { n_head: 4, n_key_head: 2, decay: Decay::PerHead, ..KDA };

fn part(slot: usize, first_pos: usize, first_row: usize, n_rows: usize) -> ScanPart {
    ScanPart::in_place(slot, first_pos, first_row, n_rows)
}

/// `[h, i, j]` from a state in strips.
fn unstrip(shape: &DeltaShape, state: &[f32]) -> Vec<f32> {
    let (d_k, d_v) = (shape.d_k, shape.d_v);
    let mut out = vec![0.0; state.len()];
    for (at, out) in out.iter_mut().enumerate() {
        let (h, i, j) = (at / (d_k * d_v), at / d_v % d_k, at % d_v);
        let first = j / 16 * 16;
        let width = (d_v - first).min(16);
        *out = state[h * d_k * d_v + first * d_k + i * width + j % 16];
    }
    out
}

#[test]
fn matches_f64_for_all_shapes() {
    let mut rng = Rng::new(80);
    let shapes = [
        KDA,
        GDN,
        DeltaShape { key_heads: KeyHeads::Tiled, ..GDN },
        DeltaShape { d_k: 24, d_v: 72, ..KDA },
        DeltaShape { d_k: 7, d_v: 5, key_heads: KeyHeads::Tiled, ..GDN },
        DeltaShape { n_head: 1, n_key_head: 1, d_k: 128, d_v: 128, ..KDA },
    ];
    for shape in shapes {
        for (rate, n) in [(0.01, 70), (1.0, 20), (30.0, 20)] {
            let x = Inputs::random(&mut rng, &shape, n, rate);
            let out = same_bits_everywhere("delta", |compute| {
                let mut states = vec![0.0; 2 * shape.state_len()];
                let mut out = vec![0.0; n * shape.n_head * shape.d_v];
                let rows = x.rows(&shape);
                compute.delta_scan(DeltaScan {
                    shape: &shape,
                    parts: &[part(1, 0, 0, n)],
                    states: &mut states,
                    x: rows,
                    out: &mut out,
                });
                assert!(states[..shape.state_len()].iter().all(|s| *s == 0.0), "another's state");
                out.extend(unstrip(&shape, &states[shape.state_len()..]));
                out
            });
            let (want, state) = x.in_f64(&shape);
            for (got, want) in out.iter().zip(want.iter().chain(&state)) {
                // Rows are contractions: errors of a few roundings each do not grow.
                close("delta", *got, *want, 3e-6);
            }
        }
    }
}

/// Runs the pieces that end at `cuts`; outputs, then the state.
fn run_cut(compute: &Compute, shape: &DeltaShape, x: &Inputs, cuts: &[usize]) -> Vec<f32> {
    let mut states = vec![0.0; shape.state_len()];
    let mut out = vec![0.0; x.beta.len() / shape.n_head * shape.n_head * shape.d_v];
    let mut first = 0;
    for &end in cuts {
        let piece = [part(0, first, first, end - first)];
        compute.delta_scan(DeltaScan {
            shape,
            parts: &piece,
            states: &mut states,
            x: x.rows(shape),
            out: &mut out,
        });
        first = end;
    }
    out.extend(states);
    out
}

#[test]
fn states_of_another_slot_are_read() {
    for shape in [KDA, GDN] {
        let rows = Inputs::random(&mut Rng::new(84), &shape, N_ROWS, 0.5);
        let (state_len, width) = (shape.state_len(), shape.n_head * shape.d_v);
        states_may_be_read_elsewhere("delta", state_len, width, |compute, parts, states, out| {
            compute.delta_scan(DeltaScan {
                shape: &shape,
                parts,
                states,
                x: rows.rows(&shape),
                out,
            });
        });
    }
}

#[test]
fn cuts_do_not_change_a_bit() {
    let mut rng = Rng::new(81);
    let n = 150;
    for shape in [KDA, GDN, DeltaShape { d_k: 20, d_v: 50, ..KDA }] {
        for rate in [0.05, 12.0] {
            let x = Inputs::random(&mut rng, &shape, n, rate);
            for kernels in crate::all_tables() {
                let compute = compute(kernels, 2);
                let whole = run_cut(&compute, &shape, &x, &[n]);
                let singles: Vec<usize> = (1..=n).collect();
                same_bits("single rows", &run_cut(&compute, &shape, &x, &singles), &whole);
                let pieces = run_cut(&compute, &shape, &x, &[3, 64, 65, 131, n]);
                same_bits("pieces", &pieces, &whole);
            }
        }
    }
}

#[test]
fn neighbours_do_not_change_a_bit() {
    let mut rng = Rng::new(82);
    let lengths = [5, 1, 64, 17];
    let n = lengths.iter().sum();
    let x = Inputs::random(&mut rng, &KDA, n, 0.3);
    let run = |compute: &Compute, parts: &[&[ScanPart]]| {
        let mut states = vec![0.0; lengths.len() * KDA.state_len()];
        let mut out = vec![0.0; n * KDA.n_head * KDA.d_v];
        for parts in parts {
            compute.delta_scan(DeltaScan {
                shape: &KDA,
                parts,
                states: &mut states,
                x: x.rows(&KDA),
                out: &mut out,
            });
        }
        out.extend(states);
        out
    };
    let (mut parts, mut first) = (Vec::new(), 0);
    for (slot, len) in lengths.into_iter().enumerate() {
        parts.push(part(slot, 100 * slot, first, len));
        first += len;
    }
    let alone: Vec<&[ScanPart]> = parts.chunks(1).collect();
    let together = same_bits_everywhere("delta of four", |compute| run(compute, &[&parts]));
    let apart = same_bits_everywhere("delta of each", |compute| run(compute, &alone));
    same_bits("together and apart", &together, &apart);
}

#[test]
fn a_state_that_decays_to_nothing_becomes_zero() {
    let shape = DeltaShape { n_head: 1, n_key_head: 1, ..KDA };
    let n = 2 * FLUSH_EVERY;
    let mut x = Inputs::random(&mut Rng::new(83), &shape, n, 0.0);
    // One correction, then decay alone: 0.5^(n - 2) of it is subnormal at the last flush.
    x.beta[1..].fill(0.0);
    x.decay.fill(0.5);
    let out = same_bits_everywhere("decay", |compute| run_cut(compute, &shape, &x, &[n]));
    let state = &out[n * shape.d_v..];
    assert!(state.iter().all(|s| s.to_bits() == 0), "{:e}", state[0]);
    let before = same_bits_everywhere("decay", |compute| run_cut(compute, &shape, &x, &[n - 1]));
    assert!(before[n * shape.d_v..].iter().any(|s| s.is_subnormal()), "flushed too early");
}

#[test]
fn decay_factors_match_f64() {
    let mut rng = Rng::new(84);
    for d in [1, 16, 40] {
        let (x, bias) = (rng.spread(9 * d), rng.values(d));
        let rates: Vec<f32> = rng.values(d).into_iter().map(|r| -16.0 * r.abs()).collect();
        let out = same_bits_everywhere("decay_factors", |compute| {
            let mut out = x.clone();
            compute.decay_factors(&mut out, &bias, &rates);
            out
        });
        for (i, got) in out.iter().enumerate() {
            let gate = f64::from(x[i]) + f64::from(bias[i % d]);
            let log = f64::from(rates[i % d]) * gate.exp().ln_1p().max(gate);
            // The logarithm's own rounding, carried through the exponential.
            close("decay_factors", *got, log.exp(), log.exp() * 4e-7 * (1.0 - log) + 1e-37);
        }
    }
}

#[test]
fn bounded_decay_factors_match_f64() {
    let mut rng = Rng::new(85);
    for d in [1, 16, 40] {
        let (x, bias) = (rng.spread(9 * d), rng.values(d));
        let rates: Vec<f32> = rng.values(d).into_iter().map(|r| -16.0 * r.abs()).collect();
        let bound = -5.0;
        let out = same_bits_everywhere("bounded_decay_factors", |compute| {
            let mut out = x.clone();
            compute.bounded_decay_factors(&mut out, &bias, &rates, bound);
            out
        });
        for (i, got) in out.iter().enumerate() {
            let gate = f64::from(x[i] + bias[i % d]);
            let log = f64::from(bound) * ops::sigmoid(-f64::from(rates[i % d]) * gate);
            // The product of rate and gate is rounded, then the quotient; an exponential carries both on.
            close("bounded_decay_factors", *got, log.exp(), log.exp() * 3e-6);
            assert!((bound.exp() * 0.99..=1.0).contains(got), "{got}");
        }
    }
}
