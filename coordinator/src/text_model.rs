//! The text side of a model: name, tokenizer, chat template. No weights, no workers.

use std::sync::Arc;

use brigade_engine::gguf::Gguf;
use brigade_engine::text::{ChatTemplate, TemplateInput, TemplateTokens, TextError, Tokenizer};
use serde_json::Value;

use crate::clock::unix_now;

/// What turns text into token ids and back.
#[derive(Debug)]
pub struct TextModel {
    name: String,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    eog: Arc<[u32]>,
}

impl TextModel {
    /// Puts a text side together.
    pub fn new(name: String, tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        let eog = tokenizer.eog().into();
        Self { name, tokenizer, template, eog }
    }

    /// Reads it from a model file, under the name `name`.
    ///
    /// # Errors
    /// A tokenizer that is damaged or not supported, or a template that does not parse.
    pub fn from_gguf(name: String, gguf: &Gguf) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::from_gguf(gguf)?;
        let template = match ChatTemplate::from_tokenizer(&tokenizer) {
            Ok(template) => Some(template),
            Err(TextError::NoTemplate) => None,
            Err(error) => return Err(error),
        };
        Ok(Self::new(name, tokenizer, template))
    }

    /// Takes another chat template than the model's own.
    ///
    /// # Errors
    /// It does not parse.
    pub fn set_template(&mut self, source: &TemplateSource) -> Result<(), TextError> {
        let tokens = TemplateTokens::of(&self.tokenizer);
        self.template = Some(match source {
            TemplateSource::ChatMl => ChatTemplate::chatml(tokens),
            TemplateSource::Text(text) => ChatTemplate::from_source(text, tokens)?,
        });
        Ok(())
    }

    /// What requests and answers call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Ids below this are tokens.
    pub fn n_vocab(&self) -> u32 {
        self.tokenizer.n_vocab() as u32
    }

    /// All end-of-generation ids.
    pub fn eog(&self) -> Arc<[u32]> {
        self.eog.clone()
    }

    /// Bytes of a generated token; none for a control token or an id without text.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id, false).map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// Bytes of a token as the vocabulary has them, those of control tokens too; none for an id without text.
    pub fn vocab_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id, true).map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// Ids of a plain prompt.
    ///
    /// # Errors
    /// The text is too long, or the model has no vocabulary.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode(text, true, true)
    }

    /// Ids of a chat: the template is applied and control tokens in it are parsed.
    ///
    /// # Errors
    /// There is no template, or it refuses the messages.
    pub fn encode_chat(&self, chat: &Chat) -> Result<Vec<u32>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        let input = TemplateInput {
            messages: &chat.messages,
            tools: &[],
            add_generation_prompt: true,
            kwargs: Some(&chat.extra),
            now: unix_now() as i64,
        };
        self.tokenizer.encode(&template.render(&input)?, true, true)
    }
}

/// A chat template instead of the model's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateSource {
    /// The usual one where nothing better is known.
    ChatMl,
    /// Jinja.
    Text(String),
}

/// Input of a chat template.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Objects with `role` and `content` and whatever else the template knows.
    pub messages: Vec<Value>,
    /// Further variables for the template.
    pub extra: serde_json::Map<String, Value>,
}

#[cfg(test)]
impl TextModel {
    /// A vocabulary of bytes and lower-case letters and a template without decoration.
    pub fn sample() -> Self {
        use brigade_engine::text::{SpecialIds, VocabData};
        const NORMAL: i32 = 1;
        const CONTROL: i32 = 3;
        const BYTE: i32 = 6;
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_string).to_vec();
        let mut types = vec![2, CONTROL, CONTROL];
        for byte in 0..=255u8 {
            tokens.push(format!("<0x{byte:02X}>"));
            types.push(BYTE);
        }
        for letter in ('a'..='z').chain(['\u{2581}']) {
            tokens.push(letter.to_string());
            types.push(NORMAL);
        }
        let scores = vec![0.0; tokens.len()];
        let ids = SpecialIds { unk: Some(0), bos: Some(1), eos: Some(2), ..SpecialIds::default() };
        let model = "llama".to_string();
        let data = VocabData { model, tokens, types, scores, ids, ..VocabData::default() };
        let tokenizer = Tokenizer::new(data).expect("the sample vocabulary is whole");
        let template = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}";
        let tokens = TemplateTokens::of(&tokenizer);
        let template = ChatTemplate::from_source(template, tokens).expect("it is valid");
        Self::new("sample".to_string(), tokenizer, Some(template))
    }
}
