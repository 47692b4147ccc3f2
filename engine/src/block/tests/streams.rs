//! Rows of layers and the way past attention, against their definitions in f64.

use super::{Bench, Tensors, bits, close, noise, wide};
use crate::device::Rows;
use crate::kernels::available;
use crate::spec::{BlockKind, LaurelSpec, LayerRowSpec};

const N_EMBD: usize = 48;
const N_ROWS: usize = 9;
const EPS: f32 = 1e-6;

/// Runs a block on rows with `beside` them on every table, and checks that all give the same bits. Returns its output
/// and the rows beside it.
fn run(
    kind: &BlockKind,
    tensors: &Tensors,
    x: &[f32],
    beside: &[Vec<f32>],
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let mut first: Option<(Vec<f32>, Vec<Vec<f32>>)> = None;
    for kernels in available() {
        let mut bench = Bench::new(kind, tensors, N_EMBD, kernels);
        let rows = |x: &Vec<f32>| Rows::new(x.clone(), x.len() / N_ROWS);
        bench.beside = beside.iter().map(rows).collect();
        let out = bench.step(&[(1, 0, x.len() / N_EMBD)], None, x);
        let first = first.get_or_insert_with(|| {
            (out.clone(), bench.beside.iter().map(|b| b.to_vec()).collect())
        });
        assert!(bits(&out) == bits(&first.0), "{}", kernels.name);
        for (left, same) in bench.beside.iter().zip(&first.1) {
            assert!(bits(left) == bits(same), "{}: beside", kernels.name);
        }
    }
    first.expect("the reference is always there")
}

fn rms_norm(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(EPS)).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * factor * f64::from(*w)).collect()
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// The rows of layers, and two streams.
fn beside() -> Vec<Vec<f32>> {
    let stream = |seed| noise(N_ROWS * N_EMBD, seed);
    vec![noise(N_ROWS * 3 * 8, 20), stream(21), stream(22)]
}

#[test]
fn a_gate_of_the_stream_opens_a_layers_row() {
    let spec = LayerRowSpec { width: 8, n_left: 2, eps: EPS };
    let mut tensors = Tensors::default();
    tensors.add("blk.0.inp_gate.weight", &[N_EMBD, 8]);
    tensors.add("blk.0.proj.weight", &[8, N_EMBD]);
    tensors.add("blk.0.post_norm.weight", &[N_EMBD]);
    let (x, beside) = (noise(N_ROWS * N_EMBD, 6), beside());
    let mut want = Vec::new();
    for row in 0..N_ROWS {
        let gate = tensors.times("blk.0.inp_gate.weight", 0, &wide(&x[row * N_EMBD..][..N_EMBD]));
        // Of three layers' rows this layer's is the one before the last.
        let mine = &beside[0][row * 24 + 8..][..8];
        let gated: Vec<f64> =
            gate.iter().zip(mine).map(|(g, row)| gelu(*g) * f64::from(*row)).collect();
        let wide = tensors.times("blk.0.proj.weight", 0, &gated);
        want.extend(rms_norm(&wide, tensors.get("blk.0.post_norm.weight")));
    }
    let (out, left) = run(&BlockKind::LayerRow(spec), &tensors, &x, &beside);
    close("the stream", &out, &want, 1e-5);
    assert_eq!(left, beside);
}

#[test]
fn the_way_past_attention_adds_a_low_rank_change() {
    let mut tensors = Tensors::default();
    tensors.add("blk.0.laurel_l.weight", &[N_EMBD, 8]);
    tensors.add("blk.0.laurel_r.weight", &[8, N_EMBD]);
    tensors.add("blk.0.laurel_post_norm.weight", &[N_EMBD]);
    let x = noise(N_ROWS * N_EMBD, 7);
    let mut want = Vec::new();
    for row in x.chunks_exact(N_EMBD) {
        let row = wide(row);
        let narrow = tensors.times("blk.0.laurel_l.weight", 0, &row);
        let change = tensors.times("blk.0.laurel_r.weight", 0, &narrow);
        let change = rms_norm(&change, tensors.get("blk.0.laurel_post_norm.weight"));
        want.extend(change.iter().zip(&row).map(|(change, x)| change + x));
    }
    let kind = BlockKind::Laurel(LaurelSpec { rank: 8, eps: EPS });
    close("laurel", &run(&kind, &tensors, &x, &[]).0, &want, 1e-5);
}
