//! Routing: which experts work on which rows. The lists lie in the host's memory, or with a device, where the host does
//! not look at them.

use std::any::Any;
use std::ops::Range;
use std::sync::OnceLock;

use brigade_quant::DeviceError;

use crate::derived::Derived;
use crate::view::Part;

/// The experts of rows, and the rows of experts. A row and one of its experts are a pair; pairs are sorted by expert,
/// and those of an expert by row.
#[derive(Debug)]
pub struct Routing {
    n_expert: usize,
    n_used: usize,
    n_pairs: usize,
    there: Option<Box<dyn Routes>>,
    here: OnceLock<PairLists>,
}

/// The lists of a routing that lie with a device. The device takes its own back by their type.
pub trait Routes: Any + std::fmt::Debug + Send + Sync {
    /// The experts of each row in order of selection, u32, and behind all of them their weights, f32: `[2, n_rows, n_used]`.
    fn chosen(&self) -> Part<'_>;
}

/// The lists, in the host's memory.
#[derive(Clone, Debug)]
pub struct PairLists {
    /// Row of each pair.
    pub rows: Vec<u32>,
    /// For each expert that has rows: its id and its pairs.
    pub spans: Vec<(usize, Range<usize>)>,
    /// Pairs of each row with their weights, in order of selection.
    pub shares: Vec<Share>,
}

/// A pair times a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Number of the pair.
    pub pair: u32,
    /// Weight of the expert's output.
    pub weight: f32,
}

/// The pairs of some consecutive rows of those that were routed, for what is computed of these alone.
#[derive(Debug)]
pub struct RoutingPart<'a> {
    routing: &'a Routing,
    rows: Range<usize>,
    there: Derived,
}

/// Pairs for each of some experts, with the expert's number.
pub type PairSpans = Vec<(usize, Range<usize>)>;

impl Routing {
    /// One that is still to be filled: experts, and how many of them a row uses.
    pub fn new(n_rows: usize, n_expert: usize, n_used: usize) -> Self {
        let n_pairs = n_rows * n_used;
        Self { n_expert, n_used, n_pairs, there: None, here: OnceLock::new() }
    }

    /// Fills it with lists of the host.
    #[must_use]
    pub fn with_lists(self, lists: PairLists) -> Self {
        Self { here: lists.into(), ..self }
    }

    /// Fills it with lists of a device, instead of others.
    pub fn keep_there(&mut self, routes: Box<dyn Routes>) {
        (self.there, self.here) = (Some(routes), OnceLock::new());
    }

    /// Fills it with what was chosen: for each row its experts in order of selection, and their weights.
    pub fn keep_here(&mut self, ids: &[u32], weights: &[f32]) {
        let lists = PairLists::new(ids, weights, self.n_expert, self.n_used);
        (self.there, self.here) = (None, lists.into());
    }

    /// The routing itself; macros use it as they use a part's.
    pub(crate) fn routing(&self) -> &Self {
        self
    }

    /// Number of rows that were routed.
    pub fn n_rows(&self) -> usize {
        self.n_pairs / self.n_used.max(1)
    }

    /// Number of pairs, `n_rows * n_used`.
    pub fn n_pairs(&self) -> usize {
        self.n_pairs
    }

    /// Number of experts that are routed to.
    pub fn n_expert(&self) -> usize {
        self.n_expert
    }

    /// Number of experts for each row.
    pub fn n_used(&self) -> usize {
        self.n_used
    }

    /// The lists with a device, if they lie there.
    pub fn there(&self) -> Option<&dyn Routes> {
        self.there.as_deref()
    }

    /// The lists with a device by their type, if they are of this one.
    pub fn there_as<T: Routes>(&self) -> Option<&T> {
        let there: &dyn Any = self.there()?;
        there.downcast_ref()
    }

    /// The lists, brought to the host's memory when they are first asked for: that waits for a device.
    ///
    /// # Errors
    /// A device has no room for a copy.
    pub fn bring(&self) -> Result<&PairLists, DeviceError> {
        if let Some(lists) = self.here.get() {
            return Ok(lists);
        }
        let mut bytes = Vec::new();
        if let Some(routes) = self.there() {
            let (buffer, of_chosen) = routes.chosen().place();
            buffer.read(of_chosen, &mut bytes)?;
        }
        Ok(self.here.get_or_init(|| PairLists::of_bytes(&bytes, self.n_expert, self.n_used)))
    }

    /// The lists in the host's memory.
    ///
    /// # Panics
    /// If they lie with a device and were not [brought](Self::bring).
    pub fn lists(&self) -> &PairLists {
        self.here.get().expect("lists of experts are with the host, or were brought there")
    }

    /// The pairs of the rows numbered `rows`.
    ///
    /// # Panics
    /// If so many rows were not routed.
    pub fn part(&self, rows: Range<usize>) -> RoutingPart<'_> {
        assert!(rows.end * self.n_used <= self.n_pairs, "{rows:?} of those routed");
        RoutingPart { routing: self, rows, there: Derived::default() }
    }
}

impl PairLists {
    /// Sorts the experts of all rows, `n_used` for each row in order of selection.
    pub fn new(ids: &[u32], weights: &[f32], n_expert: usize, n_used: usize) -> Self {
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

    /// The lists of what [`Routes::chosen`] has.
    pub fn of_bytes(chosen: &[u8], n_expert: usize, n_used: usize) -> Self {
        let (ids, weights) = chosen.split_at(chosen.len() / 2);
        let (ids, weights): (Vec<u32>, Vec<f32>) =
            (bytemuck::pod_collect_to_vec(ids), bytemuck::pod_collect_to_vec(weights));
        Self::new(&ids, &weights, n_expert, n_used)
    }

    /// Weight of each pair.
    pub fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.shares.len()];
        self.shares.iter().for_each(|share| weights[share.pair as usize] = share.weight);
        weights
    }

    /// Expert of each pair.
    pub fn experts(&self) -> Vec<u32> {
        let of = |(expert, pairs): &(usize, Range<usize>)| vec![*expert as u32; pairs.len()];
        self.spans.iter().flat_map(of).collect()
    }
}

impl<'a> RoutingPart<'a> {
    /// The routing that the part belongs to.
    pub fn routing(&self) -> &'a Routing {
        self.routing
    }

    /// Numbers of the rows.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Number of pairs of these rows.
    pub fn n_pairs(&self) -> usize {
        self.rows.len() * self.routing.n_used
    }

    /// Forms of the part's lists that a device keeps.
    pub fn there(&self) -> &Derived {
        &self.there
    }

    /// For each expert that has some of the rows, its pairs among those of all rows; and where these are if the pairs of the part
    /// alone lie one behind the other.
    ///
    /// # Panics
    /// As [`Routing::lists`].
    pub fn spans(&self) -> (PairSpans, PairSpans) {
        let (lists, mut n) = (self.routing.lists(), 0);
        let (mut pairs, mut places) = (PairSpans::new(), PairSpans::new());
        for (expert, all) in &lists.spans {
            // An expert's pairs are in the order of their rows.
            let rows = &lists.rows[all.clone()];
            let before = |row: usize| all.start + rows.partition_point(|r| (*r as usize) < row);
            let mine = before(self.rows.start)..before(self.rows.end);
            if !mine.is_empty() {
                places.push((*expert, n..n + mine.len()));
                n += mine.len();
                pairs.push((*expert, mine));
            }
        }
        (pairs, places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_sorted_by_expert_and_found_again() {
        let weights = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
        let lists = PairLists::new(&[3, 1, 1, 0, 3, 1], &weights, 4, 2);
        assert_eq!(lists.spans, [(0, 0..1), (1, 1..4), (3, 4..6)]);
        assert_eq!(lists.rows, [1, 0, 1, 2, 0, 2]);
        let pairs: Vec<u32> = lists.shares.iter().map(|share| share.pair).collect();
        assert_eq!(pairs, [4, 1, 2, 0, 5, 3]);
        assert_eq!(lists.weights(), [0.4, 0.2, 0.3, 0.6, 0.1, 0.5]);
        assert_eq!(lists.experts(), [0, 1, 1, 1, 3, 3]);
    }
}
