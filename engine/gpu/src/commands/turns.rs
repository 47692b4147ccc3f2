//! Order between two queues that run beside each other: that of kernels, and that of transfers, which fills places for
//! kernels to read. A place is a part of memory that is filled again and again.
//!
//! Batches of each queue have numbers, and one timeline a queue counts those that are done. A batch may wait for one
//! number of the other queue. Here is only which numbers these are, and which batches are handed over first; no Vulkan.
//!
//! Nothing waits for a batch that is not handed over yet. So the queues cannot wait for each other in a circle, also
//! where both are one queue, which executes batches in the order in which they were handed over.

use std::sync::atomic::{AtomicU64, Ordering};

/// One of the two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Kernels,
    Transfers,
}

impl Queue {
    fn other(self) -> Self {
        match self {
            Self::Kernels => Self::Transfers,
            Self::Transfers => Self::Kernels,
        }
    }
}

/// The last batches that fill and use a place.
#[derive(Debug, Default)]
pub(crate) struct PlaceUse {
    /// The last batch of transfers that writes it.
    filled_by: AtomicU64,
    /// The last batch of kernels that may use it.
    used_by: AtomicU64,
}

impl PlaceUse {
    /// A place that batches of kernels up to this one may use.
    pub(crate) fn new(used_by: u64) -> Self {
        Self { filled_by: AtomicU64::new(0), used_by: AtomicU64::new(used_by) }
    }

    /// The last batch of transfers that writes it.
    pub(crate) fn filled_by(&self) -> u64 {
        self.filled_by.load(Ordering::Acquire)
    }

    /// The last batch of kernels that may use it.
    pub(crate) fn used_by(&self) -> u64 {
        self.used_by.load(Ordering::Acquire)
    }

    /// Notes that this batch of transfers writes it.
    pub(crate) fn fill_by(&self, batch: u64) {
        self.filled_by.fetch_max(batch, Ordering::AcqRel);
    }

    /// Notes that kernels up to this batch may use it.
    pub(crate) fn use_by(&self, batch: u64) {
        self.used_by.fetch_max(batch, Ordering::AcqRel);
    }
}

/// The two queues, as far as they wait for each other.
#[derive(Default)]
pub(crate) struct Turns {
    kernels: Side,
    transfers: Side,
}

#[derive(Default)]
struct Side {
    /// Batches that were handed over.
    handed: u64,
    /// The batch of the other queue that the open batch waits for.
    wants: u64,
    /// The last batch of the other queue that a batch which was handed over waits for. Later ones come behind that one.
    waited: u64,
}

/// Queues whose open batch is handed over before a batch may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    /// That of the queue which waits: what it has gathered need not wait.
    pub(crate) own: bool,
    /// That of the other queue, which has what is waited for.
    pub(crate) other: bool,
}

/// A batch that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handing {
    pub(crate) number: u64,
    /// The batch of the other queue that it waits for, 0 where it waits for none.
    pub(crate) behind: u64,
}

impl Turns {
    fn side(&self, queue: Queue) -> &Side {
        match queue {
            Queue::Kernels => &self.kernels,
            Queue::Transfers => &self.transfers,
        }
    }

    fn side_mut(&mut self, queue: Queue) -> &mut Side {
        match queue {
            Queue::Kernels => &mut self.kernels,
            Queue::Transfers => &mut self.transfers,
        }
    }

    /// Batches of a queue that were handed over.
    pub(crate) fn handed(&self, queue: Queue) -> u64 {
        self.side(queue).handed
    }

    /// What is handed over before something that comes behind `batch` of the other queue is gathered; `is_empty`: the
    /// open batch of `queue` has nothing yet. [`Turns::want`] comes next.
    pub(crate) fn before(&self, queue: Queue, batch: u64, is_empty: bool) -> First {
        let Side { wants, waited, .. } = *self.side(queue);
        if batch <= wants.max(waited) {
            return First { own: false, other: false };
        }
        First { own: !is_empty, other: batch > self.side(queue.other()).handed }
    }

    /// What is gathered from now on comes behind `batch` of the other queue.
    ///
    /// # Panics
    /// If that was not handed over.
    pub(crate) fn want(&mut self, queue: Queue, batch: u64) {
        assert!(
            batch <= self.handed(queue.other()),
            "{queue:?} would wait for what is not handed over"
        );
        let side = self.side_mut(queue);
        side.wants = side.wants.max(batch);
    }

    /// The batch that a queue hands over next.
    pub(crate) fn next(&self, queue: Queue) -> Handing {
        let Side { handed, wants, waited } = *self.side(queue);
        Handing { number: handed + 1, behind: if wants > waited { wants } else { 0 } }
    }

    /// That batch is handed over.
    pub(crate) fn hand_over(&mut self, queue: Queue) {
        let side = self.side_mut(queue);
        side.handed += 1;
        side.waited = side.waited.max(side.wants);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const N_PLACES: usize = 5;

    /// What a batch does with a place, in the order of the program.
    #[derive(Clone, Copy, Debug)]
    enum Act {
        Fill { place: usize, value: u64 },
        Use { place: usize, value: u64 },
    }

    #[derive(Debug, Default)]
    struct Batch {
        acts: Vec<Act>,
        behind: u64,
    }

    /// A program that fills and uses places, and a device that executes its batches.
    struct World {
        turns: Turns,
        places: Vec<PlaceUse>,
        /// Value that each place has where the program is.
        values: Vec<u64>,
        /// Open batches, and those that were handed over, of kernels and of transfers.
        open: [Batch; 2],
        handed: [VecDeque<Batch>; 2],
        /// Order in which batches were handed over.
        order: VecDeque<usize>,
        done: [u64; 2],
        /// Memory of the device: nothing while it is written.
        memory: Vec<Option<u64>>,
        /// Whether a batch is being executed.
        running: [Option<Batch>; 2],
        n_beside: u64,
    }

    fn at(queue: Queue) -> usize {
        usize::from(queue == Queue::Transfers)
    }

    impl World {
        fn new() -> Self {
            Self {
                turns: Turns::default(),
                places: (0..N_PLACES).map(|_| PlaceUse::new(0)).collect(),
                values: vec![0; N_PLACES],
                open: Default::default(),
                handed: Default::default(),
                order: VecDeque::new(),
                done: [0; 2],
                memory: vec![Some(0); N_PLACES],
                running: [None, None],
                n_beside: 0,
            }
        }

        fn hand_over(&mut self, queue: Queue) {
            if self.open[at(queue)].acts.is_empty() {
                return;
            }
            let handing = self.turns.next(queue);
            self.turns.hand_over(queue);
            let batch = std::mem::take(&mut self.open[at(queue)]);
            self.handed[at(queue)].push_back(Batch { behind: handing.behind, ..batch });
            self.order.push_back(at(queue));
        }

        /// As the recorder does it.
        fn come_behind(&mut self, queue: Queue, batch: u64) {
            let first = self.turns.before(queue, batch, self.open[at(queue)].acts.is_empty());
            if first.own {
                self.hand_over(queue);
            }
            if first.other {
                self.hand_over(queue.other());
            }
            self.turns.want(queue, batch);
        }

        fn fill(&mut self, place: usize, value: u64) {
            self.come_behind(Queue::Transfers, self.places[place].used_by());
            self.open[1].acts.push(Act::Fill { place, value });
            self.places[place].fill_by(self.turns.next(Queue::Transfers).number);
            self.values[place] = value;
        }

        fn use_places(&mut self, places: &[usize]) {
            let newest = places.iter().map(|place| self.places[*place].filled_by()).max().unwrap();
            self.come_behind(Queue::Kernels, newest);
            for place in places {
                self.open[0].acts.push(Act::Use { place: *place, value: self.values[*place] });
                self.places[*place].use_by(self.turns.next(Queue::Kernels).number);
            }
        }

        /// Begins or ends the next batch of a queue; whether it could. With `is_one` both are one queue.
        fn step(&mut self, queue: usize, is_one: bool) -> bool {
            if let Some(batch) = self.running[queue].take() {
                for act in batch.acts {
                    match act {
                        Act::Fill { place, value } => self.memory[place] = Some(value),
                        Act::Use { place, value } => {
                            assert_eq!(self.memory[place], Some(value), "overwritten while in use");
                        }
                    }
                }
                self.done[queue] += 1;
                return true;
            }
            let is_next = !is_one || self.order.front() == Some(&queue);
            let is_busy = is_one && self.running.iter().any(Option::is_some);
            let may = |batch: &&Batch| batch.behind <= self.done[1 - queue];
            if !is_next || is_busy || self.handed[queue].front().filter(may).is_none() {
                return false;
            }
            let batch = self.handed[queue].pop_front().unwrap();
            if is_one {
                self.order.pop_front();
            }
            self.n_beside += u64::from(self.running[1 - queue].is_some());
            for act in &batch.acts {
                match act {
                    Act::Fill { place, .. } => self.memory[*place] = None,
                    Act::Use { place, value } => {
                        assert_eq!(self.memory[*place], Some(*value), "used before it was there");
                    }
                }
            }
            self.running[queue] = Some(batch);
            true
        }

        /// Executes all that was handed over.
        fn finish(&mut self, is_one: bool) {
            for queue in [Queue::Kernels, Queue::Transfers] {
                self.hand_over(queue);
            }
            while self.handed.iter().any(|batches| !batches.is_empty())
                || self.running.iter().any(Option::is_some)
            {
                let moved = [self.step(0, is_one), self.step(1, is_one)];
                assert!(moved.contains(&true), "the queues wait for each other");
            }
        }
    }

    fn random(state: &mut u64, below: usize) -> usize {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % below
    }

    /// A history of fills, uses and hand-overs, while the device comes on. Returns how often both queues ran at once.
    fn history(seed: u64, is_one: bool) -> u64 {
        let mut world = World::new();
        let state = &mut (seed + 1);
        for value in 1..200 {
            match random(state, 10) {
                0..3 => world.fill(random(state, N_PLACES), value),
                3..6 => {
                    let places: Vec<_> =
                        (0..=random(state, 2)).map(|_| random(state, N_PLACES)).collect();
                    world.use_places(&places);
                }
                6 => world.hand_over([Queue::Kernels, Queue::Transfers][random(state, 2)]),
                _ => {
                    world.step(random(state, 2), is_one);
                }
            }
        }
        world.finish(is_one);
        assert_eq!(world.memory, world.values.iter().copied().map(Some).collect::<Vec<_>>());
        world.n_beside
    }

    #[test]
    fn no_place_is_filled_while_it_is_used_nor_used_before_it_is_filled() {
        let n_beside: u64 = (0..5000).map(|seed| history(seed, false)).sum();
        assert!(n_beside > 5000, "the queues run beside each other: {n_beside}");
    }

    #[test]
    fn one_queue_under_two_names_comes_to_an_end() {
        for seed in 0..5000 {
            assert_eq!(history(seed, true), 0);
        }
    }

    #[test]
    fn the_next_half_comes_while_kernels_use_the_first() {
        let mut world = World::new();
        world.fill(0, 1);
        world.use_places(&[0]);
        world.fill(1, 2);
        world.use_places(&[1]);
        // The first half again: it waits for the kernels that used it, and not for those of the other half.
        world.fill(0, 3);
        world.finish(false);
        let mut world = World::new();
        world.fill(0, 1);
        world.use_places(&[0]);
        world.fill(1, 2);
        let next = world.turns.next(Queue::Transfers);
        assert_eq!(next, Handing { number: 2, behind: 0 }, "the other half is free");
        world.fill(0, 3);
        let next = world.turns.next(Queue::Transfers);
        assert_eq!(next, Handing { number: 3, behind: 1 }, "what is free does not wait with it");
    }
}
