//! Accounting of a request: the tokens that it took, its key's account, and its line in the log and the audit log.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Method;
use brigade_dialect::constrain::trials::Compiling;
use brigade_line::clock;
use brigade_line::generation::End;
use brigade_line::handle::Failure;
use brigade_line::keys::{Account, Force, KeyEnd, Ticket};
use brigade_line::measured::metrics;
use brigade_sched::{Namespace, Share};

use crate::clients::audit::{Audit, Entry, MAX_CONTENT_BYTES};

/// A request's key, for those who count what it uses.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) account: Account,
    /// The key's share of the scheduler.
    pub(crate) share: Share,
    /// The namespace of kept prompts of its requests.
    pub(crate) namespace: Namespace,
}

/// Compiling a grammar for so long counts as a token.
const COMPILE_PER_TOKEN: Duration = Duration::from_millis(1);

/// Counters of a request's sequences, so far.
#[derive(Debug, Default)]
pub(crate) struct RequestUsage {
    sums: Mutex<Sums>,
    /// The key of the request, if it needed one.
    owner: OnceLock<Owner>,
    /// The slot for its key's limit, held until its answer is sent and its last sequence has ended.
    ticket: OnceLock<Arc<Ticket>>,
    /// Name of the model that it is for.
    model: OnceLock<String>,
    /// Keeps that from being unloaded.
    in_use: OnceLock<Arc<()>>,
    /// The body, for an audit log that has it.
    content: Option<OnceLock<String>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    sequences: u32,
    ended: u32,
    /// Why not all of them ended well, if a sequence failed.
    failed: Option<&'static str>,
    prompt: u64,
    reused: u64,
    recomputed: u64,
    generated: u64,
    /// Time of the slowest sequence to its first token: queue and prefill, and what came after.
    to_first: Duration,
    after_first: Duration,
}

impl RequestUsage {
    /// Usage of a request, with or without its content for the audit log.
    pub(crate) fn new(keeps_content: bool) -> Self {
        Self { content: keeps_content.then(OnceLock::new), ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Sums> {
        // A panic elsewhere leaves whole sums behind.
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request has shown this key.
    pub(crate) fn belongs_to(&self, owner: Owner) {
        // The guard asks once for each request.
        let _ = self.owner.set(owner);
    }

    /// The request is for the model of this name.
    pub(crate) fn is_for(&self, model: &str) {
        self.model.get_or_init(|| model.to_owned());
    }

    /// Holds the model in use until the answer is sent and the last sequence has ended.
    pub(crate) fn uses(&self, in_use: Arc<()>) {
        // A request has one model.
        let _ = self.in_use.set(in_use);
    }

    /// Whether the request's key may use the model of this name; who needs no key may.
    pub(crate) fn may_use(&self, model: &str) -> bool {
        self.owner.get().is_none_or(|owner| owner.account.record().may_use(model))
    }

    /// Whether the request's key may have models fetched. Who needs no key has none that may.
    pub(crate) fn may_load(&self) -> bool {
        self.owner.get().is_some_and(|owner| owner.account.record().may_load)
    }

    /// The request counts among those of its key that run.
    pub(crate) fn runs(&self, ticket: Arc<Ticket>) {
        // As above.
        let _ = self.ticket.set(ticket);
    }

    /// The number of the request's key, if it needed one.
    pub(crate) fn key_number(&self) -> Option<u64> {
        self.owner.get().map(|owner| owner.account.number())
    }

    /// The scheduler's share of the request's key.
    pub(crate) fn share(&self) -> Share {
        self.owner.get().map(|owner| owner.share).unwrap_or_default()
    }

    /// The namespace of kept prompts of the request's key.
    pub(crate) fn namespace(&self) -> Namespace {
        let nobodys = || Namespace::of_owner(Share::default().owner);
        self.owner.get().map_or_else(nobodys, |owner| owner.namespace)
    }

    /// Whether the request's key is still valid.
    pub(crate) fn force(&self) -> Force {
        self.owner.get().map(|owner| owner.account.force().clone()).unwrap_or_default()
    }

    /// The request's body is here.
    pub(crate) fn has_body(&self, bytes: &[u8]) {
        if let Some(content) = &self.content {
            let kept = &bytes[..bytes.len().min(MAX_CONTENT_BYTES)];
            // A request has one body.
            let _ = content.set(String::from_utf8_lossy(kept).into_owned());
        }
    }

    /// Tokens were computed, or are about to be.
    fn charge(&self, tokens: u64) {
        if let Some(owner) = self.owner.get() {
            owner.account.charge(tokens, Instant::now());
        }
    }

    /// Grammars were compiled for the request: that counts as tokens do.
    pub(crate) fn compiled(&self, compiling: Compiling) {
        let Compiling { grammars, took } = compiling;
        if !took.is_zero() {
            metrics::compiled(grammars, took);
            self.charge((took.as_micros() / COMPILE_PER_TOKEN.as_micros()).max(1) as u64);
        }
    }

    /// A sequence with this many prompt tokens, in this many rows, was submitted. Rows are charged to the key because they
    /// are computed; tokens are reported.
    pub(crate) fn submitted(&self, n_prompt: usize, n_rows: usize) {
        self.charge(n_rows as u64);
        let mut sums = self.lock();
        sums.sequences += 1;
        sums.prompt += n_prompt as u64;
    }

    /// A sequence drew so many tokens more, each of which is so many rows.
    pub(crate) fn drew(&self, n: usize, rows_each: u64) {
        self.charge(n as u64 * rows_each);
        self.lock().generated += n as u64;
    }

    /// A sequence ended, of which `drawn` tokens are counted already.
    pub(crate) fn ended(&self, drawn: usize, end: &End, rows_each: u64) {
        let more = u64::from(end.n_generated).saturating_sub(drawn as u64);
        self.charge(more * rows_each);
        let mut sums = self.lock();
        sums.ended += 1;
        sums.generated += more;
        sums.reused += u64::from(end.n_reused);
        sums.recomputed += u64::from(end.n_recomputed);
        sums.to_first = sums.to_first.max(end.to_first);
        sums.after_first = sums.after_first.max(end.after_first);
    }

    /// A sequence that draws nothing has all its rows.
    pub(crate) fn computed(&self) {
        self.lock().ended += 1;
    }

    /// A sequence ended with a failure.
    pub(crate) fn failed(&self, failure: &Failure) {
        self.lock().failed = Some(match failure {
            Failure::KeyEnded(KeyEnd::Revoked) => "its key was revoked",
            Failure::KeyEnded(KeyEnd::Expired) => "its key has expired",
            _ => "failed",
        });
    }
}

/// The line of a request. It is written when the last clone is dropped, so that streams have their real times.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) id: Arc<str>,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) started: Instant,
    pub(crate) usage: Arc<RequestUsage>,
    pub(crate) audit: Option<Audit>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let (sums, ms) = (*self.usage.lock(), self.started.elapsed().as_millis() as u64);
        self.log(&sums, ms);
        if let Some(audit) = &self.audit {
            audit.record(&self.entry(&sums, ms));
        }
    }
}

impl Line {
    fn key(&self) -> Option<&str> {
        self.usage.owner.get().map(|owner| owner.account.record().name.as_str())
    }

    /// Empty where it was for none.
    fn model(&self) -> &str {
        self.usage.model.get().map_or("", String::as_str)
    }

    fn log(&self, sums: &Sums, ms: u64) {
        let Self { id, method, path, status, .. } = self;
        let model = self.model();
        let key = self.key();
        if method != Method::POST {
            tracing::debug!(parent: None, id = %id, key, %method, path, status, ms, "answered");
            return;
        }
        if sums.sequences == 0 {
            tracing::info!(parent: None, id = %id, key, %method, path, status, ms, "request");
            return;
        }
        tracing::info!(
            parent: None,
            id = %id,
            key,
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

    fn entry(&self, sums: &Sums, ms: u64) -> Entry<'_> {
        let refused = self.status >= 400;
        Entry {
            time: clock::date_time(clock::unix_now()),
            id: &self.id,
            key: self.key(),
            method: self.method.as_str(),
            endpoint: &self.path,
            model: self.model(),
            status: self.status,
            outcome: if refused && sums.sequences == 0 { "refused" } else { sums.outcome() },
            sequences: sums.sequences,
            prompt_tokens: sums.prompt,
            reused_tokens: sums.reused,
            generated_tokens: sums.generated,
            ms,
            content: self.usage.content.as_ref().and_then(OnceLock::get).map(String::as_str),
        }
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
            (false, Some(how)) => how,
            (false, None) => "its client left",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_line::generation::EndReason;
    use brigade_line::keys::{KeyRecord, Secret};

    fn end() -> End {
        End {
            reason: EndReason::Stop,
            stop: None,
            n_generated: 5,
            n_reused: 8,
            expected: [0, 0],
            n_recomputed: 2,
            numerics_changed: false,
            to_first: Duration::from_millis(10),
            after_first: Duration::from_secs(2),
        }
    }

    /// Minutes until a key of one token per minute has one again, behind a sequence of 12 tokens that draws three and
    /// ends with two more.
    fn minutes_in_debt(n_rows: usize, rows_each: u64) -> u64 {
        let mut record = KeyRecord::new("a", &Secret::new().unwrap(), 0).unwrap();
        record.tokens_per_minute = Some(1);
        let (now, hash) = (Instant::now(), record.key_hash().unwrap());
        let account = Account::new(record, hash, now);
        let usage = RequestUsage::default();
        let (share, namespace) = (Share::default(), Namespace::of_owner(0));
        usage.belongs_to(Owner { account: account.clone(), share, namespace });
        usage.submitted(12, n_rows);
        usage.drew(3, rows_each);
        usage.ended(3, &end(), rows_each);
        account.begin(now).unwrap_err().retry().as_secs().div_ceil(60)
    }

    #[test]
    fn a_key_is_charged_for_each_token_that_is_computed() {
        assert_eq!(minutes_in_debt(12, 1), 12 + 5);
        assert_eq!(minutes_in_debt(12 + 7, 2), 12 + 7 + 2 * 5, "a second sequence is computed too");
    }

    #[test]
    fn tokens_are_counted_once_and_who_leaves_is_told_apart() {
        let usage = RequestUsage::default();
        usage.submitted(12, 12);
        usage.drew(3, 1);
        let sums = *usage.lock();
        assert_eq!((sums.generated, sums.outcome()), (3, "its client left"));
        usage.ended(3, &end(), 1);
        let sums = *usage.lock();
        assert_eq!((sums.prompt, sums.reused, sums.recomputed, sums.generated), (12, 8, 2, 5));
        assert_eq!((sums.tokens_per_second(), sums.outcome()), (2.0, "answered"));
        usage.submitted(1, 1);
        usage.failed(&Failure::KeyEnded(KeyEnd::Revoked));
        assert_eq!(usage.lock().outcome(), "its key was revoked");
        usage.failed(&Failure::Stopping);
        assert_eq!(usage.lock().outcome(), "failed");
    }
}
