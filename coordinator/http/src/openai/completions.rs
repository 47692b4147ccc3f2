//! `POST /v1/completions`: continues plain prompts. They are given as text or as token ids, one or several.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use brigade_dialect::constrain::answer::of_text;
use brigade_dialect::text_model::TextModel;
use brigade_line::generation::{Part, TokenPiece};
use brigade_line::handle::Failure;
use brigade_line::journal::Opened;
use brigade_line::request::Limits;
use brigade_proto::task;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::answer::choices::{self, Choice, Choices, Ended, Running};
use crate::answer::handover::{self, Handover};
use crate::answer::logprobs;
use crate::answer::pooled;
use crate::answer::prompt_logprobs;
use crate::answer::stamp::Stamp;
use crate::answer::types::{FinishWord, TextChoice, TextCompletion, TextLogprobs};
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::position::Of;
use crate::events::resumable::Resumable;
use crate::events::sse::Gone;
use crate::events::writer::{self, Writer};
use crate::fleet::Meant;
use crate::openai::reconnect::{self, Posted};
use crate::request::bodies::{Taken, text_error};
use crate::request::fields::{Fields, Given, Kind, MAX_TEMPLATE_VALUES, list, read};
use crate::request::ignored_fields;
use crate::request::params::{Common, MAX_CHOICES, NAMES_OF_TOKENS};

/// Tokens generated when a client names no number: OpenAI's default for completions (chats have another).
pub const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// The endpoint's address, and its name in the journal.
pub(crate) const PATH: &str = "/v1/completions";

/// A prompt as it came.
#[derive(Clone, Debug, PartialEq)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// A completion request, read.
#[derive(Debug)]
struct CompletionRequest {
    prompts: Vec<Prompt>,
    common: Common,
    /// Likely alternatives to report for each token; `None`: no log-probabilities.
    top_logprobs: Option<u32>,
    /// Log-probabilities are for the choice among answers, not for the client.
    hides_logprobs: bool,
    /// The number of answers that the client gets, the most probable of the `common.n` ones that are drawn.
    n: usize,
    echo: bool,
}

/// Prompts as tokens, and their texts where the answer repeats them.
struct Prompts {
    tokens: Vec<Vec<u32>>,
    echoed: Vec<String>,
    /// The log-probabilities of the prompts' tokens, where the answer repeats prompts too.
    pieces: Vec<Vec<TokenPiece>>,
}

/// Handles `POST /v1/completions`.
pub(crate) async fn create(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let request = match reconnect::came_back(&app, &name, request).await? {
        Posted::Again(answer) => return Ok(answer),
        Posted::Anew(request) => request,
    };
    let body = app.door.bodies.take(request).await?;
    let limits = app.limits.now();
    let read = app.door.bodies.read(body, app.text.clone(), move |bytes, text| {
        let (request, prompts) =
            CompletionRequest::with_prompts(Fields::parse(bytes)?, text, &limits)?;
        let body = request.common.resumable.then(|| String::from_utf8_lossy(bytes).into_owned());
        Ok((request, prompts, body))
    });
    let ((request, prompts, body), _) = read.await?;
    let stamp = Stamp::new(&app, "cmpl-");
    let mut answer = Answer { app, request, stamp, prompts };
    answer.compute_prompts(&name).await?;
    // Nothing but the prompt is wanted back.
    if answer.request.echo && answer.request.common.max_tokens == Some(0) {
        return Ok(Json(answer.prompts_alone()).into_response());
    }
    if let Some(body) = body {
        return answer.resumable(&name, body).await;
    }
    let generations = answer.submit(&name, None).await?;
    if answer.request.common.stream {
        let (events, response) = writer::channel(&answer.stamp.id, generations.len());
        answer.send(generations, events);
        return Ok(response);
    }
    Ok(answer.whole(generations).await?.into_response())
}

/// Reads a body, and no more.
pub(crate) fn check(body: &[u8], limits: &Limits) -> Result<(), ApiError> {
    CompletionRequest::read(Fields::parse(body)?, limits, &TextModel::without_text()).map(|_| ())
}

/// Goes on with a stream of the coordinator before this one, to its end.
///
/// # Errors
/// The request cannot run here.
pub(crate) async fn go_on(handover: Handover) -> Result<(), ApiError> {
    let Handover { app, name, stamp, opened, resumable } = handover;
    let limits = app.limits.now();
    let body = Taken::of_journal(opened.body.clone().into_bytes(), &name);
    let read = app.door.bodies.read(body, app.text.clone(), move |bytes, text| {
        let (mut request, mut prompts) =
            CompletionRequest::with_prompts(Fields::parse(bytes)?, text, &limits)?;
        handover::check_sequences(&opened, request.common.n)?;
        request.common.restore(&opened);
        prompts.tokens = opened.prompts;
        Ok((request, prompts))
    });
    let ((request, prompts), _) = read.await?;
    let mut answer = Answer { app, request, stamp, prompts };
    answer.compute_prompts(&name).await?;
    let generations = answer.submit(&name, Some(&resumable)).await?;
    // A panic of it was reported when it happened.
    let _ = answer.send(generations, Writer::kept(resumable.stream.clone())).await;
    Ok(())
}

/// The one prompt of a request in other words, and how to draw.
pub(crate) fn plain(
    fields: Fields<'_>,
    limits: &Limits,
    text: &TextModel,
) -> Result<(Vec<u32>, Common), ApiError> {
    let (mut prompts, common) = several(fields, limits, text)?;
    if prompts.len() != 1 {
        let message = "one prompt is needed here: /v1/completions takes several";
        return Err(ApiError::unsupported("prompt", message));
    }
    Ok((prompts.remove(0), common))
}

/// Prompts, and how to draw: where the request names no number of tokens, an answer as others.
pub(crate) fn several(
    fields: Fields<'_>,
    limits: &Limits,
    text: &TextModel,
) -> Result<(Vec<Vec<u32>>, Common), ApiError> {
    let names_tokens = NAMES_OF_TOKENS.iter().any(|name| fields.has(name));
    let (mut request, prompts) = CompletionRequest::with_prompts(fields, text, limits)?;
    if !names_tokens {
        request.common.max_tokens = None;
    }
    Ok((prompts.tokens, request.common))
}

impl CompletionRequest {
    /// A request and its prompts.
    fn with_prompts(
        fields: Fields<'_>,
        text: &TextModel,
        limits: &Limits,
    ) -> Result<(Self, Prompts), ApiError> {
        let mut request = Self::read(fields, limits, text)?;
        request.common.constraint = request.common.form.as_ref().map(of_text).transpose()?;
        request.common.companion.encode(|negative| text.encode_prompt(negative))?;
        let given = std::mem::take(&mut request.prompts);
        let prompts = Prompts::new(text, given, request.echo, limits)?;
        Ok((request, prompts))
    }

    fn read(mut fields: Fields<'_>, limits: &Limits, text: &TextModel) -> Result<Self, ApiError> {
        let prompts = prompts(fields.require_raw("prompt")?)?;
        fields.refuse("suffix", "filling in the middle is for /infill")?;
        fields.refuse("prompt_embeds", "prompts are texts or token ids")?;
        let top_logprobs: Option<u32> = match fields.raw("logprobs") {
            None => None,
            Some(value) if value.kind() == Kind::Boolean => {
                read::<bool>("logprobs", value)?.then_some(1)
            }
            Some(value) => Some(read("logprobs", value)?),
        };
        let echo: bool = fields.take("echo")?.unwrap_or(false);
        let best_of: Option<usize> = fields.take("best_of")?;
        let mut left = MAX_TEMPLATE_VALUES;
        let mut common =
            Common::read(&mut fields, limits, text, Some(DEFAULT_COMPLETION_TOKENS), &mut left)?;
        fields.end(
            PATH,
            &[ignored_fields::COMMON, ignored_fields::GENERATING, ignored_fields::COMPLETION],
        );
        if echo && top_logprobs.is_some() {
            common.companion.check_drawn()?;
        }
        let n = common.n;
        common.n = drawn(best_of, &common)?;
        let hides_logprobs = common.n > n && top_logprobs.is_none();
        let top_logprobs = if hides_logprobs { Some(0) } else { top_logprobs };
        let n_choices = prompts.len() * common.n;
        if n_choices > MAX_CHOICES {
            let n = prompts.len();
            let message =
                format!("{n} prompts times n are {n_choices} choices: at most {MAX_CHOICES}");
            return Err(ApiError::field("prompt", message));
        }
        Ok(Self { prompts, common, top_logprobs, hides_logprobs, n, echo })
    }
}

/// How many answers are drawn for each prompt.
fn drawn(best_of: Option<usize>, common: &Common) -> Result<usize, ApiError> {
    let (n, bad) = (common.n, |message: String| Err(ApiError::field("best_of", message)));
    match best_of {
        None => Ok(n),
        Some(best_of) if !(n..=MAX_CHOICES).contains(&best_of) => {
            bad(format!("best_of is {best_of}: a number from n ({n}) to {MAX_CHOICES} is needed"))
        }
        Some(best_of) if best_of > n && common.stream => {
            bad("best_of cannot be streamed: the best answer is known at the end".to_string())
        }
        Some(best_of) => Ok(best_of),
    }
}

/// The mean log-probability of an answer's tokens; that of an empty one is below all.
fn mean_logprob(choice: &Choice) -> f64 {
    let logprobs = choice.tokens.iter().filter_map(|token| token.logprob).map(f64::from);
    match choice.tokens.len() {
        0 => f64::NEG_INFINITY,
        n => logprobs.sum::<f64>() / n as f64,
    }
}

/// The `n` most probable of a prompt's answers, best first; all of them stay as they came.
fn best(mut choices: Vec<Choice>, n: usize) -> Vec<Choice> {
    if choices.len() > n {
        choices.sort_by(|a, b| mean_logprob(b).total_cmp(&mean_logprob(a)));
        choices.truncate(n);
    }
    choices
}

fn prompts(value: Given<'_>) -> Result<Vec<Prompt>, ApiError> {
    let bad = |what: String| ApiError::field("prompt", what);
    let form = "a string, a list of token ids, or a list of either";
    match value.kind() {
        Kind::Text => return Ok(vec![Prompt::Text(read("prompt", value)?)]),
        Kind::List => {}
        kind => return Err(bad(format!("prompt must be {form}, not {kind}"))),
    }
    // A list of numbers may be long, and is read as numbers at once.
    match value.first_kind() {
        None => return Err(bad("prompt is empty".to_string())),
        Some(Kind::Number) => return Ok(vec![tokens(value)?]),
        Some(Kind::Null | Kind::Boolean | Kind::Text | Kind::List | Kind::Object) => {}
    }
    let prompt = |item: Given<'_>| match item.kind() {
        Kind::Text => Ok(Prompt::Text(read("prompt", item)?)),
        Kind::List => tokens(item),
        kind => Err(bad(format!("prompt must be {form}, not {kind}"))),
    };
    list("prompt", value, MAX_CHOICES)?.into_iter().map(prompt).collect()
}

fn tokens(list: Given<'_>) -> Result<Prompt, ApiError> {
    read("prompt", list).map(Prompt::Tokens)
}

impl Prompts {
    fn new(
        text: &TextModel,
        given: Vec<Prompt>,
        echo: bool,
        limits: &Limits,
    ) -> Result<Self, ApiError> {
        let (mut tokens, mut echoed, mut n_tokens) = (Vec::new(), Vec::new(), 0_usize);
        let is_one = given.len() == 1;
        for prompt in given {
            let (ids, shown) = match prompt {
                Prompt::Text(prompt) => {
                    limits.check_text(prompt.len())?;
                    (text.encode_prompt(&prompt).map_err(text_error)?, prompt)
                }
                // One that is too long is refused with its length; its text would be far longer.
                Prompt::Tokens(ids) if !echo || ids.len() > limits.n_ctx as usize => {
                    (ids, String::new())
                }
                Prompt::Tokens(ids) => {
                    let known = |id: &u32| *id < text.n_vocab();
                    let visible: Vec<u32> = ids.iter().copied().filter(known).collect();
                    let shown = text.tokenizer().detokenize(&visible, false).map_err(text_error)?;
                    (ids, shown)
                }
            };
            n_tokens = n_tokens.saturating_add(ids.len());
            // One prompt alone is held to the context.
            if !is_one {
                pooled::check_prompts(n_tokens, limits)?;
            }
            tokens.push(ids);
            echoed.push(if echo { shown } else { String::new() });
        }
        let pieces = vec![Vec::new(); tokens.len()];
        Ok(Self { tokens, echoed, pieces })
    }

    fn n_tokens(&self) -> u32 {
        self.tokens.iter().map(Vec::len).sum::<usize>() as u32
    }
}

/// A request with its prompts, and everything that writing its answer needs.
struct Answer {
    app: App,
    request: CompletionRequest,
    stamp: Stamp,
    prompts: Prompts,
}

impl Answer {
    /// Log-probabilities of the prompts' tokens, where the answer repeats them.
    async fn compute_prompts(&mut self, name: &Name) -> Result<(), ApiError> {
        let Some(top) = self.request.top_logprobs.filter(|_| self.request.echo) else {
            return Ok(());
        };
        let lora = self.request.common.lora.as_deref();
        for (tokens, pieces) in self.prompts.tokens.iter().zip(&mut self.prompts.pieces) {
            *pieces = prompt_logprobs::pieces(&self.app, name, tokens, top, lora).await?;
        }
        Ok(())
    }

    async fn submit(
        &self,
        name: &Name,
        resumable: Option<&Resumable>,
    ) -> Result<Vec<Running>, ApiError> {
        let CompletionRequest { common, top_logprobs, .. } = &self.request;
        let prompts = &self.prompts.tokens;
        choices::submit(&self.app, name, prompts, common, *top_logprobs, resumable).await
    }

    /// Answers with a stream that is kept.
    async fn resumable(self, name: &Name, body: String) -> Result<Response, ApiError> {
        let common = &self.request.common;
        let (prompts, n) = (self.prompts.tokens.clone(), common.n);
        let opened = self.stamp.opened(name, PATH, common);
        let opened = Opened { sequences: prompts.len() * n, prompts, body, ..opened };
        let resumable = self.app.begin_stream(opened, name)?;
        let kept = resumable.stream.clone();
        let answer = kept.clone().follow(None)?;
        match self.submit(name, Some(&resumable)).await {
            Ok(generations) => {
                self.send(generations, Writer::kept(kept));
                resumable.is_noted().await;
                Ok(answer)
            }
            Err(error) => {
                self.app.door.streams.remove(&kept);
                Err(error)
            }
        }
    }

    /// Writes the stream in a task of its own, beside its reader.
    fn send(self, generations: Vec<Running>, events: Writer) -> JoinHandle<()> {
        let sending = async move {
            // An error is a client that went away, which cancels the sequences.
            let _ = self.stream(generations, &events).await;
        };
        task::spawn(sending.in_current_span())
    }

    fn prompt_of(&self, choice: usize) -> usize {
        choice / self.request.common.n
    }

    /// The answer to a request that wants no new token: the prompts alone.
    fn prompts_alone(&self) -> TextCompletion {
        let mut answer = self.piece(Vec::new());
        for (index, text) in self.prompts.echoed.iter().enumerate() {
            let mut alone = choice(index, text.clone(), Some(FinishWord::Length));
            alone.logprobs = self.logprobs(&self.prompts.pieces[index], &mut 0);
            alone.prompt_token_ids = self.prompt_ids(index);
            answer.choices.push(alone);
        }
        answer.usage = Some(Ended::default().usage(self.prompts.n_tokens(), 0));
        answer
    }

    fn prompt_ids(&self, prompt: usize) -> Option<Vec<u32>> {
        self.request.common.return_token_ids.then(|| self.prompts.tokens[prompt].clone())
    }

    fn logprobs(&self, tokens: &[TokenPiece], offset: &mut usize) -> Option<TextLogprobs> {
        let wanted = self.request.top_logprobs.filter(|_| !self.request.hides_logprobs);
        wanted.map(|_| logprobs::text(&self.app.text, tokens, offset))
    }

    async fn whole(&self, generations: Vec<Running>) -> Result<Json<TextCompletion>, ApiError> {
        let mut answer = self.piece(Vec::new());
        let (mut n_generated, mut ended) = (0, Ended::default());
        let mut drawn: Vec<Vec<Choice>> = self.prompts.tokens.iter().map(|_| Vec::new()).collect();
        for (index, generation) in generations.into_iter().enumerate() {
            let choice = choices::collect(generation).await?;
            n_generated += choice.end.n_generated;
            let prompt = self.prompt_of(index);
            ended.note(prompt, &choice.end);
            let n_prompt = self.prompts.tokens[prompt].len();
            answer.timings.get_or_insert_with(|| choices::timings(n_prompt, &choice.end));
            drawn[prompt].push(choice);
        }
        for (prompt, choices) in drawn.into_iter().enumerate() {
            for Choice { text, tokens, end } in best(choices, self.request.n) {
                let pieces = self.prompts.pieces[prompt].as_slice();
                answer.choices.push(TextChoice {
                    index: answer.choices.len(),
                    text: format!("{}{text}", self.prompts.echoed[prompt]),
                    logprobs: self.logprobs(&[pieces, &tokens].concat(), &mut 0),
                    finish_reason: Some(choices::finish_word(&end)),
                    prompt_token_ids: self.prompt_ids(prompt),
                    token_ids: self.request.common.token_ids(&tokens),
                });
            }
        }
        answer.usage = Some(ended.usage(self.prompts.n_tokens(), n_generated));
        Ok(Json(answer))
    }

    async fn stream(&self, generations: Vec<Running>, out: &Writer) -> Result<(), Gone> {
        let mut offsets = vec![0; generations.len()];
        for (index, offset) in offsets.iter_mut().enumerate() {
            let prompt = self.prompt_of(index);
            let mut first = choice(index, self.prompts.echoed[prompt].clone(), None);
            first.prompt_token_ids = self.prompt_ids(prompt);
            let pieces = &self.prompts.pieces[prompt];
            if !pieces.is_empty() {
                first.logprobs = self.logprobs(pieces, offset);
            }
            if !first.text.is_empty() || first.prompt_token_ids.is_some() {
                out.json(Of::Choice(index), &self.piece(vec![first])).await?;
            }
        }
        let mut n_generated = 0;
        let mut ended = Ended::default();
        let mut parts = Choices::of(generations);
        while let Some((index, part)) = out.unless_gone(parts.next()).await? {
            match part {
                Ok(Part::Piece(piece)) => {
                    let mut new = choice(index, piece.text, None);
                    new.logprobs = self.logprobs(&piece.tokens, &mut offsets[index]);
                    new.token_ids = self.request.common.token_ids(&piece.tokens);
                    out.json(Of::Choice(index), &self.piece(vec![new])).await?;
                }
                Ok(Part::End(end)) => {
                    n_generated += end.n_generated;
                    ended.note(self.prompt_of(index), &end);
                    let last = choice(index, String::new(), Some(choices::finish_word(&end)));
                    let mut piece = self.piece(vec![last]);
                    let n_prompt = self.prompts.tokens[self.prompt_of(index)].len();
                    piece.timings = Some(choices::timings(n_prompt, &end));
                    out.json(Of::Choice(index), &piece).await?;
                }
                // The next coordinator may go on with it.
                Err(Failure::Stopping) if out.is_kept() => return Err(Gone),
                Err(failure) => {
                    tracing::warn!(id = self.stamp.id, %failure, "stream failed");
                    out.json(Of::End, &ApiError::from(failure).body()).await?;
                    return out.done().await;
                }
            }
        }
        if self.request.common.include_usage {
            let mut piece = self.piece(Vec::new());
            let n_prompt = self.prompts.n_tokens();
            piece.usage = Some(ended.usage(n_prompt, n_generated));
            out.json(Of::End, &piece).await?;
        }
        out.done().await
    }

    fn piece(&self, choices: Vec<TextChoice>) -> TextCompletion {
        TextCompletion {
            id: self.stamp.id.clone(),
            object: "text_completion",
            created: self.stamp.created,
            model: self.stamp.model.clone(),
            system_fingerprint: self.stamp.fingerprint.clone(),
            choices,
            usage: None,
            timings: None,
        }
    }
}

fn choice(index: usize, text: String, finish_reason: Option<FinishWord>) -> TextChoice {
    TextChoice {
        index,
        text,
        logprobs: None,
        finish_reason,
        prompt_token_ids: None,
        token_ids: None,
    }
}

#[cfg(test)]
mod tests;
