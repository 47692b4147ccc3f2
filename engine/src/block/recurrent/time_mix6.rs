//! RWKV-6's time mixing block (arXiv 2404.05892, section 4.2). Every projection reads its own mixture of a row and the
//! row before it, and how much of each depends on the rows. Each head has a matrix as its state.
//!
//! QRWKV-6 has gated linear attention (arXiv 2312.06635) in this place. Its states are read after a row was learnt,
//! keys that decay fast are learnt in full, and several heads may share a key and a value.

use super::time_mix::{HEAD_EPS, LowRank};
use crate::block::linear::Linear;
use crate::block::{Block, BlockCx, TokenShift};
use crate::device::Rows;
use crate::ops::{Vector, Wkv6, Wkv6Decay, Wkv6Rows};
use crate::spec::{ModelError, TimeMix6Spec};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Mixtures of a row and the one before it: for w, k, v, r and g.
const MIXTURES: [&str; 5] = ["w", "k", "v", "r", "g"];

/// Weights of one time mixing block.
pub struct TimeMix6 {
    spec: TimeMix6Spec,
    shift: TokenShift,
    mix: Mix,
    receptance: Linear,
    key: Linear,
    value: Linear,
    gate: Linear,
    decay: LowRank,
    decay_bias: Vector,
    /// Vectors of RWKV-6 that linear attention lacks: the share of its own key that a row reads, and weight and bias of
    /// the norm over heads; `[n_embd]` each.
    own_and_norm: Option<[Vector; 3]>,
    output: Linear,
}

/// Share of the previous row in each mixture: a fixed part, and one computed from the rows.
struct Mix {
    first: Vector,
    /// `[5 * rank, n_embd]`.
    down: Linear,
    /// `[n_embd, rank]` for each mixture.
    up: Vec<Linear>,
    /// `[n_embd]` for each mixture.
    shares: Vec<Vector>,
}

impl Mix {
    fn load(
        loader: &mut WeightLoader<'_>,
        stem: &str,
        n_embd: usize,
        rank: usize,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}_{part}.weight");
        let n = MIXTURES.len();
        let shares = if loader.has(&name("lerp_fused")) {
            let fused = loader.values(&name("lerp_fused"), &[n_embd, 1, 1, n])?;
            fused.chunks_exact(n_embd).map(|share| share.to_vec().into()).collect()
        } else {
            // Older files have them apart.
            MIXTURES
                .iter()
                .map(|of| loader.vector(&name(&format!("lerp_{of}")), n_embd))
                .collect::<Result<_, _>>()?
        };
        Ok(Self {
            first: loader.vector(&name("lerp_x"), n_embd)?,
            down: Linear::matrix(loader, &name("w1"), n * rank, n_embd)?,
            up: Linear::experts(loader, &name("w2"), n, n_embd, rank)?,
            shares,
        })
    }

    /// The five mixtures of `x` with the rows `before`, `[n_rows, n_embd]` each.
    fn forward(&self, cx: &BlockCx<'_>, x: &Rows, before: &Rows) -> [Rows; MIXTURES.len()] {
        let mut step = cx.scratch.copy_of(before);
        cx.device.add_scaled(&mut step, x, -1.0);
        let mut lean = cx.scratch.copy_of(x);
        cx.device.lerp(&mut lean, before, &self.first);
        let mut low = self.down.forward(cx, &lean);
        cx.device.tanh(&mut low);
        let rank = self.up[0].cols();
        std::array::from_fn(|i| {
            let part = cx.device.columns_of(cx.scratch, &low, i * rank, rank);
            let mut mixture = self.up[i].forward(cx, &part);
            cx.device.add_bias(&mut mixture, &self.shares[i]);
            cx.device.mul(&mut mixture, &step);
            cx.device.add(&mut mixture, x);
            mixture
        })
    }

    fn nbytes(&self) -> usize {
        self.up.iter().chain([&self.down]).map(Linear::nbytes).sum()
    }
}

impl TimeMix6 {
    /// Loads `<stem>.time_mix_*`.
    pub fn load(
        spec: &TimeMix6Spec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let stem = format!("{stem}.time_mix");
        let name = |part: &str| format!("{stem}_{part}");
        let n_kv = spec.n_kv_head * spec.head_dim;
        let own_and_norm = if spec.linear_attention {
            None
        } else {
            let heads = [spec.head_dim, n_embd / spec.head_dim];
            Some([
                loader.values(&name("first.weight"), &heads)?,
                loader.vector(&name("ln.weight"), n_embd)?,
                loader.vector(&name("ln.bias"), n_embd)?,
            ])
        };
        Ok(Self {
            shift: TokenShift::new(n_embd),
            mix: Mix::load(loader, &stem, n_embd, spec.mix_rank)?,
            receptance: Linear::load(loader, &name("receptance"), n_embd, n_embd)?,
            key: Linear::load(loader, &name("key"), n_kv, n_embd)?,
            value: Linear::load(loader, &name("value"), n_kv, n_embd)?,
            gate: Linear::matrix(loader, &name("gate.weight"), n_embd, n_embd)?,
            decay: LowRank::load(loader, &name("decay_w"), n_embd, spec.decay_rank)?,
            decay_bias: loader.vector(&name("decay.weight"), n_embd)?,
            own_and_norm,
            output: Linear::matrix(loader, &name("output.weight"), n_embd, n_embd)?,
            spec: spec.clone(),
        })
    }
}

impl Block for TimeMix6 {
    fn nbytes(&self) -> usize {
        let own = [&self.receptance, &self.key, &self.value, &self.gate, &self.output];
        own.map(Linear::nbytes).iter().sum::<usize>() + self.mix.nbytes() + self.decay.nbytes()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let states = state.slots();
        let parts = scan_parts(cx.parts);
        let (shift_state, scan_state) = states.split();
        let before = self.shift.before(cx.device, cx.scratch, &parts, shift_state, x);
        let mixtures = self.mix.forward(cx, x, &before);
        let [of_w, of_k, of_v, of_r, of_g] = &mixtures;
        let mut w = self.decay.forward(cx, of_w, |device, x| device.tanh(x));
        cx.device.run(Wkv6Decay { w: w.view_mut(), bias: &self.decay_bias });
        let mut k = self.heads(cx, &self.key, of_k);
        let v = self.heads(cx, &self.value, of_v);
        let mut r = self.receptance.forward(cx, of_r);
        let gate = self.gate.forward(cx, of_g);
        if self.spec.linear_attention {
            // k *= 1 - w
            let mut kept = cx.scratch.copy_of(&k);
            cx.device.mul(&mut kept, &w);
            cx.device.add_scaled(&mut k, &kept, -1.0);
            cx.device.scale(&mut r, 1.0 / (self.spec.head_dim as f32).sqrt());
        }
        let (d, own) = (self.spec.head_dim, self.own_and_norm.as_ref().map(|[own, ..]| own));
        let own = own.map(Vector::view);
        let rows = Wkv6Rows { r: r.view(), w: w.view(), k: k.view(), v: v.view(), own };
        let mut y = cx.scratch.take(x.n_rows(), x.cols());
        cx.device.run(Wkv6 {
            n_heads: self.spec.n_embd / d,
            d,
            parts: &parts,
            states: scan_state.view_mut(),
            rows,
            out: y.view_mut(),
        });
        match &self.own_and_norm {
            Some([_, weight, bias]) => {
                cx.device.group_layer_norm(&mut y, weight, bias, d, HEAD_EPS);
                cx.device.silu_mul_inplace(&mut y, &gate);
            }
            None => cx.device.sigmoid_mul(&mut y, &gate),
        }
        self.output.forward(cx, &y)
    }
}

impl TimeMix6 {
    /// Keys or values, `[n_rows, n_embd]`: those of a head that several share stand there for each of them.
    fn heads(&self, cx: &BlockCx<'_>, w: &Linear, x: &Rows) -> Rows {
        let few = w.forward(cx, x);
        let (d, width) = (self.spec.head_dim, self.spec.n_embd);
        let group = width / d / self.spec.n_kv_head;
        if group == 1 {
            return few;
        }
        let mut all = cx.scratch.take(x.n_rows(), width);
        cx.device.repeat_rows(&few, d, group, &mut all);
        all
    }
}
