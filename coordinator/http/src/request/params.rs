//! Fields that chat and text completions have in common: sampling, stops, streaming, and those that this
//! server must refuse.

use std::sync::Arc;
use std::time::Duration;

use brigade_dialect::constrain::Form;
use brigade_dialect::text_model::TextModel;
use brigade_engine::batch::{Constraint, SamplingParams};
use brigade_line::adapters::AdapterWish;
use brigade_line::generation::TokenPiece;
use brigade_line::request::Limits;
use brigade_proto::limits::MAX_ADAPTERS;
use brigade_sampling::{Api, MinusOne, Rule, SETTINGS, Setting, Value, WHOLE_CONTEXT};
use brigade_text::{MAX_STOP_BYTES, MAX_STOPS};

use crate::error::ApiError;
use crate::request::answer_format::form;
use crate::request::caching::cache_salt;
use crate::request::companion::Companion;
use crate::request::fields::{Fields, Given, Kind, list, read};
use crate::request::ignored_fields;
use crate::request::logit_bias;
use crate::request::model_name::check_name;
use crate::request::prediction;

/// Most choices of one request, over all its prompts.
pub const MAX_CHOICES: usize = 64;

/// Names of the number of tokens to draw at most, in several APIs.
pub const NAMES_OF_TOKENS: [&str; 3] = ["max_completion_tokens", "max_tokens", "n_predict"];

/// Longest time limit that a request may have, seconds: a day.
const MAX_TIMEOUT_S: f64 = 24.0 * 3600.0;

/// Fields of either endpoint.
#[derive(Debug)]
pub struct Common {
    /// Settings of the sampling chain.
    pub params: SamplingParams,
    /// Tokens to draw at most, if the context leaves room for them; `None`: as many as there is room for.
    pub max_tokens: Option<u32>,
    /// Seed of the first choice; the others count on from it.
    pub seed: u64,
    /// Strings that end a choice.
    pub stops: Vec<String>,
    /// Whether end-of-generation tokens end a choice.
    pub stop_at_eog: bool,
    /// Tokens before which nothing ends a choice.
    pub min_tokens: u32,
    /// A grammar or schema that a choice has to match.
    pub form: Option<Form>,
    /// The same, and what calls of tools have to be, as the last stage holds it.
    pub constraint: Option<Constraint>,
    /// Whether the answer has the ids of prompt and answer.
    pub return_token_ids: bool,
    /// The number of choices for each prompt.
    pub n: usize,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// Whether the stream ends with token counts.
    pub include_usage: bool,
    /// How long the client wants to wait for the whole answer.
    pub within: Option<Duration>,
    /// Whether the stream goes on while its client is away, and can be read on.
    pub resumable: bool,
    /// Whether its states are copied while it runs, where the server copies any.
    pub checkpoint: bool,
    /// Tokens that the answer is expected to resemble, from which drafts are made; empty where the client names none.
    /// `None`: no drafts. Drafts never change an answer.
    pub drafts: Option<Arc<[u32]>>,
    /// Positions at which other prompts are likely to go on otherwise: known when the endpoint has its prompt.
    pub borders: Arc<[u32]>,
    /// A salt: only prompts with the same one, of the same key, may begin with each other.
    pub cache_salt: Option<String>,
    /// Adapters instead of those that the server was started with.
    pub lora: Option<Vec<AdapterWish>>,
    /// The sequence beside an answer's own.
    pub companion: Companion,
}

/// Fields that would change the answer and are not supported, each with its error. Chats have read `tools` before.
const REFUSED: &[(&str, &str)] = &[
    ("tools", "tools are for /v1/chat/completions"),
    ("functions", "use tools, in /v1/chat/completions"),
    ("audio", "this model writes text only"),
    ("web_search_options", "this server searches nothing"),
    ("stop_token_ids", "use stop, with the tokens' texts"),
    ("allowed_token_ids", "use guided_choice or a grammar"),
    ("bad_words", "use logit_bias, which takes texts too: [[\"TEXT\", false]]"),
    ("prompt_logprobs", "use echo and logprobs, in /v1/completions"),
    ("return_tokens_as_token_ids", "use return_token_ids"),
    ("return_tokens", "use return_token_ids, in /v1/completions"),
    ("include_stop_str_in_output", "a stop text is never part of an answer"),
    ("truncate_prompt_tokens", "a prompt that is too long is refused, and never cut"),
    ("use_beam_search", "there is no beam search"),
    ("logits_processors", "this server runs no code of clients"),
    ("structural_tag", "use structured_outputs, or tools that are strict"),
    ("kv_transfer_params", "the states of prompts are not sent to clients"),
    ("vllm_xargs", "there are no plug-ins here"),
    ("thinking_token_budget", "max_tokens bounds reasoning and answer together"),
    ("post_sampling_probs", "log-probabilities are the model's own"),
    ("response_fields", "it is for /completion and /infill"),
    ("grammar_lazy", "use tools that are strict"),
    ("grammar_triggers", "use tools that are strict"),
    ("preserved_tokens", "markers of calls are known by the model's template"),
];

/// The same for fields that a number turns off. Clients send that number by default.
const REFUSED_UNLESS: &[(&str, &[f64], &str)] = &[
    ("length_penalty", &[0.0, 1.0], "there is no beam search"),
    ("t_max_predict_ms", &[-1.0, 0.0], "use timeout, which ends the whole request"),
    ("n_indent", &[0.0], "use a grammar"),
    ("n_probs", &[0.0], "use logprobs, in /v1/completions"),
    ("n_cmpl", &[1.0], "use n, in /v1/completions"),
    ("adaptive_target", &[-1.0], "this sampler is not implemented here"),
    ("tfs_z", &[1.0], "this sampler is not implemented here"),
];

impl Common {
    /// Reads the common fields out of a request; `default_tokens` is drawn at most where it names no number.
    pub fn read(
        fields: &mut Fields<'_>,
        limits: &Limits,
        text: &TextModel,
        default_tokens: Option<u32>,
        left: &mut usize,
    ) -> Result<Self, ApiError> {
        let model: Option<String> = fields.take("model")?;
        check_name(text, model.as_deref())?;
        let form = form(fields, left)?;
        refuse_unsupported(fields)?;
        let include_usage = include_usage(fields)?;
        let n: usize = fields.take("n")?.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&n) {
            let message = format!("n is {n}: a number from 1 to {MAX_CHOICES} is needed");
            return Err(ApiError::field("n", message));
        }
        let stop_at_eog = !fields.take("ignore_eos")?.unwrap_or(false);
        let min_tokens = fields.take("min_tokens")?.unwrap_or(0);
        if let Some(form) = form.as_ref().filter(|_| min_tokens > 0 || !stop_at_eog) {
            let path = &form.path;
            let message =
                format!("{path} says when an answer ends: no min_tokens or ignore_eos with it");
            return Err(ApiError::field(path, message));
        }
        let stream = fields.take("stream")?.unwrap_or(false);
        let resumable = fields.take("resumable")?.unwrap_or(false);
        if resumable && !stream {
            let message = "resumable is for streams: add \"stream\": true";
            return Err(ApiError::field("resumable", message));
        }
        let companion = Companion::read(fields, limits)?;
        Ok(Self {
            params: sampling(fields, limits, text)?,
            max_tokens: max_tokens(fields)?.unwrap_or(default_tokens),
            seed: seed(fields)?,
            stops: stops(fields)?,
            stop_at_eog,
            min_tokens,
            form,
            constraint: None,
            return_token_ids: fields.take("return_token_ids")?.unwrap_or(false),
            n,
            stream,
            resumable,
            checkpoint: fields.take("checkpoint")?.unwrap_or(true),
            drafts: prediction::drafts(fields, limits, text)?,
            borders: [].into(),
            cache_salt: cache_salt(fields)?,
            lora: lora(fields)?,
            include_usage,
            within: timeout(fields)?,
            companion,
        })
    }
}

impl Common {
    /// Ids of these tokens, if the request wants them.
    pub fn token_ids(&self, tokens: &[TokenPiece]) -> Option<Vec<u32>> {
        self.return_token_ids.then(|| tokens.iter().map(|token| token.id).collect())
    }
}

/// The adapters that a request asks for: a name, or a list of names, or of objects as llama.cpp's server takes them.
/// Unknown names are refused when the request is submitted.
pub(crate) fn lora(fields: &mut Fields<'_>) -> Result<Option<Vec<AdapterWish>>, ApiError> {
    let named = |name: String| AdapterWish { id: None, name: Some(name), scale: None };
    let one = |(path, raw): (&str, Given<'_>)| match raw.kind() {
        Kind::Text => read(path, raw).map(named),
        _ => adapter(path, raw),
    };
    let Some(raw) = fields.raw("lora") else { return Ok(None) };
    match raw.kind() {
        Kind::List => {
            let all = list("lora", raw, MAX_ADAPTERS)?.into_iter().enumerate();
            let all = all.map(|(i, raw)| one((&format!("lora[{i}]"), raw)));
            all.collect::<Result<_, _>>().map(Some)
        }
        _ => Ok(Some(vec![one(("lora", raw))?])),
    }
}

/// `{"id": 0, "scale": 0.5}`, or with a name. A misspelt field would be the adapter's default scale.
fn adapter(path: &str, raw: Given<'_>) -> Result<AdapterWish, ApiError> {
    let mut fields = Fields::nested(path, raw)?;
    let wish = AdapterWish {
        id: fields.take("id")?,
        name: fields.take("name")?,
        scale: fields.take("scale")?,
    };
    match fields.names().next() {
        Some(name) => {
            let path = fields.path(name);
            let message = format!("{path} is unknown: an adapter has id or name, and scale");
            Err(ApiError::field(path, message))
        }
        None => Ok(wish),
    }
}

/// Reads `stream_options`: whether the stream ends with token counts.
fn include_usage(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let Some(raw) = fields.raw("stream_options") else { return Ok(false) };
    let mut options = Fields::nested("stream_options", raw)?;
    let usage = options.take("include_usage")?.unwrap_or(false);
    options.end("stream_options", &[ignored_fields::STREAM_OPTIONS]);
    Ok(usage)
}

/// The request's own time limit: seconds, `null` for none.
fn timeout(fields: &mut Fields<'_>) -> Result<Option<Duration>, ApiError> {
    match fields.take::<f64>("timeout")? {
        None => Ok(None),
        Some(seconds) if seconds > 0.0 && seconds <= MAX_TIMEOUT_S => {
            Ok(Some(Duration::from_secs_f64(seconds)))
        }
        Some(seconds) => {
            let message = format!(
                "timeout is {seconds}: a number of seconds above 0 and up to {MAX_TIMEOUT_S} is needed"
            );
            Err(ApiError::field("timeout", message))
        }
    }
}

/// Most ways to answer that a request may name.
const MAX_MODALITIES: usize = 8;

fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for (name, why) in REFUSED {
        fields.refuse(name, why)?;
    }
    for (name, off, why) in REFUSED_UNLESS {
        if let Some(value) = fields.take::<f64>(name)?.filter(|value| !off.contains(value)) {
            let message =
                format!("{name} is {value}, which is not supported: {why}; use {}", off[0]);
            return Err(ApiError::unsupported(*name, message));
        }
    }
    match fields.raw("modalities") {
        None => Ok(()),
        Some(value) => {
            for modality in list("modalities", value, MAX_MODALITIES)? {
                let modality: String = read("modalities", modality)?;
                if modality != "text" {
                    let message = format!("modalities has {modality:?}: only \"text\" works");
                    return Err(ApiError::unsupported("modalities", message));
                }
            }
            Ok(())
        }
    }
}

/// The field, where it is there; within it `None` for no limit.
fn max_tokens(fields: &mut Fields<'_>) -> Result<Option<Option<u32>>, ApiError> {
    // -1 is the value of llama.cpp and vLLM for "no limit".
    match fields.take_any::<i64>(&NAMES_OF_TOKENS)? {
        None => Ok(None),
        Some(-1) => Ok(Some(None)),
        // A larger number is bounded by the context.
        Some(n) if n >= 0 => Ok(Some(Some(u32::try_from(n).unwrap_or(u32::MAX)))),
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
        None | Some(-1) => brigade_line::random::u64(),
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

/// The settings of the chain, as their table has them ([`SETTINGS`]), and the two that are lists.
fn sampling(
    fields: &mut Fields<'_>,
    limits: &Limits,
    text: &TextModel,
) -> Result<SamplingParams, ApiError> {
    let mut params = SamplingParams::default();
    for setting in SETTINGS {
        let value = match setting_value(fields, setting, limits.n_ctx)? {
            None if setting.get(&params) == Value::Count(WHOLE_CONTEXT) => {
                Some(Value::Count(limits.n_ctx))
            }
            value => value,
        };
        if let Some(value) = value {
            setting.set(&mut params, value);
        }
    }
    params.logit_bias = logit_bias::read(fields, text)?;
    let breakers = dry_breakers(fields)?;
    if params.dry.is_on() {
        params.dry.breakers = text.tokens_with(&breakers).into();
    }
    Ok(params)
}

/// Names of the settings that can be set in an API that has not all of them.
pub fn settings_of(api: Api) -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().filter(move |setting| setting.apis.contains(&api)).map(|setting| setting.name)
}

/// The value of a sampling setting; `None` where the request has none.
fn setting_value(
    fields: &mut Fields<'_>,
    setting: &Setting,
    n_ctx: u32,
) -> Result<Option<Value>, ApiError> {
    let (name, names) = (setting.name, setting.names());
    match setting.rule {
        Rule::Number { .. } => Ok(fields.take_any(&names)?.map(Value::Number)),
        Rule::Count { minus_one: None } => Ok(fields.take_any(&names)?.map(Value::Count)),
        Rule::Count { minus_one: Some(meaning) } => {
            let all = match meaning {
                MinusOne::Off => 0,
                MinusOne::Context => n_ctx,
            };
            let count = |value| count_or_all(name, value, all).map(Value::Count);
            fields.take_any(&names)?.map(count).transpose()
        }
        Rule::Switch { on, want } => match fields.take_any::<i64>(&names)? {
            None => Ok(None),
            Some(value) if value == 0 || value == i64::from(on) => {
                Ok(Some(Value::Count(value as u32)))
            }
            Some(other) => Err(ApiError::field(name, format!("{name} is {other}: {want}"))),
        },
    }
}

/// Texts that no repeated run goes across, where a request names none: llama.cpp's.
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Most texts of `dry_sequence_breakers`.
const MAX_DRY_BREAKERS: usize = 64;

fn dry_breakers(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let name = "dry_sequence_breakers";
    let Some(raw) = fields.raw(name) else {
        return Ok(DRY_BREAKERS.map(str::to_string).to_vec());
    };
    let texts = list(name, raw, MAX_DRY_BREAKERS)?;
    texts.into_iter().map(|text| read(name, text)).collect()
}

fn stops(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let bad = |message: String| ApiError::field("stop", message);
    let Some(stops) = fields.raw("stop") else { return Ok(Vec::new()) };
    let stops: Vec<String> = match stops.kind() {
        Kind::Text => vec![read("stop", stops)?],
        Kind::List => {
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
        let limits = Limits { n_ctx: 4096, n_vocab: 100, answer: 1024, encoder: None };
        Common::read(&mut fields, &limits, &TextModel::sample(), Some(16), &mut 1000)
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
        assert_eq!((common.max_tokens, common.seed), (Some(5), 7));
        assert_eq!((common.params.top_k, common.params.repeat_penalty), (0, 1.5));
        assert_eq!(common.params.logit_bias, [(3, f32::NEG_INFINITY), (4, 2.0)]);
        assert_eq!(common.stops, ["x"]);
        assert!(common.include_usage && !common.stop_at_eog && !common.stream);
    }

    #[test]
    fn a_bias_may_be_for_a_text_and_runs_break_at_tokens_with_a_text() {
        let text = TextModel::sample();
        let id = |c: &str| text.tokenizer().find(c).unwrap();
        let params = read(
            r#"{"logit_bias": [["b", 2], [7, false], ["b", 3]], "dry_multiplier": 1,
                "dry_sequence_breakers": ["x"]}"#,
        )
        .unwrap()
        .params;
        assert!(params.logit_bias.contains(&(7, f32::NEG_INFINITY)));
        assert!(params.logit_bias.contains(&(id("b"), 3.0)), "{:?}", params.logit_bias);
        assert!(params.dry.breakers.contains(&id("x")) && !params.dry.breakers.contains(&id("b")));
        assert_eq!(params.dry.last_n, 4096, "the context");
    }

    #[test]
    fn adapters_are_asked_for_by_name_or_number() {
        let lora = |json: &str| read(json).map(|common| common.lora);
        assert_eq!(lora("{}"), Ok(None));
        assert_eq!(lora(r#"{"lora": null}"#), Ok(None));
        assert_eq!(lora(r#"{"lora": []}"#), Ok(Some(vec![])));
        let named = |name: &str, scale| AdapterWish { id: None, name: Some(name.into()), scale };
        assert_eq!(lora(r#"{"lora": "a"}"#), Ok(Some(vec![named("a", None)])));
        let both = lora(r#"{"lora": ["a", {"id": 1, "scale": 0.5}, {"name": "b", "scale": 2}]}"#);
        let first = AdapterWish { id: Some(1), name: None, scale: Some(0.5) };
        assert_eq!(both, Ok(Some(vec![named("a", None), first, named("b", Some(2.0))])));
        for (json, word) in [
            (r#"{"lora": 3}"#, "lora"),
            (r#"{"lora": [{"id": -1}]}"#, "lora"),
            (r#"{"lora": [{"id": 0, "weight": 1}]}"#, "weight"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(word), "{json}: {message}");
        }
    }

    #[test]
    fn a_request_may_do_without_copies() {
        for (json, copied) in [
            ("{}", true),
            (r#"{"checkpoint": null}"#, true),
            (r#"{"checkpoint": true}"#, true),
            (r#"{"checkpoint": false}"#, false),
        ] {
            assert_eq!(read(json).unwrap().checkpoint, copied, "{json}");
        }
    }

    #[test]
    fn minus_one_is_all() {
        let params = read(r#"{"repeat_last_n": -1, "top_k": -1}"#).unwrap().params;
        assert_eq!((params.penalty_last_n, params.top_k), (4096, 0), "the context, and off");
        assert_eq!(read(r#"{"max_tokens": 1099511627776}"#).unwrap().max_tokens, Some(u32::MAX));
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
            (r#"{"response_format": {"type": "json_schema"}}"#, "response_format.schema"),
            (r#"{"mirostat": 1}"#, "mirostat is 1"),
            (r#"{"n": 0}"#, "n is 0"),
            (r#"{"n": 1000}"#, "1000"),
            (r#"{"max_tokens": -2}"#, "max_tokens"),
            (r#"{"stop": 3}"#, "stop"),
            (r#"{"stop": ["a", 3]}"#, "stop"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"logit_bias": {"x": "y"}}"#, "logit_bias"),
            (r#"{"logit_bias": [[1]]}"#, "[TOKEN, BIAS]"),
            (r#"{"dry_penalty_last_n": -2}"#, "dry_penalty_last_n"),
            (r#"{"modalities": ["audio"]}"#, "modalities"),
            (r#"{"checkpoint": "off"}"#, "checkpoint"),
            (r#"{"checkpoint": 0}"#, "checkpoint"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(word), "{json}: {message}");
        }
        assert!(
            read(r#"{"tools": [], "mirostat": 0, "response_format": {"type": "text"}}"#).is_ok()
        );
    }
}
