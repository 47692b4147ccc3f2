//! Workers that are stages of one node share its memory: the amount of it that each of them is planned with.
//!
//! A stage gets an equal part of the node, as if the others had theirs. If the model does not fit so, each gets twice as
//! much, and so on, up to all that the node has left, which the line's stages on that node divide. A model so leaves
//! as much of a node to others as it can, and takes all that is left where it must.

use super::error::PlanError;
use super::facts::WorkerFacts;

/// The factor by which parts grow from one try to the next.
const GROWTH: u64 = 2;

/// Plans with the smallest parts of nodes for which `plan` finds room. It is asked once where no worker shares memory.
///
/// # Errors
/// That of the last try.
pub(super) fn with_least_parts<T>(
    workers: &[WorkerFacts],
    mut plan: impl FnMut(&[WorkerFacts]) -> Result<T, PlanError>,
) -> Result<T, PlanError> {
    if workers.iter().all(|worker| worker.node.is_none()) {
        return plan(workers);
    }
    let mut parts = 1;
    let mut tried = with_parts(workers, parts);
    loop {
        let planned = plan(&tried);
        parts *= GROWTH;
        let next = with_parts(workers, parts);
        let lacks_memory = matches!(
            planned,
            Err(PlanError::DoesNotFit(_) | PlanError::Cut { .. } | PlanError::DiskLacks(_))
        );
        if !lacks_memory || next == tried {
            return planned;
        }
        tried = next;
    }
}

/// The workers with so many parts of their nodes each, or what is left.
fn with_parts(workers: &[WorkerFacts], parts: u64) -> Vec<WorkerFacts> {
    let of_node = |worker: &WorkerFacts| {
        let mut own = worker.clone();
        let Some(node) = worker.node else { return own };
        let is_there = |other: &&WorkerFacts| other.node.is_some_and(|o| o.node == node.node);
        let stages = workers.iter().filter(is_there).count().max(1) as u64;
        let share = |part: u64, left: u64| part.saturating_mul(parts).min(left / stages);
        own.memory = share(worker.memory, node.left);
        if let Some(host) = &mut own.host {
            host.memory = host.memory.map(|part| share(part, node.host_left));
        }
        own
    };
    workers.iter().map(of_node).collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::{HostExperts, HostFacts, NodeFacts};
    use super::super::{Advice, ByClass, Shortage};
    use super::*;

    /// A stage with a part of 100 bytes of a node that has `left`.
    fn stage(node: u64, left: u64) -> WorkerFacts {
        WorkerFacts {
            name: format!("node {node}"),
            memory: 100,
            gbps: 1.0,
            gops: ByClass::all(1.0),
            link: None,
            host: None,
            holds: 0..0,
            node: Some(NodeFacts { node, limit: left, left, host_left: 0 }),
            disk: None,
        }
    }

    fn needing(bytes: u64) -> impl FnMut(&[WorkerFacts]) -> Result<Vec<u64>, PlanError> {
        move |workers| {
            let memory: Vec<u64> = workers.iter().map(|worker| worker.memory).collect();
            if memory.iter().sum::<u64>() >= bytes {
                return Ok(memory);
            }
            let (model, advice) = (String::new(), Advice::default());
            let (needed, available, short) = (bytes, memory.iter().sum(), Vec::new());
            Err(PlanError::DoesNotFit(Shortage { model, needed, available, short, advice }))
        }
    }

    #[test]
    fn a_model_takes_as_few_parts_as_it_needs() {
        let one = [stage(1, 300)];
        let given = |bytes| with_least_parts(&one, needing(bytes)).ok();
        assert_eq!(given(90), Some(vec![100]));
        assert_eq!(given(101), Some(vec![200]));
        assert_eq!(given(201), Some(vec![300]));
        assert_eq!(given(301), None);
        assert_eq!(with_least_parts(&[stage(1, 40)], needing(10)).unwrap(), [40], "less is left");
    }

    #[test]
    fn stages_of_one_node_divide_what_it_has_left() {
        let both = [stage(1, 300), stage(2, 100), stage(1, 300)];
        assert_eq!(with_least_parts(&both, needing(300)).unwrap(), [100, 100, 100]);
        assert_eq!(with_least_parts(&both, needing(400)).unwrap(), [150, 100, 150]);
        assert!(with_least_parts(&both, needing(401)).is_err());
    }

    #[test]
    fn a_worker_of_its_own_is_planned_once() {
        let alone = [WorkerFacts { node: None, ..stage(1, 0) }];
        let mut asked = 0;
        let mut plan = needing(200);
        let planned = with_least_parts(&alone, |workers| {
            asked += 1;
            plan(workers)
        });
        assert!(planned.is_err() && asked == 1);
    }

    #[test]
    fn the_hosts_memory_beside_a_gpu_is_shared_alike() {
        let experts = HostExperts::Auto;
        let (sent_gbps, sent_beside) = (0.0, false);
        let gops = ByClass::all(1.0);
        let host = HostFacts { memory: Some(10), gbps: 1.0, gops, sent_gbps, sent_beside, experts };
        let node = Some(NodeFacts { node: 1, limit: 300, left: 300, host_left: 15 });
        let one = WorkerFacts { host: Some(host), node, ..stage(1, 300) };
        let of_host = |parts| with_parts(std::slice::from_ref(&one), parts)[0].host.unwrap().memory;
        assert_eq!([1, 2, 4].map(of_host), [Some(10), Some(15), Some(15)]);
    }
}
