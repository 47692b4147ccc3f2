//! The memory of nodes, as their stages report it. Workers that are stages of one node share it. Beside it, what workers say of
//! their disks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use brigade_line::admin::{DiskUse, NodeMemory};
use brigade_plan::{NodeFacts, WorkerFacts};
use brigade_proto::control::{DiskPart, NodePart};
use brigade_worker::machine::ledger::Amount;

use crate::members::conn::Conn;
use crate::members::departed::host_of;

/// The last report of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The node's number. It is of the machine too, so that no worker elsewhere can speak for a node.
    pub node: u64,
    /// Stages of the node.
    pub stages: u64,
    /// Bytes that all of them may take.
    pub limit: Amount,
    /// Bytes that all of them have.
    pub granted: Amount,
    /// Bytes that the worker has of these.
    pub own: Amount,
    /// Age of the report.
    pub ago: Duration,
}

impl Report {
    /// What a worker says of its node; `None`: it has memory of its own.
    pub fn of(conn: &Conn, now: Instant) -> Option<Self> {
        // Its process is one of a node or never is.
        let greeted = conn.capabilities().node.as_ref()?;
        let beat = conn.pulse().last();
        let told = beat.as_ref().and_then(|beat| Some((beat.reply().node?, beat.ago(now))));
        let (part, ago) = told.unwrap_or((*greeted, Duration::MAX));
        let mut hasher = DefaultHasher::new();
        (greeted.node, host_of(conn.address())).hash(&mut hasher);
        let NodePart { stages, memory_limit, host_limit, .. } = *greeted;
        Some(Self {
            node: hasher.finish(),
            stages: u64::from(stages),
            limit: Amount { stage: memory_limit, host: host_limit },
            granted: Amount { stage: part.memory_granted, host: part.host_granted },
            own: Amount { stage: part.memory_own, host: part.host_own },
            ago,
        })
    }

    /// The planner's facts, where the node leaves a line so much.
    pub fn facts(&self, left: Amount) -> NodeFacts {
        let limit = self.limit.stage;
        NodeFacts { node: self.node, limit, left: left.stage, host_left: left.host }
    }
}

/// The nodes of these workers, with what they leave to a line over all of them.
pub fn nodes_of(conns: &[&Conn]) -> Vec<Option<NodeFacts>> {
    let now = Instant::now();
    let reports: Vec<Option<Report>> = conns.iter().map(|conn| Report::of(conn, now)).collect();
    let left = |report: &Report| {
        let of_node = || reports.iter().flatten().filter(|other| other.node == report.node);
        let own = of_node().map(|other| other.own).fold(Amount::default(), Amount::plus);
        let newest = of_node().min_by_key(|other| other.ago).unwrap_or(report);
        report.facts(report.limit.minus(newest.granted.minus(own)))
    };
    reports.iter().map(|report| report.as_ref().map(left)).collect()
}

/// The memory of a worker's node, for people.
pub fn share_of(conn: &Conn) -> Option<NodeMemory> {
    let Report { limit, granted, .. } = Report::of(conn, Instant::now())?;
    Some(NodeMemory { limit: limit.stage, granted: granted.stage })
}

/// A worker's disk, for people; `None`: it does not say.
pub fn disk_of(conn: &Conn) -> Option<DiskUse> {
    let beat = conn.pulse().last();
    let told = beat.as_ref().and_then(|beat| beat.reply().disk).or(conn.capabilities().disk)?;
    let DiskPart { pinned, limit, checkpoints, checkpoints_limit, .. } = told;
    Some(DiskUse { pinned, limit, checkpoints, checkpoints_limit })
}

/// Tells the planner of workers' nodes.
pub fn tell(facts: &mut [WorkerFacts], nodes: &[Option<NodeFacts>]) {
    facts.iter_mut().zip(nodes).for_each(|(facts, node)| facts.node = *node);
}
