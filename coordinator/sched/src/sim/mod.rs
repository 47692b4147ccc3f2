//! Simulates a line of stages under the real [`Scheduler`], event by event.
//!
//! Time is virtual and randomness is seeded, so the same [`Sim`] and [`Workload`] give the same run, byte for
//! byte. Tests use it for the scheduler's promises: every run checks all of them, and ends with an error at
//! the first one that is broken. `plan` uses it to predict what a cluster would do. It knows costs and
//! counts, not models.

mod block;
mod clients;
mod copies;
mod drafts;
mod line;
mod mirror;
mod rng;
mod tokens;

use std::collections::BTreeMap;

pub use clients::{Client, Ending, SimRequest, Workload};
pub use line::{LinkModel, Nature, Spells, StageModel};
pub use rng::Rng;

use brigade_draft::{Drafter, Source, Suffix, WithModel};
use brigade_engine::batch::{RowOutput, SeqPart, UBatch};
use brigade_spec::Prefixes;

use crate::{
    Action, Event, LineSpec, Micros, PrefixCounts, Results, SchedConfig, Scheduler, Stats,
};
use block::Block;
use clients::Clients;
use copies::{Arrived, Copies};
use drafts::Oracle;
use line::{Returned, SimLine};
use mirror::Mirror;

/// Stages that vary more than this may look unequal to the scheduler.
const EVEN_JITTER: f64 = 0.1;

/// Virtual time between two [`Event::Tick`]s.
const TICK_US: Micros = 1_000_000;

/// Virtual time for which there is no line when it changes as planned.
const CHANGE_US: Micros = 100_000;

/// A line of `n_stages` with more room than any test needs, a state for each prefix, and all capabilities.
pub fn roomy(n_stages: usize) -> LineSpec {
    LineSpec {
        n_stages,
        n_blocks: 4096,
        n_slots: 64,
        n_kept: 0,
        prefixes: Prefixes::All,
        block_positions: 64,
        max_positions: 32_768,
        max_rows: 512,
        companions: true,
        ahead: true,
        grows: true,
        own_drafts: 0,
    }
}

/// A line to simulate.
#[derive(Clone, Debug)]
pub struct Sim {
    /// Settings of the scheduler.
    pub sched: SchedConfig,
    /// Sizes and capabilities of the line.
    pub spec: LineSpec,
    /// The stages' costs, `spec.n_stages` of them.
    pub stages: Vec<StageModel>,
    /// One to each stage, one back.
    pub links: Vec<LinkModel>,
    /// Disturbances of the stages.
    pub nature: Nature,
    /// The seed of the stages' jitter and disturbances.
    pub seed: u64,
    /// Times at which the line is lost, and times at which it is back, alternating, ascending.
    pub outages: Vec<(Micros, Micros)>,
    /// Times of planned changes, ascending. The next line is up soon after each.
    pub changes: Vec<Micros>,
    /// One in this many draws finds no mask, and is put off; 0: none.
    pub late_every: u64,
    /// Tokens are drafted, and are right with this probability; `None`: they are not.
    pub drafts: Option<f64>,
    /// The model has a block of its own that drafts as many tokens as the line's specification says, the first of which is
    /// right with this probability; `None`: it has none.
    pub own_drafts: Option<f64>,
    /// Keep a text of everything that went in and out.
    pub log: bool,
    /// Checks after every step that no stage idles and no request waits without need. This scans all sequences, so
    /// long predictions do without. The checks of stages and clients are always on.
    pub audit: bool,
}

impl Sim {
    /// `n` equal stages, free links.
    pub fn equal(n: usize, stage: StageModel) -> Self {
        Self {
            sched: SchedConfig::default(),
            spec: roomy(n),
            stages: vec![stage; n],
            links: vec![LinkModel::default(); n + 1],
            nature: Nature::default(),
            seed: 0,
            outages: Vec::new(),
            changes: Vec::new(),
            late_every: 0,
            drafts: None,
            own_drafts: None,
            log: false,
            audit: true,
        }
    }

    /// The drafter of the simulation, if it has one.
    fn drafter(&self, stop_every: u64) -> Option<Box<dyn Drafter>> {
        let oracle = self
            .drafts
            .map(|odds| -> Box<dyn Drafter> { Box::new(Oracle::new(odds, self.seed, stop_every)) });
        match self.own_drafts {
            None => oracle,
            Some(_) => {
                let texts = oracle.unwrap_or_else(|| Box::new(Suffix::new(0)));
                Some(Box::new(WithModel::new(texts)))
            }
        }
    }

    /// Stages on which nothing runs.
    fn mirror(&self, stop_every: u64) -> Mirror {
        let (odds, alone) = (self.own_drafts.unwrap_or(0.0), self.drafts.is_none());
        let block = Block::new(odds, self.seed, stop_every, alone);
        Mirror::new(self.spec, stop_every, self.late_every, block)
    }

    /// Runs `workload` to its end. An error names the promise that was broken, and when.
    pub fn run(&self, workload: &Workload) -> Result<Outcome, String> {
        let mut run = Run::new(self, workload);
        while let Some(now) = run.next() {
            run.now = now;
            run.advance().map_err(|what| format!("at {now} us: {what}"))?;
        }
        run.forget_kept()?;
        run.finish()
    }
}

/// The result of a simulated run.
#[derive(Debug)]
pub struct Outcome {
    /// The clients with all they received.
    pub clients: Vec<Client>,
    /// How many ended in which way.
    pub endings: BTreeMap<&'static str, usize>,
    /// When the last thing happened.
    pub end: Micros,
    /// Number of ubatches sent.
    pub n_ubatches: u64,
    /// Number of rows computed.
    pub n_rows: u64,
    /// States put back from copies.
    pub n_put_back: u64,
    /// Restored states that had left a line as planned.
    pub n_moved: u64,
    /// Copies that were taken of a state while its sequence ran ahead of it.
    pub n_copied_ahead: u64,
    /// Tokens that the model's own block drafted, and those of them that were sent and right, and wrong.
    pub own_drafts: [u64; 3],
    /// Most sequences kept at a time, as far as that was looked at ([`Sim::audit`]).
    pub most_kept: u32,
    /// Most requests at a time that waited for what others read, as far as that was looked at.
    pub most_held: usize,
    /// Counts of reused prompts and kept states.
    pub prefixes: PrefixCounts,
    /// Most ubatches in flight at a time.
    pub most_in_flight: usize,
    /// Largest bound of the time between two tokens of a stream that a ubatch was composed for.
    pub gap_bound: Option<Micros>,
    /// Everything that went in and out, if asked for.
    pub log: String,
    busy: Vec<Vec<(Micros, Micros)>>,
}

impl Outcome {
    /// Share of `from..to` in which each stage computed.
    pub fn busy(&self, from: Micros, to: Micros) -> Vec<f64> {
        let within = |&(a, b): &(Micros, Micros)| b.min(to).saturating_sub(a.max(from));
        let share =
            |stage: &Vec<_>| stage.iter().map(within).sum::<u64>() as f64 / (to - from) as f64;
        self.busy.iter().map(share).collect()
    }

    /// From the last stage's first ubatch to the first stage's last: fill and drain left out.
    pub fn steady(&self) -> (Micros, Micros) {
        let first = self.busy.last().and_then(|s| s.first()).map_or(0, |i| i.0);
        let last = self.busy.first().and_then(|s| s.last()).map_or(0, |i| i.1);
        (first, last.max(first + 1))
    }

    /// Tokens that clients received in `from..to`.
    pub fn tokens_within(&self, from: Micros, to: Micros) -> usize {
        let received = self.clients.iter().flat_map(|client| &client.received);
        received.filter(|at| (from..to).contains(at)).count()
    }

    /// Times between two tokens of one client in `from..to`, shortest first.
    pub fn gaps(&self, from: Micros, to: Micros) -> Vec<Micros> {
        let pairs = self.clients.iter().flat_map(|client| client.received.windows(2));
        let within = pairs.filter(|pair| from <= pair[0] && pair[1] < to);
        let mut gaps: Vec<Micros> = within.map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        gaps
    }

    /// The time between two tokens of one client in `from..to` that a share of them does not exceed (0.5:
    /// the median), in milliseconds; `None` where there are none.
    pub fn gap_ms(&self, share: f64, from: Micros, to: Micros) -> Option<f64> {
        let gaps = self.gaps(from, to);
        let at = (gaps.len().saturating_sub(1) as f64 * share).round() as usize;
        gaps.get(at).map(|us| *us as f64 * 1e-3)
    }

    /// From when every client has a token to when the first one ends.
    pub fn steady_decode(&self) -> (Micros, Micros) {
        let first = self.clients.iter().filter_map(|c| c.received.first()).max().copied();
        let last = self.clients.iter().filter_map(|c| Some(c.ended?.0)).min();
        let first = first.unwrap_or(0);
        (first, last.unwrap_or(0).max(first + 1))
    }
}

enum World {
    Up,
    Down,
    Part,
    Submit(usize),
    Cancel(usize),
    Tick,
}

/// A simulation under way.
struct Run<'a> {
    sim: &'a Sim,
    scheduler: Scheduler,
    line: SimLine,
    mirror: Mirror,
    copies: Copies,
    clients: Clients,
    world: BTreeMap<(Micros, usize), World>,
    /// Rows each ubatch in flight will return.
    in_flight: BTreeMap<u64, Vec<RowOutput>>,
    now: Micros,
    end: Micros,
    epoch: u64,
    up: bool,
    /// The stages keep their states: the line is to be taken down.
    parted: bool,
    stop_every: u64,
    n_ubatches: u64,
    n_rows: u64,
    n_put_back: u64,
    n_drafted: u64,
    most_kept: u32,
    most_held: usize,
    most_in_flight: usize,
    gap_bound: Option<Micros>,
    log: String,
}

impl<'a> Run<'a> {
    fn new(sim: &'a Sim, workload: &Workload) -> Self {
        let mut events = vec![(0, World::Up), (TICK_US, World::Tick)];
        for &(down, up) in &sim.outages {
            events.extend([(down, World::Down), (up, World::Up)]);
        }
        events.extend(sim.changes.iter().map(|&at| (at, World::Part)));
        for (i, request) in workload.requests.iter().enumerate() {
            events.push((request.at, World::Submit(i)));
            events.extend(request.cancel_at.map(|at| (at, World::Cancel(i))));
        }
        let numbered = events.into_iter().enumerate();
        Self {
            sim,
            scheduler: Scheduler::new(sim.sched).with_drafter(sim.drafter(workload.stop_every)),
            line: SimLine::new(&sim.stages, &sim.links, sim.nature, sim.seed),
            mirror: sim.mirror(workload.stop_every),
            copies: Copies::new(sim.seed),
            clients: Clients::new(workload),
            world: numbered.map(|(n, (at, event))| ((at, n), event)).collect(),
            in_flight: BTreeMap::new(),
            now: 0,
            end: 0,
            epoch: 0,
            up: false,
            parted: false,
            stop_every: workload.stop_every,
            n_ubatches: 0,
            n_rows: 0,
            n_put_back: 0,
            n_drafted: 0,
            most_kept: 0,
            most_held: 0,
            most_in_flight: 0,
            gap_bound: None,
            log: String::new(),
        }
    }

    fn next(&self) -> Option<Micros> {
        let world = self.world.first_key_value().map(|((at, _), _)| *at);
        [world, self.line.next()].into_iter().flatten().min()
    }

    /// Lets the next thing happen; the line goes first when two happen at once.
    fn advance(&mut self) -> Result<(), String> {
        if self.line.next() == Some(self.now) {
            self.end = self.now;
            return match self.line.advance() {
                Some(returned) => self.returned(returned),
                None => Ok(()),
            };
        }
        let Some(((_, n), event)) = self.world.pop_first() else { return Ok(()) };
        if matches!(event, World::Tick) {
            return self.tick(n);
        }
        self.end = self.now;
        match event {
            // A change and an outage may come together.
            World::Up if self.up => Ok(()),
            World::Up => {
                self.epoch += 1;
                self.n_drafted += self.mirror.n_drafted;
                self.mirror = self.sim.mirror(self.stop_every);
                let found = self.copies.found(&self.scheduler.interrupted());
                self.step(Event::Restorable(found))?;
                self.up = true;
                self.step(Event::LineUp { epoch: self.epoch, line: self.sim.spec })
            }
            World::Down => self.down(false),
            World::Part if self.up => {
                self.up = false;
                self.step(Event::Part)?;
                self.change_if_parted()
            }
            World::Part => Ok(()),
            World::Submit(index) => {
                let request = self.clients.submit(self.now, index);
                self.step(Event::Submit(request))
            }
            World::Cancel(index) if self.clients.cancel(self.now, index) => {
                self.step(Event::Cancel(crate::RequestId(index as u64)))
            }
            World::Cancel(_) => Ok(()),
            World::Tick => Ok(()),
        }
    }

    fn down(&mut self, planned: bool) -> Result<(), String> {
        self.up = false;
        self.line.lose_all();
        self.in_flight.clear();
        self.step(Event::LineDown { reason: "simulated outage".to_owned(), planned })
    }

    /// The line is another one once its stages keep their states.
    fn change_if_parted(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.parted) {
            return Ok(());
        }
        self.world.insert((self.now + CHANGE_US, usize::MAX), World::Up);
        self.down(true)
    }

    fn tick(&mut self, n: usize) -> Result<(), String> {
        if self.next().is_some() {
            self.world.insert((self.now + TICK_US, n), World::Tick);
        }
        self.step(Event::Tick)
    }

    fn returned(&mut self, returned: Returned) -> Result<(), String> {
        let Returned { ubatch, times } = returned;
        let rows = self.in_flight.remove(&ubatch).ok_or("an unknown ubatch returned")?;
        self.mirror.returned(ubatch);
        self.step(Event::Results(Results { epoch: self.epoch, ubatch, rows, done: Some(times) }))?;
        self.copies.returned(ubatch);
        while let Some(Arrived { request, slot, tokens }) = self.copies.arrive() {
            let is_there = tokens.is_some();
            // A slot whose client went away is another's by now, and the stages refuse.
            if let Some(tokens) = tokens.filter(|_| self.clients.waits(request)) {
                self.mirror.put_back(slot, tokens)?;
                self.n_put_back += 1;
            }
            self.step(Event::Restored { request, is_there })?;
        }
        self.change_if_parted()
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        if self.sim.log {
            self.log += &format!("{} {event:?}\n", self.now);
        }
        for action in self.scheduler.step(self.now, event) {
            if self.sim.log {
                self.log += &format!("{}   {action:?}\n", self.now);
            }
            self.clients.observe(self.now, &action)?;
            self.copies.observe(&action)?;
            self.parted |= action == Action::Parted;
            if let Action::Send(ubatch) = action {
                self.send(&ubatch)?;
            }
        }
        if !self.sim.audit {
            return Ok(());
        }
        let stats = self.scheduler.stats();
        self.most_kept = self.most_kept.max(stats.kept);
        self.most_held = self.most_held.max(stats.held);
        self.check_line(&stats)?;
        self.check_waiting(&stats)
    }

    fn send(&mut self, ubatch: &UBatch) -> Result<(), String> {
        let rows = self.mirror.apply(ubatch)?;
        self.copies.sent(ubatch)?;
        if self.sim.audit {
            self.check_group(ubatch)?;
        }
        self.in_flight.insert(ubatch.id, rows);
        let asked = ubatch.parts.iter().filter_map(|part| part.ahead).map(|ahead| ahead.drafts);
        let drafts = asked.max().unwrap_or(0);
        self.line.send(self.now, ubatch.id, ubatch.n_rows() as u32, drafts);
        self.n_ubatches += 1;
        self.n_rows += ubatch.n_rows() as u64;
        self.most_in_flight = self.most_in_flight.max(self.in_flight.len());
        self.gap_bound = self.gap_bound.max(self.scheduler.gap_bound(ubatch.id));
        Ok(())
    }

    /// No bunching: a ubatch takes no more than an even share of the decoding sequences, so that there are
    /// enough for the other stages.
    fn check_group(&self, ubatch: &UBatch) -> Result<(), String> {
        let decoding = self.clients.decoding(self.mirror.sequences());
        let stages = self.stages_to_fill().min(decoding).max(1);
        let decodes = |part: &&SeqPart| {
            self.clients.is_past_prompt(self.mirror.sequence(part.slot), part.pos)
        };
        let rows = ubatch.parts.iter().filter(decodes).count();
        // Windows go beside each other wherever there is room.
        if ubatch.parts.iter().any(|part| part.ahead.is_some()) || rows <= decoding.div_ceil(stages)
        {
            return Ok(());
        }
        Err(format!("ubatch {} has {rows} of {decoding} decoding sequences", ubatch.id))
    }

    /// Ubatches there must be in flight while there is work for them: one a stage where stages are
    /// equal; where some are faster, at least two.
    fn stages_to_fill(&self) -> usize {
        let stages = &self.sim.stages;
        let alike = |s: &StageModel| *s == stages[0] && s.jitter <= EVEN_JITTER;
        let n = if stages.iter().all(alike) { stages.len() } else { stages.len().min(2) };
        n.min(self.sim.sched.max_in_flight.unwrap_or(usize::MAX))
    }

    /// No lock-step: with fewer ubatches in flight than stages, nothing that could be sent is held.
    fn check_line(&self, stats: &Stats) -> Result<(), String> {
        let wanted = self.stages_to_fill();
        let waits = stats.suspect_alone || self.copies.is_putting_back();
        if !self.up || waits || self.in_flight.len() >= wanted {
            return Ok(());
        }
        let unsent = self.clients.unsent(self.mirror.sequences());
        let known = stats.waiting + self.clients.served(self.mirror.sequences());
        let unopened = self.clients.n_live().saturating_sub(known);
        if unsent + unopened > 0 {
            return Err(format!(
                "{} of {wanted} stages have a ubatch while {unsent} sequences have tokens to send \
                 and {unopened} are admitted but not opened: {stats:?}",
                self.in_flight.len()
            ));
        }
        Ok(())
    }

    /// Checks why requests wait: because there would be no place even without kept states, or for a beginning that
    /// another one computes. Checks too that no more states are kept than there are slots beside running sequences.
    fn check_waiting(&self, stats: &Stats) -> Result<(), String> {
        let LineSpec { n_slots, n_kept, n_blocks, block_positions, .. } = self.sim.spec;
        let taken = stats.kept + stats.slots_used + stats.slots_lent;
        if taken > n_slots + n_kept || (n_kept == 0 && stats.kept > 0) {
            return Err(format!("{} sequences are kept: {stats:?}", stats.kept));
        }
        // Planes that are lent come back within a trip.
        if stats.suspect_alone || stats.slots_lent > 0 {
            return Ok(());
        }
        let waiting: Vec<_> = self.scheduler.queue().collect();
        self.clients.check_holds(&waiting)?;
        let demand = self.clients.demand(&waiting, block_positions);
        let Some([taken, next]) = demand.filter(|_| self.up) else { return Ok(()) };
        if taken.1 + next.1 <= n_slots.into() && taken.0 + next.0 <= u64::from(n_blocks) {
            return Err(format!(
                "a request of {next:?} pages and slots waits beside {taken:?}: {stats:?}"
            ));
        }
        Ok(())
    }

    /// Drops all kept sequences, and waits until the stages have closed them.
    fn forget_kept(&mut self) -> Result<(), String> {
        self.scheduler.check_idle().map_err(|leak| leak.to_string())?;
        if self.mirror.n_open() != self.scheduler.stats().kept as usize {
            return Err(format!("{} sequences were left open on the stages", self.mirror.n_open()));
        }
        let end = self.now;
        self.step(Event::ClearKept)?;
        while let Some(now) = self.line.next() {
            self.now = now;
            if let Some(returned) = self.line.advance() {
                self.returned(returned)?;
            }
        }
        self.now = end;
        let stats = self.scheduler.stats();
        let left = stats.kept + stats.blocks_kept + stats.blocks_used + stats.slots_used;
        if left > 0 { Err(format!("places are taken by nobody: {stats:?}")) } else { Ok(()) }
    }

    fn finish(self) -> Result<Outcome, String> {
        self.scheduler.check_idle().map_err(|leak| leak.to_string())?;
        if self.mirror.n_open() > 0 {
            return Err(format!("{} sequences were left open on the stages", self.mirror.n_open()));
        }
        Ok(Outcome {
            endings: self.clients.endings()?,
            clients: self.clients.all,
            end: self.end,
            n_ubatches: self.n_ubatches,
            n_rows: self.n_rows,
            n_put_back: self.n_put_back,
            n_moved: self.copies.n_moved(),
            n_copied_ahead: self.copies.n_ahead(),
            own_drafts: {
                let [right, wrong] = self.scheduler.drafts().judged(Source::Model);
                [self.n_drafted + self.mirror.n_drafted, right, wrong]
            },
            most_kept: self.most_kept,
            most_held: self.most_held,
            prefixes: self.scheduler.stats().prefixes,
            most_in_flight: self.most_in_flight,
            gap_bound: self.gap_bound,
            log: self.log,
            busy: self.line.busy().map(<[_]>::to_vec).collect(),
        })
    }
}
