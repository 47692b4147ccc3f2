//! Ollama's requests as chats in OpenAI's form.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, MAX_TEMPLATE_VALUES, tree};

/// Options that have the same name and meaning here.
const SAME: &[&str] = &[
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "seed",
    "stop",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
];

/// `/api/chat`.
pub fn chat(body: &[u8]) -> Result<Cow<'static, [u8]>, ApiError> {
    let mut left = MAX_TEMPLATE_VALUES;
    let mut fields = Fields::parse(body)?;
    let mut chat = common(&mut fields, &mut left)?;
    let messages = tree("messages", fields.require_raw("messages")?, &mut left)?;
    let Value::Array(messages) = messages else {
        return Err(ApiError::field("messages", "messages must be a list"));
    };
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(i, m)| message(i, m)).collect::<Result<Vec<_>, _>>()?;
    chat.insert("messages".to_string(), Value::Array(messages));
    if let Some(tools) = fields.raw("tools") {
        chat.insert("tools".to_string(), tree("tools", tools, &mut left)?);
    }
    Ok(bytes(chat))
}

/// `/api/generate`; and whether there is no prompt.
pub fn generate(body: &[u8]) -> Result<(Cow<'static, [u8]>, bool), ApiError> {
    let mut left = MAX_TEMPLATE_VALUES;
    let mut fields = Fields::parse(body)?;
    for (name, why) in [
        ("suffix", "use /infill"),
        ("raw", "use /v1/completions for prompts without a template"),
        ("template", "start brigade with --chat-template"),
        ("context", "send the conversation to /api/chat"),
        ("images", "this server takes text only"),
    ] {
        if fields.raw(name).is_some_and(|raw| !matches!(raw.get(), "\"\"" | "[]" | "false")) {
            return Err(ApiError::unsupported(name, format!("{name} is not supported: {why}")));
        }
    }
    let mut chat = common(&mut fields, &mut left)?;
    let prompt: String = fields.take("prompt")?.unwrap_or_default();
    let system: Option<String> = fields.take("system")?;
    let system = system.filter(|s| !s.is_empty());
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let user = json!({ "role": "user", "content": prompt });
    let messages = system.into_iter().chain([user]).collect();
    chat.insert("messages".to_string(), Value::Array(messages));
    Ok((bytes(chat), prompt.is_empty()))
}

fn bytes(chat: Map<String, Value>) -> Cow<'static, [u8]> {
    Cow::Owned(Value::Object(chat).to_string().into_bytes())
}

/// What both have: model, options, format, thinking, streaming (which is the default there).
fn common(fields: &mut Fields<'_>, left: &mut usize) -> Result<Map<String, Value>, ApiError> {
    let mut chat = Map::new();
    if let Some(model) = fields.take::<String>("model")? {
        chat.insert("model".to_string(), json!(model));
    }
    for name in ["lora", "checkpoint"] {
        if let Some(value) = fields.raw(name) {
            chat.insert(name.to_string(), tree(name, value, left)?);
        }
    }
    chat.insert("stream".to_string(), json!(fields.take("stream")?.unwrap_or(true)));
    if let Some(options) = fields.raw("options") {
        let mut options = Fields::nested("options", options)?;
        for name in SAME {
            if let Some(value) = options.raw(name) {
                chat.insert((*name).to_string(), tree(&options.path(name), value, left)?);
            }
        }
        // -2 is Ollama's way to say "as the context has room for".
        match options.take::<i64>("num_predict")? {
            Some(n) if n < 0 => chat.insert("max_tokens".to_string(), json!(-1)),
            Some(n) => chat.insert("max_tokens".to_string(), json!(n)),
            None => None,
        };
    }
    if let Some(format) = fields.raw("format") {
        let format = tree("format", format, left)?;
        let format = match &format {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) if text == "json" => Some(json!({ "type": "json_object" })),
            Value::Object(_) => Some(json!({ "type": "json_schema", "schema": format })),
            _ => return Err(ApiError::field("format", "format must be \"json\" or a schema")),
        };
        chat.extend(format.map(|format| ("response_format".to_string(), format)));
    }
    if let Some(think) = fields.raw("think") {
        match tree("think", think, left)? {
            Value::Bool(think) => chat.insert("enable_thinking".to_string(), json!(think)),
            level => chat.insert("reasoning_effort".to_string(), level),
        };
    }
    Ok(chat)
}

/// A message: calls have objects as arguments there and no ids, results name the tool.
fn message(i: usize, mut message: Value) -> Result<Value, ApiError> {
    let path = format!("messages[{i}]");
    let Some(fields) = message.as_object_mut() else {
        return Err(ApiError::field(&path, format!("{path} must be an object")));
    };
    if fields.get("images").and_then(Value::as_array).is_some_and(|images| !images.is_empty()) {
        let path = format!("{path}.images");
        return Err(ApiError::unsupported(&path, format!("{path}: this server takes text only")));
    }
    fields.remove("images");
    if let Some(thinking) = fields.remove("thinking") {
        fields.insert("reasoning_content".to_string(), thinking);
    }
    if let Some(name) = fields.remove("tool_name") {
        fields.insert("name".to_string(), name);
    }
    for (n, call) in
        fields.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten().enumerate()
    {
        if call.get("id").is_none_or(Value::is_null) {
            call["id"] = json!(format!("call_{i}_{n}"));
        }
        call["type"] = json!("function");
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(body: Value) -> Value {
        serde_json::from_slice(&chat(body.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn options_and_calls_get_other_names() {
        let body = translated(json!({
            "model": "m", "format": "json", "think": false, "keep_alive": "5m",
            "options": { "temperature": 0, "num_predict": -1, "num_ctx": 9, "stop": ["x"] },
            "messages": [
                { "role": "assistant", "content": "", "thinking": "hm",
                  "tool_calls": [{ "function": { "name": "f", "arguments": { "a": 1 } } }] },
                { "role": "tool", "tool_name": "f", "content": "1" }],
        }));
        assert_eq!(body["messages"][0]["tool_calls"][0]["id"], "call_0_0");
        assert_eq!(body["messages"][0]["reasoning_content"], "hm");
        assert_eq!(body["messages"][1]["name"], "f");
        assert_eq!((&body["max_tokens"], &body["stream"]), (&json!(-1), &json!(true)));
        assert_eq!(body["response_format"], json!({ "type": "json_object" }));
        assert_eq!((&body["enable_thinking"], &body["stop"]), (&json!(false), &json!(["x"])));
    }

    #[test]
    fn a_prompt_is_one_turn() {
        let body = json!({ "prompt": "hi", "system": "s", "stream": false, "context": [] });
        let (chat, is_empty) = generate(body.to_string().as_bytes()).unwrap();
        let chat: Value = serde_json::from_slice(&chat).unwrap();
        assert_eq!(chat["messages"].as_array().unwrap().len(), 2);
        assert!(!is_empty && chat["stream"] == false);
        assert!(generate(b"{}").unwrap().1);
        assert!(generate(br#"{"prompt": "a", "raw": true}"#).is_err());
    }
}
