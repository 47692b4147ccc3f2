//! Keeps a line within the limits of its workers' caches. Workers that share a folder share its limit.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cost::Costs;
use super::describe::describe;
use super::error::{DiskShortage, PlanError, SmallCache};
use super::facts::{DiskFacts, ModelFacts, WorkerFacts};
use super::place::Placement;
use super::{Plan, PlanSettings};

/// Plans with caches that are large enough. A stage may first have all that is left of its folder; where stages of one folder
/// need too much together so, each may have an equal part.
///
/// # Errors
/// [`PlanError::DiskLacks`] where only caches are too small; else those of `place`.
pub(super) fn within(
    model: &ModelFacts,
    workers: &[WorkerFacts],
    settings: &PlanSettings,
    place: impl Fn(&mut Costs) -> Result<Placement, PlanError>,
) -> Result<Plan, PlanError> {
    let planned = |workers: &[WorkerFacts]| {
        let mut costs = Costs::new(model, workers, settings);
        let placement = place(&mut costs)?;
        Ok(describe(&costs, placement))
    };
    if workers.iter().all(|worker| worker.disk.is_none()) {
        return planned(workers);
    }
    let whole = planned(workers);
    if let Ok(plan) = &whole
        && too_small(model, workers, plan).is_empty()
    {
        return whole;
    }
    let parts = planned(&with_parts(workers));
    if let Ok(plan) = &parts
        && too_small(model, workers, plan).is_empty()
    {
        return parts;
    }
    // Without limits it shows what is lacking: memory, or room in caches.
    let unlimited: Vec<WorkerFacts> =
        workers.iter().map(|worker| WorkerFacts { disk: None, ..worker.clone() }).collect();
    let plan = planned(&unlimited)?;
    let caches = too_small(model, workers, &plan);
    let (whole, has_drafts) = (0..model.layers.len(), model.drafts.weight_bytes > 0);
    let (model, needed) = (model.name.clone(), model.stored.bytes(&whole, has_drafts));
    Err(PlanError::DiskLacks(DiskShortage { model, needed, caches }))
}

/// The caches that a plan overfills, each under the name of its first worker.
fn too_small(model: &ModelFacts, workers: &[WorkerFacts], plan: &Plan) -> Vec<SmallCache> {
    let has_drafts = model.drafts.weight_bytes > 0;
    let mut folders: BTreeMap<u64, (SmallCache, Vec<Range<usize>>)> = BTreeMap::new();
    for stage in &plan.stages {
        let Some(DiskFacts { folder, limit, left }) = workers[stage.worker].disk else { continue };
        let cache = SmallCache { worker: stage.name.clone(), needs: 0, left, limit };
        folders.entry(folder).or_insert((cache, Vec::new())).1.push(stage.layers.clone());
    }
    let needs = |(cache, stages): (SmallCache, Vec<Range<usize>>)| SmallCache {
        needs: model.stored.bytes_together(&stages, has_drafts),
        ..cache
    };
    folders.into_values().map(needs).filter(|cache| cache.needs > cache.left).collect()
}

/// The workers with an equal part of what is left of their folders each.
fn with_parts(workers: &[WorkerFacts]) -> Vec<WorkerFacts> {
    let of_folder = |worker: &WorkerFacts| {
        let disk = worker.disk.map(|disk| {
            let is_there =
                |other: &&WorkerFacts| other.disk.is_some_and(|o| o.folder == disk.folder);
            let sharers = workers.iter().filter(is_there).count().max(1) as u64;
            DiskFacts { left: disk.left / sharers, ..disk }
        });
        WorkerFacts { disk, ..worker.clone() }
    };
    workers.iter().map(of_folder).collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::LayerFacts;
    use super::super::{ByClass, ProductClass, StoredFacts, plan};
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Four layers of 25 MiB each.
    fn model() -> ModelFacts {
        let layer = LayerFacts {
            weight_bytes: 25 * MIB,
            elements: ByClass::only(ProductClass::Nibble, 25 * MIB),
            kv_bytes: 1024,
            expert_share: 1.0,
            ..LayerFacts::default()
        };
        ModelFacts {
            name: "m".to_owned(),
            layers: vec![layer; 4],
            embedding_bytes: 0,
            head_bytes: 0,
            head_elements: ByClass::all(0),
            drafts: Default::default(),
            cut_bytes: vec![0, 4096, 4096, 4096],
            scratch_bytes_per_row: 1024,
            logits_bytes: 1024,
            loading: Default::default(),
            n_ctx_train: 4096,
            stored: StoredFacts::of_layers(&[25 * MIB; 4]),
        }
    }

    /// A worker with so much memory and a cache in `folder` of 100 MiB that has so much left; `None`: one without limit.
    fn worker(name: &str, mib: u64, cache: Option<(u64, u64)>) -> WorkerFacts {
        let disk =
            cache.map(|(folder, left)| DiskFacts { folder, limit: 100 * MIB, left: left * MIB });
        WorkerFacts {
            name: name.to_owned(),
            memory: mib * MIB,
            gbps: 10.0,
            gops: ByClass::all(100.0),
            link: None,
            host: None,
            holds: 0..0,
            node: None,
            disk,
        }
    }

    fn layers(workers: &[WorkerFacts]) -> Result<Vec<usize>, PlanError> {
        let plan = plan(&model(), workers, &PlanSettings { max_seqs: 1, ..Default::default() })?;
        Ok(plan.stages.iter().map(|stage| stage.layers.len()).collect())
    }

    #[test]
    fn a_stage_is_as_long_as_its_cache_has_room() {
        let free = worker("free", 1000, None);
        assert_eq!(layers(&[worker("a", 1000, Some((1, 100)))]), Ok(vec![4]));
        assert_eq!(layers(&[worker("a", 1000, Some((1, 30))), free.clone()]), Ok(vec![1, 3]));
        assert_eq!(layers(&[worker("a", 1000, Some((1, 20))), free]), Ok(vec![4]), "without it");
    }

    #[test]
    fn workers_of_one_folder_share_its_room() {
        let [one, two] = [1, 2].map(|folder| worker("w", 1000, Some((folder, 75))));
        assert_eq!(layers(&[one.clone(), two]), Ok(vec![2, 2]));
        let why = layers(&[one.clone(), one]).unwrap_err();
        assert!(matches!(&why, PlanError::DiskLacks(lacks) if lacks.caches.len() == 1), "{why}");
    }

    #[test]
    fn what_is_lacking_is_named_with_what_would_help() {
        let why = layers(&[worker("attic", 1000, Some((1, 40)))]).unwrap_err().to_string();
        for word in ["m (100.00 MiB)", "cache of attic", "needs 100.00 MiB", "limit is 100.00 MiB"]
        {
            assert!(why.contains(word), "{word}: {why}");
        }
        assert!(why.contains("leave 40.00 MiB; give a worker --cache-limit 160.00 MiB"), "{why}");
        let memory = layers(&[worker("attic", 120, Some((1, 40)))]).unwrap_err();
        assert!(matches!(memory, PlanError::DoesNotFit(_)), "both are lacking: {memory}");
    }
}
