//! `logit_bias`: values that are added to the logits of tokens.

use brigade_dialect::text_model::TextModel;
use brigade_dialect::values::number::{Number, of_text};
use brigade_line::request::MAX_LOGIT_BIAS;

use crate::error::ApiError;
use crate::request::bodies::text_error;
use crate::request::fields::{Fields, Given, Kind, entries, list, read as read_value};

/// OpenAI's scale ends at 100, which "should result in a ban or exclusive selection".
const BAN_BIAS: f32 = -100.0;

/// `{"ID": BIAS}` as OpenAI has it, or `[[ID, BIAS], ["TEXT", BIAS]]` as llama.cpp has it; a text stands for its
/// tokens, in either. `false` bans.
pub fn read(fields: &mut Fields<'_>, text: &TextModel) -> Result<Vec<(u32, f32)>, ApiError> {
    let bad = |message: String| ApiError::field("logit_bias", message);
    let Some(raw) = fields.raw("logit_bias") else { return Ok(Vec::new()) };
    let mut named: Vec<(String, Given<'_>)> = Vec::new();
    if raw.kind() == Kind::List {
        for pair in list("logit_bias", raw, MAX_LOGIT_BIAS)? {
            let pair = list("logit_bias", pair, 2)?;
            let [token, bias] = pair[..] else {
                return Err(bad("logit_bias: each entry is [TOKEN, BIAS]".to_string()));
            };
            let token = match token.kind() {
                Kind::Text => format!("\"{}", read_value::<String>("logit_bias", token)?),
                Kind::Number => token.json().into_owned(),
                kind => {
                    let message = format!("logit_bias: a token is its id or its text, not {kind}");
                    return Err(bad(message));
                }
            };
            named.push((token, bias));
        }
    } else if raw.kind() != Kind::Object {
        let what = raw.kind();
        return Err(bad(format!("logit_bias must be an object or a list, not {what}")));
    } else {
        named = entries(raw, MAX_LOGIT_BIAS).map_err(|why| {
            bad(format!(
                "logit_bias must be an object or a list of at most {MAX_LOGIT_BIAS} tokens: {why}"
            ))
        })?;
    }
    let mut biases: Vec<(u32, f32)> = Vec::new();
    for (token, bias) in named {
        let bias = match bias.kind() {
            Kind::Boolean if !read_value::<bool>("logit_bias", bias)? => f32::NEG_INFINITY,
            _ => read_value("logit_bias", bias)?,
        };
        let bias: f32 = if bias <= BAN_BIAS { f32::NEG_INFINITY } else { bias };
        // A number, or an object's key that is written as one, is a token id and never a text.
        let is_text = token.starts_with('"') || of_text(&token).is_none();
        match of_text(&token).and_then(Number::whole::<u32>).filter(|_| !is_text) {
            Some(id) => biases.push((id, bias)),
            None if !is_text => {
                return Err(bad(format!("logit_bias: {token} is not a token's id")));
            }
            None => {
                let word = token.strip_prefix('"').unwrap_or(&token);
                let ids = text.tokenizer().encode(word, false, true);
                biases.extend(ids.map_err(text_error)?.into_iter().map(|id| (id, bias)));
            }
        }
    }
    if biases.len() > MAX_LOGIT_BIAS {
        let n = biases.len();
        return Err(bad(format!("logit_bias names {n} tokens: at most {MAX_LOGIT_BIAS}")));
    }
    biases.sort_by_key(|(id, _)| *id);
    // Of several for one token the last counts.
    biases.reverse();
    biases.dedup_by_key(|(id, _)| *id);
    biases.reverse();
    Ok(biases)
}
