//! `--trace`: a timeline of what every stage did with each ubatch, in the Chrome trace event format. Perfetto
//! (ui.perfetto.dev) and chrome://tracing show it.
//!
//! The coordinator and every stage are processes in it. A stage has:
//!
//! - a thread `compute` with the spans `compute` and `send`, which never overlap;
//! - a thread `receive` with the spans `receive`: a frame is checked and copied;
//! - asynchronous spans, which may overlap: `hop`, from the end of the stage before to the frame's arrival,
//!   and `queue`, from there to its turn.
//!
//! The coordinator has an asynchronous span for each ubatch's whole trip, a span `hop` for its way back, and
//! a thread `phases` for what a command was doing.
//!
//! All times are the coordinator's, in microseconds since its line's driver began. [`clocks`] converts those
//! of other machines. Only the newest [`MAX_UBATCHES`] are kept.

mod chrome;
mod clocks;

use std::collections::VecDeque;
use std::io::{self, Write};

use brigade_sched::Micros;

use crate::measured::record::UbatchRecord;

/// Ubatches kept; some 30 MB of JSON on four stages.
pub const MAX_UBATCHES: usize = 20_000;

/// Limit of the phases that are kept.
const MAX_PHASES: usize = 4_096;

/// A stretch of time with a name.
#[derive(Clone, Debug, PartialEq)]
struct Phase {
    name: String,
    from: Micros,
    to: Micros,
}

/// The spans of a trace, collected until it is written.
#[derive(Debug, Default)]
pub struct Trace {
    ubatches: VecDeque<UbatchRecord>,
    phases: VecDeque<Phase>,
    /// Workers of the newest line's stages, in order.
    stages: Vec<String>,
    /// Ubatches that had to go for newer ones.
    dropped: u64,
}

impl Trace {
    /// Adds a ubatch that is back; the oldest one goes when there are too many.
    pub fn ubatch(&mut self, record: UbatchRecord) {
        if self.ubatches.len() == MAX_UBATCHES {
            self.ubatches.pop_front();
            self.dropped += 1;
        }
        self.ubatches.push_back(record);
    }

    /// Adds a stretch of time in which a command did one thing.
    pub fn phase(&mut self, name: String, from: Micros, to: Micros) {
        if self.phases.len() == MAX_PHASES {
            self.phases.pop_front();
        }
        self.phases.push_back(Phase { name, from, to });
    }

    /// Names the stages of the line that is up now.
    pub fn name_stages(&mut self, names: Vec<String>) {
        self.stages = names;
    }

    /// Writes all of it as one JSON object.
    ///
    /// # Errors The errors of `out`.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        chrome::write(self, out)
    }
}
