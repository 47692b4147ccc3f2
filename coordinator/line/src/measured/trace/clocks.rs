//! Converts times of the stages' clocks to the coordinator's clock.
//!
//! A stage counts from the moment its lane opened, by a clock of its own. Only one thing binds the clocks:
//! nothing arrives before it was sent. Take hop `h` and the clocks of the two machines at its ends. Let `d_h`
//! be the least difference, over all ubatches, between arrival behind the hop and departure before it. Then
//! the offset of stage `h` to the coordinator lies between `-(d_0 + ... + d_h)` and `d_(h+1) + ... + d_S`.
//! Since frames go one way only, nothing more can be known.
//!
//! The width of that range is `d_0 + ... + d_S`. The offsets cancel in this sum, so it is the sum of the
//! least times of all hops. It is shared evenly, as if the fastest frame took equally long on every hop. So
//! no frame arrives before it left, and durations on one stage are exact. A time of one stage beside a time
//! of another is wrong by at most that sum, which is written into the trace.
//!
//! The clocks are taken to run at one rate. Machines whose clocks are not disciplined (by NTP, say) may drift
//! apart by 50 us a second. In long traces that shows as hops that grow or shrink.

use crate::measured::record::UbatchRecord;

/// The offsets that convert the stages' times to the coordinator's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clocks {
    /// Microseconds to add to a stage's time, first stage first.
    pub offsets: Vec<i64>,
    /// The uncertainty between times of different machines, in microseconds.
    pub uncertainty_us: i64,
}

/// When a ubatch's frame was at a stage, and when the stage had computed it, by the stage's clock.
pub(super) fn at_stage(record: &UbatchRecord, stage: usize) -> (i64, i64) {
    let (time, clock) = (&record.stages[stage], &record.clocks[stage]);
    let started = clock.started_us as i64;
    (started - time.queued_us as i64, started + time.compute_us as i64)
}

/// Offsets from the ubatches of one epoch, all of which passed `n_stages` stages; `None` without any.
pub(super) fn align(records: &[&UbatchRecord], n_stages: usize) -> Option<Clocks> {
    let least = |hop: usize| {
        let passed = records.iter().map(|record| {
            let departed = if hop == 0 { record.sent as i64 } else { at_stage(record, hop - 1).1 };
            let arrived =
                if hop == n_stages { record.done as i64 } else { at_stage(record, hop).0 };
            arrived - departed
        });
        passed.min()
    };
    let least: Vec<i64> = (0..=n_stages).map(least).collect::<Option<_>>()?;
    let uncertainty_us: i64 = least.iter().sum();
    let each = uncertainty_us / (n_stages as i64 + 1);
    let mut offset = 0;
    let offsets = least[..n_stages]
        .iter()
        .map(|least| {
            offset += each - least;
            offset
        })
        .collect();
    Some(Clocks { offsets, uncertainty_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::record::StageClock;
    use brigade_sched::StageTime;

    /// A ubatch that leaves at `sent` and takes `hop` us between stages that compute 1000 us each and are
    /// ahead of the coordinator by `ahead`.
    fn trip(sent: u64, hop: u64, ahead: &[u64]) -> UbatchRecord {
        let mut record = UbatchRecord { sent, ..UbatchRecord::default() };
        let mut now = sent;
        for ahead in ahead {
            now += hop;
            record.stages.push(StageTime {
                compute_us: 1_000,
                queued_us: 20,
                ..StageTime::default()
            });
            let started_us = now + 20 + ahead;
            record.clocks.push(StageClock { started_us, ..StageClock::default() });
            now += 1_020;
        }
        record.done = now + hop;
        record
    }

    #[test]
    fn clocks_far_apart_are_found() {
        let ahead = [5_000_000, 0, 77];
        let trips = [trip(100, 300, &ahead), trip(4_000, 50, &ahead), trip(9_000, 60, &ahead)];
        let clocks = align(&trips.iter().collect::<Vec<_>>(), 3).unwrap();
        assert_eq!(clocks, Clocks { offsets: vec![-5_000_000, 0, -77], uncertainty_us: 200 });
    }

    #[test]
    fn uneven_hops_are_off_by_their_sum_at_most_and_nothing_arrives_before_it_left() {
        let mut trips: Vec<_> = (0..5).map(|i| trip(10_000 * i, 40, &[9_999, 3])).collect();
        // The way back is slow.
        trips.iter_mut().for_each(|t| t.done += 500);
        let clocks = align(&trips.iter().collect::<Vec<_>>(), 2).unwrap();
        assert_eq!(clocks.uncertainty_us, 40 * 3 + 500);
        for (offset, truth) in clocks.offsets.iter().zip([-9_999, -3]) {
            assert!((offset - truth).abs() <= clocks.uncertainty_us, "{clocks:?}");
        }
        for t in &trips {
            let arrived = at_stage(t, 1).0 + clocks.offsets[1];
            assert!(arrived >= at_stage(t, 0).1 + clocks.offsets[0]);
            assert!(t.done as i64 >= at_stage(t, 1).1 + clocks.offsets[1]);
        }
    }

    #[test]
    fn without_ubatches_there_is_nothing_to_find() {
        assert_eq!(align(&[], 2), None);
    }
}
