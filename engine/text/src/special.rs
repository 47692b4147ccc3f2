//! Special token ids and the end-of-generation set. They come from defaults of the tokenizer's type, from
//! what the file names, and from texts of tokens.
//!
//! Where a file has several candidates for one role, the first one of the list here is taken.

use super::vocab::{Kind, SpecialIds, Vocab, VocabData, attr};

/// Texts that end a turn. Each also ends generation and becomes a control token, unless [`ends_of_some_models`] takes it back.
const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

/// Texts that end generation besides [`EOT`].
const EOG: &[&str] = &[
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "<|eom_id|>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
];

/// Always matched in texts and always rendered ([`attr::USER`]), whatever the file says (gpt-oss).
const ALWAYS_RENDERED: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

type Role = fn(&mut SpecialIds) -> &mut Option<u32>;

/// Roles found by text when the file names no id.
const BY_TEXT: &[(Role, &[&str])] = &[
    (|i| &mut i.eot, EOT),
    (|i| &mut i.eom, &["<|eom_id|>"]),
    (
        |i| &mut i.fim_pre,
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        |i| &mut i.fim_suf,
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        |i| &mut i.fim_mid,
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (|i| &mut i.fim_pad, &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (|i| &mut i.fim_rep, &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    (|i| &mut i.fim_sep, &["<|file_sep|>"]),
];

/// Gives tokens their roles: the ids that files name or texts tell, the tokens that end an answer, and the attributes that follow
/// from texts. Then makes the pieces, which depend on attributes (`raw_utf8` as for [`Vocab::make_pieces`]).
pub(super) fn roles(vocab: &mut Vocab, data: &VocabData, raw_utf8: bool) {
    vocab.ids = named_ids(vocab.kind, data, vocab.len());
    for (role, texts) in BY_TEXT {
        if role(&mut vocab.ids).is_none()
            && let Some(id) = texts.iter().find_map(|t| vocab.find(t))
        {
            *role(&mut vocab.ids) = Some(id);
            make_control(vocab, id);
        }
    }
    end_of_generation(vocab);
    strip_rules(vocab, data);
    vocab.make_pieces(raw_utf8);
}

fn named_ids(kind: Kind, data: &VocabData, n_vocab: usize) -> SpecialIds {
    let none = SpecialIds::default();
    let default = match kind {
        Kind::Spm => SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), ..none },
        Kind::Wpm => SpecialIds {
            bos: Some(101),
            unk: Some(100),
            sep: Some(102),
            pad: Some(0),
            mask: Some(103),
            ..none
        },
        Kind::Plamo2 => {
            SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), pad: Some(3), ..none }
        }
        Kind::Ugm => SpecialIds { eos: Some(1), unk: Some(2), pad: Some(0), ..none },
        Kind::Bpe if data.model == "gemma4" => none,
        Kind::Bpe => {
            // GLM files name no BOS and have none. llama.cpp takes 11 for all others.
            let glm = matches!(data.pre.as_deref(), Some("chatglm-bpe" | "glm4" | "glm5"));
            SpecialIds { bos: (!glm).then_some(11), eos: Some(11), ..none }
        }
        Kind::Rwkv | Kind::None => none,
    };
    let pick = |key: &str, named: Option<u32>, default: Option<u32>| {
        let fits = |id: &u32| (*id as usize) < n_vocab;
        if let Some(id) = named.filter(|id| !fits(id)) {
            tracing::warn!(key, id, n_vocab, "special token id outside the vocabulary: ignored");
        }
        named.filter(fits).or(default.filter(fits))
    };
    let named = &data.ids;
    SpecialIds {
        bos: pick("bos", named.bos, default.bos),
        eos: pick("eos", named.eos, default.eos),
        eot: pick("eot", named.eot, default.eot),
        eom: pick("eom", named.eom, default.eom),
        unk: pick("unknown", named.unk, default.unk),
        // Files spell their key so.
        sep: pick("seperator", named.sep, default.sep),
        pad: pick("padding", named.pad, default.pad),
        mask: pick("mask", named.mask, default.mask),
        fim_pre: pick("fim_pre", named.fim_pre, None),
        fim_suf: pick("fim_suf", named.fim_suf, None),
        fim_mid: pick("fim_mid", named.fim_mid, None),
        fim_pad: pick("fim_pad", named.fim_pad, None),
        fim_rep: pick("fim_rep", named.fim_rep, None),
        fim_sep: pick("fim_sep", named.fim_sep, None),
    }
}

fn make_control(vocab: &mut Vocab, id: u32) {
    if !vocab.has(id, attr::CONTROL) {
        tracing::debug!(id, text = vocab.texts[id as usize], "treated as a control token");
        vocab.attrs[id as usize] |= attr::CONTROL;
    }
}

/// Finds the tokens that end an answer, and marks those that are known by their text as control tokens. Gives tokens that are
/// always rendered their attribute, whatever ends an answer.
fn end_of_generation(vocab: &mut Vocab) {
    let by_text: Vec<u32> = EOT.iter().chain(EOG).filter_map(|t| vocab.find(t)).collect();
    for &id in &by_text {
        make_control(vocab, id);
    }
    for text in ALWAYS_RENDERED {
        if let Some(id) = vocab.find(text) {
            vocab.attrs[id as usize] = attr::USER;
        }
    }
    let i = &vocab.ids;
    let by_role = [i.eos, i.eot, i.eom, i.fim_pad, i.fim_rep, i.fim_sep];
    let mut eog: Vec<u32> = by_text.into_iter().chain(by_role.into_iter().flatten()).collect();
    eog.sort_unstable();
    eog.dedup();
    vocab.eog = eog;
    ends_of_some_models(vocab);
}

/// Takes tokens out of those that end an answer: texts that two kinds of models write within answers.
fn ends_of_some_models(vocab: &mut Vocab) {
    let ends = |vocab: &Vocab, text: &str| vocab.find(text).filter(|id| vocab.eog.contains(id));
    // gpt-oss and solar-open: <|end|> closes a message inside a reply, not the reply.
    let calls = ends(vocab, "<|call|>").or(ends(vocab, "<|calls|>")).is_some();
    let reply_end = ends(vocab, "<|return|>").or(ends(vocab, "<|flush|>")).is_some();
    if let Some(id) = ends(vocab, "<|end|>").filter(|_| calls && reply_end) {
        vocab.eog.retain(|&e| e != id);
        vocab.attrs[id as usize] = attr::USER;
    }
    // gemma4 and plamo, which are known by an end of their own: </s> is ordinary text.
    let has_own_end = ends(vocab, "<|tool_response>").or(ends(vocab, "<|plamo:eos|>")).is_some();
    if let Some(id) = ends(vocab, "</s>").filter(|_| has_own_end) {
        vocab.eog.retain(|&e| e != id);
        vocab.attrs[id as usize] = attr::NORMAL;
    }
}

/// White space that special tokens eat; files do not say, so model names decide.
fn strip_rules(vocab: &mut Vocab, data: &VocabData) {
    let pre = data.pre.as_deref().unwrap_or("");
    let arch = data.architecture.as_str();
    let mut add = |text: &str, bits: u8| {
        if let Some(id) = vocab.find(text) {
            vocab.attrs[id as usize] |= bits;
        }
    };
    if matches!(pre, "jina-v2-de" | "jina-v2-es" | "jina-v2-code")
        || matches!(arch, "jina-bert-v3" | "nomic-bert-moe")
    {
        add("<mask>", attr::LSTRIP);
    }
    let name = data.name.to_lowercase();
    if name.contains("modern-bert") {
        add("[MASK]", attr::LSTRIP);
    }
    if name.contains("phi-3") || name.contains("phi3") {
        add("</s>", attr::RSTRIP);
        let special = attr::CONTROL | attr::UNKNOWN | attr::USER;
        for a in vocab.attrs.iter_mut().filter(|a| **a & special != 0) {
            *a |= attr::RSTRIP;
        }
        for text in ["<unk>", "<s>", "<|endoftext|>"] {
            if let Some(id) = vocab.find(text) {
                vocab.attrs[id as usize] &= !attr::RSTRIP;
            }
        }
    }
}
