//! The way into an attention block: projections to queries, keys and values, and what happens to these before
//! they are rotated and kept.

use crate::block::linear::Linear;
use crate::device::{Device, Rows};
use crate::kernels::Vector;
use crate::spec::{AttentionSpec, KvFrom, ModelError, NormOver};
use crate::weights::WeightLoader;

/// Loads queries, keys and values of `rows` rows each. They are `<stem>.attn_{q,k,v}`, or `<stem>.attn_qkv` where the
/// file has them below each other in one tensor (the bias may be in one or in three then).
pub(super) fn load_qkv(
    loader: &mut WeightLoader<'_>,
    stem: &str,
    rows: [usize; 3],
    n_embd: usize,
) -> Result<[Linear; 3], ModelError> {
    let name = |part: &str| format!("{stem}.attn_{part}");
    let fused = format!("{}.weight", name("qkv"));
    if !loader.has(&fused) {
        return Ok([
            Linear::load(loader, &name("q"), rows[0], n_embd)?,
            Linear::load(loader, &name("k"), rows[1], n_embd)?,
            Linear::load(loader, &name("v"), rows[2], n_embd)?,
        ]);
    }
    let linears = Linear::row_blocks(loader, &fused, rows, n_embd)?;
    let fused = loader.opt_vector(&format!("{}.bias", name("qkv")), rows.iter().sum())?;
    let mut biases = [const { None }; 3];
    let mut start = 0;
    for (part, (bias, rows)) in ["q", "k", "v"].iter().zip(biases.iter_mut().zip(rows)) {
        *bias = match &fused {
            Some(fused) => Some(fused[start..start + rows].to_vec().into()),
            None => loader.opt_vector(&format!("{}.bias", name(part)), rows)?,
        };
        start += rows;
    }
    let mut biases = biases.into_iter();
    let [q, k, v] = linears.map(|linear| linear.with_bias(biases.next().flatten()));
    Ok([
        q.switched(loader, &name("q"))?,
        k.switched(loader, &name("k"))?,
        v.switched(loader, &name("v"))?,
    ])
}

/// The weights of the norms of q and k.
pub(super) struct QkNorms {
    q: Weights,
    /// `None` where keys are borrowed, normed as they are.
    k: Option<Weights>,
}

/// Weight and bias of one projection.
struct Weights {
    weight: Vector,
    /// Zeros where the file has none and the norm needs one; else empty.
    bias: Vector,
}

impl QkNorms {
    /// Loads `<stem>.attn_{q,k}_norm`, where the spec's norms have weights.
    pub(super) fn load(
        spec: &AttentionSpec,
        stem: &str,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let Some(norm) = spec.qk_norm else { return Ok(None) };
        let d = spec.head_dim_k;
        let mut weights = |part: &str, n_head: usize| {
            let stem = format!("{stem}.attn_{part}_norm");
            let name = format!("{stem}.weight");
            let weight = match norm.over {
                NormOver::Head => loader.vector(&name, d)?,
                NormOver::HeadUnweighted => vec![1.0; d].into(),
                NormOver::HeadFactor if part == "k" => vec![1.0; n_head * d].into(),
                NormOver::HeadFactor => {
                    let factors = loader.values(&name, &[1, n_head])?;
                    factors.into_iter().flat_map(|factor| vec![factor; d]).collect()
                }
                NormOver::HeadOwn | NormOver::HeadLayer => loader.values(&name, &[d, n_head])?,
                NormOver::AllHeads | NormOver::AllHeadsLayer => loader.vector(&name, n_head * d)?,
            };
            let bias = match norm.over {
                NormOver::HeadLayer => {
                    let bias = format!("{stem}.bias");
                    if loader.has(&bias) {
                        loader.values(&bias, &[d, n_head])?
                    } else {
                        vec![0.0; weight.len()].into()
                    }
                }
                NormOver::AllHeadsLayer => loader.vector(&format!("{stem}.bias"), n_head * d)?,
                _ => Vector::default(),
            };
            Ok::<_, ModelError>(Weights { weight, bias })
        };
        let q = weights("q", spec.n_head)?;
        let k = match spec.kv.from {
            KvFrom::Borrowed(_) => None,
            KvFrom::Own | KvFrom::Lent(_) => Some(weights("k", spec.n_kv_head)?),
        };
        Ok(Some(Self { q, k }))
    }

    /// Norms queries and keys in place; where there are no queries, keys alone.
    pub(super) fn apply(&self, device: &Device, spec: &AttentionSpec, q: &mut Rows, k: &mut Rows) {
        let Some(norm) = spec.qk_norm else { return };
        let of_keys = self.k.as_ref().map(|weights| (k, weights));
        let of_both = [(q, &self.q)].into_iter().chain(of_keys);
        for (x, Weights { weight, bias }) in of_both.filter(|(x, _)| !x.is_empty()) {
            match norm.over {
                NormOver::HeadLayer => {
                    device.group_layer_norm(x, weight, bias, spec.head_dim_k, norm.eps);
                }
                NormOver::AllHeadsLayer => {
                    device.group_layer_norm(x, weight, bias, weight.len(), norm.eps);
                }
                NormOver::HeadOwn | NormOver::HeadFactor => {
                    device.group_rms_norm(x, weight, spec.head_dim_k, norm.eps);
                }
                _ => device.rms_norm_inplace(x, weight, norm.eps),
            }
        }
    }
}

/// Queries and gates of a projection with `[query | gate]` for each head: two projections.
pub(super) fn load_gated(
    spec: &AttentionSpec,
    name: &str,
    n_embd: usize,
    loader: &mut WeightLoader<'_>,
) -> Result<(Linear, Linear), ModelError> {
    let (d_q, d_gate) = (spec.head_dim_k, spec.head_dim_v);
    let of_heads = |start: usize, width: usize| {
        let head = move |h: usize| (0..width).map(move |i| h * (d_q + d_gate) + start + i);
        (0..spec.n_head).flat_map(head).collect()
    };
    let rows = [of_heads(0, d_q), of_heads(d_q, d_gate)];
    let [q, gate] = Linear::split(loader, name, spec.n_head * (d_q + d_gate), n_embd, rows)?;
    Ok((q, gate))
}
