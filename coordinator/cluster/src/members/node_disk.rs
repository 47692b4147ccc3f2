//! What workers say of the caches in which they keep weights. Workers that share a folder share its limit.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use brigade_plan::{DiskFacts, WorkerFacts};

use crate::members::conn::Conn;
use crate::members::departed::host_of;

/// The last report of a worker about its cache.
#[derive(Clone, Copy, Debug)]
pub struct DiskReport {
    /// The folder's number. It is of the machine too, so that no worker elsewhere can speak for a folder.
    pub folder: u64,
    /// Bytes that the folder may hold.
    pub limit: u64,
    /// Bytes that loaded and loading stages of all workers need there.
    pub pinned: u64,
    /// The part that this worker alone needs.
    pub own: u64,
    /// Whether the worker may have the model's file, and then needs nothing there.
    pub reads_files: bool,
    /// Age of the report.
    pub ago: Duration,
}

impl DiskReport {
    /// What a worker says; `None`: it says nothing that can be planned with.
    pub fn of(conn: &Conn, now: Instant) -> Option<Self> {
        let beat = conn.pulse().last();
        let told = beat.as_ref().and_then(|beat| Some((beat.reply().disk?, beat.ago(now))));
        let (part, ago) = told.or(conn.capabilities().disk.map(|part| (part, Duration::MAX)))?;
        if part.folder == 0 {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (part.folder, host_of(conn.address())).hash(&mut hasher);
        Some(Self {
            folder: hasher.finish(),
            limit: part.limit,
            pinned: part.pinned,
            own: part.pinned_own,
            reads_files: part.reads_files,
            ago,
        })
    }

    /// The planner's facts, where the folder leaves a line so much.
    pub fn facts(&self, left: u64) -> DiskFacts {
        DiskFacts { folder: self.folder, limit: self.limit, left }
    }
}

/// The caches of these workers that surely need them, with what they leave to a line over all of them.
pub fn disks_of(conns: &[&Conn]) -> Vec<Option<DiskFacts>> {
    let now = Instant::now();
    let reports: Vec<Option<DiskReport>> =
        conns.iter().map(|conn| DiskReport::of(conn, now)).collect();
    let left = |report: &DiskReport| {
        let of_folder = || reports.iter().flatten().filter(|other| other.folder == report.folder);
        let own: u64 = of_folder().map(|other| other.own).fold(0, u64::saturating_add);
        let newest = of_folder().min_by_key(|other| other.ago).unwrap_or(report);
        report.facts(report.limit.saturating_sub(newest.pinned.saturating_sub(own)))
    };
    let needs = |report: &&DiskReport| !report.reads_files;
    reports.iter().map(|report| report.as_ref().filter(needs).map(left)).collect()
}

/// Tells the planner of workers' caches.
pub fn tell(facts: &mut [WorkerFacts], disks: &[Option<DiskFacts>]) {
    facts.iter_mut().zip(disks).for_each(|(facts, disk)| facts.disk = *disk);
}
