//! The request fields `tools`, `tool_choice` and `parallel_tool_calls`. They are checked here, and given to
//! the chat template.

use brigade_dialect::parser::lexer::is_name;
use brigade_dialect::text_model::Force;
use brigade_dialect::{Tool, Tools};
use serde_json::Value;

use crate::error::ApiError;
use crate::request::caching::{Marking, unmarked};
use crate::request::fields::{Fields, Given, Kind, list, read, tree};
use crate::request::ignored_fields;

/// Most tools of a request.
pub const MAX_TOOLS: usize = 1024;

/// The tools of a request, and which of them the answer may or must call.
#[derive(Debug, Default)]
pub struct ToolRequest {
    /// Tools as they came, for the chat template. Empty where no tool may be called.
    pub for_template: Vec<Value>,
    /// The same, for reading the answer.
    pub known: Tools,
    /// Whether one call is enough.
    pub single: bool,
    /// Bytes of all descriptions.
    pub n_bytes: usize,
    force: Force,
}

impl ToolRequest {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    pub fn read(
        fields: &mut Fields<'_>,
        left: &mut usize,
        marking: &mut Marking,
    ) -> Result<Self, ApiError> {
        let mut request = Self::default();
        let mut tools: Vec<Tool> = Vec::new();
        if let Some(raw) = fields.raw("tools") {
            request.n_bytes = raw.n_bytes();
            for (i, raw) in list("tools", raw, MAX_TOOLS)?.into_iter().enumerate() {
                let path = format!("tools[{i}]");
                let (tool, value) = tool(&path, raw, left, marking)?;
                if tools.iter().any(|other| other.name == tool.name) {
                    let message =
                        format!("{path}.function.name: two tools are called {:?}", tool.name);
                    return Err(ApiError::field(format!("{path}.function.name"), message));
                }
                tools.push(tool);
                request.for_template.push(value);
            }
        }
        let parallel: bool = fields.take("parallel_tool_calls")?.unwrap_or(true);
        let choice = match fields.raw("tool_choice") {
            None => Choice::Auto,
            Some(raw) => choice(raw)?,
        };
        let is_known = |name: &String| tools.iter().any(|tool| tool.name == *name);
        let choice = match choice {
            Choice::Allowed { names, must } => {
                if let Some(name) = names.iter().find(|name| !is_known(name)) {
                    let message = format!("tool_choice: there is no tool {name:?} among tools");
                    return Err(ApiError::field("tool_choice", message));
                }
                let is_allowed: Vec<bool> =
                    tools.iter().map(|tool| names.contains(&tool.name)).collect();
                let mut allowed = is_allowed.iter();
                tools.retain(|_| allowed.next() == Some(&true));
                let mut allowed = is_allowed.iter();
                request.for_template.retain(|_| allowed.next() == Some(&true));
                if must { Choice::Required } else { Choice::Auto }
            }
            choice => choice,
        };
        let is_known = |name: &String| tools.iter().any(|tool| tool.name == *name);
        match choice {
            Choice::Auto | Choice::Allowed { .. } => {}
            Choice::None => {
                tools.clear();
                request.for_template.clear();
            }
            Choice::Required | Choice::Tool(_) if tools.is_empty() => {
                let message = "tool_choice asks for a call, but there are no tools";
                return Err(ApiError::field("tool_choice", message));
            }
            // One that must be called is one that is named.
            Choice::Required if tools.len() == 1 => {
                request.force = Force::Tool(tools[0].name.clone())
            }
            Choice::Required => request.force = Force::Any,
            Choice::Tool(name) if is_known(&name) => request.force = Force::Tool(name),
            Choice::Tool(name) => {
                let message = format!("tool_choice: there is no tool {name:?} among tools");
                return Err(ApiError::field("tool_choice", message));
            }
        }
        request.single = !parallel || matches!(request.force, Force::Tool(_));
        request.known = Tools::new(tools);
        Ok(request)
    }

    /// How far `tool_choice` forces a call.
    pub fn force(&self) -> &Force {
        &self.force
    }
}

/// The name of these fields in the log.
const TOOLS: &str = "tools";

/// Reads one entry of `tools`: the tool, and its JSON for the template.
fn tool(
    path: &str,
    raw: Given<'_>,
    left: &mut usize,
    marking: &mut Marking,
) -> Result<(Tool, Value), ApiError> {
    let mut value = tree(path, raw, left)?;
    let mut fields = Fields::nested(path, raw)?;
    let kind: String = fields.require("type")?;
    if kind != "function" {
        let path = fields.path("type");
        let message = format!("{path} is {kind:?}: this server knows functions only");
        return Err(ApiError::unsupported(path, message));
    }
    let path = fields.path("function");
    let mut function = Fields::nested(&path, fields.require_raw("function")?)?;
    for object in [&mut fields, &mut function] {
        if marking.take(object)? {
            marking.tools();
        }
    }
    unmarked(&mut value);
    unmarked(&mut value["function"]);
    fields.end(TOOLS, &[ignored_fields::TOOL]);
    let name: String = function.require("name")?;
    // The template has it, with all of the tool.
    let _: Option<String> = function.take("description")?;
    if !is_name(&name) {
        let path = function.path("name");
        let message = format!("{path} is {name:?}: letters, digits, _ and - are needed");
        return Err(ApiError::field(path, message));
    }
    if let Some(parameters) = function.raw("parameters") {
        Fields::nested(&function.path("parameters"), parameters)?;
    }
    let parameters = value["function"]["parameters"].clone();
    let strict = function.take("strict")?.unwrap_or(false);
    function.end(TOOLS, &[ignored_fields::TOOL]);
    Ok((Tool { name, parameters, strict }, value))
}

enum Choice {
    Auto,
    None,
    Required,
    Tool(String),
    /// Some of the tools.
    Allowed {
        names: Vec<String>,
        must: bool,
    },
}

/// `{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": ...}}]}`.
fn allowed(raw: Given<'_>) -> Result<Choice, ApiError> {
    let mut fields = Fields::nested("tool_choice.allowed_tools", raw)?;
    let mode: String = fields.require("mode")?;
    let must = match mode.as_str() {
        "auto" => false,
        "required" => true,
        _ => {
            let path = fields.path("mode");
            let message = format!("{path} is {mode:?}: \"auto\" or \"required\" is needed");
            return Err(ApiError::field(path, message));
        }
    };
    let (path, mut names) = (fields.path("tools"), Vec::new());
    for (i, tool) in list(&path, fields.require_raw("tools")?, MAX_TOOLS)?.into_iter().enumerate() {
        let mut tool = Fields::nested(&format!("{path}[{i}]"), tool)?;
        if let Some(kind) = tool.take::<String>("type")?.filter(|kind| kind != "function") {
            let path = tool.path("type");
            let message = format!("{path} is {kind:?}: this server knows functions only");
            return Err(ApiError::unsupported(path, message));
        }
        names.push(named_function(&mut tool)?);
        tool.end(TOOLS, &[]);
    }
    fields.end(TOOLS, &[]);
    Ok(Choice::Allowed { names, must })
}

/// Reads `"function": {"name": ...}`.
fn named_function(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let function = fields.require_raw("function")?;
    let mut function = Fields::nested(&fields.path("function"), function)?;
    let name = function.require("name")?;
    function.end(TOOLS, &[]);
    Ok(name)
}

fn choice(raw: Given<'_>) -> Result<Choice, ApiError> {
    let bad = |what: &str| {
        let message = format!(
            "tool_choice is {what}: \"none\", \"auto\", \"required\" or \
             {{\"type\": \"function\", \"function\": {{\"name\": ...}}}} is needed"
        );
        ApiError::field("tool_choice", message)
    };
    match raw.kind() {
        Kind::Text => {
            let word: String = read("tool_choice", raw)?;
            match word.as_str() {
                "auto" => Ok(Choice::Auto),
                "none" => Ok(Choice::None),
                "required" | "any" => Ok(Choice::Required),
                _ => Err(bad(&format!("{word:?}"))),
            }
        }
        Kind::Object => {
            let mut fields = Fields::nested("tool_choice", raw)?;
            let kind: String = fields.require("type")?;
            let choice = match kind.as_str() {
                "allowed_tools" => allowed(fields.require_raw("allowed_tools")?)?,
                "function" => Choice::Tool(named_function(&mut fields)?),
                kind => return Err(bad(&format!("of type {kind:?}"))),
            };
            fields.end(TOOLS, &[]);
            Ok(choice)
        }
        kind => Err(bad(&kind.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<ToolRequest, String> {
        let mut fields = Fields::parse(json.as_bytes()).unwrap();
        ToolRequest::read(&mut fields, &mut 1000, &mut Marking::default())
            .map_err(|e| e.body()["error"]["message"].as_str().unwrap().to_string())
    }

    const TWO: &str = r#""tools": [{"type": "function", "function": {"name": "a"}},
        {"type": "function", "function": {"name": "b", "parameters": {"type": "object"}, "strict": true}}]"#;

    #[test]
    fn choices_are_understood() {
        let with = |more: &str| read(&format!("{{{TWO}{more}}}")).unwrap();
        let auto = with("");
        assert_eq!((auto.for_template.len(), auto.single, auto.force()), (2, false, &Force::Free));
        assert!(auto.known.get("b").is_some());
        let none = with(r#", "tool_choice": "none""#);
        assert!(none.for_template.is_empty() && none.known.is_empty());
        assert_eq!(with(r#", "tool_choice": "required""#).force(), &Force::Any);
        let named = with(r#", "tool_choice": {"type": "function", "function": {"name": "b"}}"#);
        assert_eq!((named.force(), named.single), (&Force::Tool("b".to_string()), true));
        assert!(with(r#", "parallel_tool_calls": false"#).single);
        let one = r#"{"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "required"}"#;
        assert_eq!(read(one).unwrap().force(), &Force::Tool("a".to_string()));
        assert!(read(r#"{"tools": [], "tool_choice": "auto"}"#).unwrap().known.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let function =
            |f: &str| format!(r#"{{"tools": [{{"type": "function", "function": {f}}}]}}"#);
        for (json, word) in [
            (r#"{"tools": [{}]}"#.to_string(), "tools[0].type is required"),
            (r#"{"tools": [{"type": "web_search"}]}"#.to_string(), "web_search"),
            (r#"{"tools": [{"type": "function"}]}"#.to_string(), "tools[0].function is required"),
            (function("{}"), "tools[0].function.name is required"),
            (function(r#"{"name": "a b"}"#), "a b"),
            (
                function(r#"{"name": "a", "parameters": []}"#),
                "tools[0].function.parameters must be",
            ),
            (format!(r#"{{{TWO}, "tool_choice": "sometimes"}}"#), "sometimes"),
            (format!(r#"{{{TWO}, "tool_choice": 3}}"#), "a number"),
            (
                format!(
                    r#"{{{TWO}, "tool_choice": {{"type": "function", "function": {{"name": "c"}}}}}}"#
                ),
                "no tool \"c\"",
            ),
            (r#"{"tool_choice": "required"}"#.to_string(), "no tools"),
            (
                r#"{"tools": [{"type": "function", "function": {"name": "a"}},
                    {"type": "function", "function": {"name": "a"}}]}"#
                    .to_string(),
                "two tools",
            ),
        ] {
            let message = read(&json).unwrap_err();
            assert!(message.contains(word), "{json}: {message}");
        }
    }
}
