//! Kimi delta attention (Kimi Linear, arXiv 2510.26692). Queries, keys and values pass through short
//! convolutions. The forget gate gives each key channel its decay. Then come the delta rule and a gated norm.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::{Device, Memory, Rows, Scratch};
use crate::kernels::{DeltaShape, StateAt};
use crate::ops::{Conv, ConvRows, DeltaRows, DeltaScan, ScanPart, Vector};
use crate::spec::{KdaGates, KdaSpec, ModelError};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Weights of one KDA mixer; `d` is the width of a head, `inner = n_head * d`.
pub struct Kda {
    shape: DeltaShape,
    eps: f32,
    unit_eps: f32,
    /// To queries, keys and values, `[inner, n_embd]` each.
    qkv: [Linear; 3],
    /// Convolutions of queries, keys and values.
    convs: [Conv; 3],
    forget: Gate,
    /// Added to the forget gate, `[inner]`.
    forget_bias: Vector,
    /// Log decay of a unit of forget gate, below 0, `[inner]`.
    rates: Vector,
    /// To the rate of correction, `[n_head, n_embd]`.
    beta: Linear,
    /// Least log decay of a step, where there is one.
    decay_bound: Option<f32>,
    gate: Gate,
    /// Weight of the norm of a head's output, `[d]`.
    norm: Vector,
    output: Linear,
}

/// Matrices to a gate.
enum Gate {
    /// `[d, n_embd]`, then `[inner, d]`.
    LowRank([Linear; 2]),
    /// `[inner, n_embd]`.
    Full(Linear),
}

impl Gate {
    /// The projection of the block's input.
    fn input(&self) -> &Linear {
        match self {
            Self::LowRank([narrow, _]) => narrow,
            Self::Full(gate) => gate,
        }
    }

    /// The one behind that, where there is one.
    fn widen(&self) -> Option<&Linear> {
        match self {
            Self::LowRank([_, wide]) => Some(wide),
            Self::Full(_) => None,
        }
    }
}

impl Kda {
    /// Loads `<stem>.attn_{q,k,v}` (or `attn_qkv`), `attn_output` and `ssm_*`.
    pub fn load(
        spec: &KdaSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (d, n_head, inner) = (spec.head_dim, spec.n_head, spec.n_head * spec.head_dim);
        let name = |part: &str| format!("{stem}.{part}");
        let fused = name("attn_qkv.weight");
        let qkv = if loader.has(&fused) {
            let thirds = [0, 1, 2].map(|i| (i * inner..(i + 1) * inner).collect());
            Linear::split(loader, &fused, 3 * inner, n_embd, thirds)?
        } else {
            let mut one = |part| Linear::matrix(loader, &name(part), inner, n_embd);
            [one("attn_q.weight")?, one("attn_k.weight")?, one("attn_v.weight")?]
        };
        let mut conv = |part: &str| -> Result<Conv, ModelError> {
            // Some files end the dimensions with another 1.
            let taps = loader.values(&name(part), &[spec.conv_taps, 1, inner])?;
            Ok(Conv::new(&taps, spec.conv_taps, None, true))
        };
        let convs = [
            conv("ssm_conv1d_q.weight")?,
            conv("ssm_conv1d_k.weight")?,
            conv("ssm_conv1d_v.weight")?,
        ];
        let mut low_rank = |of: &str| -> Result<Gate, ModelError> {
            let [a, b] = ["a", "b"].map(|part| name(&format!("ssm_{of}_{part}.weight")));
            let narrow = Linear::matrix(loader, &a, d, n_embd)?;
            Ok(Gate::LowRank([narrow, Linear::matrix(loader, &b, inner, d)?]))
        };
        let [forget, gate] = match spec.gates {
            KdaGates::LowRank => [low_rank("f")?, low_rank("g")?],
            KdaGates::FullOutput => {
                let forget = low_rank("f")?;
                let gate = Linear::matrix(loader, &name("ssm_g.weight"), inner, n_embd)?;
                [forget, Gate::Full(gate)]
            }
            KdaGates::Full => {
                let mut full = |part| Linear::matrix(loader, &name(part), inner, n_embd);
                [Gate::Full(full("ssm_f_a.weight")?), Gate::Full(full("ssm_g_a.weight")?)]
            }
        };
        let sign = if spec.gates == KdaGates::Full { -1.0 } else { 1.0 };
        let rates = |per_head: Vector| {
            per_head.into_iter().flat_map(|rate| std::iter::repeat_n(sign * rate, d)).collect()
        };
        Ok(Self {
            shape: spec.shape(),
            eps: spec.eps,
            unit_eps: spec.unit_eps,
            qkv,
            convs,
            forget,
            decay_bound: spec.decay_bound,
            gate,
            forget_bias: loader.vector(&name("ssm_dt.bias"), inner)?,
            // Some files begin the dimensions with a 1.
            rates: rates(loader.vector(&name("ssm_a"), n_head)?),
            beta: Linear::matrix(loader, &name("ssm_beta.weight"), n_head, n_embd)?,
            norm: loader.vector(&name("ssm_norm.weight"), d)?,
            output: Linear::matrix(loader, &name("attn_output.weight"), n_embd, inner)?,
        })
    }
}

impl Block for Kda {
    fn nbytes(&self) -> usize {
        let wide = self.forget.widen().into_iter().chain(self.gate.widen());
        self.of_input().chain(wide).chain([&self.output]).map(Linear::nbytes).sum()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let states = state.slots();
        let parts = scan_parts(cx.parts);
        let [to_q, to_k, to_v] = &self.qkv;
        let (to_forget, to_gate) = (self.forget.input(), self.gate.input());
        let weights = [to_q, to_k, to_v, to_forget, to_gate, &self.beta];
        let [q, k, v, forget, gate, mut beta] = cx.project(x, weights);
        let raw = [q, k, v];
        let [q, k, v] = self.convolve(cx.device, cx.scratch, &parts, states.split().0, &raw);
        let [decay, gate] = self.gates(cx, forget, gate);
        cx.device.sigmoid(&mut beta);
        let rows = DeltaRows {
            q: q.columns(0),
            k: k.columns(0),
            v: v.columns(0),
            decay: decay.columns(0),
            beta: beta.columns(0),
        };
        let [mut y, ..] = raw;
        let (_, scan_states) = states.split();
        cx.device.run(DeltaScan {
            shape: &self.shape,
            parts: &parts,
            states: scan_states.view_mut(),
            x: rows,
            out: y.view_mut(),
        });
        cx.device.rms_norm_inplace(&mut y, &self.norm, self.eps);
        cx.device.sigmoid_mul(&mut y, &gate);
        self.output.forward(cx, &y)
    }
}

impl Kda {
    /// Convolved queries, keys and values; queries and keys of unit length.
    fn convolve(
        &self,
        device: &Device,
        scratch: &Scratch,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        raw: &[Rows; 3],
    ) -> [Rows; 3] {
        let mut out = raw.each_ref().map(|raw| scratch.take(raw.n_rows(), raw.cols()));
        let per_slot = self.convs.iter().map(Conv::state_len).sum();
        let mut first = 0;
        for ((conv, raw), out) in self.convs.iter().zip(raw).zip(&mut out) {
            device.run(ConvRows {
                conv,
                parts,
                states: states.view_mut(),
                at: StateAt { per_slot, first },
                x: raw.columns(0),
                out: out.view_mut(),
            });
            first += conv.state_len();
        }
        for x in &mut out[..2] {
            device.l2_norm(x, self.shape.d_k, self.unit_eps);
        }
        out
    }

    /// Decay factors and output gate `[n, inner]`, each from its narrow half or from itself.
    fn gates(&self, cx: &BlockCx<'_>, forget: Rows, gate: Rows) -> [Rows; 2] {
        let [mut decay, gate] = match (self.forget.widen(), self.gate.widen()) {
            (Some(of_forget), Some(of_gate)) => {
                cx.project_each([(of_forget, &forget), (of_gate, &gate)])
            }
            (Some(of_forget), None) => [of_forget.forward(cx, &forget), gate],
            (None, Some(of_gate)) => [forget, of_gate.forward(cx, &gate)],
            (None, None) => [forget, gate],
        };
        match self.decay_bound {
            None => cx.device.decay_factors(&mut decay, &self.forget_bias, &self.rates),
            Some(bound) => {
                let (bias, rates) = (&self.forget_bias, &self.rates);
                cx.device.bounded_decay_factors(&mut decay, bias, rates, bound);
            }
        }
        [decay, gate]
    }

    /// The projections of the block's input.
    fn of_input(&self) -> impl Iterator<Item = &Linear> {
        self.qkv.iter().chain([self.forget.input(), self.gate.input(), &self.beta])
    }
}
