//! Requests of agents, drawn from a seed: their lengths, and the earlier requests with which their prompts begin.
//!
//! The shapes are those of public reports on coding agents, a 16th as long. Agents of a key share a block of
//! instructions and tools (2 to 20 K tokens there). A turn repeats the whole conversation and appends the result of a
//! tool (lognormal, mean 6.4 K). The answer is short (lognormal, mean 523). Some turns differ, by the odds below.

use brigade_sched::sim::Rng;
use serde::{Deserialize, Serialize};

/// The factor by which all lengths are less than those of real agents.
const SCALE: f64 = 16.0;

/// Keys, and conversations of each that are under way.
const OWNERS: u64 = 3;
const TALKS: usize = 3;

/// A block of instructions and tools, in tokens before scaling.
const BLOCK: (f64, f64) = (2_000.0, 20_000.0);

/// How lengths are drawn, in tokens before scaling.
struct Lognormal {
    mean: f64,
    /// The standard deviation of the logarithm.
    deviation: f64,
}

const RESULT: Lognormal = Lognormal { mean: 6_400.0, deviation: 1.2 };
const ANSWER: Lognormal = Lognormal { mean: 523.0, deviation: 0.7 };
const TASK: Lognormal = Lognormal { mean: 3_000.0, deviation: 0.8 };
const SUMMARY: Lognormal = Lognormal { mean: 8_000.0, deviation: 0.4 };

/// Longest result, after scaling, as a share of the context: a tool's output is cut off.
const LONGEST_RESULT: u32 = 4;

/// Odds in a hundred for turns that differ. In this order: it branches from an earlier turn, another agent begins
/// beside it, its last message gets another ending, something before it is changed, its list of tools is another one.
const BRANCH: u64 = 5;
const SUB_AGENT: u64 = 5;
const EDIT: u64 = 10;
const EDIT_BEFORE: u64 = 3;
const TOOLS: u64 = 1;

/// Turns of a conversation and of an agent beside one.
const TURNS: (u64, u64) = (6, 30);
const SUB_TURNS: (u64, u64) = (2, 6);

/// The kind of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The first turn of a conversation.
    Begin,
    /// The first of an agent beside one.
    SubAgent,
    /// A turn with all that was said before, and the result of a tool.
    Turn,
    /// The same behind an earlier turn.
    Branch,
    /// The last message was told with another ending.
    Edit,
    /// Something before it was changed.
    EditBefore,
    /// A summary stands for the earlier messages.
    Compaction,
    /// The list of tools is another one.
    Tools,
}

/// A request of a trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// The number of its owner.
    pub owner: u64,
    /// The kind of the turn.
    pub kind: Kind,
    /// The request whose prompt and answer its prompt begins with, and with how many tokens of them.
    pub after: Option<(usize, u32)>,
    /// Tokens of its own behind those.
    pub own: u32,
    /// Tokens of its answer.
    pub answer: u32,
    /// The number of its own tokens behind which the instructions end, or the last message begins.
    pub border: u32,
}

/// Requests one after the other: each comes when the one before has its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// The seed of the requests.
    pub seed: u64,
    /// Longest prompt with its answer.
    pub context: u32,
    /// The requests in order.
    pub asks: Vec<Ask>,
}

struct Talk {
    owner: u64,
    /// The requests of the conversation as they are repeated now, oldest first.
    turns: Vec<usize>,
    /// Turns that are still to come.
    left: u64,
}

/// A request's block: its owner and its length.
type Block = (usize, u32);

struct Drawing {
    rng: Rng,
    context: u32,
    asks: Vec<Ask>,
    /// Tokens of each request's prompt.
    prompts: Vec<u32>,
    talks: Vec<Talk>,
    blocks: Vec<Option<Block>>,
}

impl Trace {
    /// Draws `n` requests, whose prompts and answers fit in `context`.
    pub fn draw(seed: u64, n: usize, context: u32) -> Self {
        let (asks, prompts, talks) = Default::default();
        let blocks = vec![None; OWNERS as usize];
        let mut drawing = Drawing { rng: Rng::new(seed), context, asks, prompts, talks, blocks };
        while drawing.asks.len() < n {
            drawing.step();
        }
        Self { seed, context, asks: drawing.asks }
    }

    /// The own tokens of a request: the same ones for all programs. The numbers are below `vocabulary`.
    pub fn own(&self, at: usize, vocabulary: u32) -> Vec<u32> {
        let mut rng = Rng::new(self.seed << 32 ^ at as u64);
        let mut token = || 1 + rng.between(0, u64::from(vocabulary) - 2) as u32;
        (0..self.asks[at].own).map(|_| token()).collect()
    }
}

impl Drawing {
    fn lognormal(&mut self, tokens: &Lognormal, most: u32) -> u32 {
        let Lognormal { mean, deviation } = *tokens;
        let (u, v) = (1.0 - self.rng.unit(), self.rng.unit());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let tokens = mean / SCALE * (deviation * normal - deviation * deviation / 2.0).exp();
        (tokens as u32).clamp(2, most)
    }

    fn result(&mut self) -> u32 {
        self.lognormal(&RESULT, self.context / LONGEST_RESULT)
    }

    fn ask(&mut self, owner: u64, kind: Kind, after: Option<(usize, u32)>, own: u32) -> usize {
        let answer = self.lognormal(&ANSWER, self.context / LONGEST_RESULT);
        self.prompts.push(after.map_or(0, |(_, n)| n) + own);
        self.asks.push(Ask { owner, kind, after, own, answer, border: 0 });
        self.asks.len() - 1
    }

    /// Tokens of a request and its answer, but for the last one, which no row is computed for.
    fn all_of(&self, request: usize) -> u32 {
        self.prompts[request] + self.asks[request].answer
    }

    /// A conversation begins with its owner's instructions.
    fn begin(&mut self, owner: u64, kind: Kind) {
        let task = self.lognormal(&TASK, self.context / LONGEST_RESULT);
        let (low, high) = match kind {
            Kind::SubAgent => SUB_TURNS,
            _ => TURNS,
        };
        let left = self.rng.between(low, high);
        let first = match self.blocks[owner as usize] {
            Some(block) => self.ask(owner, kind, Some(block), task),
            None => {
                let spread = self.rng.unit() * (BLOCK.1 / BLOCK.0).ln();
                let block = (BLOCK.0 / SCALE * spread.exp()) as u32;
                let first = self.ask(owner, kind, None, block + task);
                self.asks[first].border = block;
                self.blocks[owner as usize] = Some((first, block));
                first
            }
        };
        self.talks.push(Talk { owner, turns: vec![first], left });
    }

    fn step(&mut self) {
        for owner in 0..OWNERS {
            if self.talks.iter().filter(|talk| talk.owner == owner).count() < TALKS {
                return self.begin(owner, Kind::Begin);
            }
        }
        let at = self.rng.between(0, self.talks.len() as u64 - 1) as usize;
        if self.talks[at].left == 0 {
            self.talks.swap_remove(at);
            return;
        }
        self.talks[at].left -= 1;
        self.turn(at);
    }

    /// The next turn of a conversation.
    fn turn(&mut self, at: usize) {
        let (owner, turns) = (self.talks[at].owner, self.talks[at].turns.clone());
        let last = turns[turns.len() - 1];
        let (drawn, more) = (self.rng.between(0, 99), self.result());
        let all = self.all_of(last);
        let block = self.blocks[owner as usize].filter(|(_, block)| *block < self.prompts[last]);
        let longest_answer = self.context / LONGEST_RESULT;
        if all + more + longest_answer > self.context {
            let summary = self.lognormal(&SUMMARY, longest_answer);
            let next = self.ask(owner, Kind::Compaction, block, summary + more);
            self.talks[at].turns = vec![next];
            return;
        }
        let (mut odds, mut kind) = (0, Kind::Turn);
        for (share, of) in [
            (BRANCH, Kind::Branch),
            (SUB_AGENT, Kind::SubAgent),
            (EDIT, Kind::Edit),
            (EDIT_BEFORE, Kind::EditBefore),
            (TOOLS, Kind::Tools),
        ] {
            if (odds..odds + share).contains(&drawn) {
                kind = of;
            }
            odds += share;
        }
        let own_of_last = self.asks[last].own;
        let (keep, from) = match (kind, block) {
            (Kind::SubAgent, _) => return self.begin(owner, kind),
            (Kind::Branch, _) => {
                let from = self.rng.between(0, turns.len() as u64 - 1) as usize;
                (self.all_of(turns[from]), from)
            }
            (Kind::Edit, _) => {
                let edit = self.rng.between(1, u64::from(own_of_last)) as u32;
                (self.prompts[last] - edit, turns.len() - 1)
            }
            (Kind::EditBefore, Some((_, block))) => {
                let before = self.prompts[last] - own_of_last;
                let keep = self.rng.between(block.into(), before.max(block).into()) as u32;
                (keep, turns.len() - 1)
            }
            (Kind::Tools, Some((_, block))) => {
                (self.rng.between(1, u64::from(block)) as u32, turns.len() - 1)
            }
            _ => (all, turns.len() - 1),
        };
        // Text behind the change that is repeated is different text there, so it is its own.
        let own = if kind == Kind::Branch { more } else { all - keep + more };
        let next = self.ask(owner, kind, Some((turns[from], keep)), own);
        self.asks[next].border = own - more;
        if let (Kind::Tools, Some((_, length))) = (kind, block) {
            self.blocks[owner as usize] = Some((next, length));
        }
        self.talks[at].turns.truncate(from + 1);
        self.talks[at].turns.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_fits_and_begins_with_what_there_is() {
        for seed in 0..50 {
            let trace = Trace::draw(seed, 300, 6_144);
            let mut all: Vec<u32> = Vec::new();
            for ask in &trace.asks {
                let begins = ask.after.map_or(0, |(other, n)| {
                    assert!(n <= all[other], "seed {seed}: {ask:?}");
                    assert_eq!(trace.asks[other].owner, ask.owner);
                    n
                });
                assert!(ask.own > 0 && ask.border <= ask.own);
                all.push(begins + ask.own + ask.answer);
                assert!(begins + ask.own + ask.answer <= trace.context, "seed {seed}: {ask:?}");
            }
        }
    }

    #[test]
    fn all_kinds_of_turns_come_about_as_often_as_they_should() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..50 {
            for ask in Trace::draw(seed, 300, 6_144).asks {
                *counts.entry(ask.kind).or_insert(0_u32) += 1;
            }
        }
        let share = |kind| f64::from(counts[&kind]) / f64::from(counts.values().sum::<u32>());
        assert_eq!(counts.len(), 8);
        assert!((0.03..0.06).contains(&share(Kind::Branch)), "{counts:?}");
        assert!((0.07..0.11).contains(&share(Kind::Edit)), "{counts:?}");
        assert!((0.005..0.015).contains(&share(Kind::Tools)), "{counts:?}");
    }

    #[test]
    fn a_seed_says_all() {
        let [a, b] = [7, 7].map(|seed| Trace::draw(seed, 100, 6_144));
        assert_eq!(serde_json::to_string(&a).unwrap(), serde_json::to_string(&b).unwrap());
        assert_eq!(a.own(3, 200), b.own(3, 200));
    }
}
