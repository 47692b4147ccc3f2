//! What chat and text completions have in common: sampling, stops, streaming, and the fields that
//! this server must refuse.

use brigade_engine::batch::SamplingParams;
use brigade_engine::text::{MAX_STOP_BYTES, MAX_STOPS};
use serde::Deserialize;

use super::error::ApiError;
use super::fields::{Fields, entries, kind, list, read};
use crate::request::{Limits, MAX_LOGIT_BIAS};

/// Most choices of one request, over all its prompts.
pub const MAX_CHOICES: usize = 64;

/// Fields of either endpoint.
#[derive(Debug)]
pub struct Common {
    /// Settings of the sampling chain.
    pub params: SamplingParams,
    /// Tokens to draw at most, if the context leaves room for them.
    pub max_tokens: u32,
    /// Seed of the first choice; the others count on from it.
    pub seed: u64,
    /// Strings that end a choice.
    pub stops: Vec<String>,
    /// Whether end-of-generation tokens end a choice.
    pub stop_at_eog: bool,
    /// Choices a prompt.
    pub n: usize,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// Whether the stream ends with token counts.
    pub include_usage: bool,
    /// Whether the stream goes on while its client is away, and can be read on.
    pub resumable: bool,
}

/// Fields that have no effect here and would change the answer, and what to say. Chats have read `tools` before.
const REFUSED: &[(&str, &str)] = &[
    ("grammar", "constrained decoding is not implemented"),
    ("json_schema", "constrained decoding is not implemented"),
    ("guided_json", "constrained decoding is not implemented"),
    ("guided_regex", "constrained decoding is not implemented"),
    ("guided_choice", "constrained decoding is not implemented"),
    ("guided_grammar", "constrained decoding is not implemented"),
    ("tools", "tools are for /v1/chat/completions"),
    ("functions", "use tools, in /v1/chat/completions"),
    ("audio", "this model writes text only"),
    ("lora", "adapters are not implemented"),
];

/// Sampling settings that are not implemented; zero turns each off.
const REFUSED_UNLESS_ZERO: &[&str] =
    &["mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range", "length_penalty"];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Common {
    /// Reads the common fields out of a request; `default_tokens` is drawn at most where it names no number.
    pub fn read(
        fields: &mut Fields<'_>,
        limits: &Limits,
        default_tokens: u32,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let stream_options: StreamOptions = fields.take("stream_options")?.unwrap_or_default();
        let n: usize = fields.take("n")?.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&n) {
            let message = format!("n is {n}: a number from 1 to {MAX_CHOICES} is needed");
            return Err(ApiError::field("n", message));
        }
        let stream = fields.take("stream")?.unwrap_or(false);
        let resumable = fields.take("resumable")?.unwrap_or(false);
        if resumable && !stream {
            let message = "resumable is for streams: add \"stream\": true";
            return Err(ApiError::field("resumable", message));
        }
        Ok(Self {
            params: sampling(fields, limits)?,
            max_tokens: max_tokens(fields)?.unwrap_or(default_tokens),
            seed: seed(fields)?,
            stops: stops(fields)?,
            stop_at_eog: !fields.take("ignore_eos")?.unwrap_or(false),
            n,
            stream,
            resumable,
            include_usage: stream_options.include_usage.unwrap_or(false),
        })
    }
}

fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for (name, why) in REFUSED {
        fields.refuse(name, why)?;
    }
    for name in REFUSED_UNLESS_ZERO {
        if fields.take::<f64>(name)?.is_some_and(|v| v != 0.0) {
            return Err(ApiError::unsupported(*name, format!("{name} is not supported: use 0")));
        }
    }
    if let Some(format) = fields.raw("response_format") {
        let mut format = Fields::nested("response_format", format)?;
        let kind: String = format.require("type")?;
        if kind != "text" {
            let why = format!("response_format {kind:?} is not supported: only \"text\" is");
            return Err(ApiError::unsupported("response_format", why));
        }
    }
    match fields.raw("modalities") {
        None => Ok(()),
        Some(value) if read::<[String; 1]>("modalities", value).is_ok_and(|m| m[0] == "text") => {
            Ok(())
        }
        Some(_) => Err(ApiError::unsupported("modalities", "modalities: only [\"text\"] works")),
    }
}

fn max_tokens(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    // -1 is llama.cpp's and vLLM's way to say "no limit of mine".
    match fields.take_any::<i64>(&["max_completion_tokens", "max_tokens", "n_predict"])? {
        None => Ok(None),
        Some(-1) => Ok(Some(u32::MAX)),
        // The context ends what is longer.
        Some(n) if n >= 0 => Ok(Some(u32::try_from(n).unwrap_or(u32::MAX))),
        Some(n) => {
            let message =
                format!("max_tokens is {n}: a positive number is needed, or -1 for no limit");
            Err(ApiError::field("max_tokens", message))
        }
    }
}

fn seed(fields: &mut Fields<'_>) -> Result<u64, ApiError> {
    // -1 is llama.cpp's way to ask for a random seed.
    let seed: Option<i64> = fields.take("seed")?;
    Ok(match seed {
        None | Some(-1) => crate::random::u64(),
        Some(seed) => seed as u64,
    })
}

/// A count; -1 means `all`.
fn count_or_all(field: &str, value: i64, all: u32) -> Result<u32, ApiError> {
    match value {
        -1 => Ok(all),
        n => u32::try_from(n).map_err(|_| {
            let message =
                format!("{field} is {value}: a number from -1 (all) to {} is needed", u32::MAX);
            ApiError::field(field, message)
        }),
    }
}

fn sampling(fields: &mut Fields<'_>, limits: &Limits) -> Result<SamplingParams, ApiError> {
    let d = SamplingParams::default();
    let top_k: i64 = fields.take("top_k")?.unwrap_or(d.top_k.into());
    let last_n: i64 =
        fields.take_any(&["repeat_last_n", "penalty_last_n"])?.unwrap_or(d.penalty_last_n.into());
    Ok(SamplingParams {
        temperature: fields.take("temperature")?.unwrap_or(d.temperature),
        // vLLM turns it off with -1; here 0 does.
        top_k: count_or_all("top_k", top_k, 0)?,
        top_p: fields.take("top_p")?.unwrap_or(d.top_p),
        min_p: fields.take("min_p")?.unwrap_or(d.min_p),
        typical_p: fields.take_any(&["typical_p", "typ_p"])?.unwrap_or(d.typical_p),
        repeat_penalty: fields
            .take_any(&["repeat_penalty", "repetition_penalty"])?
            .unwrap_or(d.repeat_penalty),
        frequency_penalty: fields.take("frequency_penalty")?.unwrap_or(d.frequency_penalty),
        presence_penalty: fields.take("presence_penalty")?.unwrap_or(d.presence_penalty),
        // llama.cpp's -1: the whole context.
        penalty_last_n: count_or_all("repeat_last_n", last_n, limits.n_ctx)?,
        logit_bias: logit_bias(fields)?,
    })
}

/// OpenAI's scale ends at 100, which "should result in a ban or exclusive selection".
const BAN_BIAS: f32 = -100.0;

fn logit_bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let bad = |message: String| ApiError::field("logit_bias", message);
    let Some(object) = fields.raw("logit_bias") else { return Ok(Vec::new()) };
    let bias = entries(object, MAX_LOGIT_BIAS).map_err(|e| {
        bad(format!("logit_bias must be an object of at most {MAX_LOGIT_BIAS} token ids: {e}"))
    })?;
    let mut biases = bias
        .into_iter()
        .map(|(id, bias)| match (id.parse(), read("logit_bias", bias)?) {
            (Ok(id), bias) if bias <= BAN_BIAS => Ok((id, f32::NEG_INFINITY)),
            (Ok(id), bias) => Ok((id, bias)),
            (Err(_), _) => Err(bad(format!("logit_bias: {id:?} is not a token id"))),
        })
        .collect::<Result<Vec<(u32, f32)>, _>>()?;
    biases.sort_unstable_by_key(|(id, _)| *id);
    Ok(biases)
}

fn stops(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let bad = |message: String| ApiError::field("stop", message);
    let Some(stops) = fields.raw("stop") else { return Ok(Vec::new()) };
    let stops: Vec<String> = match kind(stops) {
        "a string" => vec![read("stop", stops)?],
        "an array" => {
            let strings = list("stop", stops, MAX_STOPS)?;
            strings.into_iter().map(|stop| read("stop", stop)).collect::<Result<_, _>>()?
        }
        kind => {
            return Err(bad(format!("stop must be a string or a list of strings, not {kind}")));
        }
    };
    if let Some(long) = stops.iter().find(|s: &&String| s.len() > MAX_STOP_BYTES) {
        let n = long.len();
        return Err(bad(format!("a stop string has {n} bytes: at most {MAX_STOP_BYTES}")));
    }
    Ok(stops.into_iter().filter(|s| !s.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Common, String> {
        let mut fields = Fields::parse(json.as_bytes()).unwrap();
        Common::read(&mut fields, &Limits { n_ctx: 4096, n_vocab: 100 }, 16)
            .map_err(|e| e.body()["error"]["message"].to_string())
    }

    #[test]
    fn names_of_other_servers_are_understood() {
        let common = read(
            r#"{"max_completion_tokens": 5, "top_k": -1, "repetition_penalty": 1.5, "seed": 7,
                "stop": "x", "logit_bias": {"3": -100, "4": 2}, "stream_options": {"include_usage": true},
                "ignore_eos": true, "never_heard_of": {}}"#,
        )
        .unwrap();
        assert_eq!((common.max_tokens, common.seed), (5, 7));
        assert_eq!((common.params.top_k, common.params.repeat_penalty), (0, 1.5));
        assert_eq!(common.params.logit_bias, [(3, f32::NEG_INFINITY), (4, 2.0)]);
        assert_eq!(common.stops, ["x"]);
        assert!(common.include_usage && !common.stop_at_eog && !common.stream);
    }

    #[test]
    fn minus_one_is_all() {
        let params = read(r#"{"repeat_last_n": -1, "top_k": -1}"#).unwrap().params;
        assert_eq!((params.penalty_last_n, params.top_k), (4096, 0), "the context, and off");
        assert_eq!(read(r#"{"max_tokens": 1099511627776}"#).unwrap().max_tokens, u32::MAX);
        for (json, says) in [
            (
                r#"{"top_k": 1099511627776}"#,
                "top_k is 1099511627776: a number from -1 (all) to 4294967295",
            ),
            (r#"{"top_k": -2}"#, "top_k is -2: a number from -1"),
            (r#"{"repeat_last_n": -2}"#, "repeat_last_n is -2: a number from -1"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(says), "{json}: {message}");
        }
    }

    #[test]
    fn what_would_change_the_answer_is_refused() {
        for (json, word) in [
            (r#"{"tools": [{"type": "function"}]}"#, "tools"),
            (r#"{"response_format": {"type": "json_schema"}}"#, "json_schema"),
            (r#"{"mirostat": 2}"#, "mirostat"),
            (r#"{"n": 0}"#, "n is 0"),
            (r#"{"n": 1000}"#, "1000"),
            (r#"{"max_tokens": -2}"#, "max_tokens"),
            (r#"{"stop": 3}"#, "stop"),
            (r#"{"stop": ["a", 3]}"#, "stop"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"logit_bias": {"x": 1}}"#, "logit_bias"),
            (r#"{"modalities": ["audio"]}"#, "modalities"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(word), "{json}: {message}");
        }
        assert!(
            read(r#"{"tools": [], "mirostat": 0, "response_format": {"type": "text"}}"#).is_ok()
        );
    }
}
