//! Brings the messages and tools of a request into the form that the model's template takes.
//!
//! Templates differ in small things that no client can know: whether arguments are an object or a text,
//! whether content beside calls is null or empty, what ids look like. Where a template knows nothing of
//! tools, they are described in the system message, and calls are written into the text.

use std::collections::HashMap;

use brigade_text::ChatTemplate;
use serde_json::{Map, Value, json};

use super::known;
use super::probe::{FIRST, Facts, KEY, VALUE};
use crate::parser::call_head;
use crate::parser::events::nine_of;
use crate::{Calls, Dialect, Ids, JsonShape, Shape};

/// Rewrites conversations for one template.
#[derive(Clone, Debug, Default)]
pub struct History {
    dialect: Dialect,
    facts: Facts,
    nine: bool,
    /// The template writes a call's id, which has the name in it, and not the name.
    named_ids: bool,
    /// The template knows the role `developer`.
    has_developer: bool,
    /// Reasoning beside text and calls is an error for the template (gpt-oss).
    one_thought: bool,
}

/// A conversation, ready for the template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prepared {
    /// Messages in the template's form.
    pub messages: Vec<Value>,
    /// The tools, for templates that know what to do with them.
    pub tools: Vec<Value>,
    /// Calls in the messages.
    pub n_calls: usize,
}

impl History {
    /// A history for the template of which `dialect` and `facts` were found.
    pub fn new(template: &ChatTemplate, dialect: &Dialect, facts: &Facts) -> Self {
        Self {
            dialect: dialect.clone(),
            facts: facts.clone(),
            nine: dialect.calls.as_ref().is_some_and(|calls| calls.ids == Ids::Nine),
            named_ids: dialect.calls.as_ref().is_some_and(
                |calls| matches!(&calls.shape, Shape::Named(shape) if shape.name_is_id),
            ),
            has_developer: template.source().contains("developer"),
            one_thought: dialect.channels,
        }
    }

    /// Rewrites messages for the template. `in_words`: calls and results are written as text, also where the template
    /// has a form for them.
    pub fn prepare(&self, messages: &[Value], tools: &[Value], in_words: bool) -> Prepared {
        let writes_calls = self.facts.writes_calls && !in_words;
        let mut prepared = Prepared::default();
        let mut names: HashMap<String, Called> = HashMap::new();
        for message in messages {
            let Value::Object(message) = message else { continue };
            let mut message = message.clone();
            match message.get("role").and_then(Value::as_str) {
                Some("assistant") => {
                    let null = self.facts.null_content && writes_calls;
                    self.assistant(&mut message, &mut names, &mut prepared.n_calls, null);
                }
                Some("tool") => self.tool(&mut message, &names),
                Some("developer") if !self.has_developer => {
                    message.insert("role".to_string(), json!("system"));
                }
                _ => {}
            }
            self.push(message, &mut prepared.messages, writes_calls);
        }
        if self.facts.declares_tools {
            prepared.tools = tools.to_vec();
        } else if !tools.is_empty() {
            declare(tools, &example(&self.dialect, &self.facts), &mut prepared.messages);
        }
        prepared
    }

    /// Adds a message; as text, if the template has no words for it.
    fn push(&self, mut message: Map<String, Value>, messages: &mut Vec<Value>, writes_calls: bool) {
        if writes_calls {
            return messages.push(Value::Object(message));
        }
        let text = message.get("content").and_then(Value::as_str).unwrap_or_default();
        if message.get("role").and_then(Value::as_str) == Some("tool") {
            let text = format!("{}\n{text}\n{}", RESPONSE.0, RESPONSE.1);
            // Templates want users and assistants to take turns.
            if let Some(Value::Object(last)) = messages.last_mut()
                && last.get("role").and_then(Value::as_str) == Some("user")
                && let Some(before) = last.get("content").and_then(Value::as_str)
            {
                let joined = format!("{before}\n{text}");
                last.insert("content".to_string(), Value::from(joined));
                return;
            }
            return messages.push(json!({ "role": "user", "content": text }));
        }
        if let Some(Value::Array(calls)) = message.shift_remove("tool_calls")
            && !calls.is_empty()
        {
            let mut parts: Vec<String> = Vec::new();
            let text = message.get("content").and_then(Value::as_str).unwrap_or_default();
            parts.extend((!text.is_empty()).then(|| text.to_string()));
            let functions: Vec<Value> = calls.iter().map(|call| call["function"].clone()).collect();
            parts.push(written(&self.dialect, &functions));
            message.insert("content".to_string(), Value::from(parts.join("\n")));
        }
        messages.push(Value::Object(message));
    }

    fn assistant(
        &self,
        message: &mut Map<String, Value>,
        names: &mut HashMap<String, Called>,
        n_calls: &mut usize,
        null_content: bool,
    ) {
        let mut calls = match message.shift_remove("tool_calls") {
            Some(Value::Array(calls)) => calls,
            _ => Vec::new(),
        };
        for call in &mut calls {
            self.call(call, names, *n_calls);
            *n_calls += 1;
        }
        let has_calls = !calls.is_empty();
        let is_empty = message
            .get("content")
            .is_none_or(|content| content.is_null() || content == &Value::from(""));
        if is_empty {
            let null = has_calls && null_content;
            let content = if null { Value::Null } else { Value::from("") };
            message.insert("content".to_string(), content);
        }
        if has_calls {
            message.insert("tool_calls".to_string(), Value::Array(calls));
        }
        let thought = message.shift_remove("reasoning_content").filter(|t| !t.is_null());
        // As other servers call it.
        let mut others = ["reasoning", "thinking"].into_iter().filter_map(|name| message.get(name));
        let thought = thought.or_else(|| others.find(|thought| thought.is_string()).cloned());
        if let Some(thought) = thought.filter(Value::is_string) {
            if !(self.one_thought && has_calls && !is_empty) {
                message.insert("thinking".to_string(), thought.clone());
            }
            message.insert("reasoning_content".to_string(), thought);
        }
    }

    /// Brings call number `n` of the conversation into the template's form.
    fn call(&self, call: &mut Value, names: &mut HashMap<String, Called>, n: usize) {
        let Some(call) = call.as_object_mut() else { return };
        call.entry("type").or_insert_with(|| json!("function"));
        let name = call.get("function").and_then(|f| f.get("name")).and_then(Value::as_str);
        let id = call.get("id").and_then(Value::as_str);
        let fitting = match (name, id) {
            (_, Some(id)) if self.nine && !is_nine(id) => Some(nine_of(id)),
            (Some(name), _) if self.named_ids && !id.is_some_and(|id| has_name(id, name)) => {
                Some(format!("functions.{name}:{n}"))
            }
            _ => None,
        };
        if let (Some(name), Some(id)) = (name, id) {
            let called = Called { name: name.to_string(), id: fitting.clone() };
            names.insert(id.to_string(), called);
        }
        if let Some(id) = fitting {
            call.insert("id".to_string(), Value::from(id));
        }
        let Some(Value::Object(function)) = call.get_mut("function") else { return };
        let arguments = function.shift_remove("arguments").unwrap_or(Value::Null);
        let arguments = match arguments {
            Value::Null if self.facts.arguments_as_text => Value::from("{}"),
            Value::Null => Value::Object(Map::new()),
            Value::String(text) if !self.facts.arguments_as_text => {
                let text = if text.trim().is_empty() { "{}".to_string() } else { text };
                match serde_json::from_str(&text) {
                    Ok(object @ Value::Object(_)) => object,
                    // Invalid arguments of an earlier answer stay as they were.
                    _ => Value::from(text),
                }
            }
            object @ Value::Object(_) if self.facts.arguments_as_text => {
                Value::from(object.to_string())
            }
            other => other,
        };
        function.insert("arguments".to_string(), arguments);
    }

    fn tool(&self, message: &mut Map<String, Value>, names: &HashMap<String, Called>) {
        if message.get("content").is_none_or(Value::is_null) {
            message.insert("content".to_string(), Value::from(""));
        }
        let Some(id) = message.get("tool_call_id").and_then(Value::as_str) else { return };
        let called = names.get(id);
        let name = called.map(|called| Value::from(called.name.as_str()));
        let nine = (self.nine && !is_nine(id)).then(|| nine_of(id));
        if let Some(id) = called.and_then(|called| called.id.clone()).or(nine) {
            message.insert("tool_call_id".to_string(), Value::from(id));
        }
        if let Some(name) = name {
            message.entry("name").or_insert(name);
        }
    }
}

/// A call that a result may name.
struct Called {
    name: String,
    /// The call's id for the template, where it differs from the client's.
    id: Option<String>,
}

/// Around results, where the template has no form for them.
const RESPONSE: (&str, &str) = ("<tool_response>", "</tool_response>");

/// Whether an id has the name of its call in it, as Kimi K2's do.
fn has_name(id: &str, name: &str) -> bool {
    matches!(call_head::kimi_name(id), (known, Some(_)) if known == name)
}

fn is_nine(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Calls as text, in the form that the model is told to write or was trained to.
pub fn written(dialect: &Dialect, functions: &[Value]) -> String {
    let (calls, shape) = match &dialect.calls {
        Some(calls @ Calls { shape: Shape::Json(shape), .. }) => (calls.clone(), shape.clone()),
        _ => (known::hermes(), JsonShape::default()),
    };
    let key = |key: &str, default: &str| if key.is_empty() { default } else { key }.to_string();
    let objects = functions.iter().map(|function| {
        let fields = [
            (key(&shape.name, "name"), function["name"].clone()),
            (key(&shape.arguments, "arguments"), function["arguments"].clone()),
        ];
        let object = Value::Object(fields.into_iter().collect());
        match &calls.call {
            Some(pair) => format!("{}\n{object}\n{}", pair.open, pair.close),
            None => object.to_string(),
        }
    });
    let text = objects.collect::<Vec<_>>().join(if shape.list { ", " } else { "\n" });
    let text = if shape.list { format!("[{text}]") } else { text };
    match &calls.section {
        Some(pair) => format!("{}{text}{}", pair.open, pair.close),
        None => text,
    }
}

/// A call as the model is to write it, with words in the places of name and arguments.
fn example(dialect: &Dialect, facts: &Facts) -> String {
    match facts.one.as_deref().filter(|_| facts.writes_calls) {
        Some(one) => one.replace(FIRST, "NAME").replace(KEY, "KEY").replace(VALUE, "VALUE"),
        None => written(dialect, &[json!({ "name": "NAME", "arguments": { "KEY": "VALUE" } })]),
    }
}

/// Describes the tools in the system message.
fn declare(tools: &[Value], example: &str, messages: &mut Vec<Value>) {
    let lines: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
    let text = format!(
        "# Tools\n\nYou can call functions. Each line between <tools> and </tools> describes one as \
         JSON:\n<tools>\n{}\n</tools>\n\nTo call a function, write its name and its arguments in this \
         form, and nothing after it:\n{}",
        lines.join("\n"),
        example.trim(),
    );
    match messages.first_mut() {
        Some(Value::Object(first)) if first.get("role") == Some(&json!("system")) => {
            let before = first.get("content").and_then(Value::as_str).unwrap_or_default();
            let joined = if before.is_empty() { text } else { format!("{before}\n\n{text}") };
            first.insert("content".to_string(), Value::from(joined));
        }
        _ => messages.insert(0, json!({ "role": "system", "content": text })),
    }
}
