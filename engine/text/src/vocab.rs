//! The vocabulary as tables: texts, attributes, pieces, special ids. It is built once from [`VocabData`] and
//! only read afterwards.
//!
//! It knows which tokens there are and what they stand for. It does not know how a text is cut into them.

use super::text_table::TextTable;
use super::{TextError, bytes};

/// Most tokens a vocabulary may have (the largest published ones have about 260,000).
pub const MAX_VOCAB: usize = 1 << 22;

/// Everything a tokenizer needs from a model file, as plain data.
#[derive(Clone, Debug, Default)]
pub struct VocabData {
    /// `tokenizer.ggml.model`: `llama`, `gpt2`, `gemma4`, `bert`, `t5`, `rwkv`, `plamo2` or `none`.
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer's name (BPE only).
    pub pre: Option<String>,
    /// `general.architecture`, which a few special rules of stripping depend on.
    pub architecture: String,
    /// The file's `general.name`, on which a few special rules depend too.
    pub name: String,
    /// Text of each token, as stored (escaped spaces, GPT-2 alphabet).
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`; empty: all normal.
    pub types: Vec<i32>,
    /// `tokenizer.ggml.scores`; empty: all zero.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`, best first, each "left right".
    pub merges: Vec<String>,
    /// Ids named by the file.
    pub ids: SpecialIds,
    /// Switches named by the file.
    pub flags: VocabFlags,
    /// Bytes of `tokenizer.ggml.precompiled_charsmap` (unigram only).
    pub charsmap: Vec<u8>,
    /// `tokenizer.ggml.suppress_tokens`: ids never to be sampled.
    pub suppress: Vec<u32>,
    /// Template in `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// Reason why there is no template, where the key holds no text. Chats get it as their error, and everything else
    /// works.
    pub bad_template: Option<String>,
    /// Templates in `tokenizer.chat_template.NAME`, with their names.
    pub named_templates: Vec<(String, String)>,
    /// `ARCH.vocab_size`: the size where there are no tokens.
    pub vocab_size: Option<u32>,
}

/// Ids with a role. `None`: the vocabulary has no such token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the GGUF keys' names")]
pub struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub sep: Option<u32>,
    pub pad: Option<u32>,
    pub mask: Option<u32>,
    pub fim_pre: Option<u32>,
    pub fim_suf: Option<u32>,
    pub fim_mid: Option<u32>,
    pub fim_pad: Option<u32>,
    pub fim_rep: Option<u32>,
    pub fim_sep: Option<u32>,
}

/// Switches a file may set; `None` leaves the default of the tokenizer's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the GGUF keys' names")]
pub struct VocabFlags {
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_sep: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub remove_extra_whitespaces: Option<bool>,
    pub lowercase: Option<bool>,
    pub strip_accents: Option<bool>,
}

/// The algorithm that cuts text, from `tokenizer.ggml.model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `llama`: SentencePiece, merges by score.
    Spm,
    /// `gpt2`, `gemma4`: merges by rank.
    Bpe,
    /// `bert`: word pieces, longest match.
    Wpm,
    /// `t5`: unigram, best path.
    Ugm,
    /// `rwkv`: bytes, longest match.
    Rwkv,
    /// `plamo2`: characters, cheapest path.
    Plamo2,
    /// `none`: a size and nothing else.
    None,
}

/// Attributes of a token; several can hold at once.
pub(super) mod attr {
    pub const NORMAL: u8 = 1;
    pub const UNKNOWN: u8 = 2;
    pub const CONTROL: u8 = 4;
    pub const USER: u8 = 8;
    pub const UNUSED: u8 = 16;
    pub const BYTE: u8 = 32;
    /// Eats white space to its left.
    pub const LSTRIP: u8 = 64;
    /// Eats white space to its right.
    pub const RSTRIP: u8 = 128;
}

/// Tables of one vocabulary.
pub(super) struct Vocab {
    pub kind: Kind,
    pub texts: Vec<String>,
    pub attrs: Vec<u8>,
    pub scores: Vec<f32>,
    pub by_text: TextTable,
    pub ids: SpecialIds,
    /// Ids of the tokens that end generation, ascending.
    pub eog: Vec<u32>,
    /// Length of the longest token text in bytes.
    pub max_len: usize,
    pieces: bytes::ByteTable,
}

impl Vocab {
    /// Builds the tables of tokens. Roles and the pieces that follow from them are still to come
    /// ([`special::roles`](super::special::roles)).
    pub fn new(data: &mut VocabData, kind: Kind) -> Result<Self, TextError> {
        let n = data.tokens.len();
        if n > MAX_VOCAB {
            return Err(TextError::BadVocab(format!(
                "tokenizer.ggml.tokens has {n} entries, the limit is {MAX_VOCAB}"
            )));
        }
        let attrs = attrs_of(&data.types, n)?;
        let scores = scores_of(std::mem::take(&mut data.scores), n)?;
        let mut texts = std::mem::take(&mut data.tokens);
        let mut by_text = TextTable::with_capacity(n);
        for (id, text) in texts.iter_mut().enumerate() {
            if text.is_empty() {
                *text = format!("[EMPTY_{id}]");
            }
            by_text.insert(text, id as u32);
        }
        let max_len = texts.iter().map(String::len).max().unwrap_or(0);
        Ok(Self {
            kind,
            texts,
            attrs,
            scores,
            by_text,
            ids: SpecialIds::default(),
            eog: Vec::new(),
            max_len,
            pieces: bytes::ByteTable::default(),
        })
    }

    /// Makes the pieces, by the attributes as they are now. `raw_utf8`: a BPE whose texts are plain UTF-8
    /// with escaped spaces.
    pub fn make_pieces(&mut self, raw_utf8: bool) {
        self.pieces = self.decode_all(raw_utf8);
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// The id of exactly this text.
    pub fn find(&self, text: &str) -> Option<u32> {
        if text.len() > self.max_len { None } else { self.by_text.get(text) }
    }

    /// Whether a token has any of these attributes.
    pub fn has(&self, id: u32, mask: u8) -> bool {
        self.attrs[id as usize] & mask != 0
    }

    /// The bytes a token stands for, the literal text for special ones.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize)
    }

    fn decode_all(&self, raw_utf8: bool) -> bytes::ByteTable {
        let alphabet = bytes::char_to_byte();
        let mut table = bytes::ByteTable::with_capacity(self.len(), self.max_len);
        let mut piece = Vec::new();
        for (text, &a) in self.texts.iter().zip(&self.attrs) {
            piece.clear();
            let literal = self.kind == Kind::Plamo2 && a & attr::BYTE == 0;
            if literal || a & (attr::CONTROL | attr::UNKNOWN | attr::USER) != 0 {
                piece.extend_from_slice(text.as_bytes());
            } else if let Some(byte) = byte_token(text).filter(|_| a & attr::BYTE != 0) {
                piece.push(byte);
            } else if a & (attr::NORMAL | attr::BYTE) != 0 {
                if self.kind == Kind::Rwkv {
                    bytes::unescape(text, &mut piece);
                } else if self.kind == Kind::Bpe && !raw_utf8 {
                    bytes::decode_alphabet(&alphabet, text, &mut piece);
                } else {
                    piece.extend_from_slice(text.replace('\u{2581}', " ").as_bytes());
                }
            }
            table.push(&piece);
        }
        table
    }
}

/// The byte of a token written `<0xXX>`.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

fn attrs_of(types: &[i32], n: usize) -> Result<Vec<u8>, TextError> {
    if types.is_empty() {
        return Ok(vec![attr::NORMAL; n]);
    }
    if types.len() < n {
        return Err(TextError::BadVocab(format!(
            "tokenizer.ggml.token_type has {} entries for {n} tokens",
            types.len()
        )));
    }
    let one = |t: &i32| match t {
        1 => attr::NORMAL,
        2 => attr::UNKNOWN,
        3 => attr::CONTROL,
        4 => attr::USER,
        5 => attr::UNUSED,
        6 => attr::BYTE,
        _ => 0,
    };
    Ok(types[..n].iter().map(one).collect())
}

fn scores_of(mut scores: Vec<f32>, n: usize) -> Result<Vec<f32>, TextError> {
    if scores.is_empty() {
        return Ok(vec![0.0; n]);
    }
    if scores.len() < n {
        return Err(TextError::BadVocab(format!(
            "tokenizer.ggml.scores has {} entries for {n} tokens",
            scores.len()
        )));
    }
    if let Some(i) = scores.iter().position(|s| s.is_nan()) {
        return Err(TextError::BadVocab(format!("tokenizer.ggml.scores[{i}] is not a number")));
    }
    scores.truncate(n);
    Ok(scores)
}
