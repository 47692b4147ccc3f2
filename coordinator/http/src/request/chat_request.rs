//! A chat as it comes in: read, and templated. Other APIs' chats are read as this one's fields
//! ([`ChatRequest::translated`]), so that all of them mean the same.

use std::sync::Arc;

use brigade_dialect::Tools;
use brigade_dialect::constrain::answer::{Wishes, of_chat};
use brigade_dialect::text_model::{Chat, Prompt, TextModel};
use brigade_line::request::Limits;

use crate::error::ApiError;
use crate::request::bodies::text_error;
use crate::request::caching::Marking;
use crate::request::fields::Fields;
use crate::request::ignored_fields;
use crate::request::messages::{self, reasoning, template_arguments};
use crate::request::params::Common;
use crate::request::tools::ToolRequest;

/// Fields that would change a chat's prompt or answer, and have no effect here.
const REFUSED: &[(&str, &str)] = &[
    (
        "chat_template",
        "--chat-template sets it where the model is started; chat_template_kwargs are for its variables",
    ),
    (
        "documents",
        "put them into the messages, or into chat_template_kwargs where the template reads them",
    ),
    ("best_of", "use n"),
    ("function_call", "use tool_choice"),
    ("echo", "it is for /v1/completions"),
];

/// A chat request, read.
#[derive(Debug)]
pub struct ChatRequest {
    chat: Chat,
    /// The functions that may be called.
    pub tools: Arc<Tools>,
    /// Whether one call is enough.
    pub single: bool,
    /// Sampling and the like.
    pub common: Common,
    /// Likely alternatives to report for each token; `None`: no log-probabilities.
    pub top_logprobs: Option<u32>,
    /// Names of the request's fields before translation, for errors.
    pub names: Names,
}

/// Pairs of a chat field's name and its name in the interface from which the request was translated. Errors use the
/// latter.
pub type Names = Vec<(String, String)>;

impl ChatRequest {
    /// Reads a request and its prompt. Its fields may have been made of another API's.
    ///
    /// # Errors
    /// The request cannot run. The error has the names that the fields had in the other API.
    pub fn translated(
        fields: Result<Fields<'_>, ApiError>,
        names: Names,
        limits: &Limits,
        text: &TextModel,
    ) -> Result<(Self, Prompt), ApiError> {
        let read = move || {
            let mut request = Self::of(fields?, limits, text)?;
            let prompt = request.prompt(text)?;
            Ok((request, prompt))
        };
        match read() {
            Ok((request, prompt)) => Ok((Self { names, ..request }, prompt)),
            Err(error) => Err(ApiError::renamed(error, &names)),
        }
    }

    /// Reads a request's body.
    pub fn read(body: &[u8], limits: &Limits, text: &TextModel) -> Result<Self, ApiError> {
        Self::of(Fields::parse(body)?, limits, text)
    }

    fn of(mut fields: Fields<'_>, limits: &Limits, text: &TextModel) -> Result<Self, ApiError> {
        let mut left = crate::request::fields::MAX_TEMPLATE_VALUES;
        let mut marking = Marking::default();
        let (messages, n_message_bytes) = messages::read(&mut fields, &mut left, &mut marking)?;
        let tools = ToolRequest::read(&mut fields, &mut left, &mut marking)?;
        limits.check_text(n_message_bytes + tools.n_bytes)?;
        let mut extra = template_arguments(&mut fields, &mut left)?;
        reasoning(&mut fields, &mut extra)?;
        let continues = messages::continues(&mut fields, &messages, tools.force())?;
        let wants: bool = fields.take("logprobs")?.unwrap_or(false);
        let top: Option<u32> = fields.take("top_logprobs")?;
        let top_logprobs = match (wants, top) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                let message = "top_logprobs needs logprobs to be true";
                return Err(ApiError::field("top_logprobs", message));
            }
        };
        for (name, why) in REFUSED {
            fields.refuse(name, why)?;
        }
        let common = Common::read(&mut fields, limits, text, None, &mut left)?;
        fields.end(
            "/v1/chat/completions",
            &[ignored_fields::COMMON, ignored_fields::GENERATING, ignored_fields::CHAT],
        );
        let (force, single, known) = (tools.force().clone(), tools.single, tools.known);
        let (tools, marked) = (tools.for_template, marking.into_marked());
        let chat = Chat { messages, tools, force, continues, extra, marked, is_shown: false };
        let names = Names::new();
        Ok(Self { chat, tools: Arc::new(known), single, common, top_logprobs, names })
    }

    /// The chat as the model reads it. This also determines the form that the answer must have.
    pub fn prompt(&mut self, text: &TextModel) -> Result<Prompt, ApiError> {
        let chat = std::mem::take(&mut self.chat);
        let prompt = text.encode_chat(&chat).map_err(text_error)?;
        self.common.borders = prompt.borders.as_slice().into();
        let wishes = Wishes {
            form: self.common.form.as_ref(),
            force: &chat.force,
            single: self.single,
            tools: &self.tools,
        };
        self.common.constraint = of_chat(text, &prompt, wishes)?;
        let instead = |negative: &str| Ok(text.encode_chat(&chat.with_system(negative))?.tokens);
        self.common.companion.encode(instead)?;
        Ok(prompt)
    }

    /// Places of the prompt up to which the client wants its state to be kept.
    #[cfg(test)]
    pub fn marked(&self) -> &brigade_dialect::Marked {
        &self.chat.marked
    }

    /// The prompt, to be looked at: also where the template leaves a text out.
    pub fn shown(&mut self, text: &TextModel) -> Result<Prompt, ApiError> {
        self.chat.is_shown = true;
        self.prompt(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::fields::MAX_TEMPLATE_VALUES;
    use crate::request::messages::MAX_MESSAGES;

    const LIMITS: Limits = Limits { n_ctx: 64, n_vocab: 100, answer: 1024, encoder: None };

    fn error(json: &str) -> String {
        let error = ChatRequest::read(json.as_bytes(), &LIMITS, &TextModel::sample()).unwrap_err();
        error.body()["error"]["message"].as_str().unwrap().to_string()
    }

    #[test]
    fn parts_are_joined_and_other_fields_kept() {
        let json = r#"{"messages": [{"role": "user", "name": "x", "content":
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            "chat_template_kwargs": {"thinking": false}}"#;
        let request = ChatRequest::read(json.as_bytes(), &LIMITS, &TextModel::sample()).unwrap();
        assert_eq!(request.chat.messages[0]["content"], "ab");
        assert_eq!(request.chat.messages[0]["name"], "x");
        assert_eq!(request.chat.extra["thinking"], false);
    }

    #[test]
    fn what_would_grow_is_refused_before_it_does() {
        let many = vec![r#"{"role": "user"}"#; MAX_MESSAGES + 1].join(",");
        assert!(error(&format!(r#"{{"messages": [{many}]}}"#)).contains("more than 8192"));
        let parts = vec!["1"; MAX_MESSAGES + 1].join(",");
        let message = format!(r#"{{"messages": [{{"role": "user", "content": [{parts}]}}]}}"#);
        assert!(error(&message).contains("messages[0].content: more than 8192"));
        let text = "x".repeat(64 * 256 + 1);
        let message = format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}]}}"#);
        assert!(error(&message).contains("16385 bytes: at most 16384"));
        let values = vec!["[]"; MAX_TEMPLATE_VALUES / 2].join(",");
        for place in [
            format!(r#"{{"messages": [{{"role": "user", "content": "", "x": [{values}]}}]}}"#),
            format!(
                r#"{{"messages": [{{"role": "user"}}], "chat_template_kwargs": {{"x": [{values}]}}}}"#
            ),
        ] {
            assert!(error(&place).contains("may hand 65536 to the chat template"));
        }
    }

    #[test]
    fn complaints_name_the_place() {
        assert!(error(r#"{}"#).contains("messages is required"));
        assert!(error(r#"{"messages": []}"#).contains("empty"));
        assert!(error(r#"{"messages": [{"content": "x"}]}"#).contains("messages[0].role"));
        assert!(error(r#"{"messages": [{"role": "user", "content": 3}]}"#).contains("a number"));
        let image = r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#;
        assert!(error(image).contains("messages[0].content[0].type"));
        let alone = r#"{"messages": [{"role": "user"}], "top_logprobs": 2}"#;
        assert!(error(alone).contains("logprobs"));
    }
}
