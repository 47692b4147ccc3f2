//! Handles result frames of the last stage: rows for the scheduler, and a record of each ubatch.

use brigade_engine::batch::UBatch;
use brigade_proto::pipeline::{ResultFrame, StageTiming};
use brigade_sched::{Action, Event, Given, Micros, Results, StageTime};

use super::news::Break;
use super::{Driver, Sent, TAKES_NO_MORE};
use crate::measured::metrics;
use crate::measured::record::{StageClock, UbatchRecord};
use crate::stages::wire;

/// Ubatches that can be sent before all else that is to be done, and the rest in its order: of news for clients they are
/// independent, and only of those.
fn sends_first(actions: Vec<Action>) -> (Vec<UBatch>, Vec<Action>) {
    let is_news = |action: &Action| {
        matches!(
            action,
            Action::Token { .. }
                | Action::Logits { .. }
                | Action::Expected { .. }
                | Action::Finished { .. }
                | Action::Send(_)
        )
    };
    if !actions.iter().all(is_news) {
        return (Vec::new(), actions);
    }
    let (mut sends, mut rest) = (Vec::new(), Vec::with_capacity(actions.len()));
    for action in actions {
        match action {
            Action::Send(ubatch) => sends.push(ubatch),
            news => rest.push(news),
        }
    }
    (sends, rest)
}

/// Latest time by a stage's clock that is believed: three centuries, so that sums do not overflow.
const MAX_CLOCK_US: Micros = 1 << 53;

impl Driver {
    pub(super) fn results(&mut self, mut frame: ResultFrame) -> Result<(), Break> {
        if let Some(failure) = &frame.failure {
            return Err(Break::of(failure));
        }
        let rows =
            wire::rows(std::mem::take(&mut frame.rows), self.n_vocab).map_err(|e| e.to_string())?;
        let stages: Vec<StageTime> = frame
            .timings
            .iter()
            .map(|t| StageTime {
                compute_us: t.compute_us.into(),
                queued_us: t.queue_us.into(),
                drafting_us: t.draft_us.min(t.compute_us).into(),
            })
            .collect();
        let back_at = self.now();
        let done = frame.last.then(|| stages.clone());
        let results = Results { epoch: frame.epoch, ubatch: frame.id, rows, done };
        let actions = self.sched.step(back_at, Event::Results(results));
        // Ubatches go first, because the stages wait for them.
        let (sends, rest) = sends_first(actions);
        let mut has_sent = true;
        for ubatch in sends {
            has_sent &= self.send(ubatch);
        }
        // Recorded before clients get results: a client with an answer finds all its ubatches in the figures.
        if frame.last {
            self.record(back_at, &frame, stages);
        }
        self.perform(rest);
        if !has_sent {
            self.line_broke(TAKES_NO_MORE.into());
        }
        self.start_transfers();
        Ok(())
    }

    fn record(&mut self, done: Micros, frame: &ResultFrame, stages: Vec<StageTime>) {
        let ResultFrame { epoch, id, timings, .. } = frame;
        let Some(Sent { at: sent, n_rows, decode_rows, gap_bound }) = self.in_flight.remove(id)
        else {
            return;
        };
        let last = self.sched.last_done();
        let gave = if last.ubatch == *id { last } else { Given::default() };
        let clock = |t: &StageTiming| StageClock {
            started_us: t.started_us.min(MAX_CLOCK_US),
            receive_us: t.receive_us.into(),
            last_send_us: t.last_send_us.into(),
        };
        let record = UbatchRecord {
            epoch: *epoch,
            id: *id,
            sent,
            done,
            n_rows,
            decode_rows,
            tokens: gave.tokens,
            rows_in_vain: gave.rows_in_vain,
            has_stale: gave.has_stale,
            gap_bound,
            stages,
            clocks: timings.iter().map(clock).collect(),
            wire_bytes: timings.iter().map(|t| t.wire_bytes).collect(),
        };
        if let Some(line) = self.line.as_ref().filter(|line| gave.has_stale && line.epoch == *epoch)
        {
            line.stale.add(&record.stages);
        }
        metrics::ubatch(&record);
        self.meter.record(record, self.sched.drafts());
    }
}
