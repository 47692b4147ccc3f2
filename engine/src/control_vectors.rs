//! Control vectors: directions that are added to the residual stream behind layers, so that a model leans towards
//! something (representation engineering, arXiv 2310.01405).
//!
//! They come as GGUF files with an f32 tensor `direction.N` for layer `N`, as llama.cpp takes them; there is none for
//! layer 0. Several files are summed, each times its own scale.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use crate::gguf::{Gguf, TensorFiles, TensorInfo};
use crate::quant::GgmlType;
use crate::spec::{ModelError, ModelSpec, Streams};

/// Stem of the names of the directions.
const DIRECTION: &str = "direction.";
/// `general.architecture` of a file of control vectors.
const ARCHITECTURE: &str = "controlvector";

/// The directions of a model's layers, summed and scaled.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlVectors {
    n_embd: usize,
    by_layer: BTreeMap<usize, Vec<f32>>,
}

impl ControlVectors {
    /// The sum of `files`, each times its scale, for the layers of `model` that are in `layers`; `None`: for all that
    /// have a direction.
    ///
    /// # Errors
    /// A file that cannot be read or does not fit the model, and a model or a range of layers that they do nothing for.
    pub fn read(
        files: &[(PathBuf, f32)],
        layers: Option<RangeInclusive<usize>>,
        model: &ModelSpec,
    ) -> Result<Self, ModelError> {
        if model.is_encoder() {
            let why = "control vectors on an encoder: leave --control-vector out".to_owned();
            return Err(ModelError::Unsupported(why));
        }
        if matches!(model.skeleton.streams, Streams::AltUp(_)) {
            let why = "control vectors on a model whose tokens have several streams: leave --control-vector out";
            return Err(ModelError::Unsupported(why.to_owned()));
        }
        let n_embd = model.n_embd;
        let mut all = Self { n_embd, by_layer: BTreeMap::new() };
        for (path, scale) in files {
            let refused = |why: String| {
                let file = path.display();
                ModelError::Unsupported(format!("control vector {file}: {why}"))
            };
            let (file, data) = Gguf::open_files(path)?;
            check_kind(&file).map_err(refused)?;
            if file.tensors().is_empty() {
                return Err(refused(format!("it has no {DIRECTION}N tensors: convert it again")));
            }
            for tensor in file.tensors() {
                let layer = check_direction(tensor, model).map_err(refused)?;
                let values = values(&data, tensor)?;
                if values.iter().any(|value| !value.is_finite()) {
                    let why =
                        format!("{} has values that are no numbers: train it again", tensor.name);
                    return Err(refused(why));
                }
                let sum = all.by_layer.entry(layer).or_insert_with(|| vec![0.0; n_embd]);
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * scale);
            }
        }
        if let Some(layers) = layers {
            all.by_layer.retain(|layer, _| layers.contains(layer));
        }
        let is_finite = |values: &Vec<f32>| values.iter().all(|value| value.is_finite());
        if let Some((layer, _)) = all.by_layer.iter().find(|(_, values)| !is_finite(values)) {
            let why = format!(
                "control vectors whose sum for layer {layer} is no number: use smaller scales"
            );
            return Err(ModelError::Unsupported(why));
        }
        // Nothing is added that is nothing: not even to the sign of a zero.
        all.by_layer.retain(|_, values| values.iter().any(|value| *value != 0.0));
        if all.by_layer.is_empty() {
            let why = "control vectors that change no layer: look at their scales and at --control-vector-layers";
            return Err(ModelError::Unsupported(why.to_owned()));
        }
        Ok(all)
    }

    /// Vector that is added behind `layer`, `[n_embd]`.
    pub fn of(&self, layer: usize) -> Option<&[f32]> {
        self.by_layer.get(&layer).map(Vec::as_slice)
    }

    /// The layers that have one.
    pub fn layers(&self) -> impl Iterator<Item = usize> {
        self.by_layer.keys().copied()
    }

    /// Tells them from others, of all layers.
    pub fn id(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (layer, values) in &self.by_layer {
            hasher.update(&(*layer as u64).to_le_bytes());
            hasher.update(bytemuck::cast_slice(values));
        }
        hasher.finalize()
    }

    /// Vectors of `layers`, `[layers, n_embd]`, with zeros for a layer that has none.
    pub fn rows(&self, layers: Range<usize>) -> Vec<f32> {
        let none = vec![0.0; self.n_embd];
        layers.flat_map(|layer| self.of(layer).unwrap_or(&none).to_vec()).collect()
    }
}

/// The control vectors of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageVectors {
    /// [`ControlVectors::id`] of those of the whole model.
    pub id: blake3::Hash,
    /// [`ControlVectors::rows`] of the stage's layers.
    pub rows: Vec<f32>,
}

/// `controlvector.model_hint` is not compared: trainers write the name that their own library has for the architecture.
fn check_kind(file: &Gguf) -> Result<(), String> {
    match file.architecture() {
        Ok(ARCHITECTURE) => Ok(()),
        Ok(other) => Err(format!(
            "its general.architecture is {other:?}, not {ARCHITECTURE:?}: models go to -m, adapters to --lora"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// The layer of a direction, or why it is none of this model.
fn check_direction(tensor: &TensorInfo, model: &ModelSpec) -> Result<usize, String> {
    let name = &tensor.name;
    let layer = name.strip_prefix(DIRECTION).and_then(|layer| layer.parse::<usize>().ok());
    let Some(layer) = layer.filter(|&layer| layer > 0) else {
        return Err(format!(
            "tensor {name} is no {DIRECTION}N with a layer N from 1 on: convert it again"
        ));
    };
    let last = model.n_layer() - 1;
    if layer > last {
        return Err(format!(
            "{name} is for layer {layer}, the last one of this model is {last}: is it of another model?"
        ));
    }
    if tensor.ty != GgmlType::F32 || tensor.dims() != [model.n_embd] {
        return Err(format!(
            "{name} is {} {:?}, this model's rows are f32 [{}]: is it of another model?",
            tensor.ty,
            tensor.dims(),
            model.n_embd
        ));
    }
    Ok(layer)
}

/// The values of a tensor whose type and shape were checked.
fn values(data: &TensorFiles, tensor: &TensorInfo) -> Result<Vec<f32>, ModelError> {
    let mut bytes = vec![0; tensor.nbytes as usize];
    data.read(tensor, 0, &mut bytes)?;
    let (values, _) = bytes.as_chunks::<4>();
    Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
}
