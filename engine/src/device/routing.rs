//! Which experts work on which rows: lists in the host's memory, or with a GPU, where the host does not look at them.

use std::ops::Range;
use std::sync::OnceLock;

use brigade_gpu::{ExpertRoutes, Gpu};

use super::{Device, Rows, Values, give_up};
use crate::kernels::ExpertChoice;

/// Which experts work on which rows. A row and one of its experts are a pair; pairs are sorted by expert.
pub struct Routing {
    n_expert: usize,
    n_used: usize,
    n_pairs: usize,
    on_gpu: Option<ExpertRoutes>,
    on_host: OnceLock<Lists>,
}

/// The lists, in the host's memory.
#[derive(Clone)]
pub(super) struct Lists {
    /// Row of each pair.
    pub(super) rows: Vec<u32>,
    /// For each expert that has rows: its id and its pairs.
    pub(super) spans: Vec<(usize, Range<usize>)>,
    /// Pairs of each row with their weights, in order of selection.
    pub(super) shares: Vec<Share>,
}

/// A pair times a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    /// The pair.
    pub(super) pair: u32,
    /// What multiplies it.
    pub(super) weight: f32,
}

impl Device {
    /// Chooses experts for each row of `probs`, `[n_rows, n_expert]`, what a router gives each.
    ///
    /// # Panics
    /// If known experts are not as many as are used, or a GPU has no memory for the lists: the stage ends with this as its
    /// reason.
    pub fn route(&self, choice: &ExpertChoice<'_>, probs: &Rows) -> Routing {
        let (n_expert, n_used) = (choice.n_working(), choice.n_used);
        let n_pairs = probs.n_rows() * n_used;
        let on_host = OnceLock::new();
        if let Some(gpu) = self.gpu.as_ref().filter(|_| probs.is_with_gpu()) {
            let choice = choice.map_bias(|bias| bias.on_gpu(gpu));
            if Gpu::can_route(&choice) {
                let routes = gpu.route(&choice, probs.on_gpu(gpu));
                let routes =
                    routes.unwrap_or_else(|error| give_up("the routing of experts", &error));
                return Routing { n_expert, n_used, n_pairs, on_gpu: Some(routes), on_host };
            }
        }
        let (ids, weights) = self.compute.choose_experts(choice, probs);
        let lists = Lists::new(&ids, &weights, n_expert, n_used);
        Routing { n_expert, n_used, n_pairs, on_gpu: None, on_host: lists.into() }
    }
}

impl Routing {
    /// Lists of so many rows, with so many experts of which a row uses so many.
    pub(super) fn on_host([n_rows, n_expert, n_used]: [usize; 3], lists: Lists) -> Self {
        let n_pairs = n_rows * n_used;
        Self { n_expert, n_used, n_pairs, on_gpu: None, on_host: lists.into() }
    }

    /// How many rows were routed, `n_rows`; how many experts there are, and how many a row uses.
    pub(super) fn sizes(&self, n_rows: usize) -> [usize; 3] {
        [n_rows, self.n_expert, self.n_used]
    }

    /// How many pairs there are.
    pub fn n_pairs(&self) -> usize {
        self.n_pairs
    }

    /// How many experts there are.
    pub(super) fn n_expert(&self) -> usize {
        self.n_expert
    }

    /// How many experts a row uses.
    pub(super) fn n_used(&self) -> usize {
        self.n_used
    }

    /// The lists with a GPU, if they lie there.
    pub(super) fn on_gpu(&self) -> Option<&ExpertRoutes> {
        self.on_gpu.as_ref()
    }

    /// The lists in the host's memory, which they come to when they are first asked for.
    pub(super) fn lists(&self) -> &Lists {
        self.on_host.get_or_init(|| {
            let (ids, weights) =
                self.on_gpu.as_ref().map_or_else(Default::default, ExpertRoutes::on_host);
            Lists::new(ids, weights, self.n_expert, self.n_used)
        })
    }
}

impl Lists {
    /// Sorts the experts of all rows, `n_used` for each row in order of selection.
    pub(super) fn new(ids: &[u32], weights: &[f32], n_expert: usize, n_used: usize) -> Self {
        let mut starts = vec![0usize; n_expert + 1];
        for id in ids {
            starts[*id as usize + 1] += 1;
        }
        for e in 0..n_expert {
            starts[e + 1] += starts[e];
        }
        let spans = (0..n_expert)
            .map(|e| (e, starts[e]..starts[e + 1]))
            .filter(|(_, pairs)| !pairs.is_empty())
            .collect();
        let mut next = starts;
        let mut rows = vec![0u32; ids.len()];
        let mut shares = Vec::with_capacity(ids.len());
        for (i, (id, weight)) in ids.iter().zip(weights).enumerate() {
            let next = &mut next[*id as usize];
            rows[*next] = (i / n_used) as u32;
            shares.push(Share { pair: *next as u32, weight: *weight });
            *next += 1;
        }
        Self { rows, spans, shares }
    }

    /// Weight of each pair.
    pub(super) fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.shares.len()];
        self.shares.iter().for_each(|share| weights[share.pair as usize] = share.weight);
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_sorted_by_expert_and_found_again() {
        let weights = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
        let lists = Lists::new(&[3, 1, 1, 0, 3, 1], &weights, 4, 2);
        assert_eq!(lists.spans, [(0, 0..1), (1, 1..4), (3, 4..6)]);
        assert_eq!(lists.rows, [1, 0, 1, 2, 0, 2]);
        let pairs: Vec<u32> = lists.shares.iter().map(|share| share.pair).collect();
        assert_eq!(pairs, [4, 1, 2, 0, 5, 3]);
        assert_eq!(lists.weights(), [0.4, 0.2, 0.3, 0.6, 0.1, 0.5]);
    }
}
