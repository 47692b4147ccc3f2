//! Mixers with the delta rule. All forms in which files hold their tensors give the same bits. So does a
//! prompt in two parts and in one.

use super::{Bench, Tensors, bits, noise};
use crate::batch::{Planes, SlotId};
use crate::kernels::{Decay, DeltaShape, KeyHeads, available};
use crate::spec::{BlockKind, DeltaNetSpec, KdaGates, KdaSpec, OutputGate};
use crate::state::PartRows;

const N_EMBD: usize = 48;
const TAPS: usize = 3;

fn part(pos: u32, n_rows: usize) -> PartRows {
    PartRows {
        slot: SlotId(1),
        pos,
        rows: 0..n_rows,
        want: crate::batch::Want::Nothing,
        mu: None,
        known: 0,
        planes: Planes { from: SlotId(1), to: SlotId(1) },
    }
}

/// Outputs of `n` rows in one piece and in two; both must be the same bits.
fn outputs(kind: &BlockKind, tensors: &Tensors) -> Vec<u32> {
    let n = 9;
    let x = noise(n * N_EMBD, 3);
    let (head, tail) = x.split_at(4 * N_EMBD);
    let table = available()[0];
    let whole = Bench::new(kind, tensors, N_EMBD, table).forward(&[part(0, n)], None, &x);
    let mut bench = Bench::new(kind, tensors, N_EMBD, table);
    let mut pieces = bench.forward(&[part(0, 4)], None, head);
    pieces.extend(bench.forward(&[part(4, n - 4)], None, tail));
    assert_eq!(bits(&whole), bits(&pieces), "a cut changes the outputs");
    assert!(whole.iter().any(|y| y.abs() > 1e-3), "outputs vanish");
    bits(&whole)
}

fn net(key_heads: KeyHeads) -> BlockKind {
    gated_net(key_heads, OutputGate::Silu)
}

fn gated_net(key_heads: KeyHeads, gate: OutputGate) -> BlockKind {
    let decay = Decay::PerHead;
    let shape = DeltaShape { n_head: 6, n_key_head: 3, key_heads, d_k: 8, d_v: 8, decay };
    BlockKind::DeltaNet(DeltaNetSpec { shape, conv_taps: TAPS, eps: 1e-6, gate })
}

/// A gated delta net of 3 key heads with 2 value heads of 8 each.
fn net_tensors() -> Tensors {
    let mut tensors = Tensors::default();
    let mut add = |name: &str, ne: &[usize]| tensors.add(&format!("blk.0.{name}"), ne);
    add("attn_qkv.weight", &[N_EMBD, 96]);
    add("attn_gate.weight", &[N_EMBD, 48]);
    add("ssm_ba.weight", &[N_EMBD, 12]);
    add("ssm_conv1d.weight", &[TAPS, 96]);
    add("ssm_dt.bias", &[6]);
    add("ssm_norm.weight", &[8]);
    add("ssm_out.weight", &[48, N_EMBD]);
    tensors.put("blk.0.ssm_a", &[6], vec![-0.1, -0.5, -1.0, -2.0, -4.0, -0.01]);
    tensors
}

/// Rows `range` of a matrix.
fn rows(tensors: &Tensors, name: &str, range: std::ops::Range<usize>) -> Vec<f32> {
    tensors.get(name)[range.start * N_EMBD..range.end * N_EMBD].to_vec()
}

#[test]
fn a_delta_net_in_one_matrix_is_the_same_as_in_two() {
    let tensors = net_tensors();
    let mut joined = net_tensors();
    let qkv = |range| rows(&tensors, "blk.0.attn_qkv.weight", range);
    let mut all = Vec::new();
    for key in 0..3 {
        all.extend(qkv(8 * key..8 * key + 8));
        all.extend(qkv(24 + 8 * key..24 + 8 * key + 8));
        all.extend(qkv(48 + 16 * key..48 + 16 * key + 16));
        all.extend(rows(&tensors, "blk.0.attn_gate.weight", 16 * key..16 * key + 16));
    }
    joined.0.remove("blk.0.attn_qkv.weight");
    joined.0.remove("blk.0.attn_gate.weight");
    joined.put("blk.0.ssm_in.weight", &[N_EMBD, 144], all);
    let kind = net(KeyHeads::Grouped);
    assert_eq!(outputs(&kind, &joined), outputs(&kind, &tensors));
}

#[test]
fn a_delta_net_with_separate_gates_is_the_same_as_with_one_matrix() {
    let tensors = net_tensors();
    let mut apart = net_tensors();
    let ba = |row: usize| rows(&tensors, "blk.0.ssm_ba.weight", row..row + 1);
    let per_head = |first: usize| (0..6).flat_map(|h| ba(h / 2 * 4 + first + h % 2)).collect();
    apart.0.remove("blk.0.ssm_ba.weight");
    apart.put("blk.0.ssm_beta.weight", &[N_EMBD, 6], per_head(0));
    apart.put("blk.0.ssm_alpha.weight", &[N_EMBD, 6], per_head(2));
    let kind = net(KeyHeads::Grouped);
    assert_eq!(outputs(&kind, &apart), outputs(&kind, &tensors));
    assert_ne!(outputs(&net(KeyHeads::Tiled), &apart), outputs(&kind, &tensors), "order of heads");
}

/// A gate that is half open for all: a sigmoid then halves what a gate of ones lets through as a SiLU, but for its factor.
#[test]
fn an_output_gate_is_what_is_said() {
    let mut tensors = net_tensors();
    let with = |tensors: &Tensors, gate| -> Vec<f32> {
        outputs(&gated_net(KeyHeads::Grouped, gate), tensors)
            .into_iter()
            .map(f32::from_bits)
            .collect()
    };
    tensors.put("blk.0.attn_gate.weight", &[N_EMBD, 48], vec![0.01; N_EMBD * 48]);
    let (silu, sigmoid) = (with(&tensors, OutputGate::Silu), with(&tensors, OutputGate::Sigmoid));
    // All gates of a row are the same number: the sum of its input, times that.
    for (row, (silu, sigmoid)) in noise(9 * N_EMBD, 3)
        .chunks_exact(N_EMBD)
        .zip(silu.chunks_exact(N_EMBD).zip(sigmoid.chunks_exact(N_EMBD)))
    {
        let gate: f32 = row.iter().sum::<f32>() * 0.01;
        for (silu, sigmoid) in silu.iter().zip(sigmoid) {
            assert!((silu - sigmoid * gate).abs() < 1e-5, "{silu} {sigmoid} {gate}");
        }
    }
}

/// KDA with 2 heads of 16.
fn kda_tensors() -> Tensors {
    let mut tensors = Tensors::default();
    let mut add = |name: &str, ne: &[usize]| tensors.add(&format!("blk.0.{name}"), ne);
    add("ssm_f_a.weight", &[N_EMBD, 16]);
    add("ssm_f_b.weight", &[16, 32]);
    add("ssm_g_a.weight", &[N_EMBD, 16]);
    add("ssm_g_b.weight", &[16, 32]);
    add("ssm_beta.weight", &[N_EMBD, 2]);
    add("ssm_dt.bias", &[32]);
    add("ssm_norm.weight", &[16]);
    add("attn_output.weight", &[32, N_EMBD]);
    for part in ["q", "k", "v"] {
        add(&format!("attn_{part}.weight"), &[N_EMBD, 32]);
        add(&format!("ssm_conv1d_{part}.weight"), &[TAPS, 1, 32]);
    }
    tensors.put("blk.0.ssm_a", &[1, 2], vec![-0.2, -3.0]);
    tensors
}

fn kda(gates: KdaGates, decay_bound: Option<f32>) -> BlockKind {
    let (eps, unit_eps) = (1e-6, 1e-6);
    let spec =
        KdaSpec { n_head: 2, head_dim: 16, conv_taps: TAPS, eps, unit_eps, decay_bound, gates };
    BlockKind::Kda(spec)
}

/// As [`kda_tensors`], with the two matrices of the output gate joined to one.
fn full_gate_tensors() -> Tensors {
    let mut tensors = kda_tensors();
    let mut take = |part: &str| tensors.0.remove(&format!("blk.0.ssm_g_{part}.weight")).unwrap().1;
    let (a, b) = (take("a"), take("b"));
    let cell =
        |row: usize, col: usize| (0..16).map(|i| b[row * 16 + i] * a[i * N_EMBD + col]).sum();
    let full = (0..32).flat_map(|row| (0..N_EMBD).map(move |col| (row, col)));
    let full = full.map(|(row, col)| cell(row, col)).collect();
    tensors.put("blk.0.ssm_g.weight", &[N_EMBD, 32], full);
    tensors
}

#[test]
fn an_output_gate_in_one_matrix_is_the_product_of_two() {
    for bound in [None, Some(-5.0)] {
        let two = outputs(&kda(KdaGates::LowRank, bound), &kda_tensors());
        let one = outputs(&kda(KdaGates::FullOutput, bound), &full_gate_tensors());
        for (one, two) in one.iter().zip(&two) {
            let (one, two) = (f32::from_bits(*one), f32::from_bits(*two));
            assert!((one - two).abs() < 1e-5, "{one} {two}");
        }
    }
}

#[test]
fn bounded_decays_are_another_function() {
    let bounded = outputs(&kda(KdaGates::LowRank, Some(-5.0)), &kda_tensors());
    assert_ne!(bounded, outputs(&kda(KdaGates::LowRank, None), &kda_tensors()));
    // A bound near 0 forgets nothing, whatever the gate says.
    let nothing = outputs(&kda(KdaGates::LowRank, Some(-1e-9)), &kda_tensors());
    assert_ne!(nothing, bounded);
    let mut other = kda_tensors();
    other.put("blk.0.ssm_a", &[2], vec![-1.0, -1.5]);
    assert_eq!(outputs(&kda(KdaGates::LowRank, Some(-1e-9)), &other), nothing);
}

/// With an epsilon that is far above their squares, queries and keys are short. So values are not corrected, and less is
/// read of them; but the norm behind makes up for what is read.
#[test]
fn norms_of_queries_and_keys_have_an_epsilon_of_their_own() {
    let with = |eps, unit_eps| match kda(KdaGates::LowRank, Some(-5.0)) {
        BlockKind::Kda(spec) => {
            outputs(&BlockKind::Kda(KdaSpec { eps, unit_eps, ..spec }), &kda_tensors())
        }
        other => panic!("{other:?}"),
    };
    let usual = with(1e-6, 1e-6);
    assert_ne!(with(1e-6, 10.0), usual);
    assert_ne!(with(10.0, 1e-6), usual);
    assert_ne!(with(10.0, 1e-6), with(1e-6, 10.0));
}

#[test]
fn kda_takes_fused_projections_and_both_shapes_of_convolutions() {
    let kind = kda(KdaGates::LowRank, None);
    let tensors = kda_tensors();
    let mut other = kda_tensors();
    let mut fused = Vec::new();
    for part in ["q", "k", "v"] {
        let weight = format!("blk.0.attn_{part}.weight");
        fused.extend_from_slice(tensors.get(&weight));
        other.0.remove(&weight);
        let conv = format!("blk.0.ssm_conv1d_{part}.weight");
        other.put(&conv, &[TAPS, 1, 32, 1], tensors.get(&conv).to_vec());
    }
    other.put("blk.0.attn_qkv.weight", &[N_EMBD, 96], fused);
    other.put("blk.0.ssm_a", &[1, 2, 1, 1], tensors.get("blk.0.ssm_a").to_vec());
    assert_eq!(outputs(&kind, &other), outputs(&kind, &tensors));
}
