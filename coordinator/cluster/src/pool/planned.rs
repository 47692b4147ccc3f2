//! Plans the loans of the pool for machines that need not exist yet, with the same choice and the same planner.

use brigade_plan::{DiskFacts, NodeFacts, PROCESS_BYTES, Plan, PlanError, StagePlan, WorkerFacts};
use brigade_worker::machine::ledger::Amount;

use super::Demand;
use super::lend::{self, Lack, Offer, parts};
use super::nodes::promise;
use crate::building::place::{self, PlaceError};

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
    let mut held: Vec<(usize, PlannedLine)> = Vec::new();
    let mut standings: Vec<(usize, Standing)> = Vec::new();
    for at in order {
        let demand = &demands[at].0;
        let without = |gone: &[usize]| {
            let stay = held.iter().filter(|(other, _)| !gone.contains(other));
            let lines: Vec<&PlannedLine> = stay.map(|(_, line)| line).collect();
            lent(demand, workers, &lines)
        };
        let may_go: Vec<usize> =
            held.iter().map(|(other, _)| *other).filter(|other| !demands[*other].1).collect();
        let go = lend::fewest(&may_go, |gone| without(gone).map(drop));
        let standing = match go.and_then(|go| Ok((without(&go)?, go))) {
            Err(lack) => Standing::Never(lack.why),
            Ok((line, go)) if go.is_empty() => {
                held.push((at, line.clone()));
                Standing::Beside(line)
            }
            Ok((line, go)) => Standing::InTurns(line, go),
        };
        standings.push((at, standing));
    }
    standings.sort_by_key(|(at, _)| *at);
    standings.into_iter().map(|(_, standing)| standing).collect()
}

/// The workers for a line, among those that `lines` have not, with the memory that these leave of nodes.
fn lent(
    demand: &Demand,
    workers: &[WorkerFacts],
    lines: &[&PlannedLine],
) -> Result<PlannedLine, Lack> {
    let plan = |ids: &[usize]| {
        let left = |id: &usize| {
            let node = workers[*id].node.map(|node| left(node, workers, lines, ids));
            let disk = workers[*id].disk.map(|disk| stored_left(disk, workers, lines));
            WorkerFacts { node, disk, ..workers[*id].clone() }
        };
        let of: Vec<WorkerFacts> = ids.iter().map(left).collect();
        place::plan_over_facts(&demand.model, &of, &demand.options).map_err(|error| Lack {
            why: error.to_string(),
            is_disk: matches!(error, PlaceError::Plan(PlanError::DiskLacks(_))),
        })
    };
    let offer = |(id, worker): (usize, &WorkerFacts)| {
        let node = worker.node.map(|node| left(node, workers, lines, &[id]));
        let memory = node.map_or(worker.memory, |node| node.left);
        let node = node.map(|node| node.node);
        let disk = worker.disk.map(|disk| stored_left(disk, workers, lines).left);
        let parts = parts(demand.model.stored().all(), disk);
        Offer { id, memory, has_layers: false, doubted: false, node, parts }
    };
    let is_free = |id: usize| lines.iter().all(|line| !line.workers.contains(&id));
    let offers = workers.iter().enumerate().map(offer);
    let offers: Vec<Offer> = offers.filter(|offer| is_free(offer.id)).collect();
    let mut fits = |ids: &[usize]| plan(ids).map(drop);
    let chosen = lend::choose(&offers, &[], demand.at_least, &mut fits)?;
    Ok(PlannedLine { plan: plan(&chosen)?, workers: chosen })
}

/// What a node leaves to a line over the workers `ids` beside other lines.
fn left(
    node: NodeFacts,
    workers: &[WorkerFacts],
    lines: &[&PlannedLine],
    ids: &[usize],
) -> NodeFacts {
    let is_of_node = |id: usize| workers[id].node.is_some_and(|other| other.node == node.node);
    let stages = lines.iter().flat_map(|line| {
        let of = |stage: &StagePlan| (line.workers[stage.worker], promise(stage));
        line.plan.stages.iter().map(of)
    });
    let stages: Vec<_> = stages.filter(|(id, _)| is_of_node(*id)).collect();
    let is_idle = |id: &usize| !ids.contains(id) && stages.iter().all(|(other, _)| other != id);
    let idle = (0..workers.len()).filter(|id| is_of_node(*id) && is_idle(id)).count() as u64;
    let idle = Amount::of_stage(PROCESS_BYTES.saturating_mul(idle));
    let taken = stages.iter().map(|(_, bytes)| *bytes).fold(idle, Amount::plus);
    let left = Amount { stage: node.left, host: node.host_left }.minus(taken);
    NodeFacts { left: left.stage, host_left: left.host, ..node }
}

/// What a cache leaves to a line beside other lines.
fn stored_left(disk: DiskFacts, workers: &[WorkerFacts], lines: &[&PlannedLine]) -> DiskFacts {
    let is_there = |id: usize| workers[id].disk.is_some_and(|other| other.folder == disk.folder);
    let stages = lines.iter().flat_map(|line| {
        line.plan.stages.iter().filter(|stage| is_there(line.workers[stage.worker]))
    });
    let taken = stages.map(|stage| stage.stored).fold(0, u64::saturating_add);
    DiskFacts { left: disk.left.saturating_sub(taken), ..disk }
}

/// The workers that belong to no line, with the memory that each may have at most.
pub fn free(workers: &[WorkerFacts], lines: &[&PlannedLine]) -> Vec<(usize, u64)> {
    let is_free = |id: &usize| lines.iter().all(|line| !line.workers.contains(id));
    let memory = |id: usize| {
        let node = workers[id].node.map(|node| left(node, workers, lines, &[id]).left);
        (id, node.unwrap_or(workers[id].memory))
    };
    (0..workers.len()).filter(is_free).map(memory).collect()
}
