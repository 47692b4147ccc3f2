//! The names that `tokenizer.ggml.pre` may have, and what each one means.

use super::patterns as p;
use super::{Pretok, Step};
use crate::{TextError, VocabData};

const LLAMA3: Step = Step::Llama3 { digits: 3, marks: false };
const QWEN2: Step = Step::Llama3 { digits: 1, marks: false };
const QWEN35: Step = Step::Llama3 { digits: 1, marks: true };

/// The pre-tokenizer of a BPE vocabulary.
pub fn find(data: &VocabData) -> Result<Pretok, TextError> {
    if data.model == "gemma4" {
        return Ok(spaces_escaped("gemma4"));
    }
    let name = match data.pre.as_deref() {
        Some("") | None => {
            tracing::warn!(
                "tokenizer.ggml.pre is missing: using \"default\", which may cut words otherwise \
                 than the model expects; convert the model again"
            );
            "default"
        }
        Some(name) => name,
    };
    let steps = steps_of(name).ok_or_else(|| {
        TextError::Unsupported(format!(
            "tokenizer.ggml.pre is {name:?}, a pre-tokenizer that this version does not know: convert the model \
             again, or take a newer brigade. The model still runs on token ids"
        ))
    })?;
    if matches!(name, "gemma4" | "granite-embed-multi-311m" | "sarvam-moe") {
        return Ok(spaces_escaped(name));
    }
    Ok(Pretok {
        steps,
        raw_utf8: name == "whitespace",
        escape_spaces: false,
        newlines_whole: false,
        ignore_merges: ignores_merges(name),
        add_bos: adds_bos(name),
        force_bos: false,
        merges_optional: name == "kimi-k2",
    })
}

/// Whole pieces are looked up before merging.
fn ignores_merges(name: &str) -> bool {
    is_llama3(name)
        || matches!(
            name,
            "tekken" | "youtu" | "glm4" | "glm5" | "minicpm5" | "granite-embed-multi-97m"
        )
}

fn adds_bos(name: &str) -> bool {
    is_llama3(name) || matches!(name, "tekken" | "chameleon")
}

fn is_llama3(name: &str) -> bool {
    matches!(
        name,
        "llama3"
            | "llama-v3"
            | "llama-bpe"
            | "falcon3"
            | "falcon-h1"
            | "pixtral"
            | "midm-2.0"
            | "lfm2"
            | "jina-v5-nano"
    )
}

/// Vocabularies in plain UTF-8 that are only cut at newlines.
fn spaces_escaped(name: &str) -> Pretok {
    let gemma = name != "sarvam-moe";
    Pretok {
        steps: vec![Step::Newlines],
        raw_utf8: true,
        escape_spaces: true,
        newlines_whole: gemma,
        ignore_merges: false,
        add_bos: gemma,
        force_bos: gemma,
        merges_optional: false,
    }
}

fn regex(pattern: impl Into<String>) -> Step {
    Step::Regex(pattern.into())
}

fn steps_of(name: &str) -> Option<Vec<Step>> {
    if is_llama3(name) {
        return Some(vec![LLAMA3]);
    }
    Some(match name {
        "default" => vec![
            regex(r"[\p{P}\$\+<=>\^~\|]+"),
            Step::Gpt2,
            regex(r"\p{N}+"),
            regex("[0-9][0-9][0-9]"),
        ],
        "dbrx" | "smaug-bpe" | "glm4" | "glm5" | "chatglm-bpe" => vec![LLAMA3],
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => vec![QWEN2],
        "qwen35" => vec![QWEN35],
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v1-en" | "jina-v2-es" | "jina-v2-de"
        | "jina-v2-code" | "roberta-bpe" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert"
        | "exaone4" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" => vec![Step::Gpt2],
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => vec![regex(r"\p{N}"), Step::Gpt2],
        "falcon" => vec![regex(r"[\p{P}\$\+<=>\^~\|`]+"), Step::Gpt2, regex("[0-9][0-9][0-9]")],
        "poro-chat" | "bloom" | "gpt3-finnish" => vec![regex(p::BLOOM)],
        "viking" => vec![regex(p::BLOOM), regex(r"\p{N}")],
        "kimi-k2" => vec![Step::Kimi],
        "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => vec![Step::Newlines],
        "whitespace" => vec![regex(r"\S+")],
        "superbpe" => vec![regex(r"\p{N}+"), Step::AsciiGroups],
        "minicpm5" => vec![regex(r"\p{N}{1,3}"), regex(p::minicpm5())],
        "laguna" => vec![Step::Newlines, QWEN2],
        "chameleon" => vec![
            regex("<sentinel:[0-9]+>"),
            regex("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            regex(r"([\t\n]|    |  )"),
            regex(r"\p{N}"),
            regex(r"[\p{P}!-/:-@\[-`{-~]"),
            Step::Gpt2,
        ],
        name => return deepseek_steps(name).or_else(|| single_step(name)),
    })
}

fn deepseek_steps(name: &str) -> Option<Vec<Step>> {
    Some(match name {
        "deepseek-llm" => vec![
            regex(r"[\r\n]"),
            regex(p::cased_words()),
            regex(p::PUNCTUATION_DEEPSEEK),
            regex(r"\s+$"),
            regex(p::CJK_DEEPSEEK),
            regex(r"\p{N}+"),
        ],
        "deepseek-coder" => vec![
            regex(r"[\r\n]"),
            regex(r"\s?\p{L}+"),
            regex(r"\s?\p{P}+"),
            regex(p::CJK_DEEPSEEK),
            regex(r"\p{N}"),
        ],
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            vec![regex(r"\p{N}{1,3}"), regex(p::CJK), regex(p::deepseek3())]
        }
        "spark2_5" => {
            vec![regex(r"\p{N}{1,3}"), regex(p::CJK), regex(p::spark()), regex(r"\p{N}")]
        }
        "afmoe" => vec![Step::NumberGroups, regex(p::ASIAN_AFMOE), regex(p::deepseek3())],
        _ => return None,
    })
}

fn single_step(name: &str) -> Option<Vec<Step>> {
    Some(match name {
        "tekken" => vec![regex(p::tekken())],
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => vec![regex(p::gpt4o())],
        "granite-embed-multi-97m" => vec![regex(p::granite_embed())],
        "tiny_aya" | "cohere2moe" => {
            vec![Step::NumberGroups, regex(p::caseless_words(r"\p{N}{1,3}"))]
        }
        "youtu" => vec![regex(p::ASIAN_YOUTU), regex(p::caseless_words(r"\p{N}"))],
        "jais-2" => vec![regex(p::jais2())],
        "bailingmoe" | "bailingmoe2" | "llada-moe" => vec![regex(p::bailing())],
        "seed-coder" => vec![regex(p::seed_coder())],
        "ufakzeka" => vec![regex(p::ufakzeka())],
        "exaone-moe" => vec![regex(p::exaone_moe())],
        _ => return None,
    })
}
