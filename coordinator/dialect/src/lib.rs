//! The text of models: how a model writes its reasoning and its tool calls, the parser that reads them, and what an
//! answer has to fit.
//!
//! A [`Dialect`] is data: which markers stand around reasoning and calls, and what a call looks like. It is
//! found by rendering the model's own chat template with probe messages ([`detect`]), or in a small table of
//! formats that rendering cannot show ([`known`]). One streaming [`Parser`] reads all dialects.
//!
//! The parser promises:
//!
//! - Its events do not depend on how the text was cut.
//! - It never gives up a stream.
//! - Text that parses as nothing comes out as content, word for word.
//! - What may be the beginning of a marker is held back until that is decided.
//!
//! Nothing here knows of HTTP, tokens or sequences.
//!
//! Reading order:
//!
//! - This file has the data. [`lex`] finds markers in unfinished text.
//! - [`json`], [`python`], [`number`] and [`tools`] read values, and [`pointer`] finds a part of one. [`head`] finds
//!   the beginning of a call, [`body`] its arguments.
//! - [`control`] tells control tokens from the same letters in ordinary tokens. [`channel`] reads gpt-oss. [`sink`]
//!   collects what comes out. [`parser`] puts all of them together.
//! - [`probe`], [`detect`] and [`known`] find a model's dialect. [`opening`] begins a call that must be made.
//! - [`history`] brings messages into the form that the template takes. [`fit`] arranges them otherwise where the
//!   template refuses them ([`arrange`]) or leaves a text out ([`told`]).
//! - [`text_model`] is the text side of a model: tokenizer, template and dialect in one. [`pooling`] says how its rows
//!   become one vector.
//! - [`constrain`] says what an answer has to fit.

pub mod arrange;
pub mod body;
mod borders;
pub mod channel;
pub mod constrain;
pub mod control;
pub mod detect;
pub mod fit;
#[cfg(test)]
mod fit_tests;
pub mod form;
pub mod head;
pub mod history;
pub mod json;
pub mod known;
pub mod lex;
mod marks;
pub mod number;
pub mod opening;
pub mod parser;
pub mod pointer;
pub mod pooling;
pub mod probe;
pub mod python;
mod sample;
pub mod sink;
pub mod sketch;
#[cfg(test)]
mod tests;
pub mod text_model;
pub mod told;
pub mod tools;
mod whole;

pub use borders::{Marked, TextEnd};
pub use history::History;
pub use parser::Parser;
pub use sink::{Event, IdSeed};
pub use tools::{Tool, Tools};

/// What stands before and after something. An empty `close`: nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Before it.
    pub open: String,
    /// After it; may be empty.
    pub close: String,
}

impl Pair {
    /// Both markers.
    pub fn new(open: &str, close: &str) -> Self {
        Self { open: open.to_string(), close: close.to_string() }
    }
}

/// The markup of one model's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Around reasoning.
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
    /// Around each call.
    pub call: Option<Pair>,
    /// Whether an answer that begins as a call is one, without any marker. Only names of tools that the
    /// request has count then.
    pub bare: bool,
    /// What a call looks like between its markers.
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
    /// Before the name.
    pub prefix: String,
    /// Between name and id, where the model writes an id.
    pub id: Option<String>,
    /// Between the name (or the id) and the arguments.
    pub separator: String,
    /// After the arguments, before the call's closing marker.
    pub suffix: String,
    /// The "name" that marks plain text.
    pub plain: Option<String>,
    /// The name is an id of the form `functions.NAME:NUMBER` (Kimi K2).
    pub name_is_id: bool,
}

/// Calls as tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaggedShape {
    /// Around the name. An empty `close`: the name ends where a line, an argument or the call does.
    pub name: Pair,
    /// After the last argument.
    pub end: String,
    /// Around an argument's key.
    pub key: Pair,
    /// Around its value.
    pub value: Pair,
    /// Tags have attributes behind name and key, up to this.
    pub tag_end: Option<String>,
    /// What the attributes behind a key say of its value.
    pub typed_by: TypedBy,
    /// Values stand on lines of their own: one line break on each side is not theirs.
    pub padded: bool,
}

/// An attribute that says of which type a value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TypedBy {
    /// There is none.
    #[default]
    Nothing,
    /// `string="true"` for text, `string="false"` for JSON.
    StringFlag,
    /// `type="number"`, and so on.
    TypeName,
}

/// What ids of calls look like.
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
            all.extend(channel::MARKERS);
        }
        all.retain(|marker| !marker.trim().is_empty());
        all
    }
}
