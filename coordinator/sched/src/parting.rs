//! A planned change of the line. Before the line is taken down, nothing new is begun on it. When all ubatches are
//! back, one more names the position at which each sequence leaves, so that the stages keep exactly that state for
//! the next line. The supervisor waits for this, but not for long.

use brigade_engine::batch::{SeqOp, TokenMark};

use super::Scheduler;
use super::events::{Action, Micros};
use super::line::Parting;
use super::sequence::Admitted;
use crate::ubatches::compose;

impl Scheduler {
    /// The line is about to be taken down.
    pub(super) fn part(&mut self) {
        self.with_line(|line| line.parting = Parting::Asked);
    }

    /// The next step of a line that parts, once all it had is back.
    pub(super) fn go_on_parting(&mut self, now: Micros, out: &mut Vec<Action>) {
        let Some(line) = self.line.as_mut().filter(|line| !line.faulted) else { return };
        // States that are on their way have to be there first.
        if !line.in_flight.is_empty() || self.live.is_restoring() {
            return;
        }
        if line.parting == Parting::Asked {
            // A sequence must be open and have a name before its position can be said.
            line.ops
                .extend(self.live.all_mut().filter(|s| leaves(s)).filter_map(Admitted::tell_name));
            // So must its drafts be gone.
            line.ops.extend(self.live.all_mut().filter_map(|s| s.ahead.as_mut()?.take_back()));
            if line.ops.is_empty() {
                line.ops = self.live.all_mut().filter_map(|s| position(s)).collect();
                line.parting = Parting::Sent;
            }
            if !line.ops.is_empty() {
                out.push(Action::Send(compose::only_ops(now, &self.config, line)));
                return;
            }
        }
        if line.parting == Parting::Sent {
            line.parting = Parting::Done;
            out.push(Action::Parted);
        }
    }
}

/// Whether a sequence has a state that can move. One whose draw was put off has none that its next token could be drawn
/// from: it is computed again.
fn leaves(sequence: &Admitted) -> bool {
    sequence.opened && sequence.sent > 0 && sequence.name.is_some() && !sequence.put_off
}

/// Says at which position a sequence leaves.
fn position(sequence: &Admitted) -> Option<SeqOp> {
    let Admitted { slot, sent: len, .. } = *sequence;
    let mark = || TokenMark::of(&sequence.tokens[..len as usize]);
    leaves(sequence).then(|| SeqOp::Checkpoint {
        slot,
        len,
        mark: mark(),
        plane: None,
        parting: true,
    })
}
