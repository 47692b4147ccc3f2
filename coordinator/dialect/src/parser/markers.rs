//! The markers that a parser looks for in running text, and what they mean.

use std::sync::Arc;

use super::channel;
use super::control_tokens::control;
use super::events::IdSeed;
use crate::values::tools::Tools;
use crate::{Calls, Dialect, Shape};

/// Facts of a request that a parser needs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The tools; none: calls are not looked for.
    pub tools: Arc<Tools>,
    /// Whether everything after the first call is ignored.
    pub single: bool,
    /// Control tokens that only the parser sees, as [`super::control_tokens`] names them.
    pub hidden: Arc<[String]>,
    /// The seed of ids that the model does not give.
    pub seed: IdSeed,
}

/// The meaning of a marker in running text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A section of calls begins.
    Open,
    /// A call's own beginning.
    Head,
    /// Reasoning begins.
    ThinkOpen,
    /// Reasoning ends.
    ThinkClose,
    /// The marker is dropped.
    Silent,
}

/// Characters that stand between calls.
pub fn is_between(c: char) -> bool {
    c.is_whitespace() || matches!(c, '[' | ']' | ',' | ';' | '}')
}

/// The marker that is part of a call's head.
pub fn head_marker(shape: &Shape) -> Option<&str> {
    let marker = match shape {
        Shape::Tagged(shape) => shape.name.open.as_str(),
        Shape::Named(shape) => shape.prefix.as_str(),
        Shape::Json(_) | Shape::Python => "",
    };
    (!marker.is_empty()).then_some(marker)
}

/// The form of calls, if they are looked for: where there are tools, or where text is written as a call is.
pub fn calls_to_read<'a>(dialect: &'a Dialect, options: &Options) -> Option<&'a Calls> {
    let has_plain = |shape: &Shape| matches!(shape, Shape::Named(named) if named.plain.is_some());
    let calls = dialect.calls.as_ref()?;
    (!options.tools.is_empty() || has_plain(&calls.shape)).then_some(calls)
}

/// All markers that are looked for in running text.
pub fn marks(dialect: &Dialect, options: &Options) -> Vec<(Role, String)> {
    let mut marks: Vec<(Role, String)> = Vec::new();
    if let Some(calls) = calls_to_read(dialect, options) {
        let head = head_marker(&calls.shape);
        for marker in calls.openers() {
            let is_head = head == Some(marker);
            marks.push((if is_head { Role::Head } else { Role::Open }, marker.to_string()));
        }
    }
    if let Some(pair) = &dialect.reasoning {
        marks.push((Role::ThinkOpen, pair.open.clone()));
        marks.push((Role::ThinkClose, pair.close.clone()));
    }
    for text in dialect.silent.iter().chain(options.hidden.iter()) {
        if !marks.iter().any(|(_, mark)| mark == text) {
            marks.push((Role::Silent, text.clone()));
        }
    }
    marks
}

/// The markers of channels. With the options for control tokens, only control tokens are markers.
pub fn channel_marks(options: &Options) -> Arc<[String]> {
    let mark = |marker: &str| {
        let name = control(marker);
        if options.hidden.contains(&name) { name } else { marker.to_string() }
    };
    channel::MARKERS.iter().map(|marker| mark(marker)).collect()
}
