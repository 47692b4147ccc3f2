//! The one loop that joins requests, the scheduler, the line and the clock.
//!
//! Everything that happens becomes an event for the scheduler. The actions that the scheduler returns are carried out
//! here at once, without waiting. That is possible because each request's channel has room for all that it can get,
//! and because a lane that takes no more ubatches counts as broken. The loop itself decides nothing about what runs
//! when.

mod cached;
mod checkpoints;
mod client;
mod news;
mod prefixes;
mod reading;
mod records;
mod results;
mod states;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_draft::Drafter;
use brigade_engine::batch::AdapterUse;
use brigade_sched::{
    Action, Event, LineFault, Micros, Request as SchedRequest, RequestId, Running, SchedConfig,
    Scheduler, Unfinished,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::cached::Cached;
use crate::handle::{
    EngineEnds, Failure, StageInfo, StateCall, StateError, Status, Submission, SubmitError,
};
use crate::keys::KeyEnd;
use crate::measured::meter::Meter;
use crate::measured::metrics;
use crate::request::Request;
use crate::stages::link::{ClusterLink, Fault, LineEvent};
use crate::stages::numerics::Numerics;
use crate::stages::open_line::{LANE, OpenLine};
use crate::stages::wire;
use cached::Shown;
use checkpoints::Checkpoints;
use client::Client;
use news::{Break, LineNews, next_news};
pub use prefixes::PrefixConfig;
use prefixes::Prefixes;
use states::{Due, States, Transfer};

/// How often clients that went away, and keys that ended, are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(50);

/// Sweeps between two ticks of the scheduler's clock, which finds overdue ubatches: four a second.
const SWEEPS_PER_TICK: u32 = 5;

/// Sweeps between two looks at what is kept: one a second. It is a multiple of [`SWEEPS_PER_TICK`].
const SWEEPS_PER_LOOK: u32 = 4 * SWEEPS_PER_TICK;

/// The reason for giving up a line that takes no more ubatches.
const TAKES_NO_MORE: &str = "stage 0 takes no more ubatches";

/// How long clients of a broken line wait until the supervisor knows which worker broke it.
const BLAME_WITHIN: Duration = Duration::from_secs(2);

/// The parts that a driver is built from.
#[derive(Debug)]
pub struct DriverConfig {
    /// The operator's settings of the scheduler.
    pub sched: SchedConfig,
    /// Size of the vocabulary, which results are checked against.
    pub n_vocab: u32,
    /// Adapters of requests that name none.
    pub adapters: Arc<[AdapterUse]>,
    /// Where every ubatch is recorded.
    pub meter: Arc<Meter>,
    /// Proposes the next tokens of sequences; `None`: no speculation.
    pub drafter: Option<Box<dyn Drafter>>,
    /// Settings for records of prefixes on the workers; `None`: no records.
    pub prefixes: Option<PrefixConfig>,
}

/// Runs until `stop`, or until the cluster gives up; then every live request has ended. Returns the line if it did
/// not close in time: dropping it breaks its connections.
pub async fn run(
    ends: EngineEnds,
    link: ClusterLink,
    mut config: DriverConfig,
    stop: CancellationToken,
) -> Option<OpenLine> {
    let EngineEnds { mut submissions, mut states, status, running, cached } = ends;
    let (transfers, mut transferred) = States::new();
    let (checkpoints, mut copies) = Checkpoints::new();
    let (prefixes, mut records) = Prefixes::new(config.prefixes.take());
    let ClusterLink { mut events, faults, .. } = link;
    let kept = Kept { states: transfers, checkpoints, prefixes };
    let mut driver = Driver::new(config, kept, Shown { status, running, cached }, faults);
    let mut sweep = interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sweeps = 0;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            submission = submissions.recv() => match submission {
                Some(submission) => driver.submit(submission),
                None => break,
            },
            Some(call) = states.recv() => driver.state_call(call),
            Some(done) = transferred.recv() => driver.transferred(done),
            Some(news) = copies.recv() => driver.copies_news(news),
            Some(news) = records.recv() => driver.prefix_news(news),
            event = events.recv() => match event {
                Some(event) => driver.line_event(event),
                None => break,
            },
            news = next_news(&mut driver.line) => driver.line_news(news),
            _ = sweep.tick() => {
                driver.sweep();
                sweeps = (sweeps + 1) % SWEEPS_PER_LOOK;
                if sweeps % SWEEPS_PER_TICK == 0 {
                    driver.step(Event::Tick);
                }
                if sweeps == 0 {
                    driver.show_cached();
                }
            }
        }
    }
    driver.status.send_if_modified(|status| {
        let stops = !matches!(status, Status::Failed { .. });
        if stops {
            *status = Status::Stopping;
        }
        stops
    });
    driver.fail_all(&Failure::Stopping);
    driver.tell_unsaved();
    driver.line.take()?.close().await
}

/// Facts about a ubatch when it was sent.
#[derive(Clone, Copy)]
struct Sent {
    at: Micros,
    n_rows: u32,
    decode_rows: u32,
    gap_bound: Option<Micros>,
}

struct Driver {
    sched: Scheduler,
    /// Submitted and not ended.
    live: HashMap<RequestId, Client>,
    /// Requests whose clients went away while actions are carried out. They are cancelled afterwards, since
    /// cancelling yields new actions, which must not overtake ubatches that are still to be sent.
    gone: Vec<RequestId>,
    line: Option<OpenLine>,
    /// When and why the line broke, while the supervisor looks for the reason behind that.
    broken: Option<(Instant, String)>,
    /// The reason why the last line broke, until there is another line.
    down_because: Option<String>,
    /// A planned change is under way: the next line is about to come.
    changing: bool,
    /// Numerics of the present line, or of the last one; and those of the line before it.
    numerics: Option<Numerics>,
    numerics_before: Option<Numerics>,
    /// Ubatches not yet back.
    in_flight: HashMap<u64, Sent>,
    /// States on their way out of the line or into it.
    states: States,
    /// Copies that sequences go on from after a lost line.
    checkpoints: Checkpoints,
    /// Records of kept prefixes below the stages' memory.
    prefixes: Prefixes,
    n_vocab: u32,
    adapters: Arc<[AdapterUse]>,
    meter: Arc<Meter>,
    status: watch::Sender<Status>,
    running: watch::Sender<Arc<[Running]>>,
    cached: watch::Sender<Arc<Cached>>,
    faults: mpsc::Sender<Fault>,
}

/// The three users of the stages' states.
struct Kept {
    states: States,
    checkpoints: Checkpoints,
    prefixes: Prefixes,
}

impl Driver {
    fn new(config: DriverConfig, kept: Kept, shown: Shown, faults: mpsc::Sender<Fault>) -> Self {
        let DriverConfig { sched, n_vocab, adapters, meter, drafter, .. } = config;
        let Kept { states, checkpoints, prefixes } = kept;
        let Shown { status, running, cached } = shown;
        Self {
            sched: Scheduler::new(sched).with_drafter(drafter),
            live: HashMap::new(),
            gone: Vec::new(),
            line: None,
            broken: None,
            down_because: None,
            changing: false,
            numerics: None,
            numerics_before: None,
            in_flight: HashMap::new(),
            states,
            checkpoints,
            prefixes,
            n_vocab,
            adapters,
            meter,
            status,
            running,
            cached,
            faults,
        }
    }

    fn now(&self) -> Micros {
        self.meter.now()
    }

    fn step(&mut self, event: Event) {
        let actions = self.sched.step(self.now(), event);
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(ubatch) => {
                    if !self.send(ubatch) {
                        self.line_broke(TAKES_NO_MORE.into());
                    }
                }
                Action::LineFault(fault) => self.line_faulted(&fault),
                Action::Parted => self.checkpoints.parted(),
                Action::Restore { request, slot, name, tokens } => {
                    self.checkpoints.wanted(request, slot, name, tokens);
                }
                other => self.tell(other),
            }
        }
        while let Some(request) = self.gone.pop() {
            self.cancel(request);
        }
    }

    /// Passes an action about a request on to its client.
    fn tell(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::Reused { request, tokens } => {
                tracing::debug!(request = request.0, tokens, "begins with a kept sequence");
                if let Some(live) = self.live.get(&request) {
                    live.reused(tokens);
                }
            }
            Action::Replayed { request, tokens } => {
                tracing::debug!(
                    sequence = request.0,
                    tokens,
                    "a request goes on: the line computes its earlier tokens again"
                );
                let before = self.numerics_before;
                if let Some(live) = self.live.get_mut(&request) {
                    live.replayed(tokens, before);
                }
            }
            Action::Expected { request, right, wrong } => {
                if let Some(live) = self.live.get(&request) {
                    live.expected(right, wrong);
                }
            }
            Action::Token { request, token, .. } => {
                let numerics = self.numerics;
                self.with_live(request, |live| live.token(now, token, numerics));
            }
            Action::Logits { request, pos, row } => {
                self.with_live(request, |live| live.logits(now, pos, row));
            }
            Action::Finished { request, reason, .. } => {
                if let Some(live) = self.live.remove(&request) {
                    tracing::debug!(request = request.0, ?reason, "finished");
                    live.finish(now, reason);
                }
            }
            Action::Failed { request, error } => {
                if let Some(live) = self.live.remove(&request) {
                    let failure = Failure::from(error);
                    tracing::debug!(request = request.0, error = %failure, "failed");
                    live.fail(failure);
                }
            }
            Action::Rejected { request, why } => {
                if let Some(live) = self.live.remove(&request) {
                    live.reject(why);
                }
            }
            Action::Send(_) | Action::LineFault(_) | Action::Parted | Action::Restore { .. } => {}
        }
    }

    fn with_live(&mut self, request: RequestId, act: impl FnOnce(&mut Client) -> bool) {
        let gone = self.live.get_mut(&request).is_some_and(|live| !act(live));
        if gone {
            self.gone.push(request);
        }
    }

    fn submit(&mut self, submission: Submission) {
        let status = self.status.borrow().clone();
        let had_begun = submission.past.as_ref().is_some_and(|past| past.drawn.is_some());
        // A client that comes during a planned change waits until it is over.
        let waits = had_begun || (self.changing && matches!(status, Status::Down { .. }));
        if let Some(reason) = client::not_running(&status).filter(|_| !waits) {
            let _ = submission.verdict.send(Err(SubmitError::Unavailable { reason }));
            return;
        }
        let Submission { id, request, events, verdict, counts, past } = submission;
        let n_prompt = request.tokens.len();
        tracing::debug!(request = %request.label, sequence = id.0, n_prompt, "submitted");
        let (label, force) = (request.label.clone(), request.force.clone());
        let mut client = Client::new(self.now(), label, n_prompt, events, verdict, counts, force);
        let generated = past.and_then(|past| client.goes_on(self.now(), past));
        self.live.insert(id, client);
        let Request {
            tokens: prompt,
            work,
            label,
            share,
            namespace,
            within,
            copied,
            companion,
            ..
        } = request;
        let adapters = request.adapters.unwrap_or_else(|| self.adapters.clone());
        let deadline = within.map(|within| self.now() + within.as_micros() as Micros);
        let request = SchedRequest {
            id,
            label,
            prompt,
            work,
            adapters,
            share,
            namespace,
            deadline,
            copied,
            companion,
            drafts: request.drafts,
            borders: request.borders,
        };
        let event = match generated {
            None => match self.look_up(request) {
                Some(request) => Event::Submit(request),
                None => return,
            },
            Some((generated, mu)) => Event::GoOn { request, generated, mu },
        };
        self.step(event);
        if let Some(live) = self.live.get_mut(&id) {
            live.taken();
        }
    }

    fn cancel(&mut self, request: RequestId) {
        self.prefixes.forget(request);
        if let Some(live) = self.live.remove(&request) {
            tracing::debug!(request = request.0, "its client went away");
            live.cancelled();
            self.step(Event::Cancel(request));
        }
    }

    /// Sends a ubatch. Returns whether the line took it; without a line it is dropped, and the result is `true`.
    fn send(&mut self, ubatch: brigade_engine::batch::UBatch) -> bool {
        let Some(line) = &self.line else { return true };
        let (id, n_rows) = (ubatch.id, ubatch.n_rows() as u32);
        self.states.sent(&ubatch);
        self.checkpoints.sent(&ubatch);
        let frame = wire::ubatch_frame(ubatch, line.epoch, LANE, line.later);
        let at = self.now();
        let sent = line.ubatches.try_send(frame);
        let decode_rows = self.sched.decode_rows(id);
        let gap_bound = self.sched.gap_bound(id);
        self.in_flight.insert(id, Sent { at, n_rows, decode_rows, gap_bound });
        sent.is_ok()
    }

    fn state_call(&mut self, call: StateCall) {
        let (due, kept, transfer) = match call {
            StateCall::Linger(request) => {
                self.cancel(request);
                return self.step(Event::Linger(request));
            }
            StateCall::Save { request, reply } => {
                self.cancel(request);
                let kept = self.sched.kept_of(request);
                let Some(kept) = kept.filter(|kept| self.sched.pin_kept(kept.id)) else {
                    let _ = reply.send(Err(StateError::NotKept));
                    return;
                };
                let newest = self.in_flight.keys().max().copied();
                (newest.map_or(Due::Now, Due::After), kept, Transfer::Save(reply))
            }
            StateCall::Load { tokens, snapshot, reply } => {
                let n = tokens.len();
                let (kept, actions) =
                    self.sched.open_kept(self.now(), tokens, self.adapters.clone());
                let Some(kept) = kept else {
                    self.perform(actions);
                    let _ = reply.send(Err(StateError::NoRoom { tokens: n }));
                    return;
                };
                self.states.push(Due::Opened, kept, Transfer::Load(snapshot, reply));
                return self.perform(actions);
            }
            StateCall::DropCached(owner, reply) => return self.drop_cached(owner, reply),
            StateCall::Memory { reply } => {
                // Without a line the reply is dropped, which says so.
                if let Some(line) = &self.line {
                    let access = line.states.clone();
                    tokio::spawn(async move {
                        let memory = access.memory().await;
                        let failed = |reason| StateError::Failed { reason };
                        // The client may have gone.
                        let _ = reply.send(memory.map_err(failed));
                    });
                }
                return;
            }
        };
        self.states.push(due, kept, transfer);
        self.start_transfers();
    }

    fn line_news(&mut self, news: LineNews) {
        match news {
            LineNews::Frame(frame) => {
                if let Err(how) = self.results(*frame) {
                    self.line_broke(how);
                }
            }
            LineNews::Ended(how) => self.line_broke(how),
        }
    }

    fn line_event(&mut self, event: LineEvent) {
        match event {
            // A late report of an earlier attempt's task: a line that is up stays ready.
            LineEvent::Progress(_) if self.line.is_some() => {}
            LineEvent::Progress(status) => {
                self.status.send_replace(self.repairing(status));
            }
            LineEvent::Up(line) => {
                let info = line.info.clone();
                if let Some(mut trace) = self.meter.trace() {
                    trace.name_stages(info.stages.iter().map(StageInfo::describe).collect());
                }
                self.broken = None;
                self.down_because = None;
                self.changing = false;
                self.numerics_before = self.numerics.replace(info.numerics());
                self.status.send_replace(Status::Ready(info));
                self.line_opened(*line);
            }
            LineEvent::Part { done } => self.part(done),
            LineEvent::Down { reason, planned } => self.line_down(reason, planned),
            LineEvent::Failed { reason } => {
                self.line_down(reason.clone(), false);
                let lost = Unfinished::LineLost { reason: reason.clone(), generated: 0 };
                self.fail_all(&Failure::Unfinished(lost));
                self.status.send_replace(Status::Failed { reason });
            }
        }
    }

    /// Progress of a repair is told as such: the model loads because the line broke, or because an attempt failed.
    fn repairing(&self, status: Status) -> Status {
        match (&self.down_because, status) {
            (Some(broke), Status::Loading(next)) => {
                Status::Down { reason: format!("{broke}; now: {next}"), next: Some(next) }
            }
            (_, status) => status,
        }
    }

    /// The scheduler found that the line broke a promise.
    fn line_faulted(&mut self, fault: &LineFault) {
        let stuck_after_us = match fault {
            // The ubatch is at one of the stages, and was for most of the time.
            LineFault::Overdue { allowed_us, .. } => Some(allowed_us / 2),
            LineFault::Unexpected { .. } => self.sched.stuck_after(),
        };
        self.report(fault.to_string().into(), stuck_after_us);
    }

    /// A fault found on this side.
    fn line_broke(&mut self, how: Break) {
        let stuck_after_us = self.sched.stuck_after();
        self.report(how, stuck_after_us);
    }

    /// The supervisor finds out who is to blame. Until it takes the line down nothing is sent or received.
    fn report(&mut self, how: Break, stuck_after_us: Option<Micros>) {
        let Some(line) = self.line.take() else { return };
        self.states.clear();
        self.checkpoints.clear();
        self.prefixes_line_gone();
        let Break { reason, stage } = how;
        let fault = Fault { epoch: line.epoch, reason: reason.clone(), stage, stuck_after_us };
        if self.faults.try_send(fault).is_err() {
            tracing::warn!("a fault of the line is not reported: the supervisor is still busy");
        }
        self.broken = Some((Instant::now(), reason));
    }

    fn line_down(&mut self, reason: String, planned: bool) {
        if self.line.take().is_none() && self.broken.take().is_none() {
            // An attempt at a line has failed. The next one's progress does not hide why.
            self.changing = false;
            self.down_because = Some(reason.clone());
            self.status.send_replace(Status::Down { reason, next: None });
            return;
        }
        if planned {
            tracing::info!(reason, "the line is taken down, as planned")
        } else {
            tracing::error!(reason, "the line is down")
        }
        self.changing = planned;
        self.states.clear();
        self.checkpoints.clear();
        metrics::line_down();
        self.in_flight.clear();
        self.down_because = Some(reason.clone());
        self.status.send_replace(Status::Down { reason: reason.clone(), next: None });
        self.take_spoilt();
        self.step(Event::LineDown { reason, planned });
        self.prefixes_line_gone();
    }

    fn sweep(&mut self) {
        if let Some((since, reason)) = &self.broken
            && since.elapsed() > BLAME_WITHIN
        {
            let reason = reason.clone();
            self.line_down(reason, false);
        }
        let gone: Vec<RequestId> =
            self.live.iter().filter(|(_, l)| l.is_abandoned()).map(|(id, _)| *id).collect();
        for request in gone {
            self.cancel(request);
        }
        let ended: Vec<(RequestId, KeyEnd)> =
            self.live.iter().filter_map(|(id, live)| Some((*id, live.key_end()?))).collect();
        for (request, end) in ended {
            self.sched.forget_owner_of(request);
            self.fail(request, Failure::KeyEnded(end));
        }
        self.tell_of_prompts();
        self.settle();
        self.keep_prefixes();
        let running: Vec<Running> = self.sched.running().collect();
        self.running.send_replace(running.into());
        metrics::scheduler(&self.sched.stats());
    }

    /// Says of prompts that take long how far they are.
    fn tell_of_prompts(&mut self) {
        let now = self.meter.now();
        for (request, client) in &mut self.live {
            client.tell_of_prompt(now, self.sched.prompt_read(*request));
        }
    }

    fn fail_all(&mut self, failure: &Failure) {
        while let Some(request) = self.live.keys().next().copied() {
            self.fail(request, failure.clone());
        }
    }

    /// Ends a request that could go on.
    fn fail(&mut self, request: RequestId, failure: Failure) {
        self.prefixes.forget(request);
        if let Some(live) = self.live.remove(&request) {
            live.fail(failure);
            self.step(Event::Cancel(request));
        }
    }
}
