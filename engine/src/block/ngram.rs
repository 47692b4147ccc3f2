//! Embeddings of the last few tokens together, which every stream takes as much of as it has use for: see [`NgramSpec`]
//! for the formulas.

use super::{Block, BlockCx, Embedding};
use crate::device::{Device, Memory, Rows, Scratch};
use crate::kernels::{DilatedConv, PackedMatrix, Vector};
use crate::ops::{DilatedRows, ProductRoots};
use crate::spec::{LAYER_ROW_TABLE, ModelError, NgramSpec};
use crate::state::{BlockState, PartRows};
use crate::weights::WeightLoader;

/// Scores whose magnitude is less count as this much before the root.
const LEAST_SCORE: f32 = 1e-6;

/// Weights of the block; `width` is that of all streams together.
pub struct Ngram {
    spec: NgramSpec,
    /// Rows of the heads, left where they are.
    table: Embedding,
    /// `[width, n_embd]`.
    key: PackedMatrix,
    /// `[n_embd, n_embd]`.
    value: PackedMatrix,
    /// `[width]` each, as the next two.
    key_norm: Vector,
    query_norm: Vector,
    conv_norm: Vector,
    /// `[conv_taps, width]`.
    taps: Vector,
}

impl Ngram {
    /// Loads `<stem>.ple_{key,value,norm_key,norm_query,norm_conv,conv1d}`, and `per_layer_token_embd` by name.
    ///
    /// # Errors
    /// As of every tensor that is missing, misshapen or of an unknown type.
    pub fn load(
        spec: &NgramSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.ple_{part}.weight");
        let (width, n_taps) = (spec.width(), spec.conv_taps);
        let mut norm =
            |part| loader.values_of_either(&name(part), &[width], &[n_embd, spec.n_streams]);
        let [key_norm, query_norm, conv_norm] =
            [norm("norm_key")?, norm("norm_query")?, norm("norm_conv")?];
        // Files have the taps of a channel together.
        let by_channel = loader.values(&name("conv1d"), &[n_taps, width])?;
        let tap = |i: usize| by_channel[i % width * n_taps + i / width];
        let (rows, head_dim) = (spec.table_rows, spec.head_dim());
        let table = loader.reference(LAYER_ROW_TABLE, &[head_dim, rows])?;
        Ok(Self {
            table: Embedding::new(loader.shared()?, table, head_dim, rows)?,
            key: loader.matrix(&name("key"), width, n_embd)?,
            value: loader.matrix(&name("value"), n_embd, n_embd)?,
            key_norm,
            query_norm,
            conv_norm,
            taps: (0..n_taps * width).map(tap).collect(),
            spec: spec.clone(),
        })
    }
}

impl Block for Ngram {
    fn nbytes(&self) -> usize {
        self.key.nbytes() + self.value.nbytes()
    }

    /// Change of the first stream `x`; the streams beside it are changed in place.
    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let (n_embd, eps) = (x.cols(), self.spec.eps);
        let slots = state.slots();
        let parts = slots.parts_in_place(cx.parts);
        let (states, last) = slots.split();
        let embedded = self.table.rows(
            cx.device,
            &self.rows_of_table(cx.parts, cx.rows.tokens, last.host()),
            1.0,
        );
        let embedded = cx.scratch.adopt(Rows::new(embedded, n_embd));
        self.remember_tokens(cx.parts, cx.rows.tokens, last);
        let mut gated = self.gated(cx.device, cx.scratch, cx.beside, x, &embedded);
        let mut inputs = cx.scratch.copy_of(&gated);
        cx.device.group_rms_norm(&mut inputs, &self.conv_norm, n_embd, eps);
        let mut convolved = cx.scratch.take(x.n_rows(), self.spec.width());
        let conv = self.conv();
        cx.device.run(DilatedRows {
            conv: &conv,
            parts: &parts,
            states: states.view(),
            x: inputs.view(),
            weight: &self.taps,
            out: convolved.view_mut(),
        });
        cx.device.keep_last_rows(&conv, &parts, states, &inputs);
        cx.device.silu(&mut convolved);
        cx.device.add(&mut gated, &convolved);
        let gain = |i: usize| cx.device.columns_of(cx.scratch, &gated, i * n_embd, n_embd);
        for (i, stream) in cx.beside[..self.spec.n_streams - 1].iter_mut().enumerate() {
            cx.device.add(stream, &gain(i + 1));
        }
        gain(0)
    }
}

impl Ngram {
    fn conv(&self) -> DilatedConv {
        let NgramSpec { conv_taps, longest, .. } = self.spec;
        DilatedConv { channels: self.spec.width(), taps: conv_taps, apart: longest }
    }

    /// The rows of the table that all heads of all rows take; `last` are the last tokens of all slots.
    fn rows_of_table(&self, parts: &[PartRows], tokens: &[u32], last: &[f32]) -> Vec<u32> {
        let mut rows = Vec::with_capacity(tokens.len() * self.spec.heads.len());
        for part in parts {
            let before = self.tokens_before(part, last);
            for i in 0..part.rows.len() {
                let tokens: Vec<Option<u32>> = (0..self.spec.longest)
                    .map(|back| token(&tokens[part.rows.clone()], &before, i, back))
                    .collect();
                // A table has fewer rows than that: `arch` checks it.
                rows.extend(self.spec.rows(&tokens).map(|row| row as u32));
            }
        }
        rows
    }

    /// Gated rows of `embedded` `[n_rows, n_embd]` for each stream, `[n_rows, width]`; `x` is the first stream.
    fn gated(
        &self,
        device: &Device,
        scratch: &Scratch,
        beside: &[Rows],
        x: &Rows,
        embedded: &Rows,
    ) -> Rows {
        let (n, n_embd, width) = (self.spec.n_streams, self.spec.n_embd, self.spec.width());
        let n_rows = x.n_rows();
        let mut keys = scratch.take(n_rows, width);
        device.multiply(&self.key, embedded, &mut keys);
        device.group_rms_norm(&mut keys, &self.key_norm, n_embd, self.spec.eps);
        let mut queries = scratch.take(n_rows, width);
        let streams: Vec<&Rows> = std::iter::once(x).chain(&beside[..n - 1]).collect();
        device.side_by_side(&streams, &mut queries);
        device.group_rms_norm(&mut queries, &self.query_norm, n_embd, self.spec.eps);
        let mut gates = scratch.take(n_rows, n);
        device.run(ProductRoots {
            x: keys.view(),
            y: queries.view(),
            d: n_embd,
            divisor: (n_embd as f32).sqrt(),
            least: LEAST_SCORE,
            out: gates.view_mut(),
        });
        device.sigmoid(&mut gates);
        let mut values = scratch.take(n_rows, n_embd);
        device.multiply(&self.value, embedded, &mut values);
        let mut gated = queries;
        device.repeat_rows(&values, n_embd, n, &mut gated);
        device.scale_rows(&mut gated, n_embd, &gates);
        gated
    }

    /// Keeps the last tokens.
    fn remember_tokens(&self, parts: &[PartRows], tokens: &[u32], last: &mut Memory<f32>) {
        for part in parts {
            let before = self.tokens_before(part, last.host());
            let (n, tokens) = (part.rows.len(), &tokens[part.rows.clone()]);
            for (i, last) in last.host_mut()[self.place_of(part)].iter_mut().enumerate() {
                // The row behind the last is one further than it.
                *last = token(tokens, &before, n, i + 1).map_or(0.0, |token| token as f32 + 1.0);
            }
        }
    }

    /// The tokens before a part, the newest first.
    fn tokens_before(&self, part: &PartRows, last: &[f32]) -> Vec<Option<u32>> {
        // One more than the token, so that what was never written is none.
        let token = |x: &f32| (*x > 0.0).then(|| *x as u32 - 1);
        last[self.place_of(part)].iter().map(token).collect()
    }

    /// Place of the last tokens of a part's sequence.
    fn place_of(&self, part: &PartRows) -> std::ops::Range<usize> {
        let (n, slot) = (self.spec.longest - 1, part.planes.to.0 as usize);
        slot * n..(slot + 1) * n
    }
}

/// The token `back` places before row `i` of a part with these tokens, `before` being those before it, the newest first.
fn token(tokens: &[u32], before: &[Option<u32>], i: usize, back: usize) -> Option<u32> {
    match i.checked_sub(back) {
        Some(at) => Some(tokens[at]),
        None => before[back - i - 1],
    }
}
