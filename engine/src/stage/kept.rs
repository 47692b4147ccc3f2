//! Weights that are in memory already: what is left of a stage that was taken apart, for the next one.
//!
//! When a cut moves, most layers of a stage stay where they are. They are kept as the kernels hold them, without their
//! sequences' states, and [`Stage::load_keeping`] loads only what the new stage lacks. If loading fails, the weights
//! loaded so far stay here too, so that the next attempt goes on from there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::Stage;
use super::fingerprint;
use super::head::Head;
use super::input::Input;
use super::layers::BlockWeights;
use super::own_drafts::DraftBlock;
use crate::device::{Device, Home};
use crate::gguf::Gguf;
use crate::gguf::adapters::of_model;
use crate::spec::{
    ModelError, ModelSpec, TOKEN_EMBD, is_of_input, is_tied, layer_of, stage_tensors,
};
use crate::weights::ExpertsPlace;

/// Weights of one model, by layer. Empty at first.
#[derive(Default)]
pub struct KeptWeights {
    /// Hash of the model's metadata and tensor directory; `None`: nothing is kept.
    pub(super) model: Option<blake3::Hash>,
    /// Device or memory that holds the weights.
    pub(super) home: Home,
    /// Place of the routed experts.
    pub(super) experts: ExpertsPlace,
    pub(super) layers: BTreeMap<usize, Kept<KeptLayer>>,
    pub(super) embedding: Option<Kept<Input>>,
    pub(super) head: Option<Kept<Head>>,
    /// Weights of the model's own blocks of drafts.
    pub(super) drafts: Option<Kept<Vec<DraftBlock>>>,
}

/// A part of a stage and the tensors that it was made of.
#[derive(Clone)]
pub(super) struct Kept<T> {
    pub(super) tensors: Vec<String>,
    pub(super) part: T,
}

/// The weights of a layer's blocks.
#[derive(Clone)]
pub(super) struct KeptLayer {
    pub(super) weights: Vec<Arc<BlockWeights>>,
    /// Fingerprint of the weights, wherever in the model they are used.
    pub(super) print: blake3::Hash,
    /// The layer of the file that they are.
    pub(super) in_file: usize,
}

/// The stage that weights are kept for.
pub(super) struct KeptFor<'a> {
    pub(super) model_hash: blake3::Hash,
    /// Device or memory that holds its weights.
    pub(super) home: Home,
    pub(super) experts: ExpertsPlace,
    pub(super) layers: &'a Range<usize>,
    /// Whether it has the model's own blocks of drafts.
    pub(super) own_drafts: bool,
}

impl KeptWeights {
    /// Makes room on the device for weights that lie elsewhere and come there for ubatches of many rows, and copies those that
    /// it shall have from the beginning.
    pub(super) fn make_room(&self, device: &Device) -> Result<(), ModelError> {
        let blocks = || self.layers.values().flat_map(|layer| &layer.part.weights);
        blocks().try_for_each(|weights| weights.block.make_room(device))?;
        device.choose_copies();
        blocks().for_each(|weights| weights.block.make_copies(device));
        Ok(())
    }

    /// Lets go of every part with a tensor of which `is_same` does not know that it has not changed.
    pub fn retain(&mut self, is_same: &dyn Fn(&str) -> bool) {
        let is_same = |tensors: &[String]| tensors.iter().all(|tensor| is_same(tensor));
        self.layers.retain(|_, layer| is_same(&layer.tensors));
        self.embedding.take_if(|embedding| !is_same(&embedding.tensors));
        self.head.take_if(|head| !is_same(&head.tensors));
        self.drafts.take_if(|drafts| !is_same(&drafts.tensors));
    }

    /// Lets go of what a stage has no use for, of all of another model, and of all that lies elsewhere.
    pub(super) fn retain_for(&mut self, spec: &ModelSpec, stage: KeptFor<'_>) {
        let KeptFor { model_hash, home, experts, layers, own_drafts } = stage;
        if self.model != Some(model_hash) || self.home != home {
            *self = Self { model: Some(model_hash), home, ..Self::default() };
        }
        self.share(spec, layers);
        self.place_experts(experts);
        self.layers.retain(|layer, _| layers.contains(layer));
        self.embedding.take_if(|_| layers.start > 0);
        self.head.take_if(|_| layers.end < spec.n_layer());
        self.drafts.take_if(|_| !own_drafts || !spec.may_draft(layers));
    }

    /// Lets go of layers whose experts are to lie elsewhere than they do.
    fn place_experts(&mut self, experts: ExpertsPlace) {
        let had = std::mem::replace(&mut self.experts, experts);
        let stays = |in_file: usize| had.is_beside(in_file) == experts.is_beside(in_file);
        self.layers.retain(|_, layer| stays(layer.part.in_file));
    }

    /// Whether the weights of layer `in_file` of the file are here, of whatever layer that computes with them.
    pub(super) fn has_weights(&self, spec: &ModelSpec, in_file: usize) -> bool {
        spec.layers_of(in_file).any(|layer| self.layers.contains_key(&layer))
    }

    /// Gives each of `layers` that is not here the weights of a layer that has the same; all that have them share them.
    pub(super) fn share(&mut self, spec: &ModelSpec, layers: &Range<usize>) {
        if !spec.skeleton.passes.repeat() {
            return;
        }
        for layer in layers.clone() {
            let twins = spec.layers_of(spec.in_file(layer));
            let twin = twins.filter_map(|twin| self.layers.get(&twin)).next().cloned();
            if let Some(twin) = twin {
                self.layers.insert(layer, twin);
            }
        }
    }

    /// Takes in what was loaded ahead of the next stage; what is here of the same model stays.
    pub fn absorb(&mut self, ahead: Self) {
        if self.model != ahead.model || self.home != ahead.home {
            *self = ahead;
            return;
        }
        self.place_experts(ahead.experts);
        for (layer, loaded) in ahead.layers {
            self.layers.entry(layer).or_insert(loaded);
        }
        self.embedding = self.embedding.take().or(ahead.embedding);
        self.head = self.head.take().or(ahead.head);
        self.drafts = self.drafts.take().or(ahead.drafts);
    }

    /// The layers that are here.
    pub fn layers(&self) -> impl Iterator<Item = usize> {
        self.layers.keys().copied()
    }

    /// Whether the embedding is here.
    pub fn has_embedding(&self) -> bool {
        self.embedding.is_some()
    }

    /// Names of all tensors that what is here was made of.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        let layers = self.layers.values().flat_map(|layer| &layer.tensors);
        let embedding = self.embedding.iter().flat_map(|embedding| &embedding.tensors);
        let head = self.head.iter().flat_map(|head| &head.tensors);
        let drafts = self.drafts.iter().flat_map(|drafts| &drafts.tensors);
        layers.chain(embedding).chain(head).chain(drafts).map(String::as_str)
    }
}

impl Stage {
    /// The stage's weights, for [`Stage::load_keeping`]; its sequences are gone. Where its device failed there are none.
    pub fn into_kept(self) -> KeptWeights {
        if self.device.finish().is_err() {
            return KeptWeights::default();
        }
        let (model, home) = (Some(self.model_hash), self.device.home());
        // It was the same when the stage was loaded.
        let place = ExpertsPlace::new(&self.device, self.config.host_experts);
        let experts = place.unwrap_or_default();
        let mut kept = KeptWeights { model, home, experts, ..KeptWeights::default() };
        let mut names = self.names;
        for (layer, (tensors, print)) in std::mem::take(&mut names.layers) {
            let part = KeptLayer { weights: Vec::new(), print, in_file: self.spec.in_file(layer) };
            kept.layers.insert(layer, Kept { tensors, part });
        }
        for block in self.blocks {
            if let Some(layer) = kept.layers.get_mut(&block.layer) {
                layer.part.weights.push(block.weights);
            }
        }
        let embedding_names = std::mem::take(&mut names.embedding);
        kept.embedding = self.embedding.map(|part| Kept { tensors: embedding_names, part });
        kept.head = self.head.map(|mut part| {
            part.clear();
            Kept { tensors: names.head, part }
        });
        kept.drafts = self.own_drafts.map(|drafts| {
            let part = drafts.into_blocks();
            Kept { tensors: names.drafts, part }
        });
        kept
    }
}

/// The tensors that each part of a stage was made of.
#[derive(Default)]
pub(super) struct Names {
    /// Beside them the print of their weights.
    pub(super) layers: BTreeMap<usize, (Vec<String>, blake3::Hash)>,
    pub(super) embedding: Vec<String>,
    pub(super) head: Vec<String>,
    pub(super) drafts: Vec<String>,
}

/// Tensors that layer `layer` is made of, or that its fingerprint depends on.
pub(super) fn layer_tensors(model: &Gguf, spec: &ModelSpec, layer: usize) -> Vec<String> {
    let tensors = model.tensors().iter().map(|tensor| &tensor.name);
    tensors.filter(|name| fingerprint::is_made_of(name, spec, layer)).cloned().collect()
}

/// Tensors that rows are made of.
pub(super) fn embedding_tensors(model: &Gguf, spec: &ModelSpec) -> Vec<String> {
    let is_mine = |name: &str| of_model(name).0 == TOKEN_EMBD || is_of_input(name, spec);
    let tensors = model.tensors().iter().map(|tensor| &tensor.name);
    tensors.filter(|name| is_mine(name)).cloned().collect()
}

/// Tensors of the head: all of the last stage's that are in no layer and no shared rotary factors.
pub(super) fn head_tensors(model: &Gguf, spec: &ModelSpec) -> Vec<String> {
    let last = spec.n_layer() - 1..spec.n_layer();
    let mut tensors = stage_tensors(model, spec, &last);
    let tied = is_tied(model, spec);
    tensors.retain(|tensor| {
        let (name, of_adapter) = of_model(&tensor.name);
        let rows = name == TOKEN_EMBD && (of_adapter || !tied);
        let of_layer = layer_of(name).is_some() || spec.is_of_a_layer(name);
        !of_layer && !name.starts_with("rope_") && !rows
    });
    tensors.into_iter().map(|tensor| tensor.name.clone()).collect()
}
