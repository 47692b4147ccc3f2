//! The text side of a model: its name, tokenizer and chat template. It has no weights and no workers.

use std::sync::{Arc, OnceLock};

use brigade_gguf::Gguf;
use brigade_text::{ChatTemplate, TemplateInput, TemplateTokens, TextError, Tokenizer, VocabData};
use serde_json::{Value, json};

use crate::names;
use crate::parser::channel::MARKERS;
use crate::parser::control_tokens::{control, told_dialect};
use crate::parser::streaming::Options;
use crate::pooling::Pooling;
use crate::template::arrange::Arrangement;
use crate::template::borders::{Marked, borders};
use crate::template::content_form::Forms;
use crate::template::detect::detect;
use crate::template::fit::{Fitted, Fitting, Said};
use crate::template::history::Prepared;
use crate::template::opening::{end_of_reasoning, opening};
use crate::template::probe::Facts;
use crate::{Dialect, History, IdSeed, Parser, Shape, Tools};
use brigade_proto::tls::unix_now;

/// Converts text to token ids and back, and renders chats.
#[derive(Debug)]
pub struct TextModel {
    /// The first one is what answers call it.
    names: Vec<String>,
    /// Any name will do.
    any_name: bool,
    pooling: Option<Pooling>,
    is_encoder: bool,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// The reason why the file's template cannot be used, if it has one.
    bad_template: Option<String>,
    eog: Arc<[u32]>,
    /// Found out when the first chat needs it.
    markup: OnceLock<Markup>,
}

/// How the model's answers are written, and what its template wants.
#[derive(Debug)]
struct Markup {
    dialect: Arc<Dialect>,
    /// The same, its control tokens told from text.
    told: Arc<Dialect>,
    facts: Facts,
    history: History,
    /// Log messages about arrangements that were needed so far.
    said: Said,
    /// Control tokens that are markers, ascending.
    visible: Arc<[u32]>,
    /// Names of those markers, as parsers read them.
    hidden: Arc<[String]>,
}

/// The template for a query and a document.
const RERANK: &str = "rerank";

/// The error for a client that wants tokens or logits of an encoder.
pub const ENCODER: &str = "this model is an encoder: it makes vectors of texts and writes none; use /v1/embeddings, \
                           /v1/rerank if it is a reranker, or brigade embed";

/// Shortest name of a control token that can be a part of a marker.
const MIN_MARKER_BYTES: usize = 3;

/// Stands behind an unfinished answer while the template is rendered: no text has it.
const UNFINISHED: &str = "\u{f8ff}brigade-unfinished\u{f8ff}";

/// A place in a text that is to be filled.
#[derive(Clone, Copy, Debug)]
pub struct Gap<'a> {
    /// The text before it.
    pub prefix: &'a str,
    /// The text behind it.
    pub suffix: &'a str,
    /// The beginning of its own text.
    pub begun: &'a str,
}

impl TextModel {
    /// Puts a text side together.
    pub fn new(name: String, tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        let eog = tokenizer.eog().into();
        Self {
            names: vec![name],
            any_name: false,
            pooling: None,
            is_encoder: false,
            tokenizer,
            template,
            bad_template: None,
            eog,
            markup: OnceLock::new(),
        }
    }

    /// A model without a vocabulary, for reading requests only. It has any name.
    pub fn without_text() -> Self {
        let data = VocabData { model: "none".to_string(), ..VocabData::default() };
        let tokenizer = Tokenizer::new(data).expect("nothing in it can be wrong");
        Self { any_name: true, ..Self::new(String::new(), tokenizer, None) }
    }

    /// Reads it from a model file, under the name `name`.
    ///
    /// # Errors
    /// A tokenizer that is damaged or not supported. A template that does not parse is told to chats
    /// ([`Self::bad_template`]).
    pub fn from_gguf(name: String, gguf: &Gguf) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::from_gguf(gguf)?;
        let (template, bad_template) = match ChatTemplate::from_tokenizer(&tokenizer) {
            Ok(template) => (Some(template), None),
            Err(TextError::NoTemplate) => (None, None),
            Err(TextError::BadTemplate(why) | TextError::Template(why)) => (None, Some(why)),
            Err(error) => return Err(error),
        };
        let pooling = Pooling::of(gguf);
        Ok(Self { pooling, bad_template, ..Self::new(name, tokenizer, template) })
    }

    /// Why the model's own chat template cannot be used, where no other template was given.
    pub fn bad_template(&self) -> Option<&str> {
        self.bad_template.as_deref()
    }

    /// Checks that the model has a usable template for chats.
    ///
    /// # Errors
    /// The model has no template, or an unusable one.
    pub fn check_template(&self) -> Result<(), TextError> {
        self.template().map(|_| ())
    }

    fn template(&self) -> Result<&ChatTemplate, TextError> {
        self.template.as_ref().ok_or_else(|| match &self.bad_template {
            Some(why) => TextError::BadTemplate(why.clone()),
            None => TextError::NoTemplate,
        })
    }

    /// Serves the model under these names instead of its own; `*`: under any. Without names nothing changes.
    pub fn set_names(&mut self, names: &[String]) {
        self.any_name = names.iter().any(|name| name == "*");
        let given: Vec<String> = names.iter().filter(|name| *name != "*").cloned().collect();
        if !given.is_empty() {
            self.names = given;
        }
    }

    /// Takes another chat template than the model's own.
    ///
    /// # Errors
    /// The template does not parse.
    pub fn set_template(&mut self, source: &TemplateSource) -> Result<(), TextError> {
        let tokens = TemplateTokens::of(&self.tokenizer);
        self.template = Some(match source {
            TemplateSource::ChatMl => ChatTemplate::chatml(tokens),
            TemplateSource::Text(text) => ChatTemplate::from_source(text, tokens)?,
        });
        self.bad_template = None;
        self.markup = OnceLock::new();
        Ok(())
    }

    /// The name in requests and answers.
    #[inline]
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// All names under which requests may ask for it.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether a request may ask for it under this name.
    pub fn serves(&self, name: &str) -> bool {
        self.any_name || self.names.iter().any(|known| names::means(known, name))
    }

    /// The model makes vectors of texts, and writes none.
    pub fn set_encoder(&mut self) {
        self.is_encoder = true;
    }

    /// How the rows of a text become one vector, as the model's file says; where it says nothing, an encoder's mean, and
    /// a decoder's last.
    pub fn pooling(&self) -> Pooling {
        self.pooling.unwrap_or(if self.is_encoder { Pooling::Mean } else { Pooling::Last })
    }

    /// The tokens before a prefix, before a suffix, and before what stands between them.
    pub fn fill_in(&self) -> Option<[u32; 3]> {
        let ids = self.tokenizer.special_ids();
        Some([ids.fim_pre?, ids.fim_suf?, ids.fim_mid?])
    }

    /// A prompt whose continuation fills a gap, behind `others` (files by their names); `None`: the model has no tokens for it.
    ///
    /// # Errors
    /// As [`Self::encode_prompt`].
    pub fn encode_fill_in(
        &self,
        others: &[(Option<String>, String)],
        gap: &Gap<'_>,
    ) -> Result<Option<Vec<u32>>, TextError> {
        let Some([before_prefix, before_suffix, middle]) = self.fill_in() else { return Ok(None) };
        let plain = |text: &str| self.tokenizer.encode(text, false, false);
        let mut tokens = Vec::from_iter(self.tokenizer.bos().filter(|_| self.tokenizer.add_bos()));
        // A model that was trained on several files has a token before each; their names follow it. Elsewhere the other
        // files stand before the prefix, as a part of it.
        let before_file = self.tokenizer.special_ids().fim_sep;
        let mut above = String::new();
        for (name, text) in others {
            let name = name.as_ref().map_or(String::new(), |name| format!("{name}\n"));
            match before_file {
                Some(mark) => {
                    tokens.push(mark);
                    tokens.extend(plain(&format!("{name}{text}\n"))?);
                }
                None => above.push_str(&format!("{name}{text}\n")),
            }
        }
        tokens.extend(before_file.filter(|_| !others.is_empty()));
        tokens.push(before_prefix);
        tokens.extend(plain(&format!("{above}{}", gap.prefix))?);
        tokens.push(before_suffix);
        tokens.extend(plain(gap.suffix)?);
        tokens.push(middle);
        tokens.extend(plain(gap.begun)?);
        Ok(Some(tokens))
    }

    /// Ids of a query and a document that a reranker judges: as the model's template for that says, else one after the
    /// other with the marks that the tokenizer puts around texts.
    ///
    /// # Errors
    /// As [`Self::encode_prompt`].
    pub fn encode_pair(&self, query: &str, document: &str) -> Result<Vec<u32>, TextError> {
        if let Some(template) = self.tokenizer.chat_template(Some(RERANK)) {
            let text: Vec<String> = template
                .split("{query}")
                .map(|part| part.split("{document}").collect::<Vec<_>>().join(document))
                .collect();
            return self.tokenizer.encode(&text.join(query), false, true);
        }
        let plain = |text: &str| self.tokenizer.encode(text, false, false);
        let marks = self.tokenizer.pair_marks();
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.add_bos());
        let mut tokens: Vec<u32> = bos.into_iter().chain(plain(query)?).collect();
        tokens.extend(marks.between);
        tokens.extend(plain(document)?.into_iter().chain(marks.end));
        Ok(tokens)
    }

    /// The model's tokenizer.
    #[inline]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Ids below this are tokens.
    pub fn n_vocab(&self) -> u32 {
        self.tokenizer.n_vocab() as u32
    }

    /// The ids of all end-of-generation tokens.
    #[inline]
    pub fn eog(&self) -> Arc<[u32]> {
        self.eog.clone()
    }

    /// Bytes of a generated token; none for a control token or an id without text.
    #[inline]
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id, false).map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// Bytes of a token as the vocabulary has them, those of control tokens too; none for an id without text.
    #[inline]
    pub fn vocab_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id, true).map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// Tokens whose text has one of `texts` in it, ascending.
    pub fn tokens_with(&self, texts: &[String]) -> Vec<u32> {
        let has = |id: &u32| {
            let bytes = self.tokenizer.token_bytes(*id, false).unwrap_or_default();
            texts
                .iter()
                .filter(|text| !text.is_empty())
                .any(|text| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
        };
        (0..self.n_vocab()).filter(has).collect()
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
    /// There is no template, or it refuses the messages, or it cannot do what is asked of it.
    pub fn encode_chat(&self, chat: &Chat) -> Result<Prompt, TextError> {
        if self.is_encoder {
            return Err(TextError::Encoder(ENCODER));
        }
        let template = self.template()?;
        let markup = self.markup(template);
        let Rendered { mut text, mut begins, n_calls } = self.render(template, markup, chat)?;
        let name = match &chat.force {
            Force::Free => {
                let tokens = self.tokenizer.encode(&text, true, true)?;
                let (borders, marked) =
                    borders(&self.tokenizer, &text, &tokens, &chat.messages, &chat.marked);
                return Ok(Prompt { tokens, borders, marked, begins, opening: String::new() });
            }
            Force::Any => None,
            Force::Tool(name) => Some(name.as_str()),
        };
        let opening = opening(&markup.dialect, &markup.facts, name, n_calls);
        let opening = opening.ok_or_else(|| {
            let what = "its calls cannot be begun for the model: use tool_choice \"auto\"";
            TextError::Template(what.to_string())
        })?;
        if markup.dialect.reasoning.as_ref().is_some_and(|pair| pair.open == begins) {
            let end = end_of_reasoning(&markup.dialect, &markup.facts);
            text.push_str(&end);
            begins.push_str(&end);
        }
        text.push_str(&opening);
        let tokens = self.tokenizer.encode(&text, true, true)?;
        let (borders, marked) =
            borders(&self.tokenizer, &text, &tokens, &chat.messages, &chat.marked);
        Ok(Prompt { tokens, borders, marked, begins, opening })
    }

    /// Renders a chat in the first arrangement that the template takes.
    fn render(
        &self,
        template: &ChatTemplate,
        markup: &Markup,
        chat: &Chat,
    ) -> Result<Rendered, TextError> {
        let prepare = |in_words| {
            let mut prepared = markup.history.prepare(&chat.messages, &chat.tools, in_words);
            let begun = if chat.continues { leave_open(&mut prepared.messages) } else { None };
            (prepared, begun)
        };
        let (prepared, begun) = prepare(false);
        let input = TemplateInput {
            messages: &[],
            tools: &prepared.tools,
            add_generation_prompt: !chat.continues,
            kwargs: Some(&chat.extra),
            now: unix_now() as i64,
        };
        let fitting = Fitting { template, forms: markup.facts.forms, input };
        let fitted = fitting.fit(&prepared, || prepare(true).0).or_else(|error| {
            if error.is_limit() || !(chat.is_shown || chat.continues) {
                return Err(error);
            }
            match fitting.as_it_is(&prepared.messages) {
                Ok(text) if chat.is_shown => {
                    Ok(Fitted { text, arrangement: Arrangement::default() })
                }
                Ok(text) if !text.contains(UNFINISHED) => Err(not_open()),
                _ => Err(error),
            }
        })?;
        let mut words = fitted.arrangement.words();
        if markup.facts.forms != Forms::default() {
            words.push("contents are given as lists of parts");
        }
        if leaves_out_reasoning(&prepared, &fitted.text) {
            words.push("reasoning of earlier answers is left out");
        }
        markup.said.say(self.name(), &words);
        let n_calls = prepared.n_calls;
        let (text, begins) = match begun {
            Some(begun) => continued(&fitted.text, begun)?,
            None if chat.continues => return Err(not_open()),
            None => {
                let begins = markup.begun(&fitted.text);
                (fitted.text, begins)
            }
        };
        Ok(Rendered { text, begins, n_calls })
    }

    /// Reads an answer to `prompt`. `tools`: those of the request; `single`: one call is enough; `seed`: the
    /// choice's.
    pub fn parser(&self, prompt: &Prompt, tools: Arc<Tools>, single: bool, seed: u64) -> Parser {
        let markup = self.template.as_ref().map(|template| self.markup(template));
        let options = Options {
            tools,
            single,
            hidden: markup.map(|m| m.hidden.clone()).unwrap_or_default(),
            seed: IdSeed::new(&prompt.tokens, seed),
        };
        let dialect = markup.map(|m| m.told.clone()).unwrap_or_default();
        let mut parser = Parser::new(dialect, options);
        parser.begin_with(&prompt.begins);
        parser
    }

    /// Reads an answer to a plain prompt: all of it is content.
    pub fn plain_parser(&self) -> Parser {
        Parser::new(Arc::default(), Options::default())
    }

    /// Control tokens that are markers of the model's answers, ascending.
    pub fn markers(&self) -> Arc<[u32]> {
        let markup = self.template.as_ref().map(|template| self.markup(template));
        markup.map(|m| m.visible.clone()).unwrap_or_default()
    }

    /// How the model's answers are written, and what its template does; `None` without a template.
    pub fn dialect(&self) -> Option<(&Dialect, &Facts)> {
        let markup = self.markup(self.template.as_ref()?);
        Some((&*markup.dialect, &markup.facts))
    }

    fn markup(&self, template: &ChatTemplate) -> &Markup {
        self.markup.get_or_init(|| {
            let (dialect, facts) = detect(template);
            let (visible, hidden) = self.control_tokens(&dialect);
            let history = History::new(template, &dialect, &facts);
            tracing::debug!(?dialect, "markup of answers");
            Markup {
                told: Arc::new(told_dialect(&dialect, &hidden)),
                dialect: Arc::new(dialect),
                facts,
                history,
                said: Said::default(),
                visible,
                hidden,
            }
        })
    }

    fn control_tokens(&self, dialect: &Dialect) -> (Arc<[u32]>, Arc<[String]>) {
        let markers = dialect.markers();
        let (mut ids, mut names) = (Vec::new(), Vec::new());
        for id in 0..self.n_vocab() {
            let name = self.tokenizer.token_text(id).unwrap_or_default();
            // Markers of channels are single tokens, of any kind.
            let is_channel = dialect.channels && MARKERS.contains(&name);
            if self.tokenizer.is_eog(id) || !(self.tokenizer.is_special(id) || is_channel) {
                continue;
            }
            let is_part = |marker: &&str| marker.contains(name);
            if name.len() >= MIN_MARKER_BYTES && markers.iter().any(is_part) {
                ids.push(id);
                names.push(control(name));
            }
        }
        if dialect.channels {
            // Also where the vocabulary lacks one: spelled in letters it is text.
            names = MARKERS.iter().map(|marker| control(marker)).collect();
        }
        (ids.into(), names.into())
    }
}

impl Markup {
    /// The beginning of the answer that a prompt has.
    fn begun(&self, prompt: &str) -> String {
        let prompt = prompt.trim_end();
        let open = self.dialect.reasoning.as_ref().map(|pair| pair.open.as_str());
        let prefix = self.dialect.calls.as_ref().and_then(|calls| match &calls.shape {
            Shape::Named(shape) if shape.plain.is_some() => Some(shape.prefix.as_str()),
            _ => None,
        });
        let begun = open.into_iter().chain(prefix).find(|marker| prompt.ends_with(marker));
        begun.unwrap_or_default().to_string()
    }
}

/// A chat as text.
struct Rendered {
    text: String,
    /// The beginning of the answer, for the parser.
    begins: String,
    /// Calls in the messages.
    n_calls: usize,
}

/// Whether reasoning of an earlier answer is not in the prompt: most templates leave it out once it is old.
fn leaves_out_reasoning(prepared: &Prepared, prompt: &str) -> bool {
    let thoughts = prepared.messages.iter().filter_map(|m| m.get("reasoning_content")?.as_str());
    thoughts.map(str::trim).any(|thought| !prompt.contains(thought))
}

/// Marks the end of the last answer; returns its text so far.
fn leave_open(messages: &mut [Value]) -> Option<String> {
    let last = messages.last_mut()?.as_object_mut()?;
    let begun = last.get("content").and_then(Value::as_str).unwrap_or_default().to_string();
    last.insert("content".to_string(), Value::from(format!("{begun}{UNFINISHED}")));
    Some(begun)
}

fn not_open() -> TextError {
    let what = "it does not leave the last answer open: end the messages with a user's, or set \
                continue_final_message to false";
    TextError::Template(what.to_string())
}

/// The prompt of a conversation whose last answer is unfinished, up to its end so far; and that answer.
fn continued(text: &str, begun: String) -> Result<(String, String), TextError> {
    let mut parts = text.split(UNFINISHED);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(before), Some(_), None) => {
            // Where channels are written, the header that the template wrote counts too.
            let header = before.rfind("<|start|>assistant").map(|at| &before[at..]);
            let header = header.and_then(|header| header.split_once("assistant")).map(|(_, h)| h);
            let header = header.filter(|header| header.starts_with("<|channel|>"));
            let begun = header.map_or(begun, str::to_string);
            Ok((before.to_string(), begun))
        }
        _ => Err(not_open()),
    }
}

/// A chat template instead of the model's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateSource {
    /// The usual one where nothing better is known.
    ChatMl,
    /// The template's text, in Jinja.
    Text(String),
}

/// Input of a chat template.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Messages: objects with `role` and `content`, and any fields that the template knows.
    pub messages: Vec<Value>,
    /// Functions that may be called, as in the OpenAI API.
    pub tools: Vec<Value>,
    /// How far the answer is forced to be a call.
    pub force: Force,
    /// The last message is an answer that is to be continued.
    pub continues: bool,
    /// Further variables for the template.
    pub extra: serde_json::Map<String, Value>,
    /// The places up to which the client wants it kept.
    pub marked: Marked,
    /// The prompt is only shown, without an answer: a message that the template leaves out is then no error.
    pub is_shown: bool,
}

impl Chat {
    /// The same conversation with `text` in the place of the system messages that it begins with; without any where that
    /// is empty.
    pub fn with_system(&self, text: &str) -> Self {
        let is_system =
            |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
        let system = (!text.is_empty()).then(|| json!({ "role": "system", "content": text }));
        let rest = self.messages.iter().skip_while(is_system).cloned();
        let messages = system.into_iter().chain(rest).collect();
        Self { messages, marked: Marked::default(), ..self.clone() }
    }
}

/// How far an answer is forced to be a call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Force {
    /// The model decides.
    #[default]
    Free,
    /// A call of any tool.
    Any,
    /// A call of this tool.
    Tool(String),
}

/// A chat as the model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids of the whole prompt.
    pub tokens: Vec<u32>,
    /// Positions at which another chat is likely to go on otherwise, the more important first.
    pub borders: Vec<u32>,
    /// Tokens up to the last place that the client marked; 0: none.
    pub marked: u32,
    /// Text at the prompt's end that the parser must read first, but that is not part of the answer.
    pub begins: String,
    /// Text at the prompt's end that is part of the answer: the beginning of a forced call.
    pub opening: String,
}
