//! A submitted request as the driver sees it: its channel of events, and its times.

use std::sync::Arc;
use std::time::Duration;

use brigade_engine::batch::SampledToken;
use brigade_sched::{Micros, Rejection};
use tokio::sync::{mpsc, oneshot};

use crate::handle::{Counts, Failure, Finish, FinishReason, Past, SeqEvent, Status, SubmitError};
use crate::journal::Recorder;
use crate::keys::{Force, KeyEnd};
use crate::measured::metrics;
use crate::request::RequestError;
use crate::stages::numerics::Numerics;

use super::reading::{Reading, Told};

/// A request that has not ended.
#[derive(Debug)]
pub(super) struct Client {
    /// The request's id in logs.
    label: Arc<str>,
    reading: Reading,
    events: mpsc::Sender<SeqEvent>,
    /// Present until the scheduler has taken or refused it.
    verdict: Option<oneshot::Sender<Result<(), SubmitError>>>,
    n_prompt: usize,
    counts: Arc<Counts>,
    force: Force,
    submitted: Micros,
    first: Option<Micros>,
    latest: Micros,
    /// The request's place in the journal, if it can be gone on with.
    recorder: Option<Recorder>,
    /// Numerics of the line that computed its latest rows.
    numerics: Option<Numerics>,
}

impl Client {
    pub(super) fn new(
        now: Micros,
        label: Arc<str>,
        n_prompt: usize,
        events: mpsc::Sender<SeqEvent>,
        verdict: oneshot::Sender<Result<(), SubmitError>>,
        counts: Arc<Counts>,
        force: Force,
    ) -> Self {
        Self {
            label,
            reading: Reading::new(now),
            events,
            verdict: Some(verdict),
            n_prompt,
            counts,
            force,
            submitted: now,
            first: None,
            latest: now,
            recorder: None,
            numerics: None,
        }
    }

    /// Restores a sequence of the journal, which records it from here on. Returns the ids of its tokens, and
    /// mirostat's mu after them.
    pub(super) fn goes_on(&mut self, now: Micros, past: Past) -> Option<(Vec<u32>, Option<f32>)> {
        self.recorder = Some(past.recorder);
        self.numerics = past.numerics;
        let drawn = past.drawn?;
        if !drawn.is_empty() {
            self.first = Some(now);
        }
        let mu = drawn.last().and_then(|token| token.mu);
        let ids = drawn.iter().map(|token| token.id).collect();
        for token in drawn {
            // There is room for all; an error is a reader that left.
            let _ = self.events.try_send(SeqEvent::Token(token));
        }
        Some((ids, mu))
    }

    /// Reports that its first tokens were reused.
    pub(super) fn reused(&self, tokens: u32) {
        metrics::reused(tokens);
        self.counts.set_reused(tokens);
    }

    /// Counts the tokens of the client's prediction: drafted and drawn, and drafted in vain.
    pub(super) fn expected(&self, right: u32, wrong: u32) {
        self.counts.set_expected(right, wrong);
    }

    /// Reports that it goes on after a lost line, where this many positions are computed again. `before`: the
    /// numerics of the former line.
    pub(super) fn replayed(&mut self, tokens: u32, before: Option<Numerics>) {
        metrics::replayed(tokens);
        self.counts.add_recomputed(tokens);
        self.numerics = self.numerics.or(before);
    }

    /// Notes the numerics of its present line; returns them if they have changed.
    fn computed_with(&mut self, numerics: Option<Numerics>) -> Option<Numerics> {
        let before = std::mem::replace(&mut self.numerics, numerics);
        if before.is_some() && before != numerics {
            self.counts.set_numerics_changed();
        }
        numerics.filter(|_| before != numerics)
    }

    /// Reports the progress of a long prompt; `read` is the progress according to the scheduler.
    pub(super) fn tell_of_prompt(&mut self, now: Micros, read: Option<(u32, u32)>) {
        if self.first.is_some() {
            return;
        }
        let id = &*self.label;
        match self.reading.look(now, read) {
            None => {}
            Some(Told::Waits { seconds }) => {
                tracing::info!(id, seconds, "a request waits for a free slot");
            }
            Some(Told::Reads { seconds, computed, prompt, seconds_left }) => {
                tracing::info!(id, seconds, computed, prompt, seconds_left, "a prompt is read");
            }
        }
    }

    /// The scheduler has it.
    pub(super) fn taken(&mut self) {
        if let Some(verdict) = self.verdict.take() {
            // If the receiver is gone, the client has gone: the next sweep sees that.
            let _ = verdict.send(Ok(()));
        }
    }

    /// The scheduler will not run it.
    pub(super) fn reject(self, why: Rejection) {
        let error = match why {
            Rejection::QueueFull(full) => SubmitError::QueueFull(full),
            Rejection::TooLong(long) => RequestError::TooLong(long).into(),
            Rejection::NoCompanion(why) => RequestError::no_companion(why).into(),
            Rejection::Invalid(what) => SubmitError::Unavailable { reason: what.to_string() },
        };
        metrics::request_ended("rejected");
        match self.verdict {
            Some(verdict) => drop(verdict.send(Err(error))),
            None => {
                self.send_last(SeqEvent::Failed(Failure::Internal { reason: error.to_string() }))
            }
        }
    }

    /// Sends a token that a line with these numerics drew; returns `false` if the client is gone.
    pub(super) fn token(
        &mut self,
        now: Micros,
        token: SampledToken,
        numerics: Option<Numerics>,
    ) -> bool {
        let news = self.computed_with(numerics);
        match self.first {
            None => {
                self.first = Some(now);
                metrics::first_token(self.n_prompt, now - self.submitted);
            }
            Some(_) => metrics::next_token(now - self.latest),
        }
        self.latest = now;
        self.recorder.iter().for_each(|recorder| recorder.token(&token, news));
        self.events.try_send(SeqEvent::Token(token)).is_ok()
    }

    /// Sends a logits row; returns `false` if the client is gone.
    pub(super) fn logits(&mut self, now: Micros, pos: u32, row: Vec<f32>) -> bool {
        self.first.get_or_insert(now);
        self.latest = now;
        self.events.try_send(SeqEvent::Logits { pos, row }).is_ok()
    }

    /// The sequence ended as asked.
    pub(super) fn finish(self, now: Micros, reason: FinishReason) {
        self.recorder.iter().for_each(|recorder| recorder.finished(&reason));
        metrics::request_ended(match reason {
            FinishReason::Stop(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::LogitsDone => "logits",
        });
        let first = self.first.unwrap_or(now);
        let finish = Finish {
            reason,
            to_first: Duration::from_micros(first - self.submitted),
            after_first: Duration::from_micros(now - first),
        };
        self.send_last(SeqEvent::Finished(finish));
    }

    /// The sequence ended with a failure.
    pub(super) fn fail(self, failure: Failure) {
        metrics::request_ended("error");
        self.send_last(SeqEvent::Failed(failure));
    }

    /// The client went away.
    pub(super) fn cancelled(self) {
        metrics::request_ended("cancelled");
    }

    /// Why its key is not in force any more, if it is not.
    pub(super) fn key_end(&self) -> Option<KeyEnd> {
        self.force.end()
    }

    /// Whether the client has dropped its end.
    pub(super) fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    fn send_last(&self, event: SeqEvent) {
        // The channel has room for every event of the request; an error is a client that left.
        let _ = self.events.try_send(event);
    }
}

/// Why nothing can be submitted in this state; `None` if it can.
pub(super) fn not_running(status: &Status) -> Option<String> {
    match status {
        Status::Ready(_) => None,
        Status::Loading(loading) => Some(format!("the model is loading ({loading})")),
        Status::Down { reason, .. } => Some(format!("the line is being repaired ({reason})")),
        Status::Stopping => Some("the server is shutting down".to_string()),
        Status::Failed { reason } => Some(reason.clone()),
    }
}
