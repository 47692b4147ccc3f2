//! Embedded n-grams against their definition, in one ubatch and in steps.

use super::{Bench, Tensors, bits, close, noise, wide};
use crate::device::Rows;
use crate::kernels::available;
use crate::spec::{BlockKind, NgramHead, NgramSpec};

const N_EMBD: usize = 12;
const STREAMS: usize = 3;
const WIDTH: usize = STREAMS * N_EMBD;
const HEAD: usize = 3;
const TAPS: usize = 4;
const LONGEST: usize = 3;
const ROWS: usize = 60;
const END: u32 = 2;
const EPS: f32 = 1e-5;
/// Rows of each sequence: more and fewer than the convolution reaches back.
const LENGTHS: [usize; 2] = [40, 6];

fn spec() -> NgramSpec {
    let heads = [(0, 11), (11, 13), (24, 17), (41, 19)];
    NgramSpec {
        n_streams: STREAMS,
        n_embd: N_EMBD,
        longest: LONGEST,
        multipliers: vec![1_000_003, 77_777, 0xffff_ffff_0001],
        heads: heads.map(|(first, size)| NgramHead { first, size }).into(),
        table_rows: ROWS,
        end: END,
        conv_taps: TAPS,
        eps: EPS,
    }
}

fn tensors() -> Tensors {
    let mut tensors = Tensors::default();
    tensors.add("per_layer_token_embd.weight", &[HEAD, ROWS]);
    let mut add = |part: &str, ne: &[usize]| tensors.add(&format!("blk.0.ple_{part}.weight"), ne);
    add("key", &[N_EMBD, WIDTH]);
    add("value", &[N_EMBD, N_EMBD]);
    add("norm_key", &[WIDTH]);
    add("norm_query", &[N_EMBD, STREAMS]);
    add("norm_conv", &[WIDTH]);
    add("conv1d", &[TAPS, WIDTH]);
    tensors
}

/// Some ends of text among few tokens.
fn tokens(sequence: usize) -> Vec<u32> {
    (0..LENGTHS[sequence]).map(|i| ((i * i * 7 + i + sequence) % 9) as u32).collect()
}

fn normed(x: &[f64], weights: &[f32]) -> Vec<f64> {
    let of_stream = |(x, w): (&[f64], &[f32])| {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(EPS)).sqrt();
        x.iter().zip(w).map(|(x, w)| x * factor * f64::from(*w)).collect::<Vec<f64>>()
    };
    x.chunks_exact(N_EMBD).zip(weights.chunks_exact(N_EMBD)).flat_map(of_stream).collect()
}

/// All streams of a sequence `[n, WIDTH]` as the block leaves them.
fn plain(tensors: &Tensors, tokens: &[u32], streams: &[f64]) -> Vec<f64> {
    let (spec, name) = (spec(), |part: &str| format!("blk.0.ple_{part}.weight"));
    let norm = |part: &str, x: &[f64]| normed(x, tensors.get(&name(part)));
    let (mut inputs, mut out) = (Vec::new(), Vec::new());
    for (i, x) in streams.chunks_exact(WIDTH).enumerate() {
        let before: Vec<Option<u32>> =
            (0..LONGEST).map(|back| i.checked_sub(back).map(|at| tokens[at])).collect();
        let table = tensors.get("per_layer_token_embd.weight");
        let rows = spec.rows(&before);
        let e: Vec<f64> =
            rows.flat_map(|row| wide(&table[row as usize * HEAD..][..HEAD])).collect();
        let keys = norm("norm_key", &tensors.times(&name("key"), 0, &e));
        let queries = norm("norm_query", x);
        let value = tensors.times(&name("value"), 0, &e);
        let mut gated = Vec::new();
        for (key, query) in keys.chunks_exact(N_EMBD).zip(queries.chunks_exact(N_EMBD)) {
            let s = key.iter().zip(query).map(|(k, q)| k * q).sum::<f64>() / (N_EMBD as f64).sqrt();
            let root = s.abs().sqrt().copysign(s);
            gated.extend(value.iter().map(|v| v / (1.0 + (-root).exp())));
        }
        inputs.push(norm("norm_conv", &gated));
        let taps = tensors.get(&name("conv1d"));
        for c in 0..WIDTH {
            let tap = |k: usize| {
                let back = (TAPS - 1 - k) * LONGEST;
                let x = i.checked_sub(back).map_or(0.0, |at| inputs[at][c]);
                f64::from(taps[c * TAPS + k]) * x
            };
            let y: f64 = (0..TAPS).map(tap).sum();
            out.push(x[c] + gated[c] + y / (1.0 + (-y).exp()));
        }
    }
    out
}

/// Runs rows of the sequences, and returns all streams as the block leaves them, row by row.
fn step(bench: &mut Bench, parts: &[(u32, usize, usize)], streams: &[Vec<f32>; 2]) -> Vec<f32> {
    let mut rows: Vec<&[f32]> = Vec::new();
    bench.tokens.clear();
    for &(s, at, n) in parts {
        let (streams, tokens) = (&streams[s as usize], tokens(s as usize));
        rows.extend(streams[at * WIDTH..(at + n) * WIDTH].chunks_exact(WIDTH));
        bench.tokens.extend(&tokens[at..at + n]);
    }
    let stream = |i: usize| -> Vec<f32> {
        rows.iter().flat_map(|row| row[i * N_EMBD..][..N_EMBD].to_vec()).collect()
    };
    bench.beside = (1..STREAMS).map(stream).map(|x| Rows::new(x, N_EMBD)).collect();
    let (first, gain) = (stream(0), bench.step(parts, None, &stream(0)));
    let first: Vec<f32> = first.iter().zip(gain).map(|(x, gain)| x + gain).collect();
    let all: Vec<&[f32]> =
        std::iter::once(&first[..]).chain(bench.beside.iter().map(|rows| &rows[..])).collect();
    (0..rows.len())
        .flat_map(|row| all.iter().flat_map(move |x| x[row * N_EMBD..][..N_EMBD].to_vec()))
        .collect()
}

#[test]
fn streams_gain_what_the_last_tokens_say() {
    let (tensors, kind) = (tensors(), BlockKind::Ngram(spec()));
    let streams = [0, 1].map(|s| noise(LENGTHS[s] * WIDTH, s as u64 + 5));
    let want: Vec<f64> =
        (0..2).flat_map(|s| plain(&tensors, &tokens(s), &wide(&streams[s]))).collect();
    let mut first: Option<Vec<f32>> = None;
    for kernels in available() {
        let mut bench = Bench::new(&kind, &tensors, N_EMBD, kernels);
        let whole = [(0, 0, LENGTHS[0]), (1, 0, LENGTHS[1])];
        let out = step(&mut bench, &whole, &streams);
        close("n-grams", &out, &want, 2e-5);
        let first = first.get_or_insert_with(|| out.clone());
        assert!(bits(&out) == bits(first), "tables differ: {}", kernels.name);
        for size in [1, 2, 7, 33] {
            let mut bench = Bench::new(&kind, &tensors, N_EMBD, kernels);
            let mut outs = Vec::new();
            for (s, len) in LENGTHS.into_iter().enumerate() {
                for at in (0..len).step_by(size) {
                    let n = size.min(len - at);
                    outs.extend(step(&mut bench, &[(s as u32, at, n)], &streams));
                }
            }
            assert!(bits(&outs) == bits(first), "{}: in steps of {size}", kernels.name);
        }
    }
}
