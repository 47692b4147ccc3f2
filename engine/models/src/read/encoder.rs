//! Readers for the files of encoders: attention in which a row sees the rows after it too, windows on both sides, and
//! their keys.

use brigade_spec::{
    AttentionSpec, BlockKind, MaskSpec, ModelError, ModelSpec, NormKind, RopeSpec, Rotation,
    Skeleton, TOKEN_TYPES,
};

use super::attention::attention_spec;
use super::hparams::Hparams;
use brigade_shapes::Window;

/// Base of the rotation in windows where the file names none.
const LOCAL_BASE: f32 = 10_000.0;

/// The heads of layer `il`: each row sees all rows of its text.
pub(crate) fn attention(
    hp: &Hparams<'_>,
    il: usize,
    rotation: Rotation,
) -> Result<AttentionSpec, ModelError> {
    check_direction(hp)?;
    let mask = MaskSpec { both_ways: true, ..MaskSpec::default() };
    Ok(AttentionSpec { mask, rotation, ..attention_spec(hp, il)? })
}

/// A description as it is, or where the file says that rows see those after them (decoders that were trained on to make
/// vectors), as that of an encoder.
pub(crate) fn if_both_ways(hp: &Hparams<'_>, spec: ModelSpec) -> Result<ModelSpec, ModelError> {
    match hp.bool("attention.causal")? {
        Some(false) if !spec.is_encoder() => of_decoder(hp, spec),
        _ => Ok(spec),
    }
}

/// A decoder's description as that of an encoder.
pub(crate) fn of_decoder(hp: &Hparams<'_>, mut spec: ModelSpec) -> Result<ModelSpec, ModelError> {
    check_direction(hp)?;
    let mut all = spec.layers.iter().flat_map(|layer| &layer.blocks);
    if let Some(other) = all.find(|b| b.kind.mixes_rows() && !is_attention(&b.kind)) {
        let what = format!("attention.causal is false beside {:?}", other.kind);
        return Err(ModelError::Unsupported(what));
    }
    for block in spec.layers.iter_mut().flat_map(|layer| &mut layer.blocks) {
        if let BlockKind::Attention(attention) = &mut block.kind {
            attention.mask.both_ways = true;
        }
    }
    Ok(spec)
}

fn is_attention(kind: &BlockKind) -> bool {
    matches!(kind, BlockKind::Attention(_))
}

/// Refuses a file of an encoder's architecture whose rows see only those before them.
fn check_direction(hp: &Hparams<'_>) -> Result<(), ModelError> {
    match hp.bool("attention.causal")? {
        Some(true) => Err(hp.bad("attention.causal", "must be false, or missing, in an encoder")),
        Some(false) | None => Ok(()),
    }
}

/// BERT's LayerNorms, the first behind the embedding, and its table of token types, where there is one.
pub(crate) fn bert_skeleton(hp: &Hparams<'_>) -> Skeleton {
    Skeleton {
        norm: NormKind::Layer,
        embedding_norm: Some(NormKind::Layer),
        token_types: hp.rows_of(TOKEN_TYPES).unwrap_or(0),
        ..Skeleton::default()
    }
}

/// A model without a norm behind its layers.
pub(crate) fn without_last_norm(mut spec: ModelSpec) -> ModelSpec {
    spec.head.norm = None;
    spec
}

/// The layers of a period that see all of the text.
pub(crate) enum Full {
    First,
    Last,
}

/// Windows on both sides of a row, in some layers, and the rotation there.
pub(crate) struct Windows {
    layers: Vec<bool>,
    width: Option<u32>,
    /// Rotary embedding of the layers with windows.
    pub local_rope: Option<RopeSpec>,
}

impl Windows {
    /// Reads the keys; one layer in `period` is `full` where the file does not say which.
    pub(crate) fn read(
        hp: &Hparams<'_>,
        period: u32,
        full: Full,
        rope: &RopeSpec,
    ) -> Result<Self, ModelError> {
        let width = hp.window()?;
        let freq_base = hp.f32("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE);
        let local = RopeSpec { freq_base, freq_scale: 1.0, ..rope.clone() };
        let layers = match full {
            Full::Last => hp.windowed_layers(period)?,
            Full::First => hp.windowed_layers_after(period)?,
        };
        Ok(Self { layers, width, local_rope: width.map(|_| local) })
    }

    /// `attention` with the window and the rotation of layer `il`.
    pub(crate) fn apply(&self, il: usize, attention: AttentionSpec) -> AttentionSpec {
        let Some(width) = self.width.filter(|_| self.layers[il]) else { return attention };
        let mask = MaskSpec { window: Some(Window::Around(width)), ..attention.mask };
        AttentionSpec { mask, rotation: Rotation::Local, ..attention }
    }
}
