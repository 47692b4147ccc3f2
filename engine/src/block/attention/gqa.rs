//! Grouped-query softmax attention over a paged KV cache (GQA, arXiv 2305.13245).
//!
//! The steps are projections, norms where there are some, rotation, causal attention, a gate and a norm where there
//! are some, and the output projection. The attention may have a window, or an index that chooses blocks of
//! positions.

use super::block_index::{BlockIndex, IndexRows};
use super::qkv::{QkNorms, load_gated, load_qkv};
use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::{Device, Lists, Rows};
use crate::ops::{ChosenBlocks, DistanceBiases, Vector};
use crate::spec::{
    AttentionSpec, Beside, Buckets, GateActivation, GateSource, HeadGate, KvFrom, ModelError,
};
use crate::state::{AttendHow, AttendVariant, BlockState, KvCache, KvRows};
use crate::weights::WeightLoader;

/// Weights of one attention block.
pub struct Attention {
    spec: AttentionSpec,
    q: Linear,
    /// To the gates of the heads' outputs: a row for each head, or for each value of each head.
    gate: Option<Box<Linear>>,
    /// `None` where keys and values are borrowed.
    k: Option<Linear>,
    /// `None` there too, and where values are what the keys' projection gives.
    v: Option<Linear>,
    /// Weights of 1 and epsilon of a norm of each value.
    value_norm: Option<(Vector, f32)>,
    /// Weight and epsilon of a norm of the heads' outputs.
    sub_norm: Option<(Vector, f32)>,
    output: Linear,
    qk_norms: Option<QkNorms>,
    /// A score without a value for each query head.
    sinks: Option<Vector>,
    /// Slopes by which scores fall with the distance, one for each query head.
    slopes: Option<Vector>,
    /// Biases of scores by distance, `[n_head, 2 * reach + 1]`.
    biases: Option<Vector>,
    /// Chooses the blocks of positions that heads attend to.
    index: Option<Box<BlockIndex>>,
}

impl Attention {
    /// Loads `<stem>.attn_{q,k,v,output}` (or `attn_qkv`) and, where the spec has them, `attn_{q,k}_norm`,
    /// `attn_gate`, `attn_sub_norm`, `attn_sinks` and `indexer`.
    pub fn load(
        spec: &AttentionSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let n_o = spec.n_head * spec.head_dim_v;
        let name = |part: &str| format!("{stem}.attn_{part}");
        let Projections { q, k, v, gate } = Projections::load(spec, stem, n_embd, loader)?;
        let sub_norm = match spec.head_output.sub_norm {
            Some(eps) => Some((loader.vector(&name("sub_norm.weight"), n_o)?, eps)),
            None => None,
        };
        let back = if loader.has(&name("o.weight")) { "o" } else { "output" };
        let mut output = Linear::load(loader, &name(back), n_embd, n_o)?;
        output.bias = output.bias.filter(|_| spec.output_bias);
        let sinks = if spec.scores.sinks {
            Some(loader.vector(&name("sinks.weight"), spec.n_head)?)
        } else {
            None
        };
        let slopes = spec.scores.alibi.map(|alibi| alibi.slopes(spec.n_head));
        let biases = match &spec.scores.buckets {
            Some(buckets) => Some(load_biases(buckets, spec.n_head, loader)?),
            None => None,
        };
        let index = match spec.mask.index {
            Some(index) => {
                let index = BlockIndex::load(index, stem, spec.n_kv_head, n_embd, loader)?;
                Some(Box::new(index))
            }
            None => None,
        };
        let qk_norms = QkNorms::load(spec, stem, loader)?;
        let value_norm = spec.kv.value_norm.map(|eps| (vec![1.0; spec.head_dim_v].into(), eps));
        Ok(Self {
            q,
            gate,
            k,
            v,
            value_norm,
            sub_norm,
            output,
            qk_norms,
            sinks,
            slopes: slopes.map(Vector::from),
            biases: biases.map(Vector::from),
            index,
            spec: spec.clone(),
        })
    }
}

impl Block for Attention {
    fn nbytes(&self) -> usize {
        let own = [&self.q, &self.output].into_iter().chain(&self.k).chain(&self.v);
        let index = self.index.as_ref().map_or(0, |index| index.nbytes());
        own.chain(self.gate.as_deref()).map(Linear::nbytes).sum::<usize>() + index
    }

    /// Appends the rows' keys and values.
    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let kv = state.kv();
        let spec = &self.spec;
        let index = self.index.as_deref();
        let mut rows = self.project(cx, x, true);
        let of_index = self.remember_rows(cx, kv, &mut rows);
        let mut heads = cx.scratch.take(x.n_rows(), spec.n_head * spec.head_dim_v);
        let rope = cx.rope_of(spec.rotation);
        let chosen =
            index.zip(of_index.as_ref()).and_then(|(index, rows)| index.choose(cx, kv, rope, rows));
        let how = self.how(chosen.as_ref());
        kv.attend(cx.ubatch(), how, &rows.q, &mut heads);
        if let (Some(by), Some(mut gate)) = (spec.head_output.gate, rows.gate) {
            self.apply_gate(cx.device, by, &mut gate, &mut heads);
        }
        if let Some((weight, eps)) = &self.sub_norm {
            cx.device.rms_norm_inplace(&mut heads, weight, *eps);
        }
        self.output.forward(cx, &heads)
    }

    fn remember(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) {
        let mut rows = self.project(cx, x, false);
        self.remember_rows(cx, state.kv(), &mut rows);
    }
}

/// The projections of rows.
struct Projected {
    /// Empty where the rows' attention is not read; so is `gate`.
    q: Rows,
    /// Empty where keys are borrowed, as `v` is.
    k: Rows,
    v: Rows,
    gate: Option<Rows>,
    index: Option<IndexRows>,
}

impl Attention {
    /// The projections of rows; those to queries and gates where rows attend.
    fn project(&self, cx: &BlockCx<'_>, x: &Rows, attends: bool) -> Projected {
        let index = self.index.as_deref();
        let weights = [
            Some(&self.q).filter(|_| attends),
            self.k.as_ref(),
            self.v.as_ref(),
            self.gate.as_deref().filter(|_| attends),
            index.map(|index| &index.query),
            index.map(|index| &index.key),
        ];
        let [q, k, v, gate, index_q, index_k] = cx.project_some(x, weights);
        let [q, k] = [q, k].map(Option::unwrap_or_default);
        let v = v.unwrap_or_else(|| cx.scratch.copy_of(&k));
        let index = index_q.zip(index_k).map(|(query, key)| IndexRows { query, key });
        Projected { q, k, v, gate, index }
    }

    /// Finishes rows that were projected, and keeps their keys and values. Gives what an index chooses by.
    fn remember_rows(
        &self,
        cx: &mut BlockCx<'_>,
        kv: &mut KvCache,
        rows: &mut Projected,
    ) -> Option<IndexRows> {
        let Projected { q, k, v, index: of_index, .. } = rows;
        if let Some(bound) = self.spec.kv.clamp {
            let all = [&mut *q, &mut *k, &mut *v].into_iter();
            all.filter(|x| !x.is_empty()).for_each(|x| cx.device.clamp(x, bound));
        }
        if let Some((weights, eps)) = self.value_norm.as_ref().filter(|_| !v.is_empty()) {
            cx.device.rms_norm_inplace(v, weights, *eps);
        }
        self.norm_and_rotate(cx, q, k);
        if let (Some(index), Some(rows)) = (&self.index, &mut *of_index) {
            index.finish(cx.device, cx.rope_of(self.spec.rotation), rows);
        }
        self.keep(cx, kv, k, v, of_index.as_ref().map(|rows| &rows.key));
        of_index.take()
    }

    /// Pages and softmax of the rows' attention; `lists` are the blocks that the index chose.
    fn how<'a>(&'a self, lists: Option<&'a Lists>) -> AttendHow<'a> {
        let spec = &self.spec;
        let variant = AttendVariant {
            window: spec.mask.window,
            softcap: spec.scores.softcap,
            sinks: self.sinks.as_ref(),
            slopes: self.slopes.as_ref(),
            biases: self.biases.as_ref().map(|of_heads| DistanceBiases {
                reach: (of_heads.len() / spec.n_head - 1) / 2,
                of_heads,
            }),
            both_ways: spec.mask.both_ways,
            blocks: spec.mask.index.zip(lists).map(|(index, lists)| ChosenBlocks {
                sizes: index.sizes,
                n_near: index.n_near(),
                blocks: lists.view(),
            }),
        };
        AttendHow { scale: spec.scale, variant }
    }

    /// Keeps the rows' keys and values in the cache, its own, which it may lend, or those that it borrows; and their keys
    /// of an index.
    fn keep(
        &self,
        cx: &mut BlockCx<'_>,
        kv: &mut KvCache,
        k: &Rows,
        v: &Rows,
        index: Option<&Rows>,
    ) {
        let (k, v) = match self.spec.kv.from {
            KvFrom::Own => (k, v),
            KvFrom::Lent(pair) => {
                let [to_k, to_v] = &mut cx.beside[Beside::keys(pair)..][..2] else {
                    unreachable!("two tensors")
                };
                for (to, from) in [(to_k, k), (to_v, v)] {
                    to.set(from);
                }
                (k, v)
            }
            KvFrom::Borrowed(pair) => {
                let at = Beside::keys(pair);
                (&cx.beside[at], &cx.beside[at + 1])
            }
        };
        kv.append(cx.ubatch(), &KvRows { k, v: Some(v), index });
    }

    /// Multiplies `heads` by what becomes of `gate`, which has a value for each of theirs or for each head.
    fn apply_gate(&self, device: &Device, by: HeadGate, gate: &mut Rows, heads: &mut Rows) {
        match by.activation {
            GateActivation::Sigmoid if by.source != GateSource::EachHead => {
                return device.sigmoid_mul(heads, gate);
            }
            GateActivation::Sigmoid => device.sigmoid(gate),
            GateActivation::Softplus => device.softplus(gate),
        }
        match by.source {
            GateSource::EachHead => device.scale_rows(heads, self.spec.head_dim_v, gate),
            _ => device.mul(heads, gate),
        }
    }

    /// Normalises and rotates queries and keys between their projections and the cache.
    fn norm_and_rotate(&self, cx: &BlockCx<'_>, q: &mut Rows, k: &mut Rows) {
        let spec = &self.spec;
        let after_rotation = spec.qk_norm.is_some_and(|norm| norm.after_rotation);
        let norms = self.qk_norms.as_ref();
        if let Some(norms) = norms.filter(|_| !after_rotation) {
            norms.apply(cx.device, spec, q, k);
        }
        if let Some(rope) = cx.rope_of(spec.rotation) {
            for x in [&mut *q, &mut *k].into_iter().filter(|x| !x.is_empty()) {
                cx.device.rope(x, spec.head_dim_k, rope);
            }
        }
        if let Some(norms) = norms.filter(|_| after_rotation) {
            norms.apply(cx.device, spec, q, k);
        }
        if let Some(temperature) = spec.scores.temperature.filter(|_| !q.is_empty()) {
            let factors: Vec<f32> = cx.positions().map(|pos| temperature.factor(pos)).collect();
            cx.device.scale_rows(q, spec.n_head * spec.head_dim_k, &factors);
        }
    }
}

/// The projections of a block's input, as [`Attention`] has them.
struct Projections {
    q: Linear,
    k: Option<Linear>,
    v: Option<Linear>,
    gate: Option<Box<Linear>>,
}

impl Projections {
    fn load(
        spec: &AttentionSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (n_q, n_k) = (spec.n_head * spec.head_dim_k, spec.n_kv_head * spec.head_dim_k);
        let (n_v, n_o) = (spec.n_kv_head * spec.head_dim_v, spec.n_head * spec.head_dim_v);
        let name = |part: &str| format!("{stem}.attn_{part}");
        Ok(match spec.head_output.gate.map(|gate| gate.source) {
            Some(GateSource::BehindQuery) => {
                let (q, gate) = load_gated(spec, &name("q.weight"), n_embd, loader)?;
                let k = Linear::load(loader, &name("k"), n_k, n_embd)?;
                let v = Linear::load(loader, &name("v"), n_v, n_embd)?;
                Self { q, k: Some(k), v: Some(v), gate: Some(Box::new(gate)) }
            }
            own => {
                let is_fused = loader.has(&name("qkv.weight"));
                let (q, k, v) = match (spec.kv.from, spec.kv.values_of_keys) {
                    (KvFrom::Borrowed(_), _) if !is_fused => {
                        (Linear::load(loader, &name("q"), n_q, n_embd)?, None, None)
                    }
                    (_, true) => {
                        let q = Linear::load(loader, &name("q"), n_q, n_embd)?;
                        (q, Some(Linear::load(loader, &name("k"), n_k, n_embd)?), None)
                    }
                    (kv, false) => {
                        let [q, k, v] = load_qkv(loader, stem, [n_q, n_k, n_v], n_embd)?;
                        match kv {
                            KvFrom::Borrowed(_) => (q, None, None),
                            _ => (q, Some(k), Some(v)),
                        }
                    }
                };
                let rows =
                    own.map(|own| if own == GateSource::EachHead { spec.n_head } else { n_o });
                let gate = match rows {
                    Some(rows) => Some(Linear::matrix(loader, &name("gate.weight"), rows, n_embd)?),
                    None => None,
                };
                Self { q, k, v, gate: gate.map(Box::new) }
            }
        })
    }
}

/// Biases of scores by distance, `[n_head, 2 * reach + 1]`, from the tensor of the buckets.
fn load_biases(
    buckets: &Buckets,
    n_head: usize,
    loader: &mut WeightLoader<'_>,
) -> Result<Vec<f32>, ModelError> {
    let table = loader.values(&buckets.tensor, &[n_head, buckets.n])?;
    let reach = buckets.reach() as isize;
    let of_head = |head| (-reach..=reach).map(move |ahead| (head, ahead));
    let bias = |(head, ahead)| table[buckets.of(ahead) * n_head + head];
    Ok((0..n_head).flat_map(of_head).map(bias).collect())
}
