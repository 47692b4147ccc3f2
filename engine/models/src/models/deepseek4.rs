//! `deepseek4` (DeepSeek-V4): attention to a window and to compressed positions before it, hyper-connections, and experts
//! that a table chooses by token id in the first layers.
//!
//! An **entry** is one key-value row that stands for several positions. There are three kinds of layers. One has an entry for
//! every 4 positions, of which an index selects the best for each row. One has an entry for every 128 positions, and rows attend
//! to all of them. One has a window alone. Layers with entries rotate with `compress_rope_freq_base` and YaRN.
//!
//! Several residual **streams** run through the layers beside each other (hyper-connections). A **draft block** behind the last
//! layer proposes tokens; it reads all streams, and has a window alone.

use brigade_spec::{
    Activation, BlockKind, CompressedSpec, DraftInput, EntriesSpec, EntryIndexSpec, HeadReads,
    HeadSpec, ModelError, ModelSpec, MoeSpec, RopeSpec, Rotation, Router, SPARE_KEYS,
    SharedExpertSpec, Skeleton, Streams, TOKEN_EMBD,
};

use crate::read::limits::SwiGluLimits;
use crate::read::own_drafts::{DraftBlocks, with_blocks};
use crate::read::{Hparams, experts, hyper, model, rope};
use brigade_shapes::{GateBound, RopeLayout};

/// Positions of an entry where an index chooses entries. Each entry is also made of the 4 positions before its own.
const FINE: usize = 4;
/// Positions of an entry where rows attend to all.
const COARSE: usize = 128;
/// Widest window that is believed, in positions; models have 128. A sequence remembers as many keys in each layer.
const WIDEST_WINDOW: usize = 1 << 16;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let attention = Attention::read(hp, eps)?;
    let limits = Limits::read(hp)?;
    // The experts of the first layers are chosen by a table, with an entry for each token id.
    let n_by_table = hp.need_u32("hash_layer_count")? as usize;
    let n_vocab = hp.n_vocab(TOKEN_EMBD)?;
    let streams = hyper::read_mixed(hp, eps)?;
    let layer = |il: usize, attention: CompressedSpec| {
        let ffn = moe(hp, il, &limits, (il < n_by_table).then_some(n_vocab))?;
        let (attention, ffn) = (BlockKind::Compressed(attention), BlockKind::Moe(ffn));
        Ok::<_, ModelError>(hyper::layer(streams, eps, attention, ffn))
    };
    let layers = (0..hp.n_layer()).map(|il| layer(il, attention.of(hp, il)?));
    let layers = layers.collect::<Result<_, ModelError>>()?;
    let [rope, local_rope] = ropes(hp, attention.head_dim)?.map(Some);
    let skeleton = Skeleton { streams: Streams::Alike(streams.n), ..Skeleton::default() };
    let head = HeadSpec { reads: HeadReads::Hyper(streams), ..HeadSpec::usual(eps) };
    let spec = ModelSpec { rope, local_rope, skeleton, head, ..model::usual(hp, layers, eps)? };
    // A draft block is a layer like the others. Its window remembers more keys than a row sees, because drafts that turn out
    // wrong are taken back.
    let draft_reads = DraftInput::Streams(streams.n);
    Ok(with_blocks(hp, spec, DraftBlocks::One, draft_reads, |il| {
        layer(il, CompressedSpec { spare: SPARE_KEYS, ..attention.of(hp, il)? })
    }))
}

/// The rotations of layers with entries, and of those without. YaRN turns positions here, and scales no value.
fn ropes(hp: &Hparams<'_>, head_dim: usize) -> Result<[RopeSpec; 2], ModelError> {
    let of_file = rope::read(hp, RopeLayout::Norm, head_dim, false)?;
    // The rotation would multiply sine and cosine by YaRN's magnitude. `attn_factor` is its inverse, so that nothing is scaled.
    let yarn_mscale = 1.0 + 0.1 * (1.0 / of_file.freq_scale).ln();
    let attn_factor = if of_file.yarn.is_some() { 1.0 / yarn_mscale } else { 1.0 };
    let freq_base = hp.need_f32("attention.compress_rope_freq_base")?;
    let plain = RopeSpec { freq_scale: 1.0, attn_factor: 1.0, yarn: None, ..of_file.clone() };
    Ok([RopeSpec { freq_base, attn_factor, ..of_file }, plain])
}

/// What the attention of all layers has in common, and what each layer has of its own.
struct Attention {
    /// Of each layer, draft blocks included (`block_count` of them).
    n_head: Vec<usize>,
    head_dim: usize,
    n_rot: usize,
    q_rank: usize,
    window: usize,
    n_group: usize,
    group_rank: usize,
    index: EntryIndexSpec,
    /// Of each layer, and of draft blocks behind them: the positions of an entry; 0: it has no entries.
    entry_positions: Vec<i32>,
    eps: f32,
}

impl Attention {
    fn read(hp: &Hparams<'_>, eps: f32) -> Result<Self, ModelError> {
        const WINDOW: &str = "attention.sliding_window";
        const RATIOS: &str = "attention.compress_ratios";
        const INDEX_DIM: &str = "attention.indexer.key_length";
        let size = |key| match hp.need_u32(key)? {
            0 => Err(hp.bad(key, "must be positive")),
            n => Ok(n as usize),
        };
        let (head_dim, n_rot) = (size("attention.key_length")?, size("rope.dimension_count")?);
        let index = EntryIndexSpec {
            n_head: size("attention.indexer.head_count")?,
            head_dim: size(INDEX_DIM)?,
            per_row: size("attention.indexer.top_k")?,
        };
        if n_rot > index.head_dim {
            let problem = format!("is {}, of which {n_rot} are to be rotated", index.head_dim);
            return Err(hp.bad(INDEX_DIM, &problem));
        }
        let window = size(WINDOW)?;
        if window > WIDEST_WINDOW {
            return Err(hp.bad(WINDOW, &format!("is {window}, the limit is {WIDEST_WINDOW}")));
        }
        let entry_positions = hp.i32s(RATIOS)?.unwrap_or_default();
        if entry_positions.len() < hp.n_layer() {
            let problem = format!("{} numbers for {} layers", entry_positions.len(), hp.n_layer());
            return Err(hp.bad(RATIOS, &problem));
        }
        Ok(Self {
            n_head: hp.need_per_layer("attention.head_count")?,
            head_dim,
            n_rot,
            q_rank: size("attention.q_lora_rank")?,
            window,
            n_group: size("attention.output_group_count")?,
            group_rank: size("attention.output_lora_rank")?,
            index,
            entry_positions,
            eps,
        })
    }

    /// The attention of layer `il`.
    fn of(&self, hp: &Hparams<'_>, il: usize) -> Result<CompressedSpec, ModelError> {
        // A file may say nothing of its draft block: -1 is refused below like any other number.
        let positions = self.entry_positions.get(il).copied().unwrap_or(-1);
        let entries = match usize::try_from(positions) {
            Ok(0) => None,
            Ok(FINE) => Some(EntriesSpec { every: FINE, overlaps: true, index: Some(self.index) }),
            Ok(COARSE) => Some(EntriesSpec { every: COARSE, overlaps: false, index: None }),
            _ => {
                let problem = format!("{positions} in layer {il}: 0, {FINE} and {COARSE} run");
                return Err(hp.bad("attention.compress_ratios", &problem));
            }
        };
        let n_head = self.n_head[il];
        if n_head == 0 || !n_head.is_multiple_of(self.n_group) {
            let problem = format!("{} groups of {n_head} heads", self.n_group);
            return Err(hp.bad("attention.output_group_count", &problem));
        }
        Ok(CompressedSpec {
            n_head,
            head_dim: self.head_dim,
            n_rot: self.n_rot,
            q_rank: self.q_rank,
            window: self.window,
            spare: 0,
            n_group: self.n_group,
            group_rank: self.group_rank,
            rotation: if entries.is_some() { Rotation::Model } else { Rotation::Local },
            eps: self.eps,
            entries,
        })
    }
}

/// Bounds of what a SwiGLU multiplies: in the routed experts, and in the shared one.
struct Limits {
    routed: SwiGluLimits,
    shared: SwiGluLimits,
}

impl Limits {
    fn read(hp: &Hparams<'_>) -> Result<Self, ModelError> {
        const ROUTED: &str = "swiglu_clamp_exp";
        const SHARED: &str = "swiglu_clamp_shexp";
        let of_shared = if hp.f32_per_layer(SHARED)?.is_some() { SHARED } else { ROUTED };
        let read = |key| SwiGluLimits::read(hp, key, GateBound::Before);
        Ok(Self { routed: read(ROUTED)?, shared: read(of_shared)? })
    }
}

/// The experts of layer `il`. `by_token`: the rows of the table that chooses them ([`MoeSpec::by_token`]).
fn moe(
    hp: &Hparams<'_>,
    il: usize,
    limits: &Limits,
    by_token: Option<usize>,
) -> Result<MoeSpec, ModelError> {
    let router = hp.expert_router()?.filter(|router| *router == Router::SqrtSoftplus);
    let router =
        router.ok_or_else(|| hp.bad("expert_gating_func", "must be 4, the root of a softplus"))?;
    let experts = experts::read(hp, il, |_| 0)?;
    let n_shared = hp.need_u32("expert_shared_count")? as usize;
    let shared =
        |activation: Activation| SharedExpertSpec::new(n_shared * experts.n_ff, activation);
    Ok(MoeSpec {
        activation: limits.routed.of(il),
        router,
        selection_bias: by_token.is_none(),
        by_token,
        norm_weights: hp.bool("expert_weights_norm")?.unwrap_or(false),
        weights_scale: hp.expert_weights_scale()?,
        shared: (n_shared > 0).then(|| shared(limits.shared.of(il))),
        ..experts
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe;
    use brigade_gguf::{Gguf, GgufWriter};
    use brigade_quant::GgmlType;
    use brigade_spec::{Prefixes, StateSpec};

    /// Positions of an entry, for each of four layers; the fifth number is of a draft block that the file lacks.
    const RATIOS: [u32; 5] = [0, 4, 128, 4, 0];

    /// A header of four layers; one count is another where `changed` says so.
    fn header(changed: Option<(&str, u32)>, ratios: &[u32]) -> Gguf {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", "deepseek4").unwrap();
        for (key, value) in [
            ("block_count", 4),
            ("context_length", 4096),
            ("embedding_length", 64),
            ("attention.head_count", 8),
            ("attention.key_length", 32),
            ("attention.q_lora_rank", 16),
            ("attention.sliding_window", 16),
            ("attention.output_group_count", 4),
            ("attention.output_lora_rank", 8),
            ("attention.indexer.head_count", 4),
            ("attention.indexer.key_length", 16),
            ("attention.indexer.top_k", 8),
            ("rope.dimension_count", 8),
            ("hyper_connection.count", 4),
            ("hyper_connection.sinkhorn_iterations", 20),
            ("hash_layer_count", 1),
            ("expert_count", 8),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 32),
            ("expert_shared_count", 1),
            ("expert_gating_func", 4),
        ] {
            let value = changed.filter(|(other, _)| *other == key).map_or(value, |(_, v)| v);
            writer.set(&format!("deepseek4.{key}"), &value).unwrap();
        }
        writer.set("deepseek4.attention.compress_ratios", ratios).unwrap();
        for (key, value) in [
            ("attention.layer_norm_rms_epsilon", 1e-6f32),
            ("attention.compress_rope_freq_base", 160_000.0),
            ("hyper_connection.epsilon", 1e-6),
            ("swiglu_clamp_exp", 10.0),
        ] {
            writer.set(&format!("deepseek4.{key}"), &value).unwrap();
        }
        writer.tensor("token_embd.weight", GgmlType::F16, &[64, 32]).unwrap();
        let mut stream = writer.start(Vec::new()).unwrap();
        stream.write(&[0; 2 * 64 * 32]).unwrap();
        Gguf::from_bytes(stream.finish().unwrap().into(), "header.gguf").unwrap()
    }

    #[test]
    fn layers_differ_in_entries_rotation_and_routing() {
        let spec = describe(&header(None, &RATIOS)).unwrap();
        let blocks: Vec<_> = spec.layers.iter().map(|layer| &layer.blocks).collect();
        let every = blocks.iter().map(|blocks| match blocks[0].kind.state() {
            StateSpec::Entries { every, index, .. } => (every, index),
            _ => (0, 0),
        });
        assert_eq!(every.collect::<Vec<_>>(), [(0, 0), (4, 16), (128, 0), (4, 16)]);
        let rotation = |il: usize| match &blocks[il][0].kind {
            BlockKind::Compressed(spec) => spec.rotation,
            _ => Rotation::None,
        };
        assert_eq!([rotation(0), rotation(1)], [Rotation::Local, Rotation::Model]);
        let by_token = |il: usize| match &blocks[il][1].kind {
            BlockKind::Moe(spec) => (spec.by_token, spec.selection_bias),
            _ => (None, false),
        };
        assert_eq!([by_token(0), by_token(1)], [(Some(32), false), (None, true)]);
        assert_eq!(spec.prefixes(false), Prefixes::Whole);
        assert_eq!(spec.rope.unwrap().freq_base, 160_000.0);
        assert_eq!(spec.local_rope.unwrap().freq_base, 10_000.0);
    }

    #[test]
    fn sizes_that_make_no_model_are_refused_by_their_key() {
        for (key, value, says) in [
            ("attention.sliding_window", 0, "positive"),
            ("attention.sliding_window", 100_000, "the limit is 65536"),
            ("attention.output_group_count", 3, "3 groups of 8 heads"),
            ("attention.indexer.key_length", 4, "of which 8"),
            ("hyper_connection.sinkhorn_iterations", 0, "between 1 and"),
            ("hyper_connection.sinkhorn_iterations", 1 << 20, "between 1 and"),
            ("expert_gating_func", 2, "must be 4"),
            ("rope.dimension_count", 7, "must be even"),
        ] {
            let error = describe(&header(Some((key, value)), &RATIOS)).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(says), "{key}: {error}");
        }
        for (ratios, says) in [(&[0, 4, 128][..], "3 numbers"), (&[0, 4, 5, 4], "5 in layer 2")] {
            let error = describe(&header(None, ratios)).unwrap_err().to_string();
            assert!(error.contains("compress_ratios") && error.contains(says), "{error}");
        }
    }
}
