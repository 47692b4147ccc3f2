//! Upper bounds of what a cache could have reused, computed from the tokens of a replay.
//!
//! [`Bounds::new`] puts all prompts and answers into one tree, at whose nodes some of them part or end. A request
//! passes the edges of its prompt. All tokens on an edge are wanted by the same requests, so an edge is kept or
//! dropped as a whole.
//!
//! - **Without end**: the longest prefix of each prompt that any earlier request of its owner had, at any position;
//!   one row is left to compute.
//! - **Clairvoyant**: a cache of a given number of positions that knows all future requests. A request takes room for
//!   its prompt and answer while it runs. Where there is no room, the positions whose next use is furthest ahead are
//!   dropped (Belady's rule). Each position costs the same to compute again, and a position is wanted no later than
//!   those behind it, so no rule does better. This cache may cut anywhere, which no cache of pages can. For models
//!   with recurrent states the bound is even looser, since a state has to be kept beside the positions.

use std::collections::BTreeMap;

/// The tokens of one request at its end.
#[derive(Clone, Debug)]
pub struct Said {
    /// The number of its owner.
    pub owner: u64,
    /// Prompt and answer, without the last token: no row is computed for that.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub n_prompt: u32,
}

#[derive(Debug, Default)]
struct Edge {
    tokens: Vec<u32>,
    /// Edges between it and the root.
    depth: usize,
    children: BTreeMap<u32, usize>,
    /// Requests whose prompts pass it, or that leave it behind, ascending.
    passed_by: Vec<usize>,
    wanted_by: Vec<usize>,
}

/// The tree of a replay.
pub struct Bounds {
    edges: Vec<Edge>,
    /// Edges of each request from the root on, and how many of them are its prompt's but for the last token.
    paths: Vec<(Vec<usize>, usize)>,
    prompts: u64,
    n: usize,
}

impl Bounds {
    /// The tree of requests that came one after the other.
    pub fn new(all: &[Said]) -> Self {
        let mut bounds = Self { edges: Vec::new(), paths: Vec::new(), prompts: 0, n: all.len() };
        let mut roots: BTreeMap<u64, usize> = BTreeMap::new();
        let ends = |said: &Said| [said.n_prompt as usize - 1, said.tokens.len()];
        for said in all {
            let root = *roots.entry(said.owner).or_insert_with(|| bounds.add(&[]));
            for end in ends(said) {
                bounds.walk(root, &said.tokens[..end]);
            }
            bounds.prompts += u64::from(said.n_prompt);
        }
        // Once more: now no edge is split any more.
        for (at, said) in all.iter().enumerate() {
            let [prompt, whole] =
                ends(said).map(|n| bounds.walk(roots[&said.owner], &said.tokens[..n]));
            for (depth, edge) in whole.iter().enumerate() {
                bounds.edges[*edge].depth = depth;
                bounds.edges[*edge].passed_by.push(at);
            }
            prompt.iter().for_each(|edge| bounds.edges[*edge].wanted_by.push(at));
            bounds.paths.push((whole, prompt.len()));
        }
        bounds
    }

    fn add(&mut self, tokens: &[u32]) -> usize {
        self.edges.push(Edge { tokens: tokens.to_vec(), ..Edge::default() });
        self.edges.len() - 1
    }

    /// The edges that tokens pass, with a node at their end.
    fn walk(&mut self, root: usize, tokens: &[u32]) -> Vec<usize> {
        let (mut at, mut done, mut path) = (root, 0, Vec::new());
        while done < tokens.len() {
            let rest = &tokens[done..];
            let Some(&next) = self.edges[at].children.get(&rest[0]) else {
                let new = self.add(rest);
                self.edges[at].children.insert(rest[0], new);
                path.push(new);
                break;
            };
            let edge = &self.edges[next].tokens;
            let same = edge.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if same < edge.len() {
                let behind = self.edges[next].tokens.split_off(same);
                let first = behind[0];
                let new = self.add(&behind);
                self.edges[new].children = std::mem::take(&mut self.edges[next].children);
                self.edges[next].children.insert(first, new);
            }
            path.push(next);
            (at, done) = (next, done + same);
        }
        path
    }

    /// Tokens of all prompts.
    pub fn prompts(&self) -> u64 {
        self.prompts
    }

    /// Tokens that there are, each once.
    pub fn distinct(&self) -> u64 {
        self.edges.iter().map(|edge| edge.tokens.len() as u64).sum()
    }

    /// Tokens of each prompt that a cache without end spares.
    pub fn without_end(&self) -> Vec<u64> {
        let had = |at: usize| {
            let (path, wanted) = &self.paths[at];
            let had = path[..*wanted].iter().filter(|edge| self.edges[**edge].passed_by[0] < at);
            had.map(|edge| self.edges[*edge].tokens.len() as u64).sum()
        };
        (0..self.n).map(had).collect()
    }

    /// Tokens of each prompt that a cache of so many positions spares at best.
    pub fn clairvoyant(&self, positions: u64) -> Vec<u64> {
        // Tokens of each edge that are there: its first.
        let mut there: Vec<u64> = vec![0; self.edges.len()];
        let mut spared = Vec::new();
        for at in 0..self.n {
            let (path, wanted) = &self.paths[at];
            let mut hits = 0;
            for edge in &path[..*wanted] {
                hits += there[*edge];
                if there[*edge] < self.edges[*edge].tokens.len() as u64 {
                    break;
                }
            }
            spared.push(hits);
            for edge in path {
                there[*edge] = self.edges[*edge].tokens.len() as u64;
            }
            self.make_room(&mut there, at, positions);
        }
        spared
    }

    /// Makes room. Positions that this request does not have go first, and of these the ones that are wanted last.
    fn make_room(&self, there: &mut [u64], at: usize, positions: u64) {
        let mut over = there.iter().sum::<u64>().saturating_sub(positions);
        if over == 0 {
            return;
        }
        let next = |edge: &usize| {
            let wanted = &self.edges[*edge].wanted_by;
            wanted.get(wanted.partition_point(|by| *by <= at)).copied().unwrap_or(usize::MAX)
        };
        let has = |edge: &usize| self.paths[at].0.contains(edge);
        let mut held: Vec<usize> = (0..there.len()).filter(|edge| there[*edge] > 0).collect();
        // Of equals the one further from the root.
        let depth = |edge: &usize| self.edges[*edge].depth;
        held.sort_by_key(|edge| (has(edge), std::cmp::Reverse((next(edge), depth(edge)))));
        for edge in held {
            let goes = over.min(there[edge]);
            there[edge] -= goes;
            over -= goes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(tokens: &[u32], n_prompt: u32) -> Said {
        Said { owner: 0, tokens: tokens.to_vec(), n_prompt }
    }

    #[test]
    fn without_end_all_that_was_there_before_is_spared() {
        let all = [
            said(&[1, 2, 3, 4, 5], 3),
            said(&[1, 2, 3, 4, 5, 6, 7], 7),
            said(&[1, 2, 9, 9], 3),
            Said { owner: 1, ..said(&[1, 2, 3], 3) },
            said(&[1, 2, 3, 4, 5], 3),
        ];
        let bounds = Bounds::new(&all);
        assert_eq!(bounds.without_end(), [0, 5, 2, 0, 2]);
        assert_eq!((bounds.distinct(), bounds.prompts()), (7 + 2 + 3, 19));
        assert_eq!(bounds.clairvoyant(100), bounds.without_end());
    }

    #[test]
    fn with_little_room_that_stays_which_comes_first() {
        let (a, b, c) = ([1; 10], [2; 10], [3; 10]);
        let all = [&a, &b, &c, &b, &a].map(|tokens| said(tokens, 10));
        let bounds = Bounds::new(&all);
        assert_eq!(bounds.without_end(), [0, 0, 0, 9, 9]);
        // While c runs there is room for one other, so b is dropped first. The last token of b is never wanted again,
        // so one of a stays.
        assert_eq!(bounds.clairvoyant(20), [0, 0, 0, 9, 1]);
        assert_eq!(bounds.clairvoyant(25), [0, 0, 0, 9, 6]);
        assert_eq!(bounds.clairvoyant(10), [0; 5]);
    }

    #[test]
    fn more_room_never_spares_less() {
        let trace = super::super::trace::Trace::draw(1, 60, 2_048);
        let mut all: Vec<Said> = Vec::new();
        for (at, ask) in trace.asks.iter().enumerate() {
            let begins = ask
                .after
                .map(|(of, n)| all[of].tokens[..(n as usize).min(all[of].tokens.len())].to_vec());
            let prompt = [begins.unwrap_or_default(), trace.own(at, 200)].concat();
            let answer = vec![at as u32; ask.answer as usize];
            let (owner, n_prompt) = (ask.owner, prompt.len() as u32);
            all.push(Said { owner, tokens: [prompt, answer].concat(), n_prompt });
        }
        let bounds = Bounds::new(&all);
        let spared = |room| bounds.clairvoyant(room).iter().sum::<u64>();
        let shares: Vec<u64> = (1..9).map(|n| spared(bounds.distinct() * n / 8)).collect();
        assert!(shares.is_sorted(), "{shares:?}");
        assert_eq!(shares[7], bounds.without_end().iter().sum::<u64>());
    }
}
