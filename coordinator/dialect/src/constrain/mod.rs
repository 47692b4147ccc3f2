//! Constraints of answers: turns a client's wishes into grammars, which the last stage enforces.
//!
//! A [`Form`] is a request's wish: a JSON schema, a regular expression, a choice, a grammar. [`schema`] refuses, by
//! their paths, parts of a schema that cannot be enforced, and [`normalised`] and [`bounds`] bring the rest into the
//! library's form. [`gbnf`] translates llama.cpp's grammars. [`calls`] writes the grammar of a model's tool calls
//! around the tools' schemas, and [`parameters`] that of arguments in tags or as Python. [`answer`] puts them
//! together with the model's reasoning and calls ([`crate`]). [`trials`] compiles grammars early, so that a client
//! learns at once about errors. Knows nothing of HTTP.

pub mod answer;
pub mod bounds;
pub mod calls;
pub mod gbnf;
pub mod grammar;
pub mod integers;
pub mod keywords;
pub mod normalised;
pub mod options;
pub mod parameters;
pub mod schema;
pub mod trials;
pub mod wide_integers;
#[cfg(test)]
mod wide_integers_tests;

use brigade_engine::constraint::regex_for_lark;
use serde_json::{Value, json};

use grammar::{Grammar, quote};

/// Largest grammar that travels to the last stage.
pub const MAX_GRAMMAR_BYTES: usize = brigade_proto::limits::MAX_GRAMMAR_BYTES;

/// Most alternatives of a choice.
pub const MAX_ALTERNATIVES: usize = 4096;

/// Alternatives of a rule, each of which a grammar follows by itself; more are one regular expression.
const MAX_RULE_ALTERNATIVES: usize = 256;

/// Characters that stand for themselves in a regular expression, and those that do behind a backslash.
const PLAIN: &str = " ,:;'\"_=!%@`<>";
const MEANT: &str = r".+*?()|[]{}^$\-/";

/// A text as a regular expression that matches it alone.
fn literal_regex(text: &str) -> String {
    let one = |c: char| match c {
        c if c.is_ascii_alphanumeric() || !c.is_ascii() || PLAIN.contains(c) => c.to_string(),
        c if MEANT.contains(c) => format!("\\{c}"),
        c => format!("\\x{{{:02X}}}", u32::from(c)),
    };
    text.chars().map(one).collect()
}

/// How exactly a schema must be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// The whole schema is enforced; parts that cannot be are refused.
    Strict,
    /// Parts that cannot be enforced are left out.
    Lenient,
}

/// Why an answer cannot be held to the requested form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// The field, down to the keyword of a schema.
    pub path: String,
    /// The problem, in words.
    pub message: String,
}

impl Refused {
    /// About the field `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// The form of a whole answer, and the field of the request that sets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// The path of the field.
    pub path: String,
    /// The schema, pattern, choice or grammar.
    pub kind: FormKind,
}

/// The kinds of forms.
#[derive(Clone, Debug, PartialEq)]
pub enum FormKind {
    /// JSON that fits a schema.
    Schema(Value, Strictness),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in the dialect of Lark that [`brigade_engine::constraint`] reads.
    Lark(String),
    /// A grammar as llama.cpp has it.
    Gbnf(String),
}

impl Form {
    /// The form of any JSON object.
    pub fn any_object(path: &str) -> Self {
        let schema = json!({ "type": "object" });
        Self { path: path.to_string(), kind: FormKind::Schema(schema, Strictness::Strict) }
    }

    /// The grammar of it, known to be usable.
    ///
    /// # Errors
    /// The error names what cannot be held, by its path.
    pub fn grammar(&self) -> Result<Grammar, Refused> {
        let path = &self.path;
        let lark = match &self.kind {
            FormKind::Schema(schema, strictness) => {
                return schema::grammar(path, schema, *strictness);
            }
            FormKind::Regex(regex) => format!("start: /{}/", regex_for_lark(regex)),
            FormKind::Choice(texts) if texts.is_empty() => {
                return Err(Refused::new(path, format!("{path} is empty")));
            }
            FormKind::Choice(texts) if texts.len() <= MAX_RULE_ALTERNATIVES => {
                let texts: Vec<String> = texts.iter().map(|text| quote(text)).collect();
                format!("start: {}", texts.join(" | "))
            }
            FormKind::Choice(texts) => {
                let written = texts.iter().filter(|text| !text.is_empty());
                let written: Vec<String> = written.map(|text| literal_regex(text)).collect();
                let mark = if written.len() < texts.len() { "?" } else { "" };
                format!("start: choice{mark}\nchoice: /({})/", written.join("|"))
            }
            FormKind::Lark(text) => text.clone(),
            FormKind::Gbnf(text) => {
                gbnf::to_lark(text).map_err(|why| Refused::new(path, format!("{path}: {why}")))?
            }
        };
        let grammar = Grammar::lark(lark);
        check(path, &grammar)?;
        Ok(grammar)
    }
}

/// Compiles a grammar once, so that a client learns at once what is wrong with it.
fn check(path: &str, grammar: &Grammar) -> Result<(), Refused> {
    let text = grammar.text();
    if text.len() > MAX_GRAMMAR_BYTES {
        let n = text.len();
        let message = format!("{path} makes a grammar of {n} bytes: at most {MAX_GRAMMAR_BYTES}");
        return Err(Refused::new(path, message));
    }
    trials::tried(&text).map_err(|error| Refused::new(path, format!("{path}: {error}")))
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;
