//! Checkpoints: which sequences have a name, when their states are copied, and how they go on from a copy.
//!
//! A checkpoint rides on a ubatch ahead of the sequence's next rows, so that every stage copies the state after the
//! same position. Where only pages are kept, whole ones are copied as they fill, and any position before is as good;
//! a recurrent state is worth its bytes only every so many tokens. Within a prompt, whose tokens are soon computed
//! again, the distance is larger.
//!
//! After a lost line, the driver finds out which positions every stage can go back to. Such a sequence gets its
//! places, the pages it had if they are free, and waits until its state is there; then it computes the rest as a
//! prompt. If its state does not come, it loses its places and computes everything, like a sequence without
//! checkpoints.
//!
//! A request may do without copies. The stages hear its name only when they are to keep its state for a planned change.

use brigade_engine::batch::{CopyName, SeqOp, TokenMark};
use brigade_spec::Prefixes;

use crate::config::PROMPT_TOKENS_AS_ONE;
use crate::events::{Action, LineSpec, Micros, RequestId};
use crate::line::Line;
use crate::memory::prefix::space_of;
use crate::sequence::{Admitted, Live, SeqNo};
use crate::waiting::replay::Pending;
use crate::{SchedConfig, Scheduler};

/// A request whose line was lost, as far as its copies matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// The request whose line was lost.
    pub request: RequestId,
    /// The name of its copies.
    pub name: CopyName,
    /// All known tokens of the sequence. At least one is left to compute.
    pub tokens: Vec<u32>,
    /// The namespace of the copies, the same in every process, and whose they are.
    pub space: (Vec<u8>, u64),
}

/// The checkpoint that is due before the next rows of a sequence, if one is. Positions that were computed again after
/// a lost line are copied as soon as they are there: after one lost worker another one may follow.
pub(crate) fn due(spec: &LineSpec, every: Option<u32>, sequence: &mut Admitted) -> Option<SeqOp> {
    let (every, _) = (every.filter(|_| sequence.copied)?, sequence.name?);
    let Admitted { checkpointed, n_known, n_prompt, slot, .. } = *sequence;
    // With windows in flight, a state of sure positions is in the plane before the oldest one.
    let (sent, plane) = match spec.prefixes {
        Prefixes::Whole => sequence.sure_state(),
        Prefixes::All | Prefixes::None => (sequence.sure_sent(), slot),
    };
    let (len, is_due) = match spec.prefixes {
        Prefixes::All => {
            let full = sent / spec.block_positions * spec.block_positions;
            (full, full > checkpointed)
        }
        Prefixes::Whole => {
            let in_prompt = sent < n_known;
            let after = every.saturating_mul(if in_prompt { PROMPT_TOKENS_AS_ONE } else { 1 });
            let is_replayed = n_known > n_prompt && sent == n_known && sent > checkpointed;
            (sent, is_replayed || sent >= checkpointed.saturating_add(after))
        }
        Prefixes::None => return None,
    };
    if !is_due {
        return None;
    }
    sequence.checkpointed = len;
    let mark = TokenMark::of(&sequence.tokens[..len as usize]);
    let is_ahead = sequence.n_windows() > 0 || sequence.is_taken_back();
    let plane = (spec.prefixes == Prefixes::Whole && is_ahead).then_some(plane);
    Some(SeqOp::Checkpoint { slot, len, mark, plane, parting: false })
}

/// The change that tells the stages the name of a sequence that was just opened, if copies of it are taken.
pub(crate) fn early_name(every: Option<u32>, sequence: &mut Admitted) -> Option<SeqOp> {
    every.filter(|_| sequence.copied).and_then(|_| sequence.tell_name())
}

impl Line {
    /// Gives a sequence that was just admitted its name, if no other one has it. Where copies of it are taken the stages hear
    /// of it at once, else when they are to keep its state.
    pub fn name(&mut self, config: &SchedConfig, live: &Live, sequence: &mut Admitted) {
        sequence.name = sequence.name.filter(|name| !live.has_name(*name));
        // One that begins with a kept sequence is opened by a copy, which was just decided.
        if sequence.opened {
            self.ops.extend(early_name(config.checkpoint_every, sequence));
        }
    }

    /// Opens a sequence whose state is to be put back, on the next ubatch.
    fn open_for_state(&mut self, sequence: &mut Admitted, name: CopyName, len: u32) {
        self.ops.extend(sequence.open_ops());
        self.ops.push(SeqOp::Name { slot: sequence.slot, name: Some(name) });
        (sequence.opened, sequence.named) = (true, true);
        (sequence.sent, sequence.checkpointed) = (len, len);
        sequence.restoring = true;
    }
}

impl Scheduler {
    /// Requests whose line was lost and that may have copies. The driver looks for these before the next line is
    /// used.
    pub fn interrupted(&self) -> Vec<Interrupted> {
        let of = |pending: &Pending| {
            let name = pending.name?;
            let (request, tokens) = (pending.request.id, pending.tokens());
            let space = (space_of(&pending.request), pending.request.share.owner);
            Some(Interrupted { request, name, tokens, space })
        };
        self.waiting.interrupted().filter_map(of).collect()
    }

    /// A state has been put back on every stage, or on some and not on all.
    pub(crate) fn restored(
        &mut self,
        now: Micros,
        request: RequestId,
        is_there: bool,
        out: &mut Vec<Action>,
    ) {
        let Some(no) = self.live.find(request) else { return };
        let Some(sequence) = self.live.get_mut(no).filter(|sequence| sequence.restoring) else {
            return;
        };
        if is_there {
            sequence.restoring = false;
            let tokens = sequence.furthest.saturating_sub(sequence.sent);
            out.push(Action::Replayed { request, tokens });
            self.live.prefilling.push_back(no);
            return;
        }
        let Some(sequence) = self.live.remove(no) else { return };
        self.end_drafts(request);
        self.with_line(|line| line.release(&sequence));
        self.waiting.note_end(now);
        self.waiting.go_back(Pending::without_copies(sequence));
    }
}

/// Begins a request with its state of `len` positions, which is still to come.
pub(crate) fn begin_restore(
    line: &mut Line,
    live: &mut Live,
    mut sequence: Admitted,
    name: CopyName,
    len: u32,
    out: &mut Vec<Action>,
) -> SeqNo {
    line.open_for_state(&mut sequence, name, len);
    out.push(Action::Restore {
        request: sequence.request,
        slot: sequence.slot,
        name,
        tokens: sequence.tokens[..len as usize].to_vec(),
    });
    live.insert_restoring(sequence)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use brigade_engine::batch::{
        RowOutput, RowValue, SampledToken, SamplerSetup, SlotId, UBatch, Want,
    };

    use super::*;
    use crate::{Event, Request, Results, StageTime, Work};

    fn request(id: u64, copied: bool) -> Request {
        let work = Work::Generate {
            max_tokens: 40,
            sure: 40,
            sampler: SamplerSetup::default().into(),
            stop_tokens: [].into(),
        };
        Request { copied, ..Request::new(RequestId(id), vec![id as u32; 20], work) }
    }

    /// Slots that are named and those of which copies are taken, while the prompts of both requests are computed.
    fn named_and_copied(copied: [bool; 2]) -> [Vec<SlotId>; 2] {
        let checkpoint_every = Some(1);
        // Parts end within pages.
        let (prefill_rows, max_in_flight) = (Some(6), Some(8));
        let config =
            SchedConfig { checkpoint_every, prefill_rows, max_in_flight, ..SchedConfig::default() };
        let mut scheduler = Scheduler::new(config);
        let line = LineSpec {
            n_stages: 2,
            n_blocks: 64,
            n_slots: 4,
            n_kept: 0,
            prefixes: Prefixes::All,
            block_positions: 4,
            max_positions: 64,
            max_rows: 8,
            companions: true,
            ahead: false,
            grows: true,
            own_drafts: 0,
        };
        scheduler.step(0, Event::LineUp { epoch: 1, line });
        let submit = |(i, copied)| Event::Submit(request(i as u64, copied));
        // Of ubatches that want no rows: there is room for those behind them.
        let done = |ubatch| {
            let done = Some(vec![StageTime::default(); 2]);
            Event::Results(Results { epoch: 1, ubatch, rows: Vec::new(), done })
        };
        let events = copied.into_iter().enumerate().map(submit).chain([0, 1].map(done));
        let mut ubatches: Vec<UBatch> = Vec::new();
        for event in events {
            let actions = scheduler.step(1, event);
            ubatches.extend(actions.into_iter().filter_map(|action| match action {
                Action::Send(ubatch) => Some(ubatch),
                _ => None,
            }));
        }
        let parts_of = |slot| {
            let parts = ubatches.iter().flat_map(|ubatch| &ubatch.parts);
            parts.filter(|part| part.slot == SlotId(slot)).count()
        };
        assert!(
            parts_of(0) >= 2 && parts_of(1) >= 2,
            "copies fall due within a prompt: {ubatches:?}"
        );
        let (mut named, mut taken) = (Vec::new(), Vec::new());
        for op in ubatches.iter().flat_map(|ubatch| &ubatch.ops) {
            match op {
                SeqOp::Name { slot, name: Some(_) } => named.push(*slot),
                SeqOp::Checkpoint { slot, len, mark, .. } => {
                    let copied = vec![slot.0; *len as usize];
                    assert_eq!(*mark, TokenMark::of(&copied), "that of the tokens copied");
                    taken.push(*slot);
                }
                _ => {}
            }
        }
        taken.dedup();
        [named, taken]
    }

    /// Positions at which a recurrent sequence is copied: of a prompt of 20 tokens the line is lost after `n` ubatches more.
    fn copied_at(config: SchedConfig, n: u32) -> Vec<u32> {
        let mut scheduler = Scheduler::new(config);
        let line = LineSpec {
            n_stages: 1,
            n_blocks: 64,
            n_slots: 1,
            n_kept: 0,
            prefixes: Prefixes::Whole,
            block_positions: 64,
            max_positions: 1024,
            max_rows: 256,
            companions: true,
            ahead: false,
            grows: true,
            own_drafts: 0,
        };
        let mut copied = Vec::new();
        let mut events: VecDeque<Event> =
            [Event::LineUp { epoch: 1, line }, Event::Submit(request(0, true))].into();
        let (mut epoch, mut drawn) = (1, 0);
        while let Some(event) = events.pop_front() {
            for action in scheduler.step(0, event) {
                let Action::Send(ubatch) = action else { continue };
                let at = |op: &SeqOp| match op {
                    SeqOp::Checkpoint { len, .. } => Some(*len),
                    _ => None,
                };
                copied.extend(ubatch.ops.iter().filter_map(at));
                drawn += u32::from(!ubatch.parts.is_empty());
                let wanted = ubatch.parts.iter().filter(|part| part.want == Want::Sample);
                let rows = wanted.map(|part| {
                    let pos = part.pos + part.tokens.len() as u32 - 1;
                    let token = SampledToken { id: 7, ..SampledToken::default() };
                    RowOutput { slot: part.slot, pos, value: RowValue::Sampled(token), mask_us: 0 }
                });
                let (rows, done) = (rows.collect(), Some(vec![StageTime::default()]));
                if drawn == n + 1 && epoch == 1 {
                    epoch = 2;
                    events.push_back(Event::LineDown { reason: "lost".into(), planned: false });
                    events.push_back(Event::LineUp { epoch: 2, line });
                } else if drawn < n + 6 {
                    events.push_back(Event::Results(Results {
                        epoch,
                        ubatch: ubatch.id,
                        rows,
                        done,
                    }));
                }
            }
        }
        copied
    }

    #[test]
    fn what_was_computed_again_is_copied_as_soon_as_it_is_there() {
        let config = SchedConfig { checkpoint_every: Some(1000), ..SchedConfig::default() };
        assert_eq!(copied_at(config, 1000), [0; 0], "there is nothing to fear");
        assert_eq!(copied_at(config, 10), [30], "the prompt and what was drawn");
    }

    #[test]
    fn copies_of_a_prompt_are_further_apart_than_those_of_an_answer() {
        let (checkpoint_every, prefill_rows) = (Some(2), Some(2));
        let config = SchedConfig { checkpoint_every, prefill_rows, ..SchedConfig::default() };
        let copied = copied_at(config, 1000);
        assert_eq!(copied[..5], [8, 16, 20, 22, 24], "{copied:?}");
    }

    #[test]
    fn a_request_may_do_without_copies_beside_one_that_has_some() {
        let [first, second] = [SlotId(0), SlotId(1)];
        assert_eq!(named_and_copied([true, true]), [vec![first, second], vec![first, second]]);
        assert_eq!(named_and_copied([false, true]), [vec![second], vec![second]]);
        assert_eq!(named_and_copied([false, false]), [vec![], vec![]]);
    }
}
