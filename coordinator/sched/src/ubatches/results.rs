//! Reads results: matches rows with sequences, and reports tokens.

use std::sync::Arc;

use brigade_engine::batch::{DraftedToken, RowValue, SampledToken};

use crate::drafts::ahead::{Judged, Outcome};
use crate::drafts::drafting;
use crate::events::{
    Action, FinishReason, LineFault, Micros, RequestId, Results, Share, StageTime, Unfinished, Work,
};
use crate::sequence::SeqNo;
use crate::times::pace::Returned;
use crate::times::timing::LineTimes;
use crate::ubatches::in_flight::{InFlight, InWindow, Wanted};
use crate::{PREPARED_AT_ONCE, Scheduler};

/// Adds the times of a ubatch that is back to the line's measurements.
fn learn(line: &mut LineTimes, now: Micros, done: &InFlight, times: &[StageTime]) {
    // The last stage does not compute a stale window that is alone in its ubatch.
    if !done.has_stale {
        line.observe(done.n_rows, now.saturating_sub(done.sent_at), times);
    }
    let computed = || times.iter().map(|time| time.compute_us);
    let (slowest_us, through_us) = (computed().max().unwrap_or(0), computed().sum());
    let returned = Returned { sent_at: done.sent_at, at: now, slowest_us, through_us };
    line.observe_return((!done.has_stale).then_some(returned));
    line.observe_drafts(done.drafted, times.last().map_or(0, |last| last.drafting_us));
}

impl Scheduler {
    pub(crate) fn results(&mut self, now: Micros, results: Results, out: &mut Vec<Action>) {
        let Some(line) = &mut self.line else { return };
        if line.epoch != results.epoch || line.faulted {
            return;
        }
        let ubatch = results.ubatch;
        if let Err(what) = self.accept(now, results, out) {
            if let Some(line) = &mut self.line {
                line.faulted = true;
            }
            out.push(Action::LineFault(LineFault::Unexpected { ubatch, what }));
        }
    }

    /// Hands rows to their sequences; an error says what the line did wrong.
    fn accept(
        &mut self,
        now: Micros,
        results: Results,
        out: &mut Vec<Action>,
    ) -> Result<(), String> {
        for row in results.rows {
            let wanted = self.oldest_in_flight(results.ubatch)?.claim(&row)?;
            let Wanted { seq: no, share, .. } = wanted;
            self.charge_masks(share, row.mask_us.into());
            let is_stale = self.is_stale(&wanted);
            self.drafts.stale += u64::from(row.value == RowValue::Refuted);
            if is_stale && matches!(row.value, RowValue::NotYet | RowValue::Sampled(_)) {
                let what = "a draw at a position of drafts that were taken back";
                return Err(format!("{what}: {}", row.pos));
            }
            match row.value {
                RowValue::NotYet => self.no_mask(&wanted),
                RowValue::Refuted if is_stale || !self.live.contains(no) => {}
                RowValue::Refuted => {
                    return Err(format!(
                        "the drafts at position {} were refuted, which are right",
                        row.pos
                    ));
                }
                RowValue::Sampled(token) => self.token(now, &wanted, token, out),
                RowValue::Failed(reason) => self.no_token(now, no, reason, out),
                RowValue::Logits(values) | RowValue::Hidden(values) => {
                    self.logits(now, no, row.pos, values, out);
                }
            }
        }
        let oldest = self.oldest_in_flight(results.ubatch)?;
        let outstanding = oldest.wanted.len();
        let Some(line) = &mut self.line else { return Ok(()) };
        line.last_progress = now;
        let Some(times) = results.done else { return Ok(()) };
        if outstanding > 0 {
            return Err(format!("it ended with {outstanding} wanted rows missing"));
        }
        if times.len() != line.spec.n_stages {
            return Err(format!(
                "times of {} stages, the line has {}",
                times.len(),
                line.spec.n_stages
            ));
        }
        if let Some(done) = line.in_flight.pop_front() {
            self.last_done = self.drafts.note_done(&done, &line.times, &times);
            learn(Arc::make_mut(&mut line.times), now, &done, &times);
            for (no, end) in done.computed {
                if let Some(sequence) = self.live.get_mut(no) {
                    sequence.note_computed(end);
                    // There is time for it while a prompt is computed.
                    if let Some(drafter) = self.drafter.as_mut().filter(|_| end <= sequence.n_known)
                    {
                        drafter.prepare(drafting::stream(sequence.request), PREPARED_AT_ONCE);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a row belongs to drafts that have been taken back since.
    fn is_stale(&self, wanted: &Wanted) -> bool {
        let of = |window: &InWindow| {
            self.live.of(wanted.seq).is_some_and(|sequence| sequence.run() != window.run)
        };
        wanted.ahead.as_ref().is_some_and(of)
    }

    /// Charges an owner for its masks: their time counts as the rows that the line could have computed during it.
    fn charge_masks(&mut self, share: Share, us: Micros) {
        if us > 0
            && let Some(line) = &self.line
        {
            self.live.owners.charge(share, line.times.rows_in(us));
        }
    }

    fn oldest_in_flight(&mut self, ubatch: u64) -> Result<&mut InFlight, String> {
        let oldest = self.line.as_mut().and_then(|line| line.in_flight.front_mut());
        match oldest {
            Some(oldest) if oldest.id == ubatch => Ok(oldest),
            Some(oldest) => Err(format!("ubatch {} has to end first", oldest.id)),
            None => Err("nothing is in flight".to_owned()),
        }
    }

    /// A sampled token of a sequence, which may have ended since.
    fn token(&mut self, now: Micros, of: &Wanted, mut token: SampledToken, out: &mut Vec<Action>) {
        let forced = std::mem::take(&mut token.forced);
        let drafted = std::mem::take(&mut token.drafted);
        let no = of.seq;
        let Some(sequence) = self.live.get_mut(no) else { return };
        let Work::Generate { max_tokens, stop_tokens, .. } = &sequence.work else { return };
        let (max_tokens, is_stop) = (*max_tokens, stop_tokens.contains(&token.id));
        (sequence.put_off, sequence.masks_late, sequence.mu) = (false, false, token.mu);
        let (request, index, id) = (sequence.request, sequence.generated(), token.id);
        let reason = if is_stop {
            FinishReason::Stop(token)
        } else {
            sequence.push(id);
            let outcome = match of.ahead {
                Some(_) => sequence.drawn_ahead(now, of.pos, id),
                None => Outcome::Ready(None),
            };
            out.push(Action::Token { request, index, token });
            if let Some(ahead) = &mut sequence.ahead {
                self.drafts.overlapped_us += std::mem::take(&mut ahead.overlapped.1);
            }
            self.note_drawn(request, id, &forced, drafted, outcome.judged());
            if index + 1 < max_tokens && self.has_place_for_next(no) {
                if let Outcome::Ready(_) = outcome {
                    self.ready(no);
                }
                return;
            }
            FinishReason::Length
        };
        let generated = index + u32::from(!is_stop);
        self.tell_expected(no, out);
        self.end(now, no);
        out.push(Action::Finished { request, reason, generated });
    }

    /// The mask of a row was not made in time. It is asked for again, or its row is computed again where it is one of several.
    fn no_mask(&mut self, of: &Wanted) {
        let Some(sequence) = self.live.get_mut(of.seq) else { return };
        let is_ahead = of.ahead.is_some();
        let is_sent_again = is_ahead && sequence.no_mask_ahead(of.pos);
        self.drafts.unmasked += u64::from(is_ahead);
        if is_sent_again {
            self.ready(of.seq);
        } else {
            self.live.put_off(of.seq);
        }
    }

    /// Tells what became of what a client expected.
    fn tell_expected(&self, no: SeqNo, out: &mut Vec<Action>) {
        if let Some(sequence) = self.live.of(no)
            && let Some([right, wrong]) = sequence.expected()
        {
            out.push(Action::Expected { request: sequence.request, right, wrong });
        }
    }

    /// The next part of a sequence can be sent.
    fn ready(&mut self, no: SeqNo) {
        if let Some(sequence) = self.live.get_mut(no) {
            sequence.awaiting = false;
            self.live.ready.push_back(no);
        }
    }

    /// Tells the drafter the drawn token, the tokens that must follow it, and whether its draft was right.
    fn note_drawn(
        &mut self,
        request: RequestId,
        token: u32,
        forced: &[u32],
        drafted: Vec<DraftedToken>,
        judged: Option<Judged>,
    ) {
        if let Some(judged) = judged {
            self.drafts.note(judged);
        }
        let Some(drafter) = &mut self.drafter else { return };
        drafter.push(drafting::stream(request), token);
        if !forced.is_empty() {
            drafter.must_follow(drafting::stream(request), forced);
        }
        if !drafted.is_empty() {
            let drafted = drafted.iter().map(|draft| (draft.id, draft.odds)).collect();
            drafter.model_drafted(drafting::stream(request), drafted);
        }
        if let Some(Judged { source, matched, right, .. }) = judged {
            drafter.judged(drafting::stream(request), source, matched, right);
        }
    }

    /// A row that gives no token ends its sequence, if that has not ended by itself, and no other. Nothing
    /// that it left behind begins another.
    fn no_token(&mut self, now: Micros, no: SeqNo, reason: String, out: &mut Vec<Action>) {
        let Some(sequence) = self.live.remove(no) else {
            // The sequence has ended, and its state may be kept.
            return self.with_line(|line| line.discard_kept(no));
        };
        self.with_line(|line| line.discard(&sequence));
        self.end_drafts(sequence.request);
        self.waiting.note_end(now);
        let error = Unfinished::NoToken { reason, generated: sequence.generated() };
        out.push(Action::Failed { request: sequence.request, error });
    }

    fn logits(&mut self, now: Micros, no: SeqNo, pos: u32, row: Vec<f32>, out: &mut Vec<Action>) {
        let Some(sequence) = self.live.get_mut(no) else { return };
        let request = sequence.request;
        let rows_before = if sequence.rows_wanted() == 1 { 0 } else { pos };
        if rows_before < sequence.rows_returned {
            // It was reported before its line was lost, and came again with the whole text.
            return;
        }
        sequence.rows_returned += 1;
        let all = sequence.rows_returned == sequence.rows_wanted();
        out.push(Action::Logits { request, pos, row });
        if all {
            self.end(now, no);
            out.push(Action::Finished { request, reason: FinishReason::LogitsDone, generated: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use brigade_engine::batch::{RowOutput, SamplerSetup, SlotId, UBatch};

    use super::*;
    use crate::{Event, Request, SchedConfig, sim};

    fn request(owner: u64) -> Request {
        let (max_tokens, stop_tokens) = (9, [].into());
        let sampler = Arc::new(SamplerSetup::default());
        let work = Work::Generate { max_tokens, sure: max_tokens, sampler, stop_tokens };
        let share = Share { owner, ..Share::default() };
        Request { share, ..Request::new(RequestId(owner), vec![owner as u32; 4], work) }
    }

    /// Returns a ubatch with a token for each part; the mask of slot `slow` took a second.
    fn done(ubatch: &UBatch, slow: Option<SlotId>) -> Event {
        let rows = ubatch.parts.iter().map(|part| {
            let pos = part.pos + part.tokens.len() as u32 - 1;
            let value = RowValue::Sampled(SampledToken { id: 7, ..SampledToken::default() });
            let mask_us = if slow == Some(part.slot) { 1_000_000 } else { 0 };
            RowOutput { slot: part.slot, pos, value, mask_us }
        });
        let stage = StageTime { compute_us: 1_000, ..StageTime::default() };
        let (rows, done) = (rows.collect(), Some(vec![stage]));
        Event::Results(Results { epoch: 1, ubatch: ubatch.id, rows, done })
    }

    #[test]
    fn each_mask_is_charged_to_the_owner_of_its_row() {
        let mut scheduler = Scheduler::new(SchedConfig::default());
        scheduler.step(0, Event::LineUp { epoch: 1, line: sim::roomy(1) });
        // They get the slots 0 and 1, and draw in one ubatch at last.
        let mut events: VecDeque<Event> = [1, 2].map(|owner| Event::Submit(request(owner))).into();
        let mut both = None;
        while let Some(event) = events.pop_front() {
            for action in scheduler.step(0, event) {
                match action {
                    Action::Send(ubatch) if ubatch.parts.len() == 2 => both = Some(ubatch),
                    Action::Send(ubatch) => events.push_back(done(&ubatch, None)),
                    _ => {}
                }
            }
        }
        let both = both.unwrap();
        let share = |owner| Share { owner, ..Share::default() };
        let ranks = |scheduler: &Scheduler| {
            [1, 2].map(|owner| scheduler.live.owners.rank_for_rows(share(owner)).0)
        };
        let before = ranks(&scheduler);
        // Only the mask of the second row takes long.
        let slow = both.parts[1].slot;
        scheduler.step(0, done(&both, Some(slow)));
        let after = ranks(&scheduler);
        let more = [after[0] - before[0], after[1] - before[1]];
        let (own, other) = (slow.0 as usize, 1 - slow.0 as usize);
        assert!(more[own] > 10 * more[other].max(1), "{more:?}, slot {}", slow.0);
    }
}
