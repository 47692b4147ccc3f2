//! Finds out what a chat template does with tools, calls and reasoning, by rendering probe messages with it.

use brigade_text::{ChatTemplate, TemplateInput};
use serde_json::{Value, json};

use super::content_form::{Form, Forms};
use super::held_texts::written_out;

/// Names, ids, key and value of the probes: words that no template has.
pub const FIRST: &str = "probe_first";
/// The second tool's name; see [`FIRST`].
pub const SECOND: &str = "probe_second";
/// See [`FIRST`]; nine letters and digits, which some templates insist on.
pub const FIRST_ID: &str = "probeid01";
const SECOND_ID: &str = "probeid02";
/// An argument's key; see [`FIRST`].
pub const KEY: &str = "probe_key";
/// An argument's value; see [`FIRST`].
pub const VALUE: &str = "probe_value";
const DECLARED: &str = "probe_declared";
/// Begins with a character that no marker begins with.
pub const CONTENT: &str = "¤probe-content¤";
/// Text of reasoning; see [`FIRST`].
pub const THOUGHT: &str = "¤probe-thought¤";

/// How a template treats tools, calls and reasoning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether the template tells the model of the request's tools.
    pub declares_tools: bool,
    /// Whether the template writes calls of earlier answers.
    pub writes_calls: bool,
    /// Whether the template takes a call's arguments as JSON text only, not as an object.
    pub arguments_as_text: bool,
    /// Whether the template writes calls only where the message's content is null.
    pub null_content: bool,
    /// The text that it writes for an answer with one call, between the turn's header and its end.
    pub one: Option<String>,
    /// The same for two calls; some models can make one only.
    pub two: Option<String>,
    /// Text before reasoning, between reasoning and content, and behind content.
    pub reasoning: Option<[String; 3]>,
    /// The forms in which it reads contents.
    pub forms: Forms,
}

/// Renders the probes and compares the results.
pub fn facts(template: &ChatTemplate) -> Facts {
    let tools = [declared()];
    let forms = forms(template);
    let question = forms.give(user("probe-question"));
    let render = |answer: Value, tools: &[Value]| {
        let messages = [question.clone(), forms.give(answer)];
        let input = TemplateInput { messages: &messages, tools, ..TemplateInput::default() };
        template.render(&input).ok()
    };
    let plain = || json!({ "role": "assistant", "content": CONTENT });
    let with_tools = render(plain(), &tools);
    let mut facts = Facts {
        declares_tools: with_tools.as_ref().is_some_and(|text| text.contains(DECLARED)),
        forms,
        ..Facts::default()
    };
    // Objects before text and null before nothing: what works with both is given the plainer form.
    for (null, as_text) in [(false, false), (true, false), (false, true), (true, true)] {
        let answer = |n| calling(n, null, as_text);
        let Some(one) = render(answer(1), &tools).filter(|text| keeps_call(text)) else { continue };
        let plain = with_tools.as_deref().unwrap_or_default();
        let two = render(answer(2), &tools).filter(|text| text.contains(SECOND));
        facts.writes_calls = true;
        facts.null_content = null;
        facts.arguments_as_text = as_text;
        facts.one = Some(between(&one, plain));
        facts.two = two.map(|two| between(&two, plain));
        break;
    }
    facts.reasoning = render(thinking(), &[]).and_then(|text| around_reasoning(&text));
    facts
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// Conversations whose contents are given in the form that its argument gives a message.
type Conversations<'a> = dyn Fn(&dyn Fn(Value) -> Value) -> Vec<Vec<Value>> + 'a;

/// The forms in which a template reads contents: as text where that is read, as parts where those are.
fn forms(template: &ChatTemplate) -> Forms {
    let mut forms = Forms::default();
    let reads = |messages: &[Value]| {
        let input = TemplateInput { messages, ..TemplateInput::default() };
        let read = |text: String| text.contains(CONTENT) && written_out(&text) == 0;
        template.render(&input).is_ok_and(read)
    };
    let find = |conversations: &Conversations<'_>| {
        let found = [Form::Text, Form::Parts].into_iter().find(|form| {
            let give = |message: Value| form.give(message);
            conversations(&give).iter().any(|messages| reads(messages))
        });
        found.unwrap_or_default()
    };
    forms.user = find(&|give| vec![vec![give(user(CONTENT))]]);
    let question = forms.user.give(user("probe-question"));
    let answer = json!({ "role": "assistant", "content": CONTENT });
    let system = json!({ "role": "system", "content": CONTENT });
    forms.assistant = find(&|give| {
        let (question, answer) = (question.clone(), give(answer.clone()));
        vec![vec![question.clone(), answer.clone()], vec![question.clone(), answer, question]]
    });
    forms.system = find(&|give| vec![vec![give(system.clone()), question.clone()]]);
    let result = json!({
        "role": "tool", "content": CONTENT, "tool_call_id": FIRST_ID, "name": FIRST,
    });
    forms.tool = find(&|give| {
        let calls = [(false, false), (true, false), (false, true), (true, true)];
        let calls = calls.map(|(null, as_text)| forms.assistant.give(calling(1, null, as_text)));
        let conversation = |call| vec![question.clone(), call, give(result.clone())];
        calls.into_iter().map(conversation).collect()
    });
    forms
}

fn declared() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "word": { "type": "string", "description": "A word." } },
        "required": ["word"],
    });
    let function = json!({
        "name": DECLARED, "description": "Does nothing.", "parameters": parameters,
    });
    json!({ "type": "function", "function": function })
}

fn calling(n: usize, null: bool, as_text: bool) -> Value {
    let arguments = json!({ KEY: VALUE });
    let arguments =
        if as_text { Value::from(format!("{{\"{KEY}\": \"{VALUE}\"}}")) } else { arguments };
    let calls: Vec<Value> = [(FIRST, FIRST_ID), (SECOND, SECOND_ID)][..n]
        .iter()
        .map(|(name, id)| {
            let function = json!({ "name": name, "arguments": arguments });
            json!({ "id": id, "type": "function", "function": function })
        })
        .collect();
    let content = if null { Value::Null } else { Value::from("") };
    json!({ "role": "assistant", "content": content, "tool_calls": calls })
}

fn thinking() -> Value {
    json!({
        "role": "assistant", "content": CONTENT, "reasoning_content": THOUGHT,
        "reasoning": THOUGHT, "thinking": THOUGHT,
    })
}

/// Whether a call came through: its name or id, and its argument, not quoted a second time.
fn keeps_call(text: &str) -> bool {
    let named = text.contains(FIRST) || text.contains(FIRST_ID);
    let quoted_twice = text.contains(&format!("\\\"{KEY}"));
    named && text.contains(KEY) && text.contains(VALUE) && !quoted_twice
}

/// The part of `text` that takes the place of `plain`'s content: the template's words around both are the same.
fn between(text: &str, plain: &str) -> String {
    let mut head = common_prefix(text, plain);
    let tail = common_suffix(&text[head..], &plain[head..]);
    let mut end = text.len() - tail;
    // Tags that begin or end alike stay whole.
    if let Some(at) = text[..head].rfind('<').filter(|at| !text[*at..head].contains('>')) {
        head = at;
    }
    let is_open = |text: &str| text.rfind('<').is_some_and(|at| !text[at..].contains('>'));
    if let Some(at) = text[end..].find('>').filter(|_| is_open(&text[head..end])) {
        end += at + 1;
    }
    text[head..end].to_string()
}

/// Bytes that both begin with, whole characters.
pub fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum()
}

/// Bytes that both end with, whole characters.
pub fn common_suffix(a: &str, b: &str) -> usize {
    let pairs = a.chars().rev().zip(b.chars().rev());
    pairs.take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum()
}

fn around_reasoning(text: &str) -> Option<[String; 3]> {
    let (before, rest) = text.split_once(THOUGHT)?;
    let (middle, after) = rest.split_once(CONTENT)?;
    Some([before.to_string(), middle.to_string(), after.to_string()])
}
