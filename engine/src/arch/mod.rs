//! Architectures as data: metadata and tensor directory go in, a [`ModelSpec`] comes out.
//!
//! There is one file for each architecture, or for a few that are alike. To add one, write its file and its
//! line in [`ARCHS`]; nothing else changes.
//!
//! A spec says which blocks a layer has and how large they are. It holds no weights, and making one reads no
//! tensor data. So the planner, `inspect` and the coordinator use the same specs as the stages.

mod adapters;
mod afmoe;
mod apertus;
mod arctic;
mod attention_spec;
mod baichuan;
mod bailing;
mod bailingmoe3;
mod bert;
mod beside;
mod bitnet;
mod boundary;
mod chameleon;
mod cogvlm;
mod cohere;
mod compressed_spec;
mod dbrx;
mod deci;
mod decoder;
mod deepseek;
mod deepseek2;
mod deepseek32;
mod deepseek4;
mod delta_spec;
mod dots3note;
mod encoder;
mod ernie;
mod eurobert;
mod exaone4;
mod experts;
mod falcon_h1;
mod ffn_spec;
mod gemma;
mod gemma3n;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm5_next;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod granite_switch;
mod grok;
mod grovemoe;
#[cfg(test)]
mod headers;
mod hparams;
mod hrm_text;
mod hunyuan;
mod hy_v4;
mod hyper;
mod internlm2;
mod jamba;
mod kimi_k3;
mod kimi_linear;
mod lending;
mod lfm2;
mod limits;
mod llama;
mod llama4;
mod mamba;
mod mamba2;
mod mellum;
mod mimo2;
mod minicpm3;
mod minimax;
mod minimax_01;
mod minimax_m3;
mod mistral3;
mod mla;
mod modern_bert;
mod nanbeige;
mod nemotron;
mod neo_bert;
mod ngram_spec;
mod olmo;
mod openelm;
mod passes;
mod phi3;
mod plamo;
mod plamo2;
mod qwen;
mod qwen2moe;
mod qwen4exp;
mod qwen_next;
mod recurrent_spec;
mod refused;
mod residual;
mod rope;
mod rwkv6;
mod rwkv7;
mod sections;
mod seed_oss;
mod smallthinker;
mod spec;
mod starcoder2;
mod step35;
mod stream_spec;
mod switch_spec;
mod t5_encoder;
mod talkie;
mod transformer;

use std::ops::Range;

pub use attention_spec::{
    Alibi, AttentionSpec, BlockIndexSpec, BlockScoring, Buckets, GateActivation, GateSource,
    HeadGate, KvFrom, NormOver, QkNorm, Rotation, Temperature,
};
pub use beside::{Beside, BoundarySpec};
pub use compressed_spec::{CompressedSpec, EntriesSpec, EntryIndexSpec};
pub use delta_spec::{DeltaNetSpec, KdaGates, KdaSpec, OutputGate};
pub use ffn_spec::{
    Activation, AdjugateSpec, LatentSpec, MlpSpec, MoeSpec, Router, SharedExpertSpec,
};
pub use hparams::Hparams;
pub use ngram_spec::{NgramHead, NgramSpec};
pub use passes::{LoopSpec, PassEnd, Passes, StackSpec};
pub use recurrent_spec::{
    ChannelMixSpec, LightningSpec, MambaNorms, MambaSpec, ShortConvSpec, TimeMix6Spec, TimeMixSpec,
};
pub use refused::refused;
pub use residual::{DepthSpec, GatedSpec, HyperSpec, Residual};
pub use rope::{RopeFactors, RopeSpec, YarnSpec};
pub use spec::{
    BlockKind, BlockSpec, ChosenBy, ChosenSpec, HeadSpec, IndexSpec, LayerSpec, LowRankSteps,
    Mamba2Spec, MlaGate, MlaSpec, ModelSpec, NormKind, Reads, Skeleton,
};
pub use stream_spec::{AltUpSpec, LaurelSpec, LayerRowSpec};
pub use switch_spec::{SwitchRouterSpec, SwitchSpec};

use crate::error::ModelError;
pub use adapters::{MAX_ADAPTERS, has_token_rows, takes_adapter};

use crate::gguf::adapters::of_model;
use crate::gguf::{Gguf, TensorInfo};

/// Reads a model's metadata into a spec.
type Describe = fn(&Hparams<'_>) -> Result<ModelSpec, ModelError>;

/// `general.architecture` to the function that describes such a model.
const ARCHS: &[(&str, Describe)] = &[
    ("afmoe", afmoe::describe),
    ("apertus", apertus::describe),
    ("arcee", internlm2::describe_arcee),
    ("arctic", arctic::describe),
    ("arwkv7", rwkv7::describe_arwkv7),
    ("baichuan", baichuan::describe),
    ("bailingmoe", bailing::describe),
    ("bailingmoe2", bailing::describe_2),
    ("bailingmoe3", bailingmoe3::describe),
    ("bert", bert::describe),
    ("bitnet", bitnet::describe),
    ("bloom", gpt2::describe_bloom),
    ("chameleon", chameleon::describe),
    ("chatglm", internlm2::describe_chatglm),
    ("codeshell", starcoder2::describe),
    ("cogvlm", cogvlm::describe),
    ("cohere2", cohere::describe_2),
    ("cohere2moe", cohere::describe_2_moe),
    ("command-r", cohere::describe),
    ("dbrx", dbrx::describe),
    ("deci", deci::describe),
    ("deepseek", deepseek::describe),
    ("deepseek2", deepseek2::describe),
    ("deepseek2-ocr", deepseek::describe_ocr),
    ("deepseek32", deepseek32::describe),
    ("deepseek4", deepseek4::describe),
    ("dots1", deepseek::describe_dots1),
    ("dots3note", dots3note::describe),
    ("ernie4_5", ernie::describe),
    ("ernie4_5-moe", ernie::describe_moe),
    ("eurobert", eurobert::describe),
    ("exaone", internlm2::describe_exaone),
    ("exaone-moe", exaone4::describe_moe),
    ("exaone4", exaone4::describe),
    ("falcon", gptneox::describe_falcon),
    ("falcon-h1", falcon_h1::describe),
    ("gemma", gemma::describe),
    ("gemma2", gemma::describe_gemma2),
    ("gemma3", gemma::describe_gemma3),
    ("gemma3n", gemma3n::describe),
    ("gemma4", gemma4::describe),
    ("gemma-embedding", gemma_embedding::describe),
    ("glm-dsa", deepseek32::describe_glm),
    ("glm4", glm4::describe_glm4),
    ("glm4moe", glm4::describe_glm4moe),
    ("glm5-next", glm5_next::describe),
    ("gpt-oss", gpt_oss::describe),
    ("gpt2", gpt2::describe),
    ("gptneox", gptneox::describe),
    ("granite", granite::describe),
    ("granite_swa", granite::describe_swa),
    ("granitehybrid", granite::describe_hybrid),
    ("granitemoe", granite::describe),
    ("graniteswitch", granite_switch::describe),
    ("grok", grok::describe),
    ("grovemoe", grovemoe::describe),
    ("hrm_text", hrm_text::describe),
    ("hunyuan-dense", hunyuan::describe_dense),
    ("hunyuan-moe", hunyuan::describe_moe),
    ("hunyuan_vl", hunyuan::describe_vl),
    ("hy_v3", hunyuan::describe_v3),
    ("hy_v4", hy_v4::describe),
    ("internlm2", internlm2::describe),
    ("jais", gpt2::describe_jais),
    ("jais2", starcoder2::describe_nemotron),
    ("jamba", jamba::describe),
    ("jina-bert-v2", bert::describe_jina_2),
    ("jina-bert-v3", bert::describe_jina_3),
    ("kimi-k3", kimi_k3::describe),
    ("kimi-linear", kimi_linear::describe),
    ("laguna", afmoe::describe_laguna),
    ("lfm2", lfm2::describe),
    ("lfm2moe", lfm2::describe),
    ("llama", llama::describe),
    ("llama-embed", eurobert::describe_llama),
    ("llama4", llama4::describe),
    ("maincoder", hunyuan::describe_maincoder),
    ("mamba", mamba::describe),
    ("mamba2", mamba2::describe),
    ("maple", mellum::describe_maple),
    ("mellum", mellum::describe),
    ("mimo2", mimo2::describe),
    ("minicpm", internlm2::describe_minicpm),
    ("minicpm3", minicpm3::describe),
    ("minimax-01", minimax_01::describe),
    ("minimax-m2", minimax::describe),
    ("minimax-m3", minimax_m3::describe),
    ("mistral3", mistral3::describe),
    ("mistral4", deepseek2::describe),
    ("modern-bert", modern_bert::describe),
    ("mpt", gpt2::describe_mpt),
    ("muse-glimmer", afmoe::describe_muse),
    ("nanbeige", nanbeige::describe),
    ("nemotron", starcoder2::describe_nemotron),
    ("nemotron_h", nemotron::describe),
    ("nemotron_h_moe", nemotron::describe),
    ("neo-bert", neo_bert::describe),
    ("nomic-bert", bert::describe_nomic),
    ("nomic-bert-moe", bert::describe_nomic_moe),
    ("olmo", internlm2::describe_olmo),
    ("olmo2", olmo::describe_olmo2),
    ("olmoe", olmo::describe_olmoe),
    ("openelm", openelm::describe),
    ("orion", starcoder2::describe_orion),
    ("paddleocr", ernie::describe_paddleocr),
    ("pangu-embedded", internlm2::describe_pangu),
    ("phi2", gptneox::describe_phi2),
    ("phi3", phi3::describe),
    ("phimoe", phi3::describe_moe),
    ("plamo", plamo::describe),
    ("plamo2", plamo2::describe),
    ("plamo3", plamo::describe_3),
    ("plm", minicpm3::describe_plm),
    ("qwen", qwen::describe),
    ("qwen2", qwen::describe_qwen2),
    ("qwen2moe", qwen2moe::describe),
    ("qwen2vl", qwen::describe_qwen2vl),
    ("qwen3", qwen::describe_qwen3),
    ("qwen35", qwen_next::describe_qwen35),
    ("qwen35moe", qwen_next::describe_qwen35moe),
    ("qwen3moe", qwen::describe_qwen3moe),
    ("qwen3next", qwen_next::describe_qwen3next),
    ("qwen3vl", qwen::describe_qwen3vl),
    ("qwen3vlmoe", qwen::describe_qwen3vlmoe),
    ("qwen4exp", qwen4exp::describe),
    ("refact", baichuan::describe_refact),
    ("rwkv6", rwkv6::describe),
    ("rwkv6qwen2", rwkv6::describe_qwen2),
    ("rwkv7", rwkv7::describe),
    ("seed_oss", seed_oss::describe),
    ("smallthinker", smallthinker::describe),
    ("smollm3", seed_oss::describe_smollm3),
    ("spark2_5", step35::describe_spark),
    ("stablelm", gptneox::describe_stablelm),
    ("starcoder", gpt2::describe),
    ("starcoder2", starcoder2::describe),
    ("step35", step35::describe),
    ("talkie", talkie::describe),
    ("t5encoder", t5_encoder::describe),
    ("xverse", internlm2::describe),
];

/// Name of the embedding matrix.
pub const TOKEN_EMBD: &str = "token_embd.weight";
/// Name of the head matrix; where it is missing the embedding serves.
pub const OUTPUT: &str = "output.weight";
/// Name of the norm before the head.
pub const OUTPUT_NORM: &str = "output_norm.weight";

/// Name of the row for all tokens that the low of two stacks begins with, where a model has such ([`StackSpec`]).
pub const LOW_START: &str = "hrm.z_l_init";
/// Name of the table of positions' rows, where a model has one.
pub const POSITION_EMBD: &str = "position_embd.weight";
/// Begins the names of all tensors of a file that has an encoder's beside a decoder's.
const ENCODER_PREFIX: &str = "enc.";
/// Name of the table of token types' rows, where a model has one.
pub const TOKEN_TYPES: &str = "token_types.weight";
/// Name of the matrices that make a token's other streams of the first, where a model has several.
pub const ALTUP_PROJ: &str = "altup_proj.weight";
/// Ends the names of tables that choose the experts of each token.
pub const TOKEN_EXPERTS: &str = "ffn_gate_tid2eid.weight";
/// Begins the names of all tensors that make the layers' own rows of a token.
pub const LAYER_ROWS: &str = "per_layer_";
/// Name of the table of tokens' rows for all layers, where a model has one.
pub const LAYER_ROW_TABLE: &str = "per_layer_token_embd.weight";
/// Stem of the norm after the embedding, where a model has one.
pub const EMBEDDING_NORM: &str = "token_embd_norm.";

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

/// Why an architecture does not run, and what to do.
fn refusal(arch: &str) -> String {
    match refused().find(|(name, _)| *name == arch) {
        Some((_, reason)) => format!(
            "architecture {arch:?}: {reason}. Take a model of an architecture that runs: docs/models.md \
             lists them"
        ),
        None => format!("architecture {arch:?} (supported: {})", supported().join(", ")),
    }
}

/// The layer a tensor belongs to: 7 for `blk.7.attn_q.weight`, `None` outside the layers.
pub fn layer_of(tensor: &str) -> Option<usize> {
    tensor
        .strip_prefix(ENCODER_PREFIX)
        .unwrap_or(tensor)
        .strip_prefix("blk.")?
        .split_once('.')?
        .0
        .parse()
        .ok()
}

/// The tensors that a stage of `layers` reads: its blocks, the shared rotary factors, the embedding
/// on the first stage, norm and head on the last (the embedding again where they are tied), and what adapters have for
/// them. A reranker's head is for whoever has the last stage's rows.
pub fn stage_tensors<'m>(
    model: &'m Gguf,
    spec: &ModelSpec,
    layers: &Range<usize>,
) -> Vec<&'m TensorInfo> {
    let (first, last) = (layers.start == 0, layers.end == spec.n_layer());
    let tied = is_tied(model, spec);
    let wanted = |name: &str, of_adapter: bool| match layer_of(name) {
        Some(in_file) => layers.clone().any(|layer| spec.reads(layer, in_file, name)),
        None if spec.is_of_a_layer(name) => layers.clone().any(|layer| spec.shares(layer, name)),
        // Tied, the head is the embedding without what adapters add to that.
        None if name == TOKEN_EMBD => first || (last && tied && !of_adapter),
        None if name.starts_with("rope_") => true,
        None if crate::heads::has(name) => false,
        None if name == OUTPUT => last && !spec.is_encoder(),
        None if name == OUTPUT_NORM => last || spec.pass_norm(layers) == Some(OUTPUT_NORM),
        None if is_of_input(name, spec) => first,
        None => last,
    };
    let wanted = |tensor: &&TensorInfo| {
        let (name, of_adapter) = of_model(&tensor.name);
        wanted(name, of_adapter)
    };
    model.tensors().iter().filter(wanted).collect()
}

/// Whether the head computes with the embedding's matrix. An encoder's has none.
pub fn is_tied(model: &Gguf, spec: &ModelSpec) -> bool {
    model.tensor(OUTPUT).is_none() && !spec.is_encoder()
}

/// Whether the first stage needs the tensor besides the embedding, to make rows of tokens.
pub fn is_of_input(name: &str, spec: &ModelSpec) -> bool {
    let skeleton = &spec.skeleton;
    // Elsewhere the norm's name is that of the norm before the head.
    (skeleton.learned_positions && name == POSITION_EMBD)
        || (skeleton.token_types > 0 && name == TOKEN_TYPES)
        || (skeleton.embedding_norm.is_some() && name.starts_with(EMBEDDING_NORM))
        || (matches!(skeleton.passes, Passes::Stacks(_)) && name == LOW_START)
        || (matches!(skeleton.beside, Beside::ForLayers { .. })
            && (name.starts_with(LAYER_ROWS) || name == ALTUP_PROJ))
}
