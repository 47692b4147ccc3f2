//! Grouped-query softmax attention over a paged KV cache (GQA, arXiv 2305.13245).
//!
//! The steps are projections, norms where there are some, rotation, causal attention (which may have a
//! window), a gate where there is one, and the output projection.

use super::BlockCx;
use super::linear::Linear;
use super::qkv::{QkNorms, load_gated, load_qkv};
use crate::arch::{AttentionSpec, Rotation};
use crate::error::ModelError;
use crate::kernels::{ActRows, AttendVariant, MatmulJob, PackedMatrix};
use crate::state::KvCache;
use crate::weights::WeightLoader;

/// Weights of one attention block.
pub struct Attention {
    spec: AttentionSpec,
    q: Linear,
    /// To the gate of each head's output, `[n_head * head_dim_v, n_embd]`.
    gate: Option<Box<PackedMatrix>>,
    k: Linear,
    v: Linear,
    output: Linear,
    qk_norms: Option<QkNorms>,
    /// A score without a value for each query head.
    sinks: Option<Vec<f32>>,
    /// What scores lose with the distance, for each query head.
    slopes: Option<Vec<f32>>,
}

impl Attention {
    /// Loads `<stem>.attn_{q,k,v,output}` (or `attn_qkv`) and, where the spec has them, `attn_{q,k}_norm` and
    /// `attn_sinks`.
    pub fn load(
        spec: &AttentionSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (n_q, n_k) = (spec.n_head * spec.head_dim_k, spec.n_kv_head * spec.head_dim_k);
        let (n_v, n_o) = (spec.n_kv_head * spec.head_dim_v, spec.n_head * spec.head_dim_v);
        let name = |part: &str| format!("{stem}.attn_{part}");
        let ([q, k, v], gate) = if spec.gated {
            let (q, gate) = load_gated(spec, &name("q.weight"), n_embd, loader)?;
            let k = Linear::load(loader, &name("k"), n_k, n_embd)?;
            let v = Linear::load(loader, &name("v"), n_v, n_embd)?;
            ([Linear { weight: q, bias: None }, k, v], Some(Box::new(gate)))
        } else {
            (load_qkv(loader, stem, [n_q, n_k, n_v], n_embd)?, None)
        };
        let mut output = Linear::load(loader, &name("output"), n_embd, n_o)?;
        output.bias = output.bias.filter(|_| spec.output_bias);
        let sinks = match spec.sinks {
            true => Some(loader.vector(&name("sinks.weight"), spec.n_head)?),
            false => None,
        };
        let slopes = spec.alibi.map(|alibi| alibi.slopes(spec.n_head));
        let qk_norms = QkNorms::load(spec, stem, loader)?;
        Ok(Self { q, gate, k, v, output, qk_norms, sinks, slopes, spec: spec.clone() })
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`; appends the rows' keys and values.
    pub fn forward(
        &self,
        cx: &mut BlockCx<'_>,
        kv: &mut KvCache,
        x: &ActRows<'_>,
        out: &mut [f32],
    ) {
        let n = x.n_rows();
        let spec = &self.spec;
        let mut q = cx.scratch.take(n * self.q.weight.rows());
        let mut k = cx.scratch.take(n * self.k.weight.rows());
        let mut v = cx.scratch.take(n * self.v.weight.rows());
        let mut gate = self.gate.as_ref().map(|w| cx.scratch.take(n * w.rows()));
        let mut jobs = vec![self.q.job(x, &mut q), self.k.job(x, &mut k), self.v.job(x, &mut v)];
        if let (Some(w), Some(gate)) = (&self.gate, &mut gate) {
            jobs.push(MatmulJob { w, x, rows: 0..n, out: gate });
        }
        cx.compute.matmul(&mut jobs);
        drop(jobs);
        self.q.add_bias(cx, &mut q);
        self.k.add_bias(cx, &mut k);
        self.v.add_bias(cx, &mut v);
        if let Some(bound) = spec.clamp {
            [&mut q, &mut k, &mut v].into_iter().for_each(|x| cx.compute.clamp(x, bound));
        }
        self.norm_and_rotate(cx, &mut q, &mut k);
        let mut heads = cx.scratch.take(n * spec.n_head * spec.head_dim_v);
        kv.append(cx.compute, cx.parts, cx.sequences, &k, &v);
        let variant = AttendVariant {
            window: spec.window,
            softcap: spec.softcap,
            sinks: self.sinks.as_deref(),
            slopes: self.slopes.as_deref(),
        };
        kv.attend(cx.compute, cx.parts, cx.sequences, (spec.scale, variant), &q, &mut heads);
        if let Some(gate) = gate {
            cx.compute.sigmoid_mul(&mut heads, &gate);
            cx.scratch.give_all([gate]);
        }
        self.output.forward(cx, &heads, out);
        cx.scratch.give_all([q, k, v, heads]);
    }

    /// What happens to queries and keys between their projections and the cache.
    fn norm_and_rotate(&self, cx: &BlockCx<'_>, q: &mut [f32], k: &mut [f32]) {
        let spec = &self.spec;
        let after_rotation = spec.qk_norm.is_some_and(|norm| norm.after_rotation);
        let norms = self.qk_norms.as_ref();
        if let Some(norms) = norms.filter(|_| !after_rotation) {
            norms.apply(cx, spec, q, k);
        }
        let rope = match spec.rotation {
            Rotation::None => None,
            Rotation::Model => cx.rope,
            Rotation::Local => cx.local_rope,
        };
        if let Some(rope) = rope {
            cx.compute.rope(q, spec.head_dim_k, rope);
            cx.compute.rope(k, spec.head_dim_k, rope);
        }
        if let Some(norms) = norms.filter(|_| after_rotation) {
            norms.apply(cx, spec, q, k);
        }
        if let Some(temperature) = spec.temperature {
            let factors: Vec<f32> = cx.positions().map(|pos| temperature.factor(pos)).collect();
            cx.compute.scale_rows(q, spec.n_head * spec.head_dim_k, &factors);
        }
    }

    /// The matrices that multiply the block's input.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        let mut inputs = vec![&self.q.weight, &self.k.weight, &self.v.weight];
        inputs.extend(self.gate.as_deref());
        inputs
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        let output = &self.output.weight;
        self.inputs().into_iter().chain([output]).map(PackedMatrix::nbytes).sum()
    }
}
