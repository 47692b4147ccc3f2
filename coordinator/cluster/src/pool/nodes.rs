//! What a node leaves to a line, while its other stages are lent to other lines. Pure.
//!
//! A line that was lent a stage takes the memory a while later, and a stage that comes back gave it back before. So reports
//! of stages are not enough. A line counts with what it was promised, and a stage that came back counts with nothing
//! until it has reported that.

use brigade_plan::{NodeFacts, PROCESS_BYTES, StagePlan};
use brigade_worker::machine::ledger::Amount;

use super::lend::WorkerId;
use crate::members::node_memory::Report;

/// What a stage of a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// The stage is to be of the line in question.
    Planned,
    /// The stage is lent to another line, which was promised so much.
    Serves(Amount),
    /// The stage belongs to no line.
    Nothing,
    /// The stage comes back, or did so after its last report: it has nothing any more.
    ComesBack,
}

/// What a stage takes of a node's memory.
pub fn promise(stage: &StagePlan) -> Amount {
    let memory = &stage.memory;
    match stage.host_left {
        None => Amount::of_stage(memory.total()),
        Some(_) => Amount { stage: memory.of_device(), host: memory.of_host() },
    }
}

/// The stages of nodes that the pool knows.
#[derive(Debug)]
pub struct Nodes(Vec<(WorkerId, Report, Does)>);

impl Nodes {
    /// Stages with their reports, and what they do while none of them is planned.
    pub fn new(stages: Vec<(WorkerId, Report, Does)>) -> Self {
        Self(stages)
    }

    /// Whether a worker is a stage of a node.
    pub fn has(&self, worker: WorkerId) -> bool {
        self.0.iter().any(|(id, ..)| *id == worker)
    }

    /// The node of a worker, with what it leaves to a line over the workers `line`.
    pub fn facts(&self, worker: WorkerId, line: &[WorkerId]) -> Option<NodeFacts> {
        let (_, report, _) = self.0.iter().find(|(id, ..)| *id == worker)?;
        let of_node = self.0.iter().filter(|(_, other, _)| other.node == report.node);
        let seen = of_node.map(|(id, report, does)| {
            (*report, if line.contains(id) { Does::Planned } else { *does })
        });
        Some(report.facts(left(&seen.collect::<Vec<_>>())))
    }
}

/// What stages of one node leave to a line, of those in `seen`. The report and the work of each is there; stages that are not
/// known here may belong to another coordinator, whose part only reports tell.
fn left(seen: &[(Report, Does)]) -> Amount {
    let Some((first, _)) = seen.first() else { return Amount::default() };
    let process = Amount::of_stage(PROCESS_BYTES);
    let others = seen.iter().map(|(report, does)| match does {
        Does::Planned => Amount::default(),
        Does::Serves(promised) => report.own.max(*promised),
        Does::Nothing => report.own.max(process),
        Does::ComesBack => process,
    });
    let unknown = first.stages.saturating_sub(seen.len() as u64);
    let unknown = Amount::of_stage(PROCESS_BYTES.saturating_mul(unknown));
    let known = others.fold(unknown, Amount::plus);
    // The same as the newest report has it.
    let newest = seen.iter().map(|(report, _)| report).min_by_key(|report| report.ago);
    let gone = seen.iter().map(|(report, does)| match does {
        Does::Planned => report.own,
        Does::ComesBack => report.own.minus(process),
        Does::Serves(_) | Does::Nothing => Amount::default(),
    });
    let gone = gone.fold(Amount::default(), Amount::plus);
    let reported = newest.map_or(known, |report| report.granted.minus(gone));
    first.limit.minus(known.max(reported))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// A stage's report: what it has beside its process, and what all three have so.
    fn report(own: u64, all: u64, ago_ms: u64) -> Report {
        Report {
            node: 1,
            stages: 3,
            limit: Amount::of_stage(12 * GIB + 3 * PROCESS_BYTES),
            granted: Amount::of_stage(all + 3 * PROCESS_BYTES),
            own: Amount::of_stage(own + PROCESS_BYTES),
            ago: Duration::from_millis(ago_ms),
        }
    }

    /// What is left for one stage, without its process.
    fn left_for_one(seen: &[(Report, Does)]) -> u64 {
        left(seen).stage - PROCESS_BYTES
    }

    fn promised(bytes: u64) -> Does {
        Does::Serves(Amount::of_stage(bytes + PROCESS_BYTES))
    }

    #[test]
    fn an_idle_node_leaves_everything() {
        let idle = report(0, 0, 0);
        let seen = [(idle, Does::Planned), (idle, Does::Nothing), (idle, Does::Nothing)];
        assert_eq!(left_for_one(&seen), 12 * GIB);
        assert_eq!(left_for_one(&seen[..1]), 12 * GIB, "stages that have not joined yet");
        assert_eq!(left(&[]), Amount::default());
    }

    #[test]
    fn what_was_promised_counts_before_it_is_taken() {
        let idle = report(0, 0, 0);
        let seen = [(idle, promised(7 * GIB)), (idle, Does::Planned), (idle, Does::Nothing)];
        assert_eq!(left_for_one(&seen), 5 * GIB);
        // The line has taken more since, for another cut.
        let grown = (report(9 * GIB, 9 * GIB, 0), promised(7 * GIB));
        assert_eq!(left_for_one(&[grown, seen[1], seen[2]]), 3 * GIB);
    }

    #[test]
    fn what_comes_back_is_free_though_its_report_is_old() {
        let old = report(8 * GIB, 8 * GIB, 900);
        let idle = report(0, 8 * GIB, 100);
        let seen = [(old, Does::ComesBack), (idle, Does::Planned), (idle, Does::Nothing)];
        assert_eq!(left_for_one(&seen), 12 * GIB);
        let stays = [(old, Does::Nothing), (idle, Does::Planned), (idle, Does::Nothing)];
        assert_eq!(left_for_one(&stays), 4 * GIB, "the stage of a coordinator that has gone");
    }

    #[test]
    fn a_stage_that_is_planned_may_use_its_own_again() {
        let full = report(8 * GIB, 10 * GIB, 0);
        assert_eq!(left_for_one(&[(full, Does::Planned)]), 10 * GIB, "another has two");
    }
}
