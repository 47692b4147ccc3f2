//! Tokenizers against published vectors: every line of every vocabulary is equal.
//!
//! The vectors are found through `BRIGADE_TEST_DATA`, a folder that holds `golden/`, and `vocabs/` with
//! NAME.gguf, NAME.gguf.inp (texts) and NAME.gguf.out (ids). Without it the tests say so and skip.

use std::path::{Path, PathBuf};

use brigade_gguf::Gguf;
use brigade_text::Tokenizer;

/// Between two texts of an `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn data(folder: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("BRIGADE_TEST_DATA") else {
        println!("skipped: BRIGADE_TEST_DATA is not set");
        return None;
    };
    Some(Path::new(&root).join(folder))
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("BRIGADE_TEST_DATA holds this folder");
    let mut paths: Vec<PathBuf> = entries
        .map(|e| e.expect("readable folder").path())
        .filter(|p| p.to_str().is_some_and(|p| p.ends_with(ending)))
        .collect();
    paths.sort();
    paths
}

fn load(path: &Path) -> Tokenizer {
    let gguf = Gguf::open_header_only(path).expect("a readable model");
    Tokenizer::from_gguf(&gguf).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Texts with the ids that are expected for them.
fn cases(vocab: &Path) -> Vec<(String, Vec<u32>)> {
    let beside = |ending: &str| {
        let path = PathBuf::from(format!("{}{ending}", vocab.display()));
        std::fs::read_to_string(path).expect("vectors beside the vocabulary")
    };
    let input = beside(".inp");
    // The separator also follows the last text.
    let texts: Vec<&str> =
        input.strip_suffix(SEPARATOR).unwrap_or(&input).split(SEPARATOR).collect();
    let output = beside(".out");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(texts.len(), lines.len(), "{}", vocab.display());
    let ids = |line: &str| line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
    texts.into_iter().zip(lines).map(|(t, l)| (t.to_owned(), ids(l))).collect()
}

fn every_line_of_every_vocabulary_is_equal() {
    let Some(folder) = data("vocabs") else { return };
    let mut lines = 0;
    let mut wrong = Vec::new();
    let vocabs: Vec<PathBuf> = files(&folder, ".gguf")
        .into_iter()
        .filter(|p| PathBuf::from(format!("{}.inp", p.display())).exists())
        .collect();
    assert!(!vocabs.is_empty(), "no vocabularies in {}", folder.display());
    for path in &vocabs {
        let tokenizer = load(path);
        for (text, want) in cases(path) {
            let got = tokenizer.encode(&text, false, false).expect("texts of the vectors are fine");
            lines += 1;
            if got != want {
                wrong
                    .push(format!("{}: {text:?}\n  got  {got:?}\n  want {want:?}", path.display()));
            }
        }
    }
    println!("{} vocabularies, {lines} lines, {} differ", vocabs.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn ids_of_the_vectors_decode_to_their_texts() {
    let Some(folder) = data("vocabs") else { return };
    let mut checked = 0;
    for path in files(&folder, ".gguf") {
        let tokenizer = load(&path);
        for (text, ids) in cases(&path) {
            let back = tokenizer.detokenize(&ids, false).expect("ids of the vectors are fine");
            assert_eq!(back, text, "{}", path.display());
            checked += 1;
        }
    }
    println!("{checked} texts came back");
    assert!(checked > 0);
}

fn vocabularies_of_the_golden_models_load() {
    let Some(folder) = data("golden") else { return };
    let models = files(&folder, ".gguf");
    assert!(!models.is_empty(), "no models in {}", folder.display());
    for path in &models {
        let tokenizer = load(path);
        assert!(tokenizer.n_vocab() > 0, "{}", path.display());
    }
    println!("{} vocabularies loaded", models.len());
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        every_line_of_every_vocabulary_is_equal,
        ids_of_the_vectors_decode_to_their_texts,
        vocabularies_of_the_golden_models_load;
];
