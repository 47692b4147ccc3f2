//! Keeps what a stage learns of its experts' uses: a thread writes the record now and then, so that no ubatch waits for
//! the disk.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use blake3::Hash;
use brigade_engine::device::UseCounts;

use super::expert_record::ExpertRecords;

/// How often a record is written while its stage computes.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// Writes records of the stage that learns, if there is one.
#[derive(Debug)]
pub(super) struct Learning {
    records: ExpertRecords,
    /// The stage that learns.
    now: Mutex<Option<Now>>,
}

#[derive(Debug)]
struct Now {
    model: Hash,
    counts: UseCounts,
    /// What [`UseCounts::n_counted`] was when the record was last written.
    written: u64,
}

/// A stage that learns. Its record is written a last time when this is dropped.
#[derive(Debug)]
pub(super) struct Learner {
    learning: Arc<Learning>,
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Learning {
    pub(super) fn new(records: ExpertRecords) -> Self {
        Self { records, now: Mutex::default() }
    }

    /// The folder of records.
    pub(super) fn records(&self) -> &ExpertRecords {
        &self.records
    }

    /// A stage of this model learns from now on.
    pub(super) fn begin(self: &Arc<Self>, model: Hash, counts: UseCounts) -> Learner {
        let now = Some(Now { model, counts, written: 0 });
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let (end, ended) = channel();
        let learning = self.clone();
        let write = move || learning.write_until(&ended);
        let thread = std::thread::Builder::new().name("experts".into()).spawn(write);
        let thread = thread.inspect_err(|error| {
            tracing::warn!(%error, "no thread for the record of experts: it is written at the stage's end only");
        });
        Learner { learning: self.clone(), end: Some(end), thread: thread.ok() }
    }

    fn write_until(&self, ended: &Receiver<()>) {
        while ended.recv_timeout(WRITE_EVERY) == Err(RecvTimeoutError::Timeout) {
            self.write();
        }
    }

    /// Writes the record of the stage that learns, if it has learned something since. Blocks.
    pub(super) fn write(&self) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Now { model, counts, written }) = &mut *now else { return };
        let n_counted = counts.n_counted();
        if n_counted != *written {
            self.records.write(model, &counts.read());
            *written = n_counted;
        }
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was printed; the record is then older.
            let _ = thread.join();
        }
        self.learning.write();
        *self.learning.now.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
