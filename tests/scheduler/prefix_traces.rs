//! Traces of agents, drawn from a seed, on a simulated line: how much of all prompts is computed again, compared with
//! a memory without end.
//!
//! Agents of a key share a block of instructions and tools. A turn repeats all that was said, with the result of a
//! tool behind it. Some turns are told again with another ending, some conversations branch, begin anew beside others
//! or several at once, are changed in the middle, or shrink to a summary. The unchanged beginning of a prompt was
//! computed before: the ceiling is its longest common prefix with any earlier request of the same key.

use brigade_sched::Share;
use brigade_sched::sim::{Client, Outcome, Rng, Sim, SimRequest, StageModel, Workload};
use brigade_spec::Prefixes;

/// Requests of a trace.
const REQUESTS: usize = 300;

/// Positions of the longest sequence.
const CONTEXT: u32 = 8_192;

/// The number of keys.
const OWNERS: u64 = 3;

/// A conversation as far as it got.
#[derive(Clone, Debug)]
struct Talk {
    owner: u64,
    /// The conversation's requests, oldest first.
    turns: Vec<usize>,
}

/// A trace under way.
struct Trace {
    rng: Rng,
    at: u64,
    requests: Vec<SimRequest>,
    /// Tokens of each request's prompt.
    prompts: Vec<u32>,
    talks: Vec<Talk>,
    /// For each key, its first request, and how long its block is.
    blocks: Vec<(usize, u32)>,
}

impl Trace {
    fn new(seed: u64) -> Self {
        let (requests, prompts, talks, blocks) = Default::default();
        let mut trace = Self { rng: Rng::new(seed), at: 0, requests, prompts, talks, blocks };
        for owner in 0..OWNERS {
            let block = trace.rng.between(500, 2_500) as u32;
            let said = trace.rng.between(30, 300) as u32;
            let first = trace.ask(owner, None, block + said);
            trace.requests[first].border = Some(block);
            trace.blocks.push((first, block));
            trace.talks.push(Talk { owner, turns: vec![first] });
            trace.pause();
        }
        trace
    }

    fn pause(&mut self) {
        self.at += self.rng.between(800_000, 6_000_000);
    }

    /// A request that begins with the first tokens of another one, and has `own` more.
    fn ask(&mut self, owner: u64, after: Option<(usize, u32)>, own: u32) -> usize {
        let answer = self.rng.between(4, 120) as u32;
        let begins = after.map_or(0, |(other, n)| n.min(self.all_of(other)));
        self.prompts.push(begins + own);
        self.requests.push(SimRequest {
            at: self.at,
            after,
            prompt: own,
            max_tokens: Some(answer),
            share: Share { owner, weight: 1, leaves_room: false },
            border: Some(0),
            ..SimRequest::default()
        });
        self.requests.len() - 1
    }

    /// Tokens of a request and its answer.
    fn all_of(&self, request: usize) -> u32 {
        self.prompts[request] + self.requests[request].max_tokens.unwrap_or(0)
    }

    /// The length of a tool's result: mostly short, now and then long.
    fn result(&mut self) -> u32 {
        let scale = [60, 200, 600, 1_500][self.rng.between(0, 3) as usize];
        10 + self.rng.between(0, scale) as u32
    }

    fn begin(&mut self, owner: u64) {
        let said = self.result();
        let block = self.blocks[owner as usize];
        let first = self.ask(owner, Some(block), said);
        self.talks.push(Talk { owner, turns: vec![first] });
    }

    fn step(&mut self) {
        let at = self.rng.between(0, self.talks.len() as u64 - 1) as usize;
        let Talk { owner, turns } = self.talks[at].clone();
        let last = *turns.last().unwrap();
        let (drawn, more) = (self.rng.between(0, 99), self.result());
        let all = self.all_of(last);
        let next = match drawn {
            // Agents that start together.
            0..6 => return (0..self.rng.between(2, 6)).for_each(|_| self.begin(owner)),
            6..11 => return self.begin(owner),
            // It shrinks to a summary.
            _ if all + more + 200 > CONTEXT => {
                self.ask(owner, Some(self.blocks[owner as usize]), more)
            }
            11..16 => {
                let from = turns[self.rng.between(0, turns.len() as u64 - 1) as usize];
                let branch = self.ask(owner, Some((from, u32::MAX)), more);
                return self.talks.push(Talk { owner, turns: vec![from, branch] });
            }
            // Its last message is told with another ending.
            16..26 => {
                let edit = self.rng.between(1, u64::from(self.prompts[last].min(300))) as u32;
                self.ask(owner, Some((last, self.prompts[last] - edit)), edit)
            }
            26..29 => {
                let keep = self.rng.between(1, u64::from(self.prompts[last])) as u32;
                self.ask(owner, Some((last, keep)), self.prompts[last] - keep + 1)
            }
            // The template rewrites the answer.
            29..44 => self.ask(owner, Some((last, self.prompts[last])), more + 20),
            _ => self.ask(owner, Some((last, u32::MAX)), more),
        };
        self.talks[at].turns.push(next);
        // Some are never heard of again.
        if self.talks.len() > 12 {
            let gone = self.rng.between(0, self.talks.len() as u64 - 1) as usize;
            self.talks.swap_remove(gone);
        }
    }

    fn workload(mut self) -> Workload {
        while self.requests.len() < REQUESTS {
            self.step();
            self.pause();
        }
        Workload { requests: self.requests, stop_every: 0 }
    }
}

fn common(a: &[u32], b: &[u32]) -> u32 {
    a.iter().zip(b).take_while(|(a, b)| a == b).count() as u32
}

fn prompt(client: &Client) -> &[u32] {
    &client.tokens[..client.n_prompt as usize]
}

/// The tokens that a memory without end would have reused: one row of each prompt is left to compute.
fn ceiling(out: &Outcome) -> u64 {
    let all = &out.clients;
    let best = |i: usize| {
        let own = &prompt(&all[i])[..all[i].n_prompt as usize - 1];
        let same = all[..i].iter().filter(|c| c.request.share.owner == all[i].request.share.owner);
        // A request that is not done has only its prompt.
        let had = same.map(|c| {
            if c.ended.is_some_and(|(at, _)| at <= all[i].request.at) {
                common(own, &c.tokens[..c.tokens.len() - 1])
            } else {
                common(own, prompt(c))
            }
        });
        u64::from(had.max().unwrap_or(0))
    };
    (0..all.len()).map(best).sum()
}

/// A line whose pages hold a part of all computed positions, and so many states.
fn line(prefixes: Prefixes, pages: u32, n_kept: u32) -> Sim {
    let stage = StageModel { fixed_us: 2_000.0, per_row_us: 100.0, jitter: 0.1 };
    let mut sim = Sim::equal(2, stage);
    (sim.spec.prefixes, sim.spec.n_kept) = (prefixes, n_kept);
    (sim.spec.n_slots, sim.spec.n_blocks, sim.spec.max_positions) = (8, pages, CONTEXT);
    sim.audit = false;
    sim
}

/// The share that was spared of all tokens that could have been; printed with the rest.
fn share(name: &str, seed: u64, sim: &Sim) -> f64 {
    let workload = Trace::new(seed).workload();
    let out = sim.run(&workload).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    let ceiling = ceiling(&out);
    let reused: u64 = out.clients.iter().map(|c| u64::from(c.reused)).sum();
    let tokens: u64 = out.clients.iter().map(|c| u64::from(c.n_prompt)).sum();
    let (hits, best) = (reused as f64 / tokens as f64, ceiling as f64 / tokens as f64);
    let counts = out.prefixes;
    println!(
        "| {name} | {seed} | {} | {} | {tokens} | {hits:.3} | {best:.3} | {:.3} | {} | {} | {} | {} | {} |",
        sim.spec.n_blocks,
        sim.spec.n_kept,
        hits / best,
        counts.evicted_for_places,
        counts.evicted_for_pages,
        counts.shortened,
        counts.waits,
        counts.rows_avoided,
    );
    hits / best
}

fn head() {
    println!(
        "| states | seed | pages | places | prompt tokens | hit rate | ceiling | of it | gone for places | for pages | \
         shortened | waits | rows avoided |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
}

/// Tokens that a trace has, each once, in pages.
fn all_pages(seed: u64) -> u32 {
    let roomy = line(Prefixes::All, 1 << 16, 4_096);
    let out = roomy.run(&Trace::new(seed).workload()).unwrap();
    let all: u64 = out.clients.iter().map(|c| c.tokens.len() as u64).sum();
    ((all - ceiling(&out)) / u64::from(roomy.spec.block_positions)) as u32
}

fn agents_hit_nearly_all_that_a_memory_without_end_would_have() {
    const SEED: u64 = 101;
    head();
    let all = all_pages(SEED);
    for (one_in, any_least, ends_least) in [(4, 0.92, 0.87), (2, 0.98, 0.92)] {
        let any = share("any position", SEED, &line(Prefixes::All, all / one_in, 64));
        let ends = share("ends", SEED, &line(Prefixes::Whole, all / one_in, 64));
        assert!(any > any_least && ends > ends_least, "one in {one_in}: {any:.3} {ends:.3}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: agents_hit_nearly_all_that_a_memory_without_end_would_have;
];
