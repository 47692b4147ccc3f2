//! The form in which a template reads contents: as texts, or as lists of parts.

use serde_json::{Value, json};

/// The form in which a template reads a message's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Content is a plain text.
    #[default]
    Text,
    /// Content is a list of parts.
    Parts,
}

impl Form {
    /// The other of the two forms.
    pub fn other(self) -> Self {
        match self {
            Self::Text => Self::Parts,
            Self::Parts => Self::Text,
        }
    }

    /// A message whose content is a text, with its content in this form.
    pub fn give(self, mut message: Value) -> Value {
        if self == Self::Text {
            return message;
        }
        if let Some(content) = message.get_mut("content")
            && let Some(text) = content.as_str()
        {
            *content = match text {
                "" => json!([]),
                text => json!([{ "type": "text", "text": text }]),
            };
        }
        message
    }
}

/// The form for each role, as probes found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// The form of users' messages.
    pub user: Form,
    /// The form of answers.
    pub assistant: Form,
    /// The form of system messages.
    pub system: Form,
    /// The form of results of tools.
    pub tool: Form,
}

impl Forms {
    /// The form of a message's role.
    pub fn of(&self, message: &Value) -> Form {
        match message.get("role").and_then(Value::as_str) {
            Some("assistant") => self.assistant,
            Some("system" | "developer") => self.system,
            Some("tool") => self.tool,
            _ => self.user,
        }
    }

    /// A message in the form of its role.
    pub fn give(&self, message: Value) -> Value {
        self.of(&message).give(message)
    }
}
