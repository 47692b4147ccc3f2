//! Streams that are updated by turns, and ways of one row, against their definitions in f64.

use std::sync::Arc;

use super::*;
use crate::block::tests::{Tensors, bits, close, noise, wide};
use crate::kernels::available;
use crate::spec::{AltUpSpec, AltUpStep};

const N_EMBD: usize = 48;
const N_ROWS: usize = 9;
const EPS: f32 = 1e-6;
/// Three streams; beside the first are the layers' rows, then the other two.
const ALTUP: AltUpSpec = AltUpSpec { n: 3, second: 1, eps: EPS };

/// Result of a step: the block's input, the stream and the rows beside it.
#[derive(Clone)]
struct Left {
    input: Vec<f32>,
    hidden: Vec<f32>,
    beside: Vec<Vec<f32>>,
}

fn rows(x: &[f32]) -> Rows {
    Rows::new(x.to_vec(), x.len() / N_ROWS)
}

/// Runs a step with every table, the same bits on each.
fn run(step: AltUpStep, tensors: &Tensors, x: &[f32], beside: &[Vec<f32>], output: &[f32]) -> Left {
    let mut first: Option<Left> = None;
    for kernels in available() {
        let device = Device::cpu(kernels, 2, None).unwrap();
        let (model, mut progress) = (Arc::new(tensors.gguf()), |_| ());
        let mut loader = WeightLoader::new(&model, &*model, &device, &mut progress);
        let residual = altup::load(&mut loader, ALTUP, step, "blk.0.", N_EMBD).unwrap();
        loader.finish(&model.tensors().iter().collect::<Vec<_>>()).unwrap();
        let scratch = device.scratch();
        let on = On { device: &device, scratch: &scratch };
        let mut all = BoundaryRows::stream(rows(x));
        all.beside = beside.iter().map(|beside| rows(beside)).collect();
        let mut inputs = Inputs::new(scratch.take(N_ROWS, N_EMBD));
        let kept = residual.enter(on, None, &mut all, &mut inputs);
        let met = Met { output: rows(output), input: &inputs.rows, kept };
        residual.meet(on, met, &mut all);
        let left = Left {
            input: inputs.rows.to_vec(),
            hidden: all.hidden.to_vec(),
            beside: all.beside.iter().map(|beside| beside.to_vec()).collect(),
        };
        let first = first.get_or_insert_with(|| left.clone());
        assert!(bits(&left.input) == bits(&first.input), "{}: input", kernels.name);
        assert!(bits(&left.hidden) == bits(&first.hidden), "{}: the stream", kernels.name);
        for (left, same) in left.beside.iter().zip(&first.beside) {
            assert!(bits(left) == bits(same), "{}: beside", kernels.name);
        }
    }
    first.expect("the reference is always there")
}

/// The weights of streams that a router makes of a row.
fn weights(tensors: &Tensors, coefs: &str, x: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(EPS)).sqrt() / N_EMBD as f64;
    let norm = tensors.get("blk.0.altup_router_norm.weight");
    let normed: Vec<f64> = x.iter().zip(norm).map(|(x, w)| x * factor * f64::from(*w)).collect();
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
    let output = noise(N_ROWS * N_EMBD, 24);
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
    let left = run(AltUpStep::Predict, &tensors, &x, &beside, &output);
    close("what the block reads", &left.input, &want[0], 2e-6);
    close("the second", &left.beside[1], &want[1], 2e-6);
    close("the third", &left.beside[2], &want[2], 2e-6);
    assert_eq!(bits(&left.beside[ALTUP.prediction()]), bits(&left.input));
    let sum: Vec<f32> = left.input.iter().zip(&output).map(|(x, y)| x + y).collect();
    assert_eq!(bits(&left.hidden), bits(&sum));
}

#[test]
fn streams_are_corrected_by_how_far_the_first_is_from_its_prediction() {
    const COEFS: &str = "blk.0.altup_correct_coef.weight";
    let tensors = altup_tensors(COEFS, ALTUP.n);
    let (x, output) = (noise(N_ROWS * N_EMBD, 5), noise(N_ROWS * N_EMBD, 25));
    let mut beside = beside();
    beside.push(noise(N_ROWS * N_EMBD, 23));
    let mut want = vec![Vec::new(); ALTUP.n];
    for row in 0..N_ROWS {
        let at = row * N_EMBD..(row + 1) * N_EMBD;
        let came: Vec<f32> =
            x[at.clone()].iter().zip(&output[at.clone()]).map(|(x, y)| x + y).collect();
        let came = wide(&came);
        let predictions = [3, 1, 2].map(|i: usize| wide(&beside[i][at.clone()]));
        let weights = weights(&tensors, COEFS, &came);
        for (j, want) in want.iter_mut().enumerate() {
            let difference = |e: usize| came[e] - predictions[0][e];
            want.extend(
                (0..N_EMBD).map(|e| predictions[j][e] + (1.0 + weights[j]) * difference(e)),
            );
        }
    }
    let left = run(AltUpStep::Correct, &tensors, &x, &beside, &output);
    assert_eq!(bits(&left.input), bits(&x));
    close("the first stream", &left.hidden, &want[0], 4e-6);
    close("the second", &left.beside[1], &want[1], 4e-6);
    close("the third", &left.beside[2], &want[2], 4e-6);
}

#[test]
fn what_is_made_of_the_first_stream_is_added_to_the_others() {
    const SCALE: &str = "blk.0.altup_correct_scale.weight";
    let mut tensors = Tensors::default();
    tensors.add(SCALE, &[N_EMBD]);
    let (x, beside, output) = (noise(N_ROWS * N_EMBD, 6), beside(), noise(N_ROWS * N_EMBD, 26));
    let left = run(AltUpStep::Others, &tensors, &x, &beside, &output);
    let scale = tensors.get(SCALE).iter().cycle();
    let scaled: Vec<f32> = x.iter().zip(scale).map(|(x, scale)| x * scale).collect();
    assert_eq!(bits(&left.input), bits(&scaled));
    assert_eq!(bits(&left.hidden), bits(&x));
    for i in ALTUP.others() {
        let sum: Vec<f32> = beside[i].iter().zip(&output).map(|(came, y)| came + y).collect();
        assert_eq!(bits(&left.beside[i]), bits(&sum));
    }
}

/// The stream behind a block that reads `x`, behind a norm that doubles it, and gives `y`.
fn met(residual: &dyn Residual, x: f32, y: f32) -> f32 {
    let device = Device::cpu(crate::kernels::select(None).unwrap(), 1, None).unwrap();
    let scratch = device.scratch();
    let on = On { device: &device, scratch: &scratch };
    let mut rows = BoundaryRows::stream(Rows::new(vec![x], 1));
    rows.beside = vec![Rows::new(vec![100.0], 1)];
    let mut inputs = Inputs::new(Rows::new(vec![0.0], 1));
    let kept = residual.enter(on, None, &mut rows, &mut inputs);
    let read = Rows::new(vec![2.0 * x], 1);
    residual.meet(on, Met { output: Rows::new(vec![y], 1), input: &read, kept }, &mut rows);
    rows.hidden[0]
}

#[test]
fn outputs_meet_one_row_in_their_ways() {
    assert_eq!(met(&Plain, 3.0, 5.0), 8.0);
    assert_eq!(met(&Scaled { output: 2.0, stream: 0.5 }, 3.0, 5.0), 6.5);
    assert_eq!(met(&FromNorm { scale: 3.0 }, 3.0, 5.0), 23.0);
    assert_eq!(met(&AsBefore(Box::new(Plain)), 3.0, 5.0), 8.0);
}

#[test]
fn branches_read_what_was_there_before_them() {
    let device = Device::cpu(crate::kernels::select(None).unwrap(), 1, None).unwrap();
    let scratch = device.scratch();
    let on = On { device: &device, scratch: &scratch };
    let mut rows = BoundaryRows::stream(Rows::new(vec![3.0], 1));
    let mut inputs = Inputs::new(Rows::new(vec![7.0], 1));
    let (beside, early) = (AsBefore(Box::new(Plain)), OfLayerInput(Box::new(Plain)));
    let of_input = [beside.enter_layer(on, None, &rows), early.enter_layer(on, None, &rows)];
    inputs.begin_layer(of_input.into_iter().flatten());
    rows.hidden = Rows::new(vec![5.0], 1);
    beside.enter(on, None, &mut rows, &mut inputs);
    assert_eq!(inputs.rows[0], 7.0);
    early.enter(on, None, &mut rows, &mut inputs);
    assert_eq!(inputs.rows[0], 3.0);
    Plain.enter(on, None, &mut rows, &mut inputs);
    assert_eq!(inputs.rows[0], 5.0);
}
