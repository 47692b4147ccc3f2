//! Synthetic models: reproducible, complete, and of the sizes and types asked for.

use crate::support::TempPath;
use brigade_gguf::Gguf;
use brigade_quant::GgmlType;
use brigade_synth::{ARCHES, Arch, FileType, Shape, Spec};

fn spec(arch: &str, size: &str, quant: FileType) -> Spec {
    let (arch, shape) = (Arch::named(arch).unwrap(), Shape::named(size).unwrap());
    Spec { arch, shape, quant, seed: 1, header_only: false }
}

/// Architectures whose models have experts.
const WITH_EXPERTS: &[&str] = &[
    "qwen3moe",
    "qwen3vlmoe",
    "lfm2moe",
    "qwen3next",
    "qwen35moe",
    "nemotron_h_moe",
    "deepseek2",
    "deepseek32",
    "glm-dsa",
    "kimi-linear",
    "kimi-k3",
    "gpt-oss",
    "glm4moe",
    "minimax-01",
    "minimax-m2",
    "minimax-m3",
    "hy_v4",
    "deepseek4",
    "qwen4exp",
    "dots3note",
    "glm5-next",
    "llama4",
    "qwen2moe",
    "deepseek",
    "dots1",
    "ernie4_5-moe",
    "hunyuan-moe",
    "bailingmoe",
    "bailingmoe2",
    "bailingmoe3",
    "olmoe",
    "granitemoe",
    "arctic",
    "dbrx",
    "grok",
    "phimoe",
    "granite_swa",
    "mellum",
    "mistral4",
    "exaone-moe",
    "afmoe",
    "cohere2moe",
    "hy_v3",
    "laguna",
    "maple",
    "mimo2",
    "step35",
    "smallthinker",
    "grovemoe",
    "deepseek2-ocr",
];

/// A size that the architecture takes.
fn tiny(arch: &str) -> &'static str {
    let tied = ["gemma", "gemma2", "gemma3", "command-r", "cohere2", "openelm", "plm", "bitnet"];
    let encoders = [
        "bert",
        "nomic-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "neo-bert",
        "eurobert",
        "llama-embed",
        "modern-bert",
        "gemma-embedding",
        "t5encoder",
    ];
    match arch {
        "nomic-bert-moe" => "tiny-encoder-moe",
        arch if encoders.contains(&arch) => "tiny-encoder",
        // Its layers must be 32 or 40.
        "baichuan" => "golden-32",
        // Most of its tokens stand for images.
        "chameleon" => "golden-images",
        arch if WITH_EXPERTS.contains(&arch) => "tiny-moe",
        arch if tied.contains(&arch) => "tiny-tied",
        _ => "tiny",
    }
}

/// Step through the file types. Each architecture but `llama` is written in every twentieth type, beginning with
/// another one. All architectures in all types would take minutes, most of which fit codebooks.
const TYPES_STEP: usize = 20;

#[test]
fn every_architecture_and_every_type_is_written_and_decodes() {
    let arches = ARCHES.iter().map(|arch| (arch.name(), tiny(arch.name())));
    let sizes = arches.chain([("llama", "tiny-moe"), ("jamba", "tiny-moe")]);
    for (i, (arch, size)) in sizes.enumerate() {
        let (first, step) = if arch == "llama" { (0, 1) } else { (i % TYPES_STEP, TYPES_STEP) };
        for quant in FileType::ALL.iter().skip(first).step_by(step) {
            let path = TempPath::new(&format!("{arch}-{size}-{}.gguf", quant.name()));
            let bytes = brigade_synth::write(&spec(arch, size, *quant), &path.0).unwrap();
            let model = Gguf::open(&path.0).unwrap();
            assert_eq!(model.architecture().unwrap(), arch);
            assert_eq!(model.meta().u32("general.file_type").unwrap(), quant.id());
            let padded = |n: u64| n.next_multiple_of(32);
            assert_eq!(bytes, model.tensors().iter().map(|t| padded(t.nbytes)).sum::<u64>());
            // Tables of whole numbers are no weights.
            let weights = model.tensors().iter().filter(|tensor| tensor.ty != GgmlType::I32);
            for tensor in weights {
                let mut row = vec![0.0; tensor.row_len()];
                let data = &model.data(tensor).unwrap()[..tensor.row_bytes()];
                brigade_quant::dequantize_row(tensor.ty, &tensor.name, data, &mut row).unwrap();
                let rms = (row.iter().map(|v| v * v).sum::<f32>() / row.len() as f32).sqrt();
                let name = &tensor.name;
                assert!(rms > 0.005 && rms < 2.5, "{arch} {} {name}: rms {rms}", quant.name());
            }
        }
    }
}

#[test]
fn the_file_depends_on_the_spec_alone() {
    let write = |name: &str, threads: usize, seed: u64| {
        let path = TempPath::new(name);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let spec = Spec { seed, ..spec("llama", "tiny", FileType::Q4_K_M) };
        pool.install(|| brigade_synth::write(&spec, &path.0)).unwrap();
        std::fs::read(&path.0).unwrap()
    };
    let one = write("one-thread.gguf", 1, 1);
    assert_eq!(one, write("four-threads.gguf", 4, 1));
    assert_ne!(one, write("other-seed.gguf", 1, 2));
}

#[test]
fn header_only_is_the_same_directory() {
    let (full, header) = (TempPath::new("full.gguf"), TempPath::new("header-only.gguf"));
    let spec = spec("llama", "tiny", FileType::Q4_K_M);
    let bytes = brigade_synth::write(&spec, &full.0).unwrap();
    assert_eq!(
        brigade_synth::write(&Spec { header_only: true, ..spec }, &header.0).unwrap(),
        bytes
    );
    let header = Gguf::open_header_only(&header.0).unwrap();
    assert_eq!(header.header_bytes(), Gguf::open(&full.0).unwrap().header_bytes());
}

/// llama.cpp takes the width of llama's experts from the FFN's key, and qwen3moe's from their own.
#[test]
fn experts_are_as_wide_as_the_metadata_say() {
    for (arch, key) in [
        ("llama", "llama.feed_forward_length"),
        ("qwen3moe", "qwen3moe.expert_feed_forward_length"),
    ] {
        let path = TempPath::new(&format!("experts-{arch}.gguf"));
        brigade_synth::write(&spec(arch, "tiny-moe", FileType::Q4_K_M), &path.0).unwrap();
        let model = Gguf::open(&path.0).unwrap();
        let width = model.meta().u32(key).unwrap() as usize;
        for (name, dims) in
            [("gate", [256, width, 8]), ("up", [256, width, 8]), ("down", [width, 256, 8])]
        {
            assert_eq!(
                model.require(&format!("blk.0.ffn_{name}_exps.weight")).unwrap().dims(),
                dims
            );
        }
    }
}

/// The reference model of the benchmarks, by its definition.
#[test]
fn reference_size() {
    let path = TempPath::new("reference.gguf");
    let spec = Spec { header_only: true, ..spec("llama", "0.6b", FileType::Q4_K_M) };
    let bytes = brigade_synth::write(&spec, &path.0).unwrap();
    let model = Gguf::open_header_only(&path.0).unwrap();
    let dims = |name: &str| model.require(name).unwrap().dims().to_vec();
    assert_eq!(dims("token_embd.weight"), [1024, 32000]);
    assert_eq!(dims("output.weight"), [1024, 32000]);
    assert_eq!(dims("blk.31.attn_q.weight"), [1024, 1024]);
    assert_eq!(dims("blk.31.attn_v.weight"), [1024, 256]);
    assert_eq!(dims("blk.31.ffn_down.weight"), [4096, 1024]);
    assert!(model.tensor("blk.32.attn_q.weight").is_none());
    let weights = |prefix: &str| -> usize {
        model.tensors().iter().filter(|t| t.name.starts_with(prefix)).map(|t| t.n_elems()).sum()
    };
    assert_eq!(weights("blk.0."), 15_206_400);
    assert!((300_000_000..350_000_000).contains(&bytes), "{bytes} bytes");
    assert_eq!(model.require("output.weight").unwrap().ty, GgmlType::Q6_K);
    assert_eq!(model.require("token_embd.weight").unwrap().ty, GgmlType::Q4_K);
}

#[test]
fn every_named_size_plans() {
    for (size, shape) in brigade_synth::SIZES {
        let arch = match (shape.drafts, shape.experts) {
            (0, Some(_)) => "qwen3moe",
            (0, None) => "qwen3",
            (_, Some(_)) => "hy_v3",
            (_, None) => "qwen35",
        };
        let path = TempPath::new(&format!("plan-{size}.gguf"));
        let spec = Spec { header_only: true, ..spec(arch, size, FileType::Q4_K_M) };
        let bytes = brigade_synth::write(&spec, &path.0).unwrap();
        let model = Gguf::open_header_only(&path.0).unwrap();
        println!("{size:10} {:8.2} GB in {} tensors", bytes as f64 / 1e9, model.tensors().len());
        assert_eq!(model.tensor("output.weight").is_none(), shape.tied);
    }
}

#[test]
fn what_makes_no_model_is_refused() {
    for (arch, size, word) in [("qwen3moe", "tiny", "experts"), ("qwen3", "tiny-moe", "experts")] {
        let spec = spec(arch, size, FileType::F32);
        let message = brigade_synth::write(&spec, "/nonexistent/m.gguf").unwrap_err().to_string();
        assert!(message.contains(arch) && message.contains(word), "{message}");
    }
    let base = Shape::named("tiny").unwrap();
    for (shape, word) in [
        (Shape { n_layer: 0, ..base.clone() }, "size of 0"),
        (Shape { n_head: 5, ..base.clone() }, "5 heads"),
        (Shape { head_dim: 63, ..base.clone() }, "even"),
        (Shape { vocab: 100, ..base.clone() }, "100 tokens"),
        (Shape { n_embd: 1 << 40, ..base.clone() }, "must be 1 to"),
    ] {
        let spec = Spec { shape, ..spec("llama", "tiny", FileType::F32) };
        let message = brigade_synth::write(&spec, "/nonexistent/m.gguf").unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
    let message = Arch::named("gpt5").unwrap_err().to_string();
    assert!(message.contains("gpt5") && message.contains("qwen3moe"), "{message}");
    assert!(Shape::named("9z").unwrap_err().to_string().contains("0.6b"));
    let fine = spec("llama", "tiny", FileType::F32);
    let message = brigade_synth::write(&fine, "/nonexistent/m.gguf").unwrap_err().to_string();
    assert!(message.starts_with("/nonexistent/m.gguf"), "{message}");
}
