//! The scheduler's picture of one incarnation of the line: its places, what is in flight, its times.

use std::collections::VecDeque;

use brigade_engine::batch::{BlockId, SlotId};

use super::events::{LineFault, LineSpec, Micros, Request};
use super::in_flight::InFlight;
use super::pool::Pool;
use super::sequence::{Live, Sequence};
use super::timing::LineTimes;

/// A ubatch may take this many times what is predicted before the line counts as hung ...
const OVERDUE_FACTOR: f64 = 20.0;

/// ... plus this: a machine that swaps or is shared is not hung.
const OVERDUE_SLACK_US: f64 = 10e6;

/// Allowance before anything was measured: the first ubatch may read all weights from a disk.
const OVERDUE_UNMEASURED_US: Micros = 600_000_000;

/// One epoch of the line.
#[derive(Debug)]
pub(super) struct Line {
    pub epoch: u64,
    pub spec: LineSpec,
    pub blocks: Pool,
    pub slots: Pool,
    /// Slots whose sequences ended; their closes ride on the next ubatch, ahead of its opens.
    pub closes: Vec<SlotId>,
    pub in_flight: VecDeque<InFlight>,
    pub next_ubatch: u64,
    pub times: LineTimes,
    /// Something came back, or was sent to an empty line.
    pub last_progress: Micros,
    /// Prompts wait and the last ubatch had no room for them: the next starts with them.
    pub prefill_owed: bool,
    /// Prompt rows admitted since prompts were last all sent.
    pub burst_rows: u64,
    /// It broke a promise: nothing is sent or believed until the driver takes it down.
    pub faulted: bool,
}

impl Line {
    pub fn new(epoch: u64, spec: LineSpec, now: Micros) -> Self {
        Self {
            epoch,
            spec,
            blocks: Pool::new(spec.n_blocks),
            slots: Pool::new(spec.n_slots),
            closes: Vec::new(),
            in_flight: VecDeque::new(),
            next_ubatch: 0,
            times: LineTimes::new(spec.n_stages),
            last_progress: now,
            prefill_owed: false,
            burst_rows: 0,
            faulted: false,
        }
    }

    /// Whether a slot and all pages that `request` may ever need are free.
    pub fn has_room(&self, request: &Request) -> bool {
        self.slots.n_free() > 0 && self.blocks.n_free() >= self.pages(request)
    }

    fn pages(&self, request: &Request) -> u32 {
        let pages = request.positions().div_ceil(u64::from(self.spec.block_positions));
        u32::try_from(pages).unwrap_or(u32::MAX)
    }

    /// Reserves places for `request`, on every stage at once.
    ///
    /// # Panics
    /// If there is no room ([`Line::has_room`]).
    pub fn admit(&mut self, request: Request) -> Sequence {
        let slot = self.slots.take(1).expect("has_room was asked")[0];
        let blocks = self.blocks.take(self.pages(&request)).expect("has_room was asked");
        Sequence {
            request: request.id,
            n_prompt: request.prompt.len() as u32,
            tokens: request.prompt,
            work: request.work,
            slot: SlotId(slot),
            blocks: blocks.into_iter().map(BlockId).collect(),
            opened: false,
            sent: 0,
            awaiting: false,
            rows_returned: 0,
        }
    }

    /// Frees a sequence's places for whoever comes next; stages hear of it with the next ubatch.
    pub fn release(&mut self, sequence: &Sequence) {
        for block in &sequence.blocks {
            self.blocks.give_back(block.0);
        }
        self.slots.give_back(sequence.slot.0);
        if sequence.opened {
            self.closes.push(sequence.slot);
        }
    }

    /// Decode groups on their way; one whose sequences were all cancelled leaves its place to others.
    pub fn decodes_in_flight(&self, live: &Live) -> usize {
        let counts = |u: &&InFlight| u.decodes && u.wanted.iter().any(|w| live.contains(w.seq));
        self.in_flight.iter().filter(counts).count()
    }

    /// Whether the oldest ubatch should have been back long ago.
    pub fn overdue(&self, now: Micros) -> Option<LineFault> {
        let oldest = self.in_flight.front()?;
        let since = self.last_progress.max(oldest.sent_at);
        let waited_us = now.saturating_sub(since);
        let allowed_us = if self.times.measured() {
            let predicted = self.times.through(oldest.n_rows) + self.times.overhead();
            (OVERDUE_FACTOR * predicted + OVERDUE_SLACK_US) as Micros
        } else {
            OVERDUE_UNMEASURED_US
        };
        (waited_us > allowed_us).then_some(LineFault::Overdue {
            ubatch: oldest.id,
            waited_us,
            allowed_us,
        })
    }
}
