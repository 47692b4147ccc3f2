//! Latent attention against its definition: here keys and values of every head are made from the compressed
//! rows, and nothing is absorbed.

use super::{Bench, OfTwo, Tensors, bits, close, noise, wide};
use crate::kernels::{PoolSizes, RopeLayout, RopeParams, Window, available};
use crate::spec::{BlockKind, ChosenBy, ChosenSpec, IndexSpec, MlaGate, MlaSpec, Rotation};

const N_EMBD: usize = 40;
const EPS: f32 = 1e-5;
/// Elements of a head that are rotated.
const N_PE: usize = 8;
/// Rows of each sequence: over a page's end, and a short one.
const LENGTHS: [usize; 2] = [90, 21];

fn spec(q_rank: Option<usize>, rotation: Rotation) -> MlaSpec {
    MlaSpec {
        n_head: 3,
        q_rank,
        kv_rank: 24,
        n_nope: 16,
        n_pe: N_PE,
        head_dim_v: 20,
        scale: 0.7,
        rotation,
        pe_norm: false,
        window: None,
        eps: EPS,
        gate: None,
        sinks: false,
        temperature: None,
        chosen: None,
    }
}

/// Sizes of an index: as many heads as make equal scores unlikely.
const INDEX: IndexSpec = IndexSpec {
    n_head: 18,
    head_dim: 12,
    rotation: Rotation::Model,
    rotates_last: false,
    halves: false,
    eps: EPS,
    shared: false,
};

fn tensors(spec: &MlaSpec) -> Tensors {
    let mut tensors = Tensors::default();
    if let (Some(_), Some(rank)) = (spec.chosen, spec.q_rank) {
        let mut add = |part: &str, ne: &[usize]| tensors.add(&format!("blk.0.indexer.{part}"), ne);
        add("attn_q_b.weight", &[rank, INDEX.n_head * INDEX.head_dim]);
        add("attn_k.weight", &[N_EMBD, INDEX.head_dim]);
        add("k_norm.weight", &[INDEX.head_dim]);
        add("k_norm.bias", &[INDEX.head_dim]);
        add("proj.weight", &[N_EMBD, INDEX.n_head]);
    }
    if let Some(n) = spec.chosen.map(|chosen| chosen.sizes.positions).filter(|n| *n > 1) {
        tensors.add("blk.0.indexer_compressor_gate.weight", &[N_EMBD, INDEX.head_dim]);
        tensors.add("blk.0.indexer_compressor_ape.weight", &[INDEX.head_dim, n]);
    }
    let mut add = |part: &str, ne: &[usize]| tensors.add(&format!("blk.0.attn_{part}.weight"), ne);
    let n_q = spec.n_head * (spec.n_nope + spec.n_pe);
    match spec.q_rank {
        None => add("q", &[N_EMBD, n_q]),
        Some(rank) => {
            add("q_a", &[N_EMBD, rank]);
            add("q_a_norm", &[rank]);
            add("q_b", &[rank, n_q]);
        }
    }
    add("kv_a_mqa", &[N_EMBD, spec.kv_rank + spec.n_pe]);
    add("kv_a_norm", &[spec.kv_rank]);
    add("k_b", &[spec.n_nope, spec.kv_rank, spec.n_head]);
    add("v_b", &[spec.kv_rank, spec.head_dim_v, spec.n_head]);
    match spec.gate {
        Some(MlaGate::EachValue) => add("gate", &[N_EMBD, spec.n_head * spec.head_dim_v]),
        Some(MlaGate::EachHead) => add("gate", &[N_EMBD, spec.n_head]),
        None => {}
    }
    add("output", &[spec.n_head * spec.head_dim_v, N_EMBD]);
    if spec.sinks {
        add("sinks", &[spec.n_head]);
    }
    if spec.pe_norm {
        add("k_norm", &[spec.n_pe]);
    }
    tensors
}

/// The same model with keys' and values' matrices in one, as older files have them.
fn unsplit(spec: &MlaSpec, tensors: &Tensors) -> Tensors {
    let mut out = Tensors(tensors.0.clone());
    let mut take = |part: &str| out.0.remove(&format!("blk.0.attn_{part}.weight")).unwrap().1;
    let (k, v) = (take("k_b"), take("v_b"));
    let mut both = Vec::new();
    let k_heads = k.chunks_exact(spec.kv_rank * spec.n_nope);
    for (k, v) in k_heads.zip(v.chunks_exact(spec.head_dim_v * spec.kv_rank)) {
        for i in 0..spec.n_nope {
            both.extend(k[i..].iter().step_by(spec.n_nope));
        }
        both.extend_from_slice(v);
    }
    let rows = spec.n_head * (spec.n_nope + spec.head_dim_v);
    out.put("blk.0.attn_kv_b.weight", &[spec.kv_rank, rows], both);
    out
}

fn rope() -> RopeParams {
    RopeParams {
        layout: RopeLayout::Norm,
        n_rot: 8,
        freq_base: 100.0,
        freq_scale: 1.0,
        freq_factors: None,
        attn_factor: 1.0,
        yarn: None,
    }
}

fn normed(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(EPS)).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * factor * f64::from(*w)).collect()
}

fn rotated(x: &[f64], pos: usize) -> Vec<f64> {
    let mut out = x.to_vec();
    for (i, pair) in out.chunks_exact_mut(2).enumerate() {
        let angle = pos as f64 * 100f64.powf(-2.0 * i as f64 / x.len() as f64);
        let (sin, cos) = angle.sin_cos();
        (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
    }
    out
}

/// One sequence through the block.
fn plain(tensors: &Tensors, spec: &MlaSpec, x: &[f32]) -> Vec<f64> {
    let name = |part: &str| format!("blk.0.attn_{part}.weight");
    let turned = |x: &[f64], pos| match spec.rotation {
        Rotation::None => x.to_vec(),
        Rotation::Model | Rotation::Local => rotated(x, pos),
    };
    // For each position: for each head [k_nope | k_pe] and v.
    let mut past: Vec<Vec<(Vec<f64>, Vec<f64>)>> = Vec::new();
    let (mut index, mut out) = (IndexPast::default(), Vec::new());
    for (pos, x) in x.chunks_exact(N_EMBD).enumerate() {
        let x = wide(x);
        let row = tensors.times(&name("kv_a_mqa"), 0, &x);
        let c = normed(&row[..spec.kv_rank], tensors.get(&name("kv_a_norm")));
        let mut k_pe = row[spec.kv_rank..].to_vec();
        if spec.pe_norm {
            k_pe = normed(&k_pe, tensors.get(&name("k_norm")));
        }
        let k_pe = turned(&k_pe, pos);
        let q = match spec.q_rank {
            None => tensors.times(&name("q"), 0, &x),
            Some(_) => {
                let narrow = tensors.times(&name("q_a"), 0, &x);
                let narrow = normed(&narrow, tensors.get(&name("q_a_norm")));
                tensors.times(&name("q_b"), 0, &narrow)
            }
        };
        past.push((0..spec.n_head).map(|h| head(tensors, spec, h, &c, &k_pe)).collect());
        let seen: Vec<usize> = match spec.chosen {
            Some(chosen) => {
                let last = rotates_last(&chosen);
                let turned = |x: &[f64]| turned_head(x, &turned, pos, last);
                index.attended(tensors, &x, &turned, chosen.sizes)
            }
            None => (spec.window.map_or(0, |window| window.first_visible(pos))..=pos).collect(),
        };
        let past: Vec<_> = seen.iter().map(|p| &past[*p]).collect();
        let mut heads = Vec::new();
        for (h, q) in q.chunks_exact(spec.n_nope + spec.n_pe).enumerate() {
            let q = [q[..spec.n_nope].to_vec(), turned(&q[spec.n_nope..], pos)].concat();
            let score = |k: &[f64]| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>();
            let scores = past.iter().map(|heads| f64::from(spec.scale) * score(&heads[h].0));
            let weights: Vec<f64> = scores.map(f64::exp).collect();
            let sink =
                if spec.sinks { f64::from(tensors.get(&name("sinks"))[h]).exp() } else { 0.0 };
            let total: f64 = weights.iter().sum::<f64>() + sink;
            heads.extend((0..spec.head_dim_v).map(|j| {
                let sum = weights.iter().zip(&past).map(|(w, heads)| w * heads[h].1[j]);
                sum.sum::<f64>() / total
            }));
        }
        if let Some(kind) = spec.gate {
            let gate = tensors.times(&name("gate"), 0, &x);
            let each = if kind == MlaGate::EachHead { spec.head_dim_v } else { 1 };
            let gate = gate.iter().flat_map(|g| std::iter::repeat_n(g, each));
            heads.iter_mut().zip(gate).for_each(|(head, g)| *head /= 1.0 + (-g).exp());
        }
        out.extend(tensors.times(&name("output"), 0, &heads));
    }
    out
}

/// Key and value of head `h`.
fn head(
    tensors: &Tensors,
    spec: &MlaSpec,
    h: usize,
    c: &[f64],
    k_pe: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let k_b = &tensors.get("blk.0.attn_k_b.weight")[h * spec.kv_rank * spec.n_nope..];
    let mut key = vec![0.0; spec.n_nope];
    for (c, row) in c.iter().zip(k_b.chunks_exact(spec.n_nope)) {
        key.iter_mut().zip(row).for_each(|(key, w)| *key += f64::from(*w) * c);
    }
    key.extend_from_slice(k_pe);
    (key, tensors.times("blk.0.attn_v_b.weight", h, c))
}

fn rotates_last(chosen: &ChosenSpec) -> bool {
    matches!(chosen.by, ChosenBy::Index(index) if index.rotates_last)
}

/// The first or the last elements of an index's head rotated, where the model rotates.
fn turned_head(
    x: &[f64],
    turned: &dyn Fn(&[f64], usize) -> Vec<f64>,
    pos: usize,
    last: bool,
) -> Vec<f64> {
    if last {
        let (still, pe) = x.split_at(x.len() - N_PE);
        [still.to_vec(), turned(pe, pos)].concat()
    } else {
        [turned(&x[..N_PE], pos), x[N_PE..].to_vec()].concat()
    }
}

/// Keys and gates that the index keeps of the positions so far.
#[derive(Default)]
struct IndexPast {
    keys: Vec<Vec<f64>>,
    /// Gates of the keys, where these are pooled.
    gates: Vec<Vec<f64>>,
}

impl IndexPast {
    /// The positions that the next row attends to, with this input.
    fn attended(
        &mut self,
        tensors: &Tensors,
        x: &[f64],
        turned: &dyn Fn(&[f64]) -> Vec<f64>,
        sizes: PoolSizes,
    ) -> Vec<usize> {
        self.keys.push(index_key(tensors, x, turned));
        let PoolSizes { positions: n, per_row } = sizes;
        let pooled = (n > 1).then(|| {
            self.gates.push(tensors.times("blk.0.indexer_compressor_gate.weight", 0, x));
            pooled(tensors, &self.keys, &self.gates, n)
        });
        let narrow = tensors.times("blk.0.attn_q_a.weight", 0, x);
        let narrow = normed(&narrow, tensors.get("blk.0.attn_q_a_norm.weight"));
        let keys = pooled.as_ref().unwrap_or(&self.keys);
        let pools = best(tensors, keys, x, &narrow, turned, per_row);
        let of_pools = pools.into_iter().flat_map(|pool| pool * n..(pool + 1) * n);
        let n_seen = self.keys.len();
        of_pools.chain(n_seen / n * n..n_seen).collect()
    }
}

/// The index's key of a row.
fn index_key(tensors: &Tensors, x: &[f64], turned: &dyn Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let key = tensors.times("blk.0.indexer.attn_k.weight", 0, x);
    let n = key.len() as f64;
    let mean = key.iter().sum::<f64>() / n;
    let variance = key.iter().map(|k| (k - mean).powi(2)).sum::<f64>() / n;
    let weights = tensors.get("blk.0.indexer.k_norm.weight");
    let biases = tensors.get("blk.0.indexer.k_norm.bias");
    let norm = |(k, (w, b)): (&f64, (&f32, &f32))| {
        (k - mean) / (variance + f64::from(EPS)).sqrt() * f64::from(*w) + f64::from(*b)
    };
    let key: Vec<f64> = key.iter().zip(weights.iter().zip(biases)).map(norm).collect();
    turned(&key)
}

/// The keys of whole pools of `n` positions.
fn pooled(tensors: &Tensors, keys: &[Vec<f64>], gates: &[Vec<f64>], n: usize) -> Vec<Vec<f64>> {
    let bias = tensors.get("blk.0.indexer_compressor_ape.weight");
    let pool = |(keys, gates): (&[Vec<f64>], &[Vec<f64>])| -> Vec<f64> {
        let element = |e: usize| {
            let weight = |i: usize| (gates[i][e] + f64::from(bias[i * INDEX.head_dim + e])).exp();
            let total: f64 = (0..n).map(weight).sum();
            (0..n).map(|i| weight(i) * keys[i][e]).sum::<f64>() / total
        };
        (0..INDEX.head_dim).map(element).collect()
    };
    keys.chunks_exact(n).zip(gates.chunks_exact(n)).map(pool).collect()
}

/// The keys that a row with this input and these narrow queries scores best.
fn best(
    tensors: &Tensors,
    keys: &[Vec<f64>],
    x: &[f64],
    narrow: &[f64],
    turned: &dyn Fn(&[f64]) -> Vec<f64>,
    per_row: usize,
) -> Vec<usize> {
    let q = tensors.times("blk.0.indexer.attn_q_b.weight", 0, narrow);
    let weights = tensors.times("blk.0.indexer.proj.weight", 0, x);
    let score = |key: &[f64]| {
        let of_head = |(q, w): (&[f64], &f64)| {
            let q = turned(q);
            w * q.iter().zip(key).map(|(q, k)| q * k).sum::<f64>().max(0.0)
        };
        q.chunks_exact(INDEX.head_dim).zip(&weights).map(of_head).sum::<f64>()
    };
    let scores: Vec<f64> = keys.iter().map(|key| score(key)).collect();
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(per_row);
    order
}

/// Both sequences in one ubatch against the definition, then cut and mixed for the same bits.
fn check(spec: &MlaSpec, tensors: &Tensors, plain_tensors: &Tensors) {
    let rope = (spec.rotation == Rotation::Model).then(rope);
    let x = LENGTHS.map(|n| noise(n * N_EMBD, n as u64));
    let want: Vec<f64> = x.iter().flat_map(|x| plain(plain_tensors, spec, x)).collect();
    let kind = BlockKind::Mla(spec.clone());
    let block = OfTwo { kind, tensors, n_embd: N_EMBD, rope: rope.as_ref() };
    block.check(&x, &want, 2e-5, &[1, 7, 64]);
}

#[test]
fn latent_attention_matches_its_definition() {
    let variants = [
        (None, Rotation::None, None),
        (None, Rotation::Model, None),
        (Some(12), Rotation::Model, None),
        (Some(12), Rotation::None, Some(MlaGate::EachValue)),
        (None, Rotation::Model, Some(MlaGate::EachHead)),
    ];
    for (q_rank, rotation, gate) in variants {
        let spec = MlaSpec { gate, sinks: gate.is_some(), ..spec(q_rank, rotation) };
        let tensors = tensors(&spec);
        check(&spec, &tensors, &tensors);
    }
}

#[test]
fn a_window_bounds_what_rows_see_and_what_is_rotated_of_a_key_may_be_normed() {
    for width in [1, 30, 64] {
        let window = Some(Window::Sliding(width));
        let spec = MlaSpec { window, pe_norm: true, ..spec(Some(12), Rotation::Model) };
        let tensors = tensors(&spec);
        check(&spec, &tensors, &tensors);
    }
}

/// The order of an index's elements does not matter: with pairs in halves it chooses what it does with the same rows in
/// another order and pairs side by side.
#[test]
fn an_index_may_have_its_pairs_in_halves() {
    let chosen = |halves| {
        let by = ChosenBy::Index(IndexSpec { halves, ..INDEX });
        Some(ChosenSpec { sizes: PoolSizes::single(9), by, place: 0 })
    };
    let spec = MlaSpec { chosen: chosen(false), ..spec(Some(12), Rotation::Model) };
    let side_by_side = tensors(&spec);
    let mut halves = Tensors(side_by_side.0.clone());
    let mut in_halves = |part: &str, width: usize| {
        let values = &mut halves.0.get_mut(&format!("blk.0.indexer.{part}")).unwrap().1;
        for head in values.chunks_exact_mut(INDEX.head_dim * width) {
            let before = head.to_vec();
            for at in 0..N_PE {
                let from = 2 * (at % (N_PE / 2)) + at / (N_PE / 2);
                head[at * width..][..width].copy_from_slice(&before[from * width..][..width]);
            }
        }
    };
    in_halves("attn_q_b.weight", 12);
    in_halves("attn_k.weight", N_EMBD);
    in_halves("k_norm.weight", 1);
    in_halves("k_norm.bias", 1);
    let x = noise(LENGTHS[0] * N_EMBD, 3);
    let rope = rope();
    let run = |spec: &MlaSpec, tensors: &Tensors| {
        let kind = BlockKind::Mla(spec.clone());
        let kernels = available()[0];
        Bench::new(&kind, tensors, N_EMBD, kernels).step(&[(0, 0, LENGTHS[0])], Some(&rope), &x)
    };
    let want: Vec<f64> = wide(&run(&spec, &side_by_side));
    let out = run(&MlaSpec { chosen: chosen(true), ..spec.clone() }, &halves);
    close("pairs in halves", &out, &want, 1e-6);
    let other = run(&spec, &halves);
    assert!(bits(&other) != bits(&out), "the order of pairs matters");
}

#[test]
fn rows_attend_to_the_positions_that_the_index_scores_best() {
    for (per_row, rotates_last) in [(1, false), (9, true), (64, false), (70, true)] {
        let by = ChosenBy::Index(IndexSpec { rotates_last, ..INDEX });
        let chosen = Some(ChosenSpec { sizes: PoolSizes::single(per_row), by, place: 0 });
        let spec = MlaSpec { chosen, sinks: rotates_last, ..spec(Some(12), Rotation::Model) };
        let tensors = tensors(&spec);
        check(&spec, &tensors, &tensors);
    }
}

/// The pools include some that lie over a page's end, with and without rotated elements.
#[test]
fn rows_attend_to_the_pools_that_the_index_scores_best() {
    for (positions, per_row, n_pe) in [(2, 3, 0), (4, 1, 0), (3, 5, N_PE), (5, 2, 0), (4, 16, 0)] {
        let rotation = if n_pe > 0 { Rotation::Model } else { Rotation::None };
        let sizes = PoolSizes { positions, per_row };
        let chosen = Some(ChosenSpec { sizes, by: ChosenBy::Index(INDEX), place: 0 });
        let spec = MlaSpec { chosen, n_pe, ..spec(Some(12), rotation) };
        let tensors = tensors(&spec);
        check(&spec, &tensors, &tensors);
    }
}

#[test]
fn older_files_with_one_matrix_for_keys_and_values_are_split() {
    let spec = spec(None, Rotation::Model);
    let tensors = tensors(&spec);
    check(&spec, &unsplit(&spec, &tensors), &tensors);
}
