//! Anthropic's request as a chat in OpenAI's form. What a program marks for caches says nothing here; what it
//! counts anew in every turn is left out, so that the next turn begins with the same tokens.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::blocks::{add_message, required};
use crate::error::ApiError;
use crate::fields::{Fields, MAX_TEMPLATE_VALUES, report, tree};
use crate::unread;

/// Begins a line that Claude Code puts at the head of its system prompt, and that changes every turn.
const BILLING: &str = "x-anthropic-billing-header:";

/// Fields that mean the same there and here.
const SAME: &[&str] = &[
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stream",
    "thinking",
    "seed",
    "lora",
    "checkpoint",
    "speculate",
];

/// Fields that would change an answer, and have no effect here.
const REFUSED: &[(&str, &str)] = &[
    ("container", "nothing is run here"),
    ("mcp_servers", "tools are run by whoever asks: send them as tools"),
];

/// Translates a body.
pub fn translate(body: &[u8]) -> Result<Cow<'static, [u8]>, ApiError> {
    let mut left = MAX_TEMPLATE_VALUES;
    let mut fields = Fields::parse(body)?;
    let mut chat = Map::new();
    let mut messages = Vec::new();
    if let Some(system) = fields.raw("system") {
        let system = system_text(&tree("system", system, &mut left)?)?;
        if !system.is_empty() {
            messages.push(json!({ "role": "system", "content": system }));
        }
    }
    let raw = fields.require_raw("messages")?;
    let list = tree("messages", raw, &mut left)?;
    let Value::Array(list) = list else {
        return Err(ApiError::field("messages", "messages must be a list"));
    };
    for (i, message) in list.iter().enumerate() {
        add_message(&format!("messages[{i}]"), message, &mut messages)?;
    }
    chat.insert("messages".to_string(), Value::Array(messages));
    if let Some(tools) = fields.raw("tools") {
        let Value::Array(tools) = tree("tools", tools, &mut left)? else {
            return Err(ApiError::field("tools", "tools must be a list"));
        };
        if let Some(at) = tools.iter().position(|tool| !tool.is_object()) {
            let path = format!("tools[{at}]");
            return Err(ApiError::field(&path, format!("{path} must be an object")));
        }
        let tools: Vec<Value> = tools.iter().filter_map(tool).collect();
        if !tools.is_empty() {
            chat.insert("tools".to_string(), Value::Array(tools));
        }
    }
    if let Some(choice) = fields.raw("tool_choice") {
        add_choice(&tree("tool_choice", choice, &mut left)?, &mut chat)?;
    }
    if let Some(stops) = fields.raw("stop_sequences") {
        chat.insert("stop".to_string(), tree("stop_sequences", stops, &mut left)?);
    }
    let config = fields.raw("output_config").map(|raw| tree("output_config", raw, &mut left));
    let config = match config.transpose()? {
        None => Map::new(),
        Some(Value::Object(config)) => config,
        Some(_) => return Err(ApiError::field("output_config", "output_config must be an object")),
    };
    let left_over =
        config.keys().map(String::as_str).filter(|n| !matches!(*n, "format" | "effort"));
    report("/v1/messages", "output_config", left_over, unread::OUTPUT_CONFIG);
    let format = fields.raw("output_format").map(|raw| tree("output_format", raw, &mut left));
    let format = format.transpose()?.or_else(|| config.get("format").cloned());
    if let Some(format) = format {
        chat.insert("response_format".to_string(), format);
    }
    if let Some(effort) = config.get("effort") {
        chat.insert("reasoning_effort".to_string(), effort.clone());
    }
    for name in SAME {
        if let Some(value) = fields.raw(name) {
            chat.insert((*name).to_string(), tree(name, value, &mut left)?);
        }
    }
    for (name, why) in REFUSED {
        fields.refuse(name, why)?;
    }
    fields.end("/v1/messages", &[unread::COMMON, unread::MESSAGES]);
    let text = Value::Object(chat).to_string();
    Ok(Cow::Owned(text.into_bytes()))
}

/// The system prompt as one text.
fn system_text(system: &Value) -> Result<String, ApiError> {
    let blocks = match system {
        Value::String(text) => return Ok(without_billing(text).to_string()),
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::field("system", "system must be a text or a list of blocks")),
    };
    let mut texts = Vec::new();
    for (i, block) in blocks.iter().enumerate() {
        let text = required(&format!("system[{i}]"), block, "text")?;
        texts.push(without_billing(text));
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join("\n"))
}

fn without_billing(text: &str) -> &str {
    match text.starts_with(BILLING) {
        true => text.split_once('\n').map_or("", |(_, rest)| rest),
        false => text,
    }
}

/// A function; tools that Anthropic's own servers run have no schema, and nobody here to run them.
fn tool(tool: &Value) -> Option<Value> {
    let schema = tool.get("input_schema")?;
    let mut function = json!({ "name": tool["name"], "parameters": schema });
    for field in ["description", "strict"] {
        if let Some(value) = tool.get(field) {
            function[field] = value.clone();
        }
    }
    Some(json!({ "type": "function", "function": function }))
}

fn add_choice(choice: &Value, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let word = match choice["type"].as_str() {
        Some("any") => json!("required"),
        Some("none") => json!("none"),
        Some("tool") => json!({ "type": "function", "function": { "name": choice["name"] } }),
        Some("auto") => json!("auto"),
        _ => {
            let message = "tool_choice.type must be \"auto\", \"any\", \"none\" or \"tool\"";
            return Err(ApiError::field("tool_choice.type", message));
        }
    };
    if chat.contains_key("tools") {
        chat.insert("tool_choice".to_string(), word);
    }
    match &choice["disable_parallel_tool_use"] {
        Value::Null => {}
        Value::Bool(single) => {
            chat.insert("parallel_tool_calls".to_string(), json!(!single));
        }
        _ => {
            let path = "tool_choice.disable_parallel_tool_use";
            return Err(ApiError::field(path, format!("{path} must be true or false")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(body: Value) -> Value {
        serde_json::from_slice(&translate(body.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn blocks_become_messages() {
        let chat = translated(json!({
            "model": "m", "max_tokens": 5, "stop_sequences": ["x"],
            "system": [{ "type": "text", "text": "x-anthropic-billing-header: cch=12;" },
                       { "type": "text", "text": "Be kind.", "cache_control": { "type": "ephemeral" } }],
            "messages": [
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "s" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "t1", "name": "look", "input": { "at": 1 } }] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1",
                      "content": [{ "type": "text", "text": "seen" }] },
                    { "type": "text", "text": "and?" }] },
            ],
            "tools": [{ "name": "look", "description": "d", "input_schema": { "type": "object" } },
                      { "type": "web_search_20250305", "name": "web_search" }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        }));
        assert_eq!(
            chat["messages"],
            json!([
                { "role": "system", "content": "Be kind." },
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
                    { "id": "t1", "type": "function",
                      "function": { "name": "look", "arguments": "{\"at\":1}" } }] },
                { "role": "tool", "tool_call_id": "t1", "content": "seen" },
                { "role": "user", "content": "and?" },
            ])
        );
        assert_eq!(chat["tools"].as_array().unwrap().len(), 1);
        assert_eq!(chat["tool_choice"], "required");
        assert_eq!(chat["parallel_tool_calls"], false);
        assert_eq!((&chat["stop"], &chat["max_tokens"]), (&json!(["x"]), &json!(5)));
    }

    #[test]
    fn the_billing_line_is_left_out_wherever_the_text_goes_on() {
        let system =
            |text: &str| translated(json!({ "system": text, "messages": [] }))["messages"].clone();
        let want = json!([{ "role": "system", "content": "You are." }]);
        assert_eq!(system("x-anthropic-billing-header: cc_version=2; cch=1f;\nYou are."), want);
        assert_eq!(system("You are."), want);
        assert_eq!(system("x-anthropic-billing-header: cch=1f;"), json!([]));
    }

    #[test]
    fn images_are_refused_by_their_place() {
        let body = json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] });
        let error = translate(body.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "messages[0].content[0].type");
    }
}
