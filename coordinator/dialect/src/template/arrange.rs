//! Other arrangements of a conversation, for templates that refuse it as it is or leave a part of it out. No
//! arrangement loses a text; [`super::fit`] tries them in turn.

use serde_json::{Map, Value, json};

/// How an arrangement treats system messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Systems {
    /// System messages stay where they are.
    #[default]
    Stay,
    /// All system messages are merged into one, which comes first.
    Merged,
    /// The text of system messages begins the first message of a user.
    Moved,
}

/// How an arrangement treats calls of earlier answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallsGiven {
    /// Calls stay as they are.
    #[default]
    Stay,
    /// Text beside calls is a message of its own, before them.
    Apart,
    /// As the way before, and each call has a message of its own, with its result behind it.
    Single,
    /// Calls and their results are written into the text.
    InWords,
}

/// An arrangement of the messages of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrangement {
    /// How system messages are arranged.
    pub systems: Systems,
    /// Neighbours of one role are one message.
    pub joined: bool,
    /// A conversation that does not begin with a user's message gets an empty one.
    pub user_first: bool,
    /// How calls are arranged.
    pub calls: CallsGiven,
}

impl Arrangement {
    /// All arrangements; those that change least come first.
    pub fn all() -> impl Iterator<Item = Self> {
        let calls = [CallsGiven::Stay, CallsGiven::Apart, CallsGiven::Single, CallsGiven::InWords];
        let systems = [Systems::Stay, Systems::Merged, Systems::Moved];
        calls.into_iter().flat_map(move |calls| {
            [false, true].into_iter().flat_map(move |user_first| {
                [false, true].into_iter().flat_map(move |joined| {
                    systems.map(|systems| Self { systems, joined, user_first, calls })
                })
            })
        })
    }

    /// Whether it can be another one than without its calls, for a conversation with so many calls and results.
    pub fn is_for(self, n_calls: usize) -> bool {
        n_calls > 0 || self.calls == CallsGiven::Stay
    }

    /// Arranges messages, in which calls are in words already where that is wanted.
    pub fn of(self, messages: &[Value]) -> Vec<Value> {
        let mut messages = messages.to_vec();
        if matches!(self.calls, CallsGiven::Apart | CallsGiven::Single) {
            messages = apart(messages);
        }
        if self.calls == CallsGiven::Single {
            messages = single(messages);
        }
        if self.user_first {
            let at = messages.iter().take_while(|message| is_system(message)).count();
            if messages.get(at).is_some_and(|message| !is(message, "user")) {
                messages.insert(at, json!({ "role": "user", "content": "" }));
            }
        }
        match self.systems {
            Systems::Stay => {}
            Systems::Merged => merge(&mut messages),
            Systems::Moved => move_systems(&mut messages),
        }
        if self.joined { join(messages) } else { messages }
    }

    /// The changes of this arrangement, in words for the log.
    pub fn words(self) -> Vec<&'static str> {
        let mut all = Vec::new();
        match self.systems {
            Systems::Stay => {}
            Systems::Merged => all.push("system messages are merged into one at the beginning"),
            Systems::Moved => all.push("system messages go into the first user message"),
        }
        if self.joined {
            all.push("neighbouring messages of one role are joined");
        }
        if self.user_first {
            all.push("an empty user message begins the conversation");
        }
        match self.calls {
            CallsGiven::Stay => {}
            CallsGiven::Apart => all.push("text beside tool calls is a message of its own"),
            CallsGiven::Single => all.push("every tool call is a message of its own"),
            CallsGiven::InWords => all.push("earlier tool calls and results are written as text"),
        }
        all
    }
}

/// Whether a message is of this role.
fn is(message: &Value, role: &str) -> bool {
    message.get("role").and_then(Value::as_str) == Some(role)
}

/// Whether a message is an instruction (`system` or `developer`), and not a turn of the conversation.
pub fn is_system(message: &Value) -> bool {
    is(message, "system") || is(message, "developer")
}

/// A message's text; empty if it has none.
pub fn text_of(message: &Value) -> &str {
    message.get("content").and_then(Value::as_str).unwrap_or_default()
}

fn set_text(message: &mut Value, text: String) {
    if let Some(message) = message.as_object_mut() {
        message.insert("content".to_string(), Value::from(text));
    }
}

fn calls_of(message: &Value) -> Option<&Vec<Value>> {
    message.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty())
}

/// Two texts as one of two paragraphs.
fn paragraphs(first: &str, second: &str) -> String {
    match (first.is_empty(), second.is_empty()) {
        (false, false) => format!("{first}\n\n{second}"),
        _ => format!("{first}{second}"),
    }
}

/// Takes all system messages out; the first of them, with the text of all.
fn take_systems(messages: &mut Vec<Value>) -> Option<Value> {
    let mut first: Option<Value> = None;
    messages.retain(|message| {
        if !is_system(message) {
            return true;
        }
        match &mut first {
            None => first = Some(message.clone()),
            Some(first) => {
                let text = paragraphs(text_of(first), text_of(message));
                set_text(first, text);
            }
        }
        false
    });
    first
}

fn merge(messages: &mut Vec<Value>) {
    if let Some(system) = take_systems(messages) {
        messages.insert(0, system);
    }
}

fn move_systems(messages: &mut Vec<Value>) {
    let Some(system) = take_systems(messages) else { return };
    match messages.iter_mut().find(|message| is(message, "user")) {
        Some(user) => {
            let text = paragraphs(text_of(&system), text_of(user));
            set_text(user, text);
        }
        None => messages.insert(0, json!({ "role": "user", "content": text_of(&system) })),
    }
}

/// Joins neighbours of one role. Results of tools stay apart, and nothing follows calls in one message.
fn join(messages: Vec<Value>) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::new();
    for message in messages {
        let role = message.get("role").cloned();
        let fits = |last: &&mut Value| {
            last.get("role") == role.as_ref() && !is(last, "tool") && calls_of(last).is_none()
        };
        match joined.last_mut().filter(fits) {
            Some(last) => join_onto(last, &message),
            None => joined.push(message),
        }
    }
    joined
}

fn join_onto(last: &mut Value, message: &Value) {
    let text = paragraphs(text_of(last), text_of(message));
    let (Some(last), Some(message)) = (last.as_object_mut(), message.as_object()) else { return };
    for (name, value) in message {
        match last.get(name).and_then(Value::as_str).zip(value.as_str()) {
            _ if name == "role" || name == "content" => {}
            Some((before, more)) => {
                let both = Value::from(paragraphs(before, more));
                last.insert(name.clone(), both);
            }
            None => drop(last.insert(name.clone(), value.clone())),
        }
    }
    last.insert("content".to_string(), Value::from(text));
}

/// Text beside calls gets a message of its own, which the reasoning goes with.
fn apart(messages: Vec<Value>) -> Vec<Value> {
    let split = |message: Value| {
        if calls_of(&message).is_none() || text_of(&message).trim().is_empty() {
            return vec![message];
        }
        let Value::Object(mut said) = message else { return vec![message] };
        let mut called = Map::new();
        for name in ["role", "tool_calls"] {
            called.extend(said.get(name).map(|value| (name.to_string(), value.clone())));
        }
        called.insert("content".to_string(), Value::from(""));
        said.shift_remove("tool_calls");
        vec![Value::Object(said), Value::Object(called)]
    };
    messages.into_iter().flat_map(split).collect()
}

/// Every call gets a message of its own, and its result stands behind it.
fn single(messages: Vec<Value>) -> Vec<Value> {
    let mut all = Vec::new();
    let mut rest = messages.into_iter().peekable();
    while let Some(message) = rest.next() {
        let Some(calls) = calls_of(&message).cloned().filter(|calls| calls.len() > 1) else {
            all.push(message);
            continue;
        };
        let mut results: Vec<Value> = Vec::new();
        while let Some(result) = rest.next_if(|next| is(next, "tool")) {
            results.push(result);
        }
        for (n, call) in calls.into_iter().enumerate() {
            let mut message = message.clone();
            if let Some(message) = message.as_object_mut() {
                if n > 0 {
                    message.retain(|name, _| matches!(name.as_str(), "role" | "content"));
                }
                message.insert("tool_calls".to_string(), json!([call]));
            }
            all.push(message);
            let id = call.get("id");
            let answers = |result: &Value| id.is_some() && result.get("tool_call_id") == id;
            if let Some(at) = results.iter().position(answers) {
                all.push(results.remove(at));
            }
        }
        all.extend(results);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> Value {
        json!({ "role": role, "content": content })
    }

    fn of(arrangement: Arrangement, messages: &[(&str, &str)]) -> Vec<(String, String)> {
        let messages: Vec<Value> =
            messages.iter().map(|(role, content)| message(role, content)).collect();
        let pair = |m: Value| (m["role"].as_str().unwrap().to_string(), text_of(&m).to_string());
        arrangement.of(&messages).into_iter().map(pair).collect()
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(role, content)| (role.to_string(), content.to_string())).collect()
    }

    #[test]
    fn system_messages_are_merged_or_moved_in_order() {
        let given =
            [("system", "a"), ("user", "b"), ("developer", "c"), ("assistant", "d"), ("user", "e")];
        let merged = Arrangement { systems: Systems::Merged, ..Arrangement::default() };
        let want = [("system", "a\n\nc"), ("user", "b"), ("assistant", "d"), ("user", "e")];
        assert_eq!(of(merged, &given), pairs(&want));
        let moved = Arrangement { systems: Systems::Moved, ..Arrangement::default() };
        let want = [("user", "a\n\nc\n\nb"), ("assistant", "d"), ("user", "e")];
        assert_eq!(of(moved, &given), pairs(&want));
        assert_eq!(of(moved, &[("system", "a")]), pairs(&[("user", "a")]));
    }

    #[test]
    fn turns_are_joined_and_begun() {
        let joined = Arrangement { joined: true, user_first: true, ..Arrangement::default() };
        let given = [("system", "s"), ("assistant", "a"), ("user", "b"), ("user", "c")];
        let want = [("system", "s"), ("user", ""), ("assistant", "a"), ("user", "b\n\nc")];
        assert_eq!(of(joined, &given), pairs(&want));
        // A system message goes before an answer that begins the conversation, not behind it.
        let moved = Arrangement { systems: Systems::Moved, ..joined };
        let want = [("user", "s"), ("assistant", "a"), ("user", "b\n\nc")];
        assert_eq!(of(moved, &given), pairs(&want));
    }

    #[test]
    fn calls_are_set_apart_and_keep_their_results() {
        let call = |id: &str| json!({ "id": id, "function": { "name": id, "arguments": {} } });
        let messages = [
            json!({ "role": "assistant", "content": "x", "tool_calls": [call("a"), call("b")] }),
            json!({ "role": "tool", "tool_call_id": "b", "content": "2" }),
            json!({ "role": "tool", "tool_call_id": "a", "content": "1" }),
        ];
        let single = Arrangement { calls: CallsGiven::Single, ..Arrangement::default() };
        let all = single.of(&messages);
        let roles: Vec<&str> = all.iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["assistant", "assistant", "tool", "assistant", "tool"]);
        assert_eq!((text_of(&all[0]), text_of(&all[1])), ("x", ""));
        assert_eq!((text_of(&all[2]), text_of(&all[4])), ("1", "2"));
        assert_eq!(all[3]["tool_calls"], json!([call("b")]));
    }

    #[test]
    fn the_first_arrangement_changes_nothing() {
        assert_eq!(Arrangement::all().next(), Some(Arrangement::default()));
        assert!(Arrangement::default().words().is_empty());
    }
}
