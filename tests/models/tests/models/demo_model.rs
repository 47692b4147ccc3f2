//! The built-in demo model is small and can stand in for a real one, and the engine agrees on it with the
//! program that trained it.
//!
//! `demo-model/reference.py` made `data/demo`: ids by the tokenizer of the training, and logits in f32 by JAX
//! from the file's dequantised weights. The engine may round activations to 8 bits.

use std::path::PathBuf;

use brigade_gguf::{Gguf, npy};
use brigade_model_tests::line::{Line, LineConfig};
use brigade_text::{ChatTemplate, TemplateInput, Tokenizer};
use serde_json::Value;

/// Most bytes of the model in the repository, and so in the binary.
const MAX_BYTES: u64 = 6_000_000;
/// Enough layers for process tests on several workers.
const MIN_LAYERS: usize = 6;
/// Limit of ||ours - theirs|| / ||theirs|| over all given logits: 8-bit activations.
const LOGITS_LIMIT: f64 = 3e-2;
/// Share of positions whose most probable token is the same.
const ARGMAX_SHARE: f64 = 0.9;

fn model_path() -> PathBuf {
    brigade_model_tests::places::root().join("coordinator/assets/demo.gguf")
}

fn data(name: &str) -> PathBuf {
    brigade_model_tests::places::of_tests("data/demo").join(name)
}

fn facts() -> Value {
    let text = std::fs::read_to_string(data("demo.json")).expect("the facts");
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids");
    list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no list {key}"))
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(model_path()).expect("a model")).expect("its tokenizer")
}

fn it_is_small_and_can_be_cut() {
    let bytes = std::fs::metadata(model_path()).expect("the file").len();
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
    let model = Gguf::open(model_path()).expect("a model");
    let spec = brigade_models::describe(&model).expect("a supported architecture");
    assert!(spec.n_layer() >= MIN_LAYERS, "{} layers", spec.n_layer());
}

fn text_becomes_the_ids_of_training() {
    let tokenizer = tokenizer();
    let facts = facts();
    for case in list(&facts, "texts") {
        let text = case["text"].as_str().expect("a text");
        let got = tokenizer.encode(text, false, false).expect("ids");
        assert_eq!(got, ids(&case["ids"]), "{text:?}");
        assert_eq!(tokenizer.detokenize(&got, false).expect("text"), text);
    }
}

fn chats_become_the_ids_of_training() {
    let tokenizer = tokenizer();
    let template = ChatTemplate::from_tokenizer(&tokenizer).expect("its chat template");
    let facts = facts();
    for case in list(&facts, "chats") {
        let input = TemplateInput {
            messages: list(case, "messages"),
            add_generation_prompt: true,
            ..TemplateInput::default()
        };
        let prompt = template.render(&input).expect("a prompt");
        let got = tokenizer.encode(&prompt, true, true).expect("ids");
        assert_eq!(got, ids(&case["ids"]), "{prompt:?}");
    }
    let end = tokenizer.find("<|im_end|>").expect("a token that ends answers");
    assert!(tokenizer.is_eog(end));
}

fn logits_agree_with_training_at_every_number_of_stages() {
    let facts = facts();
    let prompt = &facts["prompt"];
    let tokens = ids(&prompt["ids"]);
    let theirs = npy::read(data("demo.logits.npy")).expect("logits");
    let positions = ids(&prompt["positions"]);
    assert_eq!(theirs.shape[0], positions.len());
    let mut first: Option<Vec<Vec<f32>>> = None;
    for n_stages in [1, 2, 3, MIN_LAYERS] {
        let cuts = Line::even_cuts(MIN_LAYERS, n_stages);
        let mut line = Line::open(&model_path(), &LineConfig { cuts, ..LineConfig::default() });
        let ours = line.logits(&tokens, 32);
        let (mut difference, mut norm) = (0.0, 0.0);
        for (&pos, row) in positions.iter().zip(theirs.data.chunks_exact(theirs.shape[1])) {
            for (&a, &b) in ours[pos as usize].iter().zip(row) {
                difference += f64::from(a - b).powi(2);
                norm += f64::from(b).powi(2);
            }
        }
        let error = (difference / norm).sqrt();
        let best = ids(&prompt["argmax"]);
        let equal = ours.iter().zip(&best).filter(|(row, id)| argmax(row) == **id).count();
        println!("{n_stages} stages: error {error:.2e}, argmax {equal}/{}", best.len());
        assert!(error <= LOGITS_LIMIT, "{n_stages} stages: error {error:e}");
        assert!(equal as f64 >= ARGMAX_SHARE * best.len() as f64, "argmax {equal}");
        let first = first.get_or_insert_with(|| ours.clone());
        assert!(*first == ours, "{n_stages} stages: other logits than one stage");
    }
}

fn argmax(row: &[f32]) -> u32 {
    let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)));
    best.expect("a row of logits") as u32
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        it_is_small_and_can_be_cut,
        text_becomes_the_ids_of_training,
        chats_become_the_ids_of_training,
        logits_agree_with_training_at_every_number_of_stages;
];
