//! The case of Mamba-2's recurrence.

use brigade_engine::kernels::{Columns, Ssd, SsdInput, SsdScan, SsdShape};

use crate::common::values;
use crate::{Form, LONGEST, Recurrence};

/// A layer of Granite 4 H-Tiny.
const GRANITE: SsdShape = SsdShape { n_head: 48, head_dim: 64, n_state: 128, n_group: 1 };

/// One layer and the operands of a prompt.
pub struct Mamba2 {
    shape: SsdShape,
    layer: Ssd,
    /// Decay of a unit of time, weight of the way past the state, bias of the time step: `[n_head]`.
    weights: [Vec<f32>; 3],
    /// Inputs, B and C side by side.
    xbc: Vec<f32>,
    dt: Vec<f32>,
}

/// Sizes of Granite 4 H-Tiny.
pub fn granite() -> Mamba2 {
    let shape = GRANITE;
    let below_0 = |seed, by: f32| values(shape.n_head, seed).iter().map(|v| v - by).collect();
    let weights: [Vec<f32>; 3] = [below_0(1, 1.5), values(shape.n_head, 2), below_0(3, 2.0)];
    let [a, d, bias] = weights.clone();
    let width = shape.n_inner() + 2 * shape.n_bc();
    Mamba2 {
        shape,
        layer: Ssd::new(shape, a.into(), d.into(), bias.into()),
        weights,
        xbc: values(LONGEST * width, 4),
        dt: values(LONGEST * shape.n_head, 5),
    }
}

impl Mamba2 {
    fn width(&self) -> usize {
        self.shape.n_inner() + 2 * self.shape.n_bc()
    }

    fn input(&self) -> SsdInput<'_> {
        let columns =
            |first_col| Columns { values: &self.xbc[..], stride: self.width(), first_col };
        SsdInput {
            x: columns(0),
            b: columns(self.shape.n_inner()),
            c: columns(self.shape.n_inner() + self.shape.n_bc()),
            dt: Columns::whole(&self.dt, self.shape.n_head),
        }
    }
}

impl Recurrence for Mamba2 {
    fn name(&self) -> &'static str {
        "mamba2"
    }

    fn state_len(&self) -> usize {
        self.shape.state_len()
    }

    fn row_len(&self) -> usize {
        self.shape.n_inner()
    }

    /// Operations for decay, input and output.
    fn ops(&self) -> usize {
        5
    }

    fn forms(&self) -> Vec<Form<'_>> {
        let (layer, input) = (&self.layer, self.input());
        vec![
            (
                "blocked".into(),
                Box::new(move |c, p, s, o| {
                    c.ssd(SsdScan { ssd: layer, parts: p, states: s, input, out: o })
                }),
            ),
            (
                "plain".into(),
                Box::new(move |c, p, s, o| {
                    c.ssd_plain(SsdScan { ssd: layer, parts: p, states: s, input, out: o })
                }),
            ),
        ]
    }

    fn exact(&self) -> Vec<f64> {
        let SsdShape { n_head, head_dim, n_state, .. } = self.shape;
        let [a, d, bias] = &self.weights;
        let mut out = vec![0.0; LONGEST * n_head * head_dim];
        for head in 0..n_head {
            let mut state = vec![0.0f64; n_state * head_dim];
            for t in 0..LONGEST {
                let row = &self.xbc[t * self.width()..][..self.width()];
                let (x, bc) = row.split_at(n_head * head_dim);
                let x = &x[head * head_dim..][..head_dim];
                let (b, c) = bc.split_at(n_state);
                let step = f64::from(self.dt[t * n_head + head]) + f64::from(bias[head]);
                let delta = step.exp().ln_1p();
                let decay = (delta * f64::from(a[head])).exp();
                let out = &mut out[(t * n_head + head) * head_dim..][..head_dim];
                for (y, x) in out.iter_mut().zip(x) {
                    *y = f64::from(d[head]) * f64::from(*x);
                }
                for (i, state) in state.chunks_exact_mut(head_dim).enumerate() {
                    let (b, c) = (f64::from(b[i]) * delta, f64::from(c[i]));
                    for ((value, x), y) in state.iter_mut().zip(x).zip(&mut *out) {
                        *value = *value * decay + b * f64::from(*x);
                        *y += c * *value;
                    }
                }
            }
        }
        out
    }
}
