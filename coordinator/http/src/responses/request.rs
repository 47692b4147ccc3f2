//! A request for a response as a chat. Custom tools, whose input is a text, are functions of one
//! argument there. Tools of types that nobody here can run are left out, as a program that sends them expects.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::Echo;
use super::items::{add_items, required};
use crate::error::ApiError;
use crate::fields::{Fields, MAX_TEMPLATE_VALUES, Unread, report, tree};
use crate::unread;

/// Fields that mean the same there and here, by both names.
const SAME: &[(&str, &str)] = &[
    ("model", "model"),
    ("max_output_tokens", "max_tokens"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("stream", "stream"),
    ("parallel_tool_calls", "parallel_tool_calls"),
    ("chat_template_kwargs", "chat_template_kwargs"),
    ("lora", "lora"),
    ("checkpoint", "checkpoint"),
    ("speculate", "speculate"),
];

/// Fields that an answer repeats.
const ECHOED: &[&str] = &[
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
];

/// Translates a body.
pub fn translate(body: &[u8]) -> Result<(Cow<'static, [u8]>, Echo), ApiError> {
    let mut left = MAX_TEMPLATE_VALUES;
    let mut fields = Fields::parse(body)?;
    refuse_state(&mut fields)?;
    let mut given = Map::new();
    for name in ECHOED.iter().copied().chain(SAME.iter().map(|(name, _)| *name)).chain(["input"]) {
        if let Some(raw) = fields.raw(name) {
            given.insert(name.to_string(), tree(name, raw, &mut left)?);
        }
    }
    let mut messages = Vec::new();
    match given.get("instructions") {
        None => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(Value::String(text)) => messages.push(json!({ "role": "system", "content": text })),
        Some(Value::Array(items)) => add_items("instructions", items, &mut messages)?,
        Some(_) => {
            let message = "instructions must be a text or a list of items";
            return Err(ApiError::field("instructions", message));
        }
    }
    let n_before = messages.len();
    match given.get("input") {
        None => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => add_items("input", items, &mut messages)?,
        Some(_) => return Err(ApiError::field("input", "input must be a text or a list of items")),
    }
    let is_empty = messages.len() == n_before;
    if is_empty {
        messages.push(json!({ "role": "user", "content": "" }));
    }
    let mut chat = Map::from_iter([("messages".to_string(), Value::Array(messages))]);
    for (there, here) in SAME {
        if let Some(value) = given.get(*there) {
            chat.insert((*here).to_string(), value.clone());
        }
    }
    let all = match given.get("tools") {
        None => &[][..],
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(ApiError::field("tools", "tools must be a list")),
    };
    let mut tools = Vec::new();
    let mut custom = Vec::new();
    for (i, one) in all.iter().enumerate() {
        let path = format!("tools[{i}]");
        if one["type"] == "custom" {
            custom.push(required(&path, one, "name")?.to_string());
        }
        tools.extend(tool(&path, one)?);
    }
    let choice = given.get("tool_choice").map(choice).transpose()?;
    if !tools.is_empty() {
        chat.extend(choice.map(|choice| ("tool_choice".to_string(), choice)));
        chat.insert("tools".to_string(), Value::Array(tools));
    } else if choice.is_some_and(|choice| choice != "auto" && choice != "none") {
        let message = "tool_choice asks for a call, but there are no tools that are called here";
        return Err(ApiError::field("tool_choice", message));
    }
    let format = nested(&given, "text", "format", unread::RESPONSE_TEXT)?;
    chat.extend(format.map(|format| ("response_format".to_string(), format)));
    let effort = nested(&given, "reasoning", "effort", unread::RESPONSE_REASONING)?;
    chat.extend(effort.map(|effort| ("reasoning_effort".to_string(), effort)));
    fields.end("/v1/responses", &[unread::COMMON, unread::RESPONSES]);
    given.retain(|name, _| ECHOED.contains(&name.as_str()));
    let text = Value::Object(chat).to_string();
    Ok((Cow::Owned(text.into_bytes()), Echo { fields: given, custom, is_empty }))
}

/// The field `inner` of the object `name`, where there is one; the others of it say nothing here.
fn nested(
    given: &Map<String, Value>,
    name: &str,
    inner: &str,
    unread: Unread,
) -> Result<Option<Value>, ApiError> {
    match given.get(name) {
        None => Ok(None),
        Some(Value::Object(fields)) => {
            let left = fields.keys().map(String::as_str).filter(|field| *field != inner);
            report("/v1/responses", name, left, unread);
            Ok(fields.get(inner).filter(|value| !value.is_null()).cloned())
        }
        Some(_) => Err(ApiError::field(name, format!("{name} must be an object"))),
    }
}

/// What would need a memory of earlier requests.
fn refuse_state(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for name in ["previous_response_id", "conversation"] {
        fields
            .refuse(name, "this server keeps no responses: send the whole conversation as input")?;
    }
    fields.refuse(
        "prompt",
        "this server keeps no prompts: send the text itself as instructions or input",
    )?;
    if fields.take::<u32>("top_logprobs")?.is_some_and(|n| n > 0) {
        let message = "top_logprobs is not supported: use /v1/chat/completions";
        return Err(ApiError::unsupported("top_logprobs", message));
    }
    fields.refuse("background", "responses are sent while they are made")
}

/// A function; `None`: a tool that OpenAI's own servers run, and nobody here.
fn tool(path: &str, tool: &Value) -> Result<Option<Value>, ApiError> {
    let Some(kind) = tool.get("type").and_then(Value::as_str) else {
        let path = format!("{path}.type");
        return Err(ApiError::field(&path, format!("{path} is required: a tool has a type")));
    };
    match kind {
        "function" => {}
        "custom" => return custom_tool(path, tool).map(Some),
        _ => return Ok(None),
    }
    let mut function = Map::new();
    for field in ["name", "description", "parameters", "strict"] {
        if let Some(value) = tool.get(field).filter(|value| !value.is_null()) {
            function.insert(field.to_string(), value.clone());
        }
    }
    Ok(Some(json!({ "type": "function", "function": function })))
}

/// A custom tool as a function of its input. What its input has to look like is told the model, in words of its own.
fn custom_tool(path: &str, tool: &Value) -> Result<Value, ApiError> {
    let mut description = match tool.get("description") {
        None | Some(Value::Null) => String::new(),
        Some(_) => required(path, tool, "description")?.to_string(),
    };
    if let Some(format) = tool.get("format").filter(|format| !format.is_null()) {
        let path = format!("{path}.format");
        if required(&path, format, "type")? == "grammar" && format.get("definition").is_some() {
            let syntax = required(&path, format, "syntax")?;
            let definition = required(&path, format, "definition")?;
            description.push_str(&format!(
                "\n\nThe input has to fit this grammar ({syntax}):\n{definition}"
            ));
        }
    }
    let input = json!({ "type": "string", "description": "The input, as it is: no JSON in it." });
    Ok(json!({ "type": "function", "function": {
        "name": required(path, tool, "name")?,
        "description": description.trim_start(),
        "parameters": {
            "type": "object", "properties": { "input": input }, "required": ["input"],
            "additionalProperties": false,
        },
    } }))
}

/// Which call is wanted, as chats say it.
fn choice(choice: &Value) -> Result<Value, ApiError> {
    let function =
        |tool: &Value| json!({ "type": "function", "function": { "name": tool["name"] } });
    match choice["type"].as_str() {
        _ if choice.is_string() => Ok(choice.clone()),
        Some("function" | "custom") => Ok(function(choice)),
        Some("allowed_tools") => {
            let tools: Option<Vec<Value>> =
                choice["tools"].as_array().map(|tools| tools.iter().map(function).collect());
            Ok(json!({
                "type": "allowed_tools",
                "allowed_tools": { "mode": choice["mode"], "tools": tools },
            }))
        }
        kind => {
            let kind = kind.unwrap_or_default();
            let message = format!(
                "tool_choice is of type {kind:?}: \"none\", \"auto\", \"required\", a function, a custom tool or allowed_tools is needed"
            );
            Err(ApiError::unsupported("tool_choice", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(body: Value) -> (Value, Echo) {
        let (chat, echo) = translate(body.to_string().as_bytes()).unwrap();
        (serde_json::from_slice(&chat).unwrap(), echo)
    }

    #[test]
    fn items_become_messages() {
        let (chat, echo) = translated(json!({
            "model": "m", "instructions": "Be kind.", "max_output_tokens": 7, "store": false,
            "include": ["reasoning.encrypted_content"], "reasoning": { "effort": "low" },
            "input": [
                { "type": "message", "role": "developer",
                  "content": [{ "type": "input_text", "text": "d" }] },
                { "role": "user", "content": "hi" },
                { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
                { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] },
                { "type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "c1", "output": "seen" },
                { "type": "web_search_call", "id": "w" },
            ],
            "tools": [{ "type": "function", "name": "look", "parameters": {}, "strict": false },
                      { "type": "web_search" }, { "type": "custom", "name": "apply_patch" }],
            "text": { "format": { "type": "json_schema", "name": "n", "schema": {}, "strict": true } },
        }));
        assert_eq!(
            chat["messages"],
            json!([
                { "role": "system", "content": "Be kind." },
                { "role": "system", "content": "d" },
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
                    { "id": "c1", "type": "function", "function": { "name": "look", "arguments": "{}" } }] },
                { "role": "tool", "tool_call_id": "c1", "content": "seen" },
            ])
        );
        let tools = chat["tools"].as_array().unwrap();
        let names: Vec<_> = tools.iter().map(|tool| &tool["function"]["name"]).collect();
        assert_eq!(names, ["look", "apply_patch"]);
        assert_eq!(echo.custom, ["apply_patch"]);
        assert_eq!((&chat["max_tokens"], &chat["reasoning_effort"]), (&json!(7), &json!("low")));
        assert_eq!(chat["response_format"]["type"], "json_schema");
        assert!(!echo.is_empty && echo.fields.contains_key("instructions"));
        assert!(!echo.fields.contains_key("input"));
    }

    #[test]
    fn a_custom_tool_is_a_function_of_its_input() {
        let tool = json!({ "type": "custom", "name": "apply_patch", "description": "Patches files.",
            "format": { "type": "grammar", "syntax": "lark", "definition": "start: patch" } });
        let choice = json!({ "type": "custom", "name": "apply_patch" });
        let (chat, _) = translated(json!({ "input": "x", "tools": [tool], "tool_choice": choice }));
        let function = &chat["tools"][0]["function"];
        assert_eq!(function["parameters"]["required"], json!(["input"]));
        let told = function["description"].as_str().unwrap();
        assert!(
            told.starts_with("Patches files.") && told.ends_with("(lark):\nstart: patch"),
            "{told}"
        );
        assert_eq!(chat["tool_choice"]["function"]["name"], "apply_patch");
        for (tool, at) in [
            (json!({ "type": "custom" }), "tools[0].name"),
            (json!({ "type": "custom", "name": "p", "description": 1 }), "tools[0].description"),
            (
                json!({ "type": "custom", "name": "p", "format": { "type": "grammar", "definition": "a" } }),
                "tools[0].format.syntax",
            ),
        ] {
            let body = json!({ "input": "x", "tools": [tool] });
            let error = translate(body.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.body()["error"]["param"], at);
        }
    }

    #[test]
    fn an_empty_probe_passes_and_stored_state_is_refused() {
        assert!(translated(json!({ "model": "m", "input": [] })).1.is_empty);
        let body = json!({ "input": "x", "previous_response_id": "resp_1" });
        let error = translate(body.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "previous_response_id");
        let body = json!({ "input": "x", "previous_response_id": null });
        assert!(translate(body.to_string().as_bytes()).is_ok());
    }
}
