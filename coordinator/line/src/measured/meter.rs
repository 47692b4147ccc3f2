//! Records of ubatches that came back, and figures made of them. `bench`'s rows, `run`'s summary and the pipeline's
//! part of `/metrics` come from here.
//!
//! The driver writes, and anyone reads. Departures and arrivals are times of the driver's clock, and
//! computing is timed by each stage's own. So no clocks need to agree.

mod sizes;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use brigade_sched::{DraftCounts, Micros};

use crate::measured::record::UbatchRecord;

use crate::measured::trace::Trace;

pub use sizes::{UbatchSize, hop_us, sizes};

/// Records kept; at a thousand ubatches a second that is a minute.
const MAX_RECORDS: usize = 65_536;

/// Records of recent ubatches.
#[derive(Debug)]
pub struct Meter {
    records: Mutex<VecDeque<UbatchRecord>>,
    drafts: Mutex<DraftCounts>,
    trace: Option<Mutex<Trace>>,
    began: Instant,
}

impl Meter {
    /// A meter without records; `traced`: they go into a trace as well.
    pub fn new(traced: bool) -> Self {
        let trace = traced.then(Mutex::default);
        let (records, drafts) = Default::default();
        Self { records, drafts, trace, began: Instant::now() }
    }

    /// Time by the clock of all departures and arrivals.
    pub fn now(&self) -> Micros {
        self.began.elapsed().as_micros() as Micros
    }

    /// The trace, where there is one.
    pub fn trace(&self) -> Option<MutexGuard<'_, Trace>> {
        Some(self.trace.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<UbatchRecord>> {
        // A panic elsewhere leaves whole records behind.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record, and notes what became of drafts until then; the oldest record goes when there are too many.
    pub fn record(&self, record: UbatchRecord, drafts: DraftCounts) {
        *self.drafts.lock().unwrap_or_else(PoisonError::into_inner) = drafts;
        if let Some(mut trace) = self.trace() {
            trace.ubatch(record.clone());
        }
        let mut records = self.lock();
        if records.len() == MAX_RECORDS {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// Counts of drafts since the beginning.
    pub fn drafts(&self) -> DraftCounts {
        *self.drafts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows of prompts computed in all records.
    pub fn prompt_rows(&self) -> u64 {
        self.lock().iter().map(|r| u64::from(r.n_rows.saturating_sub(r.decode_rows))).sum()
    }

    /// Takes all records out, oldest first.
    pub fn take(&self) -> Vec<UbatchRecord> {
        std::mem::take(&mut *self.lock()).into()
    }
}

/// Figures of a stretch of ubatches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stretch {
    /// Share of the steady part's wall time that each stage computed, first stage first; empty
    /// where the stretch is too short to have a steady part.
    pub stage_busy: Vec<f64>,
    /// Bytes that went between processes, over all hops.
    pub wire_bytes: u64,
    /// Rows (tokens) computed.
    pub n_rows: u64,
    /// Ubatches that computed something.
    pub n_ubatches: usize,
}

/// Sums up the records of one stretch of work.
///
/// The steady part leaves out the filling and draining of the line. On S stages it goes from the return of the S-th
/// ubatch to the return of the S-th from the end. The stages' own windows lie a little earlier, so that short
/// stretches are off by part of a ubatch; a share is at most 1.
pub fn summarise(records: &[UbatchRecord]) -> Stretch {
    let working: Vec<&UbatchRecord> = records.iter().filter(|r| r.n_rows > 0).collect();
    let n_stages = working.first().map_or(0, |r| r.stages.len());
    Stretch {
        stage_busy: stage_busy(&working, n_stages),
        wire_bytes: records.iter().flat_map(|r| &r.wire_bytes).map(|b| u64::from(*b)).sum(),
        n_rows: working.iter().map(|r| u64::from(r.n_rows)).sum(),
        n_ubatches: working.len(),
    }
}

fn stage_busy(working: &[&UbatchRecord], n_stages: usize) -> Vec<f64> {
    if n_stages == 0 || working.len() < 2 * n_stages {
        return Vec::new();
    }
    let first = &working[n_stages - 1];
    let steady = &working[n_stages..=working.len() - n_stages];
    let Some(last) = steady.last() else { return Vec::new() };
    let wall = last.done.saturating_sub(first.done);
    if wall == 0 {
        return Vec::new();
    }
    (0..n_stages)
        .map(|stage| {
            let computed: Micros =
                steady.iter().filter_map(|r| r.stages.get(stage)).map(|s| s.compute_us).sum();
            (computed as f64 / wall as f64).min(1.0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_sched::StageTime;

    /// Ubatches through two stages: each stage computes `us`, one ubatch returns every `period`.
    fn line(n: u64, us: Micros, period: Micros) -> Vec<UbatchRecord> {
        (0..n)
            .map(|i| UbatchRecord {
                sent: i * period,
                done: 2 * us + i * period,
                n_rows: 4,
                stages: vec![StageTime { compute_us: us, queued_us: 0, ..StageTime::default() }; 2],
                wire_bytes: vec![10, 100],
                ..UbatchRecord::default()
            })
            .collect()
    }

    #[test]
    fn a_full_line_is_busy_and_a_lock_step_one_half() {
        assert_eq!(summarise(&line(10, 100, 100)).stage_busy, [1.0, 1.0]);
        assert_eq!(summarise(&line(10, 100, 200)).stage_busy, [0.5, 0.5]);
    }

    #[test]
    fn sums_leave_nothing_out() {
        let sum = summarise(&line(5, 100, 100));
        assert_eq!((sum.wire_bytes, sum.n_rows, sum.n_ubatches), (550, 20, 5));
    }

    #[test]
    fn short_stretches_have_no_steady_part() {
        assert!(summarise(&line(3, 100, 100)).stage_busy.is_empty());
        assert!(summarise(&[]).stage_busy.is_empty());
    }

    #[test]
    fn taking_empties_and_old_records_go_first() {
        let meter = Meter::new(false);
        for record in line(MAX_RECORDS as u64 + 2, 1, 1) {
            meter.record(record, DraftCounts::default());
        }
        let records = meter.take();
        assert_eq!((records.len(), records[0].sent), (MAX_RECORDS, 2));
        assert!(meter.take().is_empty());
    }
}
