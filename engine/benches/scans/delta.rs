//! Cases of the delta rule: with a decay for each key channel (Kimi delta attention), and with one for each
//! head (the gated delta net).

use brigade_engine::kernels::{Columns, Decay, DeltaRows, DeltaScan, DeltaShape, KeyHeads};

use crate::common::values;
use crate::{Form, LONGEST, Recurrence};

/// A layer of Kimi Linear 48B.
const KIMI: DeltaShape = DeltaShape {
    n_head: 32,
    n_key_head: 32,
    key_heads: KeyHeads::Grouped,
    d_k: 128,
    d_v: 128,
    decay: Decay::PerChannel,
};
/// A layer of Qwen3-Next 80B.
const QWEN: DeltaShape = DeltaShape { n_key_head: 16, decay: Decay::PerHead, ..KIMI };

/// One layer's sizes and the operands of a prompt: unit keys and queries, decays of a few per cent.
pub struct Delta {
    name: &'static str,
    shape: DeltaShape,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
}

/// KDA in Kimi Linear 48B.
pub fn kimi() -> Delta {
    Delta::new("kda", KIMI)
}

/// The gated delta net in Qwen3-Next 80B.
pub fn qwen() -> Delta {
    Delta::new("gdn", QWEN)
}

impl Delta {
    fn new(name: &'static str, shape: DeltaShape) -> Self {
        let unit = |seed| {
            let mut x = values(LONGEST * shape.n_key_head * shape.d_k, seed);
            for head in x.chunks_exact_mut(shape.d_k) {
                let norm = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                head.iter_mut().for_each(|x| *x /= norm);
            }
            x
        };
        let decay = values(LONGEST * shape.decay_len(), 4);
        Self {
            name,
            shape,
            q: unit(1),
            k: unit(2),
            v: values(LONGEST * shape.n_head * shape.d_v, 3),
            decay: decay.into_iter().map(|x| 1.0 - 0.05 * x.abs()).collect(),
            beta: values(LONGEST * shape.n_head, 5).into_iter().map(f32::abs).collect(),
        }
    }

    fn rows(&self) -> DeltaRows<'_> {
        let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = self.shape;
        DeltaRows {
            q: Columns::whole(&self.q, n_key_head * d_k),
            k: Columns::whole(&self.k, n_key_head * d_k),
            v: Columns::whole(&self.v, n_head * d_v),
            decay: Columns::whole(&self.decay, self.shape.decay_len()),
            beta: Columns::whole(&self.beta, n_head),
        }
    }
}

impl Recurrence for Delta {
    fn name(&self) -> &'static str {
        self.name
    }

    fn state_len(&self) -> usize {
        self.shape.state_len()
    }

    fn row_len(&self) -> usize {
        self.shape.n_head * self.shape.d_v
    }

    /// Decay, prediction, update, output.
    fn ops(&self) -> usize {
        7
    }

    fn forms(&self) -> Vec<Form<'_>> {
        let (shape, x) = (&self.shape, self.rows());
        vec![
            (
                "blocked".into(),
                Box::new(move |c, p, s, o| {
                    c.delta_scan(DeltaScan { shape, parts: p, states: s, x, out: o })
                }),
            ),
            (
                "plain".into(),
                Box::new(move |c, p, s, o| {
                    c.delta_plain(DeltaScan { shape, parts: p, states: s, x, out: o })
                }),
            ),
        ]
    }

    fn exact(&self) -> Vec<f64> {
        let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = self.shape;
        let mut out = vec![0.0; LONGEST * n_head * d_v];
        for head in 0..n_head {
            let mut state = vec![0.0f64; d_k * d_v];
            for t in 0..LONGEST {
                let key_head = head / (n_head / n_key_head);
                let at = (t * n_key_head + key_head) * d_k;
                let (q, k) = (&self.q[at..][..d_k], &self.k[at..][..d_k]);
                let row = t * n_head + head;
                let decay = |i| match self.shape.decay {
                    Decay::PerChannel => f64::from(self.decay[row * d_k + i]),
                    Decay::PerHead => f64::from(self.decay[row]),
                };
                let mut errors: Vec<f64> =
                    self.v[row * d_v..][..d_v].iter().map(|v| f64::from(*v)).collect();
                for (i, state) in state.chunks_exact_mut(d_v).enumerate() {
                    let (decay, k) = (decay(i), f64::from(k[i]));
                    for (value, error) in state.iter_mut().zip(&mut errors) {
                        *value *= decay;
                        *error -= *value * k;
                    }
                }
                let beta = f64::from(self.beta[row]);
                let out = &mut out[row * d_v..][..d_v];
                for (i, state) in state.chunks_exact_mut(d_v).enumerate() {
                    let (by, q) = (beta * f64::from(k[i]), f64::from(q[i]) / (d_k as f64).sqrt());
                    for ((value, error), y) in state.iter_mut().zip(&errors).zip(&mut *out) {
                        *value += by * error;
                        *y += *value * q;
                    }
                }
            }
        }
        out
    }
}
