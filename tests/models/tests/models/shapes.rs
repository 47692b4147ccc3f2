//! Dimensions of 1 at the end of a shape mean nothing: llama.cpp's quantiser drops them, and converters write
//! them. A model loads with them and without, and computes the same bits.

use std::path::Path;

use brigade_gguf::Gguf;
use brigade_model_tests::line::{Line, LineConfig};
use brigade_synth::{Arch, FileType, Shape, Spec};

/// Alignment of the data behind a header.
const ALIGNMENT: usize = 32;

fn a_model_without_its_trailing_ones_is_the_same_model() {
    let folder = std::env::temp_dir().join(format!("brigade-shapes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut shape = Shape::named("tiny").unwrap();
    shape.ssm.n_group = 1;
    for arch in ["granitehybrid", "mamba2", "nemotron_h"] {
        for quant in [FileType::F32, FileType::Q8_0] {
            let shape = shape.clone();
            let arch = Arch::named(arch).unwrap();
            let spec = Spec { arch, shape, quant, seed: 3, header_only: false };
            let path = folder.join(format!("{}.gguf", arch.name()));
            brigade_synth::write(&spec, &path).unwrap();
            let as_written = logits(&path);
            let (shorter, n_dropped) = without_trailing_ones(&path);
            assert!(n_dropped > 0, "{}: no trailing dimension of 1 to drop", arch.name());
            std::fs::write(&path, shorter).unwrap();
            assert_eq!(logits(&path), as_written, "{} {}", arch.name(), quant.name());
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

fn logits(path: &Path) -> Vec<Vec<u32>> {
    let tokens: Vec<u32> = (0..20).map(|i| 7 * i % 100).collect();
    let rows = Line::open(path, &LineConfig::default()).logits(&tokens, 8);
    rows.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

/// The file with every tensor's trailing dimensions of 1 dropped, and how many there were.
fn without_trailing_ones(path: &Path) -> (Vec<u8>, usize) {
    let bytes = std::fs::read(path).unwrap();
    let model = Gguf::open(path).unwrap();
    let data_start = model.tensors().iter().map(|t| t.offset).min().unwrap() as usize;
    // Packed headers begin with eight bytes of magic, the number of shards and the length of the first.
    let mut header = model.header_bytes().split_off(20);
    assert!(bytes.starts_with(&header));
    let mut n_dropped = 0;
    for tensor in model.tensors() {
        let dims = tensor.dims();
        let kept = dims.iter().rposition(|n| *n != 1).map_or(1, |last| last + 1);
        // A directory entry: length of the name, name, number of dimensions, dimensions.
        let mut entry = (tensor.name.len() as u64).to_le_bytes().to_vec();
        entry.extend(tensor.name.as_bytes());
        let n_dims_at = (0..header.len())
            .find(|&at| header[at..].starts_with(&entry))
            .map(|at| at + entry.len())
            .unwrap();
        header[n_dims_at..n_dims_at + 4].copy_from_slice(&(kept as u32).to_le_bytes());
        let dims_at = n_dims_at + 4;
        header.drain(dims_at + 8 * kept..dims_at + 8 * dims.len());
        n_dropped += dims.len() - kept;
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    header.extend_from_slice(&bytes[data_start..]);
    (header, n_dropped)
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: a_model_without_its_trailing_ones_is_the_same_model;
];
