//! The items of a response's input as messages of a chat. Every text of an item reaches the chat in its order, or
//! the item is refused by its place.

use serde_json::{Map, Value, json};

use super::names::{API, in_space};
use crate::error::ApiError;
use crate::request::fields::report;
use crate::request::ignored_fields;

/// Fields that identify an item or give its status. They have no text for the model.
const LABELS: [&str; 5] = ["type", "id", "call_id", "status", "created_by"];

/// The end of an item, of which `read` was read beside its labels.
fn end(path: &str, item: &Value, read: &[&str]) {
    let all: Vec<&str> = read.iter().chain(&LABELS).copied().collect();
    report(API, path, item, &all, ignored_fields::RESPONSE_ITEM);
}

/// Adds items, which are called `name`, as messages.
pub fn add_items(name: &str, items: &[Value], messages: &mut Vec<Value>) -> Result<(), ApiError> {
    // Reasoning and calls of one turn are items of their own there, and one message here.
    let mut turn = Turn::default();
    for (i, item) in items.iter().enumerate() {
        add_item(&format!("{name}[{i}]"), item, &mut turn, messages)?;
    }
    turn.end(messages);
    Ok(())
}

fn add_item(
    path: &str,
    item: &Value,
    turn: &mut Turn,
    messages: &mut Vec<Value>,
) -> Result<(), ApiError> {
    if !item.is_object() {
        return Err(ApiError::field(path, format!("{path} must be an object")));
    }
    let kind = match item.get("type") {
        None | Some(Value::Null) => "message",
        Some(Value::String(kind)) => kind,
        Some(_) => {
            let path = format!("{path}.type");
            return Err(ApiError::field(&path, format!("{path} must be a string")));
        }
    };
    for name in ["id", "call_id", "status"] {
        if item.get(name).is_some_and(|label| !label.is_string() && !label.is_null()) {
            required(path, item, name)?;
        }
    }
    match kind {
        "message" => message(path, item, turn, messages),
        "reasoning" => reasoning(path, item, turn, messages),
        "function_call" => {
            let arguments = arguments(path, item)?;
            let name = called(path, item)?;
            turn.call(required(path, item, "call_id")?, &name, arguments);
            end(path, item, &["name", "namespace", "arguments"]);
            Ok(())
        }
        "custom_tool_call" => {
            let input = required(path, item, "input")?;
            let name = called(path, item)?;
            turn.call(required(path, item, "call_id")?, &name, json!({ "input": input }));
            end(path, item, &["name", "namespace", "input"]);
            Ok(())
        }
        "image_generation_call" => {
            let path = format!("{path}.type");
            let message = format!("{path} is {kind:?}: this server takes text only");
            Err(ApiError::unsupported(path, message))
        }
        "item_reference" => {
            let path = format!("{path}.type");
            let message = format!("{path}: this server keeps no items: send the item itself");
            Err(ApiError::unsupported(path, message))
        }
        _ if kind.ends_with("_output") => result(path, kind, item, turn, messages),
        _ => other_call(path, kind, item, turn, messages),
    }
}

fn message(
    path: &str,
    item: &Value,
    turn: &mut Turn,
    messages: &mut Vec<Value>,
) -> Result<(), ApiError> {
    let role = match item.get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role) => role,
        None => {
            let path = format!("{path}.role");
            return Err(ApiError::field(&path, format!("{path} is required")));
        }
    };
    let text = content_text(&format!("{path}.content"), item.get("content"))?;
    end(path, item, &["role", "content"]);
    if role == "assistant" && turn.text.is_none() && turn.calls.is_empty() {
        turn.text = Some(text);
        return Ok(());
    }
    turn.end(messages);
    match role {
        "assistant" => turn.text = Some(text),
        _ => messages.push(json!({ "role": role, "content": text })),
    }
    Ok(())
}

/// A reasoning item. Its summary comes before its content. Encrypted reasoning is left out, since only its writer can
/// read it.
fn reasoning(
    path: &str,
    item: &Value,
    turn: &mut Turn,
    messages: &mut Vec<Value>,
) -> Result<(), ApiError> {
    if turn.text.is_some() || !turn.calls.is_empty() {
        turn.end(messages);
    }
    end(path, item, &["summary", "content"]);
    for list in ["summary", "content"] {
        let path = format!("{path}.{list}");
        let parts = match item.get(list) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(parts)) => parts,
            Some(_) => return Err(ApiError::field(&path, format!("{path} must be a list"))),
        };
        for (i, part) in parts.iter().enumerate() {
            let path = format!("{path}[{i}]");
            let text = required(&path, part, "text")?;
            if part.get("type").is_some_and(|kind| !kind.is_string()) {
                let path = format!("{path}.type");
                return Err(ApiError::field(&path, format!("{path} must be a string")));
            }
            report(API, &path, part, &["type", "text"], ignored_fields::PART);
            if !turn.reasoning.is_empty() && i == 0 {
                turn.reasoning.push_str("\n\n");
            }
            turn.reasoning.push_str(text);
        }
    }
    Ok(())
}

/// The result of a call, as a message of the role `tool`.
fn result(
    path: &str,
    kind: &str,
    item: &Value,
    turn: &mut Turn,
    messages: &mut Vec<Value>,
) -> Result<(), ApiError> {
    // The result of a local shell has the call's id in another field.
    let field = if item.get("call_id").is_none_or(Value::is_null) && kind == LOCAL_SHELL {
        "id"
    } else {
        "call_id"
    };
    let id = required(path, item, field)?;
    let output = match item.get("output") {
        None | Some(Value::Null) => other_output(item),
        given => {
            end(path, item, &["output"]);
            output(&format!("{path}.output"), given)?
        }
    };
    turn.end(messages);
    messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
    Ok(())
}

/// The arguments of a call.
fn arguments(path: &str, item: &Value) -> Result<Value, ApiError> {
    match item.get("arguments") {
        None => Ok(Value::Null),
        Some(given @ (Value::String(_) | Value::Object(_) | Value::Null)) => Ok(given.clone()),
        Some(_) => {
            let path = format!("{path}.arguments");
            Err(ApiError::field(&path, format!("{path} must be JSON text")))
        }
    }
}

/// The name by which the chat knows a call's tool: with its namespace.
fn called(path: &str, item: &Value) -> Result<String, ApiError> {
    let name = required(path, item, "name")?;
    Ok(match item.get("namespace") {
        None | Some(Value::Null) => name.to_string(),
        Some(_) => in_space(required(path, item, "namespace")?, name),
    })
}

/// The output of a local shell.
const LOCAL_SHELL: &str = "local_shell_call_output";

/// An item's fields other than its labels, without nulls.
fn said(item: &Value) -> Map<String, Value> {
    let says =
        |(name, value): &(&String, &Value)| !LABELS.contains(&name.as_str()) && !value.is_null();
    let all = item.as_object().into_iter().flatten().filter(says);
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The text of a result that has no `output`: all of the item's other fields, or else its status.
fn other_output(item: &Value) -> String {
    let said = said(item);
    match item.get("status").and_then(Value::as_str).filter(|_| said.is_empty()) {
        Some(status) => status.to_string(),
        None if said.is_empty() => String::new(),
        None => Value::Object(said).to_string(),
    }
}

/// A call of a tool that is not run here. Its item becomes an ordinary call, and its outcome the call's result.
fn other_call(
    path: &str,
    kind: &str,
    item: &Value,
    turn: &mut Turn,
    messages: &mut Vec<Value>,
) -> Result<(), ApiError> {
    let said = said(item);
    if said.is_empty() {
        return Ok(());
    }
    let Some(name) = kind.strip_suffix("_call") else {
        let path = format!("{path}.type");
        let message = format!("{path} is {kind:?}: this server does not know such items");
        return Err(ApiError::unsupported(path, message));
    };
    let id = ["call_id", "id"].iter().find_map(|field| item.get(field)?.as_str());
    let id = id.map_or_else(|| format!("call_{path}"), str::to_string);
    if kind == "mcp_call" {
        return mcp_call(path, &id, item, turn, messages);
    }
    turn.call(&id, name, Value::Object(said));
    Ok(())
}

/// A call that another server ran: with its output in the same item.
fn mcp_call(
    path: &str,
    id: &str,
    item: &Value,
    turn: &mut Turn,
    messages: &mut Vec<Value>,
) -> Result<(), ApiError> {
    let label = match item.get("server_label") {
        None | Some(Value::Null) => "",
        Some(_) => required(path, item, "server_label")?,
    };
    let name = required(path, item, "name")?;
    let name = if label.is_empty() { name.to_string() } else { format!("{label}.{name}") };
    turn.call(id, &name, arguments(path, item)?);
    end(path, item, &["server_label", "name", "arguments", "output", "error"]);
    for field in ["output", "error"] {
        if let Some(given) = item.get(field).filter(|given| !given.is_null()) {
            let text = output(&format!("{path}.{field}"), Some(given))?;
            turn.end(messages);
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
        }
    }
    Ok(())
}

/// A tool's output as text: text parts are joined, and a value of another shape is written as JSON.
fn output(path: &str, output: Option<&Value>) -> Result<String, ApiError> {
    let is_part = |part: &Value| {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        kind.starts_with("input_") || kind == "output_text" || kind == "text"
    };
    match output {
        Some(Value::Array(parts)) if !parts.iter().any(is_part) && !parts.is_empty() => {
            Ok(Value::Array(parts.clone()).to_string())
        }
        Some(Value::Object(map)) if map.contains_key("type") => {
            let path = format!("{path}.type");
            let message = format!("{path}: this server takes texts and values without a type");
            Err(ApiError::unsupported(path, message))
        }
        Some(other @ Value::Object(_)) => Ok(other.to_string()),
        other => content_text(path, other),
    }
}

/// An assistant's reasoning, text and calls, until another role's item ends the turn.
#[derive(Default)]
struct Turn {
    reasoning: String,
    text: Option<String>,
    calls: Vec<Value>,
}

impl Turn {
    fn call(&mut self, id: &str, name: &str, arguments: Value) {
        self.calls.push(json!({
            "id": id, "type": "function", "function": { "name": name, "arguments": arguments },
        }));
    }

    fn end(&mut self, messages: &mut Vec<Value>) {
        let Self { reasoning, text, calls } = std::mem::take(self);
        if text.is_none() && calls.is_empty() && reasoning.is_empty() {
            return;
        }
        let mut message = Map::new();
        message.insert("role".to_string(), json!("assistant"));
        message.insert("content".to_string(), json!(text));
        if !reasoning.is_empty() {
            message.insert("reasoning_content".to_string(), json!(reasoning));
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_string(), json!(calls));
        }
        messages.push(Value::Object(message));
    }
}

/// The text of a content, which is called `path`.
pub fn content_text(path: &str, content: Option<&Value>) -> Result<String, ApiError> {
    let parts = match content {
        Some(Value::String(text)) => return Ok(text.clone()),
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::Array(parts)) => parts,
        Some(_) => {
            let message = format!("{path} must be a text or a list of parts");
            return Err(ApiError::field(path, message));
        }
    };
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match part.get("type").and_then(Value::as_str) {
            Some("input_text" | "output_text" | "text" | "summary_text") => {
                text.push_str(required(&path, part, "text")?);
                report(API, &path, part, &["type", "text"], ignored_fields::PART);
            }
            Some("refusal") => {
                text.push_str(required(&path, part, "refusal")?);
                report(API, &path, part, &["type", "refusal"], ignored_fields::PART);
            }
            kind => {
                let path = format!("{path}.type");
                let kind = kind.unwrap_or("no text");
                let message = format!("{path} is {kind:?}: this server takes text only");
                return Err(ApiError::unsupported(path, message));
            }
        }
    }
    Ok(text)
}

/// A text that an object must have.
pub fn required<'v>(path: &str, object: &'v Value, name: &str) -> Result<&'v str, ApiError> {
    object.get(name).and_then(Value::as_str).ok_or_else(|| {
        let path = format!("{path}.{name}");
        ApiError::field(&path, format!("{path} must be a string"))
    })
}
