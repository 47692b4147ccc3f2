//! A sketch of a conversation: the same turns in short, for finding out which arrangement a template takes without
//! rendering long texts again and again.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::arrange::text_of;

/// Bytes at either end that are left of a longer text.
const KEPT_BYTES: usize = 32;

/// Messages before which nothing is left out.
const KEPT_MESSAGES: usize = 16;

/// The properties of a message that matter to its neighbours: its role, its number of calls, and whether it has text.
type Kind<'m> = (&'m str, usize, bool);

fn kind(message: &Value) -> Kind<'_> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let calls = message.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len);
    (role, calls.min(2), text_of(message).trim().is_empty())
}

/// The sketch of some messages: long texts keep their ends, and turns that follow each other as others before did are
/// left out.
pub fn sketch(messages: &[Value]) -> Vec<Value> {
    let kinds: Vec<Kind<'_>> = messages.iter().map(kind).collect();
    let (mut kept, mut seen) = (Vec::new(), HashSet::new());
    let mut at = 0;
    while at < messages.len() {
        if at >= KEPT_MESSAGES && kinds[at].0 == "user" {
            at = jump(&kinds, at, &seen);
        }
        if at > 0 {
            seen.insert((kinds[at - 1], kinds[at]));
        }
        kept.push(shortened(&messages[at]));
        at += 1;
    }
    kept
}

/// The last user's message that stands behind a message as `from` does, with nothing new on the way.
fn jump(kinds: &[Kind<'_>], from: usize, seen: &HashSet<(Kind<'_>, Kind<'_>)>) -> usize {
    let mut last = from;
    for at in from..kinds.len() {
        if !seen.contains(&(kinds[at - 1], kinds[at])) {
            break;
        }
        if kinds[at] == kinds[from] && kinds[at - 1] == kinds[from - 1] {
            last = at;
        }
    }
    last
}

/// A value with short texts.
fn shortened(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::from(ends(text)),
        Value::Array(list) => list.iter().map(shortened).collect(),
        Value::Object(map) => {
            let field = |(name, value): (&String, &Value)| {
                let value = match value.as_str().filter(|_| name == "arguments") {
                    // JSON within a text stays JSON.
                    Some(text) => match serde_json::from_str::<Map<String, Value>>(text) {
                        Ok(object) => Value::from(shortened(&Value::Object(object)).to_string()),
                        Err(_) => Value::from(ends(text)),
                    },
                    None => shortened(value),
                };
                (name.clone(), value)
            };
            Value::Object(map.iter().map(field).collect())
        }
        other => other.clone(),
    }
}

/// The two ends of a long text.
fn ends(text: &str) -> String {
    if text.len() <= 2 * KEPT_BYTES {
        return text.to_string();
    }
    let is_border = |at: &usize| text.is_char_boundary(*at);
    let head = (0..=KEPT_BYTES).rev().find(is_border).unwrap_or(0);
    let tail = (text.len() - KEPT_BYTES..text.len()).find(is_border).unwrap_or(text.len());
    format!("{}{}", &text[..head], &text[tail..])
}

/// Bytes of the texts in a message, and of what is around them.
pub fn bytes_of(value: &Value) -> usize {
    /// Counted for each value.
    const VALUE: usize = 8;
    VALUE
        + match value {
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(bytes_of).sum(),
            Value::Object(map) => {
                map.iter().map(|(name, value)| name.len() + bytes_of(value)).sum()
            }
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_conversation_is_sketched_by_its_turns() {
        let mut messages = vec![json!({ "role": "system", "content": "s" })];
        for i in 0..4000 {
            messages
                .push(json!({ "role": "user", "content": format!("{i} {}", "é".repeat(1000)) }));
            messages.push(json!({ "role": "assistant", "content": "a" }));
        }
        messages.push(json!({ "role": "user", "content": "last" }));
        let all = sketch(&messages);
        assert!(
            all.len() <= 2 * KEPT_MESSAGES && all.len() % 2 == messages.len() % 2,
            "{}",
            all.len()
        );
        assert_eq!((&all[0], all.last()), (&messages[0], messages.last()));
        assert!(all.iter().map(bytes_of).sum::<usize>() < 4096);
        // A message in the middle is not lost.
        messages.insert(5001, json!({ "role": "system", "content": "in the middle" }));
        let all = sketch(&messages);
        assert!(all.iter().any(|message| text_of(message) == "in the middle"));
        assert!(all.len() < 80, "{}", all.len());
    }

    #[test]
    fn short_conversations_stay_as_they_are_and_arguments_stay_json() {
        let messages = [
            json!({ "role": "user", "content": "x".repeat(64) }),
            json!({ "role": "assistant", "content": null, "tool_calls": [
                { "function": { "name": "f", "arguments": json!({ "a": "y".repeat(999), "n": 1 }).to_string() } }] }),
        ];
        let all = sketch(&messages);
        assert_eq!(all[0], messages[0]);
        let arguments = all[1]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert_eq!(arguments, json!({ "a": "y".repeat(64), "n": 1 }));
    }
}
