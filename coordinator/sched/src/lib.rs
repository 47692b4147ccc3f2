//! The scheduler decides which rows of which sequences go into the next ubatch.
//!
//! It does no I/O ("sans-IO"). [`Scheduler::step`] takes one [`Event`] with the time it happened, and returns
//! what to do. There is no clock, socket, thread or randomness in it, so the same events give the same
//! actions, byte for byte. It does not know text, HTTP, workers' addresses or how an [`Action`] is carried
//! out.
//!
//! Reading order:
//!
//! - `events` is the input and output, `config` the settings. This file has the scheduler itself.
//! - `waiting`: `admit`, `fair` and `overtake` choose the next request, and `replay` handles requests of a lost line.
//! - `memory`: `pages` and `pool` allocate, `prefix` reuses prompts, `growth` extends answers, and `checkpoints`
//!   copies states for the time after a lost line.
//! - `ubatches`: `compose`, `sizing` and `groups` make ubatches of `sequence`s, with the times measured in `times`.
//!   `line` and `in_flight` track ubatches on their way, and `results` reads what comes back.
//! - `drafts`: `ahead` and `ahead_of_draws` are for sequences that run ahead, and `drafting` and `windows` choose how
//!   far. `chains` measures the model's own drafting block, and `drafted` counts drafts.
//! - `parting` is for lines that are taken down as planned.
//! - [`sim`] runs the scheduler against a simulated line.

mod config;
mod drafts;
mod events;
mod line;
mod memory;
mod parting;
mod sequence;
pub mod sim;
mod times;
mod ubatches;
mod waiting;

use std::sync::Arc;

use brigade_engine::batch::AdapterUse;

use waiting::admit::{self, Waiting};

use brigade_draft::Drafter;
use drafts::drafting::{self, Drafting};

use line::Line;
use memory::checkpoints;
use sequence::{Live, SeqNo};
use ubatches::sizing::Sizing;
use ubatches::{compose, in_flight};
use waiting::replay::Pending;

pub use config::{
    DEFAULT_CHECKPOINT_EVERY, DEFAULT_MAX_LOGITS_ROWS, DEFAULT_MAX_WAITING,
    DEFAULT_REPAIR_WITHIN_US, Running, SchedConfig, Stats,
};
pub use drafts::drafted::{DRAFT_DEPTHS, DraftCounts, Given};
pub use drafts::forecast::Forecast;
pub use events::{
    Action, Event, FinishReason, HiddenRows, KeptId, LineFault, LineSpec, Micros, NoCompanion,
    QueueFull, Rejection, Request, RequestId, Results, Share, StageTime, TooLong, Unfinished, Work,
};
pub use memory::checkpoints::Interrupted;
pub use memory::namespace::Namespace;
pub use memory::prefix::{
    KeptInfo, KeptOf, PrefixCounts, Seen, SeenOwner, SeenState, Spoilt, space_of,
};

/// Tokens of a prompt that the drafter makes ready to be found whenever rows of the prompt come back: a fraction of a
/// millisecond.
const PREPARED_AT_ONCE: usize = 8192;

/// A bug: places are taken although no sequence is in them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scheduler leak: {0}")]
pub struct Leak(pub String);

/// The scheduler's state: all live and waiting sequences, and the ubatches in flight.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedConfig,
    waiting: Waiting,
    live: Live,
    line: Option<Line>,
    /// Why the last line was lost.
    lost: String,
    /// Proposes the next tokens of sequences; `None`: no speculation.
    drafter: Option<Box<dyn Drafter>>,
    /// Counts of drafts on all lines.
    drafts: DraftCounts,
    /// The last ubatch that came back.
    last_done: Given,
    /// Counts of reused prompts and kept states on earlier lines.
    prefixes: PrefixCounts,
}

impl Scheduler {
    /// A scheduler without a line: it queues until [`Event::LineUp`].
    pub fn new(config: SchedConfig) -> Self {
        let waiting = Waiting::new(config.max_waiting);
        let (live, lost) = (Live::default(), String::new());
        let drafts = DraftCounts::default();
        Self {
            config,
            waiting,
            live,
            line: None,
            lost,
            drafter: None,
            drafts,
            last_done: Given::default(),
            prefixes: PrefixCounts::default(),
        }
    }

    /// The same with a drafter, so that sequences can run ahead; `None`: without one.
    pub fn with_drafter(self, drafter: Option<Box<dyn Drafter>>) -> Self {
        Self { drafter, ..self }
    }

    /// Handles one event that happened at `now` and returns what to do about it, in order.
    pub fn step(&mut self, now: Micros, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.with_line(|line| line.kept.now = now);
        match event {
            Event::Submit(request) => self.submit(now, request, &mut out),
            Event::GoOn { request, generated, mu } => {
                let pending = Pending::gone_on(request, generated, mu);
                self.go_on(now, pending, &mut out);
            }
            Event::Cancel(request) => self.cancel(now, request),
            Event::Results(results) => self.results(now, results, &mut out),
            Event::LineUp { epoch, line } => self.line_up(now, epoch, line, &mut out),
            Event::Restorable(found) => self.waiting.restorable(&found),
            Event::Restored { request, is_there } => {
                self.restored(now, request, is_there, &mut out);
            }
            Event::Part => self.part(),
            Event::LineDown { reason, planned } => {
                self.line_down(now, reason, planned, &mut out);
            }
            Event::Linger(request) => self.with_line(|line| line.kept.linger(now, request)),
            Event::ClearKept => self.with_line(|line| line.clear_kept()),
            Event::Forget(owner) => self.with_line(|line| line.forget(owner)),
            Event::KeptReady(id) => self.with_line(|line| line.kept_filled(id)),
            Event::KeptWritten(id) => self.with_line(|line| line.kept.written(id)),
            Event::DropKept(id) => self.with_line(|line| line.evict(id)),
            Event::Tick => self.tick(now, &mut out),
        }
        self.fill_line(now, &mut out);
        out
    }

    fn submit(&mut self, now: Micros, request: Request, out: &mut Vec<Action>) {
        let id = request.id;
        assert!(
            self.live.find(id).is_none() && !self.waiting.contains(id),
            "{id:?} was submitted while it is live"
        );
        let checked = admit::check_sense(&request)
            .and_then(|()| {
                self.line.as_ref().map_or(Ok(()), |line| admit::check_fits(&request, &line.spec))
            })
            .and_then(|()| self.take_in(now, request, out));
        if let Err(why) = checked {
            out.push(Action::Rejected { request: id, why });
        }
    }

    /// Takes a request in. It goes straight to a free place when no other request is ahead; the queue's limit is for
    /// requests that wait.
    fn take_in(
        &mut self,
        now: Micros,
        request: Request,
        out: &mut Vec<Action>,
    ) -> Result<(), Rejection> {
        let waiting = self.waiting.owners();
        self.live.owners.arrive(now, request.share, &waiting);
        // If the queue is full, only requests that must wait do.
        let waits = !self.waiting.is_full()
            && self
                .line
                .as_ref()
                .is_some_and(|line| line.shared_read(now, &mut self.live, &request).is_some());
        let (live, queue) = (&self.live, &self.waiting);
        let may_start = |line: &Line| {
            let needs = line.needs(&request);
            let ahead = queue.turn(&live.owners, line).and_then(|at| queue.get(at));
            let is_ahead = |other: &Pending| {
                let rank = |share| live.owners.rank_for_place(share);
                other.interrupted || rank(other.request.share) <= rank(request.share)
            };
            !waits
                && !line.faulted
                && !line.is_parting()
                && !live.has_suspect()
                && !ahead.is_some_and(is_ahead)
                && line.has_room(&request)
                && live.owners.may_admit(request.share, needs, line.places(), &waiting)
        };
        if self.line.as_ref().is_some_and(may_start)
            && let Some(line) = &mut self.line
        {
            let pending = Pending::new(request);
            admit(&self.config, line, &mut self.live, &mut self.drafter, pending, out);
            return Ok(());
        }
        if let Some((request, retry_after_s)) = self.waiting.push(now, request)? {
            out.push(Action::Failed { request, error: Unfinished::Displaced { retry_after_s } });
        }
        Ok(())
    }

    fn go_on(&mut self, now: Micros, pending: Pending, out: &mut Vec<Action>) {
        let request = &pending.request;
        let id = request.id;
        assert!(
            self.live.find(id).is_none() && !self.waiting.contains(id),
            "{id:?} goes on while it is live"
        );
        if let Err(why) = admit::check_sense(request) {
            return out.push(Action::Rejected { request: id, why });
        }
        self.live.owners.arrive(now, request.share, &self.waiting.owners());
        let fits = self.line.as_ref().map(|l| admit::check_fits(request, &l.spec).is_ok());
        self.waiting.go_on(now, pending, fits);
    }

    fn cancel(&mut self, now: Micros, request: RequestId) {
        if self.waiting.remove(request).is_none()
            && let Some(no) = self.live.find(request)
        {
            self.end(now, no);
        }
    }

    /// A live sequence is kept, or its places are freed.
    fn end(&mut self, now: Micros, no: SeqNo) {
        if let Some(sequence) = self.live.remove(no) {
            self.end_drafts(sequence.request);
            self.with_line(|line| {
                if sequence.restoring {
                    // It has not the state that it would be kept for.
                    line.release(&sequence)
                } else {
                    line.retire(no, sequence)
                }
            });
            self.waiting.note_end(now);
        }
    }

    fn with_line(&mut self, act: impl FnOnce(&mut Line)) {
        if let Some(line) = &mut self.line {
            act(line);
        }
    }

    /// The kept sequence of a request that ended, while there is one.
    pub fn kept_of(&self, request: RequestId) -> Option<KeptInfo> {
        self.line.as_ref()?.kept_of(request)
    }

    /// Pins a kept sequence until [`Event::KeptReady`], so that its state can be read from the stages. False if it
    /// does not exist, or is pinned already. Its pages are not free during that time.
    pub fn pin_kept(&mut self, id: KeptId) -> bool {
        self.line.as_mut().is_some_and(|line| line.pin(id))
    }

    /// Opens an empty slot with pages for `tokens`, whose state is to be put into it on every stage after
    /// the ubatch among the actions. It is of use from [`Event::KeptReady`] on. `None` if there is no
    /// room, or no line.
    pub fn open_kept(
        &mut self,
        now: Micros,
        tokens: Vec<u32>,
        adapters: Arc<[AdapterUse]>,
    ) -> (Option<KeptInfo>, Vec<Action>) {
        let mut out = Vec::new();
        let line = self.line.as_mut().filter(|line| !line.faulted);
        let opened = line.and_then(|line| line.open_kept(tokens, adapters));
        self.fill_line(now, &mut out);
        (opened, out)
    }

    fn line_up(&mut self, now: Micros, epoch: u64, spec: LineSpec, out: &mut Vec<Action>) {
        if self.line.is_some() {
            self.line_down(now, "it was replaced by a new one".to_owned(), true, out);
        }
        assert!(
            spec.n_stages > 0 && spec.n_slots > 0 && spec.max_rows > 0,
            "{spec:?} can run nothing"
        );
        let refused = self.waiting.line_came(&spec);
        out.extend(refused.into_iter().map(|(request, why)| Action::Rejected { request, why }));
        let wanted = self.waiting.interrupted().filter(|pending| pending.restorable.is_some());
        let last: Vec<_> = wanted.flat_map(|pending| pending.blocks.iter().copied()).collect();
        self.line = Some(Line::new(epoch, spec, &self.config, now, &last));
    }

    /// Everybody who had a place loses it, and waits for the next line ahead of those who have none yet.
    fn line_down(&mut self, now: Micros, reason: String, planned: bool, out: &mut Vec<Action>) {
        if let Some(line) = self.line.take() {
            self.prefixes = self.prefixes.plus(line.kept.counts);
        }
        let mut interrupted = Vec::new();
        for sequence in self.live.drain() {
            self.end_drafts(sequence.request);
            match Pending::interrupted(sequence, &reason, planned) {
                Ok(pending) => interrupted.push(pending),
                Err((request, error)) => out.push(Action::Failed { request, error }),
            }
        }
        self.waiting.line_lost(now, interrupted);
        self.lost = reason;
        if self.config.repair_within_us == 0 {
            self.give_up(now, out);
        }
    }

    /// Ends requests that have waited too long for another line.
    fn give_up(&mut self, now: Micros, out: &mut Vec<Action>) {
        let within = self.config.repair_within_us;
        out.extend(self.waiting.give_up(now, within).into_iter().map(|pending| {
            let (request, error) = pending.given_up(within, &self.lost);
            Action::Failed { request, error }
        }));
    }

    /// Ends requests whose deadline has passed, waiting or running.
    fn end_late(&mut self, now: Micros, out: &mut Vec<Action>) {
        let failed = |(request, error)| Action::Failed { request, error };
        out.extend(self.waiting.late(now).into_iter().map(|p| failed(p.too_late())));
        for no in self.live.late(now) {
            if let Some(sequence) = self.live.of(no) {
                let error = Unfinished::TooLate { generated: sequence.generated() };
                out.push(failed((sequence.request, error)));
                self.end(now, no);
            }
        }
    }

    fn tick(&mut self, now: Micros, out: &mut Vec<Action>) {
        self.give_up(now, out);
        self.end_late(now, out);
        if let Some(line) = &mut self.line
            && !line.faulted
            && let Some(fault) = line.overdue(now)
        {
            line.faulted = true;
            out.push(Action::LineFault(fault));
        }
    }

    /// Ends drafting for a request.
    fn end_drafts(&mut self, request: RequestId) {
        if let Some(drafter) = &mut self.drafter {
            drafter.end(drafting::stream(request));
        }
    }

    /// The owner of a request is gone: nothing is drafted from its texts any more.
    pub fn forget_owner_of(&mut self, request: RequestId) {
        let sequence = self.live.find(request).and_then(|no| self.live.of(no));
        if let (Some(drafter), Some(sequence)) = (&mut self.drafter, sequence) {
            drafter.forget(sequence.share.owner);
        }
    }

    /// Admits who fits and sends until the line is full or nothing is left to send.
    fn fill_line(&mut self, now: Micros, out: &mut Vec<Action>) {
        if self.line.as_ref().is_some_and(Line::is_parting) {
            return self.go_on_parting(now, out);
        }
        loop {
            self.keep_marks();
            self.admit_waiting(now, out);
            let Some(line) = self.line.as_mut().filter(|line| !line.faulted) else { return };
            let n_lent = line.n_lent;
            let lends = self.waiting.len() == 0;
            let drafting = Drafting { now, drafter: self.drafter.as_deref_mut(), lends };
            match compose::compose(now, &self.config, line, &mut self.live, drafting) {
                Some(ubatch) => out.push(Action::Send(ubatch)),
                // Lent places may be those that a request waits for.
                None if lends || line.n_lent == n_lent => return,
                None => {}
            }
        }
    }

    /// Keeps the states at marks that prompts have reached.
    fn keep_marks(&mut self) {
        if let Some(line) = self.line.as_mut().filter(|line| !line.faulted) {
            line.keep_marks(&mut self.live);
        }
    }

    /// Gives places to those who wait, as far as there are any.
    fn admit_waiting(&mut self, now: Micros, out: &mut Vec<Action>) {
        let Some(line) = self.line.as_mut().filter(|line| !line.faulted) else { return };
        self.waiting.review_holds(|hold| line.lasts(now, &self.live, hold));
        line.want(&self.live, &mut self.waiting);
        while let Some(at) = self.waiting.turn(&self.live.owners, line)
            && let Some(next) = self.waiting.get(at)
            && !self.live.has_suspect()
            && (self.live.len() == 0 || !sequence::is_suspect(next.losses))
        {
            if !line.has_room(&next.request) {
                return;
            }
            let goes = self.waiting.goes_first(at, line, &self.live);
            let Some(next) = self.waiting.get(goes) else { return };
            if let Some(hold) = line.hold(now, &mut self.live, next) {
                self.waiting.hold(goes, hold);
            } else if let Some(next) = self.waiting.take_before(at, goes) {
                admit(&self.config, line, &mut self.live, &mut self.drafter, next, out);
            }
        }
    }

    /// Requests without a place, in the order in which they came, each with the one that it waits for where that reads what
    /// both begin with.
    pub fn queue(&self) -> impl Iterator<Item = (RequestId, Option<RequestId>)> {
        self.waiting.queue().map(|pending| {
            let reader = pending.hold.and_then(|hold| self.live.of(hold.reader));
            (pending.request.id, reader.map(|reader| reader.request))
        })
    }

    /// Microseconds of computing one ubatch after which a stage of this line is stuck, for the ubatches in
    /// flight; `None` where nothing was measured yet, or there is no line.
    #[inline]
    pub fn stuck_after(&self) -> Option<Micros> {
        self.line.as_ref()?.stuck_after()
    }

    /// Rows past their sequences' prompts in a ubatch in flight; 0 for one that is not.
    #[inline]
    pub fn decode_rows(&self, ubatch: u64) -> u32 {
        self.in_flight(ubatch).map_or(0, |u| u.decode_rows)
    }

    /// For a ubatch in flight that has prompt rows while sequences decode: the longest time from one token of
    /// a sequence to the next. It follows from the stage times that were known when the ubatch was composed.
    #[inline]
    pub fn gap_bound(&self, ubatch: u64) -> Option<Micros> {
        self.in_flight(ubatch)?.gap_bound
    }

    fn in_flight(&self, ubatch: u64) -> Option<&in_flight::InFlight> {
        self.line.as_ref()?.in_flight.iter().rev().find(|u| u.id == ubatch)
    }

    /// Counts of drafts since the beginning.
    pub fn drafts(&self) -> DraftCounts {
        self.drafts
    }

    /// The yield of the last ubatch that came back.
    pub fn last_done(&self) -> Given {
        self.last_done
    }

    /// The sequences that run, in the order in which they began.
    pub fn running(&self) -> impl Iterator<Item = Running> {
        self.live.all().map(|sequence| {
            let ahead = sequence.ahead.as_deref();
            Running {
                n_prompt: sequence.n_prompt,
                n_drawn: sequence.generated(),
                is_drafted: self.drafter.is_some() && drafting::may_run_ahead(sequence),
                drafts: ahead.map_or([0, 0], |ahead| ahead.judged),
                windows: sequence.n_windows() as u32,
            }
        })
    }

    /// A snapshot for metrics.
    pub fn stats(&self) -> Stats {
        let decoding = self.live.n_decoding() + self.live.n_put_off();
        let mut stats = Stats {
            waiting: self.waiting.len(),
            held: self.waiting.n_held(),
            prefixes: self.prefixes,
            suspect_alone: self.live.has_suspect()
                || self.waiting.front().is_some_and(|next| sequence::is_suspect(next.losses)),
            prefilling: self.live.len() - decoding,
            decoding,
            drafts: self.drafts,
            ..Stats::default()
        };
        if let Some(line) = &self.line {
            let sizing = Sizing { times: &line.times, spec: &line.spec, config: &self.config };
            let n_in_groups = decoding - self.live.n_put_off();
            stats.groups = sizing.decode_groups(n_in_groups, line.groups).count;
            stats.in_flight = line.in_flight.len();
            (stats.blocks_used, stats.blocks_total) =
                (line.blocks.n_running(), line.blocks.total());
            stats.blocks_kept = line.blocks.n_kept_only();
            (stats.slots_used, stats.slots_total) = (line.n_running(), line.spec.n_slots);
            stats.slots_lent = line.n_lent;
            stats.nodes = line.kept.n_nodes();
            stats.prefixes = stats.prefixes.plus(line.kept.counts);
            (stats.kept, stats.kept_total) = (line.kept.len() as u32, line.n_kept_places() as u32);
            let costs = line.times.costs().unwrap_or_default();
            stats.stage_cost_us = costs.iter().map(|c| (c.fixed, c.per_row)).collect();
        }
        stats
    }

    /// How far the prompt of a request with a place has been read: positions computed, of so many; `None` of one that waits
    /// for its place.
    pub fn prompt_read(&self, request: RequestId) -> Option<(u32, u32)> {
        let sequence = self.live.find(request).and_then(|no| self.live.of(no))?;
        Some((sequence.furthest.min(sequence.n_known), sequence.n_known))
    }

    /// Whether a sequence of a line before this one waits for its state, or for a place where it is put back.
    #[inline]
    pub fn is_restoring(&self) -> bool {
        self.live.is_restoring() || self.waiting.interrupted().any(|p| p.restorable.is_some())
    }

    /// Whether nothing is live, waiting or in flight.
    pub fn is_idle(&self) -> bool {
        let in_flight = self.line.as_ref().map_or(0, |line| line.in_flight.len());
        self.live.len() == 0 && self.waiting.len() == 0 && in_flight == 0
    }

    /// When nothing is live, every page and slot must be free, or held for a kept sequence, and every queue
    /// empty. After [`Event::ClearKept`] there is no kept sequence either: [`Stats::kept`] says so.
    pub fn check_idle(&self) -> Result<(), Leak> {
        let Stats { waiting, blocks_used, slots_used, slots_lent, in_flight, .. } = self.stats();
        let (live, prefilling, ready) =
            (self.live.len(), self.live.prefilling.len(), self.live.ready.len());
        let ops = self.line.as_ref().map_or(0, |line| line.ops.len());
        let counts = [
            ("sequences are live", live),
            ("requests wait", waiting),
            ("ubatches are in flight", in_flight),
            ("blocks are taken", blocks_used as usize),
            ("slots are taken", slots_used as usize),
            ("sequences queue for prefill", prefilling),
            ("sequences queue for decode", ready),
            ("planes are lent", slots_lent as usize),
            ("copies and closes are unsent", ops),
        ];
        let left: Vec<String> =
            counts.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect();
        if left.is_empty() { Ok(()) } else { Err(Leak(left.join(", "))) }
    }
}

/// Gives a request its places and the end of the prefill queue, and tells the drafter of it.
fn admit(
    config: &SchedConfig,
    line: &mut Line,
    live: &mut Live,
    drafter: &mut drafting::Who,
    mut pending: Pending,
    out: &mut Vec<Action>,
) {
    drafting::choose_own(drafter, line, config, &mut pending);
    let no = give_place(config, line, live, pending, out);
    drafting::begin(drafter, live, no);
}

/// Gives a request its places and the end of the prefill queue.
fn give_place(
    config: &SchedConfig,
    line: &mut Line,
    live: &mut Live,
    pending: Pending,
    out: &mut Vec<Action>,
) -> SeqNo {
    if live.prefilling.is_empty() {
        line.burst_rows = 0;
    }
    let (again, restorable) = (pending.interrupted, pending.restorable);
    let mut sequence = line.admit(live, pending);
    line.name(config, live, &mut sequence);
    if let (Some(name), Some(len)) = (sequence.name, restorable.filter(|_| sequence.reused == 0)) {
        return checkpoints::begin_restore(line, live, sequence, name, len, out);
    }
    line.burst_rows += u64::from(sequence.prompt_left());
    let request = sequence.request;
    if again {
        out.push(Action::Replayed { request, tokens: sequence.own_left() });
    } else if sequence.reused > 0 {
        out.push(Action::Reused { request, tokens: sequence.reused });
    }
    live.insert(sequence)
}
