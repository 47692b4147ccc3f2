//! The one public type for tokenizers. It picks the algorithm, adds what the vocabulary's flags ask for, and
//! turns ids back into bytes.

use super::partition::{Fragment, Partition};
use super::vocab::{Kind, SpecialIds, Vocab, VocabData, attr};
use super::{TextError, bpe, plamo2, pretok, rwkv, special, spm, ugm, wpm};

/// Longest text that is tokenised; positions inside are 32-bit.
pub const MAX_TEXT_BYTES: usize = 64 << 20;

/// Text to ids and back for one model. Immutable and shared between threads.
pub struct Tokenizer {
    vocab: Vocab,
    algorithm: Algorithm,
    partition: Partition,
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    add_space_prefix: bool,
    suppressed: Vec<u32>,
    chat_template: Option<String>,
    bad_template: Option<String>,
    named_templates: Vec<(String, String)>,
    n_vocab: usize,
}

/// Tokens around the texts of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairMarks {
    /// Tokens between the two texts.
    pub between: Vec<u32>,
    /// Token behind the second text.
    pub end: Option<u32>,
}

enum Algorithm {
    Spm,
    Bpe(Box<bpe::Bpe>),
    Wpm(wpm::Wpm),
    Ugm(Box<ugm::Ugm>),
    Rwkv(Box<rwkv::Rwkv>),
    Plamo2(Box<plamo2::Plamo2>),
    None,
}

impl Tokenizer {
    /// Builds the tables of a vocabulary. Unknown `tokenizer.ggml.model` and `tokenizer.ggml.pre` are
    /// [`TextError::Unsupported`], contradictions in the file [`TextError::BadVocab`].
    pub fn new(mut data: VocabData) -> Result<Self, TextError> {
        let kind = kind_of(&data.model)?;
        if kind == Kind::None {
            data.tokens.clear();
            data.types.clear();
        } else if data.tokens.is_empty() {
            return Err(TextError::BadVocab(format!(
                "tokenizer.ggml.tokens is missing, but tokenizer.ggml.model is {:?}",
                data.model
            )));
        }
        let pre = match kind {
            Kind::Bpe => Some(pretok::find(&data)?),
            _ => None,
        };
        let raw_utf8 = pre.as_ref().is_some_and(|p| p.raw_utf8);
        let mut vocab = Vocab::new(&mut data, kind)?;
        special::roles(&mut vocab, &data, raw_utf8);
        let n_vocab =
            if kind == Kind::None { data.vocab_size.unwrap_or(0) as usize } else { vocab.len() };
        let (bos_default, eos_default, space_default) = match kind {
            Kind::Spm => (true, false, true),
            Kind::Wpm => (true, false, false),
            Kind::Ugm => (false, true, false),
            Kind::Bpe => (pre.as_ref().is_some_and(|p| p.add_bos), false, false),
            Kind::Rwkv | Kind::Plamo2 | Kind::None => (false, false, false),
        };
        let mut add_bos = data.flags.add_bos.unwrap_or(bos_default);
        add_bos |= pre.as_ref().is_some_and(|p| p.force_bos);
        let partition = Partition::new(&vocab)?;
        let algorithm = match (kind, pre) {
            (Kind::Bpe, Some(pre)) => Algorithm::Bpe(Box::new(bpe::Bpe::new(&vocab, &data, pre)?)),
            (Kind::Wpm, _) => Algorithm::Wpm(wpm::Wpm::new(&data)),
            (Kind::Ugm, _) => Algorithm::Ugm(Box::new(ugm::Ugm::new(&vocab, &data)?)),
            (Kind::Rwkv, _) => Algorithm::Rwkv(Box::new(rwkv::Rwkv::new(&vocab)?)),
            (Kind::Plamo2, _) => Algorithm::Plamo2(Box::new(plamo2::Plamo2::new(&vocab)?)),
            (Kind::Spm, _) => Algorithm::Spm,
            _ => Algorithm::None,
        };
        let tokenizer = Self {
            add_bos,
            add_eos: data.flags.add_eos.unwrap_or(eos_default),
            add_sep: data.flags.add_sep.unwrap_or(false),
            add_space_prefix: data.flags.add_space_prefix.unwrap_or(space_default),
            suppressed: data.suppress.into_iter().filter(|&id| (id as usize) < n_vocab).collect(),
            chat_template: data.chat_template,
            bad_template: data.bad_template,
            named_templates: data.named_templates,
            vocab,
            algorithm,
            partition,
            n_vocab,
        };
        tokenizer.check_added()?;
        Ok(tokenizer)
    }

    /// A flag that adds a token which does not exist is found here, not at the first prompt.
    fn check_added(&self) -> Result<(), TextError> {
        let ids = &self.vocab.ids;
        let wpm = self.vocab.kind == Kind::Wpm;
        let missing = |flag: &str, role: &str| {
            Err(TextError::BadVocab(format!(
                "tokenizer.ggml.{flag} asks for a token, but tokenizer.ggml.{role} names none"
            )))
        };
        match () {
            () if (self.add_bos || wpm) && ids.bos.is_none() => {
                missing("add_bos_token", "bos_token_id")
            }
            () if self.add_eos && !wpm && ids.eos.is_none() => {
                missing("add_eos_token", "eos_token_id")
            }
            () if wpm && ids.sep.is_none() => missing("model = bert", "seperator_token_id"),
            () if matches!(self.vocab.kind, Kind::Wpm | Kind::Ugm) && ids.unk.is_none() => {
                missing("model", "unknown_token_id")
            }
            () => Ok(()),
        }
    }

    /// Cuts `text` into ids.
    ///
    /// `add_special`: put BOS before and EOS after, where the model's flags say so.
    /// `parse_special`: the texts of control tokens in `text` become those tokens; otherwise they
    /// are plain text. User-defined tokens are matched either way.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, TextError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TextError::TooLong { bytes: text.len(), limit: MAX_TEXT_BYTES });
        }
        if self.vocab.kind == Kind::None {
            return Err(TextError::NoVocab);
        }
        let wpm = self.vocab.kind == Kind::Wpm;
        let mut out = Vec::new();
        if add_special && (self.add_bos || wpm) {
            out.extend(self.vocab.ids.bos);
        }
        let mut after_special = true;
        for fragment in self.partition.split(text, parse_special, &self.vocab) {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(part) => self.encode_plain(part, after_special, &mut out)?,
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        if add_special && wpm {
            out.extend(self.vocab.ids.sep);
        } else if add_special && self.add_eos {
            out.extend(self.vocab.ids.eos);
        }
        Ok(out)
    }

    fn encode_plain(
        &self,
        text: &str,
        after_special: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        match &self.algorithm {
            Algorithm::Spm => {
                let prefix = self.add_space_prefix && after_special;
                spm::encode(&self.vocab, text, prefix, out);
                Ok(())
            }
            Algorithm::Bpe(bpe) => bpe.encode(&self.vocab, text, out),
            Algorithm::Wpm(wpm) => {
                wpm.encode(&self.vocab, text, out);
                Ok(())
            }
            Algorithm::Rwkv(rwkv) => {
                rwkv.encode(text, out);
                Ok(())
            }
            Algorithm::Plamo2(plamo2) => {
                plamo2.encode(text, out);
                Ok(())
            }
            Algorithm::Ugm(ugm) => ugm.encode(&self.vocab, text, self.add_space_prefix, out),
            Algorithm::None => Err(TextError::NoVocab),
        }
    }

    /// The bytes that `ids` stand for, one after the other; they need not be whole characters.
    /// `special`: control and unknown tokens show as their text, otherwise as nothing.
    pub fn decode_bytes(&self, ids: &[u32], special: bool) -> Result<Vec<u8>, TextError> {
        let mut out = Vec::new();
        for &id in ids {
            out.extend_from_slice(self.token_bytes(id, special)?);
        }
        Ok(out)
    }

    /// [`Self::decode_bytes`] as text; broken characters become U+FFFD.
    pub fn decode(&self, ids: &[u32], special: bool) -> Result<String, TextError> {
        Ok(String::from_utf8_lossy(&self.decode_bytes(ids, special)?).into_owned())
    }

    /// The text whose encoding `ids` is: as [`Self::decode`], without the space that the tokenizer
    /// puts before the first word.
    pub fn detokenize(&self, ids: &[u32], special: bool) -> Result<String, TextError> {
        let mut ids = ids;
        let mut strip = self.add_space_prefix;
        if !special && self.add_bos && ids.first().is_some_and(|id| Some(*id) == self.bos()) {
            ids = &ids[1..];
        } else if special && ids.first().is_some_and(|&id| self.is_special(id)) {
            strip = false;
        }
        let text = self.decode(ids, special)?;
        Ok(match text.strip_prefix(' ') {
            Some(rest) if strip => rest.to_owned(),
            _ => text,
        })
    }

    /// The bytes one token stands for (see [`Self::decode_bytes`]).
    pub fn token_bytes(&self, id: u32, special: bool) -> Result<&[u8], TextError> {
        self.check(id)?;
        if self.vocab.kind == Kind::None {
            return Err(TextError::NoVocab);
        }
        let hidden = self.vocab.has(id, attr::CONTROL | attr::UNKNOWN);
        Ok(if hidden && !special { &[] } else { self.vocab.piece(id) })
    }

    /// Texts of all tokens in the order of their ids, control tokens by their names.
    ///
    /// # Errors
    /// The model has no tokens with texts.
    pub fn texts(&self) -> Result<Vec<Vec<u8>>, TextError> {
        (0..self.n_vocab as u32).map(|id| Ok(self.token_bytes(id, true)?.to_vec())).collect()
    }

    /// Refuses an id that the vocabulary does not have.
    pub fn check(&self, id: u32) -> Result<(), TextError> {
        if (id as usize) < self.n_vocab {
            Ok(())
        } else {
            Err(TextError::BadToken { id, n_vocab: self.n_vocab })
        }
    }

    /// The id whose stored text is exactly `text` (for templates and options, not for prompts).
    pub fn find(&self, text: &str) -> Option<u32> {
        self.vocab.find(text)
    }

    /// The text of a token as the file has it, without any decoding.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.texts.get(id as usize).map(String::as_str)
    }

    /// Reason why there is no chat template, where the file has one that is no text.
    pub fn bad_template(&self) -> Option<&str> {
        self.bad_template.as_deref()
    }

    /// Source of the model's chat template, or of its variant `name`.
    pub fn chat_template(&self, name: Option<&str>) -> Option<&str> {
        match name {
            None => self.chat_template.as_deref(),
            Some(name) => {
                self.named_templates.iter().find(|(n, _)| n == name).map(|(_, s)| s.as_str())
            }
        }
    }

    /// Whether a token is control or unknown: not part of the visible text.
    pub fn is_special(&self, id: u32) -> bool {
        (id as usize) < self.vocab.len() && self.vocab.has(id, attr::CONTROL | attr::UNKNOWN)
    }

    /// Whether generation ends with this token.
    pub fn is_eog(&self, id: u32) -> bool {
        self.vocab.eog.binary_search(&id).is_ok()
    }

    /// All end-of-generation ids, ascending.
    pub fn eog(&self) -> &[u32] {
        &self.vocab.eog
    }

    /// Ids that the model's file forbids to sample.
    pub fn suppressed(&self) -> &[u32] {
        &self.suppressed
    }

    /// Id of the beginning of a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.vocab.ids.bos
    }

    /// Id of the end of a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.vocab.ids.eos
    }

    /// Id of the end of a turn.
    pub fn eot(&self) -> Option<u32> {
        self.vocab.ids.eot
    }

    /// Tokens with roles: those of fill-in-the-middle, of ends and beginnings.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.vocab.ids
    }

    /// Number of tokens, also where there are no texts.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Whether `encode` with `add_special` puts BOS first.
    pub fn add_bos(&self) -> bool {
        self.add_bos || self.vocab.kind == Kind::Wpm
    }

    /// Whether `encode` with `add_special` puts EOS last.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// Tokens between the two texts of a pair, and the token that ends it. BERT has its separator in both places.
    pub fn pair_marks(&self) -> PairMarks {
        let ids = &self.vocab.ids;
        if self.vocab.kind == Kind::Wpm {
            return PairMarks { between: ids.sep.into_iter().collect(), end: ids.sep };
        }
        let end = ids.eos.or(ids.sep).filter(|_| self.add_eos);
        let sep = ids.sep.filter(|_| self.add_sep);
        PairMarks { between: end.into_iter().chain(sep).collect(), end }
    }

    /// The algorithm by which text is cut into tokens.
    pub fn kind(&self) -> Kind {
        self.vocab.kind
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("kind", &self.vocab.kind)
            .field("n_vocab", &self.n_vocab)
            .finish_non_exhaustive()
    }
}

fn kind_of(model: &str) -> Result<Kind, TextError> {
    match model {
        "llama" => Ok(Kind::Spm),
        "gpt2" | "gemma4" => Ok(Kind::Bpe),
        "bert" => Ok(Kind::Wpm),
        "t5" => Ok(Kind::Ugm),
        "rwkv" => Ok(Kind::Rwkv),
        "plamo2" => Ok(Kind::Plamo2),
        "none" | "no_vocab" => Ok(Kind::None),
        other => Err(TextError::Unsupported(format!(
            "tokenizer.ggml.model is {other:?}; known are llama, gpt2, gemma4, bert, t5, rwkv, plamo2 and none. \
             The model still runs on token ids"
        ))),
    }
}
