//! The models: metadata and a tensor directory go in, a [`ModelSpec`] comes out.
//!
//! There is one file for each architecture, or for a few that are alike. To add one, write its file and its
//! line in `ARCHS` (`models/mod.rs`); nothing else changes.
//!
//! The result is made of the types of `brigade-spec`. Making it reads no tensor data. So the planner, `inspect` and the
//! coordinator use the same specs as the stages. Nothing that computes needs this crate.
//!
//! Reading order:
//!
//! - [`describe`] looks a model up in the table of `models`. `models/llama.rs` is one of the shortest of its files.
//! - `read` has what they share: [`Hparams`] reads single keys, `decoder`, `transformer` and `encoder` whole models,
//!   `attention`, `experts`, `mla` and others the parts of a layer, `adapters` what is loaded beside a model.
//! - [`refused`] names what does not run.

#[cfg(test)]
mod headers;
mod models;
mod read;
mod refused;

use std::sync::Arc;

use brigade_gguf::Gguf;
use brigade_spec::{Described, ModelError, ModelSpec};

use models::ARCHS;
use read::{adapters, encoder};

pub use read::Hparams;
pub use read::adapters::takes_adapter;
pub use refused::refused;

/// Names of the supported architectures, as `general.architecture` spells them.
pub fn supported() -> Vec<&'static str> {
    ARCHS.iter().map(|(name, _)| *name).collect()
}

/// Describes a model from its header.
///
/// # Errors
/// [`ModelError::Unsupported`] for an architecture that is not in the registry; otherwise what is
/// missing or contradictory in the metadata, by key.
pub fn describe(model: &Gguf) -> Result<ModelSpec, ModelError> {
    let arch = model.architecture()?;
    match ARCHS.iter().find(|(name, _)| *name == arch) {
        Some((_, describe)) => {
            adapters::check(model)?;
            let hp = Hparams::new(model)?;
            let spec = encoder::if_both_ways(&hp, describe(&hp)?)?;
            if spec.is_encoder() {
                adapters::check_encoder(model)?;
            }
            Ok(spec)
        }
        None => Err(ModelError::Unsupported(refusal(arch))),
    }
}

/// A model's header with its description, as a stage is loaded of them.
///
/// # Errors
/// As [`describe`].
pub fn described(model: &Gguf) -> Result<Described<'_>, ModelError> {
    Ok(Described { model, spec: Arc::new(describe(model)?) })
}

/// Message for an architecture that does not run: the reason, and the remedy.
fn refusal(arch: &str) -> String {
    match refused().find(|(name, _)| *name == arch) {
        Some((_, reason)) => format!(
            "architecture {arch:?}: {reason}. Take a model of an architecture that runs: docs/models.md \
             lists them"
        ),
        None => format!("architecture {arch:?} (supported: {})", supported().join(", ")),
    }
}
