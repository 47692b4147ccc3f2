//! A conversation's way through the model's template. The template shows the model's dialect, and in which form it
//! takes messages and tools. Afterwards all of their texts must be in the prompt.

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
