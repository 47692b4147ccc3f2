//! `POST /infill`: fills the gap between two texts, for editors. The model must have tokens for it.

use axum::Extension;
use axum::extract::Request;
use axum::response::Response;
use brigade_dialect::constrain::answer::of_text;
use brigade_dialect::text_model::{Gap, TextModel};
use brigade_line::request::Limits;

use super::answer::{self, Asked};
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::fleet::Meant;
use crate::request::bodies::text_error;
use crate::request::fields::{Fields, MAX_TEMPLATE_VALUES, list};
use crate::request::ignored_fields;
use crate::request::model_name;
use crate::request::params::Common;

/// Tokens drawn when a client names no number.
const DEFAULT_INFILL_TOKENS: u32 = 128;

/// Most other files of one request.
const MAX_EXTRA: usize = 256;

/// Handles `POST /infill`.
pub(crate) async fn create(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = app.read(request, read).await?;
    answer::give(&app, &name, asked).await
}

/// Fields that would change an answer, and have no effect here.
const REFUSED: &[(&str, &str)] = &[
    ("logprobs", "use /v1/completions"),
    ("echo", "use /v1/completions"),
    ("best_of", "one text stands between two others"),
];

/// The prompt of a request, and how to draw.
fn read(body: &[u8], limits: &Limits, text: &TextModel) -> Result<Asked, ApiError> {
    read_with(body, limits, text, |others, gap| {
        let tokens = text.encode_fill_in(others, gap);
        tokens.map_err(text_error)?.ok_or_else(|| {
            let message =
                "this model has no tokens for filling in the middle (fim_pre, fim_suf, fim_mid)";
            ApiError::unsupported("input_suffix", message).of_model()
        })
    })
}

/// The same; `encode` makes the prompt of other files, and of a gap.
fn read_with(
    body: &[u8],
    limits: &Limits,
    text: &TextModel,
    encode: impl FnOnce(&[(Option<String>, String)], &Gap<'_>) -> Result<Vec<u32>, ApiError>,
) -> Result<Asked, ApiError> {
    let mut fields = Fields::parse(body)?;
    let model: Option<String> = fields.take("model")?;
    model_name::check_name(text, model.as_deref())?;
    let prefix: String = fields.take("input_prefix")?.unwrap_or_default();
    let suffix: String = fields.take("input_suffix")?.unwrap_or_default();
    let begun: String = fields.take("prompt")?.unwrap_or_default();
    let (mut others, mut n_bytes) = (Vec::new(), prefix.len() + suffix.len() + begun.len());
    if let Some(raw) = fields.raw("input_extra") {
        for (i, file) in list("input_extra", raw, MAX_EXTRA)?.into_iter().enumerate() {
            let mut file = Fields::nested(&format!("input_extra[{i}]"), file)?;
            let (name, text): (Option<String>, String) =
                (file.take("filename")?, file.require("text")?);
            file.end("/infill", &[]);
            n_bytes += name.as_ref().map_or(0, String::len) + text.len();
            others.push((name, text));
        }
    }
    limits.check_text(n_bytes)?;
    let tokens = encode(&others, &Gap { prefix: &prefix, suffix: &suffix, begun: &begun })?;
    let picked = answer::picked(&mut fields)?;
    // Editors send both, to bound what they ask for while somebody types.
    fields.leave::<f64>("t_max_predict_ms", "a client that leaves ends its answer")?;
    fields.leave::<i64>("n_indent", "the editor shows as much of the text as it wants")?;
    let mut left = MAX_TEMPLATE_VALUES;
    let mut common =
        Common::read(&mut fields, limits, text, Some(DEFAULT_INFILL_TOKENS), &mut left)?;
    common.companion.encode(|negative| text.encode_prompt(negative))?;
    common.constraint = common.form.as_ref().map(of_text).transpose()?;
    answer::check_one(&common, "one text stands between two others")?;
    for (name, why) in REFUSED {
        fields.refuse(name, why)?;
    }
    fields.end("/infill", &[ignored_fields::COMMON, ignored_fields::GENERATING]);
    Ok(Asked { tokens, common, picked })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Reads a request as if the model had the tokens for it.
    pub fn read_any(body: &[u8], limits: &Limits, text: &TextModel) -> Result<(), ApiError> {
        read_with(body, limits, text, |_, _| Ok(vec![1])).map(drop)
    }

    fn error(json: &str) -> String {
        let limits = Limits { n_ctx: 64, n_vocab: 300, answer: 1024, encoder: None };
        let error = read_any(json.as_bytes(), &limits, &TextModel::sample()).unwrap_err();
        error.body()["error"]["message"].as_str().unwrap().to_string()
    }

    #[test]
    fn what_has_no_effect_is_refused() {
        assert!(error(r#"{"n": 2}"#).contains("n is 2"));
        assert!(error(r#"{"return_token_ids": true}"#).contains("return_token_ids"));
        assert!(error(r#"{"input_extra": [{"filename": 3, "text": "a"}]}"#).contains("filename"));
        assert!(error(r#"{"grammar": "root ::= ["}"#).contains("grammar"));
    }

    #[test]
    fn a_form_holds_here_too() {
        let limits = Limits { n_ctx: 64, n_vocab: 300, answer: 1024, encoder: None };
        let body = br#"{"json_schema": {"type": "integer"}}"#;
        let read = read_with(body, &limits, &TextModel::sample(), |_, _| Ok(vec![1])).unwrap();
        assert!(read.common.constraint.is_some());
    }
}
