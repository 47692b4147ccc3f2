//! RWKV-7's time mixing block (arXiv 2503.14456, section 4.1). Every projection reads its own mixture of a
//! row and the row before it. Values lean towards those of the first layer. Each head has a matrix as its
//! state.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx, TokenShift};
use crate::device::{Device, Rows};
use crate::ops::{Vector, Wkv7, Wkv7Bonus, Wkv7Prepare, Wkv7Rows, Wkv7Weights};
use crate::spec::{ModelError, TimeMixSpec};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Epsilon of the norm over each head's output.
pub(super) const HEAD_EPS: f32 = 64e-5;

/// Weights of one time mixing block.
pub struct TimeMix {
    spec: TimeMixSpec,
    shift: TokenShift,
    /// Share of the previous row in the input of each of r, w, k, v, a and g (where there are gates), `[n_embd]` each.
    lerp: Vec<Vector>,
    receptance: Linear,
    key: Linear,
    value: Linear,
    decay: LowRank,
    rate: LowRank,
    /// Towards the first layer's values, with its bias; the first layer has none.
    value_mix: Option<(LowRank, Vector)>,
    /// Matrices of the gate, where the block has one.
    gate: Option<LowRank>,
    weights: Wkv7Weights,
    r_k: Vector,
    /// Weight and bias of the norm over heads, `[n_embd]` each, where there is one.
    norm: Option<[Vector; 2]>,
    output: Linear,
}

/// A product by way of a narrow width.
pub(super) struct LowRank {
    down: Linear,
    up: Linear,
}

impl LowRank {
    /// Loads `<stem>1` and `<stem>2`.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        stem: &str,
        n_embd: usize,
        rank: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            down: Linear::matrix(loader, &format!("{stem}1.weight"), rank, n_embd)?,
            up: Linear::matrix(loader, &format!("{stem}2.weight"), n_embd, rank)?,
        })
    }

    /// `up(between(down x))`, `[n_rows, n_embd]`.
    pub(super) fn forward(
        &self,
        cx: &BlockCx<'_>,
        x: &Rows,
        between: impl FnOnce(&Device, &mut Rows),
    ) -> Rows {
        let mut low = self.down.forward(cx, x);
        between(cx.device, &mut low);
        self.up.forward(cx, &low)
    }

    pub(super) fn nbytes(&self) -> usize {
        self.down.nbytes() + self.up.nbytes()
    }
}

impl TimeMix {
    /// Loads `<stem>.time_mix_*`; `layer` 0 is the one whose values the others lean to.
    pub fn load(
        spec: &TimeMixSpec,
        stem: &str,
        layer: usize,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let stem = format!("{stem}.time_mix");
        let name = |part: &str| format!("{stem}_{part}.weight");
        let value_mix = match layer {
            0 => {
                // Files have them, as wide as the learning rate's; nothing computes with them.
                loader.reference(&name("v0"), &[n_embd])?;
                loader.reference(&name("v1"), &[n_embd, spec.rate_rank])?;
                loader.reference(&name("v2"), &[spec.rate_rank, n_embd])?;
                None
            }
            _ => Some((
                LowRank::load(loader, &format!("{stem}_v"), n_embd, spec.value_rank)?,
                loader.vector(&name("v0"), n_embd)?,
            )),
        };
        let n_lerp = 5 + usize::from(spec.gate_rank.is_some());
        let lerp = loader.values(&name("lerp_fused"), &[n_embd, 1, 1, n_lerp])?;
        let mut square = |part: &str| Linear::matrix(loader, &name(part), n_embd, n_embd);
        let [receptance, key] = [square("receptance")?, square("key")?];
        let [value, output] = [square("value")?, square("output")?];
        let mut vector = |part: &str| loader.vector(&name(part), n_embd);
        let weights = Wkv7Weights {
            w0: vector("w0")?,
            a0: vector("a0")?,
            k_k: vector("k_k")?,
            k_a: vector("k_a")?,
        };
        let r_k = vector("r_k")?;
        let norm = if spec.norm {
            Some([vector("ln")?, loader.vector(&format!("{stem}_ln.bias"), n_embd)?])
        } else {
            None
        };
        let mut low_rank =
            |part: &str, rank| LowRank::load(loader, &format!("{stem}_{part}"), n_embd, rank);
        Ok(Self {
            shift: TokenShift::new(n_embd),
            lerp: lerp.chunks_exact(n_embd).map(|share| share.to_vec().into()).collect(),
            receptance,
            key,
            value,
            decay: low_rank("w", spec.decay_rank)?,
            rate: low_rank("a", spec.rate_rank)?,
            value_mix,
            gate: spec.gate_rank.map(|rank| low_rank("g", rank)).transpose()?,
            weights,
            r_k,
            norm,
            output,
            spec: spec.clone(),
        })
    }
}

impl Block for TimeMix {
    fn nbytes(&self) -> usize {
        let square = [&self.receptance, &self.key, &self.value, &self.output];
        let low = [&self.decay, &self.rate].into_iter().chain(&self.gate).map(LowRank::nbytes);
        square.iter().map(|w| w.nbytes()).sum::<usize>()
            + low.sum::<usize>()
            + self.value_mix.as_ref().map_or(0, |(mix, _)| mix.nbytes())
    }

    /// The first layer leaves its values in `cx.beside`, the others find them there.
    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let states = state.slots();
        let parts = scan_parts(cx.parts);
        let (shift_state, scan_state) = states.split();
        let before = self.shift.before(cx.device, cx.scratch, &parts, shift_state, x);
        let mixed = |cx: &BlockCx<'_>, i: usize| {
            let mut lean = cx.scratch.copy_of(x);
            cx.device.lerp(&mut lean, &before, &self.lerp[i]);
            lean
        };
        let r = self.receptance.forward(cx, &mixed(cx, 0));
        let mut w = self.decay.forward(cx, &mixed(cx, 1), |device, x| device.tanh(x));
        let mut k = self.key.forward(cx, &mixed(cx, 2));
        let lean = mixed(cx, 3);
        let v = self.values(cx, &lean);
        drop(lean);
        let mut a = self.rate.forward(cx, &mixed(cx, 4), |_, _| ());
        let gate = self.gate.as_ref();
        let gate = gate.map(|gate| gate.forward(cx, &mixed(cx, 5), |device, x| device.sigmoid(x)));
        let mut kappa = cx.scratch.take(x.n_rows(), x.cols());
        let d = self.spec.head_dim;
        cx.device.run(Wkv7Prepare {
            weights: &self.weights,
            d,
            w: w.view_mut(),
            k: k.view_mut(),
            a: a.view_mut(),
            kappa: kappa.view_mut(),
        });
        let rows = Wkv7Rows {
            r: r.view(),
            w: w.view(),
            k: k.view(),
            v: v.view(),
            kappa: kappa.view(),
            kappa_a: a.view(),
        };
        let mut y = cx.scratch.take(x.n_rows(), x.cols());
        let n_heads = self.r_k.len() / d;
        let states = scan_state.view_mut();
        cx.device.run(Wkv7 { n_heads, d, parts: &parts, states, rows, out: y.view_mut() });
        if let Some([weight, bias]) = &self.norm {
            cx.device.group_layer_norm(&mut y, weight, bias, d, HEAD_EPS);
        }
        cx.device.run(Wkv7Bonus { out: y.view_mut(), d, rows, r_k: &self.r_k });
        if let Some(gate) = gate {
            cx.device.mul(&mut y, &gate);
        }
        self.output.forward(cx, &y)
    }
}

impl TimeMix {
    /// The rows' values: projected, and mixed with those of the first layer.
    fn values(&self, cx: &mut BlockCx<'_>, x: &Rows) -> Rows {
        let mut v = self.value.forward(cx, x);
        let Some((mix, bias)) = &self.value_mix else {
            cx.beside.clear();
            cx.beside.push(cx.scratch.copy_of(&v));
            return v;
        };
        let mut share = mix.forward(cx, x, |_, _| ());
        cx.device.add_bias(&mut share, bias);
        cx.device.sigmoid(&mut share);
        // v += (first - v) * share
        let mut step = cx.scratch.copy_of(&cx.beside[0]);
        cx.device.add_scaled(&mut step, &v, -1.0);
        cx.device.mul(&mut step, &share);
        cx.device.add(&mut v, &step);
        v
    }
}
