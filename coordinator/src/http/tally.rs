//! The one line that the log has for each request. It is written when the answer has been sent, or when
//! nobody reads it any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Method;

use crate::generation::End;

/// What the sequences of a request took, so far.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Sums>);

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    sequences: u32,
    ended: u32,
    failed: bool,
    prompt: u64,
    reused: u64,
    recomputed: u64,
    generated: u64,
    /// Of the slowest sequence: queue and prefill, and what came after.
    to_first: Duration,
    after_first: Duration,
}

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        // A panic elsewhere leaves whole sums behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sequence with so many prompt tokens was handed in.
    pub(super) fn submitted(&self, n_prompt: usize) {
        let mut sums = self.lock();
        sums.sequences += 1;
        sums.prompt += n_prompt as u64;
    }

    /// A sequence drew so many tokens more.
    pub(super) fn drew(&self, n: usize) {
        self.lock().generated += n as u64;
    }

    /// A sequence ended, of which `drawn` tokens are counted already.
    pub(super) fn ended(&self, drawn: usize, end: &End) {
        let mut sums = self.lock();
        sums.ended += 1;
        sums.generated += u64::from(end.n_generated).saturating_sub(drawn as u64);
        sums.reused += u64::from(end.n_reused);
        sums.recomputed += u64::from(end.n_recomputed);
        sums.to_first = sums.to_first.max(end.to_first);
        sums.after_first = sums.after_first.max(end.after_first);
    }

    /// A sequence failed.
    pub(super) fn failed(&self) {
        self.lock().failed = true;
    }
}

/// The line of a request. It is written when the last clone is dropped, so that streams have their real times.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: Arc<str>,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) model: String,
    pub(super) status: u16,
    pub(super) started: Instant,
    pub(super) tally: Arc<Tally>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let Self { id, method, path, model, status, started, tally } = self;
        let (sums, ms) = (*tally.lock(), started.elapsed().as_millis() as u64);
        if sums.sequences == 0 {
            tracing::info!(parent: None, id = %id, %method, path, status, ms, "request");
            return;
        }
        tracing::info!(
            parent: None,
            id = %id,
            model,
            prompt = sums.prompt,
            reused = sums.reused,
            recomputed = sums.recomputed,
            generated = sums.generated,
            first_ms = sums.to_first.as_millis() as u64,
            rest_ms = sums.after_first.as_millis() as u64,
            tokens_per_second = sums.tokens_per_second(),
            ms,
            path,
            status,
            outcome = sums.outcome(),
            "request"
        );
    }
}

impl Sums {
    /// Tokens after the first of each sequence, in tenths.
    fn tokens_per_second(&self) -> f64 {
        let later = self.generated.saturating_sub(self.ended.into()) as f64;
        let seconds = self.after_first.as_secs_f64();
        if seconds > 0.0 { (later / seconds * 10.0).round() / 10.0 } else { 0.0 }
    }

    fn outcome(&self) -> &'static str {
        match (self.ended == self.sequences, self.failed) {
            (true, _) => "answered",
            (false, true) => "failed",
            (false, false) => "its client left",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::EndReason;

    #[test]
    fn tokens_are_counted_once_and_who_leaves_is_told_apart() {
        let tally = Tally::default();
        tally.submitted(12);
        tally.drew(3);
        let sums = *tally.lock();
        assert_eq!((sums.generated, sums.outcome()), (3, "its client left"));
        let end = End {
            reason: EndReason::Stop,
            n_generated: 5,
            n_reused: 8,
            n_recomputed: 2,
            to_first: Duration::from_millis(10),
            after_first: Duration::from_secs(2),
        };
        tally.ended(3, &end);
        let sums = *tally.lock();
        assert_eq!((sums.prompt, sums.reused, sums.recomputed, sums.generated), (12, 8, 2, 5));
        assert_eq!((sums.tokens_per_second(), sums.outcome()), (2.0, "answered"));
        tally.submitted(1);
        tally.failed();
        assert_eq!(tally.lock().outcome(), "failed");
    }
}
