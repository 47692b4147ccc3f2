//! Grouped-query softmax attention over a paged KV cache (GQA, arXiv 2305.13245): projections,
//! optional per-head norms, rotation, causal attention, optional gate, output projection.

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
    /// To the gate of each head's output, `[n_head * head_dim_v, n_embd]`.
    gate: Option<Box<PackedMatrix>>,
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
        let (q, gate) = if spec.gated {
            let (q, gate) = load_gated(spec, &name("q.weight"), n_embd, loader)?;
            (Projection { weight: q, bias: None }, Some(Box::new(gate)))
        } else {
            (Projection::load(loader, &name("q"), n_q, n_embd)?, None)
        };
        let mut output = Projection::load(loader, &name("output"), n_embd, n_o)?;
        output.bias = output.bias.filter(|_| spec.output_bias);
        Ok(Self {
            q,
            gate,
            k: Projection::load(loader, &name("k"), n_k, n_embd)?,
            v: Projection::load(loader, &name("v"), n_v, n_embd)?,
            output,
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
        let mut gate = self.gate.as_ref().map(|w| cx.scratch.take(n * w.rows()));
        let mut jobs = vec![
            MatmulJob { w: &self.q.weight, x, rows: 0..n, out: &mut q },
            MatmulJob { w: &self.k.weight, x, rows: 0..n, out: &mut k },
            MatmulJob { w: &self.v.weight, x, rows: 0..n, out: &mut v },
        ];
        if let (Some(w), Some(gate)) = (&self.gate, &mut gate) {
            jobs.push(MatmulJob { w, x, rows: 0..n, out: gate });
        }
        cx.compute.matmul(&mut jobs);
        drop(jobs);
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
        if let Some(gate) = gate {
            cx.compute.sigmoid_mul(&mut heads, &gate);
            cx.scratch.give_all([gate]);
        }
        let output = &self.output.weight;
        let x = ActRows::new(cx.compute, &heads, output.cols(), &[output]);
        cx.compute.matmul(&mut [MatmulJob { w: output, x: &x, rows: 0..n, out }]);
        cx.add_bias(out, self.output.bias.as_deref());
        drop(x);
        cx.scratch.give_all([q, k, v, heads]);
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

/// Queries and gates of a projection with `[query | gate]` for each head: two matrices.
fn load_gated(
    spec: &AttentionSpec,
    name: &str,
    n_embd: usize,
    loader: &mut WeightLoader<'_>,
) -> Result<(PackedMatrix, PackedMatrix), ModelError> {
    let (d_q, d_gate) = (spec.head_dim_k, spec.head_dim_v);
    let of_heads = |start: usize, width: usize| {
        let head = move |h: usize| (0..width).map(move |i| h * (d_q + d_gate) + start + i);
        (0..spec.n_head).flat_map(head).collect()
    };
    let rows = [of_heads(0, d_q), of_heads(d_q, d_gate)];
    let [q, gate] = loader.split_matrix(name, spec.n_head * (d_q + d_gate), n_embd, rows)?;
    Ok((q, gate))
}
