//! Cuts that leave weights where they are.
//!
//! After a loss, or when a coordinator begins anew, workers have layers in memory. Loading takes far longer than
//! anything else about a new line, so of cuts that are about as fast, the one is taken that loads the fewest bytes.

use std::ops::Range;

use super::Capacity;
use super::cost::Costs;
use super::cuts::{self, Join};
use super::facts::WorkerFacts;
use super::units::format_bytes;

/// Slowdown of the slowest stage that weights which need not be loaded are worth.
pub(super) const SPEED_FOR_KEPT: f64 = 1.05;

/// The cuts with the fewest bytes to load of those whose slowest stage is about as fast as `slowest`; the most even
/// ones of these. `None` where no worker has weights in memory.
pub(super) fn fewest_loads(
    costs: &Costs,
    order: &[usize],
    capacity: Capacity,
    slowest: f64,
) -> Option<Vec<Range<usize>>> {
    if costs.workers.iter().all(|worker| worker.holds.is_empty()) {
        return None;
    }
    let limit = slowest * SPEED_FOR_KEPT;
    // Unevenness of all stages together counts for less than a byte.
    let most_uneven = 2.0 * limit * limit * order.len() as f64;
    let cost = |place: usize, range: &Range<usize>| {
        let worker = order[place];
        let fits = costs.fits(worker, range, capacity);
        let time = costs.time(worker, range, capacity);
        let good = fits && costs.unit_us(worker, range, capacity) <= limit;
        let uneven = time.squares(costs.settings) / most_uneven;
        good.then(|| costs.loads(worker, range) as f64 + uneven)
    };
    cuts::cheapest(order.len(), costs.n_layers(), Join::Sum, cost).map(|(_, ranges)| ranges)
}

/// Workers in the order of the layers that they have. Workers without layers go where layers are missing, or to the
/// end.
pub(super) fn held_order(workers: &[WorkerFacts]) -> Vec<usize> {
    let holds = |worker: &usize| &workers[*worker].holds;
    let all = 0..workers.len();
    let (mut with, without): (Vec<usize>, Vec<usize>) = all.partition(|w| !holds(w).is_empty());
    with.sort_by_key(|worker| (holds(worker).start, *worker));
    let mut without = without.into_iter();
    let (mut order, mut upto) = (Vec::new(), 0);
    for worker in with {
        if holds(&worker).start > upto {
            order.extend(without.next());
        }
        upto = upto.max(holds(&worker).end);
        order.push(worker);
    }
    order.extend(without);
    order
}

/// The weights that stay in memory and those that are loaded, for people; `None` where no worker has any.
pub(super) fn note(costs: &Costs, stages: &[(usize, Range<usize>)]) -> Option<String> {
    if costs.workers.iter().all(|worker| worker.holds.is_empty()) {
        return None;
    }
    let none = Capacity { n_blocks: 0, n_slots: 0, n_kept: 0 };
    let (mut loads, mut all) = (0_u64, 0_u64);
    for (worker, range) in stages {
        loads = loads.saturating_add(costs.loads(*worker, range));
        all = all.saturating_add(costs.memory(range, none).weights);
    }
    let (stay, loads) = (format_bytes(all.saturating_sub(loads)), format_bytes(loads));
    Some(format!("{stay} of weights stay in the memory where they are, {loads} are loaded"))
}
