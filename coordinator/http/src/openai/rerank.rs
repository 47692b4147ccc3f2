//! `POST /v1/rerank`: how well each of several documents answers a query, judged by the head that a reranker's
//! file has (`cls.output.weight`, in some encoders behind `cls.weight`).
//!
//! The shapes are Jina's and Cohere's (`documents`), which llama.cpp's server has as well, and that of Hugging
//! Face's text-embeddings-inference (`texts`).

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use brigade_dialect::pooling::Pooling;
use brigade_dialect::text_model::TextModel;
use brigade_engine::heads::Classifier;
use brigade_line::adapters::AdapterWish;
use brigade_line::request::Limits;
use serde_json::{Value, json};

use crate::answer::pooled;
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::fleet::Meant;
use crate::openai::embeddings::MAX_INPUTS;
use crate::request::bodies::text_error;
use crate::request::fields::{Fields, Given, Kind, list, read};
use crate::request::ignored_fields;
use crate::request::model_name;
use crate::request::params;

/// A validated request.
#[derive(Debug)]
struct Wanted {
    documents: Vec<String>,
    /// The query with each document.
    pairs: Vec<Vec<u32>>,
    /// The number of best documents in the answer.
    top_n: usize,
    with_text: bool,
    /// Whether the request has the shape with `texts`.
    is_plain: bool,
    /// Adapters instead of those that the server was started with.
    lora: Option<Vec<AdapterWish>>,
}

/// Handles `POST /v1/rerank`.
pub(crate) async fn create(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let mut wanted = app.read(request, Wanted::read).await?;
    let classifier = app.heads.classifier.as_ref().ok_or_else(|| judges_nothing(&app))?;
    let pairs = std::mem::take(&mut wanted.pairs);
    let n_tokens: usize = pairs.iter().map(Vec::len).sum();
    // In a decoder the last token has seen both the query and the document.
    let pooling = match app.limits.now().encoder {
        None => Pooling::Last,
        Some(_) if classifier.reads_mean() => Pooling::Mean,
        Some(_) => Pooling::First,
    };
    let rows = pooled::vectors(&app, &name, pairs, pooling, wanted.lora.as_deref()).await?;
    Ok(wanted.answer(&rows, classifier, app.text.name(), n_tokens).into_response())
}

fn judges_nothing(app: &App) -> ApiError {
    let (model, arch) = (app.text.name(), &app.meta.architecture);
    ApiError::not_implemented(format!(
        "{model} ({arch}) has no head that judges texts: serve a reranker (its file has cls.output.weight or cls.weight), or compare \
         the vectors of /v1/embeddings"
    ))
}

/// Reads a body, and no more.
#[cfg(test)]
pub(crate) fn check(body: &[u8], limits: &Limits, text: &TextModel) -> Result<(), ApiError> {
    Wanted::read(body, limits, text).map(drop)
}

impl Wanted {
    fn read(body: &[u8], limits: &Limits, text: &TextModel) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let model: Option<String> = fields.take("model")?;
        model_name::check_name(text, model.as_deref())?;
        let query: String = fields.require("query")?;
        let plain = fields.raw("texts");
        let is_plain = plain.is_some();
        let documents = match plain {
            Some(_) if fields.raw("documents").is_some() => {
                let message = "texts and documents exclude each other";
                return Err(ApiError::field("texts", message));
            }
            Some(raw) => documents("texts", raw)?,
            None => documents("documents", fields.require_raw("documents")?)?,
        };
        let top_n: Option<usize> = fields.take("top_n")?;
        let with_text: Option<bool> = fields.take_any(&["return_documents", "return_text"])?;
        let lora = params::lora(&mut fields)?;
        for name in ["max_chunks_per_doc", "max_tokens_per_doc", "truncate_prompt_tokens"] {
            fields.refuse(name, "a text that is too long is refused, and never cut")?;
        }
        fields.end("/v1/rerank", &[ignored_fields::COMMON, ignored_fields::RERANK]);
        let field = if is_plain { "texts" } else { "documents" };
        let mut tokens = pooled::Tokens::default();
        let pair = |document: &String| {
            limits.check_text(query.len().saturating_add(document.len()))?;
            tokens.add(field, text.encode_pair(&query, document).map_err(text_error)?)
        };
        let pairs = documents.iter().map(pair).collect::<Result<_, _>>()?;
        Ok(Self {
            pairs,
            top_n: top_n.unwrap_or(documents.len()),
            with_text: with_text.unwrap_or(false),
            is_plain,
            documents,
            lora,
        })
    }

    /// Scores the documents by their pooled rows, `[n_documents][n_embd]`, and sorts them.
    fn answer(
        &self,
        rows: &[Vec<f32>],
        classifier: &Classifier,
        model: &str,
        n_tokens: usize,
    ) -> Json<Value> {
        let mut scores: Vec<(usize, f32)> =
            rows.iter().map(|row| classifier.score(row)).enumerate().collect();
        // Of equal ones the first stays first.
        scores.sort_by(|a, b| b.1.total_cmp(&a.1));
        scores.truncate(self.top_n);
        let results: Vec<Value> =
            scores.into_iter().map(|(index, score)| self.result(index, score)).collect();
        if self.is_plain {
            return Json(Value::Array(results));
        }
        let usage = json!({ "prompt_tokens": n_tokens, "total_tokens": n_tokens });
        Json(json!({ "object": "list", "model": model, "results": results, "usage": usage }))
    }

    fn result(&self, index: usize, score: f32) -> Value {
        let text = &self.documents[index];
        match (self.is_plain, self.with_text) {
            (true, false) => json!({ "index": index, "score": score }),
            (true, true) => json!({ "index": index, "score": score, "text": text }),
            (false, false) => json!({ "index": index, "relevance_score": score }),
            (false, true) => {
                json!({ "index": index, "relevance_score": score, "document": { "text": text } })
            }
        }
    }
}

fn documents(field: &str, raw: Given<'_>) -> Result<Vec<String>, ApiError> {
    let all = list(field, raw, MAX_INPUTS)?;
    if all.is_empty() {
        return Err(ApiError::field(field, format!("{field} is empty")));
    }
    all.into_iter().enumerate().map(|(i, raw)| document(&format!("{field}[{i}]"), raw)).collect()
}

/// A document is its text, or an object that has it: other fields of that are the client's own.
fn document(path: &str, raw: Given<'_>) -> Result<String, ApiError> {
    match raw.kind() {
        Kind::Object => Fields::nested(path, raw)?.require("text"),
        _ => read(path, raw),
    }
}
