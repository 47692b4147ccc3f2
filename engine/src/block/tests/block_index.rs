//! Attention to the blocks of positions that an index chooses, against its definition.

use super::{Bench, Tensors, bits, close, noise, wide};
use crate::kernels::{BlockSizes, RopeLayout, RopeParams, available};
use crate::spec::{
    AttentionSpec, BlockIndexSpec, BlockKind, BlockScoring, MaskSpec, QkNorm, Rotation,
};

const N_EMBD: usize = 40;
const EPS: f32 = 1e-5;
/// Elements of a head that are rotated.
const N_ROT: usize = 8;
const BASE: f32 = 100.0;
/// Rows of each sequence: over a page's end, and a short one.
const LENGTHS: [usize; 2] = [90, 21];

fn spec(sizes: BlockSizes, scoring: BlockScoring) -> AttentionSpec {
    AttentionSpec {
        scale: 0.7,
        rotation: Rotation::Model,
        qk_norm: Some(QkNorm::heads(EPS)),
        output_bias: false,
        mask: MaskSpec {
            index: Some(BlockIndexSpec { head_dim: 12, sizes, eps: EPS, scoring }),
            ..MaskSpec::default()
        },
        ..AttentionSpec::plain(6, 2, [16, 20])
    }
}

fn tensors(spec: &AttentionSpec) -> Tensors {
    let mut tensors = Tensors::default();
    let mut add = |part: &str, ne: &[usize]| tensors.add(&format!("blk.0.{part}.weight"), ne);
    let (n, kv, dk, dv) = (spec.n_head, spec.n_kv_head, spec.head_dim_k, spec.head_dim_v);
    add("attn_q", &[N_EMBD, n * dk]);
    add("attn_k", &[N_EMBD, kv * dk]);
    add("attn_v", &[N_EMBD, kv * dv]);
    add("attn_q_norm", &[dk]);
    add("attn_k_norm", &[dk]);
    add("attn_output", &[n * dv, N_EMBD]);
    let n_queries = match spec.mask.index.unwrap().scoring {
        BlockScoring::BestPosition => kv,
        BlockScoring::Mean { n_head } => n_head,
    };
    add("indexer.q_proj", &[N_EMBD, n_queries * spec.index_dim()]);
    add("indexer.k_proj", &[N_EMBD, spec.index_dim()]);
    add("indexer.q_norm", &[spec.index_dim()]);
    add("indexer.k_norm", &[spec.index_dim()]);
    tensors
}

fn rope() -> RopeParams {
    RopeParams {
        layout: RopeLayout::Neox,
        n_rot: N_ROT,
        freq_base: BASE,
        freq_scale: 1.0,
        freq_factors: None,
        attn_factor: 1.0,
        yarn: None,
    }
}

/// Heads of a projection, each normed and rotated.
fn heads(tensors: &Tensors, part: &str, norm: &str, x: &[f64], pos: usize) -> Vec<Vec<f64>> {
    let weight = tensors.get(&format!("blk.0.{norm}.weight"));
    let all = tensors.times(&format!("blk.0.{part}.weight"), 0, x);
    all.chunks_exact(weight.len()).map(|head| finished(head, weight, pos)).collect()
}

/// A head, normed and rotated.
fn finished(head: &[f64], weight: &[f32], pos: usize) -> Vec<f64> {
    let mean = head.iter().map(|x| x * x).sum::<f64>() / head.len() as f64;
    let factor = 1.0 / (mean + f64::from(EPS)).sqrt();
    let mut out: Vec<f64> =
        head.iter().zip(weight).map(|(x, w)| x * factor * f64::from(*w)).collect();
    for i in 0..N_ROT / 2 {
        let power = -2.0 * i as f64 / N_ROT as f64;
        let (sin, cos) = (pos as f64 * f64::from(BASE).powf(power)).sin_cos();
        let (a, b) = (out[i], out[i + N_ROT / 2]);
        (out[i], out[i + N_ROT / 2]) = (a * cos - b * sin, a * sin + b * cos);
    }
    out
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The positions that a head attends to, of those with these products of its index query.
fn seen(products: &[f64], sizes: BlockSizes) -> Vec<usize> {
    let blocks = products.chunks(sizes.positions);
    let scores: Vec<f64> =
        blocks.map(|block| block.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b))).collect();
    let forced = scores.len().saturating_sub(sizes.newest);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let rank = |b: &usize| if *b >= forced { f64::INFINITY } else { scores[*b] };
    order.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    order.truncate(sizes.per_row);
    (0..products.len()).filter(|pos| order.contains(&(pos / sizes.positions))).collect()
}

/// The positions that all heads attend to, by the means of the keys of whole blocks.
fn seen_by_means(
    tensors: &Tensors,
    queries: &[Vec<f64>],
    keys: &[Vec<f64>],
    sizes: BlockSizes,
) -> Vec<usize> {
    let norm = tensors.get("blk.0.indexer.k_norm.weight");
    let whole = keys.chunks_exact(sizes.positions);
    let behind = keys.len() - whole.remainder().len();
    let score = |(block, keys): (usize, &[Vec<f64>])| {
        let mean = |j: usize| keys.iter().map(|key| key[j]).sum::<f64>() / keys.len() as f64;
        let mean: Vec<f64> = (0..norm.len()).map(mean).collect();
        let key = finished(&mean, norm, block * sizes.positions);
        queries.iter().map(|q| product(q, &key).max(0.0)).sum::<f64>()
    };
    let scores: Vec<f64> = whole.enumerate().map(score).collect();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(sizes.per_row - 1);
    let is_seen = |pos: &usize| *pos >= behind || order.contains(&(pos / sizes.positions));
    (0..keys.len()).filter(is_seen).collect()
}

/// One sequence through the block.
fn plain(tensors: &Tensors, spec: &AttentionSpec, x: &[f32]) -> Vec<f64> {
    let BlockIndexSpec { sizes, scoring, .. } = spec.mask.index.unwrap();
    let (mut keys, mut values, mut index_keys, mut out) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (pos, x) in x.chunks_exact(N_EMBD).enumerate() {
        let x = wide(x);
        let of = |part, norm| heads(tensors, part, norm, &x, pos);
        keys.push(of("attn_k", "attn_k_norm"));
        values.push(tensors.times("blk.0.attn_v.weight", 0, &x));
        index_keys.push(match scoring {
            BlockScoring::BestPosition => of("indexer.k_proj", "indexer.k_norm").remove(0),
            BlockScoring::Mean { .. } => tensors.times("blk.0.indexer.k_proj.weight", 0, &x),
        });
        let index_q = of("indexer.q_proj", "indexer.q_norm");
        let mut attended = Vec::new();
        for (h, q) in of("attn_q", "attn_q_norm").iter().enumerate() {
            let kv = h * spec.n_kv_head / spec.n_head;
            let seen = match scoring {
                BlockScoring::BestPosition => {
                    let products = index_keys.iter().map(|key| product(&index_q[kv], key));
                    seen(&products.collect::<Vec<f64>>(), sizes)
                }
                BlockScoring::Mean { .. } => seen_by_means(tensors, &index_q, &index_keys, sizes),
            };
            let score = |p: &usize| f64::from(spec.scale) * product(q, &keys[*p][kv]);
            let weights: Vec<f64> = seen.iter().map(|p| score(p).exp()).collect();
            let total: f64 = weights.iter().sum();
            attended.extend((0..spec.head_dim_v).map(|j| {
                let value = |p: &usize| values[*p][kv * spec.head_dim_v + j];
                seen.iter().zip(&weights).map(|(p, w)| w * value(p)).sum::<f64>() / total
            }));
        }
        out.extend(tensors.times("blk.0.attn_output.weight", 0, &attended));
    }
    out
}

/// Both sequences in one ubatch against the definition, then in steps for the same bits.
#[test]
fn heads_attend_to_the_blocks_that_the_index_scores_best() {
    let sizes = [(8, 3, 1), (8, 4, 2), (64, 1, 1), (5, 3, 0), (16, 9, 1)];
    let best = sizes.map(|sizes| (sizes, BlockScoring::BestPosition));
    let sizes = [(4, 5, 1), (8, 2, 1), (1, 9, 1), (5, 4, 1), (64, 2, 1)];
    let means = sizes.map(|sizes| (sizes, BlockScoring::Mean { n_head: 7 }));
    for ((positions, per_row, newest), scoring) in best.into_iter().chain(means) {
        let spec = spec(BlockSizes { positions, per_row, newest }, scoring);
        let (tensors, rope, kind) = (tensors(&spec), rope(), BlockKind::Attention(spec.clone()));
        let x = LENGTHS.map(|n| noise(n * N_EMBD, n as u64));
        let want: Vec<f64> = x.iter().flat_map(|x| plain(&tensors, &spec, x)).collect();
        let mut first: Option<Vec<f32>> = None;
        for kernels in available() {
            let whole = [(0, 0, LENGTHS[0]), (1, 0, LENGTHS[1])];
            let mut bench = Bench::new(&kind, &tensors, N_EMBD, kernels);
            let out = bench.step(&whole, Some(&rope), &x.concat());
            close(&format!("{:?}", spec.mask.index), &out, &want, 2e-5);
            let first = first.get_or_insert_with(|| out.clone());
            assert!(bits(&out) == bits(first), "tables differ: {}", kernels.name);
            for step in [1, 7, 64] {
                let mut bench = Bench::new(&kind, &tensors, N_EMBD, kernels);
                let outs = [0, 1].map(|s| {
                    let steps = (0..LENGTHS[s]).step_by(step).flat_map(|at| {
                        let n = step.min(LENGTHS[s] - at);
                        let rows = &x[s][at * N_EMBD..(at + n) * N_EMBD];
                        bench.step(&[(s as u32, at, n)], Some(&rope), rows)
                    });
                    steps.collect::<Vec<f32>>()
                });
                let same = bits(&outs.concat()) == bits(first);
                assert!(same, "{}: {:?} in steps of {step}", kernels.name, spec.mask.index);
            }
        }
    }
}
