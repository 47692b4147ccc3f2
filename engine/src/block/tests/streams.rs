//! Rows of layers, streams updated by turns and the way past attention, against their definitions in f64.

use super::{Bench, Tensors, bits, close, noise, wide};
use crate::device::Rows;
use crate::kernels::available;
use crate::spec::{AltUpSpec, BlockKind, LaurelSpec, LayerRowSpec};

const N_EMBD: usize = 48;
const N_ROWS: usize = 9;
const EPS: f32 = 1e-6;
/// Three streams; beside the first are the layers' rows, then the other two.
const ALTUP: AltUpSpec = AltUpSpec { n: 3, second: 1, eps: EPS };

/// What a block makes of rows with `beside` them on every table, the same bits on each: `out`, and what it leaves there.
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

/// The weights of streams that a router makes of a row.
fn weights(tensors: &Tensors, coefs: &str, x: &[f64]) -> Vec<f64> {
    let normed = rms_norm(x, tensors.get("blk.0.altup_router_norm.weight"));
    let normed: Vec<f64> = normed.iter().map(|x| x / N_EMBD as f64).collect();
    let numbers = tensors.times("blk.0.altup_router.weight", 0, &normed);
    tensors.times(coefs, 0, &numbers.iter().map(|x| x.tanh()).collect::<Vec<f64>>())
}

fn altup_tensors(coefs: &str, n_coefs: usize) -> Tensors {
    let mut tensors = Tensors::default();
    tensors.add("blk.0.altup_router_norm.weight", &[N_EMBD]);
    // Its rows are divided by their width.
    let router = noise(ALTUP.n * N_EMBD, 3).iter().map(|x| x * N_EMBD as f32).collect();
    tensors.put("blk.0.altup_router.weight", &[N_EMBD, ALTUP.n], router);
    tensors.add(coefs, &[ALTUP.n, n_coefs]);
    tensors
}

/// The rows of layers, and two streams.
fn beside() -> Vec<Vec<f32>> {
    let stream = |seed| noise(N_ROWS * N_EMBD, seed);
    vec![noise(N_ROWS * 3 * 8, 20), stream(21), stream(22)]
}

#[test]
fn streams_are_predicted_of_what_they_were() {
    const COEFS: &str = "blk.0.altup_predict_coef.weight";
    let tensors = altup_tensors(COEFS, ALTUP.n * ALTUP.n);
    let (x, beside) = (noise(N_ROWS * N_EMBD, 4), beside());
    let mut want = vec![Vec::new(); ALTUP.n];
    for row in 0..N_ROWS {
        let at = row * N_EMBD..(row + 1) * N_EMBD;
        let streams = [&x[at.clone()], &beside[1][at.clone()], &beside[2][at]].map(wide);
        let weights = weights(&tensors, COEFS, &streams[0]);
        for (j, want) in want.iter_mut().enumerate() {
            let gain = |e: usize| (0..3).map(|k| weights[j * 3 + k] * streams[k][e]).sum::<f64>();
            want.extend((0..N_EMBD).map(|e| streams[j][e] + gain(e)));
        }
    }
    let (out, left) = run(&BlockKind::Predict(ALTUP), &tensors, &x, &beside);
    let sum: Vec<f32> = out.iter().zip(&x).map(|(out, x)| x + out).collect();
    close("the first stream", &sum, &want[0], 2e-6);
    close("the second", &left[1], &want[1], 2e-6);
    close("the third", &left[2], &want[2], 2e-6);
    assert_eq!(bits(&left[ALTUP.prediction()]), bits(&sum));
}

#[test]
fn streams_are_corrected_by_how_far_the_first_is_from_its_prediction() {
    const COEFS: &str = "blk.0.altup_correct_coef.weight";
    let tensors = altup_tensors(COEFS, ALTUP.n);
    let x = noise(N_ROWS * N_EMBD, 5);
    let mut beside = beside();
    beside.push(noise(N_ROWS * N_EMBD, 23));
    let mut want = vec![Vec::new(); ALTUP.n];
    for row in 0..N_ROWS {
        let at = row * N_EMBD..(row + 1) * N_EMBD;
        let came = wide(&x[at.clone()]);
        let predictions = [3, 1, 2].map(|i: usize| wide(&beside[i][at.clone()]));
        let weights = weights(&tensors, COEFS, &came);
        for (j, want) in want.iter_mut().enumerate() {
            let difference = |e: usize| came[e] - predictions[0][e];
            want.extend(
                (0..N_EMBD).map(|e| predictions[j][e] + (1.0 + weights[j]) * difference(e)),
            );
        }
    }
    let (out, left) = run(&BlockKind::Correct(ALTUP), &tensors, &x, &beside);
    let sum: Vec<f32> = out.iter().zip(&x).map(|(out, x)| x + out).collect();
    close("the first stream", &sum, &want[0], 3e-6);
    close("the second", &left[1], &want[1], 3e-6);
    close("the third", &left[2], &want[2], 3e-6);
}

#[test]
fn a_layers_row_goes_to_the_stream_or_to_the_others() {
    for altup in [None, Some(ALTUP)] {
        let spec = LayerRowSpec { width: 8, n_left: 2, eps: EPS, altup };
        let mut tensors = Tensors::default();
        tensors.add("blk.0.inp_gate.weight", &[N_EMBD, 8]);
        tensors.add("blk.0.proj.weight", &[8, N_EMBD]);
        tensors.add("blk.0.post_norm.weight", &[N_EMBD]);
        if altup.is_some() {
            tensors.add("blk.0.altup_correct_scale.weight", &[N_EMBD]);
        }
        let (x, beside) = (noise(N_ROWS * N_EMBD, 6), beside());
        let mut want = Vec::new();
        for row in 0..N_ROWS {
            let mut x = wide(&x[row * N_EMBD..][..N_EMBD]);
            if altup.is_some() {
                let scale = tensors.get("blk.0.altup_correct_scale.weight");
                x.iter_mut().zip(scale).for_each(|(x, scale)| *x *= f64::from(*scale));
            }
            let gate = tensors.times("blk.0.inp_gate.weight", 0, &x);
            // Of three layers' rows this layer's is the one before the last.
            let mine = &beside[0][row * 24 + 8..][..8];
            let gated: Vec<f64> =
                gate.iter().zip(mine).map(|(g, row)| gelu(*g) * f64::from(*row)).collect();
            let wide = tensors.times("blk.0.proj.weight", 0, &gated);
            want.extend(rms_norm(&wide, tensors.get("blk.0.post_norm.weight")));
        }
        let (out, left) = run(&BlockKind::LayerRow(spec), &tensors, &x, &beside);
        if altup.is_none() {
            close("the stream", &out, &want, 1e-5);
            assert_eq!(left, beside);
            continue;
        }
        assert!(out.iter().all(|x| *x == 0.0));
        for i in ALTUP.others() {
            let sum: Vec<f64> =
                want.iter().zip(&beside[i]).map(|(w, came)| w + f64::from(*came)).collect();
            close("another stream", &left[i], &sum, 1e-5);
        }
    }
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
