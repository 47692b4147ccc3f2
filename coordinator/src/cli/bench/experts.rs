//! Prints where the rows of routed experts were computed, beside a GPU, and who waited for whom.

use anyhow::Result;
use brigade_line::handle::{StageExperts, StageResident};
use brigade_plan::format_bytes;

use super::Row;
use crate::cli::printing::output;

/// The work between two readings of the stages; empty where no experts were computed beside a GPU.
pub(super) fn between(before: &[StageResident], after: &[StageResident]) -> Vec<StageExperts> {
    let since =
        |(before, after): (&StageResident, &StageResident)| after.experts.since(before.experts);
    let all: Vec<StageExperts> = before.iter().zip(after).map(since).collect();
    let is_beside = |stage: &StageExperts| stage.host_rows > 0 || stage.copied_rows > 0;
    if all.iter().any(is_beside) { all } else { Vec::new() }
}

/// Prints one line for each stage of each row whose experts lie with a host.
pub(super) fn print(rows: &[Row]) -> Result<()> {
    for row in rows {
        for (i, stage) in row.experts.iter().enumerate() {
            let (test, parallel) = (row.test, row.parallel);
            output::line(format_args!(
                "experts, {test} x {parallel}, stage {i}: {}",
                describe(stage)
            ))?;
        }
    }
    Ok(())
}

/// Shares of rows by place, hits of copies, bytes and times.
fn describe(stage: &StageExperts) -> String {
    let StageExperts { device_rows, copied_rows, host_rows, sent_bytes, .. } = *stage;
    let percent = |rows: u64, all: u64| rows as f64 / all.max(1) as f64 * 100.0;
    let all = device_rows + host_rows;
    let seconds = |us: u64| us as f64 / 1e6;
    format!(
        "{:.0} % of rows on the GPU, {:.0} % with copies of the host's experts, {:.0} % with the host (hits {:.0} %); {} sent; \
         the host waited {:.3} s for rows and computed {:.3} s",
        percent(device_rows - copied_rows.min(device_rows), all),
        percent(copied_rows, all),
        percent(host_rows, all),
        percent(copied_rows, copied_rows + host_rows),
        format_bytes(sent_bytes),
        seconds(stage.host_waited_us),
        seconds(stage.host_computed_us),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_by_place() {
        let experts = |n: u64| StageExperts {
            device_rows: 70 * n,
            copied_rows: 20 * n,
            host_rows: 30 * n,
            sent_bytes: n << 20,
            host_waited_us: 1_500 * n,
            host_computed_us: 250_000 * n,
        };
        let at = |n| [StageResident { experts: experts(n), ..StageResident::default() }];
        let stages = between(&at(1), &at(2));
        assert_eq!(stages, [experts(1)]);
        let text = describe(&stages[0]);
        assert_eq!(
            text,
            "50 % of rows on the GPU, 20 % with copies of the host's experts, 30 % with the host (hits 40 %); 1.00 MiB sent; the host \
             waited 0.002 s for rows and computed 0.250 s"
        );
        assert_eq!(between(&at(2), &at(2)), []);
        let on_gpu = StageExperts { device_rows: 9, ..StageExperts::default() };
        let stage = StageResident { experts: on_gpu, ..StageResident::default() };
        assert_eq!(between(&[StageResident::default()], &[stage]), []);
    }
}
