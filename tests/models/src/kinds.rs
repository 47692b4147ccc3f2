//! Golden models by what they remember of a sequence.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};
use std::path::Path;

use brigade_gguf::Gguf;
use brigade_spec::{BlockKind, StateSpec};

use crate::golden::{Entry, Golden};

/// A model of the manifest: its name, and what is known of it.
pub type Named<'a> = (&'a String, &'a Entry);

/// Models whose weights are not quantised: their tokens are llama.cpp's.
pub fn unquantised(golden: &Golden) -> impl Iterator<Item = Named<'_>> {
    golden.models().filter(|(name, entry)| entry.is_f32(name))
}

/// The first of these models with each mixture of KV pages, recurrent states and windows. So each kind of block with a
/// state occurs, with windows and without.
///
/// # Panics
/// If a file is none of a model that runs here.
pub fn one_of_each_memory(golden: &Golden) -> Vec<Named<'_>> {
    let mut seen = Vec::new();
    let mut is_new = |(_, entry): &Named<'_>| {
        let kinds = kinds_of_memory(&golden.model(entry));
        let is_new = !seen.contains(&kinds);
        seen.extend(is_new.then_some(kinds));
        is_new
    };
    unquantised(golden).filter(|named| is_new(named)).collect()
}

fn kinds_of_memory(path: &Path) -> HashSet<(Discriminant<BlockKind>, bool)> {
    let spec = brigade_models::describe(&Gguf::open(path).unwrap()).unwrap();
    let kinds = spec.layers.iter().flat_map(|layer| &layer.blocks).map(|block| &block.kind);
    let remembering = kinds.filter(|kind| kind.state() != StateSpec::None);
    remembering.map(|kind| (discriminant(kind), kind.window().is_some())).collect()
}
