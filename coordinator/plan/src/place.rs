//! Chooses the order of the workers, the size of the KV cache and the cuts together.
//!
//! Room for one sequence of full length comes first, even if a slow worker has to be used for it. A larger KV cache
//! can force layers onto slower workers. So the planner takes more KV pages than that, up to the number asked for. It
//! stops where the slowest stage would be more than [`SPEED_FOR_CAPACITY`] times as slow as with the smallest number.
//! The memory that is left then holds recurrent states of kept sequences. Where memory is short, fewer kept sequences
//! is the first thing that gives way.

use std::ops::Range;

use super::advice::Case;
use super::capacity::{Wishes, capacity, largest, wishes};
use super::cost::{Costs, StageMemory, StageTime};
use super::cuts::{self, Join};
use super::error::{PlanError, Shortage};
use super::facts::WorkerFacts;
use super::keep::KeptRoom;
use super::kept_weights;
use super::{Capacity, PlanSettings};

/// Slowdown of the slowest stage that more KV cache is worth.
const SPEED_FOR_CAPACITY: f64 = 1.10;

/// The number of workers up to which all orders are tried, when the given one does not fit or leaves some idle.
const MAX_PERMUTED: usize = 6;

/// An order of workers, a capacity and cuts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placement {
    /// Worker indices in line order.
    pub order: Vec<usize>,
    /// Layers of each of them; empty: unused.
    pub ranges: Vec<Range<usize>>,
    pub capacity: Capacity,
    pub wished_blocks: u32,
    /// The cut that was asked for, if it was not chosen here.
    pub by_hand: Option<String>,
}

/// Chooses the order of the workers, the cuts and the room.
pub(super) fn place(costs: &Costs) -> Result<Placement, PlanError> {
    let given: Vec<usize> = (0..costs.workers.len()).collect();
    // The order is chosen as if nothing were kept: kept states are to cost no speed.
    let mut best = best_in_order(costs, &given, KeptRoom::NONE);
    let idle = |placement: &Placement| placement.ranges.iter().any(Range::is_empty);
    if given.len() <= MAX_PERMUTED && best.as_ref().is_none_or(|(_, placement)| idle(placement)) {
        for_each_order(&mut Vec::new(), &given, &mut |order| {
            if let Some(found) = best_in_order(costs, order, KeptRoom::NONE)
                && best.as_ref().is_none_or(|(slowest, _)| found.0 < *slowest)
            {
                best = Some(found);
            }
        });
    }
    let keep = costs.keep;
    let best = best.and_then(|(_, placement)| best_in_order(costs, &placement.order, keep));
    let best = best.ok_or_else(|| shortage(costs, &given))?;
    let (slowest, best) = best;
    Ok(rather_held(costs, slowest, best, |order| best_in_order(costs, order, keep)))
}

/// How many times as long a unit of work takes over all workers where the model's own blocks draft, each with the best cut for
/// it; 1 where nothing fits.
pub(super) fn drafting_slows(costs: &Costs) -> f64 {
    let capacity = capacity(costs.settings, wishes(costs.settings).least, 0);
    let slowest = |us: fn(&StageTime, &PlanSettings) -> f64| {
        let cost = |worker: usize, range: &Range<usize>| {
            let fits = costs.fits(worker, range, capacity);
            fits.then(|| us(&costs.time(worker, range, capacity), costs.settings))
        };
        cuts::cheapest(costs.workers.len(), costs.n_layers(), Join::Max, cost)
    };
    let both = slowest(StageTime::drafting_unit_us).zip(slowest(StageTime::unit_us));
    both.map_or(1.0, |((with, _), (without, _))| with / without)
}

/// Prefers the order of workers that loads least, given what they have in memory, if the result is about as fast and
/// as large as `best`. `slowest`: the time of `best`'s slowest stage. `place` finds the best placement in an order.
fn rather_held(
    costs: &Costs,
    slowest: f64,
    best: Placement,
    place: impl Fn(&[usize]) -> Option<(f64, Placement)>,
) -> Placement {
    let order = kept_weights::held_order(costs.workers);
    if order == best.order || costs.workers.iter().all(|worker| worker.holds.is_empty()) {
        return best;
    }
    let is_better = |(time, other): &(f64, Placement)| {
        *time <= slowest * kept_weights::SPEED_FOR_KEPT
            && other.capacity.n_blocks >= best.capacity.n_blocks
            && loads(costs, other) < loads(costs, &best)
    };
    place(&order).filter(is_better).map_or(best, |(_, other)| other)
}

fn loads(costs: &Costs, placement: &Placement) -> u64 {
    let stages = placement.order.iter().zip(&placement.ranges);
    stages.map(|(worker, range)| costs.loads(*worker, range)).fold(0, u64::saturating_add)
}

/// Calls `visit` with `done` followed by every order of `rest`, in lexicographic order.
fn for_each_order(done: &mut Vec<usize>, rest: &[usize], visit: &mut impl FnMut(&[usize])) {
    if rest.is_empty() {
        visit(done);
    }
    for &next in rest {
        let others: Vec<usize> = rest.iter().copied().filter(|&other| other != next).collect();
        done.push(next);
        for_each_order(done, &others, visit);
        done.pop();
    }
}

/// The best cuts with workers in this order: slowest stage and placement. What is kept makes no
/// difference to the slowest stage.
fn best_in_order(costs: &Costs, order: &[usize], keep: KeptRoom) -> Option<(f64, Placement)> {
    let cut = |n_blocks: u32, n_kept: u32| {
        let capacity = capacity(costs.settings, n_blocks, n_kept);
        let cost = |place: usize, range: &Range<usize>| {
            let worker = order[place];
            let fits = costs.fits(worker, range, capacity);
            fits.then(|| costs.unit_us(worker, range, capacity))
        };
        let squares = |place: usize, range: &Range<usize>| {
            costs.time(order[place], range, capacity).squares(costs.settings)
        };
        cuts::most_even(order.len(), costs.n_layers(), cost, squares)
    };
    let Wishes { least, full, all: wished } = wishes(costs.settings);
    cut(least, 0)?;
    let least = largest(least, full, |n| cut(n, 0).is_some());
    let fastest = cut(least, 0)?.0;
    let good = |n_blocks: u32, n_kept: u32, slowest: f64| {
        cut(n_blocks, n_kept).is_some_and(|(us, _)| us <= slowest)
    };
    // More pages or states only ever exclude cuts, so the largest good numbers can be bisected.
    let n_blocks = largest(least, wished.max(least), |n| good(n, 0, fastest * SPEED_FOR_CAPACITY));
    let slowest = cut(n_blocks, 0)?.0;
    let n_kept = if costs.has_states() {
        largest(0, keep.states, |n| good(n_blocks, n, slowest))
    } else {
        keep.states
    };
    let with_kept = n_blocks.saturating_add(if n_kept > 0 { keep.pages } else { 0 });
    let n_blocks = largest(n_blocks, with_kept, |n| good(n, n_kept, slowest));
    let (slowest, ranges) = cut(n_blocks, n_kept)?;
    let capacity = capacity(costs.settings, n_blocks, n_kept);
    let ranges = kept_weights::fewest_loads(costs, order, capacity, slowest).unwrap_or(ranges);
    let (order, by_hand) = (order.to_vec(), None);
    let placement = Placement { order, ranges, capacity, wished_blocks: wished, by_hand };
    Some((slowest, placement))
}

/// The cuts that come closest to fitting, and what would make them fit.
fn shortage(costs: &Costs, order: &[usize]) -> PlanError {
    let least = wishes(costs.settings).least;
    let capacity = capacity(costs.settings, least, 0);
    let needs = |range: &Range<usize>| costs.memory(range, capacity);
    let lacks = |place: usize, range: &Range<usize>| {
        let lacks = costs.lacks(order[place], range, capacity);
        Some(lacks.map_or(0, |(needs, has)| needs - has) as f64)
    };
    let closest = cuts::cheapest(order.len(), costs.n_layers(), Join::Sum, lacks);
    let ranges = closest.map(|(_, ranges)| ranges).unwrap_or_default();
    let used = || ranges.iter().enumerate().filter(|(_, range)| !range.is_empty());
    let short: Vec<(String, u64, u64)> = used()
        .filter_map(|(place, range)| {
            let (needs, has) = costs.lacks(order[place], range, capacity)?;
            Some((costs.workers[order[place]].name.clone(), needs, has))
        })
        .collect();
    let total = used().fold(StageMemory::default(), |sum, (_, range)| sum.plus(needs(range)));
    let (model, workers) = (costs.model, costs.workers);
    let case = Case { model, workers, settings: *costs.settings };
    PlanError::DoesNotFit(Shortage {
        model: costs.model.name.clone(),
        needed: total.total(),
        available: costs.workers.iter().map(WorkerFacts::all_memory).fold(0, u64::saturating_add),
        short,
        advice: case.advice(),
    })
}
