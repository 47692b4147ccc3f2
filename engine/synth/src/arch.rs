//! The architectures that synthetic models can have, and checks of sizes that hold for all of them.

use super::plan::ModelPlan;
use crate::decoders::{
    classic, dense, gated, gemma, later_dense, mixtures, passes, pictured, switched, thinned,
    transformer, unrotated,
};
use crate::latent::{deepseek, indexed, kimi, kimi_k3, qwen4exp, streams};
use crate::recurrent::{delta, hybrids, mamba2, rwkv6, rwkv7};
use crate::{Shape, Spec, SynthError, encoders, vocab};

/// Largest size that a shape may name: dimensions are stored as u32, and nothing real comes near.
const MAX_DIMENSION: usize = 1 << 24;

/// An architecture that can be made.
#[derive(Clone, Copy, Debug)]
pub struct Arch {
    name: &'static str,
    build: fn(&Shape, &mut ModelPlan) -> Result<(), String>,
}

impl PartialEq for Arch {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every architecture that can be made.
pub static ARCHES: &[Arch] = &[
    Arch { name: "llama", build: transformer::llama },
    Arch { name: "qwen2", build: transformer::qwen2 },
    Arch { name: "qwen3", build: transformer::qwen3 },
    Arch { name: "qwen3moe", build: transformer::qwen3moe },
    Arch { name: "granite", build: transformer::granite },
    Arch { name: "mamba", build: hybrids::mamba },
    Arch { name: "rwkv7", build: rwkv7::rwkv7 },
    Arch { name: "jamba", build: hybrids::jamba },
    Arch { name: "lfm2", build: hybrids::lfm2 },
    Arch { name: "lfm2moe", build: hybrids::lfm2moe },
    Arch { name: "kimi-linear", build: kimi::kimi_linear },
    Arch { name: "kimi-k3", build: kimi_k3::kimi_k3 },
    Arch { name: "qwen3next", build: delta::qwen3next },
    Arch { name: "qwen35", build: delta::qwen35 },
    Arch { name: "qwen35moe", build: delta::qwen35moe },
    Arch { name: "qwen4exp", build: qwen4exp::qwen4exp },
    Arch { name: "mamba2", build: mamba2::mamba2 },
    Arch { name: "granitehybrid", build: mamba2::granitehybrid },
    Arch { name: "nemotron_h", build: mamba2::nemotron_h },
    Arch { name: "nemotron_h_moe", build: mamba2::nemotron_h_moe },
    Arch { name: "falcon-h1", build: mamba2::falcon_h1 },
    Arch { name: "deepseek2", build: deepseek::deepseek2 },
    Arch { name: "deepseek32", build: indexed::deepseek32 },
    Arch { name: "glm-dsa", build: indexed::glm_dsa },
    Arch { name: "hy_v4", build: streams::hy_v4 },
    Arch { name: "dots3note", build: indexed::dots3note },
    Arch { name: "glm5-next", build: streams::glm5_next },
    Arch { name: "gpt-oss", build: mixtures::gpt_oss },
    Arch { name: "glm4", build: dense::glm4 },
    Arch { name: "glm4moe", build: mixtures::glm4moe },
    Arch { name: "minimax-m2", build: mixtures::minimax_m2 },
    Arch { name: "minimax-01", build: mixtures::minimax_01 },
    Arch { name: "minimax-m3", build: indexed::minimax_m3 },
    Arch { name: "bailingmoe3", build: kimi::bailingmoe3 },
    Arch { name: "gemma2", build: dense::gemma2 },
    Arch { name: "gemma3", build: dense::gemma3 },
    Arch { name: "llama4", build: mixtures::llama4 },
    Arch { name: "mistral3", build: dense::mistral3 },
    Arch { name: "qwen2moe", build: mixtures::qwen2moe },
    Arch { name: "phi3", build: dense::phi3 },
    Arch { name: "deepseek", build: mixtures::deepseek },
    Arch { name: "dots1", build: mixtures::dots1 },
    Arch { name: "ernie4_5", build: dense::ernie4_5 },
    Arch { name: "ernie4_5-moe", build: mixtures::ernie4_5_moe },
    Arch { name: "hunyuan-dense", build: dense::hunyuan_dense },
    Arch { name: "hunyuan-moe", build: mixtures::hunyuan_moe },
    Arch { name: "bailingmoe", build: mixtures::bailingmoe },
    Arch { name: "bailingmoe2", build: mixtures::bailingmoe2 },
    Arch { name: "command-r", build: dense::command_r },
    Arch { name: "cohere2", build: dense::cohere2 },
    Arch { name: "olmo2", build: dense::olmo2 },
    Arch { name: "olmoe", build: mixtures::olmoe },
    Arch { name: "seed_oss", build: dense::seed_oss },
    Arch { name: "smollm3", build: dense::smollm3 },
    Arch { name: "exaone4", build: dense::exaone4 },
    Arch { name: "granitemoe", build: mixtures::granitemoe },
    Arch { name: "arctic", build: mixtures::arctic },
    Arch { name: "dbrx", build: mixtures::dbrx },
    Arch { name: "grok", build: mixtures::grok },
    Arch { name: "gemma", build: classic::gemma },
    Arch { name: "starcoder2", build: classic::starcoder2 },
    Arch { name: "codeshell", build: classic::codeshell },
    Arch { name: "orion", build: classic::orion },
    Arch { name: "nemotron", build: classic::nemotron },
    Arch { name: "gptneox", build: classic::gptneox },
    Arch { name: "phi2", build: classic::phi2 },
    Arch { name: "falcon", build: classic::falcon },
    Arch { name: "stablelm", build: classic::stablelm },
    Arch { name: "internlm2", build: classic::llama_like },
    Arch { name: "xverse", build: classic::llama_like },
    Arch { name: "exaone", build: classic::llama_like },
    Arch { name: "arcee", build: classic::arcee },
    Arch { name: "chatglm", build: classic::chatglm },
    Arch { name: "minicpm", build: classic::minicpm },
    Arch { name: "olmo", build: classic::olmo },
    Arch { name: "arwkv7", build: rwkv7::arwkv7 },
    Arch { name: "rwkv6", build: rwkv6::rwkv6 },
    Arch { name: "rwkv6qwen2", build: rwkv6::rwkv6qwen2 },
    Arch { name: "plamo2", build: mamba2::plamo2 },
    Arch { name: "gpt2", build: unrotated::gpt2 },
    Arch { name: "starcoder", build: unrotated::gpt2 },
    Arch { name: "bloom", build: unrotated::bloom },
    Arch { name: "mpt", build: unrotated::mpt },
    Arch { name: "jais", build: unrotated::jais },
    Arch { name: "jais2", build: classic::jais2 },
    Arch { name: "refact", build: unrotated::refact },
    Arch { name: "baichuan", build: unrotated::baichuan },
    Arch { name: "phimoe", build: mixtures::phimoe },
    Arch { name: "deci", build: thinned::deci },
    Arch { name: "openelm", build: thinned::openelm },
    Arch { name: "minicpm3", build: deepseek::minicpm3 },
    Arch { name: "qwen", build: later_dense::qwen },
    Arch { name: "plamo", build: later_dense::plamo },
    Arch { name: "plamo3", build: later_dense::plamo3 },
    Arch { name: "deepseek4", build: streams::deepseek4 },
    Arch { name: "maincoder", build: later_dense::maincoder },
    Arch { name: "plm", build: deepseek::plm },
    Arch { name: "granite_swa", build: gated::granite_swa },
    Arch { name: "mellum", build: gated::mellum },
    Arch { name: "pangu-embedded", build: later_dense::pangu },
    Arch { name: "spark2_5", build: later_dense::spark2_5 },
    Arch { name: "mistral4", build: deepseek::mistral4 },
    Arch { name: "exaone-moe", build: gated::exaone_moe },
    Arch { name: "afmoe", build: gated::afmoe },
    Arch { name: "cohere2moe", build: gated::cohere2moe },
    Arch { name: "hy_v3", build: gated::hy_v3 },
    Arch { name: "laguna", build: gated::laguna },
    Arch { name: "maple", build: gated::maple },
    Arch { name: "mimo2", build: gated::mimo2 },
    Arch { name: "step35", build: gated::step35 },
    Arch { name: "talkie", build: later_dense::talkie },
    Arch { name: "muse-glimmer", build: later_dense::muse_glimmer },
    Arch { name: "apertus", build: later_dense::apertus },
    Arch { name: "gemma3n", build: gemma::gemma3n },
    Arch { name: "gemma4", build: gemma::gemma4 },
    Arch { name: "bitnet", build: later_dense::bitnet },
    Arch { name: "smallthinker", build: gated::smallthinker },
    Arch { name: "grovemoe", build: gated::grovemoe },
    Arch { name: "qwen2vl", build: pictured::qwen2vl },
    Arch { name: "qwen3vl", build: pictured::qwen3vl },
    Arch { name: "qwen3vlmoe", build: pictured::qwen3vlmoe },
    Arch { name: "hunyuan_vl", build: pictured::hunyuan_vl },
    Arch { name: "paddleocr", build: pictured::paddleocr },
    Arch { name: "chameleon", build: pictured::chameleon },
    Arch { name: "cogvlm", build: pictured::cogvlm },
    Arch { name: "deepseek2-ocr", build: pictured::deepseek2_ocr },
    Arch { name: "graniteswitch", build: switched::graniteswitch },
    Arch { name: "nanbeige", build: passes::nanbeige },
    Arch { name: "hrm_text", build: passes::hrm_text },
    Arch { name: "bert", build: encoders::bert },
    Arch { name: "nomic-bert", build: encoders::nomic_bert },
    Arch { name: "nomic-bert-moe", build: encoders::nomic_bert_moe },
    Arch { name: "jina-bert-v2", build: encoders::jina_bert_v2 },
    Arch { name: "jina-bert-v3", build: encoders::jina_bert_v3 },
    Arch { name: "neo-bert", build: encoders::neo_bert },
    Arch { name: "eurobert", build: encoders::eurobert },
    Arch { name: "llama-embed", build: encoders::eurobert },
    Arch { name: "modern-bert", build: encoders::modern_bert },
    Arch { name: "gemma-embedding", build: encoders::gemma_embedding },
    Arch { name: "t5encoder", build: encoders::t5_encoder },
];

impl Arch {
    /// The architecture of this name.
    ///
    /// # Errors
    /// There is none; the message lists those there are.
    pub fn named(name: &str) -> Result<Self, SynthError> {
        ARCHES.iter().find(|arch| arch.name == name).copied().ok_or_else(|| SynthError::Unknown {
            what: "architecture",
            name: name.to_owned(),
            choices: ARCHES.iter().map(|arch| arch.name).collect(),
        })
    }

    /// Name of the architecture, as in `general.architecture`.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// Checks the sizes and lists metadata and tensors.
pub(super) fn plan(spec: &Spec) -> Result<ModelPlan, SynthError> {
    let fail = |problem| SynthError::Shape { arch: spec.arch.name, problem };
    let mut plan = ModelPlan::new(spec.arch.name, spec.quant, &spec.shape);
    check(&spec.shape).map_err(fail)?;
    (spec.arch.build)(&spec.shape, &mut plan).map_err(fail)?;
    let has_block = plan.metadata.iter().any(|(key, _)| key.ends_with(".nextn_predict_layers"));
    if spec.shape.drafts > 0 && !has_block {
        let problem = "it is made without a block that drafts, choose a size without".to_owned();
        return Err(fail(problem));
    }
    Ok(plan)
}

fn check(shape: &Shape) -> Result<(), String> {
    let experts = shape.experts.map_or([1, 1, 1], |e| [e.count, e.used, e.n_ff]);
    let sizes =
        [shape.n_layer, shape.n_embd, shape.n_ff, shape.n_head, shape.n_head_kv, shape.head_dim];
    for size in sizes.into_iter().chain(experts).chain([shape.vocab, shape.context]) {
        if !(1..=MAX_DIMENSION).contains(&size) {
            return Err(format!("a size of {size}, must be 1 to {MAX_DIMENSION}"));
        }
    }
    if !shape.n_head.is_multiple_of(shape.n_head_kv) {
        return Err(format!(
            "{} heads do not share {} KV heads evenly",
            shape.n_head, shape.n_head_kv
        ));
    }
    if !shape.head_dim.is_multiple_of(2) {
        return Err(format!("heads of {}, rotary positions need an even width", shape.head_dim));
    }
    if experts[1] > experts[0] {
        return Err(format!("{} of {} experts used", experts[1], experts[0]));
    }
    if !vocab::SIZES.contains(&shape.vocab) {
        let (min, max) = vocab::SIZES.into_inner();
        return Err(format!("{} tokens, must be {min} to {max}", shape.vocab));
    }
    Ok(())
}
