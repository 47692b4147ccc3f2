//! `POST /v1/embeddings`: texts as vectors ([`pooled`]).

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use brigade_dialect::pooling::Pooling;
use brigade_dialect::text_model::TextModel;
use brigade_line::adapters::AdapterWish;
use brigade_line::request::Limits;
use brigade_line::vector::normalize;
use serde_json::{Value, json};

use crate::answer::pooled;
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::fleet::Meant;
use crate::request::bodies::text_error;
use crate::request::fields::{Fields, Given, Kind, list, read};
use crate::request::ignored_fields;
use crate::request::model_name;
use crate::request::params;

/// Most texts of one request.
pub const MAX_INPUTS: usize = 2048;

/// Vectors of a request.
#[derive(Debug)]
pub(crate) struct Made {
    /// One vector for each input, in their order: `[n_inputs][n_dimensions]`.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub n_tokens: usize,
    as_base64: bool,
}

/// A validated request.
#[derive(Debug)]
struct Wanted {
    inputs: Vec<Vec<u32>>,
    pooling: Pooling,
    dimensions: Option<usize>,
    norm: Norm,
    as_base64: bool,
    lora: Option<Vec<AdapterWish>>,
}

/// Handles `POST /v1/embeddings`.
pub(crate) async fn create(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let made = make(&app, &name, request).await?;
    let data: Vec<Value> = made
        .vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| {
            let embedding = if made.as_base64 { json!(base64(vector)) } else { json!(vector) };
            json!({ "object": "embedding", "index": index, "embedding": embedding })
        })
        .collect();
    let usage = json!({ "prompt_tokens": made.n_tokens, "total_tokens": made.n_tokens });
    let name = app.text.name();
    Ok(Json(json!({ "object": "list", "data": data, "model": name, "usage": usage }))
        .into_response())
}

/// Reads a request and computes its vectors.
pub(crate) async fn make(app: &App, name: &Name, request: Request) -> Result<Made, ApiError> {
    let mut wanted = app.read(request, Wanted::read).await?;
    let inputs = std::mem::take(&mut wanted.inputs);
    let n_tokens = inputs.iter().map(Vec::len).sum();
    let vectors =
        pooled::vectors(app, name, inputs, wanted.pooling, wanted.lora.as_deref()).await?;
    let vectors = vectors.into_iter().map(|pooled| wanted.finish(app.heads.vector(pooled)));
    let vectors = vectors.collect::<Result<_, _>>()?;
    Ok(Made { vectors, n_tokens, as_base64: wanted.as_base64 })
}

/// Fields that would change the vectors.
const REFUSED: &[(&str, &str)] = &[
    ("truncate_prompt_tokens", "a text that is too long is refused, and never cut"),
    ("messages", "texts are wanted, as input"),
    ("prompt_name", "write the words before a text into it"),
    ("truncation_direction", "a text that is too long is refused, and never cut"),
];

/// The norm by which vectors are scaled to one length, with llama.cpp's numbers in `embd_normalize`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Norm {
    /// -1: it stays as it is.
    Off,
    /// 0: its largest value becomes 32760, as for whole numbers of 16 bits.
    Largest,
    /// A power from 1 on: a vector's length is this root of the sum of its values' absolutes to this power. 2 is the
    /// usual length.
    Power(u32),
}

/// The largest value of a vector after scaling by [`Norm::Largest`].
const LARGEST: f32 = 32760.0;

/// Highest power: beyond it, all but the largest values vanish.
const MAX_POWER: i64 = 64;

impl Norm {
    fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let is_flag = |raw: Given<'_>| raw.kind() == Kind::Boolean;
        let by_name: Option<bool> = fields.take("normalize")?;
        let Some(raw) = fields.raw("embd_normalize") else {
            return Ok(if by_name.unwrap_or(true) { Self::Power(2) } else { Self::Off });
        };
        let norm = if is_flag(raw) {
            if read("embd_normalize", raw)? { Self::Power(2) } else { Self::Off }
        } else {
            match read::<i64>("embd_normalize", raw)? {
                -1 => Self::Off,
                0 => Self::Largest,
                power @ 1..=MAX_POWER => Self::Power(power as u32),
                other => {
                    let message = format!(
                        "embd_normalize is {other}: -1 (off), 0 (by the largest value), or a power from 1 to {MAX_POWER} (2: \
                         the usual length)"
                    );
                    return Err(ApiError::field("embd_normalize", message));
                }
            }
        };
        match by_name {
            Some(by_name) if by_name == (norm == Self::Off) => {
                let message = "embd_normalize and normalize contradict each other";
                Err(ApiError::field("embd_normalize", message))
            }
            _ => Ok(norm),
        }
    }

    fn apply(self, vector: &mut [f32]) {
        let divisor = match self {
            Self::Off => return,
            Self::Power(2) => return normalize(vector),
            Self::Largest => {
                f64::from(vector.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / LARGEST)
            }
            Self::Power(power) => {
                let sum: f64 = vector.iter().map(|x| f64::from(x.abs()).powi(power as i32)).sum();
                sum.powf(1.0 / f64::from(power))
            }
        };
        if divisor > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / divisor) as f32);
        }
    }
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
        // Ollama's older address has another name for it.
        let inputs = match (fields.raw("input"), fields.raw("prompt")) {
            (Some(_), Some(_)) => {
                let message = "input and prompt exclude each other: put all texts into input";
                return Err(ApiError::field("prompt", message));
            }
            (None, Some(raw)) => inputs("prompt", raw, limits, text)?,
            (Some(raw), None) => inputs("input", raw, limits, text)?,
            (None, None) => return Err(ApiError::field("input", "input is required")),
        };
        let format: Option<String> = fields.take("encoding_format")?;
        let as_base64 = match format.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                let message = format!("encoding_format is {other:?}: \"float\" or \"base64\"");
                return Err(ApiError::field("encoding_format", message));
            }
        };
        let word: Option<String> = fields.take_any(&["pooling", "pooling_type"])?;
        let pooling = match word.as_deref() {
            None => text.pooling(),
            Some(word) => Pooling::named(word).ok_or_else(|| {
                let message = format!("pooling is {word:?}: \"mean\", \"cls\" or \"last\"");
                ApiError::field("pooling", message)
            })?,
        };
        let dimensions: Option<usize> = fields.take("dimensions")?;
        let norm = Norm::read(&mut fields)?;
        let lora = params::lora(&mut fields)?;
        for (name, why) in REFUSED {
            fields.refuse(name, why)?;
        }
        fields.end("/v1/embeddings", &[ignored_fields::COMMON, ignored_fields::EMBEDDING]);
        Ok(Self { inputs, pooling, dimensions, norm, as_base64, lora })
    }

    /// Cut to the dimensions that are wanted, and of length 1.
    fn finish(&self, mut vector: Vec<f32>) -> Result<Vec<f32>, ApiError> {
        if let Some(n) = self.dimensions {
            if n == 0 || n > vector.len() {
                let most = vector.len();
                let message = format!("dimensions is {n}: a number from 1 to {most} is needed");
                return Err(ApiError::field("dimensions", message));
            }
            vector.truncate(n);
        }
        self.norm.apply(&mut vector);
        Ok(vector)
    }
}

/// Texts or token ids, one or several.
fn inputs(
    field: &str,
    raw: Given<'_>,
    limits: &Limits,
    text: &TextModel,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let encode = |words: &str| {
        limits.check_text(words.len())?;
        text.tokenizer().encode(words, true, true).map_err(text_error)
    };
    let mut tokens = pooled::Tokens::default();
    let mut one = |raw: Given<'_>| {
        let ids = match raw.kind() {
            Kind::Text => encode(&read::<String>(field, raw)?),
            Kind::List => read(field, raw),
            other => Err(ApiError::field(field, format!("{field} must be texts, not {other}"))),
        };
        tokens.add(field, ids?)
    };
    if raw.kind() != Kind::List {
        return Ok(vec![one(raw)?]);
    }
    if raw.first_kind() == Some(Kind::Number) {
        return Ok(vec![one(raw)?]);
    }
    let all = list(field, raw, MAX_INPUTS)?;
    if all.is_empty() {
        return Err(ApiError::field(field, format!("{field} is empty")));
    }
    all.into_iter().map(one).collect()
}

/// Little-endian f32 values in base64 (RFC 4648), as OpenAI's clients ask for by default.
fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|v| v.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn base64_is_the_rfcs() {
        // 1.0 is 00 00 80 3f.
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(base64(&[0.0, 0.0, 0.0]).len(), 16);
    }

    #[test]
    fn norms_are_numbered_as_llama_cpp_does() {
        let norm = |json: &str| Norm::read(&mut Fields::parse(json.as_bytes()).unwrap());
        for (json, wanted) in [
            ("{}", Norm::Power(2)),
            (r#"{"normalize": false}"#, Norm::Off),
            (r#"{"embd_normalize": true}"#, Norm::Power(2)),
            (r#"{"embd_normalize": 2}"#, Norm::Power(2)),
            (r#"{"embd_normalize": 2.0, "normalize": true}"#, Norm::Power(2)),
            (r#"{"embd_normalize": -1}"#, Norm::Off),
            (r#"{"embd_normalize": 0}"#, Norm::Largest),
            (r#"{"embd_normalize": 3}"#, Norm::Power(3)),
        ] {
            assert_eq!(norm(json).unwrap(), wanted, "{json}");
        }
        for json in ["-2", "65", "1.5", "\"2\"", "2, \"normalize\": false"] {
            assert!(norm(&format!(r#"{{"embd_normalize": {json}}}"#)).is_err(), "{json}");
        }
        for (norm, wanted) in [
            (Norm::Off, [3.0, -4.0]),
            (Norm::Largest, [24570.0, -32760.0]),
            (Norm::Power(1), [3.0 / 7.0, -4.0 / 7.0]),
            (Norm::Power(2), [0.6, -0.8]),
        ] {
            let mut vector = [3.0, -4.0];
            norm.apply(&mut vector);
            assert!(
                vector.iter().zip(wanted).all(|(x, y)| (x - y).abs() <= 1e-6 * y.abs().max(1.0)),
                "{vector:?}"
            );
        }
    }

    #[test]
    fn a_vector_is_cut_to_as_many_dimensions_as_it_has_at_most() {
        let finish = |dimensions| {
            let (pooling, norm) = (Pooling::Mean, Norm::Power(2));
            let (inputs, as_base64, lora) = (Vec::new(), false, None);
            let wanted = Wanted { inputs, pooling, dimensions, norm, as_base64, lora };
            wanted.finish(vec![3.0, -4.0, 12.0])
        };
        let lengths = [None, Some(3), Some(2), Some(1)].map(|n| finish(n).unwrap().len());
        assert_eq!(lengths, [3, 3, 2, 1]);
        assert!(normed(&finish(Some(2)).unwrap()), "what is left has length 1");
        for n in [0, 4, usize::MAX] {
            let message = finish(Some(n)).unwrap_err().body()["error"]["message"].to_string();
            assert!(message.contains("a number from 1 to 3 is needed"), "{message}");
        }
    }

    fn normed(vector: &[f32]) -> bool {
        (vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-6
    }

    #[test]
    fn inputs_come_in_four_forms() {
        let text = TextModel::sample();
        let limits = Limits { n_ctx: 64, n_vocab: text.n_vocab(), answer: 1024, encoder: None };
        for (json, n) in
            [(r#""a b""#, 1), (r#"["a", "b"]"#, 2), ("[5, 6]", 1), ("[[5], [6, 7]]", 2)]
        {
            let raw = RawValue::from_string(json.to_string()).unwrap();
            assert_eq!(
                inputs("input", Given::Text(&raw), &limits, &text).unwrap().len(),
                n,
                "{json}"
            );
        }
        for json in ["[]", "3", "[null]", "{}", "[5, 6.5]"] {
            let raw = RawValue::from_string(json.to_string()).unwrap();
            assert!(inputs("input", Given::Text(&raw), &limits, &text).is_err(), "{json}");
        }
    }
}
