//! Errors of a vocabulary or a text, sorted by the action that the caller can take.

/// Reasons why a vocabulary could not be loaded or a text could not be converted.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The model file contradicts itself: another copy of the file is needed.
    #[error("bad vocabulary: {0}")]
    BadVocab(String),
    /// The file is fine, but this program does not know its tokenizer.
    #[error("unsupported tokenizer: {0}")]
    Unsupported(String),
    /// The model has no vocabulary (`tokenizer.ggml.model` is `none`): pass token ids instead.
    #[error("the model has no vocabulary: give token ids instead of text")]
    NoVocab,
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is outside the vocabulary of {n_vocab} tokens")]
    BadToken {
        /// The id asked for.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A text beyond [`MAX_TEXT_BYTES`](super::MAX_TEXT_BYTES).
    #[error("the text has {bytes} bytes, the limit is {limit}: shorten it")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// The limit in the unit of the message.
        limit: usize,
    },
    /// A key of the model file is missing or has the wrong type.
    #[error(transparent)]
    Gguf(#[from] brigade_gguf::GgufError),
    /// Stop strings of a request that cannot be used.
    #[error("stop strings: {0}")]
    BadStop(String),
    /// The chat template is faulty, ran out of fuel, or refused the messages.
    #[error("chat template: {0}")]
    Template(String),
    /// The model's own chat template cannot be used at all: another one has to be named.
    #[error(
        "the model's own chat template cannot be used: {0}; choose another one explicitly, for example chatml"
    )]
    BadTemplate(String),
    /// The model makes vectors of texts and writes none.
    #[error("{0}")]
    Encoder(&'static str),
    /// The model carries no chat template and the caller named none.
    #[error("the model has no chat template: choose one explicitly, for example chatml")]
    NoTemplate,
}

impl TextError {
    /// Whether a template ran into a limit, and would in another form of the same conversation.
    pub fn is_limit(&self) -> bool {
        match self {
            Self::TooLong { .. } => true,
            Self::Template(why) => why.contains("limit"),
            _ => false,
        }
    }
}
