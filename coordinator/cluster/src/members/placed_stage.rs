//! A stage that a worker has accepted. These facts outlive the placement and stay while the line is open.

use std::ops::Range;

use brigade_plan::{PlanSettings, StagePlan};
use brigade_proto::limits::SNAPSHOT_FRAME_BYTES;
use brigade_worker::backend::expert_placement::ALL_LAYERS;

use crate::members::conn::{Conn, WorkerError};
use crate::members::facts;
use crate::reconcile::MemberId;

/// The coordinator that places, and the epoch.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The epoch of the line that is being built.
    pub epoch: u64,
    /// The id of this coordinator.
    pub coordinator_id: String,
}

/// The planned time of a unit of work on a stage, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time to compute it.
    pub computing_us: f64,
    /// Time to send it on.
    pub sending_us: f64,
    /// How many times slower than it says the worker was taken to be.
    pub slowdown: f64,
}

impl Pace {
    /// A unit of work on a worker that is so many times slower than it says: whichever is slower, computing or sending.
    pub fn unit_us(&self, slowdown: f64) -> f64 {
        (self.computing_us / self.slowdown * slowdown).max(self.sending_us)
    }
}

/// A stage and the worker that has it.
#[derive(Clone, Debug)]
pub struct PlacedStage {
    /// Number of the member.
    pub member: MemberId,
    /// The connection to the worker.
    pub conn: Conn,
    /// Layers of the stage.
    pub layers: Range<usize>,
    /// Layers whose routed experts lie with the host beside its GPU: the first so many of the model. `None` of a worker that has
    /// no such place.
    pub host_experts: Option<u32>,
    /// The time of a unit of work, by our own plan.
    pub pace: Pace,
    /// Bytes of its weights, by our own plan.
    pub weight_bytes: u64,
    /// Bytes that the state of a sequence has there at most.
    pub max_sequence_bytes: u64,
    /// Bytes that copies of states may take there.
    pub copy_bytes: u64,
}

impl PlacedStage {
    /// A stage of a plan on its worker.
    pub(crate) fn of(s: &StagePlan, member: MemberId, conn: Conn, settings: &PlanSettings) -> Self {
        // By our own plan: pages, states and tokens of all sequences together.
        let tokens = u64::from(settings.ctx) * size_of::<u32>() as u64;
        let max_sequence_bytes = s.memory.kv + s.memory.state + tokens + SNAPSHOT_FRAME_BYTES;
        let (layers, weight_bytes) = (s.layers.clone(), s.memory.weights);
        let copy_bytes = s.memory.copies;
        let pace = Pace {
            computing_us: s.time.computing_us(settings),
            sending_us: s.time.sending_us(settings),
            slowdown: conn.slowdown(),
        };
        let host_experts = host_experts(&conn, s);
        Self {
            member,
            conn,
            layers,
            host_experts,
            pace,
            weight_bytes,
            max_sequence_bytes,
            copy_bytes,
        }
    }

    /// The stage's layers, as the wire counts them.
    pub fn layer_range(&self) -> Range<u32> {
        self.layers.start as u32..self.layers.end as u32
    }
}

/// The workers of a line that cannot dial the stage behind them, each with the reason. In a `ring`, the first stage is behind
/// the last one.
pub fn out_of_reach(stages: &[PlacedStage], ring: bool) -> Vec<(MemberId, WorkerError)> {
    let behind = stages.iter().cycle().skip(1).take(if ring {
        stages.len()
    } else {
        stages.len().saturating_sub(1)
    });
    let refuse = |(stage, next): (&PlacedStage, &PlacedStage)| {
        let (worker, at) = (stage.conn.name().to_owned(), next.conn.address());
        (!facts::can_dial(stage.conn.capabilities(), at)).then(|| {
            let reason = format!(
                "it is of an older release, which knows no stages of nodes, and cannot dial {at}: upgrade it, or start that \
                 node with --stage-ports"
            );
            (stage.member, WorkerError::Refused { worker, reason })
        })
    };
    stages.iter().zip(behind).filter_map(refuse).collect()
}

/// Where a worker that has such a place puts routed experts.
fn host_experts(conn: &Conn, stage: &StagePlan) -> Option<u32> {
    let host = conn.capabilities().host.as_ref()?;
    // Layers before the stage's own do not matter to it, and all are all however the line is cut.
    let planned = if stage.host_layers.is_empty() { 0 } else { stage.host_layers.end as u32 };
    Some(host.experts_before.filter(|before| *before == ALL_LAYERS).unwrap_or(planned))
}

#[cfg(test)]
mod tests {
    use brigade_proto::address::FIRST_STAGE;
    use brigade_proto::control::{Capabilities, Feature};

    use super::*;

    /// Stages in order, whether the last one dials the first, and those that cannot dial the stage behind them.
    type Line = ([Option<u8>; 3], bool, &'static [MemberId]);

    /// A stage on a worker of an older release, or on stage `number` of a node of this one.
    async fn on(member: MemberId, number: Option<u8>) -> PlacedStage {
        let features = number.iter().map(|_| Feature::StageAddresses.into()).collect();
        let capabilities = Capabilities { features, ..Capabilities::default() };
        let name = member.to_string();
        let conn = Conn::mute(&name, number.unwrap_or(FIRST_STAGE), capabilities).await;
        let pace = Pace { computing_us: 1.0, sending_us: 1.0, slowdown: 1.0 };
        PlacedStage {
            member,
            conn,
            layers: 0..1,
            host_experts: None,
            pace,
            weight_bytes: 0,
            max_sequence_bytes: 0,
            copy_bytes: 0,
        }
    }

    #[tokio::test]
    async fn an_older_worker_never_stands_before_a_stage_with_a_number() {
        let (old, first, second) = (None, Some(1), Some(2));
        let lines: [Line; 7] = [
            ([old, second, first], false, &[0]),
            ([first, old, second], false, &[1]),
            ([first, second, old], false, &[]),
            ([first, second, old], true, &[]),
            ([second, first, old], true, &[2]),
            ([old, first, second], true, &[]),
            ([second, first, second], true, &[]),
        ];
        for (line, ring, expected) in lines {
            let mut stages = Vec::new();
            for (member, number) in line.into_iter().enumerate() {
                stages.push(on(member, number).await);
            }
            let refused = out_of_reach(&stages, ring);
            let members: Vec<MemberId> = refused.iter().map(|(member, _)| *member).collect();
            assert_eq!(members, expected, "{line:?}, ring: {ring}");
            for (_, error) in refused {
                let why = error.to_string();
                assert!(why.contains("older release") && why.contains("--stage-ports"), "{why}");
            }
        }
    }
}
