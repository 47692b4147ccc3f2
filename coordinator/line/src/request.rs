//! A request that can be run as it is: parsed, tokenised, and within the model's limits.
//!
//! Everything that can be refused is refused here, before the scheduler sees it. Nothing here knows HTTP,
//! text or workers.

use std::sync::Arc;
use std::time::Duration;

use brigade_dialect::pooling::Pooling;
use brigade_dialect::text_model::ENCODER;
use brigade_engine::batch::{
    AdapterUse, Companion, Constraint, NotBefore, SamplerSetup, SamplingParams,
};
use brigade_proto::limits::{MAX_REQUEST_ID_BYTES, MAX_SAMPLER_TOKENS};
use brigade_sampling::{MinusOne, Rule, SETTINGS, Value};
use brigade_sched::{HiddenRows, Namespace, NoCompanion, Share, TooLong, Work};
use thiserror::Error;

use crate::keys::Force;

/// Tokens that are sure for an answer whose client names no number: so many at least, if there is room for them.
pub const LEAST_ANSWER: u32 = 4096;

/// Most alternatives reported with log-probabilities, as in OpenAI's API.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// Most tokens whose logit one request may bias.
pub const MAX_LOGIT_BIAS: usize = 1024;

/// Largest look-back window of the penalties where the context is smaller; the sampler walks over it for every token.
pub const MAX_PENALTY_LAST_N: u32 = 1 << 16;

/// Most bytes of a prompt's text for each position of the context. Beyond them it is refused before it is
/// turned into tokens. A tokenizer takes many times a text's size, and no text has so many bytes a token.
pub const MAX_BYTES_PER_POSITION: usize = 256;

/// The limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions one sequence may hold, prompt and generated tokens together.
    pub n_ctx: u32,
    /// Token ids are below this.
    pub n_vocab: u32,
    /// Tokens that are sure for an answer whose client names no number, if there is room behind its prompt. It gets
    /// longer where no other request needs the room.
    pub answer: u32,
    /// For an encoder: rows of the largest ubatch, which must hold a whole text.
    pub encoder: Option<u32>,
}

impl Limits {
    /// Refuses a text that is too long for any tokenizer.
    ///
    /// # Errors
    /// [`RequestError::TextTooLong`].
    pub fn check_text(&self, bytes: usize) -> Result<(), RequestError> {
        let limit = MAX_BYTES_PER_POSITION.saturating_mul(self.n_ctx as usize);
        let n_ctx = self.n_ctx.into();
        if bytes <= limit { Ok(()) } else { Err(RequestError::TextTooLong { bytes, limit, n_ctx }) }
    }
}

/// One sequence to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Prompt, never empty, every id below `n_vocab`.
    pub tokens: Vec<u32>,
    /// The kind of work and its settings. Prompt and tokens to generate fit in the context.
    pub work: Work,
    /// The request's id in the logs of all processes.
    pub label: Arc<str>,
    /// The owner and its share of the line.
    pub share: Share,
    /// The namespace of kept prompts that it may begin with; `None`: its owner's.
    pub namespace: Option<Namespace>,
    /// The flag of the request's key: the sequence ends with the key.
    pub force: Force,
    /// Time limit from its submission on.
    pub within: Option<Duration>,
    /// Adapters of its rows; `None`: those that the server was started with.
    pub adapters: Option<Arc<[AdapterUse]>>,
    /// Whether copies of its state are taken while it runs, where the server takes any.
    pub copied: bool,
    /// The prompt of its companion, if it has one: not empty, every id below `n_vocab`, and with room for the generated
    /// tokens.
    pub companion: Option<Arc<[u32]>>,
    /// Tokens that the answer is expected to resemble, for drafts; `None`: no drafts.
    pub drafts: Option<Arc<[u32]>>,
    /// Positions of the prompt at which other prompts are likely to differ, the more important first.
    pub borders: Arc<[u32]>,
}

/// Largest scale of guidance.
pub const MAX_GUIDANCE_SCALE: f32 = 100.0;

/// Classifier-free guidance, as the client put it.
#[derive(Clone, Debug, PartialEq)]
pub struct Guiding {
    /// From 0, the guide alone, over 1, no guide, to [`MAX_GUIDANCE_SCALE`].
    pub scale: f32,
    /// The guide's prompt, which the answer should be unlike; `None`: the last token of the request's own.
    pub negative: Option<Arc<[u32]>>,
}

/// How tokens are to be drawn, as the client put it.
#[derive(Clone, Debug, Default)]
pub struct Drawing {
    /// A number of tokens at most; `None`: as many as there is room for, of which [`Limits::answer`] are sure.
    pub max_tokens: Option<u32>,
    /// Settings of the chain.
    pub params: SamplingParams,
    /// Seed; equal seeds give equal tokens.
    pub seed: u64,
    /// How many likely alternatives to report; `None`: no log-probabilities.
    pub top_logprobs: Option<u32>,
    /// Tokens that end the sequence when drawn.
    pub stop_tokens: Arc<[u32]>,
    /// Tokens that are not drawn among the first `min_tokens`: they would end the answer.
    pub ends: Arc<[u32]>,
    /// The number of tokens before which none of `ends` is drawn.
    pub min_tokens: u32,
    /// A grammar that the answer has to match; its state is that behind the prompt.
    pub constraint: Option<Constraint>,
    /// The sequence that guides the draws; `None`: none.
    pub companion: Option<Guiding>,
    /// The same as [`Request::drafts`].
    pub drafts: Option<Arc<[u32]>>,
    /// The same as [`Request::borders`].
    pub borders: Arc<[u32]>,
}

/// Why a request cannot run, and on which field that lies.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum RequestError {
    /// The prompt is empty.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// It needs more positions than a sequence can have, one for a generated token among them.
    #[error(transparent)]
    TooLong(TooLong),
    /// The text is so long that it is not tokenised.
    #[error(
        "the prompt has {bytes} bytes: at most {limit} are read, since this model's maximum context length is \
         {n_ctx} tokens here; shorten the prompt or start the server with a larger --ctx"
    )]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// [`MAX_BYTES_PER_POSITION`] for each position.
        limit: usize,
        /// Positions of the context.
        n_ctx: u64,
    },
    /// The request is guided, which is not possible here.
    #[error("{why}")]
    CannotGuide {
        /// The reason, with a way out.
        why: String,
    },
    /// An encoder was asked for tokens.
    #[error("{ENCODER}")]
    Encoder,
    /// An encoder's text is longer than a ubatch.
    #[error(
        "the text has {n_prompt} tokens, and an encoder computes a text in one ubatch, which has {most} rows at most \
         here: shorten the text or start with a larger --ubatch"
    )]
    LongerThanUbatch {
        /// Tokens of the text.
        n_prompt: u64,
        /// Rows of the largest ubatch.
        most: u64,
    },
    /// A token id that the model does not have.
    #[error("token id {id} at position {pos} is not below the vocabulary's size {n_vocab}")]
    TokenOutOfRange {
        /// The refused id.
        id: u32,
        /// The token's place in the prompt.
        pos: usize,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
    /// A setting outside its range.
    #[error("{field} is {value}: {want}")]
    Setting {
        /// Name of the field.
        field: &'static str,
        /// The refused value, as text.
        value: String,
        /// The allowed values.
        want: String,
    },
}

impl RequestError {
    /// The field that is at fault, as OpenAI's requests call it.
    pub fn field(&self) -> &'static str {
        match self {
            Self::EmptyPrompt
            | Self::TooLong(_)
            | Self::TextTooLong { .. }
            | Self::TokenOutOfRange { .. } => "prompt",
            Self::CannotGuide { .. } => "guidance_scale",
            Self::Encoder => "model",
            Self::LongerThanUbatch { .. } => "input",
            Self::Setting { field, .. } => field,
        }
    }
}

impl RequestError {
    /// The scheduler cannot run it with its companion.
    pub fn no_companion(why: NoCompanion) -> Self {
        let why = match why {
            NoCompanion::OlderWorker => {
                "a worker of the line is of an older release and knows no guides; upgrade it"
            }
            NoCompanion::OneSlot => {
                "there is a place for one; start serve with --max-seqs 2 or more, and chat with --set \
                 guidance_scale=NUMBER"
            }
            NoCompanion::OneRow => "they need two rows of a ubatch; start with --ubatch 2 or more",
            NoCompanion::FewPages => {
                "together they do not fit the KV cache; ask for fewer tokens, shorten the prompts, or start the server \
                 with a larger --ctx"
            }
        };
        Self::CannotGuide { why: format!("a guided request runs as two sequences: {why}") }
    }
}

impl Request {
    /// A prompt to be continued. `max_tokens` is cut to the room that the context leaves, which is also its default.
    pub fn generate(
        tokens: Vec<u32>,
        drawing: Drawing,
        limits: &Limits,
    ) -> Result<Self, RequestError> {
        if limits.encoder.is_some() {
            return Err(RequestError::Encoder);
        }
        check_prompt(&tokens, limits)?;
        let n_prompt = tokens.len() as u64;
        if n_prompt >= u64::from(limits.n_ctx) {
            return Err(too_long(n_prompt, limits));
        }
        check_params(&drawing.params, limits)?;
        if drawing.max_tokens == Some(0) {
            return Err(setting("max_tokens", 0, "at least 1 is needed"));
        }
        if let Some(n) = drawing.top_logprobs.filter(|n| *n > MAX_TOP_LOGPROBS) {
            return Err(setting("top_logprobs", n, format!("at most {MAX_TOP_LOGPROBS}")));
        }
        let guiding = drawing.companion.filter(|guiding| guiding.scale != 1.0);
        let companion = guiding.as_ref().map(|g| guide(g, &tokens, limits)).transpose()?;
        let longest = companion.as_ref().map_or(0, |companion| companion.len()).max(tokens.len());
        let room = limits.n_ctx - longest as u32;
        let answer_at = tokens.len() as u32;
        let not_before = match drawing.min_tokens {
            0 => NotBefore::default(),
            n => NotBefore { pos: answer_at.saturating_add(n), tokens: drawing.ends },
        };
        let constraint = drawing.constraint.map(|c| Arc::new(Constraint { answer_at, ..c }));
        let sampler = Arc::new(SamplerSetup {
            params: drawing.params,
            seed: drawing.seed,
            top_logprobs: drawing.top_logprobs.map(|n| n.min(limits.n_vocab)),
            not_before,
            constraint,
            companion: guiding.map(|Guiding { scale, .. }| Companion { scale }),
        });
        let max_tokens = drawing.max_tokens.unwrap_or(u32::MAX).min(room);
        let sure = drawing.max_tokens.unwrap_or(limits.answer).min(room);
        let work = Work::Generate { max_tokens, sure, sampler, stop_tokens: drawing.stop_tokens };
        let Drawing { drafts, borders, .. } = drawing;
        Ok(Self { companion, drafts, borders, ..Self::of(tokens, work) })
    }

    fn of(tokens: Vec<u32>, work: Work) -> Self {
        let (label, share, force) = (Arc::from("-"), Share::default(), Force::default());
        let (within, adapters, copied, companion, drafts) = (None, None, true, None, None);
        let (namespace, borders) = (None, [].into());
        Self {
            tokens,
            work,
            label,
            share,
            namespace,
            force,
            within,
            adapters,
            copied,
            companion,
            drafts,
            borders,
        }
    }

    /// A prompt of which the last norm's rows are wanted that `pooling` is made of.
    ///
    /// # Errors
    /// The prompt is empty, has tokens that there are not, or is too long.
    pub fn hidden(
        tokens: Vec<u32>,
        pooling: Pooling,
        limits: &Limits,
    ) -> Result<Self, RequestError> {
        check_rows(&tokens, limits)?;
        let rows = match (limits.encoder, pooling) {
            (None, _) | (_, Pooling::Mean) => HiddenRows::All,
            (Some(_), Pooling::First) => HiddenRows::First,
            (Some(_), Pooling::Last) => HiddenRows::Last,
        };
        let n_prompt = tokens.len() as u64;
        match limits.encoder.map(u64::from).filter(|&most| n_prompt > most) {
            Some(most) => Err(RequestError::LongerThanUbatch { n_prompt, most }),
            None => Ok(Self::of(tokens, Work::Hidden(rows))),
        }
    }

    /// A prompt whose logits are wanted at every position.
    ///
    /// # Errors
    /// As [`Request::hidden`], or the model has no logits.
    pub fn logits(tokens: Vec<u32>, limits: &Limits) -> Result<Self, RequestError> {
        if limits.encoder.is_some() {
            return Err(RequestError::Encoder);
        }
        check_rows(&tokens, limits)?;
        Ok(Self::of(tokens, Work::Logits))
    }

    /// The same with a label for logs. It is cut to the wire's limit, since a worker that receives a longer one
    /// breaks the line for all requests.
    pub fn named(self, label: &str) -> Self {
        let mut end = label.len().min(MAX_REQUEST_ID_BYTES);
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        Self { label: label[..end].replace(char::is_control, " ").into(), ..self }
    }

    /// The same for an owner with a `share`, to be answered within a time and while the key is in `force`.
    pub fn owned(self, share: Share, force: Force, within: Option<Duration>) -> Self {
        Self { share, force, within, ..self }
    }

    /// The same among the prompts of this namespace.
    pub fn in_namespace(self, namespace: Namespace) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    /// The same with these adapters; `None`: with those that the server was started with.
    pub fn adapted(self, adapters: Option<Arc<[AdapterUse]>>) -> Self {
        Self { adapters, ..self }
    }

    /// The same with copies of its state, or without.
    pub fn with_copies(self, copied: bool) -> Self {
        Self { copied, ..self }
    }

    /// Rows that its prompt is, its companion's among them.
    pub fn prompt_rows(&self) -> usize {
        self.tokens.len() + self.companion.as_ref().map_or(0, |companion| companion.len())
    }

    /// Rows that each of its further tokens is.
    pub fn rows_per_token(&self) -> u64 {
        1 + u64::from(self.companion.is_some())
    }

    /// Tokens that it draws at most; none where it wants rows.
    pub fn max_tokens(&self) -> u32 {
        match &self.work {
            Work::Generate { max_tokens, .. } => *max_tokens,
            Work::Logits | Work::Hidden(_) => 0,
        }
    }

    /// Events the request can cause at most, the last one included: the size of its channel.
    pub fn max_events(&self) -> usize {
        match &self.work {
            Work::Generate { max_tokens, .. } => *max_tokens as usize + 1,
            Work::Logits | Work::Hidden(_) => self.tokens.len() + 1,
        }
    }
}

/// Checks a prompt after which nothing is generated.
fn too_long(prompt: u64, limits: &Limits) -> RequestError {
    RequestError::TooLong(TooLong { prompt, max_tokens: 0, limit: limits.n_ctx.into() })
}

fn check_rows(tokens: &[u32], limits: &Limits) -> Result<(), RequestError> {
    check_prompt(tokens, limits)?;
    let n_prompt = tokens.len() as u64;
    if n_prompt > u64::from(limits.n_ctx) { Err(too_long(n_prompt, limits)) } else { Ok(()) }
}

fn check_prompt(tokens: &[u32], limits: &Limits) -> Result<(), RequestError> {
    if tokens.is_empty() {
        return Err(RequestError::EmptyPrompt);
    }
    match tokens.iter().position(|id| *id >= limits.n_vocab) {
        None => Ok(()),
        Some(pos) => {
            Err(RequestError::TokenOutOfRange { id: tokens[pos], pos, n_vocab: limits.n_vocab })
        }
    }
}

/// The prompt of what guides a request with this prompt.
fn guide(guiding: &Guiding, prompt: &[u32], limits: &Limits) -> Result<Arc<[u32]>, RequestError> {
    if !(0.0..=MAX_GUIDANCE_SCALE).contains(&guiding.scale) {
        let want = format!("a number from 0 to {MAX_GUIDANCE_SCALE} is needed; 1 is off");
        return Err(setting("guidance_scale", guiding.scale, want));
    }
    let negative = guiding.negative.clone();
    let tokens = negative.unwrap_or_else(|| prompt[prompt.len() - 1..].into());
    let (field, n, n_ctx) = ("negative_prompt", tokens.len(), limits.n_ctx as usize);
    if n == 0 {
        let want = "at least one is needed: give some text, or leave the field out";
        return Err(setting(field, "0 tokens", want));
    }
    if n >= n_ctx {
        let want = format!("fewer than the context's {n_ctx} are needed; shorten it");
        return Err(setting(field, format!("{n} tokens"), want));
    }
    check_prompt(&tokens, limits)?;
    Ok(tokens)
}

fn setting(field: &'static str, value: impl ToString, want: impl Into<String>) -> RequestError {
    RequestError::Setting { field, value: value.to_string(), want: want.into() }
}

fn check_params(params: &SamplingParams, limits: &Limits) -> Result<(), RequestError> {
    let window = MAX_PENALTY_LAST_N.max(limits.n_ctx);
    for known in SETTINGS.iter().filter(|known| known.acts(params)) {
        match (known.rule, known.get(params)) {
            (Rule::Number { low, high, .. }, Value::Number(value)) => {
                if !(low..=high).contains(&value) {
                    let want = format!("a number from {low} to {high} is needed");
                    return Err(setting(known.name, value, want));
                }
            }
            (Rule::Count { minus_one: Some(MinusOne::Context) }, Value::Count(value)) => {
                if value > window {
                    return Err(setting(known.name, value, format!("at most {window}")));
                }
            }
            (Rule::Number { .. } | Rule::Count { .. } | Rule::Switch { .. }, _) => {}
        }
    }
    let n_breakers = params.dry.breakers.len();
    if n_breakers > MAX_SAMPLER_TOKENS {
        let want = format!("tokens of at most {MAX_SAMPLER_TOKENS} kinds may break a run");
        return Err(setting("dry_sequence_breakers", format!("{n_breakers} tokens"), want));
    }
    let n_bias = params.logit_bias.len();
    if n_bias > MAX_LOGIT_BIAS {
        return Err(setting(
            "logit_bias",
            format!("{n_bias} entries"),
            format!("at most {MAX_LOGIT_BIAS}"),
        ));
    }
    for (id, bias) in &params.logit_bias {
        if *id >= limits.n_vocab {
            let want = format!("the vocabulary has {} tokens", limits.n_vocab);
            return Err(setting("logit_bias", format!("for token {id}"), want));
        }
        if bias.is_nan() || *bias == f32::INFINITY {
            return Err(setting("logit_bias", bias, "a finite number or -inf is needed"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { n_ctx: 8, n_vocab: 100, answer: 1024, encoder: None };

    fn generate(n_prompt: usize, drawing: Drawing) -> Result<Request, RequestError> {
        Request::generate(vec![1; n_prompt], drawing, &LIMITS)
    }

    #[test]
    fn generation_is_cut_to_the_context() {
        let request = generate(5, Drawing { max_tokens: Some(50), ..Drawing::default() }).unwrap();
        assert!(matches!(request.work, Work::Generate { max_tokens: 3, .. }));
        assert_eq!(request.max_events(), 4);
    }

    #[test]
    fn an_answer_without_a_length_has_the_rest_of_the_context_and_a_part_of_it_is_sure() {
        let sure = |max_tokens, answer| {
            let (limits, drawing) =
                (Limits { answer, ..LIMITS }, Drawing { max_tokens, ..Drawing::default() });
            match Request::generate(vec![1; 2], drawing, &limits).unwrap().work {
                Work::Generate { max_tokens, sure, .. } => (max_tokens, sure),
                Work::Logits | Work::Hidden(_) => (0, 0),
            }
        };
        assert_eq!(sure(None, 4), (6, 4));
        assert_eq!(sure(None, 1024), (6, 6));
        assert_eq!(sure(Some(5), 4), (5, 5), "all that somebody asks for is sure");
        assert_eq!(sure(Some(50), 4), (6, 6));
    }

    #[test]
    fn a_guide_has_room_for_the_answer_too_and_a_scale_of_one_has_none() {
        let guided = |scale, negative: Option<Vec<u32>>| {
            let companion = Some(Guiding { scale, negative: negative.map(Arc::from) });
            let drawing = Drawing { max_tokens: Some(50), companion, ..Drawing::default() };
            Request::generate(vec![1, 2, 3], drawing, &LIMITS)
        };
        let scale = |request: &Request| match &request.work {
            Work::Generate { sampler, .. } => sampler.companion.map(|companion| companion.scale),
            Work::Logits | Work::Hidden(_) => None,
        };
        let request = guided(2.5, Some(vec![7; 6])).unwrap();
        assert_eq!((request.companion.as_deref(), request.max_tokens()), (Some(&[7; 6][..]), 2));
        assert_eq!(scale(&request), Some(2.5));
        let last = guided(2.5, None).unwrap();
        assert_eq!((last.companion.as_deref(), last.max_tokens()), (Some(&[3][..]), 5));
        let off = guided(1.0, Some(vec![7; 6])).unwrap();
        assert_eq!((&off.companion, scale(&off), off.max_tokens()), (&None, None, 5));
        for (scale, negative, says) in [
            (-1.0, None, "guidance_scale is -1: a number from 0 to 100"),
            (f32::NAN, None, "guidance_scale is NaN"),
            (2.0, Some(vec![]), "negative_prompt is 0 tokens"),
            (2.0, Some(vec![7; 8]), "negative_prompt is 8 tokens: fewer than the context's 8"),
        ] {
            let why = guided(scale, negative).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn the_prompt_must_leave_room_for_a_token() {
        assert!(generate(7, Drawing::default()).is_ok());
        let error = generate(8, Drawing::default()).unwrap_err();
        assert_eq!(error, RequestError::TooLong(TooLong { prompt: 8, max_tokens: 0, limit: 8 }));
        assert_eq!(generate(0, Drawing::default()).unwrap_err(), RequestError::EmptyPrompt);
        assert!(Request::logits(vec![1; 8], &LIMITS).is_ok());
    }

    #[test]
    fn settings_out_of_range_name_their_field() {
        let set = |change: fn(&mut Drawing)| {
            let mut drawing = Drawing::default();
            change(&mut drawing);
            match generate(1, drawing).unwrap_err() {
                RequestError::Setting { field, .. } => field,
                other => panic!("{other}"),
            }
        };
        assert_eq!(set(|d| d.params.temperature = -0.1), "temperature");
        assert_eq!(set(|d| d.params.temperature = f32::NAN), "temperature");
        assert_eq!(set(|d| d.params.top_p = 1.5), "top_p");
        assert_eq!(set(|d| d.params.repeat_penalty = 0.0), "repeat_penalty");
        assert_eq!(set(|d| d.params.logit_bias = vec![(100, 0.0)]), "logit_bias");
        assert_eq!(set(|d| d.params.logit_bias = vec![(1, f32::INFINITY)]), "logit_bias");
        assert_eq!(set(|d| d.top_logprobs = Some(21)), "top_logprobs");
        assert_eq!(set(|d| d.max_tokens = Some(0)), "max_tokens");
    }

    #[test]
    fn penalties_may_look_back_on_the_whole_context() {
        let limits =
            Limits { n_ctx: MAX_PENALTY_LAST_N * 2, n_vocab: 100, answer: 1024, encoder: None };
        let with = |penalty_last_n| {
            let params = SamplingParams { penalty_last_n, ..SamplingParams::default() };
            Request::generate(vec![1], Drawing { params, ..Drawing::default() }, &limits)
        };
        assert!(with(limits.n_ctx).is_ok());
        let error = with(limits.n_ctx + 1).unwrap_err().to_string();
        assert!(error.contains("repeat_last_n") && error.contains("at most 131072"), "{error}");
    }

    #[test]
    fn token_ids_are_checked() {
        let error = Request::logits(vec![1, 100], &LIMITS).unwrap_err();
        assert_eq!(error, RequestError::TokenOutOfRange { id: 100, pos: 1, n_vocab: 100 });
    }
}
