//! A simulated line: stages that compute one ubatch at a time, in order, joined by network links.
//!
//! Time is virtual. [`super::mirror`] decides what the stages return. A link sends one ubatch after the other at its
//! bandwidth, and each then takes the link's latency. Sending overlaps with computing.

use std::collections::{BTreeMap, VecDeque};

use super::rng::Rng;
use crate::{Micros, StageTime};

/// How long a stage computes: `fixed_us + per_row_us * rows`, varied evenly by `± jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageModel {
    /// Microseconds of a ubatch of any size.
    pub fixed_us: f64,
    /// Microseconds more for each row.
    pub per_row_us: f64,
    /// Relative variation of each computation, `0.0..1.0`.
    pub jitter: f64,
}

/// Times in which another program has a share of a stage's machine: each stage meets its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spells {
    /// How many times as long a stage's computations take that begin in such a time.
    pub slower: f64,
    /// Mean time from the end of one to the beginning of the next.
    pub every_us: f64,
    /// Mean length of a spell.
    pub last_us: f64,
}

/// Disturbances of the stages beside their jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nature {
    /// Rows are computed in tiles of so many: others than multiples of it take as long as the next one.
    pub row_tile: u32,
    /// Spells in which other programs slow a stage down.
    pub spells: Option<Spells>,
    /// Microseconds of the last stage for each draft of the model's own block.
    pub draft_us: f64,
}

impl Default for Nature {
    fn default() -> Self {
        Self { row_tile: 1, spells: None, draft_us: 0.0 }
    }
}

/// The link between two processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkModel {
    /// Time from the last byte sent to the receiver's having it.
    pub latency_us: f64,
    /// Time to send one row (row bytes over bandwidth).
    pub per_row_us: f64,
}

/// A ubatch as far as its timing is concerned.
#[derive(Clone, Debug)]
struct Trip {
    ubatch: u64,
    rows: u32,
    /// Drafts that are asked of the model's own block, of one sequence at most.
    drafts: u32,
    arrived: Micros,
    times: Vec<StageTime>,
}

#[derive(Debug)]
struct Stage {
    model: StageModel,
    queue: VecDeque<Trip>,
    computing: Option<Trip>,
    /// When each computation began and ended.
    busy: Vec<(Micros, Micros)>,
    /// The slow spell that it is in or that comes next.
    spell: (f64, f64),
}

#[derive(Debug)]
enum Event {
    Arrives(usize, Trip),
    Computed(usize),
}

/// A ubatch that came back.
#[derive(Debug)]
pub(super) struct Returned {
    pub ubatch: u64,
    pub times: Vec<StageTime>,
}

/// Stages and links with everything under way on them.
#[derive(Debug)]
pub(super) struct SimLine {
    stages: Vec<Stage>,
    /// `links[i]` leads to stage `i`, the last one back to the coordinator.
    links: Vec<LinkModel>,
    link_free: Vec<Micros>,
    events: BTreeMap<(Micros, u64), Event>,
    n_events: u64,
    nature: Nature,
    rng: Rng,
    /// The random numbers of the spells: lines without spells draw the same jitter as ever.
    spell_rng: Rng,
}

impl SimLine {
    pub fn new(stages: &[StageModel], links: &[LinkModel], nature: Nature, seed: u64) -> Self {
        assert_eq!(links.len(), stages.len() + 1, "a link to each stage and one back");
        let stage = |&model| Stage {
            model,
            queue: VecDeque::new(),
            computing: None,
            busy: Vec::new(),
            spell: (0.0, 0.0),
        };
        Self {
            stages: stages.iter().map(stage).collect(),
            links: links.to_vec(),
            link_free: vec![0; links.len()],
            events: BTreeMap::new(),
            n_events: 0,
            nature,
            rng: Rng::new(seed),
            spell_rng: Rng::new(!seed),
        }
    }

    /// Drops everything under way; recorded busy times stay.
    pub fn lose_all(&mut self) {
        self.events.clear();
        for stage in &mut self.stages {
            stage.queue.clear();
            stage.computing = None;
        }
    }

    pub fn send(&mut self, now: Micros, ubatch: u64, rows: u32, drafts: u32) {
        self.over_link(now, 0, Trip { ubatch, rows, drafts, arrived: 0, times: Vec::new() });
    }

    /// When something happens next.
    pub fn next(&self) -> Option<Micros> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets the next thing happen; returns a ubatch if one reached the coordinator.
    pub fn advance(&mut self) -> Option<Returned> {
        let ((now, _), event) = self.events.pop_first()?;
        match event {
            Event::Arrives(stage, trip) if stage == self.stages.len() => {
                Some(Returned { ubatch: trip.ubatch, times: trip.times })
            }
            Event::Arrives(stage, mut trip) => {
                trip.arrived = now;
                self.stages[stage].queue.push_back(trip);
                self.start(now, stage);
                None
            }
            Event::Computed(stage) => {
                if let Some(trip) = self.stages[stage].computing.take() {
                    self.over_link(now, stage + 1, trip);
                }
                self.start(now, stage);
                None
            }
        }
    }

    /// Intervals in which each stage computed.
    pub fn busy(&self) -> impl Iterator<Item = &[(Micros, Micros)]> {
        self.stages.iter().map(|stage| stage.busy.as_slice())
    }

    fn push(&mut self, at: Micros, event: Event) {
        self.n_events += 1;
        self.events.insert((at, self.n_events), event);
    }

    fn over_link(&mut self, now: Micros, to: usize, trip: Trip) {
        let link = self.links[to];
        let sent = now.max(self.link_free[to]) + (link.per_row_us * f64::from(trip.rows)) as Micros;
        self.link_free[to] = sent;
        self.push(sent + link.latency_us as Micros, Event::Arrives(to, trip));
    }

    /// By how much the stage's machine is slowed at `now`.
    fn slowness(&mut self, now: Micros, at: usize) -> f64 {
        let Some(Spells { slower, every_us, last_us }) = self.nature.spells else { return 1.0 };
        let now = now as f64;
        let mut spell = self.stages[at].spell;
        while spell.1 <= now {
            let begin = spell.1 + 2.0 * every_us * self.spell_rng.unit();
            spell = (begin, begin + 1.0 + 2.0 * last_us * self.spell_rng.unit());
        }
        self.stages[at].spell = spell;
        if spell.0 <= now { slower } else { 1.0 }
    }

    fn start(&mut self, now: Micros, at: usize) {
        let mut vary = 1.0 + self.stages[at].model.jitter * (2.0 * self.rng.unit() - 1.0);
        vary *= self.slowness(now, at);
        let tile = self.nature.row_tile.max(1);
        let draft_us = if at + 1 == self.stages.len() { self.nature.draft_us } else { 0.0 };
        let stage = &mut self.stages[at];
        if stage.computing.is_some() {
            return;
        }
        let Some(mut trip) = stage.queue.pop_front() else { return };
        // A ubatch without rows only changes bookkeeping.
        let compute = match trip.rows {
            0 => 0.0,
            rows => {
                let tiles = f64::from(rows.next_multiple_of(tile));
                (stage.model.fixed_us + stage.model.per_row_us * tiles) * vary
            }
        };
        let drafting_us = (draft_us * f64::from(trip.drafts) * vary) as Micros;
        let compute_us = compute as Micros + drafting_us;
        trip.times.push(StageTime { compute_us, queued_us: now - trip.arrived, drafting_us });
        if trip.rows > 0 {
            stage.busy.push((now, now + compute_us));
        }
        stage.computing = Some(trip);
        self.push(now + compute_us, Event::Computed(at));
    }
}
