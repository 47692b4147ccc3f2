//! Two requests that begin alike do not compute the same prompt twice. The second one waits until the first one has
//! computed their common beginning, and then begins with it.
//!
//! It holds no place meanwhile, and others may overtake it. It waits only for a sequence that is ahead of the
//! position at which it would begin itself, so it could not be faster alone. If the first one ends early, the next
//! one that waits goes on. Only requests of one namespace do so. Where a sequence has a state at its end only, the
//! first one leaves a state at the fork.

use brigade_spec::Prefixes;

use crate::events::{Micros, Request};
use crate::line::Line;
use crate::memory::prefix::hold::Hold;
use crate::memory::prefix::kept::Prompt;
use crate::memory::prefix::tree::Space;
use crate::sequence::{Admitted, Live, SeqNo, is_suspect};
use crate::waiting::replay::Pending;

/// Rows that it must spare to be worth a wait.
pub(super) const LEAST_ROWS: u32 = 64;

/// The longest wait for another request's prompt, as a multiple of the time that computing it alone would take.
const MOST_TIMES: u64 = 4;

/// Whether a sequence will read the rows up to a position without waiting for anything else.
fn is_reading(reader: &Admitted, until: u32) -> bool {
    !reader.restoring && !is_suspect(reader.losses) && reader.own_left() > 0 && reader.sent < until
}

impl Line {
    /// Whether the one that a request waits for is still on its way there, and that does not take too long.
    pub fn lasts(&self, now: Micros, live: &Live, hold: &Hold) -> bool {
        let reads = live.of(hold.reader).is_some_and(|reader| is_reading(reader, hold.until));
        let rows = u64::from(hold.until - hold.begin);
        let waited = now.saturating_sub(hold.since);
        let is_long = self.times.measured() && self.times.rows_in(waited) > MOST_TIMES * rows;
        reads && !is_long
    }

    /// The sequence for which a queued request should wait, unless it has waited too long before.
    pub fn hold(&mut self, now: Micros, live: &mut Live, pending: &Pending) -> Option<Hold> {
        if pending.interrupted {
            return None;
        }
        let hold = self.shared_read(now, live, &pending.request)?;
        let Some(before) = pending.held else {
            self.kept.counts.waits += 1;
            return Some(hold);
        };
        // All its waiting together is as long as one may be.
        let hold = Hold { since: before.since, begin: before.begin.min(hold.begin), ..hold };
        self.lasts(now, live, &hold).then_some(hold)
    }

    /// The sequence for which a request should wait that could have a place now. That sequence will leave a state
    /// where the two differ.
    pub fn shared_read(&self, now: Micros, live: &mut Live, request: &Request) -> Option<Hold> {
        if !self.waits_for_readers(request) {
            return None;
        }
        let space = Space::of(request);
        let prompt = Prompt { tokens: &request.prompt, space: &space };
        let begin = self.best(live, prompt).map_or(0, |(_, len)| len);
        let (until, reader) = self.read_by(live, prompt, begin)?;
        let until = match self.spec.prefixes {
            Prefixes::Whole => live.get_mut(reader)?.mark_fork(until)?,
            Prefixes::All | Prefixes::None => until,
        };
        (until > begin).then_some(Hold { reader, until, begin, since: now })
    }

    /// Whether a request may begin with a prompt that is still being computed.
    pub(super) fn waits_for_readers(&self, request: &Request) -> bool {
        let leaves_states = self.spec.prefixes == Prefixes::All || self.marks;
        self.reuses(request) && leaves_states && request.companion.is_none()
    }

    /// The position up to which a running sequence reads what a prompt begins with, if that spares enough rows behind
    /// `begin`, where the prompt would have to begin by itself.
    pub(super) fn read_by(
        &self,
        live: &Live,
        prompt: Prompt<'_>,
        begin: u32,
    ) -> Option<(u32, SeqNo)> {
        let until = |(no, common): (SeqNo, u32)| {
            let reader = live.of(no)?;
            let until = match self.spec.prefixes {
                // There is a state between two rows of the prompt, not behind the last: a token is drawn there.
                Prefixes::Whole => common.min(reader.n_known - 1),
                Prefixes::All | Prefixes::None => common,
            };
            let is_ahead = reader.sent >= begin && is_reading(reader, until);
            (is_ahead && until >= begin.saturating_add(LEAST_ROWS)).then_some((until, no))
        };
        self.kept.readers(prompt).into_iter().filter_map(until).max()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use brigade_engine::batch::SamplerSetup;

    use super::*;
    use crate::events::{RequestId, StageTime, Work};
    use crate::{SchedConfig, sim};

    #[test]
    fn nobody_waits_much_longer_than_it_would_compute_alone() {
        let mut line = Line::new(1, sim::roomy(1), &SchedConfig::default(), 0, &[]);
        let mut live = Live::default();
        let (max_tokens, stop_tokens) = (64, [].into());
        let sampler = Arc::new(SamplerSetup::default());
        let work = Work::Generate { max_tokens, sure: max_tokens, sampler, stop_tokens };
        let request = Request::new(RequestId(1), vec![3; 256], work);
        let sequence = line.admit(&live, Pending::new(request));
        let reader = live.insert(sequence);
        let hold = Hold { reader, until: 128, begin: 0, since: 1_000 };
        let long = 3_600_000_000;
        assert!(line.lasts(long, &live, &hold), "nothing is known of the line's speed");
        let stage = StageTime { compute_us: 1_000, ..StageTime::default() };
        for rows in [1, 16, 64].repeat(20) {
            Arc::make_mut(&mut line.times).observe(rows, 1_000, &[stage]);
        }
        assert!(line.lasts(1_000, &live, &hold));
        assert!(!line.lasts(long, &live, &hold), "a whole hour for 128 rows");
    }
}
