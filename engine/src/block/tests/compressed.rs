//! Attention to a window and to entries against its definition, which takes every position by itself and remembers all.

use super::{OfTwo, Tensors, noise, wide};
use crate::kernels::{RopeLayout, RopeParams};
use crate::spec::{BlockKind, CompressedSpec, EntriesSpec, EntryIndexSpec, Rotation};

const N_EMBD: usize = 40;
const EPS: f32 = 1e-5;
const BASE: f64 = 100.0;
/// Elements of a head that are rotated.
const N_ROT: usize = 8;
/// Rows of two sequences: over several pages, and a short one.
const LENGTHS: [usize; 2] = [200, 30];
/// An index with so many heads that equal scores are unlikely.
const INDEX: EntryIndexSpec = EntryIndexSpec { n_head: 18, head_dim: 12, per_row: 5 };

fn spec(window: usize, entries: Option<EntriesSpec>) -> CompressedSpec {
    CompressedSpec {
        n_head: 6,
        head_dim: 20,
        n_rot: N_ROT,
        q_rank: 12,
        window,
        spare: 0,
        n_group: 3,
        group_rank: 7,
        rotation: Rotation::Model,
        eps: EPS,
        entries,
    }
}

fn fine(per_row: usize) -> EntriesSpec {
    EntriesSpec { every: 4, overlaps: true, index: Some(EntryIndexSpec { per_row, ..INDEX }) }
}

fn tensors(spec: &CompressedSpec) -> Tensors {
    let mut tensors = Tensors::default();
    let mut add = |part: &str, ne: &[usize]| tensors.add(&format!("blk.0.{part}.weight"), ne);
    let CompressedSpec { n_head, head_dim, q_rank, n_group, group_rank, .. } = *spec;
    add("attn_q_a", &[N_EMBD, q_rank]);
    add("attn_q_a_norm", &[q_rank]);
    add("attn_q_b", &[q_rank, n_head * head_dim]);
    add("attn_kv", &[N_EMBD, head_dim]);
    add("attn_kv_a_norm", &[head_dim]);
    add("attn_sinks", &[n_head]);
    add("attn_output_a", &[n_head / n_group * head_dim, n_group * group_rank]);
    add("attn_output_b", &[n_group * group_rank, N_EMBD]);
    let Some(entries) = spec.entries else { return tensors };
    let mut compressor = |stem: &str, width: usize| {
        let n_input = entries.input_width(width);
        add(&format!("{stem}_kv"), &[N_EMBD, n_input]);
        add(&format!("{stem}_gate"), &[N_EMBD, n_input]);
        add(&format!("{stem}_ape"), &[n_input, entries.every]);
        add(&format!("{stem}_norm"), &[width]);
    };
    compressor("attn_compressor", head_dim);
    if let Some(index) = entries.index {
        compressor("indexer_compressor", index.head_dim);
        add("indexer.attn_q_b", &[q_rank, index.n_head * index.head_dim]);
        add("indexer.proj", &[N_EMBD, index.n_head]);
    }
    tensors
}

fn rope() -> RopeParams {
    RopeParams {
        layout: RopeLayout::Norm,
        n_rot: N_ROT,
        freq_base: BASE as f32,
        freq_scale: 1.0,
        freq_factors: None,
        attn_factor: 1.0,
        yarn: None,
    }
}

fn normed(x: &[f64], weight: Option<&[f32]>) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(EPS)).sqrt();
    let weight = |i: usize| weight.map_or(1.0, |weight| f64::from(weight[i]));
    x.iter().enumerate().map(|(i, x)| x * factor * weight(i)).collect()
}

/// The last elements turned by a position, forwards or back.
fn turned(x: &[f64], pos: usize, sign: f64) -> Vec<f64> {
    let mut out = x.to_vec();
    let first = x.len() - N_ROT;
    for (i, pair) in out[first..].chunks_exact_mut(2).enumerate() {
        let angle = sign * pos as f64 * BASE.powf(-2.0 * i as f64 / N_ROT as f64);
        let (sin, cos) = angle.sin_cos();
        (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
    }
    out
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Entry `entry` of the positions whose inputs are `x`.
fn entry(
    tensors: &Tensors,
    stem: &str,
    width: usize,
    spec: &EntriesSpec,
    x: &[Vec<f64>],
    entry: usize,
) -> Vec<f64> {
    let times = |part: &str, x| tensors.times(&format!("blk.0.{stem}_{part}.weight"), 0, x);
    let by_place = tensors.get(&format!("blk.0.{stem}_ape.weight"));
    let n_input = spec.input_width(width);
    let start = entry * spec.every;
    let first = if spec.overlaps { start.saturating_sub(spec.every) } else { start };
    let positions: Vec<usize> = (first..start + spec.every).collect();
    let rows: Vec<[Vec<f64>; 2]> =
        positions.iter().map(|p| [times("kv", &x[*p]), times("gate", &x[*p])]).collect();
    let column = |j: usize| {
        let at = |p: usize| if spec.overlaps && p >= start { width + j } else { j };
        let gate = |(row, p): (&[Vec<f64>; 2], &usize)| {
            let of_place = by_place[p % spec.every * n_input + at(*p)];
            (row[1][at(*p)] + f64::from(of_place)).exp()
        };
        let weights: Vec<f64> = rows.iter().zip(&positions).map(gate).collect();
        let values = rows.iter().zip(&positions).map(|(row, p)| row[0][at(*p)]);
        values.zip(&weights).map(|(v, w)| v * w).sum::<f64>() / weights.iter().sum::<f64>()
    };
    let made: Vec<f64> = (0..width).map(column).collect();
    let norm = tensors.get(&format!("blk.0.{stem}_norm.weight"));
    turned(&normed(&made, Some(norm)), start, 1.0)
}

/// The entries with these keys of the index that the row at `pos` attends to.
fn best(
    tensors: &Tensors,
    index: &EntryIndexSpec,
    keys: &[Vec<f64>],
    x: &[f64],
    narrow: &[f64],
    pos: usize,
) -> Vec<usize> {
    let q = tensors.times("blk.0.indexer.attn_q_b.weight", 0, narrow);
    let weights = tensors.times("blk.0.indexer.proj.weight", 0, x);
    let score = |key: &Vec<f64>| {
        let heads = q.chunks_exact(index.head_dim).zip(&weights);
        heads.map(|(q, w)| w * dot(&turned(q, pos, 1.0), key).max(0.0)).sum::<f64>()
    };
    let scores: Vec<f64> = keys.iter().map(score).collect();
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(index.per_row);
    order
}

/// One sequence through the block.
fn plain(tensors: &Tensors, spec: &CompressedSpec, x: &[f32]) -> Vec<f64> {
    let times = |part: &str, x: &[f64]| tensors.times(&format!("blk.0.{part}.weight"), 0, x);
    let get = |part: &str| Some(tensors.get(&format!("blk.0.{part}.weight")));
    let (mut inputs, mut near, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let (mut entries, mut index_keys) = (Vec::new(), Vec::new());
    for (pos, x) in x.chunks_exact(N_EMBD).map(wide).enumerate() {
        let narrow = normed(&times("attn_q_a", &x), get("attn_q_a_norm"));
        let q = times("attn_q_b", &narrow);
        let key = normed(&times("attn_kv", &x), get("attn_kv_a_norm"));
        near.push(turned(&key, pos, 1.0));
        inputs.push(x.clone());
        let mut seen: Vec<&Vec<f64>> = Vec::new();
        if let Some(of) = &spec.entries {
            if (pos + 1) % of.every == 0 {
                let n = pos / of.every;
                entries.push(entry(tensors, "attn_compressor", spec.head_dim, of, &inputs, n));
                if let Some(index) = of.index {
                    let (stem, width) = ("indexer_compressor", index.head_dim);
                    index_keys.push(entry(tensors, stem, width, of, &inputs, n));
                }
            }
            match &of.index {
                Some(index) => {
                    let best = best(tensors, index, &index_keys, &x, &narrow, pos);
                    seen.extend(best.iter().map(|e| &entries[*e]));
                }
                None => seen.extend(&entries),
            }
        }
        seen.extend(&near[(pos + 1).saturating_sub(spec.window)..]);
        let mut heads = Vec::new();
        for (h, q) in q.chunks_exact(spec.head_dim).enumerate() {
            let q = turned(&normed(q, None), pos, 1.0);
            let scale = 1.0 / (spec.head_dim as f64).sqrt();
            let weights: Vec<f64> = seen.iter().map(|k| (scale * dot(&q, k)).exp()).collect();
            let sink = f64::from(tensors.get("blk.0.attn_sinks.weight")[h]).exp();
            let total = weights.iter().sum::<f64>() + sink;
            let sum = |j: usize| weights.iter().zip(&seen).map(|(w, v)| w * v[j]).sum::<f64>();
            let value: Vec<f64> = (0..spec.head_dim).map(|j| sum(j) / total).collect();
            heads.extend(turned(&value, pos, -1.0));
        }
        let matrix = tensors.get("blk.0.attn_output_a.weight");
        let of_group = heads.len() / spec.n_group;
        let groups =
            heads.chunks_exact(of_group).zip(matrix.chunks_exact(of_group * spec.group_rank));
        let narrow: Vec<f64> = groups.flat_map(|(x, w)| super::product(w, x)).collect();
        out.extend(times("attn_output_b", &narrow));
    }
    out
}

/// Both sequences in one ubatch against the definition, then cut and mixed for the same bits.
fn check(spec: &CompressedSpec) {
    let (tensors, rope) = (tensors(spec), rope());
    let x = LENGTHS.map(|n| noise(n * N_EMBD, n as u64));
    let want: Vec<f64> = x.iter().flat_map(|x| plain(&tensors, spec, x)).collect();
    let kind = BlockKind::Compressed(spec.clone());
    let block = OfTwo { kind, tensors: &tensors, n_embd: N_EMBD, rope: Some(&rope) };
    block.check(&x, &want, 5e-5, &[1, 3, 7, 64, 130]);
}

#[test]
fn rows_attend_to_their_window() {
    [1, 17, 128].into_iter().for_each(|window| check(&spec(window, None)));
}

#[test]
fn rows_attend_to_the_entries_that_the_index_scores_best() {
    // At last a row sees 50 entries; with 64 it attends to all.
    for (window, per_row) in [(16, 1), (1, 5), (16, 30), (70, 64)] {
        check(&spec(window, Some(fine(per_row))));
    }
}

#[test]
fn rows_attend_to_all_entries_where_there_is_no_index() {
    for (every, overlaps) in [(128, false), (64, false), (4, true), (8, false)] {
        check(&spec(16, Some(EntriesSpec { every, overlaps, index: None })));
    }
}
