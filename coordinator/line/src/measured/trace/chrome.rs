//! Writes a trace in the Chrome trace event format: one JSON object with an array of events.
//!
//! An event of type `X` is a span of a thread. `b` and `e` begin and end an asynchronous span. `M` names a
//! process or a thread. Times are microseconds.

use std::io::{self, BufWriter, Write};

use serde::Serialize;

use super::{MAX_UBATCHES, Trace};
use crate::measured::record::UbatchRecord;
use crate::measured::trace::clocks::{Clocks, align, at_stage};

/// Process number of the coordinator; stage `i` is `i + 1`.
const COORDINATOR: usize = 0;
/// Thread of a process's phases or, on a stage, of frames coming in.
const FIRST_THREAD: u32 = 1;
/// The thread of a stage's executor.
const COMPUTE: u32 = 2;

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    cat: &'static str,
    ph: &'static str,
    ts: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<i64>,
    pid: usize,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args>,
}

#[derive(Clone, Copy, Serialize)]
struct Args {
    ubatch: u64,
    rows: u32,
    prefill_rows: u32,
    decode_rows: u32,
    tokens: u32,
    rows_in_vain: u32,
}

/// A name for a process or a thread.
#[derive(Serialize)]
struct Name<'a> {
    name: &'static str,
    ph: &'static str,
    pid: usize,
    tid: u32,
    args: NameArgs<'a>,
}

#[derive(Serialize)]
struct NameArgs<'a> {
    name: &'a str,
}

/// About the whole trace.
#[derive(Serialize)]
struct About {
    /// The uncertainty between times of two processes, in microseconds; the largest over all epochs.
    clock_uncertainty_us: i64,
    /// Ubatches that were too old to be kept.
    dropped_ubatches: u64,
    max_ubatches: usize,
}

/// The writer of the array of events.
struct Events<W: Write> {
    out: W,
    first: bool,
}

impl<W: Write> Events<W> {
    fn put(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        Ok(serde_json::to_writer(&mut self.out, event)?)
    }

    fn span(
        &mut self,
        name: &'static str,
        pid: usize,
        tid: u32,
        from: i64,
        to: i64,
        args: Args,
    ) -> io::Result<()> {
        let dur = Some((to - from).max(0));
        let args = Some(args);
        self.put(&Event { name, cat: name, ph: "X", ts: from, dur, pid, tid, id: None, args })
    }

    /// A span that may overlap others of its kind; `id` tells them apart.
    fn overlapping(
        &mut self,
        name: &'static str,
        pid: usize,
        from: i64,
        to: i64,
        id: &str,
        args: Args,
    ) -> io::Result<()> {
        let tid = FIRST_THREAD;
        for (ph, ts, args) in [("b", from, Some(args)), ("e", to.max(from), None)] {
            let id = Some(id.to_owned());
            self.put(&Event { name, cat: name, ph, ts, dur: None, pid, tid, id, args })?;
        }
        Ok(())
    }

    fn name(&mut self, what: &'static str, pid: usize, tid: u32, name: &str) -> io::Result<()> {
        self.put(&Name { name: what, ph: "M", pid, tid, args: NameArgs { name } })
    }
}

pub(super) fn write(trace: &Trace, out: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut events = Events { out, first: true };
    let records: Vec<&UbatchRecord> =
        trace.ubatches.iter().filter(|r| r.clocks.len() == r.stages.len()).collect();
    let n_stages = records.iter().map(|r| r.stages.len()).max().unwrap_or(0);
    names(&mut events, trace, n_stages)?;
    for phase in &trace.phases {
        let (ts, dur) = (phase.from as i64, Some((phase.to - phase.from) as i64));
        let (pid, tid, id, args) = (COORDINATOR, FIRST_THREAD, None, None);
        events.put(&Event {
            name: &phase.name,
            cat: "phase",
            ph: "X",
            ts,
            dur,
            pid,
            tid,
            id,
            args,
        })?;
    }
    let mut clock_uncertainty_us = 0;
    for epoch in records.chunk_by(|a, b| a.epoch == b.epoch && a.stages.len() == b.stages.len()) {
        let Some(clocks) = align(epoch, epoch[0].stages.len()) else { continue };
        clock_uncertainty_us = clock_uncertainty_us.max(clocks.uncertainty_us);
        write_epoch(&mut events, epoch, &clocks)?;
    }
    let about =
        About { clock_uncertainty_us, dropped_ubatches: trace.dropped, max_ubatches: MAX_UBATCHES };
    events.out.write_all(b"\n],\"otherData\":")?;
    serde_json::to_writer(&mut events.out, &about)?;
    events.out.write_all(b"}\n")?;
    events.out.flush()
}

fn names(events: &mut Events<impl Write>, trace: &Trace, n_stages: usize) -> io::Result<()> {
    events.name("process_name", COORDINATOR, 0, "coordinator")?;
    events.name("thread_name", COORDINATOR, FIRST_THREAD, "phases")?;
    for stage in 0..n_stages {
        let about = trace.stages.get(stage).map_or(String::new(), |about| format!(": {about}"));
        events.name("process_name", stage + 1, 0, &format!("stage {stage}{about}"))?;
        events.name("thread_name", stage + 1, FIRST_THREAD, "receive")?;
        events.name("thread_name", stage + 1, COMPUTE, "compute")?;
    }
    Ok(())
}

fn write_epoch(
    events: &mut Events<impl Write>,
    records: &[&UbatchRecord],
    clocks: &Clocks,
) -> io::Result<()> {
    // Whole microseconds: a frame's arrival may look one earlier than the end of the frame before.
    let mut received = vec![i64::MIN; clocks.offsets.len()];
    for (i, record) in records.iter().enumerate() {
        let UbatchRecord { id: ubatch, n_rows: rows, decode_rows, tokens, rows_in_vain, .. } =
            **record;
        let prefill_rows = rows.saturating_sub(decode_rows);
        let args = Args { ubatch, rows, prefill_rows, decode_rows, tokens, rows_in_vain };
        let id = format!("{:#x}", record.epoch << 40 | ubatch);
        let next = records.get(i + 1).filter(|next| next.id == ubatch + 1);
        let mut departed = record.sent as i64;
        events.overlapping("ubatch", COORDINATOR, departed, record.done as i64, &id, args)?;
        for (stage, offset) in clocks.offsets.iter().enumerate() {
            let (pid, clock) = (stage + 1, &record.clocks[stage]);
            let (arrived, computed) = at_stage(record, stage);
            let (arrived, computed) = (arrived + offset, computed + offset);
            let started = clock.started_us as i64 + offset;
            events.overlapping("hop", pid, departed, arrived, &id, args)?;
            let checked = (arrived + clock.receive_us as i64).min(started);
            let begun = arrived.max(received[stage]).min(checked);
            received[stage] = checked;
            events.span("receive", pid, FIRST_THREAD, begun, checked, args)?;
            events.overlapping("queue", pid, checked, started, &id, args)?;
            events.span("compute", pid, COMPUTE, started, computed, args)?;
            if let Some(next) = next {
                let sent = computed + next.clocks[stage].last_send_us as i64;
                events.span("send", pid, COMPUTE, computed, sent, args)?;
            }
            departed = computed;
        }
        events.overlapping("hop", COORDINATOR, departed, record.done as i64, &id, args)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::record::StageClock;
    use brigade_sched::StageTime;

    fn record(id: u64) -> UbatchRecord {
        let start = 1_000 * id;
        UbatchRecord {
            epoch: 1,
            id,
            sent: start,
            done: start + 900,
            n_rows: 5,
            decode_rows: 2,
            tokens: 2,
            rows_in_vain: 1,
            has_stale: false,
            gap_bound: None,
            stages: vec![StageTime { compute_us: 600, queued_us: 50, ..StageTime::default() }],
            clocks: vec![StageClock {
                started_us: 7_000 + start + 200,
                receive_us: 10,
                last_send_us: 30,
            }],
            wire_bytes: vec![100],
        }
    }

    #[test]
    fn spans_of_one_ubatch_follow_each_other() {
        let mut trace = Trace::default();
        trace.phase("decode".into(), 0, 5_000);
        trace.name_stages(vec!["layers 0..4".into()]);
        (0..3).for_each(|id| trace.ubatch(record(id)));
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let all = json["traceEvents"].as_array().unwrap();
        let of = |name: &str| all.iter().filter(|e| e["name"] == name).collect::<Vec<_>>();
        // Both hops took 150 and 100 us: 125 each.
        let compute = of("compute")[1];
        assert_eq!((&compute["ts"], &compute["dur"]), (&1_175.into(), &600.into()));
        assert_eq!(compute["args"]["prefill_rows"], 3);
        assert_eq!(
            (&of("receive")[1]["ts"], &of("receive")[1]["dur"]),
            (&1_125.into(), &10.into())
        );
        assert_eq!((&of("queue")[2]["ph"], &of("queue")[2]["ts"]), (&"b".into(), &1_135.into()));
        // The time of sending the last ubatch is not known.
        assert_eq!((of("send").len(), &of("send")[1]["dur"]), (2, &30.into()));
        assert_eq!((of("ubatch").len(), of("hop").len(), of("decode").len()), (6, 12, 1));
        assert_eq!(json["otherData"]["clock_uncertainty_us"], 250);
        assert!(all.iter().any(|e| e["args"]["name"] == "stage 0: layers 0..4"));
    }

    #[test]
    fn the_newest_are_kept() {
        let mut trace = Trace::default();
        (0..MAX_UBATCHES as u64 + 7).for_each(|id| trace.ubatch(record(id)));
        assert_eq!(
            (trace.ubatches.len(), trace.ubatches[0].id, trace.dropped),
            (MAX_UBATCHES, 7, 7)
        );
    }
}
