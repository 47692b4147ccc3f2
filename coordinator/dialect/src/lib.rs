//! The text of models: how a model writes its reasoning and its tool calls, the parser that reads them, and what an
//! answer has to fit.
//!
//! A [`Dialect`] is data: which markers stand around reasoning and calls, and what a call looks like. It is
//! found by rendering the model's own chat template with probe messages ([`detect`](template::detect)), or in a small table of
//! formats that rendering cannot show ([`known`](template::known)). One streaming [`Parser`] reads all dialects.
//!
//! The parser promises:
//!
//! - Its events do not depend on how the text was cut.
//! - It never gives up a stream.
//! - Text that does not parse is returned as content, unchanged.
//! - Text that may be the beginning of a marker is held back until that is decided.
//!
//! Nothing here knows of HTTP, tokens or sequences.
//!
//! Reading order:
//!
//! - This file has the data.
//! - [`values`] reads values as models write them: JSON, Python, numbers, and what tools take.
//! - [`parser`] reads answers. Its lexer finds markers in unfinished text, `call_head` the beginning of a call, and
//!   `call_body` its arguments. `control_tokens` tells control tokens from the same letters in ordinary tokens, and
//!   `channel` reads gpt-oss. `streaming` puts all of them together.
//! - [`template`] finds a model's dialect, begins a call that must be made, and brings messages into the form that the
//!   template takes. It arranges them otherwise where the template refuses them or leaves a text out.
//! - [`text_model`] is the text side of a model: tokenizer, template and dialect in one; `names` compares its names. [`pooling`] says how its rows
//!   become one vector.
//! - [`constrain`] makes the grammar that an answer has to match.

pub mod constrain;
mod names;
pub mod parser;
pub mod pooling;
mod sample_model;
pub mod template;
#[cfg(test)]
mod tests;
pub mod text_model;
pub mod values;

pub use parser::events::{Event, IdSeed};
pub use parser::streaming::Parser;
pub use template::borders::{Marked, TextEnd};
pub use template::history::History;
pub use values::tools::{Tool, Tools};

/// Text before and after something. An empty `close`: there is no text after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The text before.
    pub open: String,
    /// The text after; may be empty.
    pub close: String,
}

impl Pair {
    /// A pair of these two texts.
    pub fn new(open: &str, close: &str) -> Self {
        Self { open: open.to_string(), close: close.to_string() }
    }
}

/// The markup of one model's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Markers around reasoning.
    pub reasoning: Option<Pair>,
    /// How tools are called; `None`: the model's template has no way that is known.
    pub calls: Option<Calls>,
    /// Markup around the answer itself, which says nothing and is left out.
    pub silent: Vec<String>,
    /// Whether a message is a series of channels (gpt-oss); reasoning and calls are channels then.
    pub channels: bool,
}

/// How calls are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Around all calls of an answer.
    pub section: Option<Pair>,
    /// Markers around each call.
    pub call: Option<Pair>,
    /// Whether an answer that begins as a call is one, without any marker. Only names of tools that the
    /// request has count then.
    pub bare: bool,
    /// The notation of a call between its markers.
    pub shape: Shape,
    /// The form of ids that the model's template wants.
    pub ids: Ids,
}

/// The shape of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"name": NAME, "arguments": {...}}`, alone or in a list.
    Json(JsonShape),
    /// A name, a separator, the arguments as JSON.
    Named(NamedShape),
    /// Tags for the name and for each argument, values as they are.
    Tagged(TaggedShape),
    /// `NAME(KEY=VALUE, ...)`, alone or in a list.
    Python,
}

/// Calls as JSON objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonShape {
    /// Key of the name, for calls that are begun for the model.
    pub name: String,
    /// Key of the arguments, likewise.
    pub arguments: String,
    /// The name is the only key, the arguments its value.
    pub name_is_key: bool,
    /// The id stands behind the arguments, so that a call can be told only when it is complete.
    pub id_last: bool,
    /// Calls stand in a list.
    pub list: bool,
}

/// Calls as a name before JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedShape {
    /// The text before the name.
    pub prefix: String,
    /// The text between name and id, where the model writes an id.
    pub id: Option<String>,
    /// The text between the name (or the id) and the arguments.
    pub separator: String,
    /// The text after the arguments, before the call's closing marker.
    pub suffix: String,
    /// The "name" that marks plain text.
    pub plain: Option<String>,
    /// The name is an id of the form `functions.NAME:NUMBER` (Kimi K2).
    pub name_is_id: bool,
}

/// The notation of calls as tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaggedShape {
    /// Markers around the name. An empty `close`: the name ends where a line, an argument or the call does.
    pub name: Pair,
    /// The text after the last argument.
    pub end: String,
    /// Around an argument's key.
    pub key: Pair,
    /// Markers around an argument's value.
    pub value: Pair,
    /// Tags have attributes behind name and key, up to this.
    pub tag_end: Option<String>,
    /// Attributes behind a key that give the type of its value.
    pub typed_by: TypedBy,
    /// Values stand on lines of their own: one line break on each side is not theirs.
    pub padded: bool,
}

/// An attribute that says of which type a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TypedBy {
    /// There is no such attribute.
    #[default]
    Nothing,
    /// `string="true"` for text, `string="false"` for JSON.
    StringFlag,
    /// `type="number"`, and so on.
    TypeName,
}

/// The form of calls' ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ids {
    /// `call_` and 24 letters and digits.
    #[default]
    Long,
    /// 9 letters and digits (Mistral, whose templates refuse others).
    Nine,
}

impl Calls {
    /// Markers that begin a call or a section of them.
    pub fn openers(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        all.extend(self.section.iter().chain(&self.call).map(|pair| pair.open.as_str()));
        match &self.shape {
            // Models forget the tags around.
            Shape::Tagged(shape) => all.push(&shape.name.open),
            Shape::Named(shape) if !shape.name_is_id => all.push(&shape.prefix),
            _ => {}
        }
        // A word or a bracket opens nothing.
        all.retain(|marker| marker.len() >= MIN_OPENER_BYTES);
        all
    }

    /// Markers that end a call or a section.
    pub fn closers(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        all.extend(self.call.iter().chain(&self.section).map(|pair| pair.close.as_str()));
        match &self.shape {
            Shape::Tagged(shape) => all.push(&shape.end),
            Shape::Named(shape) => all.push(shape.suffix.trim()),
            _ => {}
        }
        all.retain(|marker| !marker.is_empty());
        all
    }
}

/// Shortest text that begins a call wherever it stands.
const MIN_OPENER_BYTES: usize = 3;

impl Dialect {
    /// All markers, for finding the special tokens that the parser must see.
    pub fn markers(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.silent.iter().map(String::as_str).collect();
        if let Some(pair) = &self.reasoning {
            all.extend([pair.open.as_str(), pair.close.as_str()]);
        }
        if let Some(calls) = &self.calls {
            all.extend(calls.openers());
            all.extend(calls.closers());
            match &calls.shape {
                Shape::Named(shape) => {
                    all.extend([shape.prefix.as_str(), shape.separator.as_str()]);
                    all.extend(shape.id.as_deref());
                }
                Shape::Tagged(shape) => {
                    for pair in [&shape.name, &shape.key, &shape.value] {
                        all.extend([pair.open.as_str(), pair.close.as_str()]);
                    }
                    all.extend(shape.tag_end.as_deref());
                }
                Shape::Json(_) | Shape::Python => {}
            }
        }
        if self.channels {
            all.extend(parser::channel::MARKERS);
        }
        all.retain(|marker| !marker.trim().is_empty());
        all
    }
}
