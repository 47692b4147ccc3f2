//! Ollama's requests as chats in OpenAI's form.

use brigade_dialect::values::number::of_text;
use brigade_sampling::Api;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::request::chat_request::Names;
use crate::request::fields::{Fields, Given, Kind, MAX_TEMPLATE_VALUES, read, tree};
use crate::request::ignored_fields;
use crate::request::params::settings_of;

/// Options that have the same name and meaning here, beside settings of sampling.
const SAME: &[&str] = &["seed", "stop"];

/// Parses the body of `/api/chat`.
pub fn chat(body: &[u8]) -> Result<Asked, ApiError> {
    let mut left = MAX_TEMPLATE_VALUES;
    let mut fields = Fields::parse(body)?;
    let (mut chat, names) = common(&mut fields, &mut left)?;
    // As an empty prompt: a chat without messages asks for the model to be loaded, or to be unloaded.
    let messages = match fields.raw("messages") {
        Some(raw) => tree("messages", raw, &mut left)?,
        None => Value::Array(Vec::new()),
    };
    let Value::Array(messages) = messages else {
        return Err(ApiError::field("messages", "messages must be a list"));
    };
    if messages.is_empty() {
        return Ok(Asked::ToLoad(load(&mut fields, &chat)?));
    }
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(i, m)| message(i, m)).collect::<Result<Vec<_>, _>>()?;
    chat.insert("messages".to_string(), Value::Array(messages));
    if let Some(tools) = fields.raw("tools") {
        chat.insert("tools".to_string(), tree("tools", tools, &mut left)?);
    }
    end(fields)?;
    Ok(Asked::Chat(chat, names))
}

/// A parsed request of Ollama's API.
#[derive(Debug)]
pub enum Asked {
    /// A chat in OpenAI's form, and the names of its fields in both interfaces.
    Chat(Map<String, Value>, Names),
    /// The continuation of a plain prompt, as a completion in OpenAI's form.
    Completion(Map<String, Value>, Names),
    /// An order to load or unload a model, without a prompt.
    ToLoad(Load),
}

/// An order to load a model, or to unload it. A model is unloaded only if it was loaded on demand and is idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The model's name; `None`: the default model.
    pub model: Option<String>,
    /// `unload` for a `keep_alive` of 0.
    pub reason: &'static str,
}

/// A request without a prompt.
fn load(fields: &mut Fields<'_>, chat: &Map<String, Value>) -> Result<Load, ApiError> {
    let model = chat.get("model").and_then(Value::as_str).map(str::to_string);
    let unloads = fields.raw("keep_alive").is_some_and(|raw| {
        let text = raw.json();
        let text = text.trim_matches('"').trim_end_matches(|c: char| c.is_ascii_alphabetic());
        of_text(text).is_some_and(|number| number.real() == 0.0)
    });
    Ok(Load { model, reason: if unloads { "unload" } else { "load" } })
}

/// Fields that would change an answer, and have no effect here.
const REFUSED: &[(&str, &str)] = &[
    ("suffix", "use /infill"),
    ("template", "--chat-template sets it where the model is started"),
    ("context", "send the conversation to /api/chat"),
    ("images", "this server takes text only"),
    ("logprobs", "use /v1/chat/completions or /v1/completions"),
    ("top_logprobs", "use /v1/chat/completions or /v1/completions"),
];

/// The end of a request.
fn end(mut fields: Fields<'_>) -> Result<(), ApiError> {
    for (name, why) in REFUSED {
        if fields
            .raw(name)
            .is_some_and(|raw| !matches!(&*raw.json(), "\"\"" | "[]" | "false" | "0"))
        {
            return Err(ApiError::unsupported(*name, format!("{name} is not supported: {why}")));
        }
    }
    fields.end("/api", &[ignored_fields::COMMON, ignored_fields::OLLAMA]);
    Ok(())
}

/// Parses the body of `/api/generate`.
pub fn generate(body: &[u8]) -> Result<Asked, ApiError> {
    let mut left = MAX_TEMPLATE_VALUES;
    let mut fields = Fields::parse(body)?;
    let (mut chat, names) = common(&mut fields, &mut left)?;
    let prompt: String = fields.take("prompt")?.unwrap_or_default();
    let is_raw: bool = fields.take("raw")?.unwrap_or(false);
    let system: Option<String> = fields.take("system")?;
    if prompt.is_empty() {
        if system.is_some_and(|text| !text.is_empty()) {
            let message = "system needs a prompt: add one, or leave out both to load the model";
            return Err(ApiError::unsupported("system", message));
        }
        return Ok(Asked::ToLoad(load(&mut fields, &chat)?));
    }
    if is_raw {
        // The prompt as it is: without a template, there is no place for a system message or a thought.
        if system.is_some_and(|text| !text.is_empty()) {
            let message = "system has no place in a raw prompt: write it into that";
            return Err(ApiError::unsupported("system", message));
        }
        for name in ["enable_thinking", "reasoning_effort"] {
            chat.shift_remove(name);
        }
        chat.insert("prompt".to_string(), Value::String(prompt));
        end(fields)?;
        return Ok(Asked::Completion(chat, names));
    }
    let system = system.filter(|s| !s.is_empty());
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    let user = json!({ "role": "user", "content": prompt });
    let messages = system.into_iter().chain([user]).collect();
    chat.insert("messages".to_string(), Value::Array(messages));
    end(fields)?;
    Ok(Asked::Chat(chat, names))
}

/// Fields that both endpoints have: model, options, format, thinking, and streaming, which is on by default.
fn common(
    fields: &mut Fields<'_>,
    left: &mut usize,
) -> Result<(Map<String, Value>, Names), ApiError> {
    let (mut chat, mut names) = (Map::new(), Names::new());
    if let Some(model) = fields.take::<String>("model")? {
        chat.insert("model".to_string(), json!(model));
    }
    for name in ["lora", "checkpoint", "speculate", "cache_salt"] {
        if let Some(value) = fields.raw(name) {
            chat.insert(name.to_string(), tree(name, value, left)?);
        }
    }
    chat.insert("stream".to_string(), json!(fields.take("stream")?.unwrap_or(true)));
    if let Some(raw) = fields.raw("options") {
        options(raw, left, &mut chat, &mut names)?;
    }
    if let Some(raw) = fields.raw("format") {
        let format = match raw.kind() {
            Kind::Text => match read::<String>("format", raw)?.as_str() {
                "" => None,
                "json" => Some(json!({ "type": "json_object" })),
                _ => return Err(ApiError::field("format", "format must be \"json\" or a schema")),
            },
            Kind::Object => {
                Some(json!({ "type": "json_schema", "schema": tree("format", raw, left)? }))
            }
            _ => return Err(ApiError::field("format", "format must be \"json\" or a schema")),
        };
        chat.extend(format.map(|format| ("response_format".to_string(), format)));
        names.push(("response_format.schema".into(), "format".into()));
        names.push(("response_format".into(), "format".into()));
    }
    if let Some(raw) = fields.raw("think") {
        match raw.kind() {
            Kind::Boolean => {
                chat.insert("enable_thinking".to_string(), json!(read::<bool>("think", raw)?))
            }
            Kind::Text => {
                chat.insert("reasoning_effort".to_string(), json!(read::<String>("think", raw)?))
            }
            kind => {
                let message =
                    format!("think must be true, false or a word such as high, not {kind}");
                return Err(ApiError::field("think", message));
            }
        };
        names.push(("reasoning_effort".into(), "think".into()));
    }
    Ok((chat, names))
}

fn options(
    raw: Given<'_>,
    left: &mut usize,
    chat: &mut Map<String, Value>,
    names: &mut Names,
) -> Result<(), ApiError> {
    let mut options = Fields::nested("options", raw)?;
    for name in settings_of(Api::Ollama).chain(SAME.iter().copied()) {
        if let Some(value) = options.raw(name) {
            chat.insert(name.to_string(), tree(&options.path(name), value, left)?);
            names.push((name.to_string(), options.path(name)));
        }
    }
    // -2 is Ollama's value for "until the context is full".
    match options.take::<i64>("num_predict")? {
        Some(n) if n < 0 => chat.insert("max_tokens".to_string(), json!(-1)),
        Some(n) => chat.insert("max_tokens".to_string(), json!(n)),
        None => None,
    };
    if options.take::<f64>("tfs_z")?.is_some_and(|z| z != 1.0) {
        let message = "options.tfs_z: this sampler is not implemented here; use 1";
        return Err(ApiError::unsupported("options.tfs_z", message));
    }
    options.end("/api", &[ignored_fields::OLLAMA_OPTIONS]);
    Ok(())
}

/// A message: calls have objects as arguments there and no ids, results name the tool.
fn message(i: usize, mut message: Value) -> Result<Value, ApiError> {
    let path = format!("messages[{i}]");
    let Some(fields) = message.as_object_mut() else {
        return Err(ApiError::field(&path, format!("{path} must be an object")));
    };
    if let Some(images) = fields.remove("images")
        && !images.is_null()
        && images.as_array().is_none_or(|images| !images.is_empty())
    {
        let path = format!("{path}.images");
        return Err(ApiError::unsupported(&path, format!("{path}: this server takes text only")));
    }
    for (there, here) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
        let Some(text) = fields.remove(there).filter(|text| !text.is_null()) else { continue };
        if !text.is_string() {
            let path = format!("{path}.{there}");
            return Err(ApiError::field(&path, format!("{path} must be a string")));
        }
        fields.insert(here.to_string(), text);
    }
    let calls = match fields.get_mut("tool_calls") {
        None | Some(Value::Null) => return Ok(message),
        Some(Value::Array(calls)) => calls,
        Some(_) => {
            let path = format!("{path}.tool_calls");
            return Err(ApiError::field(&path, format!("{path} must be a list")));
        }
    };
    for (n, call) in calls.iter_mut().enumerate() {
        let path = format!("{path}.tool_calls[{n}]");
        let Some(call) = call.as_object_mut() else {
            return Err(ApiError::field(&path, format!("{path} must be an object")));
        };
        if call.get("id").is_none_or(Value::is_null) {
            call.insert("id".to_string(), json!(format!("call_{i}_{n}")));
        }
        call.insert("type".to_string(), json!("function"));
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_chat(asked: Asked) -> Value {
        let Asked::Chat(chat, _) = asked else { panic!("{asked:?}") };
        Value::Object(chat)
    }

    fn translated(body: Value) -> Value {
        as_chat(chat(body.to_string().as_bytes()).unwrap())
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
        let body =
            json!({ "prompt": "hi", "system": "s", "stream": false, "context": [], "raw": false });
        let chat = as_chat(generate(body.to_string().as_bytes()).unwrap());
        assert_eq!(chat["messages"].as_array().unwrap().len(), 2);
        assert_eq!(chat["stream"], false);
    }

    #[test]
    fn a_raw_prompt_is_a_completion() {
        let body = json!({ "prompt": "a", "raw": true, "options": { "num_predict": 3.0 } });
        let Asked::Completion(body, _) = generate(body.to_string().as_bytes()).unwrap() else {
            panic!()
        };
        assert_eq!(Value::Object(body), json!({ "prompt": "a", "max_tokens": 3, "stream": true }));
        assert!(generate(br#"{"prompt": "a", "raw": true, "system": "s"}"#).is_err());
        assert!(generate(br#"{"prompt": "a", "raw": 1}"#).is_err());
    }

    #[test]
    fn without_a_prompt_the_model_is_loaded_or_unloaded() {
        for (body, reason) in [
            ("{}", "load"),
            (r#"{"messages": [], "prompt": ""}"#, "load"),
            (r#"{"keep_alive": "5m"}"#, "load"),
            (r#"{"keep_alive": 0}"#, "unload"),
            (r#"{"keep_alive": "0s"}"#, "unload"),
            (r#"{"keep_alive": -1}"#, "load"),
        ] {
            for read in [chat, generate] {
                let Asked::ToLoad(load) = read(body.as_bytes()).unwrap() else { panic!("{body}") };
                assert_eq!(load.reason, reason, "{body}");
            }
        }
    }

    #[test]
    fn calls_of_other_kinds_are_named() {
        for calls in ["[\"x\"]", "[null]", "[[1]]", "{}", "3"] {
            let body =
                format!(r#"{{"messages": [{{"role": "assistant", "tool_calls": {calls}}}]}}"#);
            let error = chat(body.as_bytes()).unwrap_err().body();
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("messages[0].tool_calls"), "{calls}: {message}");
        }
    }
}
