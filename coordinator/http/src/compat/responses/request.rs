//! A request for a response as a chat. A custom tool, whose input is a text, becomes a function with one argument.
//! Tools of types that this server cannot run are left out, as client programs expect, and the log says so.

use brigade_sampling::Api;
use serde_json::{Map, Value, json};

use super::items::add_items;
use super::names::{API, in_space};
use super::{Called, Echo, ToolName};
use crate::error::ApiError;
use crate::request::answer_format::checked_format;
use crate::request::chat_request::Names;
use crate::request::fields::{
    Fields, Given, Kind, MAX_TEMPLATE_VALUES, left_out, list, read, tree,
};
use crate::request::ignored_fields;
use crate::request::params::settings_of;
use crate::request::tools::MAX_TOOLS;

/// Fields that mean the same there and here, by both names, beside settings of sampling.
const SAME: &[(&str, &str)] = &[
    ("model", "model"),
    ("max_output_tokens", "max_tokens"),
    ("seed", "seed"),
    ("stream", "stream"),
    ("parallel_tool_calls", "parallel_tool_calls"),
    ("chat_template_kwargs", "chat_template_kwargs"),
    ("lora", "lora"),
    ("checkpoint", "checkpoint"),
    ("speculate", "speculate"),
    ("cache_salt", "cache_salt"),
];

fn same() -> impl Iterator<Item = (&'static str, &'static str)> {
    let settings = settings_of(Api::Responses).map(|name| (name, name));
    settings.chain(SAME.iter().copied())
}

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

/// Translates a body to a chat's fields. The names map the chat's fields to those of the body, for errors.
pub fn translate(body: &[u8]) -> Result<(Map<String, Value>, Names, Echo), ApiError> {
    let mut left = MAX_TEMPLATE_VALUES;
    let mut fields = Fields::parse(body)?;
    refuse_state(&mut fields)?;
    let mut names: Names = Vec::new();
    let mut nested = Nested::default();
    let mut given = Map::new();
    for name in ECHOED.iter().copied().chain(same().map(|(name, _)| name)).chain(["input"]) {
        if let Some(raw) = fields.raw(name) {
            given.insert(name.to_string(), tree(name, raw, &mut left)?);
            nested.note(name, raw);
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
    for (there, here) in same() {
        if let Some(value) = given.get(there) {
            chat.insert(here.to_string(), value.clone());
            names.push((here.to_string(), there.to_string()));
        }
    }
    let tools = nested.tools.map(|raw| Functions::read(raw, &mut left, &mut names)).transpose()?;
    let Functions { all: tools, called } = tools.unwrap_or_default();
    let choice = nested.tool_choice.map(choice).transpose()?;
    if !tools.is_empty() {
        chat.extend(choice.map(|choice| ("tool_choice".to_string(), choice)));
        chat.insert("tools".to_string(), Value::Array(tools));
    } else if choice.is_some_and(|choice| choice != "auto" && choice != "none") {
        let message = "tool_choice asks for a call, but there are no tools that are called here";
        return Err(ApiError::field("tool_choice", message));
    }
    nested.add(&mut left, &mut chat, &mut names)?;
    fields.end(API, &[ignored_fields::COMMON, ignored_fields::RESPONSES]);
    given.retain(|name, _| ECHOED.contains(&name.as_str()));
    Ok((chat, names, Echo { fields: given, called, is_empty }))
}

/// Objects of a request, which answers repeat as they are.
#[derive(Default)]
struct Nested<'a> {
    tools: Option<Given<'a>>,
    tool_choice: Option<Given<'a>>,
    text: Option<Given<'a>>,
    reasoning: Option<Given<'a>>,
}

impl<'a> Nested<'a> {
    fn note(&mut self, name: &str, raw: Given<'a>) {
        match name {
            "tools" => self.tools = Some(raw),
            "tool_choice" => self.tool_choice = Some(raw),
            "text" => self.text = Some(raw),
            "reasoning" => self.reasoning = Some(raw),
            _ => {}
        }
    }

    /// Adds the format from `text` and the effort from `reasoning`. Other fields of theirs have no effect here.
    fn add(
        &self,
        left: &mut usize,
        chat: &mut Map<String, Value>,
        names: &mut Names,
    ) -> Result<(), ApiError> {
        if let Some(raw) = self.text {
            let mut text = Fields::nested("text", raw)?;
            if let Some(raw) = text.raw("format") {
                let path = "text.format";
                chat.insert("response_format".to_string(), checked_format(path, raw, left)?);
                names.push(("response_format".into(), path.into()));
            }
            text.end(API, &[ignored_fields::RESPONSE_TEXT]);
        }
        if let Some(raw) = self.reasoning {
            let mut reasoning = Fields::nested("reasoning", raw)?;
            if let Some(effort) = reasoning.take::<String>("effort")? {
                chat.insert("reasoning_effort".to_string(), json!(effort));
                names.push(("reasoning_effort".into(), "reasoning.effort".into()));
            }
            reasoning.end(API, &[ignored_fields::RESPONSE_REASONING]);
        }
        Ok(())
    }
}

/// Refuses fields that need a memory of earlier requests, and others that are not supported.
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

/// Tools as functions, in their order. The name of a function in a namespace begins with the namespace. Tools that
/// only OpenAI's servers run are left out, and the log says so.
#[derive(Default)]
struct Functions {
    all: Vec<Value>,
    /// Tools that are no plain functions, with their names in answers.
    called: Called,
}

impl Functions {
    fn read(raw: Given<'_>, left: &mut usize, names: &mut Names) -> Result<Self, ApiError> {
        let mut given = Self::default();
        for (i, raw) in list("tools", raw, MAX_TOOLS)?.into_iter().enumerate() {
            let path = format!("tools[{i}]");
            let mut tool = Fields::nested(&path, raw)?;
            let kind: String = tool.require("type")?;
            if kind == "namespace" {
                given.add_namespace(&mut tool, left, names)?;
            } else {
                given.add(&mut tool, &kind, None, left, names)?;
            }
            tool.end(API, &[ignored_fields::TOOL]);
        }
        Ok(given)
    }

    fn add_namespace(
        &mut self,
        space: &mut Fields<'_>,
        left: &mut usize,
        names: &mut Names,
    ) -> Result<(), ApiError> {
        let name: String = space.require("name")?;
        let mut about: Option<String> = space.take("description")?;
        let path = space.path("tools");
        for (i, raw) in list(&path, space.require_raw("tools")?, MAX_TOOLS)?.into_iter().enumerate()
        {
            let mut tool = Fields::nested(&format!("{path}[{i}]"), raw)?;
            let kind: String = tool.require("type")?;
            self.add(&mut tool, &kind, Some((&name, about.take())), left, names)?;
            tool.end(API, &[ignored_fields::TOOL]);
        }
        Ok(())
    }

    /// Adds a tool; `space`: the namespace that contains it, with its description.
    fn add(
        &mut self,
        tool: &mut Fields<'_>,
        kind: &str,
        space: Option<(&str, Option<String>)>,
        left: &mut usize,
        names: &mut Names,
    ) -> Result<(), ApiError> {
        let (name, mut function) = match kind {
            "function" => function(tool, left)?,
            "custom" => custom_tool(tool)?,
            kind => {
                left_out(API, &tool.path("type"), kind);
                tool.leave_all();
                return Ok(());
            }
        };
        let mut called = name.clone();
        if let Some((space, about)) = &space {
            called = in_space(space, &name);
            function.insert("name".to_string(), json!(called));
            if let Some(about) = about.as_ref().filter(|about| !about.is_empty()) {
                let own = function.get("description").and_then(Value::as_str).unwrap_or_default();
                let all = format!("{own}\n\nAbout the functions of {space}: {about}");
                function.insert("description".to_string(), json!(all.trim_start()));
            }
        }
        if kind == "custom" || space.is_some() {
            let space = space.map(|(space, _)| space.to_string());
            self.called.push((called, ToolName { name, space, is_custom: kind == "custom" }));
        }
        let place = tool.path("");
        names.push((
            format!("tools[{}].function", self.all.len()),
            place.trim_end_matches('.').to_string(),
        ));
        self.all.push(json!({ "type": "function", "function": function }));
        Ok(())
    }
}

fn function(
    tool: &mut Fields<'_>,
    left: &mut usize,
) -> Result<(String, Map<String, Value>), ApiError> {
    let name: String = tool.require("name")?;
    let mut function = Map::from_iter([("name".to_string(), json!(name))]);
    let description: Option<String> = tool.take("description")?;
    function.extend(description.map(|text| ("description".to_string(), json!(text))));
    if let Some(raw) = tool.raw("parameters") {
        let path = tool.path("parameters");
        Fields::nested(&path, raw)?;
        function.insert("parameters".to_string(), tree(&path, raw, left)?);
    }
    let strict: Option<bool> = tool.take("strict")?;
    function.extend(strict.map(|strict| ("strict".to_string(), json!(strict))));
    Ok((name, function))
}

/// A custom tool as a function with one argument, and the tool's name. The format of its input is described to the
/// model in words.
fn custom_tool(tool: &mut Fields<'_>) -> Result<(String, Map<String, Value>), ApiError> {
    let name: String = tool.require("name")?;
    let mut description: String = tool.take("description")?.unwrap_or_default();
    if let Some(raw) = tool.raw("format") {
        let mut format = Fields::nested(&tool.path("format"), raw)?;
        let kind: String = format.require("type")?;
        match kind.as_str() {
            "text" => {}
            "grammar" => {
                // Some programs name a grammar and leave it out.
                let definition: Option<String> = format.take("definition")?;
                if let Some(definition) = definition {
                    let syntax: String = format.require("syntax")?;
                    description.push_str(&format!(
                        "\n\nThe input has to fit this grammar ({syntax}):\n{definition}"
                    ));
                }
                let _: Option<String> = format.take("syntax")?;
            }
            _ => {
                let path = format.path("type");
                let message = format!("{path} is {kind:?}: \"text\" or \"grammar\" is needed");
                return Err(ApiError::unsupported(path, message));
            }
        }
        format.end(API, &[]);
    }
    let input = json!({ "type": "string", "description": "The input, as it is: no JSON in it." });
    let function = json!({
        "name": name,
        "description": description.trim_start(),
        "parameters": {
            "type": "object", "properties": { "input": input }, "required": ["input"],
            "additionalProperties": false,
        },
    });
    let Value::Object(function) = function else {
        unreachable!("it is written above as an object")
    };
    Ok((name, function))
}

/// The field `tool_choice`, as chats have it.
fn choice(raw: Given<'_>) -> Result<Value, ApiError> {
    if raw.kind() == Kind::Text {
        return Ok(json!(read::<String>("tool_choice", raw)?));
    }
    let mut choice = Fields::nested("tool_choice", raw)?;
    let kind: String = choice.require("type")?;
    let chosen = match kind.as_str() {
        "function" | "custom" => named(&mut choice)?,
        "allowed_tools" => {
            let mode: String = choice.require("mode")?;
            let (path, raw) = (choice.path("tools"), choice.require_raw("tools")?);
            let mut tools = Vec::new();
            for (i, tool) in list(&path, raw, MAX_TOOLS)?.into_iter().enumerate() {
                let mut tool = Fields::nested(&format!("{path}[{i}]"), tool)?;
                let kind: String = tool.require("type")?;
                // The others are not among the tools either.
                if matches!(kind.as_str(), "function" | "custom") {
                    tools.push(named(&mut tool)?);
                    tool.end(API, &[]);
                } else {
                    left_out(API, &tool.path("type"), &kind);
                }
            }
            let allowed = json!({ "mode": mode, "tools": tools });
            json!({ "type": "allowed_tools", "allowed_tools": allowed })
        }
        _ => {
            let message = format!(
                "tool_choice is of type {kind:?}: \"none\", \"auto\", \"required\", a function, a custom tool or allowed_tools is needed"
            );
            return Err(ApiError::unsupported("tool_choice", message));
        }
    };
    choice.end(API, &[]);
    Ok(chosen)
}

/// A function by its name, and by that of its namespace.
fn named(tool: &mut Fields<'_>) -> Result<Value, ApiError> {
    let name: String = tool.require("name")?;
    let space: Option<String> = tool.take("namespace")?;
    let name = space.map_or(name.clone(), |space| in_space(&space, &name));
    Ok(json!({ "type": "function", "function": { "name": name } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(body: Value) -> (Value, Echo) {
        let (chat, _, echo) = translate(body.to_string().as_bytes()).unwrap();
        (Value::Object(chat), echo)
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
        assert!(echo.tool("apply_patch").is_some_and(|tool| tool.is_custom));
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
    fn the_functions_of_a_namespace_have_its_name_before_theirs() {
        let agent = |name: &str| json!({ "type": "function", "name": name, "description": "d", "parameters": {} });
        let space = json!({ "type": "namespace", "name": "agents", "description": "Helpers.",
            "tools": [agent("spawn"), agent("close"), { "type": "custom", "name": "tell" }] });
        let (chat, echo) = translated(json!({
            "tools": [space, agent("close")], "tool_choice": { "type": "function", "name": "close", "namespace": "agents" },
            "input": [{ "type": "function_call", "call_id": "c", "namespace": "agents", "name": "spawn", "arguments": "{}" }],
        }));
        let function = |i: usize| &chat["tools"][i]["function"];
        let names = [0, 1, 2, 3].map(|i| function(i)["name"].as_str().unwrap());
        assert_eq!(names, ["agents__spawn", "agents__close", "agents__tell", "close"]);
        assert_eq!(function(0)["description"], "d\n\nAbout the functions of agents: Helpers.");
        assert_eq!(function(1)["description"], "d");
        assert_eq!(chat["tool_choice"]["function"]["name"], "agents__close");
        assert_eq!(chat["messages"][0]["tool_calls"][0]["function"]["name"], "agents__spawn");
        let tool = echo.tool("agents__tell").unwrap();
        assert_eq!(
            (tool.name.as_str(), tool.space.as_deref(), tool.is_custom),
            ("tell", Some("agents"), true)
        );
        assert!(echo.tool("close").is_none());
        let body = json!({ "input": "x", "tools": [{ "type": "namespace", "name": "n", "tools": [{ "type": "function" }] }] });
        let error = translate(body.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "tools[0].tools[0].name");
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
