//! The text that a forced tool call begins with. It is put at the end of the prompt, so that the model can
//! only go on with the call. It is what the template itself writes up to the name or up to the arguments.

use serde_json::json;

use super::history;
use super::probe::{FIRST, FIRST_ID, Facts, KEY};
use crate::{Dialect, Shape};

/// The beginning of a call of `name`, or of any tool. `n_before`: calls in the conversation so far, which some
/// formats count. `None`: such a text cannot begin a call of this format.
pub fn opening(
    dialect: &Dialect,
    facts: &Facts,
    name: Option<&str>,
    n_before: usize,
) -> Option<String> {
    if dialect.channels {
        let start = "<|channel|>commentary to=functions.";
        return Some(match name {
            Some(name) => format!("{start}{name} <|constrain|>json<|message|>"),
            None => start.to_string(),
        });
    }
    let calls = dialect.calls.as_ref()?;
    // Where the template writes no calls, history::written does.
    let written;
    let one = match facts.one.as_deref().filter(|_| facts.writes_calls) {
        Some(one) => one,
        None => {
            written =
                history::written(dialect, &[json!({ "name": FIRST, "arguments": { KEY: 1 } })]);
            &written
        }
    };
    if let Shape::Named(shape) = &calls.shape
        && shape.name_is_id
    {
        // Templates write the id that they get, or make one themselves.
        let at = one.find(FIRST_ID).or_else(|| one.find("functions."))?;
        let before = &one[..at];
        return Some(match name {
            Some(name) => format!("{before}functions.{name}:{n_before}{}", shape.separator),
            None => format!("{before}functions."),
        });
    }
    let name_at = one.find(FIRST)?;
    let behind = &one[name_at + FIRST.len()..];
    // Arguments that stand before the name cannot be begun without it.
    let key_at = behind.find(KEY)?;
    let before = &one[..name_at];
    let Some(name) = name else { return Some(before.to_string()) };
    let to_key = &behind[..key_at];
    let separator = match &calls.shape {
        Shape::Json(_) | Shape::Named(_) => &to_key[..to_key.rfind('{')?],
        Shape::Tagged(shape) => &to_key[..to_key.rfind(&shape.key.open)?],
        Shape::Python => "(",
    };
    // The model gives the id, where it gives one.
    let separator = separator.split(FIRST_ID).next().unwrap_or(separator);
    Some(format!("{before}{name}{separator}"))
}

/// The text that ends the reasoning which a prompt has opened, so that a call can follow.
pub fn end_of_reasoning(dialect: &Dialect, facts: &Facts) -> String {
    match (&facts.reasoning, &dialect.reasoning) {
        (Some([_, between, _]), _) if !between.trim().is_empty() => between.clone(),
        (_, Some(pair)) => format!("\n{}\n\n", pair.close),
        _ => String::new(),
    }
}
