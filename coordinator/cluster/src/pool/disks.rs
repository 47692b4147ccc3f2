//! What the folder of a cache leaves to a line, while others who share it are lent to other lines. Pure.
//!
//! As with the memory of nodes, reports are not enough: a line counts with what it will need, and a worker that came back
//! counts with nothing until it has reported that. What nobody needs makes room, so it counts as free.

use std::collections::BTreeMap;

use brigade_plan::DiskFacts;

use super::lend::WorkerId;
use crate::members::node_disk::DiskReport;

/// What a worker does with its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uses {
    /// It is to be of the line in question.
    Planned,
    /// It is lent to another line, which needs so many bytes of its model there.
    Serves {
        /// The bytes.
        stored: u64,
        /// Names the model: what two lines of one model need is the same.
        model: blake3::Hash,
    },
    /// It belongs to no line.
    Nothing,
    /// It comes back, or did so after its last report: it needs nothing any more.
    ComesBack,
}

/// A worker that has a cache.
#[derive(Clone, Copy, Debug)]
pub struct Sharer {
    /// The number of the worker.
    pub id: WorkerId,
    /// Its report.
    pub report: DiskReport,
    /// What it does while it is not planned.
    pub uses: Uses,
    /// Whether it needs the cache for the model in question, as far as that is known.
    pub needs: bool,
}

/// The caches that the pool knows, for a line of `model`.
#[derive(Debug)]
pub struct Disks {
    sharers: Vec<Sharer>,
    model: blake3::Hash,
    /// Whether they are taken as empty: what never fits is asked so.
    empty: bool,
}

impl Disks {
    /// The caches of these workers.
    pub fn new(sharers: Vec<Sharer>, model: blake3::Hash, empty: bool) -> Self {
        Self { sharers, model, empty }
    }

    /// The cache that a worker needs, with what it leaves to a line over the workers `line`; `None`: none with a limit.
    pub fn facts(&self, worker: WorkerId, line: &[WorkerId]) -> Option<DiskFacts> {
        let own = self.sharers.iter().find(|sharer| sharer.id == worker && sharer.needs)?;
        let left = if self.empty { own.report.limit } else { self.left(&own.report, line) };
        Some(own.report.facts(left))
    }

    fn left(&self, of: &DiskReport, line: &[WorkerId]) -> u64 {
        let seen = || {
            let of_folder = self.sharers.iter().filter(|other| other.report.folder == of.folder);
            of_folder.map(|sharer| {
                let uses = if line.contains(&sharer.id) { Uses::Planned } else { sharer.uses };
                (sharer.report, uses)
            })
        };
        let mut models: BTreeMap<[u8; 32], u64> = BTreeMap::new();
        let (mut known, mut gone) = (0_u64, 0_u64);
        for (report, uses) in seen() {
            match uses {
                Uses::Planned | Uses::ComesBack => gone = gone.saturating_add(report.own),
                Uses::Nothing => known = known.saturating_add(report.own),
                Uses::Serves { stored, model } => {
                    let bytes = models.entry(*model.as_bytes()).or_default();
                    *bytes = bytes.saturating_add(stored.max(report.own));
                }
            }
        }
        // What another line of the same model has there need not come again.
        let same = models.get(self.model.as_bytes()).copied().unwrap_or(0);
        let known = models.into_values().fold(known, u64::saturating_add);
        // The same as the newest report has it: of workers that are not known here too.
        let newest = seen().map(|(report, _)| report).min_by_key(|report| report.ago);
        let reported = newest.map_or(0, |report| report.pinned.saturating_sub(gone));
        of.limit.saturating_sub(known.max(reported)).saturating_add(same).min(of.limit)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A worker that needs `own` of `pinned` bytes of a folder of 100.
    fn sharer(id: WorkerId, own: u64, pinned: u64, uses: Uses) -> Sharer {
        let report = DiskReport {
            folder: 1,
            limit: 100,
            pinned,
            own,
            reads_files: false,
            ago: Duration::from_millis(100),
        };
        Sharer { id, report, uses, needs: true }
    }

    fn serves(model: &[u8], stored: u64) -> Uses {
        Uses::Serves { stored, model: blake3::hash(model) }
    }

    /// What is left to a line of the model "b" over worker 1.
    fn left(sharers: &[Sharer]) -> Option<u64> {
        let disks = Disks::new(sharers.to_vec(), blake3::hash(b"b"), false);
        Some(disks.facts(1, &[1])?.left)
    }

    #[test]
    fn what_others_need_is_not_left() {
        let own = sharer(1, 0, 0, Uses::Nothing);
        assert_eq!(left(&[own]), Some(100));
        assert_eq!(left(&[own, sharer(2, 0, 0, serves(b"a", 70))]), Some(30), "it is to come");
        let there = [sharer(1, 0, 70, Uses::Nothing), sharer(2, 70, 70, serves(b"a", 70))];
        assert_eq!(left(&there), Some(30), "it has come");
        let strange = sharer(1, 0, 40, Uses::Nothing);
        assert_eq!(left(&[strange]), Some(60), "a worker that has not joined here");
    }

    #[test]
    fn what_goes_is_left_though_reports_are_old() {
        let own = sharer(1, 0, 70, Uses::Nothing);
        assert_eq!(left(&[own, sharer(2, 70, 70, Uses::ComesBack)]), Some(100));
        assert_eq!(left(&[sharer(1, 70, 70, Uses::Nothing)]), Some(100), "its own goes first");
    }

    #[test]
    fn two_lines_of_one_model_need_its_weights_once() {
        let own = sharer(1, 0, 70, Uses::Nothing);
        assert_eq!(left(&[own, sharer(2, 70, 70, serves(b"b", 70))]), Some(100));
        assert_eq!(left(&[own, sharer(2, 70, 70, serves(b"a", 70))]), Some(30));
    }

    #[test]
    fn other_folders_and_workers_without_need_do_not_count() {
        let mut far = sharer(2, 0, 0, serves(b"a", 70));
        far.report.folder = 2;
        let own = sharer(1, 0, 0, Uses::Nothing);
        assert_eq!(left(&[own, far]), Some(100));
        assert_eq!(left(&[Sharer { needs: false, ..own }]), None, "it reads the model's file");
        let full = [own, sharer(2, 0, 0, serves(b"a", 70))];
        let empty = Disks::new(full.to_vec(), blake3::hash(b"b"), true);
        assert_eq!(empty.facts(1, &[1]).map(|disk| disk.left), Some(100));
    }
}
