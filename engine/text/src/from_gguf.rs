//! Reads a vocabulary from a model's metadata.

use super::vocab::{SpecialIds, VocabData, VocabFlags};
use super::{TextError, Tokenizer};
use brigade_gguf::{ByteStrs, Gguf, Meta, Value};

const TEMPLATE: &str = "tokenizer.chat_template";

impl Tokenizer {
    /// The tokenizer of a model.
    ///
    /// # Errors
    /// [`TextError::Gguf`] for a key of the wrong type, else as [`Tokenizer::new`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        Self::new(VocabData::from_gguf(gguf)?)
    }
}

impl VocabData {
    /// Copies everything under `tokenizer.` that [`Tokenizer::new`] uses.
    ///
    /// # Errors
    /// `tokenizer.ggml.model` is missing, or a key has the wrong type.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        let meta = gguf.meta();
        let architecture = meta.opt_str("general.architecture")?.unwrap_or_default().to_owned();
        let strings =
            |key: &str| meta.opt_byte_strs(key)?.map_or(Ok(Vec::new()), |s| texts(key, &s));
        let text = |key: &str| Ok::<_, TextError>(meta.opt_str(key)?.map(str::to_owned));
        // A template is needed for chats alone: a bad one is no reason not to open the model.
        let (chat_template, bad_template) = match text(TEMPLATE) {
            Ok(template) => (template, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Self {
            model: meta.str("tokenizer.ggml.model")?.to_owned(),
            pre: text("tokenizer.ggml.pre")?,
            name: text("general.name")?.unwrap_or_default(),
            tokens: strings("tokenizer.ggml.tokens")?,
            types: meta.opt_i32s("tokenizer.ggml.token_type")?.unwrap_or_default(),
            scores: meta.opt_f32s("tokenizer.ggml.scores")?.unwrap_or_default(),
            merges: strings("tokenizer.ggml.merges")?,
            ids: ids(meta)?,
            flags: flags(meta)?,
            charsmap: meta
                .opt_raw_bytes("tokenizer.ggml.precompiled_charsmap")?
                .unwrap_or_default()
                .to_vec(),
            suppress: meta.opt_u32s("tokenizer.ggml.suppress_tokens")?.unwrap_or_default(),
            chat_template,
            bad_template,
            named_templates: named_templates(meta),
            vocab_size: meta.opt_u32(&format!("{architecture}.vocab_size"))?,
            architecture,
        })
    }
}

fn texts(key: &str, strings: &ByteStrs<'_>) -> Result<Vec<String>, TextError> {
    let one = |(i, bytes): (usize, &[u8])| {
        let text = str::from_utf8(bytes)
            .map_err(|_| TextError::BadVocab(format!("{key}[{i}] is not UTF-8")))?;
        Ok(text.to_owned())
    };
    strings.iter().enumerate().map(one).collect()
}

fn ids(meta: &Meta) -> Result<SpecialIds, TextError> {
    let id = |name: &str| meta.opt_u32(&format!("tokenizer.ggml.{name}_token_id"));
    // Older files name the fill-in-the-middle tokens differently.
    let either = |name: &str, old: &str| Ok::<_, TextError>(id(name)?.or(id(old)?));
    Ok(SpecialIds {
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        sep: id("seperator")?,
        pad: id("padding")?,
        mask: id("mask")?,
        fim_pre: either("fim_pre", "prefix")?,
        fim_suf: either("fim_suf", "suffix")?,
        fim_mid: either("fim_mid", "middle")?,
        fim_pad: id("fim_pad")?,
        fim_rep: id("fim_rep")?,
        fim_sep: id("fim_sep")?,
    })
}

fn flags(meta: &Meta) -> Result<VocabFlags, TextError> {
    let flag = |name: &str| meta.opt_bool(&format!("tokenizer.ggml.{name}"));
    Ok(VocabFlags {
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        lowercase: flag("normalizer.lowercase")?,
        strip_accents: flag("normalizer.strip_accents")?,
    })
}

fn named_templates(meta: &Meta) -> Vec<(String, String)> {
    meta.iter()
        .filter_map(|(key, value)| {
            let name = key.strip_prefix(TEMPLATE)?.strip_prefix('.')?;
            let Value::Str(bytes) = value else { return None };
            Some((name.to_owned(), String::from_utf8_lossy(bytes).into_owned()))
        })
        .collect()
}
