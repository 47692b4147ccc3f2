//! The line's progress and the list of workers, as types. The cluster fills them in. The log, `/health` and terminals
//! show them.

use std::fmt;

use brigade_plan::format_bytes;
use tokio::sync::watch;

/// A step towards a line, and its progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loading {
    /// The step in words; it may name workers.
    pub what: String,
    /// Bytes of it done so far, over all stages.
    pub done_bytes: u64,
    /// Bytes of it altogether; 0 while unknown.
    pub total_bytes: u64,
    /// How fast, on the average since it began; `None` before that can be told.
    pub bytes_per_second: Option<u64>,
    /// Seconds left at that rate.
    pub seconds_left: Option<u64>,
}

impl Loading {
    /// Something without a size.
    pub fn step(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    /// How much of it is done, of one; `None` where its size is not known.
    pub fn share(&self) -> Option<f64> {
        let of_all = |total: u64| self.done_bytes as f64 / total as f64;
        Some(self.total_bytes).filter(|total| *total > 0).map(of_all)
    }
}

/// `sending weights: 12.00 GiB of 40.00 GiB, 1.10 GiB/s, 26 s left`.
impl fmt::Display for Loading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.total_bytes > 0 {
            let [done, total] = [self.done_bytes, self.total_bytes].map(format_bytes);
            write!(f, ": {done} of {total}")?;
        }
        if let Some(rate) = self.bytes_per_second {
            write!(f, ", {}/s", format_bytes(rate))?;
        }
        match self.seconds_left {
            Some(seconds) => write!(f, ", {seconds} s left"),
            None => Ok(()),
        }
    }
}

/// The workers that are connected or wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roll {
    /// Workers of the line that is up or being built, first stage first.
    pub line: Vec<String>,
    /// Workers that are there and hold no layers.
    pub spare: Vec<String>,
    /// Workers that are there while there is no line.
    pub waiting: Vec<String>,
    /// Workers that are wanted and not there, with the reasons.
    pub missing: Vec<String>,
    /// Workers that the first line waits for.
    pub expected: usize,
    /// Bytes that the workers that are there may use.
    pub memory_bytes: u64,
    /// Bytes that the model needs over as many; 0 where that cannot be told.
    pub memory_needed_bytes: u64,
}

impl Roll {
    /// Workers that are there.
    pub fn there(&self) -> usize {
        self.line.len() + self.spare.len() + self.waiting.len()
    }

    /// `12.00 GiB there, 40.00 GiB needed`, of memory.
    pub fn memory(&self) -> String {
        let [there, needed] = [self.memory_bytes, self.memory_needed_bytes].map(format_bytes);
        format!("{there} there, {needed} needed")
    }
}

/// A receiver that follows the list of workers.
pub type RollWatch = watch::Receiver<Roll>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_said_with_what_is_known_of_it() {
        let mut loading = Loading::step("sending weights");
        assert_eq!(loading.to_string(), "sending weights");
        (loading.done_bytes, loading.total_bytes) = (12 << 30, 40 << 30);
        assert_eq!(loading.to_string(), "sending weights: 12.00 GiB of 40.00 GiB");
        (loading.bytes_per_second, loading.seconds_left) = (Some(1 << 30), Some(28));
        let all = "sending weights: 12.00 GiB of 40.00 GiB, 1.00 GiB/s, 28 s left";
        assert_eq!(loading.to_string(), all);
    }
}
