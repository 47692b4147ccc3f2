//! How a conversation goes through the model's template: what the template shows of its dialect, in which form it takes
//! messages and tools, and whether all of their texts are in the prompt.

pub mod arrange;
pub(super) mod borders;
pub mod content_form;
pub mod detect;
pub mod fit;
pub mod held_texts;
pub mod history;
pub mod known;
pub mod opening;
pub mod probe;
pub mod sketch;
#[cfg(test)]
pub(crate) mod tests;
