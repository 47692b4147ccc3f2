//! Experts of the host's memory that visit the GPU for a ubatch: their weights are copied to places that are there for this, and
//! computed with there, some experts at a time.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use brigade_gpu::{GpuBuffer, Purpose};

use super::beside::Beside;
use super::experts::ExpertMatrices;
use super::on_gpu::{copy_at, refused};
use super::routing::{Lists, Routing, Share};
use super::visits::Visits;
use super::{Device, Rows};
use crate::kernels::KernelError;

/// Experts that visit at a time.
pub const GUESTS_AT_ONCE: usize = 8;

/// Places for matrices, by their bytes.
#[derive(Default)]
pub(super) struct Places(Mutex<HashMap<usize, Vec<Arc<GpuBuffer>>>>);

/// Matrices of experts of which some are copied to the GPU, in the order in which they were asked for.
pub struct Guests<'a> {
    places: &'a Places,
    /// Given back when the matrices are dropped.
    taken: Vec<Arc<GpuBuffer>>,
    all: Vec<ExpertMatrices>,
}

/// Some experts' pairs, as a routing of their own.
pub struct RoutingShare {
    /// Rows and weights of these pairs alone.
    pub routing: Routing,
    /// Which pairs of all they are.
    pub pairs: Vec<Range<usize>>,
    /// The experts.
    pub experts: Vec<usize>,
}

impl Places {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<usize, Vec<Arc<GpuBuffer>>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
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
            taken.into_iter().for_each(|place| places.entry(place.len()).or_default().push(place));
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
        let Some(gpu) = &self.gpu else { return Ok(()) };
        let mut place = gpu.buffer(bytes.len(), Purpose::Weights).map_err(refused)?;
        (0..n).for_each(|_| place.write(0, bytes));
        gpu.finish().map_err(refused)
    }

    /// When experts of the host's memory are sent to the GPU.
    pub fn set_visits(&mut self, visits: Visits) {
        if let Some(beside) = &mut self.beside {
            beside.visits = visits;
        }
    }

    /// Makes room for guests: experts with these matrices.
    ///
    /// # Errors
    /// [`KernelError::Device`] where the GPU has no memory for that.
    pub fn make_room(&self, matrices: &[&ExpertMatrices]) -> Result<(), KernelError> {
        let (Some(gpu), Some(beside)) = (&self.gpu, &self.beside) else { return Ok(()) };
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
                    let place = gpu.buffer(len, Purpose::Weights).map_err(refused)?;
                    places.push(Arc::new(place));
                }
            }
            Ok(())
        })
    }

    /// The experts of `routing`, which are where [`Device::away`] went, that are to visit here, some at a time; and those that
    /// stay. `None` where all stay. `matrices` are those of the experts.
    pub fn visits(
        &self,
        routing: &Routing,
        matrices: &[&ExpertMatrices],
    ) -> Option<(Vec<RoutingShare>, RoutingShare)> {
        let beside = self.beside.as_ref()?;
        let of_one = |all: &&ExpertMatrices| all.matrix(0).nbytes();
        let has_room = |(len, n): (usize, usize)| {
            beside.places.with(|places| places.get(&len).map_or(0, Vec::len)) >= n
        };
        let same = |len| matrices.iter().filter(|all| of_one(all) == len).count();
        let mut lens = matrices.iter().map(of_one);
        if beside.visits == Visits::Never
            || !lens.all(|len| has_room((len, same(len) * GUESTS_AT_ONCE)))
        {
            return None;
        }
        let bytes = matrices.iter().map(of_one).sum();
        let macs = |all: &&ExpertMatrices| all.matrix(0).rows() * all.matrix(0).cols();
        let operations = 2 * matrices.iter().map(macs).sum::<usize>();
        let lists = routing.lists();
        let chosen = beside.visits.chosen(&lists.spans, bytes, operations);
        if chosen.is_empty() {
            return None;
        }
        let weights = lists.weights();
        let share = |places: &[usize]| {
            let mut places = places.to_vec();
            places.sort_unstable();
            RoutingShare::new(routing, &weights, &places)
        };
        let visiting = chosen.chunks(GUESTS_AT_ONCE).map(share).collect();
        let stays = |place: &usize| !chosen.contains(place);
        let staying: Vec<usize> = (0..lists.spans.len()).filter(stays).collect();
        let pairs = |place: &usize| lists.spans[*place].1.len() as u64;
        beside.count_guests(chosen.iter().map(pairs).sum(), (chosen.len() * bytes) as u64);
        Some((visiting, share(&staying)))
    }

    /// Copies matrices of these experts to where the GPU computes with them, after all that it was told before. `None` where there
    /// is no place for one.
    pub fn guests(&self, experts: &[usize], matrices: &[&ExpertMatrices]) -> Option<Guests<'_>> {
        let places = &self.beside.as_ref()?.places;
        let mut guests = Guests { places, taken: Vec::new(), all: Vec::new() };
        for matrices in matrices {
            let mut all = matrices.every().to_vec();
            for expert in experts {
                let host = &all[*expert];
                let len = host.nbytes();
                let mut place = places.with(|places| places.get_mut(&len)?.pop())?;
                // Whoever had it is gone: its matrices were dropped before it was given back.
                Arc::get_mut(&mut place)?.write(0, host.bytes());
                all[*expert] = Arc::new(copy_at(host, &place));
                guests.taken.push(place);
            }
            guests.all.push(ExpertMatrices::without_table(all));
        }
        Some(guests)
    }

    /// Copies `rows`, which lie here or with the host, to rows `pairs` of `all`, one range after the other.
    pub fn place_rows(&self, rows: &Rows, pairs: &[Range<usize>], all: &mut Rows) {
        let row_bytes = rows.cols() * size_of::<f32>();
        let mut at = 0;
        let Some((gpu, mut out)) = self.gpu_of(all) else { return };
        self.with_gpu(gpu, rows, |from| {
            for pairs in pairs {
                let n = pairs.len() * row_bytes;
                let to = pairs.start * row_bytes..pairs.end * row_bytes;
                gpu.copy(from.part(at..at + n), out.part(to));
                at += n;
            }
        });
    }
}

impl Beside {
    fn count_guests(&self, n_pairs: u64, bytes: u64) {
        self.n_pairs[0].fetch_add(n_pairs, Ordering::Relaxed);
        self.n_pairs[1].fetch_sub(n_pairs, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl RoutingShare {
    /// That of the experts at these places of the list, in ascending order; `weights` are those of all pairs.
    fn new(routing: &Routing, weights: &[f32], places: &[usize]) -> Self {
        let all = routing.lists();
        let (mut rows, mut spans, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        let (mut pairs, mut experts) = (Vec::new(), Vec::new());
        for (expert, of) in places.iter().map(|place| &all.spans[*place]) {
            spans.push((*expert, rows.len()..rows.len() + of.len()));
            rows.extend_from_slice(&all.rows[of.clone()]);
            pairs.push(of.clone());
            experts.push(*expert);
        }
        let weights = pairs.iter().flat_map(|of| &weights[of.clone()]);
        shares.extend(weights.zip(0..).map(|(weight, pair)| Share { pair, weight: *weight }));
        let [n_pairs, n_expert, _] = routing.sizes(rows.len());
        let routing = Routing::on_host([n_pairs, n_expert, 1], Lists { rows, spans, shares });
        Self { routing, pairs, experts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_the_pairs_of_its_experts() {
        let weights = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
        let lists = Lists::new(&[3, 1, 1, 0, 3, 1], &weights, 4, 2);
        let all = Routing::on_host([3, 4, 2], lists);
        let share = RoutingShare::new(&all, &all.lists().weights(), &[0, 2]);
        assert_eq!((share.pairs, share.experts), (vec![0..1, 4..6], vec![0, 3]));
        let lists = share.routing.lists();
        assert_eq!(lists.rows, [1, 0, 2]);
        assert_eq!(lists.spans, [(0, 0..1), (3, 1..3)]);
        assert_eq!(lists.weights(), [0.4, 0.1, 0.5]);
        assert_eq!(share.routing.n_pairs(), 3);
    }
}
