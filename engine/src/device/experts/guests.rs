//! Experts of the host's memory that visit the device for a ubatch: their weights are copied to places that are there for this, and
//! computed with there, some experts at a time.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ExpertMatrices;
use super::on_host::Beside;
use super::places::Places;
use super::use_counts::ExpertLayer;
use super::visits::Visits;
use crate::device::{Device, Rows};
use crate::kernels::{KernelError, PackedMatrix};
use crate::ops::{Buffer, Copy, PairLists, Purpose, Routing, Share};

/// Experts that there are places for.
pub const GUESTS_AT_ONCE: usize = 8;

/// Experts that are computed together: half of them, so that a device with a transfer queue gets the next ones meanwhile.
const GUESTS_TOGETHER: usize = GUESTS_AT_ONCE / 2;

/// Matrices of experts of which some are copied to the device, in the order in which they were asked for.
pub struct Guests<'a> {
    places: &'a Places,
    /// Given back when the matrices are dropped.
    taken: Vec<Arc<dyn Buffer>>,
    all: Vec<ExpertMatrices>,
}

/// Some experts' pairs, as a routing of their own.
pub struct RoutingShare {
    /// Rows and weights of these pairs alone.
    pub routing: Routing,
    /// Ranges of these pairs among all pairs.
    pub pairs: Vec<Range<usize>>,
    /// Numbers of the experts.
    pub experts: Vec<usize>,
}

/// The experts of a ubatch, by the place where they are computed.
pub struct ExpertShares<'a> {
    /// Experts with a copy on the device, and the copies.
    pub with_copy: Option<(RoutingShare, Guests<'a>)>,
    /// Experts whose weights are sent to the device, some at a time.
    pub visiting: Vec<RoutingShare>,
    /// Experts that are computed where they lie.
    pub staying: RoutingShare,
}

impl Guests<'_> {
    /// The matrices `index` of those that were asked for.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn matrices(&self, index: usize) -> &ExpertMatrices {
        &self.all[index]
    }
}

impl Drop for Guests<'_> {
    fn drop(&mut self) {
        self.all.clear();
        let taken = std::mem::take(&mut self.taken);
        self.places.with(|places| {
            taken
                .into_iter()
                .for_each(|place| places.entry(place.len()).or_default().push_back(place));
        });
    }
}

/// Bytes of the places that guests of some layers need, by the bytes of each matrix of an expert there.
pub fn bytes_for_guests<'a>(layers: impl IntoIterator<Item = &'a [u64]>) -> u64 {
    let mut most = HashMap::<u64, u64>::new();
    for layer in layers {
        for len in layer {
            let n = layer.iter().filter(|other| *other == len).count() as u64;
            let known = most.entry(*len).or_default();
            *known = n.max(*known);
        }
    }
    let of_one = most.into_iter().map(|(len, n)| len.saturating_mul(n));
    of_one.fold(0, u64::saturating_add).saturating_mul(GUESTS_AT_ONCE as u64)
}

impl Device {
    /// Copies bytes to this device's memory so many times, as experts that visit it are copied, and waits for all.
    ///
    /// # Errors
    /// [`KernelError::Device`] where there is no memory for one copy, or the device failed.
    pub fn send_copies(&self, bytes: &[u8], n: usize) -> Result<(), KernelError> {
        let Some(there) = &self.there else { return Ok(()) };
        let mut place = there.alloc(bytes.len(), Purpose::Weights)?;
        (0..n).for_each(|_| place.write(0, bytes));
        Ok(there.finish()?)
    }

    /// Whether experts that come to this device come while it computes, by a queue of their own.
    pub fn sends_beside(&self) -> bool {
        self.there.as_ref().is_some_and(|there| there.facts().sends_beside)
    }

    /// Sets when experts of the host's memory are sent to the device.
    pub fn set_visits(&mut self, visits: Visits) {
        if let Some(beside) = &mut self.beside {
            beside.visits = visits;
        }
    }

    /// Makes room for guests: experts of a layer with these matrices. From now on they may have copies.
    ///
    /// # Errors
    /// [`KernelError::Device`] where the device has no memory for that.
    pub fn make_room(
        &self,
        layer: &ExpertLayer,
        matrices: &[&ExpertMatrices],
    ) -> Result<(), KernelError> {
        let (Some(there), Some(beside)) = (&self.there, &self.beside) else { return Ok(()) };
        if matrices.iter().all(|all| all.is_beside()) {
            beside.copies().know(layer, matrices);
        }
        if beside.visits == Visits::Never {
            return Ok(());
        }
        let mut needed = HashMap::<usize, usize>::new();
        for all in matrices.iter().filter(|all| all.is_beside()) {
            *needed.entry(all.matrix(0).nbytes()).or_default() += GUESTS_AT_ONCE;
        }
        beside.places.with(|places| {
            for (len, n) in needed {
                let places = places.entry(len).or_default();
                while places.len() < n {
                    places.push_back(there.alloc(len, Purpose::Weights)?.into());
                }
            }
            Ok(())
        })
    }

    /// Places where the experts of `routing` are computed, for the rows that [`Device::away`] sent. `None` where all
    /// are computed in the host's memory. `layer` and `matrices` are those of the experts.
    pub fn shares(
        &self,
        layer: u64,
        routing: &Routing,
        matrices: &[&ExpertMatrices],
    ) -> Option<ExpertShares<'_>> {
        let beside = self.beside.as_ref()?;
        let lists = routing.lists();
        let of_one = |all: &&ExpertMatrices| all.matrix(lists.spans[0].0).nbytes();
        let copies = beside.copies();
        let has_copy = |place: &usize| copies.has((layer, lists.spans[*place].0));
        let (with, without): (Vec<usize>, Vec<usize>) = (0..lists.spans.len()).partition(has_copy);
        let rest: Vec<_> = without.iter().map(|place| lists.spans[*place].clone()).collect();
        let chosen = if rest.is_empty() || !beside.has_places(matrices.iter().map(of_one)) {
            Vec::new()
        } else {
            let bytes = matrices.iter().map(of_one).sum();
            let macs = |w: &PackedMatrix| w.rows() * w.cols();
            let operations: usize =
                matrices.iter().map(|all| 2 * macs(all.matrix(rest[0].0))).sum();
            beside.visits.chosen(&rest, bytes, operations)
        };
        if with.is_empty() && chosen.is_empty() {
            return None;
        }
        let chosen: Vec<usize> = chosen.into_iter().map(|place| without[place]).collect();
        let weights = lists.weights();
        let share = |places: &[usize]| {
            let mut places = places.to_vec();
            places.sort_unstable();
            RoutingShare::new(routing, &weights, &places)
        };
        let stays = |place: &usize| !chosen.contains(place);
        let staying: Vec<usize> = without.into_iter().filter(stays).collect();
        let with_copy = (!with.is_empty()).then(|| {
            let share = share(&with);
            let all = copies.matrices(layer, &share.experts, matrices.len());
            (share, Guests { places: &beside.places, taken: Vec::new(), all })
        });
        let pairs = |places: &[usize]| {
            places.iter().map(|place| lists.spans[*place].1.len() as u64).sum::<u64>()
        };
        beside.count_pairs(pairs(&with), pairs(&chosen));
        Some(ExpertShares {
            with_copy,
            visiting: chosen.chunks(GUESTS_TOGETHER).map(share).collect(),
            staying: share(&staying),
        })
    }

    /// Copies matrices of these experts to where the device computes with them, after all that it was told before with
    /// these places. `None` where there is no place for one.
    pub fn guests(&self, experts: &[usize], matrices: &[&ExpertMatrices]) -> Option<Guests<'_>> {
        let beside = self.beside.as_ref()?;
        let places = &beside.places;
        let mut guests = Guests { places, taken: Vec::new(), all: Vec::new() };
        for matrices in matrices {
            let mut all = Vec::with_capacity(experts.len());
            for expert in experts {
                let host = matrices.matrix(*expert);
                let len = host.nbytes();
                // Not one of those that are computed with now.
                let mut place = places.with(|places| places.get_mut(&len)?.pop_front())?;
                // Its last user is gone: the matrices were dropped before the place was given back.
                Arc::get_mut(&mut place)?.write(0, host.bytes());
                all.push(Arc::new(host.copied_to(place.clone())));
                guests.taken.push(place);
                beside.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
            }
            guests.all.push(ExpertMatrices::of_some(experts.to_vec(), all));
        }
        Some(guests)
    }

    /// The first of a routing's experts as if it were here, for a rehearsal: nothing is copied. `None` where no expert has copies
    /// or visits.
    pub fn rehearsed_share(
        &self,
        routing: &Routing,
        matrices: &[&ExpertMatrices],
    ) -> Option<(RoutingShare, Guests<'_>)> {
        let (there, beside) = (self.there.as_ref()?, self.beside.as_ref()?);
        let lists = routing.lists();
        let expert = lists.spans.first()?.0;
        // No expert has more pairs than there are rows, and some have one.
        let span = (expert, 0..routing.n_rows().min(lists.rows.len()));
        let places = &beside.places;
        let mut guests = Guests { places, taken: Vec::new(), all: Vec::new() };
        for matrices in matrices {
            let host = matrices.matrix(expert);
            let len = host.nbytes();
            let place = match places.with(|places| places.get_mut(&len)?.pop_front()) {
                Some(place) => {
                    guests.taken.push(place.clone());
                    place
                }
                // Without guests there is room for copies alone.
                None if beside.copies().has_room(len as u64) => {
                    there.alloc(len, Purpose::Weights).ok()?.into()
                }
                None => return None,
            };
            let copied = vec![Arc::new(host.copied_to(place))];
            guests.all.push(ExpertMatrices::of_some(vec![expert], copied));
        }
        Some((RoutingShare::of(routing, &lists.weights(), &[&span]), guests))
    }

    /// Copies `rows`, which lie here or with the host, to rows `pairs` of `all`, one range after the other.
    pub fn place_rows(&self, rows: &Rows, pairs: &[Range<usize>], all: &mut Rows) {
        let (cols, mut at) = (rows.cols(), 0);
        let mut out = all.to_write();
        self.lent(rows, &mut |from| {
            for pairs in pairs {
                let n = pairs.len() * cols;
                let mut to = out.part(pairs.clone());
                self.run(Copy { from: from.part(at..at + n), to: to.view_mut() });
                at += n;
            }
        });
    }
}

impl Beside {
    /// Counts pairs that the device computed in place of the host, with copies that are there and with guests.
    fn count_pairs(&self, with_copy: u64, visiting: u64) {
        self.n_pairs[0].fetch_add(with_copy + visiting, Ordering::Relaxed);
        self.n_pairs[1].fetch_sub(with_copy + visiting, Ordering::Relaxed);
        self.n_hits.fetch_add(with_copy, Ordering::Relaxed);
    }

    /// Whether there are places for guests whose matrices have these bytes.
    fn has_places(&self, lens: impl Iterator<Item = usize>) -> bool {
        let mut needed = HashMap::<usize, usize>::new();
        lens.for_each(|len| *needed.entry(len).or_default() += GUESTS_AT_ONCE);
        let has = |(len, n): (&usize, &usize)| {
            self.places.with(|places| places.get(len).map_or(0, VecDeque::len)) >= *n
        };
        self.visits != Visits::Never && needed.iter().all(has)
    }
}

impl RoutingShare {
    /// The share of the experts at these places of the list, in ascending order; `weights` are those of all pairs.
    fn new(routing: &Routing, weights: &[f32], places: &[usize]) -> Self {
        let spans = &routing.lists().spans;
        let chosen: Vec<_> = places.iter().map(|place| &spans[*place]).collect();
        Self::of(routing, weights, &chosen)
    }

    /// The share of experts with these ranges of the pairs, in ascending order.
    fn of(routing: &Routing, weights: &[f32], chosen: &[&(usize, Range<usize>)]) -> Self {
        let all = routing.lists();
        let (mut rows, mut spans, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        let (mut pairs, mut experts) = (Vec::new(), Vec::new());
        for (expert, of) in chosen {
            spans.push((*expert, rows.len()..rows.len() + of.len()));
            rows.extend_from_slice(&all.rows[of.clone()]);
            pairs.push(of.clone());
            experts.push(*expert);
        }
        let weights = pairs.iter().flat_map(|of| &weights[of.clone()]);
        shares.extend(weights.zip(0..).map(|(weight, pair)| Share { pair, weight: *weight }));
        let n_pairs = rows.len();
        let routing = Routing::new(n_pairs, routing.n_expert(), 1).with_lists(PairLists {
            rows,
            spans,
            shares,
        });
        Self { routing, pairs, experts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_the_pairs_of_its_experts() {
        let weights = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
        let lists = PairLists::new(&[3, 1, 1, 0, 3, 1], &weights, 4, 2);
        let all = Routing::new(3, 4, 2).with_lists(lists);
        let share = RoutingShare::new(&all, &all.lists().weights(), &[0, 2]);
        assert_eq!((share.pairs, share.experts), (vec![0..1, 4..6], vec![0, 3]));
        let lists = share.routing.lists();
        assert_eq!(lists.rows, [1, 0, 2]);
        assert_eq!(lists.spans, [(0, 0..1), (3, 1..3)]);
        assert_eq!(lists.weights(), [0.4, 0.1, 0.5]);
        assert_eq!(share.routing.n_pairs(), 3);
    }
}
