//! Chooses sizes: rows of a prefill chunk, prompt rows beside streams, and ubatches in flight. The number of decode
//! groups is chosen in [`crate::ubatches::groups`].
//!
//! All of this is pure functions of measured costs ([`LineTimes`]), the line's limits and the operator's
//! wishes. Let `t(rows)` be the slowest stage's time, `S` the number of stages, and `o` the time of a trip
//! outside the stages.
//!
//! - Decode: `D` sequences in `G` groups come round every `max(G * t(D/G), sum over stages of t_s(D/G) + o)`,
//!   and later where times vary. `G` is the number that makes this shortest. On equal stages that is at least
//!   `S`. Where one stage is much slower than the others, fewer groups keep it just as busy, and share the
//!   fixed cost better.
//! - Prefill: `R` rows in chunks of `c` take `(R/c + S - 1) * t(c)`. This is shortest at `c = sqrt(R * fixed
//!   / ((S - 1) * per_row))`.
//! - Both: while sequences decode, a ubatch that also carries prompt rows takes at most `T` on any stage, but where the fewest
//!   prompt rows take longer.
//!   With at most `K` ubatches in flight, the next token of a stream is at most `(K + S) * T` away. `T` follows from
//!   the longest gap that is aimed for. Where the prompt's owner has had more than a stream's, it is as little as lets
//!   the prompt advance ([`fair`](crate::waiting::fair) says why).

use crate::SchedConfig;
use crate::events::{LineSpec, Micros};
use crate::times::timing::LineTimes;

/// Fewest prompt rows beside decode rows: below this a prompt would hardly advance. Two full tiles of the matrix kernels.
pub(crate) const MIN_CHUNK: u32 = 16;

/// Fewest prompt rows in a ubatch while nothing decodes: matrix kernels lose speed below this in ways
/// that a straight line through a few sizes does not show.
const MIN_PREFILL_CHUNK: u32 = 64;

/// A short burst of prompts: where there are several stages, its ubatches may have as few as [`MIN_CHUNK`] rows, so
/// that all stages have some of it. The same holds for the new rows behind a long cached prompt. Fewer rows are not
/// cut: each ubatch costs some of itself.
const SHORT_BURST: std::ops::RangeInclusive<u64> = 2 * MIN_CHUNK as u64 + 1..=256;

/// Aim for the prompt rows in flight before a newcomer's prompt: as many as a short prompt has, or the fewest that a ubatch may
/// have where more than four are in flight. On a fast line the
/// target gap between two tokens would allow many times as many. A flood of long prompts loses some speed by this
/// limit. In simulation it loses 3 % where a ubatch costs as much as 12 rows, and 29 % where it costs as much as 100.
/// With one key only there is no loss.
const ROWS_BEFORE_NEWCOMER: u32 = 256;

/// Prefill chunks are multiples of this (matrix kernels work on tiles of rows), if the operator and the largest ubatch allow.
const CHUNK_STEP: u32 = 16;

/// A prefill chunk need not be larger than this many times `fixed / per_row`: the fixed cost is then
/// 2 % of it, and shorter ubatches let requests in and out sooner.
const CHUNK_MAX_FIXED: f64 = 50.0;

/// Ubatches in flight per stage, at most: bounds queues in the workers and a prompt's lead.
const MAX_IN_FLIGHT_PER_STAGE: usize = 4;

/// Aim for the gap between two tokens of a stream while prompts are computed beside it, unless
/// the stream alone is slower than that: five tokens a second are about reading speed.
const DEFAULT_DECODE_GAP_US: f64 = 200_000.0;

/// Beside decode rows, prompt rows may stretch a ubatch by this factor, where the operator names no gap. Prompt rows of an
/// owner that is ahead may do no more.
const MIXED_STRETCH: f64 = 2.0;

/// The inputs of every choice.
#[derive(Clone, Copy)]
pub(crate) struct Sizing<'a> {
    pub times: &'a LineTimes,
    pub spec: &'a LineSpec,
    pub config: &'a SchedConfig,
}

/// The streams that prompt rows are computed beside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    /// Decode rows of the streams' groups.
    pub group_rows: u32,
    /// Ubatches in flight, at most.
    pub in_flight: usize,
    /// The prompt's owner has had more than another one whose streams these are.
    pub is_ahead: bool,
    /// Prompts of other owners may come.
    pub leaves_room: bool,
}

impl Sizing<'_> {
    /// Limit of the ubatches in flight in any case.
    pub fn hard_limit(&self) -> usize {
        let most = self.spec.n_stages * MAX_IN_FLIGHT_PER_STAGE;
        self.config.max_in_flight.unwrap_or(most).max(1)
    }

    /// Time of one ubatch of `rows` rows from here back to here, if it never waits.
    pub fn trip(&self, rows: u32) -> f64 {
        self.times.through(rows) + self.times.overhead() + self.times.jitter(rows)
    }

    /// Prompt rows of a ubatch while nothing decodes: of a burst of `burst` prompt rows, `left` are
    /// not yet sent.
    pub fn chunk(&self, burst: u64, left: u64) -> u32 {
        if let Some(rows) = self.config.prefill_rows {
            return rows.clamp(1, self.spec.max_rows);
        }
        let n_stages = self.times.n_stages();
        let cost = self.times.slowest_cost(self.spec.max_rows);
        let fixed_rows = cost.fixed / cost.per_row;
        let efficient = CHUNK_MAX_FIXED * fixed_rows;
        let best = if n_stages > 1 {
            (burst as f64 * fixed_rows / (n_stages - 1) as f64).sqrt().min(efficient)
        } else {
            efficient
        };
        let is_short = n_stages > 1 && SHORT_BURST.contains(&burst);
        let least = if is_short { MIN_CHUNK } else { MIN_PREFILL_CHUNK }.min(self.spec.max_rows);
        let best = best.clamp(f64::from(least), f64::from(self.spec.max_rows));
        // Equal chunks: a short last one would cost a fixed part of its own.
        let n_chunks = (left as f64 / best).round().max(1.0);
        let even = (left as f64 / n_chunks).ceil() as u32;
        even.next_multiple_of(CHUNK_STEP).min(self.spec.max_rows)
    }

    /// Most prompt rows of a ubatch where another owner's prompt may come.
    fn rows_that_leave_room(&self, in_flight: usize) -> u32 {
        let rows = ROWS_BEFORE_NEWCOMER / in_flight.max(1) as u32;
        rows.max(MIN_PREFILL_CHUNK).next_multiple_of(CHUNK_STEP)
    }

    /// Prompt rows of a ubatch while nothing decodes and another owner's prompt may come. All prompt rows in flight
    /// are few then. They take about the target gap between two tokens: each ubatch is rounded up to whole steps.
    pub fn short_chunk(&self) -> u32 {
        let in_flight = self.spec.n_stages + 1;
        let longest = DEFAULT_DECODE_GAP_US / in_flight as f64;
        let rows = self.times.rows_within(longest).min(f64::from(self.spec.max_rows)) as u32;
        let rows = rows.min(self.rows_that_leave_room(in_flight));
        rows.max(MIN_CHUNK).next_multiple_of(CHUNK_STEP).min(self.spec.max_rows)
    }

    /// `T`: the longest that a stage may take for a ubatch with prompt rows while streams decode.
    fn longest_mixed(&self, beside: Beside) -> f64 {
        let per_gap = self.per_gap(beside.in_flight);
        let stretched = MIXED_STRETCH * self.times.slowest(beside.group_rows);
        match self.config.decode_gap_us {
            Some(us) => us as f64 / per_gap,
            None if beside.is_ahead => stretched,
            None => (DEFAULT_DECODE_GAP_US / per_gap).max(stretched),
        }
    }

    /// `K + S`: ubatches that a stage may compute between two tokens of a stream.
    fn per_gap(&self, in_flight: usize) -> f64 {
        (in_flight + self.spec.n_stages) as f64
    }

    /// Bound of the time between two tokens of a stream, while ubatches of `rows` rows, some of them a prompt's, are computed
    /// beside groups of the streams. The bound is `(K + S) * T`, and more only where even
    /// the fewest prompt rows take longer than `T`. `None` before anything was measured.
    pub fn gap_bound(&self, rows: u32, beside: Beside) -> Option<Micros> {
        let longest = self.longest_mixed(beside).max(self.times.slowest(rows));
        self.times.measured().then(|| (self.per_gap(beside.in_flight) * longest) as Micros)
    }

    /// Prompt rows beside `decode_rows` of a ubatch while streams decode.
    pub fn mixed_rows(&self, decode_rows: u32, beside: Beside) -> u32 {
        let longest = self.longest_mixed(beside);
        let rows = self.times.rows_within(longest).min(f64::from(self.spec.max_rows)) as u32;
        let rows = rows.saturating_sub(decode_rows).max(MIN_CHUNK);
        let wish = self.config.prefill_rows.unwrap_or(rows).max(1);
        let room =
            if beside.leaves_room { self.rows_that_leave_room(beside.in_flight) } else { u32::MAX };
        rows.min(wish).min(room).min(self.spec.max_rows.saturating_sub(decode_rows))
    }

    /// Ubatches in flight while sequences decode in `n_groups`: one more than there are groups, so that prompt rows
    /// can fill the time that they leave idle.
    pub fn decode_in_flight(&self, n_groups: usize) -> usize {
        (n_groups.max(self.spec.n_stages) + 1).min(self.hard_limit())
    }

    /// Ubatches in flight while only prompts are computed in chunks of `rows`: a trip's worth at the
    /// pace of the slowest stage, and one waiting.
    pub fn prefill_in_flight(&self, rows: u32) -> usize {
        let filling = (self.trip(rows) / self.times.slowest(rows)).ceil() as usize;
        (filling + 1).max(self.spec.n_stages + 1).min(self.hard_limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StageTime;
    use crate::sim::roomy;

    /// Prompt rows where a newcomer may come, on stages that take `us` for each row.
    fn short_chunk(n_stages: usize, us: u64) -> u32 {
        let mut times = LineTimes::new(n_stages);
        for rows in [16, 64, 256].repeat(20) {
            let stage = StageTime {
                compute_us: us * u64::from(rows),
                queued_us: 0,
                ..StageTime::default()
            };
            times.observe(rows, 0, &vec![stage; n_stages]);
        }
        let spec = roomy(n_stages);
        Sizing { times: &times, spec: &spec, config: &SchedConfig::default() }.short_chunk()
    }

    #[test]
    fn what_is_before_a_newcomer_takes_about_a_gap() {
        // One ubatch more than stages is in flight: their rows share the 200 ms, each rounded up to whole steps.
        assert_eq!(short_chunk(1, 1_000), 112, "100 rows");
        assert_eq!(short_chunk(3, 1_000), 64, "50 rows");
        assert_eq!(short_chunk(3, 5_000), MIN_CHUNK, "10 rows");
    }

    #[test]
    fn a_short_burst_is_cut_so_that_all_stages_have_some_of_it() {
        let chunk = |n_stages: usize, burst: u64| {
            let mut times = LineTimes::new(n_stages);
            for rows in [16, 64, 256].repeat(20) {
                let stage = StageTime {
                    compute_us: 1_000 * u64::from(rows),
                    queued_us: 0,
                    ..StageTime::default()
                };
                times.observe(rows, 0, &vec![stage; n_stages]);
            }
            let spec = roomy(n_stages);
            let config = SchedConfig::default();
            Sizing { times: &times, spec: &spec, config: &config }.chunk(burst, burst)
        };
        assert_eq!([32, 64, 256].map(|burst| chunk(2, burst)), [32, MIN_CHUNK, MIN_CHUNK]);
        assert_eq!(chunk(2, 2048), MIN_PREFILL_CHUNK, "a long one is not");
        assert_eq!(chunk(1, 64), 64, "nor one stage's");
    }

    #[test]
    fn on_a_fast_line_rows_before_a_newcomer_are_as_many_as_a_short_prompt_has() {
        assert_eq!(short_chunk(1, 10), ROWS_BEFORE_NEWCOMER / 2);
        assert_eq!(short_chunk(3, 10), MIN_PREFILL_CHUNK);
    }
}
