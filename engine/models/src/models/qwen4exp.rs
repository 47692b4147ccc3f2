//! `qwen4exp` (Qwen3.8-Flash-Next): qwen35moe's mixers and experts, with several streams that blocks read and write through
//! gates. The gate of a delta net's output is a sigmoid. A row of full attention attends to the blocks of positions that an
//! index chooses. One layer begins with embeddings of the last few tokens together.
//!
//! llama.cpp gives the places that are left to a part of one more block, where the positions behind the last whole block are
//! fewer than a block less one. The published model chooses whole blocks, as is done here.

use brigade_spec::{
    AttentionSpec, BlockIndexSpec, BlockKind, BlockScoring, BlockSpec, DeltaNetSpec, GateSource,
    GatedSpec, HeadOutputSpec, HeadReads, HeadSpec, LAYER_ROW_TABLE, LayerSpec, MaskSpec,
    ModelError, ModelSpec, NgramHead, NgramSpec, OutputGate, QkNorm, RopeSpec, Rotation, Skeleton,
    Streams, TOKEN_EMBD,
};

use super::qwen_next;
use crate::read::attention::attention_spec;
use crate::read::sections::{SectionOrder, Sections};
use crate::read::{Hparams, hyper, model, rope};
use brigade_shapes::{BlockSizes, KeyHeads, RopeLayout};

const RATIOS: &str = "attention.compress_ratios";
const INDEX_DIM: &str = "attention.indexer.key_length";
/// Most tokens of an n-gram, as in llama.cpp.
const LONGEST_NGRAM: usize = 8;
/// Most heads of all n-grams, as in llama.cpp.
const MOST_HEADS: usize = 64;
/// Whole numbers below this have an f32 of their own: tokens are remembered so.
const EXACT: usize = 1 << 24;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let streams = hyper::read_gated(hp, eps)?;
    let delta_net = qwen_next::delta_net(hp, KeyHeads::Tiled, eps)?;
    let delta_net = DeltaNetSpec { gate: OutputGate::Sigmoid, ..delta_net };
    let recurrent = qwen_next::recurrent_layers(hp, qwen_next::DEFAULT_INTERVAL)?;
    let ngrams = ngrams(hp, &streams)?;
    let rope = rope(hp)?;
    let mut layers = Vec::with_capacity(hp.n_layer());
    for (il, recurrent) in recurrent.into_iter().enumerate().take(hp.n_layer()) {
        let mut blocks = Vec::new();
        if let Some((_, ngram)) = ngrams.as_ref().filter(|(layer, _)| *layer == il) {
            if !recurrent {
                let problem = format!("layer {il} has full attention, must have a delta net");
                return Err(hp.bad("ple.layers", &problem));
            }
            // It reads and writes all streams itself, but for the first one's sum.
            blocks.push(BlockSpec::bare(BlockKind::Ngram(ngram.clone())));
        }
        let mixer = if recurrent {
            BlockKind::DeltaNet(delta_net.clone())
        } else {
            BlockKind::Attention(attention(hp, il, &rope, eps)?)
        };
        blocks.extend(hyper::gated_blocks(streams, mixer, qwen_next::experts_ffn(hp, il)?));
        layers.push(LayerSpec { blocks });
    }
    let skeleton = Skeleton { streams: Streams::Alike(streams.n), ..Skeleton::default() };
    let usual = model::usual(hp, layers, eps)?;
    let head = HeadSpec { reads: HeadReads::Gated(streams), norm: None, ..usual.head.clone() };
    Ok(ModelSpec { rope: Some(rope), skeleton, head, ..usual })
}

fn rope(hp: &Hparams<'_>) -> Result<RopeSpec, ModelError> {
    let n_head = hp.need_per_layer("attention.head_count")?.into_iter().max().unwrap_or(1);
    let (head_dim, _) = hp.head_dims(n_head)?;
    let rope = rope::read(hp, RopeLayout::Neox, head_dim, false)?;
    let rope = Sections::need(hp)?.of_text(rope, SectionOrder::Turns);
    match rope.still.first() {
        // Means of keys would have a position there, and queries none.
        Some(pair) => {
            let problem = format!("leaves pair {pair} to a fourth axis, must leave none");
            Err(hp.bad("rope.dimension_sections", &problem))
        }
        None => Ok(rope),
    }
}

fn attention(
    hp: &Hparams<'_>,
    il: usize,
    rope: &RopeSpec,
    eps: f32,
) -> Result<AttentionSpec, ModelError> {
    let attention = attention_spec(hp, il)?;
    if attention.head_dim_k != attention.head_dim_v {
        return Err(hp.bad("attention.value_length", "must be attention.key_length"));
    }
    Ok(AttentionSpec {
        rotation: Rotation::Model,
        qk_norm: Some(QkNorm::heads(eps)),
        head_output: HeadOutputSpec::gated(GateSource::BehindQuery),
        output_bias: false,
        mask: MaskSpec { index: Some(index(hp, il, rope, eps)?), ..MaskSpec::default() },
        ..attention
    })
}

/// The index of layer `il`: its blocks are as many positions as the layer's ratio says.
fn index(
    hp: &Hparams<'_>,
    il: usize,
    rope: &RopeSpec,
    eps: f32,
) -> Result<BlockIndexSpec, ModelError> {
    const TOP_K: &str = "attention.indexer.top_k";
    const HEADS: &str = "attention.indexer.head_count";
    let Some(positions) = hp.per_run_layer(RATIOS)?.map(|ratios| ratios[il]).filter(|n| *n > 0)
    else {
        let problem = format!("has no positive number for layer {il}, which has full attention");
        return Err(hp.bad(RATIOS, &problem));
    };
    let (top_k, n_head) = (hp.need_u32(TOP_K)? as usize, hp.need_u32(HEADS)? as usize);
    if top_k == 0 || !top_k.is_multiple_of(positions) {
        let problem = format!("is {top_k}, must be a multiple of layer {il}'s {positions}");
        return Err(hp.bad(TOP_K, &problem));
    }
    if n_head == 0 {
        return Err(hp.bad(HEADS, "must be positive"));
    }
    let head_dim = hp.need_u32(INDEX_DIM)? as usize;
    if head_dim < rope.n_rot.max(1) {
        let problem =
            format!("is {head_dim}; rope.dimension_count rotates {} of its elements", rope.n_rot);
        return Err(hp.bad(INDEX_DIM, &problem));
    }
    let sizes = BlockSizes { positions, per_row: top_k / positions + 1, newest: 1 };
    Ok(BlockIndexSpec { head_dim, sizes, eps, scoring: BlockScoring::Mean { n_head } })
}

/// The layer that begins with embedded n-grams, and these; `None`: the model has none.
fn ngrams(hp: &Hparams<'_>, streams: &GatedSpec) -> Result<Option<(usize, NgramSpec)>, ModelError> {
    const LAYERS: &str = "ple.layers";
    let layer = match hp.i32s(LAYERS)?.as_deref() {
        None | Some([]) => return Ok(None),
        Some(&[layer]) => match usize::try_from(layer) {
            Ok(layer) if layer < hp.n_layer() => layer,
            _ => return Err(hp.bad(LAYERS, &format!("is layer {layer} of {}", hp.n_layer()))),
        },
        Some(layers) => {
            return Err(hp.bad(LAYERS, &format!("are {layers:?}, must be one layer")));
        }
    };
    let longest = sized(hp, "ple.ngram_size", 2..=LONGEST_NGRAM)?;
    let n_heads = sized(hp, "ple.heads_per_ngram", 1..=MOST_HEADS / (longest - 1))? * (longest - 1);
    let n_embd = hp.n_embd();
    const WIDTH: &str = "embedding_length_per_layer_input";
    match hp.need_u32(WIDTH)? as usize {
        width if width.checked_mul(n_heads) == Some(n_embd) => {}
        width => {
            let problem = format!("is {width}: {n_heads} rows of that are not {n_embd} wide");
            return Err(hp.bad(WIDTH, &problem));
        }
    }
    let Some(table_rows) = hp.rows_of(LAYER_ROW_TABLE) else {
        return Err(hp.bad(LAYERS, &format!("needs tensor {LAYER_ROW_TABLE}")));
    };
    if hp.n_vocab(TOKEN_EMBD)? >= EXACT || table_rows > u32::MAX as usize {
        return Err(hp.bad(LAYERS, &format!("needs fewer than {EXACT} tokens and 2^32 rows")));
    }
    Ok(Some((
        layer,
        NgramSpec {
            n_streams: streams.n,
            n_embd,
            longest,
            multipliers: hp.need_u64s("ple.layer_multipliers", longest)?,
            heads: heads(hp, n_heads, table_rows)?,
            table_rows,
            end: hp.need_u32("ple.eos_token_id")?,
            conv_taps: hp.conv_taps("ple.conv_kernel")?,
            eps: streams.eps,
        },
    )))
}

/// The rows of each head.
fn heads(hp: &Hparams<'_>, n: usize, table_rows: usize) -> Result<Vec<NgramHead>, ModelError> {
    const SIZES: &str = "ple.head_vocab_sizes";
    let (firsts, sizes) = (hp.need_u64s("ple.head_offsets", n)?, hp.need_u64s(SIZES, n)?);
    let head = |(first, size): (u64, u64)| match first.checked_add(size) {
        Some(end) if size > 0 && end <= table_rows as u64 => Ok(NgramHead { first, size }),
        _ => {
            let problem =
                format!("{size} rows from {first} on, {LAYER_ROW_TABLE} has {table_rows}");
            Err(hp.bad(SIZES, &problem))
        }
    };
    firsts.into_iter().zip(sizes).take(n).map(head).collect()
}

fn sized(
    hp: &Hparams<'_>,
    key: &str,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, ModelError> {
    match hp.need_u32(key)? as usize {
        n if range.contains(&n) => Ok(n),
        n => {
            let (least, most) = range.into_inner();
            Err(hp.bad(key, &format!("is {n}, must be between {least} and {most}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::describe;
    use crate::headers::SMALL;
    use brigade_gguf::{Gguf, GgufWriter};
    use brigade_quant::GgmlType;
    use brigade_spec::{LAYER_ROW_TABLE, stage_tensors};
    use brigade_spec::{Prefixes, StateSpec};

    /// A header of four layers, with these keys in the place of usual ones.
    fn header(change: &[(&str, u32)], lists: &[(&str, &[u32])], wide: &[(&str, &[u64])]) -> Gguf {
        let mut writer = GgufWriter::new();
        let key = |name: &str| format!("qwen4exp.{name}");
        writer.set("general.architecture", "qwen4exp").unwrap();
        let counts = [
            ("attention.indexer.head_count", 4),
            ("attention.indexer.key_length", 16),
            ("attention.indexer.top_k", 16),
            ("rope.dimension_count", 4),
            ("expert_count", 8),
            ("expert_used_count", 3),
            ("expert_feed_forward_length", 16),
            ("expert_shared_feed_forward_length", 16),
            ("ssm.conv_kernel", 4),
            ("ssm.inner_size", 64),
            ("ssm.state_size", 8),
            ("ssm.time_step_rank", 8),
            ("ssm.group_count", 4),
            ("hyper_connection.count", 4),
            ("hyper_connection.low_rank", 4),
            ("ple.ngram_size", 3),
            ("ple.heads_per_ngram", 2),
            ("ple.conv_kernel", 4),
            ("ple.eos_token_id", 2),
            ("embedding_length_per_layer_input", 8),
        ];
        for (name, count) in SMALL.into_iter().chain(counts) {
            let changed = change.iter().find(|(changed, _)| *changed == name);
            writer.set(&key(name), &changed.map_or(count, |(_, count)| *count)).unwrap();
        }
        writer.set(&key("attention.layer_norm_rms_epsilon"), &1e-6_f32).unwrap();
        let usual_lists: [(&str, &[u32]); 3] = [
            ("rope.dimension_sections", &[1, 1, 1, 0]),
            ("attention.compress_ratios", &[0, 0, 0, 4]),
            ("ple.layers", &[1]),
        ];
        for (name, list) in usual_lists {
            let changed = lists.iter().find(|(changed, _)| *changed == name);
            writer.set(&key(name), changed.map_or(list, |(_, list)| *list)).unwrap();
        }
        let usual_wide: [(&str, &[u64]); 3] = [
            ("ple.layer_multipliers", &[3, 5, 7]),
            ("ple.head_offsets", &[0, 11, 24, 41]),
            ("ple.head_vocab_sizes", &[11, 13, 17, 19]),
        ];
        for (name, list) in usual_wide {
            let changed = wide.iter().find(|(changed, _)| *changed == name);
            writer.set(&key(name), changed.map_or(list, |(_, list)| *list)).unwrap();
        }
        writer.tensor("token_embd.weight", GgmlType::F32, &[32, 16]).unwrap();
        writer.tensor("per_layer_token_embd.weight", GgmlType::F32, &[8, 60]).unwrap();
        let mut stream = writer.start(Vec::new()).unwrap();
        for n in [32 * 16, 8 * 60] {
            stream.write(&vec![0; 4 * n]).unwrap();
        }
        Gguf::from_bytes(stream.finish().unwrap().into(), "test.gguf").unwrap()
    }

    fn refused(
        change: &[(&str, u32)],
        lists: &[(&str, &[u32])],
        wide: &[(&str, &[u64])],
    ) -> String {
        let model = header(change, lists, wide);
        describe(&model).map_or_else(|error| error.to_string(), |_| "runs".to_owned())
    }

    #[test]
    fn layers_leave_behind_what_their_blocks_need() {
        let spec = describe(&header(&[], &[], &[])).unwrap();
        let net = StateSpec::Slot { conv: 3 * (2 * 4 * 8 + 8 * 8), scan: 8 * 8 * 8 };
        // Nine rows of all streams, and two tokens.
        let ngrams = StateSpec::Slot { conv: 9 * 4 * 32, scan: 2 };
        let paged = StateSpec::Paged { n_head: 2, per_head: [16, 16], index: 16, window: None };
        let none = StateSpec::None;
        let states: Vec<Vec<StateSpec>> = spec
            .layers
            .iter()
            .map(|layer| layer.blocks.iter().map(|block| block.kind.state()).collect())
            .collect();
        assert_eq!(
            states,
            [vec![net, none], vec![ngrams, net, none], vec![net, none], vec![paged, none]]
        );
        assert_eq!(spec.prefixes(true), Prefixes::Whole);
        // Four streams cross every cut.
        assert_eq!(spec.boundary(2).widths, [32; 4]);
    }

    /// The table of n-grams goes to the layer that reads it, wherever that is.
    #[test]
    fn the_stage_with_the_ngrams_has_their_table() {
        let model = header(&[], &[], &[]);
        let spec = describe(&model).unwrap();
        let has = |layers: std::ops::Range<usize>| {
            let tensors = stage_tensors(&model, &spec, &layers);
            tensors.iter().any(|tensor| tensor.name == LAYER_ROW_TABLE)
        };
        assert_eq!([0..1, 1..2, 0..4, 2..4].map(has), [false, true, true, false]);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_its_key() {
        assert_eq!(refused(&[], &[], &[]), "runs");
        let counts: [(&str, u32, &str); 12] = [
            ("hyper_connection.count", 1, "must be between 2 and 64"),
            ("hyper_connection.low_rank", 0, "must be positive"),
            ("attention.indexer.top_k", 18, "must be a multiple of layer 3's 4"),
            ("attention.indexer.top_k", 0, "must be a multiple"),
            ("attention.indexer.head_count", 0, "must be positive"),
            ("attention.indexer.key_length", 2, "rotates 4 of its elements"),
            ("attention.value_length", 8, "must be attention.key_length"),
            ("ple.ngram_size", 1, "must be between 2 and 8"),
            ("ple.ngram_size", 9, "must be between 2 and 8"),
            ("ple.heads_per_ngram", 40, "must be between 1 and 32"),
            ("embedding_length_per_layer_input", 9, "are not 32 wide"),
            ("ple.conv_kernel", 1, "must be in 2..="),
        ];
        for (key, count, problem) in counts {
            let message = refused(&[(key, count)], &[], &[]);
            let named = message.contains(&format!("qwen4exp.{key}"));
            assert!(named && message.contains(problem), "{key}: {message}");
        }
        let lists: [(&str, &[u32], &str); 5] = [
            ("attention.compress_ratios", &[0, 0, 0, 0], "no positive number for layer 3"),
            ("rope.dimension_sections", &[1, 0, 0, 1], "leaves pair 1 to a fourth axis"),
            ("ple.layers", &[3], "layer 3 has full attention"),
            ("ple.layers", &[4], "is layer 4 of 4"),
            ("ple.layers", &[0, 1], "must be one layer"),
        ];
        for (key, list, problem) in lists {
            let message = refused(&[], &[(key, list)], &[]);
            let named = message.contains(&format!("qwen4exp.{key}"));
            assert!(named && message.contains(problem), "{key}: {message}");
        }
        let wide: [(&str, &[u64], &str); 4] = [
            ("ple.layer_multipliers", &[3, 5], "has 2 numbers, must have 3"),
            ("ple.head_vocab_sizes", &[11, 13, 17, 20], "20 rows from 41 on"),
            ("ple.head_vocab_sizes", &[11, 0, 17, 19], "0 rows from 11 on"),
            ("ple.head_vocab_sizes", &[11, 13, u64::MAX, 19], "rows from 24 on"),
        ];
        for (key, list, problem) in wide {
            let message = refused(&[], &[], &[(key, list)]);
            let named = message.contains(&format!("qwen4exp.{key}"));
            assert!(named && message.contains(problem), "{key}: {message}");
        }
    }
}
