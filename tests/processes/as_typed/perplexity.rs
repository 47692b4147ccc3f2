//! `brigade perplexity` on the demo model, with a text that it was not trained on. The bits are the same for
//! every number of workers, and the value is the one that plain logits give. It also checks what smaller
//! types between stages cost.
//!
//! `--nocapture` prints the figures.

use std::path::{Path, PathBuf};

use brigade_gguf::Gguf;
use brigade_model_tests::line::{Line, LineConfig};
use brigade_tests::process::run;
use brigade_text::Tokenizer;
use serde_json::Value;

const CTX: usize = 128;
const CHUNKS: usize = 6;

/// Bounds of the divergence from f32 between two stages, nats a token, and of the share of tokens at which
/// another one becomes the most probable.
const WIRE_TYPES: [(&str, f64, f64); 3] =
    [("f16", 2e-4, 0.03), ("bf16", 2.5e-4, 0.03), ("q8_0", 4e-4, 0.03)];

fn repository(path: &str) -> String {
    brigade_model_tests::places::root().join(path).to_str().unwrap().to_owned()
}

fn model() -> String {
    repository("coordinator/assets/demo.gguf")
}

fn text() -> String {
    repository("tests/data/demo/held-out.txt")
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("brigade-perplexity-{}-{name}", std::process::id()))
}

/// The output of the command, with f32 in the cache.
fn perplexity(more: &[&str]) -> Value {
    let (model, text) = (model(), text());
    let (ctx, chunks) = (CTX.to_string(), CHUNKS.to_string());
    let mut args =
        vec!["perplexity", "-m", &model, "-f", &text, "--ctx", &ctx, "--chunks", &chunks];
    args.extend(["--threads", "1", "--kv-type", "f32", "--json"]);
    args.extend(more);
    let output = run(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// From logits of the engine alone, as the definition says.
fn by_hand() -> f64 {
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(model()).unwrap()).unwrap();
    let tokens = tokenizer.encode(&std::fs::read_to_string(text()).unwrap(), true, false).unwrap();
    let mut line = Line::open(Path::new(&model()), &LineConfig::default());
    let (mut sum, mut n) = (0.0, 0);
    for chunk in tokens.chunks_exact(CTX).take(CHUNKS) {
        let mut chunk = chunk.to_vec();
        chunk[0] = tokenizer.bos().unwrap();
        let rows = line.logits(&chunk, CTX);
        for pos in CTX / 2..CTX - 1 {
            let total: f64 = rows[pos].iter().map(|logit| f64::from(*logit).exp()).sum();
            sum -= (f64::from(rows[pos][chunk[pos + 1] as usize]).exp() / total).ln();
            n += 1;
        }
    }
    (sum / f64::from(n)).exp()
}

fn workers_change_no_bit_and_smaller_types_little() {
    let (one, two) = (scratch("1"), scratch("2"));
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    let exact = perplexity(&["--workers", "1", "--save-logits", one]);
    let cut = perplexity(&["--workers", "2", "--save-logits", two, "--base", one]);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number: {value}"));
    assert_eq!(exact["perplexity"], cut["perplexity"]);
    assert_eq!(exact["scored_tokens"], CHUNKS * (CTX - 1 - CTX / 2));
    assert!(std::fs::read(one).unwrap() == std::fs::read(two).unwrap(), "logits of two workers");
    assert_eq!((number(&cut["base"]["max_kl"]), number(&cut["base"]["same_top"])), (0.0, 1.0));
    assert_eq!(cut["base"]["perplexity"], exact["perplexity"]);

    let expected = by_hand();
    let got = number(&exact["perplexity"]);
    assert!((got / expected - 1.0).abs() < 1e-9, "{got} and by hand {expected}");

    for (wire_type, max_kl, max_other) in WIRE_TYPES {
        let coarse = perplexity(&["--workers", "2", "--wire-type", wire_type, "--base", one]);
        println!("{wire_type}: {coarse}");
        assert_eq!(coarse["wire_type"], wire_type);
        let kl = number(&coarse["base"]["mean_kl"]);
        assert!(kl > 0.0 && kl < max_kl, "{wire_type}: KL divergence {kl:e}");
        assert!(1.0 - number(&coarse["base"]["same_top"]) <= max_other, "{wire_type}: {coarse}");
        assert_ne!(coarse["perplexity"], exact["perplexity"], "{wire_type} changes nothing");
    }

    let (model, text) = (model(), text());
    let other = ["perplexity", "-m", &model, "-f", &text, "--ctx", "64", "--base", one];
    let output = run(&other);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--ctx"), "{error}");
    for file in [one, two] {
        std::fs::remove_file(file).unwrap();
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: workers_change_no_bit_and_smaller_types_little;
];
