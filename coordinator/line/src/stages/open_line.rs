//! The open line as the driver has it: ubatches go into stage 0, results come out of the last stage. The driver does
//! not know who opened it, or which workers are behind it.

use std::sync::Arc;
use std::time::Duration;

use brigade_proto::failure::Failure;
use brigade_proto::pipeline::{LaneEvent, LaneFrame, ResultFrame};
use brigade_sched::LineSpec;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Streaming;

use crate::handle::LineInfo;
use crate::stages::stale::StaleTimes;
use crate::stages::states::StateAccess;

/// The one lane of a line.
pub const LANE: u32 = 0;

/// Ubatches between the driver and the connection. The scheduler keeps fewer in flight, so that
/// a full queue means a line that takes nothing any more.
pub const LANE_QUEUE: usize = 256;

/// How long a line that is not needed any more may take to finish its ubatches.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// A line that is ready for ubatches from id 0 on.
#[derive(Debug)]
pub struct OpenLine {
    /// The number of this build of the line.
    pub epoch: u64,
    /// Sizes for the scheduler: slots, pages, stages.
    pub spec: LineSpec,
    /// Whether every stage knows draws that are put off.
    pub later: bool,
    /// The stages with their workers, for people.
    pub info: Arc<LineInfo>,
    /// Reads and writes the states of its sequences.
    pub states: Arc<dyn StateAccess>,
    /// Computing times to leave out when a slow stage is looked for.
    pub stale: StaleTimes,
    /// Takes ubatches for stage 0.
    pub ubatches: mpsc::Sender<LaneFrame>,
    /// Where their results come from.
    pub results: Streaming<ResultFrame>,
    /// Says nothing more once the lane is open; its end says why the lane ended.
    pub lane: Streaming<LaneEvent>,
    /// Notified when sequences of earlier lines have their states.
    pub settled: Option<oneshot::Sender<Moved>>,
}

impl OpenLine {
    /// Ends the lane in order: nothing more is sent, and results on their way are received but not read. Returns the
    /// line if it still computes after a second; it is best dropped when its workers have been told that the epoch is
    /// over.
    pub async fn close(mut self) -> Option<OpenLine> {
        // The stages see the lane's end when the only sender is gone.
        self.ubatches = mpsc::channel(1).0;
        let ended = async {
            loop {
                tokio::select! {
                    event = self.lane.next() => if !matches!(event, Some(Ok(_))) { return },
                    Some(_) = self.results.next() => {}
                }
            }
        };
        let ended = timeout(CLOSE_WITHIN, ended).await;
        ended.is_err().then_some(self)
    }
}

/// States of earlier lines that were put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Sequences whose states were put back.
    pub sequences: usize,
    /// Bytes of states that went from one worker to another.
    pub bytes: u64,
}

/// The stage and the reason in a stream's final status, for people.
pub fn describe(status: &tonic::Status) -> String {
    describe_failure(&Failure::from_status(status))
}

/// A failure of a running line, for people.
pub fn describe_failure(failure: &Failure) -> String {
    format!("stage {}: {}", failure.stage, failure.reason)
}

#[cfg(test)]
mod silence {
    //! A stream that stays silent, for tests of what is sent.

    use std::marker::PhantomData;

    use brigade_engine::batch::{CopyName, SlotId};
    use tonic::codec::{DecodeBuf, Decoder};
    use tonic::{Status, body::Body};

    use super::*;
    use crate::handle::StageResident;
    use crate::stages::prefix_names::{Key, Names};
    use crate::stages::states::{Asked, Choice, Found, PrefixChoice, PutSlot, Sought};

    /// A stream of nothing.
    struct Nothing<T>(PhantomData<T>);

    impl<T: Send + 'static> Decoder for Nothing<T> {
        type Item = T;
        type Error = Status;

        fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
            Ok(None)
        }
    }

    fn nothing<T: Send + 'static>() -> Streaming<T> {
        Streaming::new_empty(Nothing(PhantomData), Body::empty())
    }

    /// Stages that are not there.
    #[derive(Debug)]
    struct Nobody;

    fn nobody<T: Send + 'static>() -> Asked<'static, T> {
        Box::pin(async { Err("no stage is connected".to_string()) })
    }

    impl StateAccess for Nobody {
        fn takes_copies(&self) -> bool {
            false
        }

        fn read(&self, _: SlotId) -> Asked<'_, Vec<u8>> {
            nobody()
        }

        fn write(&self, _: SlotId, _: Vec<u8>) -> Asked<'_, ()> {
            nobody()
        }

        fn memory(&self) -> Asked<'_, Vec<StageResident>> {
            nobody()
        }

        fn find_copies<'a>(&'a self, sought: &'a [Sought]) -> Found<'a> {
            Box::pin(async { sought.iter().map(|_| None).collect() })
        }

        fn put_back(&self, _: PutSlot, _: CopyName, _: Vec<u32>, _: Choice) -> Asked<'_, u64> {
            nobody()
        }

        fn keeps_prefixes(&self) -> bool {
            false
        }

        fn find_prefix<'a>(&'a self, _: &'a Names) -> Asked<'a, Option<PrefixChoice>> {
            nobody()
        }

        fn notices_changes(&self) -> bool {
            true
        }

        fn save_prefix<'a>(&'a self, _: SlotId, _: Option<u64>, _: &'a Names) -> Asked<'a, u64> {
            nobody()
        }

        fn load_prefix<'a>(&'a self, _: PutSlot, _: &'a Names, _: PrefixChoice) -> Asked<'a, u64> {
            nobody()
        }

        fn forget_prefix<'a>(&'a self, _: &'a Names) -> Asked<'a, ()> {
            nobody()
        }

        fn keep_prefixes_of(&self, _: Key, _: Vec<Key>) -> Asked<'_, ()> {
            nobody()
        }
    }

    impl OpenLine {
        /// A line without stages, and the receiver of its ubatches.
        pub(crate) fn of_nobody(epoch: u64, spec: LineSpec) -> (Self, mpsc::Receiver<LaneFrame>) {
            let (ubatches, sent) = mpsc::channel(LANE_QUEUE);
            let states = Arc::new(Nobody);
            let (results, lane) = (nothing(), nothing());
            let info = Arc::default();
            let (later, settled) = (true, None);
            let stale = StaleTimes::new(spec.n_stages);
            let line =
                Self { epoch, spec, later, info, states, stale, ubatches, results, lane, settled };
            (line, sent)
        }
    }
}
