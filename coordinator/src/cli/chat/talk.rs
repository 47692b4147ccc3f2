//! The chat so far: its messages, and the other fields of its requests.

use serde_json::{Map, Value, json};

/// Messages and settings of a chat.
#[derive(Clone, Debug, Default)]
pub struct Talk {
    /// The model to ask for; `None`: the server's default.
    pub model: Option<String>,
    /// The system message; `None`: the chat has none.
    pub system: Option<String>,
    /// Fields of every request.
    pub settings: Map<String, Value>,
    /// User's and assistant's messages in turn.
    turns: Vec<Turn>,
}

#[derive(Clone, Debug)]
struct Turn {
    user: String,
    answer: Option<Answer>,
}

/// An answer of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The text of the answer.
    pub text: String,
    /// The reasoning before it.
    pub reasoning: String,
}

impl Talk {
    /// A chat in which nothing is said yet.
    pub fn new(system: Option<String>, settings: Map<String, Value>) -> Self {
        Self { system, settings, ..Self::default() }
    }

    /// Whether its answers are guided by a second sequence.
    pub fn has_companion(&self) -> bool {
        let scale = self.settings.get("guidance_scale").and_then(Value::as_f64);
        scale.is_some_and(|scale| scale != 1.0)
    }

    /// Forgets all messages but the system's.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// The user says something; it has no answer yet.
    pub fn say(&mut self, text: String) {
        self.turns.push(Turn { user: text, answer: None });
    }

    /// Whether there is a message to answer again.
    pub fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// The model has answered the last message.
    pub fn answered(&mut self, answer: Answer) {
        if let Some(turn) = self.turns.last_mut() {
            turn.answer = Some(answer);
        }
    }

    /// The last message got no answer. If it never had one, it is taken out again, so that what follows can be
    /// answered.
    pub fn refused(&mut self) {
        self.turns.pop_if(|turn| turn.answer.is_none());
    }

    /// The body of the request that asks for an answer to the last message.
    pub fn request(&self) -> Value {
        let mut body = self.settings.clone();
        body.extend(self.model.iter().map(|model| ("model".to_string(), json!(model))));
        body.insert("messages".to_string(), self.messages(false).into());
        body.insert("stream".to_string(), json!(true));
        body.insert("stream_options".to_string(), json!({"include_usage": true}));
        body.into()
    }

    /// All messages; `answered`: also the answer that the last one has.
    fn messages(&self, answered: bool) -> Vec<Value> {
        let mut messages = Vec::new();
        messages.extend(self.system.iter().map(|text| json!({"role": "system", "content": text})));
        for (turn, left) in self.turns.iter().zip((0..self.turns.len()).rev()) {
            messages.push(json!({"role": "user", "content": turn.user}));
            if let Some(answer) = turn.answer.as_ref().filter(|_| answered || left > 0) {
                messages.push(answer.message());
            }
        }
        messages
    }

    /// The chat for a file: as a request's messages, or as text.
    pub fn saved(&self, as_json: bool) -> String {
        let messages = self.messages(true);
        if as_json {
            return format!("{:#}\n", json!({ "messages": messages }));
        }
        let text = |m: &Value, field: &str| m[field].as_str().unwrap_or_default().to_string();
        let part = |m: &Value| format!("{}:\n{}\n", text(m, "role"), text(m, "content"));
        messages.iter().map(part).collect::<Vec<_>>().join("\n")
    }
}

impl Answer {
    fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Answer {
        Answer { text: text.to_string(), reasoning: String::new() }
    }

    fn contents(talk: &Talk) -> Vec<String> {
        let body = talk.request();
        let messages = body["messages"].as_array().unwrap();
        messages.iter().map(|m| m["content"].as_str().unwrap().to_string()).collect()
    }

    #[test]
    fn a_request_ends_with_what_is_to_be_answered() {
        let mut talk = Talk { system: Some("s".to_string()), ..Talk::default() };
        talk.settings.insert("top_k".to_string(), json!(3));
        talk.say("a".to_string());
        talk.answered(answer("b"));
        assert_eq!(contents(&talk), ["s", "a"], "again: without the answer that it has");
        talk.say("c".to_string());
        assert_eq!(contents(&talk), ["s", "a", "b", "c"]);
        assert_eq!((&talk.request()["top_k"], talk.request().get("model")), (&json!(3), None));
        talk.clear();
        assert_eq!((contents(&talk), talk.has_turns()), (vec!["s".to_string()], false));
    }

    #[test]
    fn what_got_no_answer_is_taken_out_and_an_older_answer_stays() {
        let mut talk = Talk::default();
        talk.say("a".to_string());
        talk.answered(answer("b"));
        talk.refused();
        assert_eq!(talk.saved(false), "user:\na\n\nassistant:\nb\n");
        talk.say("c".to_string());
        talk.refused();
        assert_eq!(contents(&talk), ["a"]);
    }

    #[test]
    fn a_saved_chat_is_a_requests_messages() {
        let mut talk = Talk::default();
        talk.say("a".to_string());
        talk.answered(Answer { text: "b".to_string(), reasoning: "r".to_string() });
        let saved: Value = serde_json::from_str(&talk.saved(true)).unwrap();
        let second = json!({"role": "assistant", "content": "b", "reasoning_content": "r"});
        assert_eq!(saved["messages"], json!([{"role": "user", "content": "a"}, second]));
    }
}
