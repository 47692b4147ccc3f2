//! Plans the loans of the pool for machines that need not exist yet, with the same choice and the same planner.

use brigade_plan::{Plan, WorkerFacts};

use super::Demand;
use super::lend::{self, Offer};
use crate::building::place;

/// A line on machines that need not exist yet.
#[derive(Clone, Debug)]
pub struct PlannedLine {
    /// The line's workers, as indices of the given ones.
    pub workers: Vec<usize>,
    /// The line's stages; the plan knows its workers in the order of `workers`.
    pub plan: Plan,
}

/// How a model stands to the others of a fleet.
#[derive(Clone, Debug)]
pub enum Standing {
    /// The model has its workers while all before it have theirs.
    Beside(PlannedLine),
    /// The model gets its workers when these other models, by number, are unloaded.
    InTurns(PlannedLine, Vec<usize>),
    /// The model has no room, even without all others; the text says what is lacking.
    Never(String),
}

/// The workers that each model would be lent, where all models are asked for one after the other. Models with a set
/// flag are loaded with the server and are never unloaded; they come first.
pub fn planned(demands: &[(Demand, bool)], workers: &[WorkerFacts]) -> Vec<Standing> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|at| !demands[*at].1);
    let mut held: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut standings: Vec<(usize, Standing)> = Vec::new();
    for at in order {
        let demand = &demands[at].0;
        let without = |gone: &[usize]| {
            let stay = held.iter().filter(|(other, _)| !gone.contains(other));
            let taken: Vec<usize> = stay.flat_map(|(_, workers)| workers.clone()).collect();
            lent(demand, workers, &taken)
        };
        let may_go: Vec<usize> =
            held.iter().map(|(other, _)| *other).filter(|other| !demands[*other].1).collect();
        let go = lend::fewest(&may_go, |gone| without(gone).map(drop));
        let standing = match go.and_then(|go| Ok((without(&go)?, go))) {
            Err(why) => Standing::Never(why),
            Ok((line, go)) if go.is_empty() => {
                held.push((at, line.workers.clone()));
                Standing::Beside(line)
            }
            Ok((line, go)) => Standing::InTurns(line, go),
        };
        standings.push((at, standing));
    }
    standings.sort_by_key(|(at, _)| *at);
    standings.into_iter().map(|(_, standing)| standing).collect()
}

/// The workers for a line, among those that are not `taken`.
fn lent(demand: &Demand, workers: &[WorkerFacts], taken: &[usize]) -> Result<PlannedLine, String> {
    let offer = |(id, worker): (usize, &WorkerFacts)| Offer {
        id,
        memory: worker.memory,
        has_layers: false,
        doubted: false,
    };
    let offers = workers.iter().enumerate().map(offer);
    let offers: Vec<Offer> = offers.filter(|offer| !taken.contains(&offer.id)).collect();
    let plan = |ids: &[usize]| {
        let of: Vec<WorkerFacts> = ids.iter().map(|id| workers[*id].clone()).collect();
        place::plan_over_facts(&demand.model, &of, &demand.options)
            .map_err(|error| error.to_string())
    };
    let mut fits = |ids: &[usize]| plan(ids).map(drop);
    let chosen = lend::choose(&offers, &[], demand.at_least, &mut fits)?;
    Ok(PlannedLine { plan: plan(&chosen)?, workers: chosen })
}
