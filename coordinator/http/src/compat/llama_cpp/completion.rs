//! `POST /completion`: goes on with a text.

use axum::Extension;
use axum::extract::Request;
use axum::response::Response;
use brigade_dialect::text_model::TextModel;
use brigade_line::request::Limits;

use super::answer::{self, Asked};
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::fleet::Meant;
use crate::openai::completions;
use crate::request::fields::Fields;
use crate::request::params::NAMES_OF_TOKENS;

/// Fields of `/v1/completions` that this form of an answer has no place for.
const REFUSED: &[(&str, &str)] =
    &[("logprobs", "use /v1/completions"), ("echo", "use /v1/completions")];

/// Handles `POST /completion`.
pub(crate) async fn create(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = app.read(request, read).await?;
    answer::give(&app, &name, asked).await
}

/// The prompt of a request, and how to draw.
pub(crate) fn read(body: &[u8], limits: &Limits, text: &TextModel) -> Result<Asked, ApiError> {
    let mut fields = Fields::parse(body)?;
    for (name, why) in REFUSED {
        fields.refuse(name, why)?;
    }
    if fields.take::<usize>("best_of")?.is_some_and(|best_of| best_of != 1) {
        return Err(ApiError::unsupported("best_of", "best_of is for /v1/completions"));
    }
    let picked = answer::picked(&mut fields)?;
    let sent = NAMES_OF_TOKENS.into_iter().find(|name| fields.has(name)).unwrap_or("n_predict");
    let in_their_words =
        |error: ApiError| error.renamed(&[("max_tokens".to_owned(), sent.to_owned())]);
    let (tokens, common) = completions::plain(fields, limits, text).map_err(in_their_words)?;
    answer::check_one(&common, "an answer here is one text, and /v1/completions has more")?;
    if common.max_tokens == Some(0) {
        let message =
            format!("{sent} is 0: at least 1 is needed, or -1 for as many as there is room for");
        return Err(ApiError::field(sent, message));
    }
    Ok(Asked { tokens, common, picked })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::tests::{Play, post, ready, stream};

    #[tokio::test]
    async fn a_text_goes_on_whole_and_in_pieces() {
        let server = ready(Play::Text("abcdef"));
        let body = json!({ "prompt": "a", "n_predict": 3, "n_probs": 0, "n_cmpl": 1, "cache_prompt": true });
        let (status, answer) = post(&server, "/completion", body.clone()).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!((&answer["content"], &answer["stop_type"]), (&json!("abc"), &json!("limit")));
        assert_eq!((&answer["stop"], &answer["tokens_predicted"]), (&json!(true), &json!(3)));

        assert_eq!((&answer["stopping_word"], &answer["truncated"]), (&json!(""), &json!(false)));

        let mut picked = body.clone();
        picked["response_fields"] = json!(["content", "timings/predicted_n", "none/here"]);
        let (_, answer) = post(&server, "/completions", picked).await;
        assert_eq!(answer, json!({ "content": "abc", "timings/predicted_n": 3 }));

        let mut streamed = body;
        streamed["stream"] = json!(true);
        let pieces = stream(&server, "/completion", streamed).await;
        let pieces: Vec<Value> = pieces.iter().map(|p| serde_json::from_str(p).unwrap()).collect();
        let text: String = pieces.iter().filter_map(|piece| piece["content"].as_str()).collect();
        assert_eq!(text, "abc", "{pieces:?}");
        let last = pieces.last().unwrap();
        assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("limit")));
    }

    #[tokio::test]
    async fn without_a_number_an_answer_is_as_long_as_there_is_room() {
        let server = ready(Play::TextAndEos("abcdefghijklmnopqrstuvwxyz"));
        for body in [json!({ "prompt": "a" }), json!({ "prompt": "a", "n_predict": -1 })] {
            let (_, answer) = post(&server, "/completion", body).await;
            assert_eq!(answer["content"], "abcdefghijklmnopqrstuvwxyz", "{answer}");
            assert_eq!(answer["stop_type"], "eos", "{answer}");
        }
    }

    #[tokio::test]
    async fn what_the_answer_has_no_place_for_is_refused() {
        let server = ready(Play::Text("a"));
        for (field, value) in [
            ("n", json!(2)),
            ("n_probs", json!(5)),
            ("logprobs", json!(1)),
            ("echo", json!(true)),
            ("best_of", json!(2)),
            ("return_token_ids", json!(true)),
            ("n_predict", json!(0)),
            ("n_predict", json!(-2)),
            ("prompt", json!(["a", "b"])),
        ] {
            let mut body = json!({ "prompt": "a" });
            body[field] = value;
            let (status, answer) = post(&server, "/completion", body).await;
            assert_eq!(
                (status.as_u16(), &answer["error"]["param"]),
                (400, &json!(field)),
                "{answer}"
            );
        }
        let body = json!({ "prompt": "a", "resumable": true, "stream": true });
        let (status, answer) = post(&server, "/completion", body).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["param"]),
            (400, &json!("resumable")),
            "{answer}"
        );
    }
}
