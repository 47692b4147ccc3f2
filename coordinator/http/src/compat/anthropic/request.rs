//! Anthropic's request as a chat in OpenAI's form. Text that a client program changes in every turn, such as a
//! counter, is left out, so that the next turn begins with the same tokens.

use brigade_sampling::Api;
use brigade_text::MAX_STOPS;
use serde_json::{Map, Value, json};

use super::blocks::{MarkedText, add_message, text_block};
use crate::error::ApiError;
use crate::request::answer_format::checked_format;
use crate::request::caching::{Marking, put_mark};
use crate::request::chat_request::Names;
use crate::request::fields::{Fields, Given, MAX_TEMPLATE_VALUES, left_out, list, read, tree};
use crate::request::ignored_fields;
use crate::request::params::settings_of;
use crate::request::tools::MAX_TOOLS;

/// Begins a line that Claude Code puts at the head of its system prompt, and that changes every turn.
const BILLING: &str = "x-anthropic-billing-header:";

/// Fields that mean the same there and here, beside settings of sampling.
const SAME: &[&str] = &[
    "model",
    "max_tokens",
    "stream",
    "thinking",
    "seed",
    "lora",
    "checkpoint",
    "speculate",
    "cache_salt",
];

/// Fields that would change an answer, and have no effect here.
const REFUSED: &[(&str, &str)] = &[
    ("container", "nothing is run here"),
    ("mcp_servers", "the client runs tools: send them as tools"),
];

/// Translates a body to a chat's fields. The names map the chat's fields to those of the body, for errors.
pub fn translate(body: &[u8]) -> Result<(Map<String, Value>, Names), ApiError> {
    let mut left = MAX_TEMPLATE_VALUES;
    let mut fields = Fields::parse(body)?;
    let mut chat = Map::new();
    let mut names: Names = vec![("stop".into(), "stop_sequences".into())];
    let mut messages = Vec::new();
    let mut marking = Marking::default();
    if let Some(system) = fields.raw("system") {
        let system = system_text(&tree("system", system, &mut left)?, &mut marking)?;
        messages.extend((!system.is_empty()).then(|| Value::Object(system.message("system"))));
    }
    let raw = fields.require_raw("messages")?;
    let Value::Array(given) = tree("messages", raw, &mut left)? else {
        return Err(ApiError::field("messages", "messages must be a list"));
    };
    for (i, message) in given.iter().enumerate() {
        add_message(&format!("messages[{i}]"), message, &mut marking, &mut messages)?;
    }
    chat.insert("messages".to_string(), Value::Array(messages));
    if let Some(raw) = fields.raw("tools") {
        let tools = tools(raw, &mut left, &mut names, &mut marking)?;
        if !tools.is_empty() {
            chat.insert("tools".to_string(), Value::Array(tools));
        }
    }
    if let Some(raw) = fields.raw("tool_choice") {
        add_choice(raw, &mut chat)?;
    }
    if let Some(raw) = fields.raw("stop_sequences") {
        let stops = list("stop_sequences", raw, MAX_STOPS)?;
        let stops = stops.into_iter().enumerate();
        let stops = stops.map(|(i, stop)| read::<String>(&format!("stop_sequences[{i}]"), stop));
        chat.insert("stop".to_string(), json!(stops.collect::<Result<Vec<_>, _>>()?));
    }
    add_output(&mut fields, &mut left, &mut chat, &mut names)?;
    for name in settings_of(Api::Anthropic).chain(SAME.iter().copied()) {
        if let Some(value) = fields.raw(name) {
            chat.insert(name.to_string(), tree(name, value, &mut left)?);
        }
    }
    for (name, why) in REFUSED {
        fields.refuse(name, why)?;
    }
    fields.end("/v1/messages", &[ignored_fields::COMMON, ignored_fields::MESSAGES]);
    Ok((chat, names))
}

/// `output_config`, and `output_format`, which was there before it.
fn add_output(
    fields: &mut Fields<'_>,
    left: &mut usize,
    chat: &mut Map<String, Value>,
    names: &mut Names,
) -> Result<(), ApiError> {
    let mut formats = Vec::new();
    formats.extend(fields.raw("output_format").map(|raw| ("output_format", raw)));
    if let Some(raw) = fields.raw("output_config") {
        let mut config = Fields::nested("output_config", raw)?;
        formats.extend(config.raw("format").map(|raw| ("output_config.format", raw)));
        if let Some(effort) = config.take::<String>("effort")? {
            chat.insert("reasoning_effort".to_string(), json!(effort));
            names.push(("reasoning_effort".into(), "output_config.effort".into()));
        }
        config.end("/v1/messages", &[ignored_fields::OUTPUT_CONFIG]);
    }
    let Some((path, raw)) = formats.pop() else { return Ok(()) };
    if let Some((other, _)) = formats.pop() {
        let message = format!("{other} and {path} exclude each other");
        return Err(ApiError::field(other, message));
    }
    chat.insert("response_format".to_string(), checked_format(path, raw, left)?);
    names.push(("response_format".into(), path.into()));
    Ok(())
}

/// The system prompt as one text.
fn system_text(system: &Value, marking: &mut Marking) -> Result<MarkedText, ApiError> {
    let mut whole = MarkedText::default();
    let blocks = match system {
        Value::String(text) => {
            whole.push(without_billing(text));
            return Ok(whole);
        }
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::field("system", "system must be a text or a list of blocks")),
    };
    for (i, block) in blocks.iter().enumerate() {
        let path = format!("system[{i}]");
        let text = without_billing(text_block(&path, block)?);
        if !text.is_empty() {
            whole.push(if whole.is_empty() { "" } else { "\n" });
            whole.push(text);
        }
        if marking.is_on(&path, block)? {
            whole.mark();
        }
    }
    Ok(whole)
}

fn without_billing(text: &str) -> &str {
    if text.starts_with(BILLING) {
        text.split_once('\n').map_or("", |(_, rest)| rest)
    } else {
        text
    }
}

/// Tools as functions, in their order. Tools whose input is defined by their type, and tools that Anthropic's own
/// servers run, are left out with a warning in the log: this server does not know them.
fn tools(
    raw: Given<'_>,
    left: &mut usize,
    names: &mut Names,
    marking: &mut Marking,
) -> Result<Vec<Value>, ApiError> {
    let mut tools = Vec::new();
    for (i, raw) in list("tools", raw, MAX_TOOLS)?.into_iter().enumerate() {
        let path = format!("tools[{i}]");
        let n = tools.len();
        if let Some(tool) = tool(&path, raw, left, marking)? {
            tools.push(tool);
            let here = format!("tools[{n}].function");
            names.push((format!("{here}.parameters"), format!("{path}.input_schema")));
            names.push((here, path));
        }
    }
    Ok(tools)
}

fn tool(
    path: &str,
    raw: Given<'_>,
    left: &mut usize,
    marking: &mut Marking,
) -> Result<Option<Value>, ApiError> {
    let mut tool = Fields::nested(path, raw)?;
    let is_marked = marking.take(&mut tool)?;
    let kind: Option<String> = tool.take("type")?;
    let has_schema = tool.names().any(|name| name == "input_schema");
    if let Some(kind) = kind.filter(|kind| kind != "custom" && !has_schema) {
        left_out("/v1/messages", &tool.path("type"), &kind);
        return Ok(None);
    }
    let name: String = tool.require("name")?;
    let schema = tool.require_raw("input_schema")?;
    Fields::nested(&tool.path("input_schema"), schema)?;
    let mut function =
        json!({ "name": name, "parameters": tree(&tool.path("input_schema"), schema, left)? });
    let mut description: String = tool.take("description")?.unwrap_or_default();
    if let Some(raw) = tool.raw("input_examples") {
        let path = tool.path("input_examples");
        for (i, example) in list(&path, raw, MAX_TOOLS)?.into_iter().enumerate() {
            Fields::nested(&format!("{path}[{i}]"), example)?;
            let lead = if i == 0 { "\n\nExamples of its input:" } else { "" };
            description.push_str(&format!("{lead}\n{}", example.json()));
        }
    }
    let strict: Option<bool> = tool.take("strict")?;
    tool.end("/v1/messages", &[ignored_fields::MESSAGES_TOOL]);
    if let Some(function) = function.as_object_mut() {
        let description = description.trim_start().to_string();
        function
            .extend((!description.is_empty()).then(|| ("description".into(), json!(description))));
        function.extend(strict.map(|strict| ("strict".into(), json!(strict))));
    }
    let mut tool = json!({ "type": "function", "function": function });
    if is_marked {
        put_mark(&mut tool);
    }
    Ok(Some(tool))
}

fn add_choice(raw: Given<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let mut choice = Fields::nested("tool_choice", raw)?;
    let kind: String = choice.require("type")?;
    let word = match kind.as_str() {
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => {
            let name: String = choice.require("name")?;
            json!({ "type": "function", "function": { "name": name } })
        }
        "auto" => json!("auto"),
        _ => {
            let message = format!(
                "tool_choice.type is {kind:?}: \"auto\", \"any\", \"none\" or \"tool\" is needed"
            );
            return Err(ApiError::field("tool_choice.type", message));
        }
    };
    if let Some(single) = choice.take::<bool>("disable_parallel_tool_use")? {
        chat.insert("parallel_tool_calls".to_string(), json!(!single));
    }
    choice.end("/v1/messages", &[]);
    if chat.contains_key("tools") {
        chat.insert("tool_choice".to_string(), word);
    } else if matches!(kind.as_str(), "any" | "tool") {
        let message = "tool_choice asks for a call, but there are no tools that are called here";
        return Err(ApiError::field("tool_choice", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use brigade_dialect::text_model::TextModel;
    use brigade_dialect::{Marked, TextEnd};
    use brigade_line::request::Limits;

    use super::*;
    use crate::request::chat_request::ChatRequest;

    fn translated(body: Value) -> Value {
        Value::Object(translate(body.to_string().as_bytes()).unwrap().0)
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
                { "role": "system", "content": [
                    { "type": "text", "text": "Be kind.", "cache_control": { "type": "ephemeral" } }] },
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
                    { "id": "t1", "type": "function",
                      "function": { "name": "look", "arguments": { "at": 1 } } }] },
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
    fn marks_stay_where_they_are() {
        let mark = json!({ "type": "ephemeral", "ttl": "1h" });
        let chat = translated(json!({
            "system": [{ "type": "text", "text": "Be kind.", "cache_control": mark },
                       { "type": "text", "text": "Today." }],
            "messages": [
                { "role": "user", "content": [
                    { "type": "text", "text": "hi", "cache_control": mark },
                    { "type": "text", "text": " you" }] },
                { "role": "assistant", "content": [
                    { "type": "tool_use", "id": "t1", "name": "look", "input": {}, "cache_control": mark }] },
                { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": "x" }] }],
            "tools": [{ "name": "look", "input_schema": {}, "cache_control": mark }],
        }));
        let part = |text: &str| json!({ "type": "text", "text": text });
        let marked = |text: &str| json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
        assert_eq!(chat["messages"][0]["content"], json!([marked("Be kind."), part("\nToday.")]));
        assert_eq!(chat["messages"][1]["content"], json!([marked("hi"), part(" you")]));
        assert_eq!(chat["messages"][2]["cache_control"], json!({ "type": "ephemeral" }));
        assert_eq!(chat["tools"][0]["cache_control"], json!({ "type": "ephemeral" }));
        let request = chat.to_string();
        let (limits, model) =
            (Limits { n_ctx: 64, n_vocab: 100, answer: 1024, encoder: None }, TextModel::sample());
        let request = ChatRequest::read(request.as_bytes(), &limits, &model).unwrap();
        let ends = [(0, 8), (1, 2), (3, 0)].map(|(message, bytes)| TextEnd { message, bytes });
        assert_eq!(*request.marked(), Marked { tools: true, ends: ends.to_vec() });
        let texts = json!([{ "type": "text", "text": "seen", "cache_control": mark },
                           { "type": "text", "text": "twice" }]);
        let result = json!({ "type": "tool_result", "tool_use_id": "t1", "content": texts });
        let chat = translated(json!({ "messages": [{ "role": "user", "content": [result] }] }));
        assert_eq!(
            chat["messages"],
            json!([{ "role": "tool", "tool_call_id": "t1", "content": [marked("seen"), part("\ntwice")] }])
        );
        let five = vec![json!({ "type": "text", "text": "a", "cache_control": mark }); 5];
        let body = json!({ "messages": [{ "role": "user", "content": five }] }).to_string();
        let error = translate(body.as_bytes()).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "messages[0].content[4].cache_control");
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
