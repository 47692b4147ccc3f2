//! The scheduler's picture of one line, from the time it comes up until it is lost: its free places, what is
//! in flight on it, and how long its stages take.

use std::collections::VecDeque;
use std::sync::Arc;

use brigade_engine::batch::{PageId, SeqOp, SeqPart};
use brigade_spec::Prefixes;

use super::config::SchedConfig;
use super::events::{KeptId, LineFault, LineSpec, Micros};
use super::sequence::Live;
use crate::memory::pages::Pages;
use crate::memory::pool::Pool;
use crate::memory::prefix::{KeptPool, Spoilt};
use crate::times::timing::LineTimes;
use crate::ubatches::groups::Chosen;
use crate::ubatches::in_flight::InFlight;

/// A ubatch may take this many times what is predicted before the line counts as hung ...
const OVERDUE_FACTOR: f64 = 20.0;

/// ... plus this: a machine that is shared is not hung. As long as heartbeats may be missed, so that
/// clients hear of a stuck stage as soon as of a dead one.
const OVERDUE_SLACK_US: f64 = 3e6;

/// Allowance before anything was measured: the first ubatch may read all weights from a disk.
const OVERDUE_UNMEASURED_US: Micros = 600_000_000;

/// How far a line is with its parting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Parting {
    /// The line stays up.
    #[default]
    No,
    /// Nothing new is sent; ubatches in flight come back.
    Asked,
    /// The ubatch that names positions is on its way.
    Sent,
    /// The stages know the positions and keep the states.
    Done,
}

/// The state of one epoch of the line.
#[derive(Debug)]
pub(super) struct Line {
    pub epoch: u64,
    pub spec: LineSpec,
    pub blocks: Pages,
    pub slots: Pool,
    pub kept: KeptPool,
    /// Whether states are kept in the middle of prompts.
    pub marks: bool,
    /// Slots whose places are lent to sequences that run ahead.
    pub n_lent: u32,
    /// Rows that kept sequences lack, which ended between two states.
    pub settling: Vec<(KeptId, SeqPart)>,
    /// Those whose rows are in the ubatch that is being composed: their slots are needed until it is sent.
    pub settled: Vec<KeptId>,
    /// Copies and closes in the order they were decided; they ride on the next ubatch, ahead of its
    /// opens.
    pub ops: Vec<SeqOp>,
    pub in_flight: VecDeque<InFlight>,
    pub next_ubatch: u64,
    /// Measured times. They are shared, because the composer reads them while it changes the line.
    pub times: Arc<LineTimes>,
    /// How the last ubatch was to be composed of decoding sequences.
    pub groups: Option<Chosen>,
    /// Something came back, or was sent to an empty line.
    pub last_progress: Micros,
    /// Prompts wait and the last ubatch had no room for them: the next starts with them.
    pub prefill_owed: bool,
    /// Prompt rows admitted since prompts were last all sent.
    pub burst_rows: u64,
    /// Whether it broke a promise: nothing is sent or believed until the driver takes it down.
    pub faulted: bool,
    /// The progress of a planned change.
    pub parting: Parting,
    /// States that may hold invalid numbers, for the code that has written them elsewhere.
    pub spoilt: Vec<Spoilt>,
}

impl Line {
    /// A line on which nothing runs; pages `last` are given to others only when there are none else.
    pub fn new(
        epoch: u64,
        spec: LineSpec,
        config: &SchedConfig,
        now: Micros,
        last: &[PageId],
    ) -> Self {
        Self {
            epoch,
            spec,
            marks: config.marks && spec.prefixes == Prefixes::Whole && spec.n_kept > 0,
            blocks: Pages::new(spec.n_blocks, last),
            slots: Pool::new(spec.n_slots + spec.n_kept),
            kept: KeptPool::new(config.by_age),
            n_lent: 0,
            settling: Vec::new(),
            settled: Vec::new(),
            ops: Vec::new(),
            in_flight: VecDeque::new(),
            next_ubatch: 0,
            times: Arc::new(LineTimes::new(spec.n_stages)),
            groups: None,
            last_progress: now,
            prefill_owed: false,
            burst_rows: 0,
            faulted: false,
            parting: Parting::No,
            spoilt: Vec::new(),
        }
    }

    /// Whether nothing is begun on it any more.
    pub fn is_parting(&self) -> bool {
        self.parting != Parting::No
    }

    /// Decode groups on their way; one whose sequences were all cancelled leaves its place to others.
    pub fn decodes_in_flight(&self, live: &Live) -> usize {
        let counts = |u: &&InFlight| {
            let is_group = u.decode_rows > 0 && !u.only_windows;
            is_group && u.wanted.iter().any(|w| !w.is_draw && live.contains(w.seq))
        };
        self.in_flight.iter().filter(counts).count()
    }

    /// Ubatches in flight but those that have nothing but windows: their number is chosen by itself.
    pub fn n_in_flight(&self) -> usize {
        self.in_flight.iter().filter(|u| !u.only_windows).count()
    }

    /// The oldest ubatch as a fault, if it should have been back long ago.
    pub fn overdue(&self, now: Micros) -> Option<LineFault> {
        let oldest = self.in_flight.front()?;
        let since = self.last_progress.max(oldest.sent_at);
        let waited_us = now.saturating_sub(since);
        let allowed_us = if self.times.measured() {
            allowed(self.times.surely_through(oldest.n_rows) + self.times.overhead())
        } else {
            OVERDUE_UNMEASURED_US
        };
        (waited_us > allowed_us).then_some(LineFault::Overdue {
            ubatch: oldest.id,
            waited_us,
            allowed_us,
        })
    }

    /// A stage that computes one ubatch for longer than this is stuck, by the largest that is in flight;
    /// `None` before anything was measured.
    pub fn stuck_after(&self) -> Option<Micros> {
        let rows = self.in_flight.iter().map(|u| u.n_rows).max().unwrap_or(self.spec.max_rows);
        self.times.measured().then(|| allowed(self.times.surely_slowest(rows)))
    }
}

fn allowed(expected_us: f64) -> Micros {
    (OVERDUE_FACTOR * expected_us + OVERDUE_SLACK_US) as Micros
}
