//! Reading answers: markers in a text that has not all arrived, calls of tools, channels, and the parser that puts all of them
//! together.

pub mod call_body;
pub mod call_head;
pub mod channel;
pub mod control_tokens;
pub mod events;
pub mod lexer;
pub(super) mod markers;
pub mod streaming;
pub(super) mod whole_calls;
