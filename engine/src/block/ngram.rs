//! Embeddings of the last few tokens together, which every stream takes as much of as it has use for: see [`NgramSpec`]
//! for the formulas.

use super::{Block, BlockCx, Embedding};
use crate::arch::{LAYER_ROW_TABLE, NgramSpec};
use crate::device::{Device, Rows};
use crate::error::ModelError;
use crate::kernels::{PackedMatrix, Vector};
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
    taps: Vec<f32>,
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
            |part| loader.values_of_either(&name(part), [&[width], &[n_embd, spec.n_streams]]);
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

    /// Of what the first stream `x` gains; the streams beside it gain theirs.
    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let (n_rows, n_embd, width) = (x.n_rows(), x.cols(), self.spec.width());
        let (eps, states) = (self.spec.eps, state.slots().split().0);
        let embedded = self.table.rows(cx.device, &self.rows_of_table(cx, states), 1.0);
        let mut gated = self.gated(cx, x, &embedded);
        let mut inputs = cx.scratch.copy_of(&gated);
        cx.device.group_rms_norm(&mut inputs, &self.conv_norm, n_embd, eps);
        let mut convolved = cx.scratch.take(n_rows, width);
        self.convolve(cx.device, cx.parts, states, &inputs, &mut convolved);
        cx.device.silu(&mut convolved);
        cx.device.add(&mut gated, &convolved);
        self.remember(cx, states, &inputs);
        let mut out = cx.scratch.zeros(n_rows, n_embd);
        let gains = std::iter::once(&mut out).chain(&mut cx.beside[..self.spec.n_streams - 1]);
        for (i, stream) in gains.enumerate() {
            cx.device.fill_rows(stream, n_embd, &|row, stream| {
                let gain = &gated[row * width + i * n_embd..][..n_embd];
                stream.iter_mut().zip(gain).for_each(|(x, gain)| *x += gain);
            });
        }
        out
    }
}

impl Ngram {
    /// The rows of the table that all heads of all rows take.
    fn rows_of_table(&self, cx: &BlockCx<'_>, states: &[f32]) -> Vec<u32> {
        let mut rows = Vec::with_capacity(cx.tokens.len() * self.spec.heads.len());
        for part in cx.parts {
            let before = self.tokens_before(part, states);
            for i in 0..part.rows.len() {
                let tokens: Vec<Option<u32>> = (0..self.spec.longest)
                    .map(|back| token(&cx.tokens[part.rows.clone()], &before, i, back))
                    .collect();
                // A table has fewer rows than that: `arch` checks it.
                rows.extend(self.spec.rows(&tokens).map(|row| row as u32));
            }
        }
        rows
    }

    /// What each stream may take of `embedded` `[n_rows, n_embd]`, `[n_rows, width]`; `x` is the first stream.
    fn gated(&self, cx: &BlockCx<'_>, x: &Rows, embedded: &[f32]) -> Rows {
        let (n, n_embd, width) = (self.spec.n_streams, self.spec.n_embd, self.spec.width());
        let n_rows = x.n_rows();
        let mut keys = cx.scratch.take(n_rows, width);
        cx.device.multiply(&self.key, embedded, &mut keys);
        cx.device.group_rms_norm(&mut keys, &self.key_norm, n_embd, self.spec.eps);
        let mut queries = cx.scratch.take(n_rows, width);
        let streams: Vec<&Rows> = std::iter::once(x).chain(&cx.beside[..n - 1]).collect();
        cx.device.fill_rows(&mut queries, width, &|row, queries| {
            for (query, stream) in queries.chunks_exact_mut(n_embd).zip(&streams) {
                query.copy_from_slice(stream.row(row));
            }
        });
        cx.device.group_rms_norm(&mut queries, &self.query_norm, n_embd, self.spec.eps);
        let mut gates = cx.scratch.take(n_rows, n);
        let heads = keys.chunks_exact(n_embd).zip(queries.chunks_exact(n_embd));
        for (gate, (key, query)) in gates.iter_mut().zip(heads) {
            let product = |(k, q): (&f32, &f32)| f64::from(*k) * f64::from(*q);
            let score = key.iter().zip(query).map(product).sum::<f64>() as f32;
            let score = score / (n_embd as f32).sqrt();
            let root = score.abs().max(LEAST_SCORE).sqrt();
            *gate = if score == 0.0 { 0.0 } else { root.copysign(score) };
        }
        cx.device.sigmoid(&mut gates);
        let mut values = cx.scratch.take(n_rows, n_embd);
        cx.device.multiply(&self.value, embedded, &mut values);
        let mut gated = queries;
        cx.device.fill_rows(&mut gated, width, &|row, gated| {
            let value = values.row(row);
            for (gated, gate) in gated.chunks_exact_mut(n_embd).zip(&gates[row * n..]) {
                gated.iter_mut().zip(value).for_each(|(gated, value)| *gated = value * gate);
            }
        });
        gated
    }

    /// The convolution of `inputs` `[n_rows, width]`: a sum over taps in order, the oldest first.
    fn convolve(
        &self,
        device: &Device,
        parts: &[PartRows],
        states: &[f32],
        inputs: &[f32],
        out: &mut [f32],
    ) {
        let (width, n_before) = (self.spec.width(), self.spec.n_before());
        let part_of = |row: usize| parts.iter().find(|part| part.rows.contains(&row));
        device.fill_rows(out, width, &|row, out| {
            let Some(part) = part_of(row) else { return };
            let state = self.state_of(part, states);
            out.fill(0.0);
            for (tap, weights) in self.taps.chunks_exact(width).enumerate() {
                // Places from the oldest remembered row on.
                let at = row - part.rows.start + tap * self.spec.longest;
                let x = match at.checked_sub(n_before) {
                    Some(at) => &inputs[(part.rows.start + at) * width..][..width],
                    None => &state[at * width..][..width],
                };
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weights) {
                    *out += x * weight;
                }
            }
        });
    }

    /// Keeps the last inputs of the convolution and the last tokens.
    fn remember(&self, cx: &BlockCx<'_>, states: &mut [f32], inputs: &[f32]) {
        let (width, n_before) = (self.spec.width(), self.spec.n_before());
        for part in cx.parts {
            let (n, before) = (part.rows.len(), self.tokens_before(part, states));
            let tokens = &cx.tokens[part.rows.clone()];
            let state = &mut states[self.place_of(part)];
            let (kept, last) = state.split_at_mut(n_before * width);
            let new = n.min(n_before);
            kept.copy_within(new * width.., 0);
            let inputs = &inputs[(part.rows.end - new) * width..part.rows.end * width];
            kept[(n_before - new) * width..].copy_from_slice(inputs);
            for (i, last) in last.iter_mut().enumerate() {
                // The row behind the last is one further than it.
                *last = token(tokens, &before, n, i + 1).map_or(0.0, |token| token as f32 + 1.0);
            }
        }
    }

    /// The tokens before a part, the newest first.
    fn tokens_before(&self, part: &PartRows, states: &[f32]) -> Vec<Option<u32>> {
        let last = &self.state_of(part, states)[self.spec.n_before() * self.spec.width()..];
        // One more than the token, so that what was never written is none.
        last.iter().map(|x| (*x > 0.0).then(|| *x as u32 - 1)).collect()
    }

    fn state_of<'a>(&self, part: &PartRows, states: &'a [f32]) -> &'a [f32] {
        &states[self.place_of(part)]
    }

    /// Where the values of a part's slot are.
    fn place_of(&self, part: &PartRows) -> std::ops::Range<usize> {
        let n = self.spec.n_before() * self.spec.width() + self.spec.longest - 1;
        let slot = part.slot.0 as usize;
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
