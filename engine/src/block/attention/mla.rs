//! Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1) in its absorbed form.
//!
//! A position is remembered as one compressed row `c` and one rotated row `k_pe`, which all heads share. The
//! paper's key of head `h` is `[W_k[h] c | k_pe]` and its value is `W_v[h] c`. Neither is ever computed,
//! because of two equations:
//!
//! - `q_nope · (W_k[h] c) = (W_k[h]ᵀ q_nope) · c`, so the matrix for keys is applied to the query, once.
//! - `Σ p (W_v[h] c) = W_v[h] Σ p c`, so the matrix for values is applied to the result, once.
//!
//! So each head attends with the query `[W_k[h]ᵀ q_nope | q_pe]` to the one key `[c | k_pe]`, whose first
//! part is also the value. A page holds keys only. `c` is normed, and the pe parts are rotated where the
//! model rotates; in some models there are none. In some an [`Index`] chooses the positions that a row attends to; then a
//! page has its keys too.

use super::index::{Index, IndexWidths};
use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::{Device, Rows, Scratch, product};
use crate::kernels::{HeadColumns, PackedMatrix, Vector};
use crate::quant::{self, GgmlType};
use crate::spec::{ChosenBy, ChosenSpec, MlaGate, MlaSpec, ModelError};
use crate::state::{AttendHow, AttendVariant, BlockState, ChosenPools, KvCache, KvRows};
use crate::weights::WeightLoader;

/// Weights of one MLA block.
pub struct Mla {
    spec: MlaSpec,
    query: Query,
    /// Compressed keys and values, and the keys' pe part.
    kv_a: Linear,
    kv_norm: Vector,
    /// `[n_pe]`, where the block norms them.
    pe_norm: Option<Vector>,
    /// For each head `[kv_rank, n_nope]`.
    k_b: Vec<PackedMatrix>,
    /// For each head `[head_dim_v, kv_rank]`.
    v_b: Vec<PackedMatrix>,
    /// `[n_head * head_dim_v, n_embd]` or `[n_head, n_embd]`, where the block has a gate.
    gate: Option<Linear>,
    /// `[n_head]`, where the block has sinks.
    sinks: Option<Vector>,
    output: Linear,
    index: Option<Index>,
}

/// The projections of rows that attend.
struct Projected {
    /// `[n, n_head * (n_nope + n_pe)]`.
    q: Rows,
    /// `[n, n_head * head_dim_v]` or `[n, n_head]`, empty without a gate.
    gate: Rows,
    /// Queries and weights of the index, empty without one.
    index: [Rows; 2],
}

/// The projections of rows that are kept, not yet normed and rotated.
struct Keys {
    /// `[n, kv_rank + n_pe]`.
    key: Rows,
    /// Keys and gates of the index, empty without one or without gates.
    index: [Rows; 2],
}

/// The projections to queries.
enum Query {
    Full(Linear),
    /// Through normed rows of a smaller width.
    LowRank {
        a: Linear,
        norm: Vector,
        b: Linear,
    },
}

impl Mla {
    /// Loads the tensors of `<stem>`: `attn_q` (or `attn_q_a`, `attn_q_a_norm`, `attn_q_b`), `attn_kv_a_mqa`,
    /// `attn_kv_a_norm`, `attn_k_b` and `attn_v_b` (or `attn_kv_b`), and `attn_output`. A block with a gate also has
    /// `attn_gate`, one with sinks `attn_sinks`, one that norms the rotated part of a key `attn_k_norm`, and one with
    /// an index `indexer`.
    pub fn load(
        spec: &MlaSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.attn_{part}.weight");
        let n_q = spec.n_head * (spec.n_nope + spec.n_pe);
        let query = match spec.q_rank {
            None => Query::Full(Linear::matrix(loader, &name("q"), n_q, n_embd)?),
            Some(rank) => Query::LowRank {
                a: Linear::matrix(loader, &name("q_a"), rank, n_embd)?,
                norm: loader.vector(&name("q_a_norm"), rank)?,
                b: Linear::matrix(loader, &name("q_b"), n_q, rank)?,
            },
        };
        let (rank, n) = (spec.kv_rank, spec.n_head);
        let [k_b, v_b] = if loader.has(&name("kv_b")) {
            split_kv_b(spec, &name("kv_b"), loader)?
        } else {
            [
                loader.experts(&name("k_b"), n, rank, spec.n_nope)?,
                loader.experts(&name("v_b"), n, spec.head_dim_v, rank)?,
            ]
        };
        let gate_rows = spec.gate.map(|gate| match gate {
            MlaGate::EachValue => n * spec.head_dim_v,
            MlaGate::EachHead => n,
        });
        let gate = match gate_rows {
            Some(rows) => Some(Linear::matrix(loader, &name("gate"), rows, n_embd)?),
            None => None,
        };
        let index = match spec.chosen {
            Some(chosen @ ChosenSpec { by: ChosenBy::Index(index), .. }) => {
                let q_rank = spec.q_rank.unwrap_or(n_embd);
                let widths = IndexWidths { n_embd, q_rank, n_pe: spec.n_pe };
                Some(Index::load(index, &chosen, widths, stem, loader)?)
            }
            _ => None,
        };
        Ok(Self {
            index,
            query,
            kv_a: Linear::matrix(loader, &name("kv_a_mqa"), spec.key_width(), n_embd)?,
            kv_norm: loader.vector(&name("kv_a_norm"), rank)?,
            k_b,
            v_b,
            gate,
            sinks: if spec.sinks { Some(loader.vector(&name("sinks"), n)?) } else { None },
            pe_norm: if spec.pe_norm {
                Some(loader.vector(&name("k_norm"), spec.n_pe)?)
            } else {
                None
            },
            output: Linear::matrix(loader, &name("output"), n_embd, n * spec.head_dim_v)?,
            spec: spec.clone(),
        })
    }
}

impl Block for Mla {
    fn nbytes(&self) -> usize {
        let query = match &self.query {
            Query::Full(q) => q.nbytes(),
            Query::LowRank { a, b, .. } => a.nbytes() + b.nbytes(),
        };
        let own = [&self.kv_a, &self.output].into_iter().chain(&self.gate);
        let heads = self.k_b.iter().chain(&self.v_b).map(PackedMatrix::nbytes);
        let index = self.index.as_ref().map_or(0, Index::nbytes);
        query + index + own.map(Linear::nbytes).chain(heads).sum::<usize>()
    }

    /// Appends the rows' keys.
    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let kv = state.kv();
        let spec = &self.spec;
        let (Projected { q, mut gate, index: [mut index_q, weights] }, keys) = self.project(cx, x);
        let mut q_hat = self.absorb(cx, &q);
        if let Some(temperature) = spec.temperature {
            let factors: Vec<f32> = cx.positions().map(|pos| temperature.factor(pos)).collect();
            cx.device.scale_rows(&mut q_hat, spec.n_head * spec.key_width(), &factors);
        }
        self.remember_keys(cx, kv, keys);
        let own = self.index.as_ref().map(|index| index.choose(cx, kv, &mut index_q, &weights));
        let latent = self.attend(cx, kv, own.as_ref(), &q_hat);
        let mut heads = self.values(cx.device, cx.scratch, &latent);
        match spec.gate {
            Some(MlaGate::EachValue) => cx.device.sigmoid_mul(&mut heads, &gate),
            Some(MlaGate::EachHead) => {
                cx.device.sigmoid(&mut gate);
                cx.device.scale_rows(&mut heads, spec.head_dim_v, &gate);
            }
            None => {}
        }
        self.output.forward(cx, &heads)
    }

    fn remember(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) {
        let projected = cx.project_some(x, self.of_keys()).map(Option::unwrap_or_default);
        let [key, index, gates] = projected;
        self.remember_keys(cx, state.kv(), Keys { key, index: [index, gates] });
    }
}

impl Mla {
    /// Projections to keys, and to keys and gates of the index.
    fn of_keys(&self) -> [Option<&Linear>; 3] {
        let index = self.index.as_ref();
        let gates = index.and_then(|index| index.gates.as_ref());
        [Some(&self.kv_a), index.map(|index| &index.key), gates.map(|gates| &gates.matrix)]
    }

    /// All projections of the rows before the attention.
    fn project(&self, cx: &BlockCx<'_>, x: &Rows) -> (Projected, Keys) {
        let index = self.index.as_ref();
        let [key, index_key, gates] = self.of_keys();
        let weights = [
            Some(self.query.input()),
            key,
            self.gate.as_ref(),
            index_key,
            index.map(|index| &index.weights),
            gates,
        ];
        let projected = cx.project_some(x, weights);
        let [mut q, key, gate, index_key, weights, gates] =
            projected.map(Option::unwrap_or_default);
        let mut index_q = Rows::default();
        if let Query::LowRank { norm, b, .. } = &self.query {
            cx.device.rms_norm_inplace(&mut q, norm, self.spec.eps);
            let wide = cx.project_some(&q, [Some(b), index.map(|index| &index.query)]);
            [q, index_q] = wide.map(Option::unwrap_or_default);
        }
        let keys = Keys { key, index: [index_key, gates] };
        (Projected { q, gate, index: [index_q, weights] }, keys)
    }

    /// Finishes the rows' keys, and keeps them.
    fn remember_keys(&self, cx: &BlockCx<'_>, kv: &mut KvCache, keys: Keys) {
        let Keys { mut key, index: [mut index_key, gates] } = keys;
        self.finish_keys(cx, &mut key);
        if let Some(index) = &self.index {
            index.finish_keys(cx, &mut index_key, &gates);
        }
        let index_rows = self.index.as_ref().map(|_| &index_key);
        let rows = KvRows { k: &key, v: None, index: index_rows };
        kv.append(cx.ubatch(), &rows);
        if let Some(index) = &self.index {
            index.pool_keys(cx, kv);
        }
    }

    /// Attention of queries `[n, n_head * (kv_rank + n_pe)]` to all positions before their rows, or to chosen ones. The
    /// block's `own` index chose these, or they came along beside the rows. Returns `[n, n_head * kv_rank]`.
    fn attend(&self, cx: &BlockCx<'_>, kv: &KvCache, own: Option<&Rows>, q_hat: &Rows) -> Rows {
        let spec = &self.spec;
        let mut latent = cx.scratch.take(q_hat.n_rows(), spec.n_head * spec.kv_rank);
        let sinks = self.sinks.as_ref();
        let variant = AttendVariant { sinks, window: spec.window, ..AttendVariant::default() };
        let how = AttendHow { scale: spec.scale, variant };
        let Some(ChosenSpec { sizes, place, .. }) = spec.chosen else {
            kv.attend(cx.ubatch(), how, q_hat, &mut latent);
            return latent;
        };
        let chosen = ChosenPools { sizes, pools: own.unwrap_or_else(|| &cx.beside[place]) };
        kv.attend_chosen(cx.ubatch(), how, chosen, q_hat, &mut latent);
        latent
    }

    /// Norms the compressed part of each key and rotates the rest, in place.
    fn finish_keys(&self, cx: &BlockCx<'_>, key: &mut Rows) {
        let (n, spec, stride) = (key.n_rows(), &self.spec, self.spec.key_width());
        let compressed = HeadColumns { stride, first: 0, width: spec.kv_rank };
        let mut c = cx.scratch.take(n, spec.kv_rank);
        cx.device.heads_apart(key, 1, compressed, &mut c);
        cx.device.rms_norm_inplace(&mut c, &self.kv_norm, spec.eps);
        cx.device.heads_together(&c, 1, compressed, key);
        if spec.n_pe == 0 {
            return;
        }
        let rotated = HeadColumns { stride, first: spec.kv_rank, width: spec.n_pe };
        let mut pe = cx.scratch.take(n, spec.n_pe);
        cx.device.heads_apart(key, 1, rotated, &mut pe);
        if let Some(norm) = &self.pe_norm {
            cx.device.rms_norm_inplace(&mut pe, norm, spec.eps);
        }
        self.rotate(cx, &mut pe);
        cx.device.heads_together(&pe, 1, rotated, key);
    }

    /// From `q[n, n_head * (n_nope + n_pe)]` the queries `[n, n_head * (kv_rank + n_pe)]`.
    fn absorb(&self, cx: &BlockCx<'_>, q: &Rows) -> Rows {
        let (n, spec) = (q.n_rows(), &self.spec);
        let (heads, stride, q_stride) = (spec.n_head, spec.key_width(), spec.n_nope + spec.n_pe);
        let mut nope = cx.scratch.take(heads * n, spec.n_nope);
        let columns = HeadColumns { stride: q_stride, first: 0, width: spec.n_nope };
        cx.device.heads_apart(q, heads, columns, &mut nope);
        let absorbed = per_head(cx.device, cx.scratch, &self.k_b, &nope);
        let mut q_hat = cx.scratch.take(n, heads * stride);
        if spec.n_pe == 0 {
            let columns = HeadColumns { stride, first: 0, width: stride };
            cx.device.heads_together(&absorbed, heads, columns, &mut q_hat);
            return q_hat;
        }
        // Rotated row by row: heads need not be apart.
        let mut pe = cx.scratch.take(n * heads, spec.n_pe);
        let columns = HeadColumns { stride: q_stride, first: spec.n_nope, width: spec.n_pe };
        cx.device.heads_apart(q, 1, columns, &mut pe);
        self.rotate(cx, &mut pe);
        let columns = HeadColumns { stride, first: 0, width: spec.kv_rank };
        cx.device.heads_together(&absorbed, heads, columns, &mut q_hat);
        let columns = HeadColumns { stride, first: spec.kv_rank, width: spec.n_pe };
        cx.device.heads_together(&pe, 1, columns, &mut q_hat);
        q_hat
    }

    /// From the attended `[n, n_head * kv_rank]` the heads' values `[n, n_head * head_dim_v]`.
    fn values(&self, device: &Device, scratch: &Scratch, latent: &Rows) -> Rows {
        let n = latent.n_rows();
        let (heads, rank, dim) = (self.spec.n_head, self.spec.kv_rank, self.spec.head_dim_v);
        let whole = |width| HeadColumns { stride: width, first: 0, width };
        let mut by_head = scratch.take(heads * n, rank);
        device.heads_apart(latent, heads, whole(rank), &mut by_head);
        let values = per_head(device, scratch, &self.v_b, &by_head);
        let mut out = scratch.take(n, heads * dim);
        device.heads_together(&values, heads, whole(dim), &mut out);
        out
    }

    /// Rotates rows of pe parts, where the block rotates.
    fn rotate(&self, cx: &BlockCx<'_>, pe: &mut Rows) {
        if let Some(table) = cx.rope_of(self.spec.rotation) {
            cx.device.rope(pe, self.spec.n_pe, table);
        }
    }
}

impl Query {
    /// The matrix that multiplies the block's input.
    fn input(&self) -> &Linear {
        match self {
            Self::Full(q) => q,
            Self::LowRank { a, .. } => a,
        }
    }
}

/// Each head's product: from `x[n_head * n, cols]` rows `[n_head * n, rows]`, those of each head together.
pub(super) fn per_head(
    device: &Device,
    scratch: &Scratch,
    heads: &[PackedMatrix],
    x: &Rows,
) -> Rows {
    let mut out = scratch.take(x.n_rows(), heads[0].rows());
    let n = x.n_rows() / heads.len();
    let mut left = out.to_write();
    let mut products = Vec::with_capacity(heads.len());
    for (h, w) in heads.iter().enumerate() {
        let (mine, rest) = left.split_at(n);
        left = rest;
        products.push(product(w, x, h * n..(h + 1) * n, mine));
    }
    device.products(products);
    out
}

/// `k_b` and `v_b` from the matrix of older files, in which each head has rows for its keys and then
/// rows for its values. The former are transposed, in half precision unless the file has more.
fn split_kv_b(
    spec: &MlaSpec,
    name: &str,
    loader: &mut WeightLoader<'_>,
) -> Result<[Vec<PackedMatrix>; 2], ModelError> {
    let (rank, n_nope, n_v) = (spec.kv_rank, spec.n_nope, spec.head_dim_v);
    let (ty, bytes) = loader.raw(name, &[rank, spec.n_head * (n_nope + n_v)])?;
    let format = quant::require_format(ty, name)?;
    if loader.is_hollow() {
        return Ok([Vec::new(), vec![loader.pack(ty, n_v, rank, &[])?]]);
    }
    let row_bytes = bytes.len() / (spec.n_head * (n_nope + n_v));
    let (mut k_b, mut v_b) = (Vec::new(), Vec::new());
    let mut keys = vec![0.0; n_nope * rank];
    for head in bytes.chunks_exact((n_nope + n_v) * row_bytes) {
        let (k, v) = head.split_at(n_nope * row_bytes);
        format.dequantize_row(k, &mut keys)?;
        let columns = (0..rank).flat_map(|o| keys[o..].iter().step_by(rank).copied());
        k_b.push(match ty {
            GgmlType::F32 | GgmlType::BF16 => {
                let columns: Vec<f32> = columns.collect();
                loader.pack(GgmlType::F32, rank, n_nope, bytemuck::cast_slice(&columns))?
            }
            _ => {
                let columns: Vec<u16> = columns.map(|x| half::f16::from_f32(x).to_bits()).collect();
                loader.pack(GgmlType::F16, rank, n_nope, bytemuck::cast_slice(&columns))?
            }
        });
        v_b.push(loader.pack(ty, n_v, rank, v)?);
    }
    Ok([k_b, v_b])
}
