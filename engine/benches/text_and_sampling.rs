//! Benches of text and sampling, whose time adds to a forward pass: loading a vocabulary, cutting a long prompt into
//! tokens, and drawing a token from a row of 150,000 logits.
//!
//! Run it with `cargo bench -p brigade-engine --bench text_and_sampling`. The vocabularies are found through
//! `BRIGADE_TEST_DATA`, a folder that holds `vocabs/`. Without it only sampling is measured.

use std::hint::black_box;
use std::path::Path;

use brigade_engine::batch::{SamplerSetup, SamplingParams};
use brigade_engine::sample::{Next, Sampler, uniform};
use brigade_gguf::Gguf;
use brigade_text::Tokenizer;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Bytes of the long prompt.
const PROMPT_BYTES: usize = 100 << 10;
/// Logits of a row.
const N_VOCAB: u32 = 150_000;
const VOCABS: [&str; 4] = ["llama-spm", "llama-bpe", "qwen2", "deepseek-llm"];

/// Prose with code, digits and other scripts in it.
fn prompt() -> String {
    let part = "The line hands buckets along; 12345 of them, at 3.14 m/s.\n\
                fn main() {\n    println!(\"Grüße, 世界! {}\", x[0]);\n}\n\nПривет, мир. ";
    part.chars().cycle().take(PROMPT_BYTES).collect()
}

fn text(c: &mut Criterion) {
    let Some(root) = std::env::var_os("BRIGADE_TEST_DATA") else {
        println!("tokenizers skipped: BRIGADE_TEST_DATA is not set");
        return;
    };
    let prompt = prompt();
    for name in VOCABS {
        let path = Path::new(&root).join(format!("vocabs/ggml-vocab-{name}.gguf"));
        let gguf = Gguf::open_header_only(path).expect("a vocabulary");
        let mut group = c.benchmark_group(name);
        group.sample_size(10);
        group.bench_function("load", |b| {
            b.iter(|| Tokenizer::from_gguf(&gguf).expect("a tokenizer"));
        });
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
        group.throughput(Throughput::Bytes(prompt.len() as u64));
        group.bench_function("encode 100 KiB", |b| {
            b.iter(|| tokenizer.encode(black_box(&prompt), true, true).expect("ids"));
        });
        group.finish();
    }
}

fn sampling(c: &mut Criterion) {
    let row: Vec<f32> = (0..N_VOCAB).map(|i| (uniform(1, i) * 20.0 - 10.0) as f32).collect();
    let history: Vec<u32> = (0..100).collect();
    let off = SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    let cases = [
        ("greedy", SamplingParams::greedy(), None),
        ("default", SamplingParams::default(), None),
        ("default, 20 log-probabilities", SamplingParams::default(), Some(20)),
        ("penalties", SamplingParams { repeat_penalty: 1.1, ..SamplingParams::default() }, None),
        ("top-p alone", SamplingParams { top_p: 0.95, ..off.clone() }, None),
        ("no filter", off, None),
    ];
    let mut group = c.benchmark_group("sample, 150,000 logits");
    for (name, params, top_logprobs) in cases {
        let setup = SamplerSetup { params, seed: 1, top_logprobs, ..SamplerSetup::default() };
        let mut sampler = Sampler::new();
        let mut pos = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                pos += 1;
                sampler
                    .sample(black_box(&row), &setup, &history, Next { pos, ..Next::default() })
                    .expect("a token")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, sampling, text);
criterion_main!(benches);
