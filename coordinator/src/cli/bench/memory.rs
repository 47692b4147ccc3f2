//! Prints a table of memory after the last test: the resident memory of each worker process, beside the weights and
//! states that it has to hold.

use anyhow::Result;
use brigade_line::handle::StageResident;

use crate::cli::printing::output;

/// Prints one line a stage.
pub(super) fn print(stages: &[StageResident]) -> Result<()> {
    output::line(format_args!(
        "memory of each worker's process: what it must hold, what is resident now, and the most since it began:"
    ))?;
    for (i, stage) in stages.iter().enumerate() {
        output::line(format_args!("  stage {i}: {}", describe(stage)))?;
    }
    Ok(())
}

/// A row of the table in 10^6 bytes, with the peak's excess over weights and states.
fn describe(stage: &StageResident) -> String {
    let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    let held = stage.weight_bytes + stage.state_bytes;
    let [weights, states] = [stage.weight_bytes, stage.state_bytes].map(mb);
    if stage.peak_bytes == 0 {
        return format!("weights {weights}, states {states}, resident unknown");
    }
    let [resident, peak] = [stage.resident_bytes, stage.peak_bytes].map(mb);
    // States are touched only as far as sequences have come.
    let beyond = match stage.peak_bytes.checked_sub(held) {
        Some(more) => format!("{} more than weights and states", mb(more)),
        None => format!("{} less than weights and states", mb(held - stage.peak_bytes)),
    };
    format!("weights {weights}, states {states}, resident {resident}, at most {peak}: {beyond}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_named_by_its_sign() {
        let stage = |peak| StageResident {
            weight_bytes: 300_000_000,
            state_bytes: 20_000_000,
            resident_bytes: peak / 2,
            peak_bytes: peak,
            ..StageResident::default()
        };
        let more = describe(&stage(400_000_000));
        assert!(
            more.ends_with("resident 200 MB, at most 400 MB: 80 MB more than weights and states"),
            "{more}"
        );
        let less = describe(&stage(310_000_000));
        assert!(less.ends_with(": 10 MB less than weights and states"), "{less}");
        assert!(describe(&stage(0)).ends_with("resident unknown"));
    }
}
