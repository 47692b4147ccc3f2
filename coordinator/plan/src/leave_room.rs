//! A line whose context is not said leaves room on its nodes for the other models of the fleet.
//!
//! A node of several stages has one memory. A context that is as long as memory allows would take all that the model's parts
//! have, and no other model would then fit beside it. So the line is planned as if the node had only what is left beside the
//! least that other models need: as many of them as the node has other stages, and the largest ones for which the model still
//! fits. Where it fits beside none of them, it is planned as if it were alone.

use super::error::PlanError;
use super::facts::{ModelFacts, NodeFacts, WorkerFacts};
use super::manual_cuts::HandCut;
use super::units::format_bytes;
use super::{Plan, PlanSettings, least_bytes, plan_line};

/// [`plan_line`], for a context that is not said, in a fleet whose other models need at least so many bytes each.
///
/// # Errors
/// As [`plan_line`].
pub fn plan_leaving_room(
    model: &ModelFacts,
    workers: &[WorkerFacts],
    settings: &PlanSettings,
    cut: Option<&HandCut>,
    others: &[u64],
) -> Result<Plan, PlanError> {
    let least = least_bytes(model, settings, 1);
    for beside in rooms(workers, others) {
        let limited = limited(workers, beside);
        if available(&limited) < least {
            continue;
        }
        if let Ok(mut plan) = plan_line(model, &limited, settings, cut) {
            let left = format_bytes(beside);
            plan.notes.push(format!(
                "nothing is said of its context, so it leaves {left} of each node of several stages to other models: --ctx N for another one"
            ));
            return Ok(plan);
        }
    }
    plan_line(model, workers, settings, cut)
}

/// Bytes to leave on each node, in the order in which they are tried; none where no worker shares memory.
fn rooms(workers: &[WorkerFacts], others: &[u64]) -> Vec<u64> {
    let stages = |worker: &WorkerFacts| Some(worker.node?.limit / worker.memory.max(1));
    let beside =
        workers.iter().filter_map(stages).max().map_or(0, |stages| stages.saturating_sub(1));
    let beside = usize::try_from(beside).unwrap_or(usize::MAX).min(others.len());
    if beside == 0 {
        return Vec::new();
    }
    let mut others = others.to_vec();
    others.sort_unstable();
    let sum = |end: usize| others[end.saturating_sub(beside)..end].iter().fold(0, add);
    (1..=others.len()).rev().map(sum).collect()
}

fn add(sum: u64, bytes: &u64) -> u64 {
    sum.saturating_add(*bytes)
}

/// The workers, whose nodes have only what is left beside so many bytes.
fn limited(workers: &[WorkerFacts], beside: u64) -> Vec<WorkerFacts> {
    let limited = |worker: &WorkerFacts| {
        let node = worker.node.map(|node| {
            let left = node.left.min(node.limit.saturating_sub(beside));
            NodeFacts { left, ..node }
        });
        WorkerFacts { node, ..worker.clone() }
    };
    workers.iter().map(limited).collect()
}

/// The most memory that the workers have together.
fn available(workers: &[WorkerFacts]) -> u64 {
    let of = |(at, worker): (usize, &WorkerFacts)| {
        let host = worker.host.and_then(|host| host.memory).unwrap_or(0);
        let Some(node) = worker.node else { return worker.memory.saturating_add(host) };
        let is_same = |other: &WorkerFacts| other.node.is_some_and(|other| other.node == node.node);
        let is_first = !workers[..at].iter().any(is_same);
        if is_first { node.left.saturating_add(node.host_left) } else { 0 }
    };
    workers.iter().enumerate().map(of).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::super::facts::{DraftFacts, LayerFacts};
    use super::super::{ByClass, ProductClass};
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A model of four layers that takes 435 MiB with the least context, and 4 MiB for each further page.
    fn model() -> ModelFacts {
        let layer = LayerFacts {
            weight_bytes: 20 * MIB,
            elements: ByClass::only(ProductClass::Nibble, 20 * MIB),
            kv_bytes: 16 << 10,
            expert_share: 1.0,
            ..LayerFacts::default()
        };
        ModelFacts {
            name: "m".to_owned(),
            layers: vec![layer; 4],
            embedding_bytes: MIB,
            head_bytes: MIB,
            head_elements: ByClass::only(ProductClass::Nibble, MIB),
            drafts: DraftFacts::default(),
            cut_bytes: vec![0, 4096, 4096, 4096],
            scratch_bytes_per_row: 1024,
            logits_bytes: 1024,
            loading: Default::default(),
            n_ctx_train: 1 << 20,
            stored: Default::default(),
        }
    }

    fn settings() -> PlanSettings {
        PlanSettings { ctx: 1 << 20, max_seqs: 1, ..PlanSettings::default() }
    }

    /// A stage of a node of `stages`, which may take `limit` MiB and has `left` of them.
    fn stage(stages: u64, limit: u64, left: u64) -> WorkerFacts {
        let limit = limit * MIB;
        WorkerFacts {
            name: "stage".to_owned(),
            memory: limit / stages,
            gbps: 10.0,
            gops: ByClass::all(100.0),
            link: None,
            host: None,
            holds: 0..0,
            node: Some(NodeFacts { node: 1, limit, left: left * MIB, host_left: 0 }),
            disk: None,
        }
    }

    fn taken(worker: &WorkerFacts, others: &[u64]) -> u64 {
        let others: Vec<u64> = others.iter().map(|mib| mib * MIB).collect();
        let workers = std::slice::from_ref(worker);
        let plan = plan_leaving_room(&model(), workers, &settings(), None, &others).unwrap();
        plan.stages[0].memory.total().div_ceil(MIB)
    }

    #[test]
    fn a_context_leaves_what_another_model_needs() {
        let node = stage(2, 2000, 2000);
        assert!((990..=1000).contains(&taken(&node, &[])), "an equal part: {}", taken(&node, &[]));
        assert!((990..=1000).contains(&taken(&node, &[600])), "the other part is enough");
        assert!((690..=700).contains(&taken(&node, &[1300])), "{}", taken(&node, &[1300]));
        // The model itself needs more than its part.
        let small = stage(2, 600, 600);
        assert!((590..=600).contains(&taken(&small, &[])), "{}", taken(&small, &[]));
        assert!((540..=550).contains(&taken(&small, &[50])), "{}", taken(&small, &[50]));
    }

    #[test]
    fn the_largest_models_count_beside_which_it_fits() {
        let node = stage(2, 2000, 2000);
        assert!((690..=700).contains(&taken(&node, &[1300, 5000, 200])), "no model has 5000");
        assert_eq!(
            taken(&node, &[5000]),
            taken(&node, &[]),
            "it is loaded although none fits beside it"
        );
        let three = stage(3, 2100, 2100);
        assert!((590..=600).contains(&taken(&three, &[800, 700, 100])), "two others at once");
        assert!((590..=600).contains(&taken(&three, &[1500, 1550])), "the smaller one alone");
    }

    #[test]
    fn what_others_have_already_does_not_count_twice() {
        assert!((690..=700).contains(&taken(&stage(2, 2000, 700), &[1300])));
        assert!((490..=500).contains(&taken(&stage(2, 2000, 500), &[1300])), "it has more");
    }

    #[test]
    fn a_worker_of_its_own_takes_all() {
        let alone = WorkerFacts { node: None, ..stage(1, 2000, 2000) };
        assert_eq!(taken(&alone, &[1300]), taken(&alone, &[]));
    }
}
