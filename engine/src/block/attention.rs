//! Grouped-query softmax attention over a paged KV cache (GQA, arXiv 2305.13245): projections,
//! optional per-head norms, rotation, causal attention, output projection.

use super::BlockCx;
use crate::arch::AttentionSpec;
use crate::error::ModelError;
use crate::kernels::{ActRows, MatmulJob, PackedMatrix};
use crate::state::KvCache;
use crate::weights::WeightLoader;

/// Weights of one attention block.
pub struct Attention {
    spec: AttentionSpec,
    q: Projection,
    k: Projection,
    v: Projection,
    output: Projection,
    /// Weights of the per-head norms of q and k, each `[head_dim_k]`.
    qk_norm: Option<(Vec<f32>, Vec<f32>, f32)>,
}

/// A matrix with its optional bias.
struct Projection {
    weight: PackedMatrix,
    bias: Option<Vec<f32>>,
}

impl Projection {
    fn load(
        loader: &mut WeightLoader<'_>,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            weight: loader.matrix(&format!("{stem}.weight"), rows, cols)?,
            bias: loader.opt_vector(&format!("{stem}.bias"), rows)?,
        })
    }
}

impl Attention {
    /// Loads `<stem>.attn_{q,k,v,output}` and, where the spec has them, `attn_{q,k}_norm`.
    pub fn load(
        spec: &AttentionSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (n_q, n_k) = (spec.n_head * spec.head_dim_k, spec.n_kv_head * spec.head_dim_k);
        let (n_v, n_o) = (spec.n_kv_head * spec.head_dim_v, spec.n_head * spec.head_dim_v);
        let name = |part: &str| format!("{stem}.attn_{part}");
        let qk_norm = match spec.qk_norm_eps {
            None => None,
            Some(eps) => Some((
                loader.vector(&name("q_norm.weight"), spec.head_dim_k)?,
                loader.vector(&name("k_norm.weight"), spec.head_dim_k)?,
                eps,
            )),
        };
        Ok(Self {
            q: Projection::load(loader, &name("q"), n_q, n_embd)?,
            k: Projection::load(loader, &name("k"), n_k, n_embd)?,
            v: Projection::load(loader, &name("v"), n_v, n_embd)?,
            output: Projection::load(loader, &name("output"), n_embd, n_o)?,
            qk_norm,
            spec: spec.clone(),
        })
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
        cx.compute.matmul(&mut [
            MatmulJob { w: &self.q.weight, x, rows: 0..n, out: &mut q },
            MatmulJob { w: &self.k.weight, x, rows: 0..n, out: &mut k },
            MatmulJob { w: &self.v.weight, x, rows: 0..n, out: &mut v },
        ]);
        cx.add_bias(&mut q, self.q.bias.as_deref());
        cx.add_bias(&mut k, self.k.bias.as_deref());
        cx.add_bias(&mut v, self.v.bias.as_deref());
        if let Some((q_norm, k_norm, eps)) = &self.qk_norm {
            cx.compute.rms_norm_inplace(&mut q, q_norm, *eps);
            cx.compute.rms_norm_inplace(&mut k, k_norm, *eps);
        }
        if let Some(rope) = cx.rope.filter(|_| spec.rope) {
            cx.compute.rope(&mut q, spec.head_dim_k, rope);
            cx.compute.rope(&mut k, spec.head_dim_k, rope);
        }
        let mut heads = cx.scratch.take(n * spec.n_head * spec.head_dim_v);
        kv.append(cx.compute, cx.parts, cx.sequences, &k, &v);
        kv.attend(cx.compute, cx.parts, cx.sequences, spec.scale, &q, &mut heads);
        let output = &self.output.weight;
        let x = ActRows::new(cx.compute, &heads, output.cols(), &[output]);
        cx.compute.matmul(&mut [MatmulJob { w: output, x: &x, rows: 0..n, out }]);
        cx.add_bias(out, self.output.bias.as_deref());
        drop(x);
        cx.scratch.give_all([q, k, v, heads]);
    }

    /// The matrices that multiply the block's input.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        vec![&self.q.weight, &self.k.weight, &self.v.weight]
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        [&self.q, &self.k, &self.v, &self.output].iter().map(|p| p.weight.nbytes()).sum()
    }
}
