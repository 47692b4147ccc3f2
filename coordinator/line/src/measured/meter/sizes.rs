//! How long ubatches of each size took on a real line. Simulations are compared with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measured::record::UbatchRecord;

/// The quantile of hops that counts as undisturbed: the fastest one in this many.
const UNDISTURBED: usize = 10;

/// Ubatches of one size in a stretch of work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UbatchSize {
    /// Tokens computed by each of them.
    pub rows: u32,
    /// How many there were.
    pub count: usize,
    /// Mean time that each stage computed, in microseconds, first stage first.
    pub compute_us: Vec<f64>,
    /// Mean time that each stage's executor took to encode it and hand it on, in microseconds.
    pub send_us: Vec<f64>,
    /// Mean of `|time - mean| / mean` over ubatches and stages.
    pub deviation: f64,
}

/// Sums ubatches up by their number of rows, fewest first; empty ones are left out.
pub fn sizes(records: &[UbatchRecord]) -> Vec<UbatchSize> {
    let mut by_rows: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (i, record) in records.iter().enumerate().filter(|(_, r)| r.n_rows > 0) {
        by_rows.entry(record.n_rows).or_default().push(i);
    }
    by_rows.into_iter().map(|(rows, at)| size(records, rows, &at)).collect()
}

fn size(records: &[UbatchRecord], rows: u32, at: &[usize]) -> UbatchSize {
    let n_stages = records[at[0]].stages.len();
    let compute_us: Vec<f64> = (0..n_stages)
        .map(|stage| mean(at.iter().map(|&i| records[i].stages[stage].compute_us as f64)))
        .collect();
    // The time of sending is reported with the next ubatch.
    let send = |i: usize, stage: usize| {
        let next = records.get(i + 1).filter(|next| next.id == records[i].id + 1)?;
        Some(next.clocks.get(stage)?.last_send_us as f64)
    };
    let send_us =
        (0..n_stages).map(|stage| mean(at.iter().filter_map(|&i| send(i, stage)))).collect();
    let off = |stage: usize, us: f64| match compute_us[stage] {
        mean if mean > 0.0 => (us - mean).abs() / mean,
        _ => 0.0,
    };
    let all = at.iter().flat_map(|&i| records[i].stages.iter().enumerate());
    let deviation = mean(all.map(|(stage, time)| off(stage, time.compute_us as f64)));
    UbatchSize { rows, count: at.len(), compute_us, send_us, deviation }
}

/// The mean; 0 where there are no values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = values.fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
    if n > 0.0 { sum / n } else { 0.0 }
}

/// Microseconds that one hop takes when nothing is in its way: the time of a fast trip outside all stages,
/// shared among its hops.
pub fn hop_us(records: &[UbatchRecord]) -> f64 {
    let outside = records.iter().filter(|r| r.n_rows > 0).map(|record| {
        let inside: u64 = record.stages.iter().map(|t| t.compute_us + t.queued_us).sum();
        let trip = record.done.saturating_sub(record.sent);
        trip.saturating_sub(inside) as f64 / (record.stages.len() + 1) as f64
    });
    let mut hops: Vec<f64> = outside.collect();
    hops.sort_by(f64::total_cmp);
    hops.get(hops.len() / UNDISTURBED).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::record::StageClock;
    use brigade_sched::StageTime;

    fn record(id: u64, n_rows: u32, compute_us: u64) -> UbatchRecord {
        UbatchRecord {
            id,
            sent: 0,
            done: 2 * compute_us + 300,
            n_rows,
            stages: vec![StageTime { compute_us, queued_us: 0, ..StageTime::default() }; 2],
            clocks: vec![StageClock { last_send_us: 10 * id, ..StageClock::default() }; 2],
            ..UbatchRecord::default()
        }
    }

    #[test]
    fn equal_sizes_are_averaged() {
        let records = [record(0, 8, 900), record(1, 1, 50), record(2, 8, 1_100), record(3, 0, 1)];
        let found = sizes(&records);
        assert_eq!(found.iter().map(|s| (s.rows, s.count)).collect::<Vec<_>>(), [(1, 1), (8, 2)]);
        assert_eq!(found[1].compute_us, [1_000.0, 1_000.0]);
        // Told by ubatches 1 and 3.
        assert_eq!((found[1].send_us[0], found[0].send_us[0]), (20.0, 20.0));
        assert!((found[1].deviation - 0.1).abs() < 1e-9 && found[0].deviation == 0.0);
        assert_eq!(hop_us(&records), 100.0);
        assert!(sizes(&[]).is_empty() && hop_us(&[]) == 0.0);
    }
}
