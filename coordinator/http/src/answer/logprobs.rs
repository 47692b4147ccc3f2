//! Log-probabilities in the two shapes that OpenAI's endpoints have.

use brigade_dialect::text_model::TextModel;
use brigade_line::generation::TokenPiece;
use serde_json::{Map, json};

use crate::answer::types::{ChatLogprobs, TextLogprobs, TokenLogprob, TopLogprob};

fn token_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Log-probabilities in the form of chat answers. A token without a value (the model gave none) is left out.
pub fn chat(model: &TextModel, tokens: &[TokenPiece]) -> ChatLogprobs {
    let entry = |t: &TokenPiece| {
        let top_logprobs = t.top.iter().map(|(id, logprob)| {
            let bytes = model.vocab_bytes(*id);
            TopLogprob { token: token_text(&bytes), logprob: *logprob, bytes }
        });
        let bytes = model.vocab_bytes(t.id);
        Some(TokenLogprob {
            token: token_text(&bytes),
            logprob: t.logprob?,
            bytes,
            top_logprobs: top_logprobs.collect(),
        })
    };
    ChatLogprobs { content: tokens.iter().filter_map(entry).collect(), refusal: None }
}

/// Log-probabilities in the form of text completions. `offset` counts the characters before these tokens; it is moved
/// past them.
pub fn text(model: &TextModel, tokens: &[TokenPiece], offset: &mut usize) -> TextLogprobs {
    let mut out = TextLogprobs::default();
    for t in tokens {
        let token = token_text(&model.vocab_bytes(t.id));
        let top: Map<_, _> = t
            .top
            .iter()
            .map(|(id, logprob)| (token_text(&model.vocab_bytes(*id)), json!(logprob)))
            .collect();
        out.text_offset.push(*offset);
        // A control token has a name and no text.
        *offset += token_text(&t.bytes).chars().count();
        out.tokens.push(token);
        out.token_logprobs.push(t.logprob);
        out.top_logprobs.push(t.logprob.map(|_| top));
    }
    out
}
