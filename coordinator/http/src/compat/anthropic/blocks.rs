//! The blocks of Anthropic's messages as messages in OpenAI's form. Blocks keep their order: one that cannot follow
//! another in the same message begins a new message.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::request::caching::{CACHE_CONTROL, Marking, mark, put_mark};
use crate::request::fields::report;
use crate::request::ignored_fields;

/// Adds one message, which becomes several here: results of tools have messages of their own.
pub fn add_message(
    path: &str,
    message: &Value,
    marking: &mut Marking,
    all: &mut Vec<Value>,
) -> Result<(), ApiError> {
    report(API, path, message, &["role", "content"], &[]);
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !matches!(role, "user" | "assistant" | "system") {
        let path = format!("{path}.role");
        return Err(ApiError::field(&path, format!("{path} must be \"user\" or \"assistant\"")));
    }
    let path = format!("{path}.content");
    let blocks = match message.get("content") {
        Some(Value::String(text)) => {
            all.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        _ => {
            let message = format!("{path} must be a text or a list of blocks");
            return Err(ApiError::field(path, message));
        }
    };
    let mut part = Part::default();
    for (i, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{i}]");
        add_block(&path, block, role, &mut part, marking, all)?;
    }
    part.end(role, all);
    Ok(())
}

fn add_block(
    path: &str,
    block: &Value,
    role: &str,
    part: &mut Part,
    marking: &mut Marking,
    all: &mut Vec<Value>,
) -> Result<(), ApiError> {
    let kind = block.get("type").and_then(Value::as_str);
    if role != "assistant" && matches!(kind, Some("thinking" | "tool_use")) {
        let path = format!("{path}.type");
        let message = format!("{path}: only an assistant's message has such a block");
        return Err(ApiError::field(path, message));
    }
    match kind {
        Some("text") => {
            let text = text_block(path, block)?;
            if !part.calls.is_empty() {
                part.end(role, all);
            }
            part.text.push(text);
            if marking.is_on(path, block)? {
                part.text.mark();
            }
        }
        Some("thinking") => {
            let thought = required(path, block, "thinking")?;
            report(API, path, block, &["type", "thinking"], ignored_fields::BLOCK);
            if !part.calls.is_empty() || !part.text.is_empty() {
                part.end(role, all);
            }
            part.thinking.push_str(thought);
        }
        // Only the server that encrypted it can read it.
        Some("redacted_thinking") => {
            report(API, path, block, &["type", "data"], ignored_fields::BLOCK)
        }
        Some("tool_use") => {
            part.calls.push(call(path, block)?);
            part.is_marked |= marking.is_on(path, block)?;
        }
        Some("tool_result") => {
            part.end(role, all);
            let mut result = result(path, block, marking)?;
            if marking.is_on(path, block)? {
                put_mark(&mut result);
            }
            all.push(result);
        }
        kind => {
            let path = format!("{path}.type");
            let kind = kind.unwrap_or("no text");
            let message = format!("{path} is {kind:?}: this server takes text and tools only");
            return Err(ApiError::unsupported(path, message));
        }
    }
    Ok(())
}

/// A call of a tool.
fn call(path: &str, block: &Value) -> Result<Value, ApiError> {
    let name = required(path, block, "name")?;
    let id = required(path, block, "id")?;
    report(
        API,
        path,
        block,
        &["type", "name", "id", "input", CACHE_CONTROL],
        ignored_fields::BLOCK,
    );
    let input = match block.get("input") {
        None | Some(Value::Null) => json!({}),
        Some(input @ Value::Object(_)) => input.clone(),
        Some(_) => {
            let path = format!("{path}.input");
            return Err(ApiError::field(&path, format!("{path} must be an object")));
        }
    };
    Ok(json!({
        "id": id, "type": "function", "function": { "name": name, "arguments": input },
    }))
}

/// A tool's result, as a message of the chat.
fn result(path: &str, block: &Value, marking: &mut Marking) -> Result<Value, ApiError> {
    let id = required(path, block, "tool_use_id")?;
    report(
        API,
        path,
        block,
        &["type", "tool_use_id", "content", CACHE_CONTROL],
        ignored_fields::BLOCK,
    );
    let content = lines_of(&format!("{path}.content"), block.get("content"), marking)?;
    let mut message = content.message("tool");
    message.insert("tool_call_id".to_string(), json!(id));
    Ok(Value::Object(message))
}

/// A text, or the texts of a list of text blocks, each on a line of its own; nothing is an empty text.
fn lines_of(
    path: &str,
    content: Option<&Value>,
    marking: &mut Marking,
) -> Result<MarkedText, ApiError> {
    let mut whole = MarkedText::default();
    let blocks = match content {
        None | Some(Value::Null) => return Ok(whole),
        Some(Value::String(text)) => {
            whole.push(text);
            return Ok(whole);
        }
        Some(Value::Array(blocks)) => blocks,
        Some(_) => {
            let message = format!("{path} must be a text or a list of blocks");
            return Err(ApiError::field(path, message));
        }
    };
    for (i, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let kind = block.get("type").and_then(Value::as_str);
        if kind != Some("text") {
            let path = format!("{path}.type");
            let kind = kind.unwrap_or("no text");
            let message = format!("{path} is {kind:?}: only text is read");
            return Err(ApiError::unsupported(path, message));
        }
        whole.push(if i == 0 { "" } else { "\n" });
        whole.push(text_block(&path, block)?);
        if marking.is_on(&path, block)? {
            whole.mark();
        }
    }
    Ok(whole)
}

/// The text of a block of that type.
pub fn text_block<'v>(path: &str, block: &'v Value) -> Result<&'v str, ApiError> {
    if block.get("type").is_some_and(|kind| kind != "text") {
        let path = format!("{path}.type");
        let message = format!("{path} must be \"text\": this server takes text only here");
        return Err(ApiError::unsupported(path, message));
    }
    report(API, path, block, &["type", "text", CACHE_CONTROL], ignored_fields::BLOCK);
    required(path, block, "text")
}

/// The interface's name in the log.
const API: &str = "/v1/messages";

/// A text that a block must have.
pub fn required<'v>(path: &str, block: &'v Value, name: &str) -> Result<&'v str, ApiError> {
    block.get(name).and_then(Value::as_str).ok_or_else(|| {
        let path = format!("{path}.{name}");
        ApiError::field(&path, format!("{path} must be a string"))
    })
}

/// A text with the places up to which it is to be kept.
#[derive(Debug, Default)]
pub struct MarkedText {
    text: String,
    marks: Vec<usize>,
}

impl MarkedText {
    /// Appends text.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Marks the end of the text so far.
    pub fn mark(&mut self) {
        self.marks.push(self.text.len());
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text as the content of a message. It is split into parts where places are marked.
    pub fn message(&self, role: &str) -> Map<String, Value> {
        let of = |content: Value| {
            let fields = [("role", json!(role)), ("content", content)];
            fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
        };
        if self.marks.is_empty() {
            return of(json!(self.text));
        }
        let mut begin = 0;
        let mut parts = Vec::new();
        for &end in &self.marks {
            let text = &self.text[begin..end];
            parts.push(json!({ "type": "text", "text": text, CACHE_CONTROL: mark() }));
            begin = end;
        }
        let rest = Some(&self.text[begin..]).filter(|rest| !rest.is_empty());
        parts.extend(rest.map(|text| json!({ "type": "text", "text": text })));
        of(json!(parts))
    }
}

/// The content of one chat message: reasoning, text and calls, in this order.
#[derive(Default)]
struct Part {
    thinking: String,
    text: MarkedText,
    calls: Vec<Value>,
    /// Whether its end is marked.
    is_marked: bool,
}

impl Part {
    fn end(&mut self, role: &str, all: &mut Vec<Value>) {
        let Self { thinking, text, calls, is_marked } = std::mem::take(self);
        if text.is_empty() && calls.is_empty() && thinking.is_empty() {
            return;
        }
        let mut message = text.message(role);
        if is_marked {
            message.insert(CACHE_CONTROL.to_string(), mark());
        }
        if !thinking.is_empty() {
            message.insert("reasoning_content".to_string(), json!(thinking));
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_string(), json!(calls));
        }
        all.push(Value::Object(message));
    }
}
