//! The scheduler's settings ([`SchedConfig`]) and statistics ([`Stats`]).

use super::events::Micros;
use crate::drafts::drafted::DraftCounts;
use crate::memory::prefix::PrefixCounts;

/// Requests that may wait for a place before new ones are turned away.
pub const DEFAULT_MAX_WAITING: usize = 256;

/// Logits rows that one ubatch may return unless [`SchedConfig::max_logits_rows`] says otherwise:
/// bounds what the last stage holds at once (64 MiB with 128k tokens of vocabulary).
pub const DEFAULT_MAX_LOGITS_ROWS: u32 = 128;

/// How long requests wait for another line after theirs was lost, unless
/// [`SchedConfig::repair_within_us`] says otherwise: five minutes.
pub const DEFAULT_REPAIR_WITHIN_US: Micros = 300_000_000;

/// Tokens drawn after which a recurrent state is copied again, unless the operator says otherwise: these at most are
/// computed again after a loss.
pub const DEFAULT_CHECKPOINT_EVERY: u32 = 256;

/// Within a prompt, states are copied after this many times as many tokens. A prompt's token is cheaper to compute
/// again than a drawn one, but a copy of the state costs the same.
pub(super) const PROMPT_TOKENS_AS_ONE: u32 = 4;

/// Settings that the operator may fix; `None` leaves a value to measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedConfig {
    /// Bound of the waiting queue.
    pub max_waiting: usize,
    /// Rows of a prefill ubatch (`--ubatch`); `None`: chosen from measured stage times.
    pub prefill_rows: Option<u32>,
    /// Aim for the longest gap between two tokens of a stream while prompts are computed beside it;
    /// `None`: 200 ms, or twice what the streams need alone where that is more.
    pub decode_gap_us: Option<Micros>,
    /// Most ubatches in flight; `None`: enough to keep every stage busy.
    pub max_in_flight: Option<usize>,
    /// Most logits rows in one ubatch.
    pub max_logits_rows: u32,
    /// How long requests wait for another line after theirs was lost.
    pub repair_within_us: Micros,
    /// Windows of drafts that a sequence may have in flight; `None`: as many as bring it forward.
    pub max_windows: Option<u32>,
    /// Whether states are kept in the middle of prompts, where a model has recurrent ones.
    pub marks: bool,
    /// Kept states are evicted by age alone, regardless of the rows that they would save. This is the baseline that
    /// other rules are compared with.
    pub by_age: bool,
    /// Recurrent states are copied after so many tokens of a sequence, and full pages as they fill; `None`: nothing is.
    pub checkpoint_every: Option<u32>,
}

impl Default for SchedConfig {
    fn default() -> Self {
        Self {
            max_waiting: DEFAULT_MAX_WAITING,
            prefill_rows: None,
            decode_gap_us: None,
            max_in_flight: None,
            max_logits_rows: DEFAULT_MAX_LOGITS_ROWS,
            repair_within_us: DEFAULT_REPAIR_WITHIN_US,
            max_windows: None,
            marks: true,
            by_age: false,
            checkpoint_every: None,
        }
    }
}

/// A sequence that runs, as far as others may know of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Tokens of its prompt.
    pub n_prompt: u32,
    /// Tokens of its answer so far.
    pub n_drawn: u32,
    /// Whether its next tokens may be drafted.
    pub is_drafted: bool,
    /// Drafts of it that were right, and those that were wrong.
    pub drafts: [u32; 2],
    /// Windows of drafts that it has in flight.
    pub windows: u32,
}

/// Statistics for `/metrics` and `/health`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests without a place: not yet admitted, or waiting for another line.
    pub waiting: usize,
    /// Waiting requests that could have a place, but wait for a prefix that another request computes.
    pub held: usize,
    /// Whether a request that may have broken its lines runs alone, or is the next to do so.
    pub suspect_alone: bool,
    /// Admitted sequences whose prompt is not yet sent completely.
    pub prefilling: usize,
    /// Admitted sequences past their prompt.
    pub decoding: usize,
    /// KV pages in use by admitted sequences.
    pub blocks_used: u32,
    /// KV pages held for kept sequences alone; any request that needs them can have them.
    pub blocks_kept: u32,
    /// KV pages there are.
    pub blocks_total: u32,
    /// Slots in use by admitted sequences.
    pub slots_used: u32,
    /// Free slots whose places are lent to sequences that run ahead.
    pub slots_lent: u32,
    /// Slots for admitted sequences.
    pub slots_total: u32,
    /// Number of kept states.
    pub kept: u32,
    /// Slots for kept states: their own, and those in which nothing runs.
    pub kept_total: u32,
    /// Nodes of the trees in which kept states and running prompts stand.
    pub nodes: usize,
    /// Counts of reused prompt tokens and evicted states, since the beginning.
    pub prefixes: PrefixCounts,
    /// Counts of drafts, since the beginning.
    pub drafts: DraftCounts,
    /// Ubatches sent and not back.
    pub in_flight: usize,
    /// Decode groups now aimed at.
    pub groups: usize,
    /// Measured `fixed + per_row * rows` of each stage, microseconds; empty before measurements.
    pub stage_cost_us: Vec<(f64, f64)>,
}
