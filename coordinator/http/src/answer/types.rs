//! The JSON that leaves this server, in OpenAI's shape, with one struct for each object.

use brigade_line::model::ModelMeta;

use serde::Serialize;

/// Token counts of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens drawn, over all choices.
    pub completion_tokens: u32,
    /// Prompt and completion tokens together.
    pub total_tokens: u32,
    /// Prompt tokens that were not computed again.
    pub prompt_tokens_details: PromptDetails,
    /// Counts of predicted tokens; left out where the client gave no prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionDetails>,
    /// Positions that were computed a second time because a worker was lost; left out where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub recomputed_tokens: u32,
    /// The answer was begun and gone on with by workers that compute other bits; left out where it was not.
    #[serde(skip_serializing_if = "is_false")]
    pub numerics_changed: bool,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_false(is: &bool) -> bool {
    !is
}

/// More about a prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    /// Tokens that an earlier request's state stood for: they were not computed again.
    pub cached_tokens: u32,
}

/// More about an answer's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompletionDetails {
    /// Tokens of `prediction` that were drafted and drawn.
    pub accepted_prediction_tokens: u32,
    /// Tokens of `prediction` that were drafted, and others were drawn.
    pub rejected_prediction_tokens: u32,
}

impl CompletionDetails {
    /// The counts of right and wrong drafts; `None` where there were none.
    pub fn of(expected: [u32; 2]) -> Option<Self> {
        let [right, wrong] = expected;
        (right + wrong > 0).then_some(Self {
            accepted_prediction_tokens: right,
            rejected_prediction_tokens: wrong,
        })
    }
}

/// Times of one answer, an extension that llama.cpp's server also has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Prompt tokens that were reused.
    pub cache_n: u32,
    /// Prompt tokens that were computed.
    pub prompt_n: u32,
    /// Milliseconds to the first token, waiting included.
    pub prompt_ms: f64,
    /// Prompt tokens computed in a second.
    pub prompt_per_second: f64,
    /// Tokens of the answer.
    pub predicted_n: u32,
    /// Milliseconds from the first token to the last.
    pub predicted_ms: f64,
    /// Tokens a second after the first.
    pub predicted_per_second: f64,
}

/// Why a choice ended: `stop`, `length` or `tool_calls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishWord {
    /// A stop token or string came.
    Stop,
    /// `max_tokens` or the context ended it.
    Length,
    /// The model calls tools.
    ToolCalls,
}

/// A chat's whole answer, `chat.completion`.
#[derive(Debug, Serialize)]
pub struct ChatCompletion {
    /// Unique id, `chatcmpl-...`.
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// Name of the served model.
    pub model: String,
    /// Names what computed the answer.
    pub system_fingerprint: String,
    /// One a sequence, by index.
    pub choices: Vec<ChatChoice>,
    /// Token counts of all choices together.
    pub usage: Usage,
    /// Times of the first choice.
    pub timings: Timings,
    /// Ids of the prompt's tokens, where they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One answer of `n`.
#[derive(Debug, Serialize)]
pub struct ChatChoice {
    /// The choice's number, from 0.
    pub index: usize,
    /// The assistant's message.
    pub message: ChatMessage,
    /// Present when asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why the choice ended.
    pub finish_reason: FinishWord,
    /// Ids of its tokens, where they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// The assistant's message in a whole answer.
#[derive(Debug, Serialize)]
pub struct ChatMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// The message's text; null where the message consists of calls alone.
    pub content: Option<String>,
    /// The model's reasoning before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Always null here; client libraries expect the field.
    pub refusal: Option<String>,
    /// The tools that the model calls, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    /// The call's id, which its result will name.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The function and its arguments.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionCall {
    /// The function's name, as the request declares it.
    pub name: String,
    /// JSON text, as far as the model wrote JSON.
    pub arguments: String,
}

/// New parts of a call: the first has id, type and name, those that follow have arguments alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolCallDelta {
    /// The call's number within the choice, from 0.
    pub index: usize,
    /// The call's id; in its first delta only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// In the first delta only: `function`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// The new part of the call.
    pub function: FunctionDelta,
}

/// New parts of a function's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionDelta {
    /// The function's name; in the call's first delta only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of the arguments.
    pub arguments: String,
}

/// One event of a streamed chat, `chat.completion.chunk`.
#[derive(Debug, Serialize)]
pub struct ChatChunk {
    /// The same in all chunks of an answer.
    pub id: String,
    /// Always `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// Name of the served model.
    pub model: String,
    /// Names what computed the answer.
    pub system_fingerprint: String,
    /// Empty in the usage chunk.
    pub choices: Vec<ChatChunkChoice>,
    /// Only in the usage chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Only in a choice's last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// A piece of one choice.
#[derive(Debug, Serialize)]
pub struct ChatChunkChoice {
    /// The choice's number, from 0.
    pub index: usize,
    /// The new part of the message.
    pub delta: ChatDelta,
    /// Present when asked for and there are tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// The reason for the end; in the last event only.
    pub finish_reason: Option<FinishWord>,
    /// Ids of the tokens whose text is known with it, where they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// New parts of a message.
#[derive(Debug, Default, Serialize)]
pub struct ChatDelta {
    /// In the first event only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// New text of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// New text of the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// New parts of one call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta; 1]>,
}

/// Log-probabilities of a chat answer.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    /// One entry for each token of the answer.
    pub content: Vec<TokenLogprob>,
    /// Always null: refusals are not told apart from content.
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// A drawn token and its likeliest alternatives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// Text of the token; incomplete UTF-8 shows as U+FFFD.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The token's bytes, which may be a part of a character.
    pub bytes: Vec<u8>,
    /// The most probable tokens at this place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// A likely alternative at a position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopLogprob {
    /// The token's text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The token's bytes, which may be a part of a character.
    pub bytes: Vec<u8>,
}

/// `text_completion`, whole or a piece of a stream.
#[derive(Debug, Serialize)]
pub struct TextCompletion {
    /// Unique id, `cmpl-...`.
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// Name of the served model.
    pub model: String,
    /// Names what computed the answer.
    pub system_fingerprint: String,
    /// All choices, or the one that has something new; empty in a usage chunk.
    pub choices: Vec<TextChoice>,
    /// Not in the pieces of a stream, except the usage chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Where a choice ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One continuation of a prompt.
#[derive(Debug, Serialize)]
pub struct TextChoice {
    /// Prompt number times `n`, plus the number of the continuation.
    pub index: usize,
    /// The choice's text, or what is new of it.
    pub text: String,
    /// Present when asked for.
    pub logprobs: Option<TextLogprobs>,
    /// `None` until it has ended.
    pub finish_reason: Option<FinishWord>,
    /// Ids of the prompt's tokens, where they are asked for, in the choice's first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Ids of its tokens, likewise, of each piece its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// Log-probabilities of a completion: parallel lists.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct TextLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// The tokens' log-probabilities; null for the first token of a prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most probable tokens at each place, by text.
    pub top_logprobs: Vec<Option<serde_json::Map<String, serde_json::Value>>>,
    /// Characters before each token, echoed prompt included.
    pub text_offset: Vec<usize>,
}

/// The answer of `/v1/models`.
#[derive(Debug, Serialize)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The one model, by each of its names.
    pub data: Vec<ModelObject>,
    /// Codex insists on this list, and takes an empty one for "use your own".
    pub models: [(); 0],
}

/// An entry of `/v1/models`.
#[derive(Debug, Serialize)]
pub struct ModelObject {
    /// The model's name in requests.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// Seconds since the Unix epoch when it was opened.
    pub created: u64,
    /// Always `brigade`.
    pub owned_by: &'static str,
    /// Positions a sequence may hold here.
    pub context_length: u32,
    /// The same, as vLLM has it.
    pub max_model_len: u32,
    /// The state of a model that is loaded on demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ModelStatus>,
    /// The model's sizes and file, beyond OpenAI's fields.
    pub meta: ModelMeta,
}

/// The state of loading, in the shape of llama.cpp's server.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ModelStatus {
    /// `loaded`, `loading` or `unloaded`.
    pub value: &'static str,
}
