//! Rules of eviction, compared on a simulated line: the real scheduler without layers.

use brigade_sched::Namespace;
use brigade_sched::sim::{Client, Outcome, Sim, SimRequest, StageModel, Workload};
use brigade_spec::Prefixes;

use super::bounds::Said;
use super::trace::{Ask, Trace};

/// Virtual time between two requests: each has its answer when the next one comes.
const PAUSE_US: u64 = 20_000_000;

/// The rules to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The least recently used state goes first, regardless of the rows that it would save.
    pub by_age: bool,
    /// Prompts have marks where instructions end and where the last message begins.
    pub borders: bool,
}

/// The rules of the comparison, with their names.
pub const RULES: [(&str, Rules); 3] = [
    ("age alone", Rules { by_age: true, borders: false }),
    ("rows saved", Rules { by_age: false, borders: false }),
    ("rows saved, borders of chats", Rules { by_age: false, borders: true }),
];

/// How much a line keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Pages for running and kept sequences together; `None`: as many as are asked for.
    pub pages: Option<u32>,
    /// Places of kept states beside those of running sequences; `None`: as many as are asked for.
    pub places: Option<u32>,
}

impl Room {
    /// As many sequences may run at once as the pages hold of the longest.
    fn slots(self, trace: &Trace) -> u32 {
        let pages = u64::from(self.pages.unwrap_or(ALL_PAGES));
        (pages * PAGE / u64::from(trace.context)).clamp(1, 64) as u32
    }
}

/// Positions of a page.
const PAGE: u64 = 64;

/// Pages where none are short.
const ALL_PAGES: u32 = 1 << 17;
/// Places where none are short.
const ALL_PLACES: u32 = 1 << 14;

/// The result of a simulated replay.
#[derive(Debug)]
pub struct Simulated {
    /// The tokens of each request at its end.
    pub said: Vec<Said>,
    /// Tokens of each prompt that were not computed.
    pub reused: Vec<u32>,
    /// Counts of kept states, reused and evicted.
    pub counts: brigade_sched::PrefixCounts,
}

fn workload(trace: &Trace, borders: bool) -> Workload {
    let requests = trace.asks.iter().zip(0..).map(|(ask, at)| SimRequest {
        at: PAUSE_US * at,
        after: ask.after,
        prompt: ask.own,
        max_tokens: Some(ask.answer),
        namespace: Some(Namespace::of_owner(ask.owner)),
        border: borders.then_some(ask.border),
        ..SimRequest::default()
    });
    Workload { requests: requests.collect(), stop_every: 0 }
}

fn line(trace: &Trace, prefixes: Prefixes, room: Room) -> Sim {
    let stage = StageModel { fixed_us: 2_000.0, per_row_us: 100.0, jitter: 0.1 };
    let mut sim = Sim::equal(2, stage);
    sim.spec.n_slots = room.slots(trace);
    sim.spec.n_kept = room.places.unwrap_or(ALL_PLACES);
    sim.spec.n_blocks = room.pages.unwrap_or(ALL_PAGES);
    (sim.spec.prefixes, sim.spec.max_positions) = (prefixes, trace.context);
    sim.audit = false;
    sim
}

/// Replays a trace under some rules.
///
/// # Errors
/// If the scheduler broke a promise.
pub fn simulate(
    trace: &Trace,
    prefixes: Prefixes,
    room: Room,
    rules: Rules,
) -> Result<Simulated, String> {
    let mut sim = line(trace, prefixes, room);
    sim.sched.by_age = rules.by_age;
    let Outcome { clients, prefixes: counts, .. } = sim.run(&workload(trace, rules.borders))?;
    let said = |(client, ask): (&Client, &Ask)| Said {
        owner: ask.owner,
        // The last token that was drawn is never read, so no cache has it.
        tokens: client.tokens[..client.tokens.len() - 1].to_vec(),
        n_prompt: client.n_prompt,
    };
    Ok(Simulated {
        said: clients.iter().zip(&trace.asks).map(said).collect(),
        reused: clients.iter().map(|client| client.reused).collect(),
        counts,
    })
}
