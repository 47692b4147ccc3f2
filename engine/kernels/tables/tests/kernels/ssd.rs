//! Mamba-2's recurrence against f64, and the same bits for every cut.

use super::scan_parts::{N_ROWS, states_may_be_read_elsewhere};
use super::{Rng, compute, same_bits, same_bits_everywhere};
use crate::reference::ssd::ssd as plain;
use brigade_kernels::{Columns, Compute, FLUSH_EVERY, ScanPart, Ssd, SsdInput, SsdScan, SsdShape};
use brigade_kernels_tables::available;

/// Largest difference from f64, relative in the 2-norm.
const LIMIT: f64 = 2e-6;

/// The operands of one sequence, with an incoming state `[n_head, n_state, head_dim]`.
pub(super) struct Case {
    pub(super) ssd: Ssd,
    pub(super) x: Vec<f32>,
    pub(super) b: Vec<f32>,
    pub(super) c: Vec<f32>,
    pub(super) dt: Vec<f32>,
    pub(super) state: Vec<f32>,
}

impl Case {
    /// `n` rows; decays of about `e^-decay` a token.
    pub(super) fn new(shape: SsdShape, n: usize, decay: f32, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let a: Vec<f32> = (0..shape.n_head).map(|_| -decay * (1.0 + 0.5 * rng.value())).collect();
        let (d, bias) = (rng.values(shape.n_head), rng.values(shape.n_head));
        Self {
            ssd: Ssd::new(shape, a.into(), d.into(), bias.into()),
            x: rng.values(n * shape.n_inner()),
            b: rng.values(n * shape.n_bc()),
            c: rng.values(n * shape.n_bc()),
            dt: rng.values(n * shape.n_head).iter().map(|v| 3.0 * v).collect(),
            state: rng.values(shape.state_len()),
        }
    }

    pub(super) fn input(&self) -> SsdInput<'_> {
        let shape = &self.ssd.shape;
        let columns = |data, stride| Columns { values: data, stride, first_col: 0 };
        SsdInput {
            x: columns(&self.x, shape.n_inner()),
            b: columns(&self.b, shape.n_bc()),
            c: columns(&self.c, shape.n_bc()),
            dt: columns(&self.dt, shape.n_head),
        }
    }

    /// Outputs and the outgoing state in f64.
    pub(super) fn exact(&self) -> (Vec<f64>, Vec<f64>) {
        let mut state: Vec<f64> = self.state.iter().map(|v| f64::from(*v)).collect();
        let y = plain(&self.ssd, &self.x, &self.b, &self.c, &self.dt, &mut state);
        (y, state)
    }

    /// Outputs, then the outgoing state, of the op with pieces that end at `cuts`.
    fn run(&self, compute: &Compute, first_pos: usize, cuts: &[usize]) -> Vec<f32> {
        let (mut state, mut out) = (self.state.clone(), vec![0.0; self.x.len()]);
        let mut first = 0;
        for &end in cuts {
            let part = ScanPart::in_place(0, first_pos + first, first, end - first);
            compute.ssd(SsdScan {
                ssd: &self.ssd,
                parts: &[part],
                states: &mut state,
                input: self.input(),
                out: &mut out,
            });
            first = end;
        }
        out.extend(state);
        out
    }
}

/// Asserts that `got` is within `limit` of `want`, relative in the 2-norm.
pub(super) fn near(what: &str, got: &[f32], want: &[f64], limit: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let norm = want.iter().map(|v| v * v).sum::<f64>().sqrt();
    let off = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
    assert!(off <= limit * norm, "{what}: off by {:e} of the norm", off / norm);
}

pub(super) fn shape(n_head: usize, head_dim: usize, n_state: usize, n_group: usize) -> SsdShape {
    SsdShape { n_head, head_dim, n_state, n_group }
}

#[test]
fn matches_f64_for_all_shapes_and_decays() {
    let shapes = [shape(1, 1, 1, 1), shape(6, 20, 7, 2), shape(4, 64, 16, 4), shape(10, 80, 33, 2)];
    for (i, shape) in shapes.into_iter().enumerate() {
        for decay in [0.01, 1.0, 30.0] {
            let case = Case::new(shape, 75, decay, 80 + i as u64);
            let (y, state) = case.exact();
            let got = same_bits_everywhere("ssd", |compute| case.run(compute, 0, &[75]));
            near("outputs", &got[..y.len()], &y, LIMIT);
            near("state", &got[y.len()..], &state, LIMIT);
        }
    }
}

#[test]
fn the_plain_form_is_the_same_function() {
    let shape = shape(6, 20, 37, 2);
    let case = Case::new(shape, 70, 0.3, 90);
    let (y, state) = case.exact();
    let turned = |state: &[f32], rows: usize, cols: usize| -> Vec<f32> {
        let of = |i: usize| i / (rows * cols) * rows * cols + i % rows * cols + i / rows % cols;
        (0..state.len()).map(|i| state[of(i)]).collect()
    };
    for kernels in crate::all_tables() {
        let mut states = turned(&case.state, shape.n_state, shape.head_dim);
        let mut out = vec![0.0; case.x.len()];
        let part = ScanPart::in_place(0, 0, 0, 70);
        let compute = compute(kernels, 2);
        compute.ssd_plain(SsdScan {
            ssd: &case.ssd,
            parts: &[part],
            states: &mut states,
            input: case.input(),
            out: &mut out,
        });
        near("outputs", &out, &y, LIMIT);
        near("state", &turned(&states, shape.head_dim, shape.n_state), &state, LIMIT);
    }
}

#[test]
fn states_of_another_slot_are_read() {
    let shape = SsdShape { n_head: 6, head_dim: 24, n_group: 2, n_state: 18 };
    let case = Case::new(shape, N_ROWS, 0.5, 85);
    let (state_len, width) = (shape.state_len(), shape.n_inner());
    states_may_be_read_elsewhere("ssd", state_len, width, |compute, parts, states, out| {
        compute.ssd(SsdScan { ssd: &case.ssd, parts, states, input: case.input(), out });
    });
}

#[test]
fn cuts_do_not_change_a_bit() {
    let n = 150;
    let case = Case::new(shape(10, 72, 18, 2), n, 0.2, 91);
    for kernels in crate::all_tables() {
        let compute = compute(kernels, 2);
        for first_pos in [0, 61] {
            let whole = case.run(&compute, first_pos, &[n]);
            let single: Vec<usize> = (1..=n).collect();
            same_bits("single rows", &case.run(&compute, first_pos, &single), &whole);
            same_bits("pieces", &case.run(&compute, first_pos, &[2, 9, 31, 64, 127, n]), &whole);
        }
    }
}

#[test]
fn parts_do_not_see_each_other() {
    let shape = shape(6, 32, 8, 3);
    let cases = [Case::new(shape, 40, 0.2, 92), Case::new(shape, 1, 0.2, 93)];
    let join = |f: fn(&Case) -> &Vec<f32>| -> Vec<f32> {
        cases.iter().flat_map(|case| f(case).clone()).collect()
    };
    let both = Case {
        ssd: cases[0].ssd.clone(),
        x: join(|c| &c.x),
        b: join(|c| &c.b),
        c: join(|c| &c.c),
        dt: join(|c| &c.dt),
        state: join(|c| &c.state),
    };
    let second = Case { ssd: cases[0].ssd.clone(), ..Case::new(shape, 1, 0.2, 93) };
    let compute = compute(available()[0], 2);
    let mut states = both.state.clone();
    let mut out = vec![0.0; both.x.len()];
    let parts = [ScanPart::in_place(0, 5, 0, 40), ScanPart::in_place(1, 77, 40, 1)];
    compute.ssd(SsdScan {
        ssd: &both.ssd,
        parts: &parts,
        states: &mut states,
        input: both.input(),
        out: &mut out,
    });
    let (first, second) = (cases[0].run(&compute, 5, &[40]), second.run(&compute, 77, &[1]));
    let (n_first, n_state) = (cases[0].x.len(), shape.state_len());
    same_bits("first", &out[..n_first], &first[..n_first]);
    same_bits("second", &out[n_first..], &second[..shape.n_inner()]);
    same_bits("first state", &states[..n_state], &first[n_first..]);
    same_bits("second state", &states[n_state..], &second[shape.n_inner()..]);
}

#[test]
fn states_that_decay_to_nothing_become_zero() {
    let shape = shape(2, 16, 4, 1);
    let mut case = Case::new(shape, 4 * FLUSH_EVERY, 1.0, 94);
    case.x.fill(0.0);
    case.dt.fill(0.0);
    for kernels in crate::all_tables() {
        let got = case.run(&compute(kernels, 1), 0, &[4 * FLUSH_EVERY]);
        let state = &got[case.x.len()..];
        assert!(state.iter().all(|v| *v == 0.0 || v.is_normal()), "{}: {state:?}", kernels.name);
        assert!(state.contains(&0.0), "{}: nothing decayed", kernels.name);
    }
}
