//! Models of every small file type against llama.cpp's logits, whole and cut. Limits are those of `golden.rs`
//! for quantised models.
//!
//! The models are not kept. `synth` makes them here, the same bytes on every machine (which is checked), and
//! only llama.cpp's answers are in `tests/data/types`. They are mixes, as the file types are: IQ1_S has
//! tensors of IQ1_S, IQ2_XXS, Q2_K and Q5_K.
//!
//! To make the answers again, run these for each type. Models named `QUANT-moe` are of size `tiny-moe`.
//!
//! ```text
//! brigade synth --arch llama --size tiny --quant NAME --out tests/data/types/NAME.gguf
//! python3 tests/oracle/golden.py tests/data/types NAME --made --positions 2,64,99
//! ```

use std::collections::BTreeSet;
use std::path::PathBuf;

use brigade_gguf::Gguf;
use brigade_model_tests::golden::{Entry, Golden, adler32, argmax, relative_error, same_bits};
use brigade_model_tests::line::{self, Line, LineConfig};
use brigade_quant::GgmlType;
use brigade_synth::{Arch, FileType, Shape, Spec};

const LIMIT: f64 = 3e-2;
const ARGMAX_SHARE: f64 = 0.9;

/// Types of tensors that the models must contain.
const TYPES: [GgmlType; 12] = [
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::TQ1_0,
    GgmlType::TQ2_0,
    GgmlType::NVFP4,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
];

/// A file that goes when the test does.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn make(name: &str, entry: &Entry) -> Made {
    let made = Made(std::env::temp_dir().join(format!("{}-{}", std::process::id(), entry.file)));
    let (quant, size) = match name.strip_suffix("-moe") {
        Some(quant) => (quant, "tiny-moe"),
        None => (name, "tiny"),
    };
    let spec = Spec {
        arch: Arch::named("llama").unwrap(),
        shape: Shape::named(size).unwrap(),
        quant: FileType::named(quant).unwrap(),
        seed: 0,
        header_only: false,
    };
    brigade_synth::write(&spec, &made.0).unwrap();
    let sum = adler32(&std::fs::read(&made.0).unwrap());
    assert_eq!(
        Some(sum),
        entry.adler32,
        "{name}: synth makes another model now: make the answers again (see this file's head)"
    );
    made
}

fn models_of_small_types_match_llama_cpp_whole_and_cut() {
    println!("kernels: {}", line::serving().name);
    let golden = Golden::types();
    let mut found = BTreeSet::new();
    for (name, entry) in &golden.manifest.models {
        let model = make(name, entry);
        let types: BTreeSet<_> =
            Gguf::open(&model.0).unwrap().tensors().iter().map(|tensor| tensor.ty).collect();
        found.extend(types.iter().copied());
        let run = |cuts: &[usize], n_ubatch| {
            let config = LineConfig { cuts: cuts.to_vec(), ..LineConfig::default() };
            Line::open(&model.0, &config).logits(&golden.manifest.tokens, n_ubatch)
        };
        let logits = run(&[], 64);
        assert!(same_bits(&logits, &run(&[1, 3], 7)), "{name}: logits depend on cuts and ubatch");
        let error = relative_error(&golden, entry, &logits);
        let n = entry.argmax.len();
        let equal = (0..n).filter(|&i| argmax(&logits[i]) == entry.argmax[i]).count();
        let types = types.iter().map(|ty| ty.name()).collect::<Vec<_>>().join(" ");
        println!("{name:11} error {error:.2e}  argmax {equal}/{n}  {types}");
        assert!(error <= LIMIT, "{name}: error {error:e}");
        assert!(equal as f64 >= ARGMAX_SHARE * n as f64, "{name}: argmax {equal}/{n}");
    }
    for ty in TYPES {
        assert!(found.contains(&ty), "no model has a tensor of {ty}");
    }
}

fn the_checksum_is_adler_32() {
    assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    assert_eq!(adler32(b""), 1);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: models_of_small_types_match_llama_cpp_whole_and_cut, the_checksum_is_adler_32;
];
