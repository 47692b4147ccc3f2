//! Formats of calls that rendering a template does not show. Each is known by a marker that no other format has. This
//! module also knows what models write beyond their templates.

use brigade_text::ChatTemplate;

use crate::{Calls, Dialect, Ids, JsonShape, NamedShape, Pair, Shape, TaggedShape, TypedBy};

/// Around reasoning, in templates that mention it and do not render it.
const REASONING: [(&str, &str); 6] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("◁think▷", "◁/think▷"),
];

/// Around lists of calls, in instructions of templates that write no calls (Granite 3, Phi 4).
const MENTIONED: [(&str, &str); 2] =
    [("<|tool_call|>", "<|/tool_call|>"), ("<TOOLCALL>", "</TOOLCALL>")];

/// The dialect of a template, if one of its markers gives it away.
pub fn find(template: &ChatTemplate) -> Option<Dialect> {
    let has = |marker: &str| template.source().contains(marker);
    let calls = |calls| Dialect { calls: Some(calls), ..Dialect::default() };
    if has("<|channel|>") && has("<|message|>") && has("<|start|>") {
        return Some(Dialect { channels: true, ..Dialect::default() });
    }
    if has("<|open|>") && has("<|close|>") && has("<|sep|>") {
        return Some(kimi_k3());
    }
    if has("<|tool_calls_section_begin|>") {
        return Some(calls(kimi_k2()));
    }
    if has("｜DSML｜") {
        let section = if has("tool_calls>") { "tool_calls" } else { "function_calls" };
        return Some(calls(deepseek_tags(section)));
    }
    if has("<｜tool▁calls▁begin｜>") {
        return Some(calls(deepseek(has("```json"))));
    }
    if has("<|START_ACTION|>") {
        return Some(command_r());
    }
    if has(">>>all") || has("'>>>' + ") {
        return Some(calls(functionary()));
    }
    None
}

/// Reasoning markers that the template mentions.
pub fn reasoning(template: &ChatTemplate) -> Option<Pair> {
    let mentioned = |(open, close): &&(&str, &str)| {
        template.source().contains(close) || template.source().contains(open)
    };
    REASONING.iter().find(mentioned).map(|(open, close)| Pair::new(open, close))
}

/// The form that the template's instructions name, where it writes no calls itself.
pub fn mentioned(template: &ChatTemplate) -> Option<Calls> {
    let has = |marker: &str| template.source().contains(marker);
    if has("<tool_call>") {
        return Some(hermes());
    }
    let (open, close) = MENTIONED.iter().find(|(open, _)| has(open))?;
    let Calls { shape: Shape::Json(shape), .. } = hermes() else { return None };
    let shape = Shape::Json(JsonShape { list: true, ..shape });
    Some(Calls { section: Some(Pair::new(open, close)), call: None, shape, ..hermes() })
}

/// Whether the template refuses ids that are not nine letters and digits.
pub fn wants_nine(template: &ChatTemplate) -> bool {
    template.source().contains("[TOOL_CALLS]")
}

/// Adds what models write beyond what their templates show.
pub fn complete(template: &ChatTemplate, dialect: &mut Dialect) {
    let has = |marker: &str| template.source().contains(marker);
    // Granite 3.3 puts its answer into tags of its own when it thinks.
    if has("<response>") && has("</think>") && !dialect.silent.iter().any(|s| s == "<response>") {
        dialect.silent.extend(["<response>", "</response>"].map(str::to_string));
    }
    let Some(calls) = &mut dialect.calls else { return };
    // Llama 3 and 4 write calls with and without their tag.
    for (open, close) in [("<|python_tag|>", ""), ("<|python_start|>", "<|python_end|>")] {
        if calls.bare && calls.section.is_none() && has(open) {
            calls.section = Some(Pair::new(open, close));
        }
    }
}

/// `<tool_call>{"name": NAME, "arguments": {...}}</tool_call>`, the most common form; also given to models
/// whose templates know of no tools.
pub fn hermes() -> Calls {
    Calls {
        section: None,
        call: Some(Pair::new("<tool_call>", "</tool_call>")),
        bare: false,
        shape: Shape::Json(JsonShape {
            name: "name".to_string(),
            arguments: "arguments".to_string(),
            ..JsonShape::default()
        }),
        ids: Ids::Long,
    }
}

fn kimi_k2() -> Calls {
    Calls {
        section: Some(Pair::new("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
        call: Some(Pair::new("<|tool_call_begin|>", "<|tool_call_end|>")),
        bare: false,
        shape: Shape::Named(NamedShape {
            separator: "<|tool_call_argument_begin|>".to_string(),
            name_is_id: true,
            ..NamedShape::default()
        }),
        ids: Ids::Long,
    }
}

/// Kimi K3: every tag is `<|open|>NAME ATTRIBUTES<|sep|>` and `<|close|>NAME<|sep|>`.
fn kimi_k3() -> Dialect {
    let open = |name: &str| format!("<|open|>{name}");
    let close = |name: &str| format!("<|close|>{name}<|sep|>");
    let pair = |name: &str| Pair { open: format!("<|open|>{name}<|sep|>"), close: close(name) };
    let shape = TaggedShape {
        name: Pair { open: open("call tool=\""), close: "\"".to_string() },
        end: close("call"),
        key: Pair { open: open("argument key=\""), close: "\"".to_string() },
        value: Pair { open: String::new(), close: close("argument") },
        tag_end: Some("<|sep|>".to_string()),
        typed_by: TypedBy::TypeName,
        padded: false,
    };
    let calls = Calls {
        section: Some(pair("tools")),
        call: None,
        bare: false,
        shape: Shape::Tagged(shape),
        ids: Ids::Long,
    };
    let response = pair("response");
    Dialect {
        reasoning: Some(pair("think")),
        calls: Some(calls),
        silent: vec![response.open, response.close, close("message")],
        channels: false,
    }
}

/// DeepSeek V3, R1 (`fenced`: a kind before the name, the arguments in a code block) and V3.1.
fn deepseek(fenced: bool) -> Calls {
    let mut shape =
        NamedShape { separator: "<｜tool▁sep｜>".to_string(), ..NamedShape::default() };
    if fenced {
        shape.prefix = "function<｜tool▁sep｜>".to_string();
        shape.separator = "\n```json\n".to_string();
        shape.suffix = "\n```".to_string();
    }
    Calls {
        section: Some(Pair::new("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
        call: Some(Pair::new("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")),
        bare: false,
        shape: Shape::Named(shape),
        ids: Ids::Long,
    }
}

/// DeepSeek V3.2 and later.
fn deepseek_tags(section: &str) -> Calls {
    let shape = TaggedShape {
        name: Pair::new("<｜DSML｜invoke name=\"", "\""),
        end: "</｜DSML｜invoke>".to_string(),
        key: Pair::new("<｜DSML｜parameter name=\"", "\""),
        value: Pair::new("", "</｜DSML｜parameter>"),
        tag_end: Some(">".to_string()),
        typed_by: TypedBy::StringFlag,
        padded: false,
    };
    Calls {
        section: Some(Pair {
            open: format!("<｜DSML｜{section}>"),
            close: format!("</｜DSML｜{section}>"),
        }),
        call: None,
        bare: false,
        shape: Shape::Tagged(shape),
        ids: Ids::Long,
    }
}

fn command_r() -> Dialect {
    let shape = JsonShape {
        name: "tool_name".to_string(),
        arguments: "parameters".to_string(),
        list: true,
        ..JsonShape::default()
    };
    let calls = Calls {
        section: Some(Pair::new("<|START_ACTION|>", "<|END_ACTION|>")),
        call: None,
        bare: false,
        shape: Shape::Json(shape),
        ids: Ids::Long,
    };
    Dialect {
        reasoning: Some(Pair::new("<|START_THINKING|>", "<|END_THINKING|>")),
        calls: Some(calls),
        silent: ["<|START_RESPONSE|>", "<|END_RESPONSE|>"].map(str::to_string).to_vec(),
        channels: false,
    }
}

/// Functionary 3.2: recipients between `>>>` and the end of the line, `all` for text.
fn functionary() -> Calls {
    Calls {
        section: None,
        call: None,
        bare: false,
        shape: Shape::Named(NamedShape {
            prefix: ">>>".to_string(),
            separator: "\n".to_string(),
            plain: Some("all".to_string()),
            ..NamedShape::default()
        }),
        ids: Ids::Long,
    }
}
