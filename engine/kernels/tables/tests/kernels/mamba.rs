//! The selective scan of Mamba-1 against f64, the same bits for every cut, and no subnormal state.

use super::scan_parts::{N_ROWS, states_may_be_read_elsewhere};
use super::{Rng, close, compute, same_bits, same_bits_everywhere};
use crate::reference::mamba::Mamba as Plain;
use brigade_kernels::{Columns, FLUSH_EVERY, MambaRows, MambaScan, MambaWeights, ScanPart};

/// Constants and rows of a scan.
struct Case {
    channels: usize,
    n_state: usize,
    a: Vec<f32>,
    dt_bias: Vec<f32>,
    d: Vec<f32>,
    u: Vec<f32>,
    dt: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    /// `[n, channels + 7]`, the gate from column 5 on.
    gate: Vec<f32>,
}

impl Case {
    fn new(channels: usize, n_state: usize, n: usize, rng: &mut Rng) -> Self {
        Self {
            channels,
            n_state,
            a: rng.values(channels * n_state).iter().map(|a| -(3.0 * a).exp()).collect(),
            dt_bias: rng.values(channels),
            d: rng.values(channels),
            u: rng.values(n * channels),
            dt: rng.values(n * channels).iter().map(|x| 4.0 * x - 2.0).collect(),
            b: rng.values(n * n_state),
            c: rng.values(n * n_state),
            gate: rng.values(n * (channels + 7)),
        }
    }

    fn scan(&self) -> MambaWeights {
        MambaWeights::new(&self.a, &self.dt_bias, &self.d)
    }

    fn state_len(&self) -> usize {
        self.scan().state_len()
    }

    /// Rows `range`.
    fn rows(&self, range: std::ops::Range<usize>) -> MambaRows<'_> {
        let (channels, n_state) = (self.channels, self.n_state);
        let stride = channels + 7;
        let part = |x| cut(x, range.clone(), channels);
        MambaRows {
            u: part(&self.u),
            dt: part(&self.dt),
            b: cut(&self.b, range.clone(), n_state),
            c: cut(&self.c, range.clone(), n_state),
            gate: Columns { values: cut(&self.gate, range.clone(), stride), stride, first_col: 5 },
        }
    }

    /// Expected outputs of rows `range`, from a state of zeros.
    fn plain(&self, range: std::ops::Range<usize>) -> Vec<f64> {
        let rows = self.rows(range);
        let gate: Vec<f32> = rows
            .gate
            .values
            .chunks_exact(rows.gate.stride)
            .flat_map(|row| &row[5..5 + self.channels])
            .copied()
            .collect();
        let (a, dt_bias, d) = (&self.a, &self.dt_bias, &self.d);
        let MambaRows { u, dt, b, c, .. } = rows;
        let mut state = vec![0.0; self.channels * self.n_state];
        Plain { a, dt_bias, d, u, dt, gate: &gate, b, c }.run(&mut state)
    }
}

fn cut(x: &[f32], range: std::ops::Range<usize>, width: usize) -> &[f32] {
    &x[range.start * width..range.end * width]
}

fn part(slot: usize, first_pos: usize, first_row: usize, n_rows: usize) -> ScanPart {
    ScanPart::in_place(slot, first_pos, first_row, n_rows)
}

#[test]
fn matches_f64_for_all_sizes() {
    let mut rng = Rng::new(80);
    for (channels, n_state) in [(1, 1), (16, 16), (37, 5), (200, 16), (64, 64)] {
        let case = Case::new(channels, n_state, 30, &mut rng);
        let out = same_bits_everywhere("mamba", |compute| {
            let mut states = vec![0.0; 3 * case.state_len()];
            let mut out = vec![0.0; 30 * channels];
            let parts = [part(2, 100, 0, 19), part(0, 0, 19, 11)];
            compute.mamba_scan(MambaScan {
                weights: &case.scan(),
                parts: &parts,
                states: &mut states,
                rows: case.rows(0..30),
                out: &mut out,
            });
            out
        });
        let mut want = case.plain(0..19);
        want.extend(case.plain(19..30));
        for (got, want) in out.iter().zip(&want) {
            // Some hundred roundings of terms of about 1 at most; each state index adds one.
            close("mamba", *got, *want, 2e-6 * (1.0 + n_state as f64));
        }
    }
}

#[test]
fn states_of_another_slot_are_read() {
    let case = Case::new(37, 5, N_ROWS, &mut Rng::new(83));
    let scan = case.scan();
    states_may_be_read_elsewhere("mamba", case.state_len(), 37, |compute, parts, states, out| {
        compute.mamba_scan(MambaScan {
            weights: &scan,
            parts,
            states,
            rows: case.rows(0..N_ROWS),
            out,
        });
    });
}

#[test]
fn cuts_do_not_change_a_bit() {
    let mut rng = Rng::new(81);
    let n = 2 * FLUSH_EVERY + 9;
    let case = Case::new(50, 16, n, &mut rng);
    for kernels in crate::all_tables() {
        let compute = compute(kernels, 2);
        let run = |cuts: &[usize]| {
            let mut states = vec![0.0; case.state_len()];
            let mut out = Vec::new();
            let mut first = 0;
            for &end in cuts {
                let mut rows = vec![0.0; (end - first) * 50];
                let parts = [part(0, first, 0, end - first)];
                compute.mamba_scan(MambaScan {
                    weights: &case.scan(),
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
fn what_decays_to_nothing_becomes_zero() {
    let mut rng = Rng::new(82);
    let mut case = Case::new(16, 2, FLUSH_EVERY, &mut rng);
    // One impulse, then a decay by 1/e a row: e^-62 of 1e-13 is below the least normal f32.
    (case.a, case.dt) = (vec![-1.0; 32], vec![0.541_324_9; case.dt.len()]);
    case.dt_bias.fill(0.0);
    case.u.fill(0.0);
    case.u[..16].fill(1e-13);
    for kernels in crate::all_tables() {
        let compute = compute(kernels, 1);
        let run = |n: usize| {
            let mut states = vec![0.0; case.state_len()];
            let parts = [part(0, 0, 0, n)];
            compute.mamba_scan(MambaScan {
                weights: &case.scan(),
                parts: &parts,
                states: &mut states,
                rows: case.rows(0..n),
                out: &mut vec![0.0; n * 16],
            });
            states
        };
        assert!(run(FLUSH_EVERY - 1).iter().all(|s| *s != 0.0 && s.is_subnormal()));
        assert!(run(FLUSH_EVERY).iter().all(|s| *s == 0.0));
    }
}
