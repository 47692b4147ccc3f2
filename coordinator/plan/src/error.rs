//! Reasons why there is no plan, with advice.

use std::fmt;

use super::advice::Advice;
use super::units::{format_bytes, format_bytes_up};

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
    /// The model has memory, and its weights lack room in caches.
    #[error("{0}")]
    DiskLacks(DiskShortage),
}

/// The room in caches that is lacking.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskShortage {
    /// Name of the model.
    pub model: String,
    /// Bytes of all its weights, as they are sent.
    pub needed: u64,
    /// Workers whose caches are too small, each once.
    pub caches: Vec<SmallCache>,
}

/// A cache that lacks room for a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallCache {
    /// The worker's name.
    pub worker: String,
    /// Bytes that its stage needs where all stages have the memory that they need.
    pub needs: u64,
    /// Bytes that other models leave of the limit.
    pub left: u64,
    /// Bytes that the cache may hold.
    pub limit: u64,
}

impl fmt::Display for DiskShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = format_bytes(self.needed);
        write!(f, "the weights of {} ({needed}) lack room in the cache", self.model)?;
        let (mut joint, mut least) = (" of ", 0);
        for SmallCache { worker, needs, left, limit } in &self.caches {
            let (bytes, limit_text) = (format_bytes_up(*needs), format_bytes(*limit));
            write!(
                f,
                "{joint}{worker}: a stage there needs {bytes}, and the limit is {limit_text}"
            )?;
            if left < limit {
                write!(f, ", of which other models leave {}", format_bytes(*left))?;
            }
            joint = "; of ";
            least = least.max(needs.saturating_add(limit - left));
        }
        let least = format_bytes_up(least);
        write!(
            f,
            "; give a worker --cache-limit {least} or more, or the model's file at the coordinator's path"
        )
    }
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
