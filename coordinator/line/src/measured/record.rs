//! The record of one ubatch that has come back. The driver writes it, and the meter, the trace and the metrics read
//! it.

use brigade_sched::{Micros, StageTime};

/// One ubatch's trip down the line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UbatchRecord {
    /// The epoch of its line.
    pub epoch: u64,
    /// Consecutive within an epoch.
    pub id: u64,
    /// When it left the driver.
    pub sent: Micros,
    /// When its last result was back.
    pub done: Micros,
    /// Rows (tokens) computed.
    pub n_rows: u32,
    /// Rows behind the prompts, of sequences that generate.
    pub decode_rows: u32,
    /// Tokens that were drawn from it.
    pub tokens: u32,
    /// Rows computed in vain: drafts that gave no token, and rows that were computed again.
    pub rows_in_vain: u32,
    /// A whole window of drafts was of no use: the last stage may have left it out.
    pub has_stale: bool,
    /// For prompt rows beside streams: the scheduler's bound of the time between two tokens of a stream.
    pub gap_bound: Option<Micros>,
    /// Per stage, first stage first.
    pub stages: Vec<StageTime>,
    /// When that was by each stage's own clock.
    pub clocks: Vec<StageClock>,
    /// Bytes each stage received for it, first stage first.
    pub wire_bytes: Vec<u32>,
}

/// When one stage had a ubatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageClock {
    /// When computing began, since the stage's lane opened, by its own clock.
    pub started_us: Micros,
    /// Checking and copying the frame; a part of the time before that.
    pub receive_us: Micros,
    /// Encoding the ubatch before this one and handing it to the transport.
    pub last_send_us: Micros,
}
