//! Reads the messages of a chat request, and the fields that control how the chat template renders them.

use brigade_dialect::text_model::Force;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::request::caching::Marking;
use crate::request::fields::{Fields, Given, Kind, list, read as read_value};

/// The role of answers.
pub const ROLE: &str = "assistant";

/// Most messages of a chat, and most parts of one message.
pub const MAX_MESSAGES: usize = 1 << 13;

/// The call of an answer in the older form of histories.
const OLDER_CALL: &str = "function_call";

/// Fields of a message beside its role and content that are read here or by all chat templates.
const KNOWN: [&str; 7] = [
    "name",
    "tool_call_id",
    "tool_calls",
    OLDER_CALL,
    "reasoning_content",
    THOUGHTS[0],
    THOUGHTS[1],
];

/// Names of `reasoning_content` in the APIs of other servers.
const THOUGHTS: [&str; 2] = ["reasoning", "thinking"];

/// Longest word for how much to think; the model's template knows which there are.
const MAX_EFFORT_BYTES: usize = 32;

/// The messages, and how many bytes of text they are.
pub fn read(
    fields: &mut Fields<'_>,
    left: &mut usize,
    marking: &mut Marking,
) -> Result<(Vec<Value>, usize), ApiError> {
    let messages = list("messages", fields.require_raw("messages")?, MAX_MESSAGES)?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "messages must not be empty"));
    }
    let mut n_bytes = 0;
    let mut messages = messages
        .into_iter()
        .enumerate()
        .map(|(i, m)| message(i, m, left, &mut n_bytes, marking))
        .collect::<Result<Vec<Value>, _>>()?;
    name_results(&mut messages);
    Ok((messages, n_bytes))
}

/// Results in the older form name a function, not a call: they belong to the last call of that function before them.
fn name_results(messages: &mut [Value]) {
    let mut last: Option<Value> = None;
    for (i, message) in messages.iter_mut().enumerate() {
        let Some(message) = message.as_object_mut() else { continue };
        if let Some(call) = message.shift_remove(OLDER_CALL) {
            let id = Value::from(format!("call_{i}"));
            let call = json!({ "id": id, "type": "function", "function": call });
            last = Some(id);
            match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => drop(message.insert("tool_calls".to_string(), json!([call]))),
            }
        }
        if message.get("role").and_then(Value::as_str) == Some("function") {
            message.insert("role".to_string(), json!("tool"));
            let id = last.clone().unwrap_or_else(|| Value::from(format!("call_{i}")));
            message.entry("tool_call_id").or_insert(id);
        }
    }
}

/// Checks one message and joins the parts of its content; what else it has, the template may use.
fn message(
    i: usize,
    value: Given<'_>,
    left: &mut usize,
    n_bytes: &mut usize,
    marking: &mut Marking,
) -> Result<Value, ApiError> {
    let mut fields = Fields::nested(&format!("messages[{i}]"), value)?;
    let is_marked = marking.take(&mut fields)?;
    let role: String = fields.require("role")?;
    let needs_content = role != ROLE && !fields.names().any(|name| name == "content");
    let content = match fields.raw("content") {
        // Only an assistant says nothing beside its calls; elsewhere nothing is an empty text.
        None if role != ROLE => Value::String(String::new()),
        None => Value::Null,
        Some(content) => {
            let path = fields.path("content");
            Value::String(match content.kind() {
                Kind::Text => read_value(&path, content)?,
                Kind::List => join_parts(&path, content, i, marking)?,
                kind => {
                    let message = format!("{path} must be a string or a list of parts, not {kind}");
                    return Err(ApiError::field(path, message));
                }
            })
        }
    };
    if let Some(thought) = fields.raw("reasoning_content") {
        let _: String = read_value(&fields.path("reasoning_content"), thought)?;
        fields.put_back("reasoning_content", thought);
    }
    if let Some(call) = fields.raw(OLDER_CALL) {
        *n_bytes += call.n_bytes();
        check_call(&fields.path(OLDER_CALL), call)?;
        fields.put_back(OLDER_CALL, call);
    }
    check_texts(&mut fields, &role, n_bytes)?;
    if let Some(calls) = fields.raw("tool_calls") {
        *n_bytes += calls.n_bytes();
        let (path, calls) = (fields.path("tool_calls"), calls);
        fields.put_back("tool_calls", check_calls(&path, calls)?);
    }
    // A refusal is what an assistant says instead of content.
    let content = match fields.take::<String>("refusal")? {
        Some(refusal) => {
            Value::String(format!("{}{refusal}", content.as_str().unwrap_or_default()))
        }
        None => content,
    };
    let n_content = content.as_str().map_or(0, str::len);
    *n_bytes += n_content;
    if is_marked && fields.names().any(|name| name == "tool_calls") {
        // Behind its calls, the next message begins.
        marking.text(i + 1, 0);
    } else if is_marked {
        marking.text(i, n_content);
    }
    let mut message = Map::new();
    message.insert("role".to_string(), Value::String(role));
    message.insert("content".to_string(), content);
    let is_told = fields.tell_for_template(&KNOWN, crate::request::ignored_fields::MESSAGE);
    if is_told && needs_content {
        // The text may be in a field of an unknown name, so the message is refused.
        let path = fields.path("content");
        return Err(ApiError::field(&path, format!("{path} is required")));
    }
    message.extend(fields.into_rest(left)?);
    Ok(Value::Object(message))
}

/// Checks the calls of an earlier answer.
fn check_calls<'a>(path: &str, calls: Given<'a>) -> Result<Given<'a>, ApiError> {
    for (i, call) in list(path, calls, MAX_MESSAGES)?.into_iter().enumerate() {
        let mut call = Fields::nested(&format!("{path}[{i}]"), call)?;
        // The template has them, with all of the call.
        let (_, _): (Option<String>, Option<String>) = (call.take("id")?, call.take("type")?);
        let function = call.require_raw("function")?;
        check_call(&call.path("function"), function)?;
        call.end("messages", &[crate::request::ignored_fields::CALL]);
    }
    Ok(calls)
}

/// Checks the function of a call.
fn check_call(path: &str, function: Given<'_>) -> Result<(), ApiError> {
    let mut function = Fields::nested(path, function)?;
    let _: String = function.require("name")?;
    if let Some(arguments) = function.raw("arguments")
        && !matches!(arguments.kind(), Kind::Text | Kind::Object)
    {
        let path = function.path("arguments");
        let message = format!("{path} must be JSON text or an object, not {}", arguments.kind());
        return Err(ApiError::field(path, message));
    }
    function.end("messages", &[crate::request::ignored_fields::CALL]);
    Ok(())
}

/// Checks a message's fields beside its content: texts for the model, and fields that this server refuses.
fn check_texts(fields: &mut Fields<'_>, role: &str, n_bytes: &mut usize) -> Result<(), ApiError> {
    fields.refuse("audio", "this server takes text only")?;
    for name in ["name", "tool_call_id"] {
        let Some(label) = fields.raw(name) else { continue };
        let _: String = read_value(&fields.path(name), label)?;
        fields.put_back(name, label);
    }
    if role != ROLE {
        for name in ["tool_calls", OLDER_CALL] {
            fields.refuse(name, "only an assistant's message has calls")?;
        }
    }
    for name in THOUGHTS.into_iter().filter(|_| role == ROLE) {
        let Some(thought) = fields.raw(name) else { continue };
        let _: String = read_value(&fields.path(name), thought)?;
        *n_bytes += thought.n_bytes();
        fields.put_back(name, thought);
    }
    let Some(thought) = fields.raw("reasoning_content") else { return Ok(()) };
    let path = fields.path("reasoning_content");
    if thought.kind() != Kind::Text {
        let message = format!("{path} must be a string, not {}", thought.kind());
        return Err(ApiError::field(path, message));
    }
    if role != ROLE {
        let message = format!("{path}: only an assistant's message has reasoning");
        return Err(ApiError::field(path, message));
    }
    *n_bytes += thought.n_bytes();
    fields.put_back("reasoning_content", thought);
    Ok(())
}

/// Texts of the parts of message `i`.
fn join_parts(
    path: &str,
    parts: Given<'_>,
    i_message: usize,
    marking: &mut Marking,
) -> Result<String, ApiError> {
    let mut text = String::new();
    for (i, part) in list(path, parts, MAX_MESSAGES)?.into_iter().enumerate() {
        let mut part = Fields::nested(&format!("{path}[{i}]"), part)?;
        let kind: String = part.require("type")?;
        let field = match kind.as_str() {
            "text" => "text",
            "refusal" => "refusal",
            _ => {
                let path = part.path("type");
                let message = format!("{path} is {kind:?}: this server takes text only");
                return Err(ApiError::unsupported(path, message));
            }
        };
        text.push_str(&part.require::<String>(field)?);
        if marking.take(&mut part)? {
            marking.text(i_message, text.len());
        }
        part.end("messages", &[crate::request::ignored_fields::PART]);
    }
    Ok(text)
}

/// Reads `chat_template_kwargs`.
pub fn template_arguments(
    fields: &mut Fields<'_>,
    left: &mut usize,
) -> Result<Map<String, Value>, ApiError> {
    match fields.raw("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(value) => Fields::nested("chat_template_kwargs", value)?.into_rest(left),
    }
}

/// `reasoning_effort`, `enable_thinking` and `thinking`, as variables for the template: under the names that
/// templates have for them, where `chat_template_kwargs` does not set those.
pub fn reasoning(fields: &mut Fields<'_>, extra: &mut Map<String, Value>) -> Result<(), ApiError> {
    let effort: Option<String> = fields.take("reasoning_effort")?;
    let mut thinks: Option<bool> = fields.take("enable_thinking")?;
    if let Some(thinking) = fields.raw("thinking") {
        let mut thinking = Fields::nested("thinking", thinking)?;
        let kind: String = thinking.require("type")?;
        thinking.end("thinking", &[crate::request::ignored_fields::THINKING]);
        match kind.as_str() {
            "enabled" | "auto" | "adaptive" => thinks = thinks.or(Some(true)),
            "disabled" => thinks = thinks.or(Some(false)),
            _ => {
                let message = format!("thinking.type is {kind:?}: \"enabled\" or \"disabled\"");
                return Err(ApiError::field("thinking.type", message));
            }
        }
    }
    if let Some(effort) = effort {
        let is_word = effort.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if effort.is_empty() || effort.len() > MAX_EFFORT_BYTES || !is_word {
            let message = "reasoning_effort must be a word such as none, low, medium or high";
            return Err(ApiError::field("reasoning_effort", message));
        }
        if effort == "none" {
            thinks = thinks.or(Some(false));
        } else {
            extra.entry("reasoning_effort").or_insert_with(|| json!(effort));
            if matches!(effort.as_str(), "low" | "medium" | "high" | "max") {
                extra.entry("thinking_effort").or_insert_with(|| json!(effort));
            }
        }
    }
    if let Some(thinks) = thinks {
        for name in ["enable_thinking", "thinking"] {
            extra.entry(name).or_insert_with(|| json!(thinks));
        }
    }
    Ok(())
}

/// Whether the last message is an answer to be continued: it is, unless the request says otherwise.
pub fn continues(
    fields: &mut Fields<'_>,
    messages: &[Value],
    force: &Force,
) -> Result<bool, ApiError> {
    let wanted: Option<bool> = fields.take("continue_final_message")?;
    let new_turn: Option<bool> = fields.take("add_generation_prompt")?;
    let bad = |message: &str| Err(ApiError::field("continue_final_message", message));
    let can = messages.last().is_some_and(|last| {
        let calls = last.get("tool_calls").and_then(Value::as_array);
        last["role"] == ROLE && last["content"].is_string() && calls.is_none_or(Vec::is_empty)
    });
    match (wanted, new_turn) {
        (Some(true), Some(true)) => bad("it and add_generation_prompt exclude each other"),
        (Some(true), _) if !can => bad("the last message is not an assistant's with content"),
        (Some(true), _) if force != &Force::Free => bad("tool_choice asks for a call instead"),
        (Some(false), Some(false)) => bad("an answer is needed: leave out add_generation_prompt"),
        (None, Some(false)) if !can => bad("an answer is needed: leave out add_generation_prompt"),
        (Some(false), _) | (None, Some(true)) => Ok(false),
        (Some(true), _) => Ok(true),
        (None, _) => Ok(can && force == &Force::Free),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn extra(json: &str) -> Result<Map<String, Value>, String> {
        let mut fields = Fields::parse(json.as_bytes()).unwrap();
        let mut extra = template_arguments(&mut fields, &mut 100).unwrap();
        match reasoning(&mut fields, &mut extra) {
            Ok(()) => Ok(extra),
            Err(error) => Err(error.body()["error"]["message"].to_string()),
        }
    }

    #[test]
    fn words_about_thinking_become_the_templates() {
        for (json, want) in [
            (r#"{"enable_thinking": false}"#, json!({"enable_thinking": false, "thinking": false})),
            (
                r#"{"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": 7}}"#,
                json!({"thinking": 7, "enable_thinking": true}),
            ),
            (
                r#"{"reasoning_effort": "none"}"#,
                json!({"enable_thinking": false, "thinking": false}),
            ),
            (
                r#"{"reasoning_effort": "high"}"#,
                json!({"reasoning_effort": "high", "thinking_effort": "high"}),
            ),
            (r#"{"reasoning_effort": "minimal"}"#, json!({"reasoning_effort": "minimal"})),
            (r#"{}"#, json!({})),
        ] {
            assert_eq!(Value::Object(extra(json).unwrap()), want, "{json}");
        }
        assert!(extra(r#"{"reasoning_effort": "{{ x }}"}"#).unwrap_err().contains("a word"));
        assert!(extra(r#"{"thinking": {"type": "maybe"}}"#).unwrap_err().contains("maybe"));
    }

    #[test]
    fn only_an_assistant_may_say_nothing() {
        let content = |role: &str| {
            let value = RawValue::from_string(format!(r#"{{"role": "{role}"}}"#)).unwrap();
            let (mut left, mut n_bytes) = (100, 0);
            let mut marking = Marking::default();
            let message = message(0, Given::Text(&value), &mut left, &mut n_bytes, &mut marking);
            message.unwrap()["content"].clone()
        };
        assert_eq!(content(ROLE), Value::Null);
        assert_eq!([content("user"), content("tool")], ["", ""]);
        let elsewhere = r#"{"role": "user", "text": "x"}"#.to_string();
        let elsewhere = RawValue::from_string(elsewhere).unwrap();
        let error = message(0, Given::Text(&elsewhere), &mut 100, &mut 0, &mut Marking::default())
            .unwrap_err();
        assert_eq!(error.body()["error"]["param"], "messages[0].content");
    }

    #[test]
    fn the_last_answer_is_continued_unless_told_otherwise() {
        let answer = json!({ "role": "assistant", "content": "a" });
        let calls = json!({ "role": "assistant", "content": "a", "tool_calls": [{}] });
        let user = json!({ "role": "user", "content": "a" });
        let check = |json: &str, last: &Value, force: Force| {
            let mut fields = Fields::parse(json.as_bytes()).unwrap();
            continues(&mut fields, std::slice::from_ref(last), &force).map_err(|_| ())
        };
        for (json, last, want) in [
            ("{}", &answer, Ok(true)),
            ("{}", &calls, Ok(false)),
            ("{}", &user, Ok(false)),
            (r#"{"continue_final_message": false}"#, &answer, Ok(false)),
            (r#"{"add_generation_prompt": true}"#, &answer, Ok(false)),
            (
                r#"{"add_generation_prompt": false, "continue_final_message": true}"#,
                &answer,
                Ok(true),
            ),
            (r#"{"continue_final_message": true}"#, &user, Err(())),
            (r#"{"add_generation_prompt": false}"#, &user, Err(())),
        ] {
            assert_eq!(check(json, last, Force::Free), want, "{json} {last}");
        }
        assert_eq!(check("{}", &answer, Force::Any), Ok(false));
        assert_eq!(check(r#"{"continue_final_message": true}"#, &answer, Force::Any), Err(()));
    }
}
