//! Reads files that llama.cpp wrote.

use crate::support::test_data;
use brigade_gguf::Gguf;
use brigade_gguf::npy;

/// Files of `folder` whose names end with `suffix`, sorted.
fn files(folder: &std::path::Path, suffix: &str) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        entries.filter(|path| path.to_string_lossy().ends_with(suffix)).collect();
    found.sort();
    found
}

#[test]
fn dequantised_rows_are_equal_bit_for_bit() {
    let Some(dir) = test_data() else { return };
    const SUFFIX: &str = ".blk0_ffn_down_rows0-3.npy";
    let vectors = files(&dir.join("golden"), SUFFIX);
    for path in &vectors {
        let model = path.to_string_lossy().replace(SUFFIX, ".gguf");
        let want = npy::read(path).unwrap();
        let file = Gguf::open(&model).unwrap();
        let tensor = file
            .require("blk.0.ffn_down.weight")
            .or_else(|_| file.require("blk.0.ffn_down_exps.weight"));
        let tensor = tensor.unwrap();
        let bytes = &file.data(tensor).unwrap()[..want.shape[0] * tensor.row_bytes()];
        let mut got = vec![0.0; want.data.len()];
        brigade_quant::dequantize_row(tensor.ty, &tensor.name, bytes, &mut got).unwrap();
        let differ = got.iter().zip(&want.data).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(differ, 0, "{model}: {} of {} values", differ, got.len());
        println!("{} {}: {} values equal", model, tensor.ty, got.len());
    }
    assert!(vectors.len() >= 15, "{} vectors", vectors.len());
}

#[test]
fn every_model_and_vocabulary_opens() {
    let Some(dir) = test_data() else { return };
    let mut paths = files(&dir.join("golden"), ".gguf");
    paths.extend(files(&dir.join("vocabs"), ".gguf"));
    for path in &paths {
        let file = Gguf::open(path).unwrap();
        assert!(!file.architecture().unwrap().is_empty());
        let tokens = file.meta().byte_strs("tokenizer.ggml.tokens").unwrap();
        assert_eq!(tokens.iter().count(), tokens.len());
        for tensor in file.tensors() {
            assert_eq!(file.data(tensor).unwrap().len() as u64, tensor.nbytes);
        }
        let copy = Gguf::from_header_bytes(&file.header_bytes(), "copy").unwrap();
        assert_eq!(copy.tensors(), file.tensors());
    }
    assert!(paths.len() >= 30, "{} files", paths.len());
}
