//! Chat templates: the Jinja program that a model carries turns messages into one prompt text.
//!
//! Templates come from files that are not trusted. They run with a limit on their steps, one on the text and lists
//! that they hold, and one on what they read and copy. They have no access to anything but their input. The clock is an input
//! as well.

mod folding;
mod globals;
mod guards;
mod list;
mod looks;
mod meter;
mod metered;
mod python;
#[cfg(test)]
mod python_tests;
mod shape;
mod strings;
#[cfg(test)]
mod tests;
mod time;

use std::io;

use minijinja::machinery::{self, CompiledTemplate};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{Map, Value as Json};

pub use folding::MAX_REPEATED_CONSTANTS;
pub use looks::MAX_TEMPLATE_COUNT;
pub use meter::{
    MAX_TEMPLATE_BYTES_HELD, MAX_TEMPLATE_DEPTH, MAX_TEMPLATE_WORK, TEMPLATE_BYTES,
    TEMPLATE_BYTES_PER_INPUT, TEMPLATE_WORK, TEMPLATE_WORK_PER_INPUT,
};
pub use shape::{MAX_ELIFS, MAX_TAG_TOKENS, MAX_TEMPLATE_NAMES, MAX_TEMPLATE_TOKENS};

use super::{MAX_TEXT_BYTES, TextError, Tokenizer};

/// Instructions one rendering may take; a thousand messages need a few hundred thousand.
pub const TEMPLATE_FUEL: u64 = 10_000_000;
/// Longest template source in bytes (published ones reach 30 kB).
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// The format of ChatML, which many models were trained on. For models that carry no template,
/// and only where the user asked for it.
pub const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Name of a format that the files of RWKV's models have instead of a template.
const RWKV_WORLD: &str = "rwkv-world";

/// Template for that format. and that format. Two line ends are the token that ends an answer.
const RWKV_WORLD_SOURCE: &str = "{% for message in messages %}\
    {{ {'system': 'System', 'user': 'User', 'assistant': 'Assistant'}[message['role']] + ': ' }}\
    {{ message['content'] | trim + '\n\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

const DEFAULT: &str = "default";
/// Name under which files keep a variant for requests with tools.
const TOOL_USE: &str = "tool_use";

/// Variables that belong to the template's caller and may not come from a request.
const RESERVED: [&str; 7] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
];

/// Texts of the tokenizer's special tokens, for a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateTokens {
    /// Text of BOS, given as `bos_token`.
    pub bos: String,
    /// Text of EOS, given as `eos_token`.
    pub eos: String,
    /// The tokenizer adds BOS itself, so the prompt must not begin with it.
    pub strip_bos: bool,
    /// The tokenizer adds EOS itself, so the prompt must not end with it.
    pub strip_eos: bool,
}

impl TemplateTokens {
    /// Texts of a tokenizer's special tokens.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| {
            id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_owned()
        };
        Self {
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            strip_bos: tokenizer.add_bos(),
            strip_eos: tokenizer.add_eos(),
        }
    }
}

/// One conversation to be rendered.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateInput<'a> {
    /// Objects with `role`, `content` and what else the template reads.
    pub messages: &'a [Json],
    /// Function descriptions as in the OpenAI API; the template sees none if empty.
    pub tools: &'a [Json],
    /// End with the header of the assistant's reply.
    pub add_generation_prompt: bool,
    /// Additional variables (`chat_template_kwargs`).
    pub kwargs: Option<&'a Map<String, Json>>,
    /// Seconds since 1970, UTC, for `strftime_now`.
    pub now: i64,
}

/// A template that compiles. Immutable and shared between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    default: String,
    /// The variant for requests with tools, or why it cannot be used.
    tool_use: Option<Result<String, String>>,
    tokens: TemplateTokens,
    /// All variants' sources, one after the other.
    source: String,
}

impl ChatTemplate {
    /// Compiles a template's source.
    ///
    /// # Errors
    /// [`TextError::Template`] names the line.
    pub fn from_source(source: &str, tokens: TemplateTokens) -> Result<Self, TextError> {
        let source = python::with_line_feeds(source);
        let default = prepared(DEFAULT, &source)?;
        Ok(Self { env: environment(), default, tool_use: None, tokens, source })
    }

    /// The template that the model carries, with its variant for tools if it has one.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] if there is none: the caller decides then, for example for
    /// [`Self::chatml`]; [`TextError::Template`] if it does not compile, [`TextError::BadTemplate`] if it is no text.
    /// The variant for tools is looked at where there are tools.
    pub fn from_tokenizer(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let source = match tokenizer.chat_template(None) {
            Some(RWKV_WORLD) => RWKV_WORLD_SOURCE,
            Some(source) => source,
            None => {
                let bad =
                    tokenizer.bad_template().map(|why| TextError::BadTemplate(why.to_owned()));
                return Err(bad.unwrap_or(TextError::NoTemplate));
            }
        };
        let mut template = Self::from_source(source, TemplateTokens::of(tokenizer))?;
        if let Some(source) = tokenizer.chat_template(Some(TOOL_USE)) {
            let source = python::with_line_feeds(source);
            template.tool_use =
                Some(prepared(TOOL_USE, &source).map_err(|error| error.to_string()));
            template.source.push_str(&source);
        }
        Ok(template)
    }

    /// [`CHATML`], for a model without a template whose user chose it.
    pub fn chatml(tokens: TemplateTokens) -> Self {
        Self::from_source(CHATML, tokens).expect("the source above is valid, as a test shows")
    }

    /// The prompt of a conversation. Tokenise it with special tokens added and parsed.
    ///
    /// # Errors
    /// The template refuses the messages (its own words are in the error), calls something that does
    /// not exist, or runs out of fuel. Or it holds more text and lists than it may ([`TEMPLATE_BYTES`],
    /// [`TEMPLATE_BYTES_PER_INPUT`]), or works longer ([`TEMPLATE_WORK`],
    /// [`TEMPLATE_WORK_PER_INPUT`]).
    pub fn render(&self, input: &TemplateInput<'_>) -> Result<String, TextError> {
        let (name, source) = match &self.tool_use {
            Some(Ok(source)) if !input.tools.is_empty() => (TOOL_USE, source),
            Some(Err(why)) if !input.tools.is_empty() => {
                return Err(TextError::Template(format!("its variant {TOOL_USE}: {why}")));
            }
            _ => (DEFAULT, &self.default),
        };
        // Parsing takes a small part of the time of a rendering, and what it gives borrows the source.
        let compiled = compiled(name, source).map_err(explain)?;
        let mut prompt = String::new();
        let mut out = machinery::make_string_output(&mut prompt);
        let CompiledTemplate { instructions, blocks, .. } = &compiled;
        let variables = self.variables(input)?;
        machinery::eval(&self.env, instructions, variables, blocks, &mut out, AutoEscape::None)
            .map_err(explain)?;
        if prompt.len() > MAX_TEXT_BYTES {
            return Err(TextError::TooLong { bytes: prompt.len(), limit: MAX_TEXT_BYTES });
        }
        Ok(self.strip(prompt))
    }

    /// The source, with that of the variant for tools: for looking up which markers it mentions.
    pub fn source(&self) -> &str {
        &self.source
    }

    fn variables(&self, input: &TemplateInput<'_>) -> Result<Value, TextError> {
        let mut all: Vec<(String, Value)> = Vec::new();
        for (name, value) in input.kwargs.into_iter().flatten() {
            if RESERVED.contains(&name.as_str()) {
                return Err(TextError::Template(format!(
                    "{name:?} is set by the server and may not be among the template's arguments"
                )));
            }
            all.push((name.clone(), Value::from(Serde(value))));
        }
        let mut put = |name: &str, value: Value| all.push((name.to_owned(), value));
        put("messages", Value::from(Serde(input.messages)));
        let tools = match input.tools {
            [] => Value::from(()),
            tools => Value::from(Serde(tools)),
        };
        put("tools", tools);
        put("add_generation_prompt", Value::from(input.add_generation_prompt));
        put("bos_token", Value::from(self.tokens.bos.as_str()));
        put("eos_token", Value::from(self.tokens.eos.as_str()));
        let now = input.now;
        let strftime = move |format: &str| {
            time::strftime(now, format).map_err(|e| Error::new(ErrorKind::InvalidOperation, e))
        };
        put("strftime_now", Value::from_function(strftime));
        put(meter::INPUT_BYTES, Value::from(bytes_of(input)));
        Ok(Value::from_pairs(all))
    }

    /// Takes off what the tokenizer will add.
    fn strip(&self, prompt: String) -> String {
        let TemplateTokens { bos, eos, strip_bos, strip_eos } = &self.tokens;
        let mut text = prompt.as_str();
        if *strip_bos && !bos.is_empty() {
            text = text.strip_prefix(bos.as_str()).unwrap_or(text);
        }
        if *strip_eos && !eos.is_empty() {
            text = text.strip_suffix(eos.as_str()).unwrap_or(text);
        }
        text.to_owned()
    }
}

/// A source as it is compiled, once to see that it does.
fn prepared(name: &'static str, source: &str) -> Result<String, TextError> {
    if source.len() > MAX_TEMPLATE_BYTES {
        return Err(TextError::Template(format!(
            "the source has {} bytes, the limit is {MAX_TEMPLATE_BYTES}",
            source.len()
        )));
    }
    let source = list::with_growing_lists(&python::without_generation_tags(source));
    compiled(name, &source).map_err(explain)?;
    Ok(source)
}

fn compiled<'s>(name: &'static str, source: &'s str) -> Result<CompiledTemplate<'s>, Error> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let config = metered::config(syntax.expect("the delimiters are the default ones"));
    metered::compile(name, source, &config)
}

/// An environment that behaves as the one templates are written for.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_fuel(Some(TEMPLATE_FUEL));
    guards::install(&mut env);
    globals::install(&mut env);
    env.set_unknown_method_callback(guards::method);
    env.add_test("iterable", python::is_iterable);
    env.add_function(list::MAKE_LIST, list::List::make);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env
}

/// Bytes of what the caller gives, as JSON.
fn bytes_of(input: &TemplateInput<'_>) -> u64 {
    let mut len = Len(0);
    // Nothing here can fail to be written: JSON values to a counter.
    let _ = serde_json::to_writer(&mut len, &(input.messages, input.tools, input.kwargs));
    len.0
}

/// Counts what is written.
struct Len(u64);

impl io::Write for Len {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn explain(error: Error) -> TextError {
    if error.kind() == ErrorKind::OutOfFuel {
        let text =
            format!("the template ran out of fuel: {TEMPLATE_FUEL} instructions are the limit");
        return TextError::Template(text);
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    TextError::Template(in_plain_words(text))
}

/// A complaint about an argument names its type as the template's author knows it.
fn in_plain_words(text: String) -> String {
    const CANNOT: &str = "cannot convert ";
    const TYPES: [(&str, &str); 8] = [
        ("usize", "a whole number from 0"),
        ("u64", "a whole number from 0"),
        ("u32", "a whole number from 0"),
        ("i64", "a whole number"),
        ("i32", "a whole number"),
        ("i128", "a whole number"),
        ("f64", "a number"),
        ("bool", "true or false"),
    ];
    let Some(at) = text.find(CANNOT) else { return text };
    let (before, what) = text.split_at(at);
    let found = TYPES.iter().find_map(|(ty, word)| {
        let to = format!(" to {ty}");
        let rest = &what[what.find(&to)? + to.len()..];
        let is_whole = !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
        is_whole.then(|| what.replacen(&to, &format!(" to {word}"), 1))
    });
    found.map_or(text.clone(), |what| format!("{before}{what}"))
}
