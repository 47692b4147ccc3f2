//! Room for models that are loaded on demand: memory of this machine, or workers of the pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use brigade_cluster::{Pool, SeatId};

use super::slot::Slot;
use super::turns::Room;

/// The memory and the workers that models use now.
pub struct Rooms<'a> {
    /// All models on demand, at their indices.
    pub slots: &'a [Option<Arc<Slot>>],
    /// Memory of this machine for all of them.
    pub budget: u64,
}

/// Models that have memory of this machine, and those that are lent workers.
const OF_THIS_MACHINE: usize = 0;
const OF_THE_POOL: usize = 1;

impl Rooms<'_> {
    fn pool(&self, model: usize) -> Option<&Pool> {
        Some(&self.slots[model].as_ref()?.served.shared.as_ref()?.pool)
    }

    fn host_memory(&self, model: usize) -> u64 {
        self.slots[model].as_ref().map_or(0, |slot| slot.served.host_memory())
    }

    fn of_pool(&self, pool: &Pool, model: usize, go: &[usize]) -> Option<Vec<usize>> {
        let seat = |at: &usize| Some((*at, self.slots[*at].as_ref()?.loaded().as_ref()?.seat?));
        let seats: Vec<(usize, SeatId)> = go.iter().filter_map(seat).collect();
        let ids: Vec<SeatId> = seats.iter().map(|(_, id)| *id).collect();
        // The demand was checked before.
        let demand = self.slots[model].as_ref()?.served.demand().ok()?;
        let gone = pool.in_the_way(&demand, &ids).ok()?;
        Some(seats.into_iter().filter(|(_, id)| gone.contains(id)).map(|(at, _)| at).collect())
    }
}

impl Room for Rooms<'_> {
    fn in_the_way(&self, model: usize, go: &[usize]) -> Option<Vec<usize>> {
        if let Some(pool) = self.pool(model) {
            return self.of_pool(pool, model, go);
        }
        let has = |slot: &&Arc<Slot>| slot.loaded().is_some() || slot.comes.load(Ordering::Relaxed);
        let taken = self.slots.iter().flatten().filter(has);
        let taken: u64 = taken.map(|slot| slot.served.host_memory()).sum();
        let wanted = taken.saturating_add(self.host_memory(model));
        let mut over = wanted.saturating_sub(self.budget);
        let mut gone = Vec::new();
        for at in go {
            // A model without memory of this machine makes no room.
            let bytes = self.host_memory(*at);
            if over > 0 && bytes > 0 {
                over = over.saturating_sub(bytes);
                gone.push(*at);
            }
        }
        (over == 0).then_some(gone)
    }

    fn kind(&self, model: usize) -> usize {
        if self.pool(model).is_some() { OF_THE_POOL } else { OF_THIS_MACHINE }
    }

    fn is_closed(&self, model: usize) -> bool {
        let comes =
            |slot: &Arc<Slot>| slot.served.shared.is_some() && slot.comes.load(Ordering::Relaxed);
        self.pool(model).is_some() && self.slots.iter().flatten().any(comes)
    }
}
