//! A hash that says which weights a layer has. Models of one shape have equal metadata and tensor
//! directories, but a state that one of them computed is nonsense to another.
//!
//! Samples of every tensor are hashed, not the whole: a training run changes all of a matrix, and loading
//! must not become slower. A layer's hash does not depend on the stage that has it.
//!
//! Where several layers are one layer of the file, they share the hash of its weights. To that comes what is around each
//! of them ([`in_place`]), which every stage has at hand.

use crate::gguf::Gguf;
use crate::gguf::adapters::of_model;
use crate::spec::{ModelError, ModelSpec, OUTPUT_NORM, TOKEN_EMBD, is_of_input, layer_of};
use crate::weights::TensorSource;

/// Bytes of a sample: a page of memory.
const SAMPLE_BYTES: usize = 4096;
/// Samples of a tensor, evenly spread; the first and the last are its ends.
const SAMPLES: usize = 8;

/// Hash of the weights that layer `layer` computes with; of the first, the embedding is a part, where layers run once.
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
    add(&mut hasher, model, source, &|name| is_made_of(name, spec, layer))?;
    Ok(hasher.finalize())
}

/// The hash of a layer whose weights have the hash `print`: of them, and of what is around the layer.
///
/// # Errors
/// As [`of_layer`].
pub(super) fn in_place(
    model: &Gguf,
    spec: &ModelSpec,
    source: &dyn TensorSource,
    layer: usize,
    print: blake3::Hash,
) -> Result<blake3::Hash, ModelError> {
    if !spec.skeleton.passes.repeat() {
        return Ok(print);
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(print.as_bytes());
    let is_around = |name: &str| shapes(name, spec, layer) && !is_made_of(name, spec, layer);
    add(&mut hasher, model, source, &is_around)?;
    Ok(hasher.finalize())
}

/// Adds samples of the tensors that `is_wanted` names.
fn add(
    hasher: &mut blake3::Hasher,
    model: &Gguf,
    source: &dyn TensorSource,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<(), ModelError> {
    for tensor in model.tensors().iter().filter(|tensor| is_wanted(&tensor.name)) {
        hasher.update(&(tensor.name.len() as u64).to_le_bytes());
        hasher.update(tensor.name.as_bytes());
        hasher.update(&tensor.nbytes.to_le_bytes());
        let len = tensor.nbytes as usize;
        for start in starts(len) {
            hasher.update(&source.part(tensor, start..len.min(start + SAMPLE_BYTES))?);
        }
    }
    Ok(())
}

/// Whether a layer's weights in memory are made of a tensor, or their hash is.
pub(super) fn is_made_of(tensor: &str, spec: &ModelSpec, layer: usize) -> bool {
    let is_inside = || layer_of(of_model(tensor).0).is_some();
    shapes(tensor, spec, layer) && (!spec.skeleton.passes.repeat() || is_inside())
}

/// Whether what a layer leaves behind depends on a tensor.
fn shapes(tensor: &str, spec: &ModelSpec, layer: usize) -> bool {
    let (tensor, _) = of_model(tensor);
    match layer_of(tensor) {
        Some(in_file) => spec.reads(layer, in_file, tensor),
        None if spec.is_of_a_layer(tensor) => spec.shares(layer, tensor),
        None if tensor == TOKEN_EMBD => layer == 0,
        None if is_of_input(tensor, spec) => layer == 0,
        None if tensor == OUTPUT_NORM => spec.pass_norm(&(layer..layer + 1)).is_some(),
        None => tensor.starts_with("rope_"),
    }
}

/// Starts of the samples of `len` bytes.
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
