//! The waiting queue: first come, first admitted; bounded; says when to come back.

use std::collections::VecDeque;

use super::events::{LineSpec, Micros, Rejection, Request, RequestId, Work};

/// Bounds of the advice in [`Rejection::QueueFull`], seconds.
const RETRY_AFTER_S: std::ops::RangeInclusive<u64> = 1..=60;

/// Weight of the newest interval between two ends in their running mean.
const RECENT: f64 = 0.1;

/// Requests that have no place on the line yet.
#[derive(Debug)]
pub(super) struct Waiting {
    queue: VecDeque<Request>,
    limit: usize,
    last_end: Option<Micros>,
    /// Running mean of the time between two ends of admitted requests, once there were two.
    end_interval_us: Option<f64>,
}

impl Waiting {
    pub fn new(limit: usize) -> Self {
        Self { queue: VecDeque::new(), limit, last_end: None, end_interval_us: None }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn contains(&self, id: RequestId) -> bool {
        self.queue.iter().any(|r| r.id == id)
    }

    /// Appends, or says when a place is likely to be free.
    pub fn push(&mut self, request: Request) -> Result<(), Rejection> {
        if self.queue.len() >= self.limit {
            return Err(Rejection::QueueFull {
                waiting: self.queue.len(),
                retry_after_s: self.retry_after_s(),
            });
        }
        self.queue.push_back(request);
        Ok(())
    }

    pub fn remove(&mut self, id: RequestId) -> Option<Request> {
        let at = self.queue.iter().position(|r| r.id == id)?;
        self.queue.remove(at)
    }

    pub fn front(&self) -> Option<&Request> {
        self.queue.front()
    }

    pub fn pop(&mut self) -> Option<Request> {
        self.queue.pop_front()
    }

    /// Takes out those that can never run on `line`, with the reason.
    pub fn purge(&mut self, line: &LineSpec) -> Vec<(RequestId, Rejection)> {
        let mut out = Vec::new();
        self.queue.retain(|request| match check_fits(request, line) {
            Ok(()) => true,
            Err(why) => {
                out.push((request.id, why));
                false
            }
        });
        out
    }

    /// An admitted request ended: places become free at this pace.
    pub fn note_end(&mut self, now: Micros) {
        if let Some(last) = self.last_end {
            let interval = now.saturating_sub(last) as f64;
            let mean = self.end_interval_us.unwrap_or(interval);
            self.end_interval_us = Some(mean + RECENT * (interval - mean));
        }
        self.last_end = Some(now);
    }

    /// A place in the queue is free as soon as one admitted request ends.
    fn retry_after_s(&self) -> u64 {
        let seconds = self.end_interval_us.map_or(0, |us| (us / 1e6).ceil() as u64);
        seconds.clamp(*RETRY_AFTER_S.start(), *RETRY_AFTER_S.end())
    }
}

/// What can be said about a request without knowing the line.
pub(super) fn check_sense(request: &Request) -> Result<(), Rejection> {
    if request.prompt.is_empty() {
        return Err(Rejection::Invalid("the prompt has no tokens; give at least one"));
    }
    if matches!(request.work, Work::Generate { max_tokens: 0, .. }) {
        return Err(Rejection::Invalid("max_tokens is 0; ask for at least one token"));
    }
    Ok(())
}

/// Whether the request can ever run on `line`.
pub(super) fn check_fits(request: &Request, line: &LineSpec) -> Result<(), Rejection> {
    let pages = u64::from(line.n_blocks) * u64::from(line.block_positions);
    let limit = pages.min(u64::from(line.max_positions));
    let needed = request.positions();
    if needed <= limit {
        return Ok(());
    }
    let prompt = request.prompt.len() as u64;
    Err(Rejection::TooLong { needed, prompt, max_tokens: needed - prompt, limit })
}

#[cfg(test)]
mod tests {
    use brigade_engine::state::Prefixes;

    use super::*;

    fn request(id: u64, prompt: usize) -> Request {
        let prompt = vec![1; prompt];
        Request { id: RequestId(id), label: "r".into(), prompt, work: Work::Logits }
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let mut waiting = Waiting::new(1);
        waiting.push(request(1, 1)).unwrap();
        let full = |retry_after_s| Err(Rejection::QueueFull { waiting: 1, retry_after_s });
        assert_eq!(waiting.push(request(2, 1)), full(1));
        for second in [10, 17, 24] {
            waiting.note_end(second * 1_000_000);
        }
        assert_eq!(waiting.push(request(2, 1)), full(7));
        waiting.note_end(10_000 * 1_000_000);
        assert_eq!(waiting.push(request(2, 1)), full(60));
    }

    #[test]
    fn what_cannot_fit_is_told_with_both_numbers() {
        let line = LineSpec {
            n_stages: 1,
            n_blocks: 2,
            n_slots: 1,
            n_kept: 0,
            prefixes: Prefixes::All,
            block_positions: 64,
            max_positions: 4096,
            max_rows: 512,
        };
        assert_eq!(check_fits(&request(1, 128), &line), Ok(()));
        let why = check_fits(&request(1, 129), &line).unwrap_err();
        assert!(why.to_string().contains("129 positions"), "{why}");
        assert!(why.to_string().contains("at most 128"), "{why}");
    }
}
