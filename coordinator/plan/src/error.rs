//! Reasons why there is no plan, with advice.

use std::fmt;

use super::advice::Advice;
use super::units::format_bytes;

/// Why planning failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No workers are given.
    #[error("no workers: name some with --workers N or --worker HOST:PORT")]
    NoWorkers,
    /// The model has no layers.
    #[error("the model {0} has no layers")]
    NoLayers(String),
    /// More workers than [`super::MAX_WORKERS`].
    #[error("{0} workers are more than the limit of {max}", max = super::MAX_WORKERS)]
    TooManyWorkers(usize),
    /// A number that cannot be.
    #[error("{what} is {value}; it must be a number above 0")]
    BadNumber {
        /// The name of the input.
        what: String,
        /// The value that was given.
        value: String,
    },
    /// More layers' experts with the host than there are layers.
    #[error(
        "worker {worker} is to have the experts of {n} layers in the host's memory, and the model has {n_layers}: start it with \
         --n-cpu-moe {n_layers} or less, or --cpu-moe for all"
    )]
    HostExperts {
        /// The worker's name.
        worker: String,
        /// Layers that were asked for.
        n: u32,
        /// Layers that there are.
        n_layers: usize,
    },
    /// A cut by hand that cannot be.
    #[error("{cut} does not fit: {problem}")]
    Cut {
        /// The cut as typed.
        cut: String,
        /// The problem, and a cut that would fit.
        problem: String,
    },
    /// The model does not fit.
    #[error("{0}")]
    DoesNotFit(Shortage),
}

/// The memory that is lacking, for the cuts that come closest.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortage {
    /// Name of the model.
    pub model: String,
    /// Bytes that all stages need together.
    pub needed: u64,
    /// Bytes that all workers have.
    pub available: u64,
    /// Worker, bytes needed there, bytes there.
    pub short: Vec<(String, u64, u64)>,
    /// Changes that would make it fit.
    pub advice: Advice,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} does not fit: it needs {} and the workers have {} together",
            self.model,
            format_bytes(self.needed),
            format_bytes(self.available)
        )?;
        for (worker, needs, has) in &self.short {
            let lacks = format_bytes(needs - has);
            write!(
                f,
                "; {worker} lacks {lacks} ({} of {})",
                format_bytes(*has),
                format_bytes(*needs)
            )?;
        }
        let Advice { suffices, helps } = &self.advice;
        if !suffices.is_empty() {
            write!(f, "; each of these makes it fit: {}", suffices.join(", or "))?;
        }
        write!(f, "; not enough or not known to be: {}", helps.join(", "))
    }
}
