//! A hash that says which weights a layer has. Models of one shape have equal metadata and tensor
//! directories, but a state that one of them computed is nonsense to another.
//!
//! Samples of every tensor are hashed, not the whole: a training run changes all of a matrix, and loading
//! must not become slower. A layer's hash does not depend on the stage that has it.

use crate::arch::{ModelSpec, TOKEN_EMBD, is_of_input, layer_of};
use crate::error::ModelError;
use crate::gguf::Gguf;
use crate::gguf::adapters::of_model;
use crate::weights::TensorSource;

/// Bytes of a sample: a page of memory.
const SAMPLE_BYTES: usize = 4096;
/// Samples of a tensor, evenly spread; the first and the last are its ends.
const SAMPLES: usize = 8;

/// Hash of the weights that layer `layer` computes with; of the first, the embedding is a part.
///
/// # Errors
/// The source lacks a tensor.
pub(super) fn of_layer(
    model: &Gguf,
    spec: &ModelSpec,
    source: &dyn TensorSource,
    layer: usize,
) -> Result<blake3::Hash, ModelError> {
    let mut hasher = blake3::Hasher::new();
    for tensor in model.tensors().iter().filter(|tensor| shapes(&tensor.name, spec, layer)) {
        hasher.update(&(tensor.name.len() as u64).to_le_bytes());
        hasher.update(tensor.name.as_bytes());
        hasher.update(&tensor.nbytes.to_le_bytes());
        let len = tensor.nbytes as usize;
        for start in starts(len) {
            hasher.update(&source.part(tensor, start..len.min(start + SAMPLE_BYTES))?);
        }
    }
    Ok(hasher.finalize())
}

/// Whether what a layer leaves behind depends on a tensor.
pub(super) fn shapes(tensor: &str, spec: &ModelSpec, layer: usize) -> bool {
    let (tensor, _) = of_model(tensor);
    match layer_of(tensor) {
        Some(of) => of == layer || spec.shares(layer, tensor),
        None if spec.is_of_a_layer(tensor) => spec.shares(layer, tensor),
        None if tensor == TOKEN_EMBD => layer == 0,
        None if is_of_input(tensor, spec) => layer == 0,
        None => tensor.starts_with("rope_"),
    }
}

/// Where the samples of `len` bytes begin.
fn starts(len: usize) -> impl Iterator<Item = usize> {
    let n = len.div_ceil(SAMPLE_BYTES).min(SAMPLES);
    let last = len.saturating_sub(SAMPLE_BYTES);
    (0..n).map(move |i| last * i / (n - 1).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_of_the_whole_tensor_and_no_more_than_said() {
        let starts = |len| super::starts(len).collect::<Vec<_>>();
        assert_eq!(starts(0), [0; 0]);
        assert_eq!(starts(100), [0]);
        assert_eq!(starts(SAMPLE_BYTES + 1), [0, 1]);
        let many = starts(1 << 30);
        assert_eq!((many.len(), many[0]), (SAMPLES, 0));
        assert_eq!(many[SAMPLES - 1] + SAMPLE_BYTES, 1 << 30);
        assert!(many.is_sorted());
    }
}
