//! Blocks that draft tokens, which stand behind the layers of a model's file.

use brigade_spec::{
    BlockKind, DraftHeadSpec, DraftInput, LayerSpec, ModelError, ModelSpec, OUTPUT_NORM,
    OwnDraftsSpec, SPARE_KEYS, StateSpec,
};

use super::hparams::Hparams;

/// Number of blocks of drafts that a model may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftBlocks {
    /// One, which goes on from what it gave itself.
    One,
    /// One such, or several that are used once each.
    Several,
}

/// `spec` with the blocks that its file has behind the layers: `layer` describes the one of a number, as it would a layer.
///
/// A file may lack their tensors, or have more blocks than are known to work: then nothing drafts. Missing or
/// contradictory metadata of a block is reported (`own_drafts_refused`), and the model runs without it.
pub(crate) fn with_blocks(
    hp: &Hparams<'_>,
    spec: ModelSpec,
    blocks: DraftBlocks,
    reads: DraftInput,
    layer: impl Fn(usize) -> Result<LayerSpec, ModelError>,
) -> ModelSpec {
    let all = hp.n_layer()..hp.n_layer() + hp.n_drafting();
    let has = |il: usize, part: &str| hp.has_tensor(&format!("blk.{il}.{part}.weight"));
    let is_there = all.clone().all(|il| has(il, "nextn.eh_proj"));
    if all.is_empty() || !is_there || (blocks == DraftBlocks::One && all.len() > 1) {
        return spec;
    }
    let head = |il: usize| {
        let norms = ["nextn.shared_head_norm", "layer_output_norm"];
        let own = norms.into_iter().find(|norm| has(il, norm));
        Ok(DraftHeadSpec {
            in_file: il,
            layer: layer(il)?,
            norm: own.map_or(OUTPUT_NORM.to_owned(), |norm| format!("blk.{il}.{norm}.weight")),
            own_norm: None,
            unread: None,
            own_embedding: has(il, "nextn.embed_tokens"),
            own_output: has(il, "nextn.shared_head_head"),
        })
    };
    let heads = match all.map(head).collect::<Result<Vec<_>, ModelError>>() {
        Ok(heads) => heads,
        Err(error) => return ModelSpec { own_drafts_refused: Some(error.to_string()), ..spec },
    };
    let drafts = OwnDraftsSpec { heads, reads };
    // Only what is kept position by position can be written over.
    let by_position = |kind: &BlockKind| match kind {
        BlockKind::Compressed(window) => window.entries.is_none() && window.spare >= SPARE_KEYS,
        kind => matches!(kind.state(), StateSpec::Paged { .. } | StateSpec::None),
    };
    let mut kinds = drafts.heads.iter().flat_map(|head| &head.layer.blocks);
    let own_drafts = kinds.all(|block| by_position(&block.kind)).then_some(drafts);
    ModelSpec { own_drafts, ..spec }
}

/// `spec` with what `change` makes of each block. An error is told as one of [`with_blocks`] is.
pub(crate) fn with_heads(
    mut spec: ModelSpec,
    change: impl Fn(&mut DraftHeadSpec) -> Result<(), ModelError>,
) -> ModelSpec {
    let mut heads = spec.own_drafts.iter_mut().flat_map(|drafts| &mut drafts.heads);
    if let Err(error) = heads.try_for_each(change) {
        (spec.own_drafts, spec.own_drafts_refused) = (None, Some(error.to_string()));
    }
    spec
}

/// Refuses a block that has no norm of its own.
pub(crate) fn need_norm(head: &DraftHeadSpec) -> Result<(), ModelError> {
    match head.norm.as_str() {
        OUTPUT_NORM => {
            let problem = format!("block {} drafts and has no norm behind it", head.in_file);
            Err(ModelError::Unsupported(problem))
        }
        _ => Ok(()),
    }
}
