//! Scans by chunks of rows, as matrix products: what devices with fast products compute. Here they are loops of single
//! products and sums in f32. Tests compare the kernels of such devices with them, and them with the recurrences.
//!
//! Chunks lie at multiples of their length. A decay between two rows is a product of factors that are at most 1, never a
//! difference of sums, so that nothing overflows or cancels.

use std::ops::Range;

use super::delta::Delta;
use brigade_kernels::Ssd;
use brigade_kernels::{Decay, DeltaShape};

/// Rows `0..n` in the pieces that chunks of `chunk` rows make of them, where row 0 is at position `first_pos`.
fn pieces(n: usize, chunk: usize, first_pos: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let end = n.min(start + chunk - (first_pos + start) % chunk);
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}

fn dot(a: impl IntoIterator<Item = f32>, b: impl IntoIterator<Item = f32>) -> f32 {
    let mut sum = 0.0;
    a.into_iter().zip(b).for_each(|(a, b)| sum += a * b);
    sum
}

/// The delta rule (the WY form of arXiv 2406.06484, with decays as in arXiv 2510.26692). Outputs `[n, n_head, d_v]`;
/// `state` is `[n_head, d_k, d_v]` and follows.
pub(crate) fn delta(
    shape: &DeltaShape,
    x: &Delta<'_>,
    chunk: usize,
    first_pos: usize,
    state: &mut [f32],
) -> Vec<f32> {
    let n = x.beta.len() / shape.n_head;
    let mut out = vec![0.0; n * shape.n_head * shape.d_v];
    for rows in pieces(n, chunk, first_pos) {
        for head in 0..shape.n_head {
            let len = shape.d_k * shape.d_v;
            delta_chunk(shape, x, head, rows.clone(), &mut state[head * len..][..len], &mut out);
        }
    }
    out
}

/// One head's chunk. With `w(s, t)` the decay of a key channel from row `s` to row `t`, and `e` the corrections:
///
/// - `A[t][s] = Σ k_t k_s w` and `P[t][s] = Σ q_t k_s w`
/// - `e_t = beta_t (v_t - (k_t w(start, t)) S - Σ_{s < t} A[t][s] e_s)`
/// - `o_t = ((q_t w(start, t)) S + Σ_{s <= t} P[t][s] e_s) / sqrt(d_k)`
/// - `S = w(start, end) S + Σ_t (k_t w(t, end)) e_t`
fn delta_chunk(
    shape: &DeltaShape,
    x: &Delta<'_>,
    head: usize,
    rows: Range<usize>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = *shape;
    let of_key = |all: &'_ [f32], t: usize| -> Vec<f32> {
        all[(t * n_key_head + shape.key_head(head)) * d_k..][..d_k].to_vec()
    };
    let factor = |t: usize, i: usize| match shape.decay {
        Decay::PerChannel => x.decay[(t * n_head + head) * d_k + i],
        Decay::PerHead => x.decay[t * n_head + head],
    };
    // Keys of a row after the decay from there to row `t`, which may be the chunk's last.
    let decayed = |s: usize, t: usize| -> Vec<f32> {
        let mut key = of_key(x.k, s);
        for u in s + 1..=t {
            key.iter_mut().enumerate().for_each(|(i, k)| *k *= factor(u, i));
        }
        key
    };
    let mut from_start = vec![1.0; d_k];
    let mut errors: Vec<Vec<f32>> = Vec::new();
    for t in rows.clone() {
        from_start.iter_mut().enumerate().for_each(|(i, w)| *w *= factor(t, i));
        let meets = |by: &[f32], j: usize| {
            let by = by.iter().zip(&from_start).map(|(by, w)| by * w);
            dot(by, (0..d_k).map(|i| state[i * d_v + j]))
        };
        let keys: Vec<Vec<f32>> = (rows.start..=t).map(|s| decayed(s, t)).collect();
        let (k, q) = (of_key(x.k, t), of_key(x.q, t));
        let scores = |by: &[f32]| -> Vec<f32> {
            keys.iter().map(|key| dot(by.iter().copied(), key.iter().copied())).collect()
        };
        let (of_keys, of_queries) = (scores(&k), scores(&q));
        let row = t * n_head + head;
        let before = |scores: &[f32], errors: &[Vec<f32>], j: usize| {
            dot(scores.iter().copied(), errors.iter().map(|error| error[j]))
        };
        let error = |j: usize| {
            let met = meets(&k, j) + before(&of_keys, &errors, j);
            x.beta[row] * (x.v[row * d_v + j] - met)
        };
        let error = (0..d_v).map(error).collect();
        errors.push(error);
        for j in 0..d_v {
            let met = meets(&q, j) + before(&of_queries, &errors, j);
            out[row * d_v + j] = met / (d_k as f32).sqrt();
        }
    }
    let last = rows.end - 1;
    let keys: Vec<Vec<f32>> = rows.map(|t| decayed(t, last)).collect();
    for (at, state) in state.iter_mut().enumerate() {
        let (i, j) = (at / d_v, at % d_v);
        let learnt = dot(keys.iter().map(|key| key[i]), errors.iter().map(|error| error[j]));
        *state = *state * from_start[i] + learnt;
    }
}

/// One sequence's operands of Mamba-2's recurrence, laid out as [`super::ssd::ssd`] says.
pub(crate) struct SsdRows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) c: &'a [f32],
    pub(crate) dt: &'a [f32],
}

/// Mamba-2's recurrence (arXiv 2405.21060, section 6). Outputs `[n, n_head, head_dim]`; `state` is
/// `[n_head, n_state, head_dim]` and follows.
pub(crate) fn ssd(
    ssd: &Ssd,
    x: &SsdRows<'_>,
    chunk: usize,
    first_pos: usize,
    state: &mut [f32],
) -> Vec<f32> {
    let shape = &ssd.shape;
    let n = x.dt.len() / shape.n_head;
    let mut out = vec![0.0; x.x.len()];
    for rows in pieces(n, chunk, first_pos) {
        for head in 0..shape.n_head {
            let state = &mut state[head * shape.head_state()..][..shape.head_state()];
            ssd_chunk(ssd, x, head, rows.clone(), state, &mut out);
        }
    }
    out
}

/// One head's chunk. With time steps `D_t`, `w(s, t)` the decay from row `s` to row `t`, and `u_t = D_t x_t`:
///
/// - `y_t = w(start, t) C_t S + Σ_{s <= t} (C_t · B_s) w(s, t) u_s + d x_t`
/// - `S = w(start, end) S + Σ_t B_t w(t, end) u_t`
fn ssd_chunk(
    ssd: &Ssd,
    x: &SsdRows<'_>,
    head: usize,
    rows: Range<usize>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let shape = &ssd.shape;
    let (n_head, dim, n_state) = (shape.n_head, shape.head_dim, shape.n_state);
    let group = head / (n_head / shape.n_group);
    let of_group = |all: &'_ [f32], t: usize| -> Vec<f32> {
        all[(t * shape.n_group + group) * n_state..][..n_state].to_vec()
    };
    let step = |t: usize| {
        let step = x.dt[t * n_head + head] + ssd.dt_bias[head];
        step.max(0.0) + (-step.abs()).exp().ln_1p()
    };
    let decay = |s: usize, t: usize| -> f32 {
        (s + 1..=t).fold(1.0, |decay, u| decay * (step(u) * ssd.a[head]).exp())
    };
    let input = |t: usize, p: usize| x.x[(t * n_head + head) * dim + p];
    let mut from_start = 1.0;
    for t in rows.clone() {
        from_start *= (step(t) * ssd.a[head]).exp();
        let c = of_group(x.c, t);
        let weights: Vec<f32> =
            (rows.start..=t).map(|s| dot(c.clone(), of_group(x.b, s)) * decay(s, t)).collect();
        for p in 0..dim {
            let of_state = dot(c.clone(), (0..n_state).map(|i| state[i * dim + p]));
            let of_rows = dot(weights.clone(), (rows.start..=t).map(|s| step(s) * input(s, p)));
            out[(t * n_head + head) * dim + p] =
                of_state * from_start + of_rows + ssd.d[head] * input(t, p);
        }
    }
    let last = rows.end - 1;
    for i in 0..n_state {
        let by: Vec<f32> =
            rows.clone().map(|t| of_group(x.b, t)[i] * decay(t, last) * step(t)).collect();
        for p in 0..dim {
            let learnt = dot(by.clone(), rows.clone().map(|t| input(t, p)));
            let state = &mut state[i * dim + p];
            *state = *state * from_start + learnt;
        }
    }
}
