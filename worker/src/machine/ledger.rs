//! What the stages of a node have of its memory: a table in memory that all of their processes inherit.
//!
//! A stage has no part of its own. It asks for what it is about to take, and gets it if all stages together then have
//! no more than the node may take. It gives back what it has freed. A row is raised under a lock only, which the system
//! gives back when its holder dies. Each stage writes its own row. The node clears that of a process that has ended,
//! however it ended. Room for the processes themselves is set aside for all stages, so that one can always begin again.
//!
//! A worker of its own has a ledger too, with a limit and without others.

pub mod room;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, MemfdFlags, flock, ftruncate, memfd_create};
use rustix::io::retry_on_intr;

use super::memory::PROCESS_BYTES;
use super::share::{MAX_STAGES, Share};

/// Bytes of a number in the table.
const WORD: usize = size_of::<u64>();
/// Words before the rows: the node's number and its limits.
const HEADER: usize = 3;
/// Words of a stage's row: its memory by place, and two for each [`room::Medium`].
const ROW: usize = 6;
/// Words of the table.
const WORDS: usize = HEADER + ROW * MAX_STAGES;

/// Bytes of memory, by where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Where stages lie: the host's memory, or a GPU's own.
    pub stage: u64,
    /// For experts in the host's memory beside a GPU with memory of its own; 0 where there is none.
    pub host: u64,
}

impl Amount {
    /// So many bytes where stages lie.
    pub fn of_stage(stage: u64) -> Self {
        Self { stage, host: 0 }
    }

    /// The sum, by place.
    pub fn plus(self, other: Self) -> Self {
        let stage = self.stage.saturating_add(other.stage);
        Self { stage, host: self.host.saturating_add(other.host) }
    }

    /// What is left of it without `other`, by place.
    pub fn minus(self, other: Self) -> Self {
        let stage = self.stage.saturating_sub(other.stage);
        Self { stage, host: self.host.saturating_sub(other.host) }
    }

    /// The larger of both, by place.
    pub fn max(self, other: Self) -> Self {
        Self { stage: self.stage.max(other.stage), host: self.host.max(other.host) }
    }

    fn is_within(self, limit: Self) -> bool {
        self.stage <= limit.stage && self.host <= limit.host
    }
}

/// The table as a node makes it; its stages inherit it.
#[derive(Debug)]
pub struct Book(OwnedFd);

impl Book {
    /// An empty table of the node with this number, which is hardly ever another's. Its limits are those that the first
    /// stage says.
    ///
    /// # Errors
    /// The system's.
    pub fn new(node: u64) -> io::Result<Self> {
        let file = memfd_create("ledger", MemfdFlags::empty())?;
        ftruncate(&file, (WORDS * WORD) as u64)?;
        let book = Self(file);
        write(&book.file()?, 0, &[node])?;
        Ok(book)
    }

    /// The file's descriptor, for a stage's process.
    pub fn inherited(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Gives back all that a stage had whose process has ended.
    pub fn forget(&self, share: Share) {
        let cleared = self.file().and_then(|file| write(&file, row_of(share), &[0; ROW]));
        if let Err(error) = cleared {
            tracing::error!(stage = %share, %error, "the memory of a stage that has ended cannot be given back");
        }
    }

    fn file(&self) -> io::Result<File> {
        open(self.inherited())
    }
}

/// Why a stage does not get what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other stages of this node leave {} bytes of its memory", .left.stage)]
pub struct Lacking {
    /// What it may have at most now, with all that it has.
    pub left: Amount,
}

/// Why a stage cannot have a ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// There is no such file.
    #[error("cannot open the ledger of this node's memory: {0}")]
    Open(#[from] io::Error),
    /// The processes alone take all memory.
    #[error(
        "{of} stages need {needs} bytes for their processes alone, and the node may take {limit}: give it fewer --stages or more --memory"
    )]
    TooMany {
        /// Stages of the node.
        of: usize,
        /// Bytes that their processes take.
        needs: u64,
        /// Bytes that the node may take.
        limit: u64,
    },
}

/// Memory of a stage's node, as its stages have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// The node's number: that of its stages, and hardly ever another's.
    pub node: u64,
    /// Stages of the node.
    pub stages: usize,
    /// Bytes that all of them may take.
    pub limit: Amount,
    /// Bytes that they have, with their processes.
    pub granted: Amount,
    /// The part of these that this stage has.
    pub own: Amount,
}

/// What a worker may take; clones share it.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// What the node or the worker may take.
    limit: Amount,
    /// `None`: a worker of its own.
    shared: Option<Shared>,
    holds: Mutex<Holds>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    share: Share,
    node: u64,
}

/// What this process has asked for.
#[derive(Debug, Default)]
struct Holds {
    next: u64,
    /// A stage and those that take its place: the largest counts.
    stages: BTreeMap<u64, Amount>,
    /// What is there beside them: all of it counts.
    beside: BTreeMap<u64, Amount>,
}

impl Holds {
    fn total(&self) -> Amount {
        let stage = self.stages.values().copied().fold(Amount::default(), Amount::max);
        self.beside.values().copied().fold(stage, Amount::plus)
    }
}

/// What a grant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Stage,
    Beside,
}

/// Memory that was granted, until it is dropped.
#[derive(Debug)]
pub struct Held {
    ledger: Ledger,
    id: u64,
    amount: Amount,
}

impl Held {
    /// How much it is.
    pub fn amount(&self) -> Amount {
        self.amount
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut holds = self.ledger.holds();
        holds.stages.remove(&self.id);
        holds.beside.remove(&self.id);
        self.ledger.lower(holds.total());
    }
}

impl Ledger {
    /// That of a worker of its own, which may take so much.
    pub fn alone(limit: Amount) -> Self {
        Self(Arc::new(Inner { limit, shared: None, holds: Mutex::default() }))
    }

    /// That of a node's stage, which inherits the table. The stage has nothing yet. `limit` is what the node may take, if
    /// no stage has said it before.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn of_node(file: i32, share: Share, limit: Amount) -> Result<Self, LedgerError> {
        let file = open(file)?;
        let lock = lock(&file)?;
        let words = read(&file)?;
        write(&file, row_of(share), &[0; ROW])?;
        let said = Amount { stage: words[1], host: words[2] };
        let is_first = said.stage == 0;
        if is_first {
            write(&file, 1, &[limit.stage, limit.host])?;
        }
        drop(lock);
        let limit = if is_first { limit } else { said };
        let needs = processes(share.of).stage;
        if limit.stage <= needs {
            return Err(LedgerError::TooMany { of: share.of, needs, limit: limit.stage });
        }
        let shared = Some(Shared { file, share, node: words[0] });
        Ok(Self(Arc::new(Inner { limit, shared, holds: Mutex::default() })))
    }

    /// The most that this worker may take now: what the other stages leave, if it is one of a node.
    pub fn limit(&self) -> Amount {
        match &self.0.shared {
            None => self.0.limit,
            Some(shared) => shared.left(self.0.limit),
        }
    }

    /// The most that it may ever take: what is left while the other stages of its node have nothing.
    pub fn most(&self) -> Amount {
        let of = self.0.shared.as_ref().map_or(0, |shared| shared.share.of);
        self.0.limit.minus(processes(of))
    }

    /// The part that this worker is sure of while no other stage has more: the whole, or an equal part of a node's.
    pub fn part(&self) -> Amount {
        let Amount { stage, host } = self.0.limit;
        let of = self.0.shared.as_ref().map_or(1, |shared| shared.share.of) as u64;
        Amount { stage: stage / of, host: host / of }
    }

    /// The memory of the node; `None` for a worker of its own.
    pub fn node(&self) -> Option<NodeMemory> {
        let shared = self.0.shared.as_ref()?;
        let Shared { share, node, .. } = shared;
        let own = self.holds().total().plus(processes(1));
        let others = self.0.limit.minus(processes(share.of)).minus(shared.left(self.0.limit));
        let granted = others.plus(own).plus(processes(share.of - 1));
        Some(NodeMemory { node: *node, stages: share.of, limit: self.0.limit, granted, own })
    }

    /// Grants memory for a stage. It takes the place of the stage that is there: of both, the larger one counts.
    ///
    /// # Errors
    /// The other stages have too much.
    pub fn stage(&self, amount: Amount) -> Result<Held, Lacking> {
        self.hold(For::Stage, |_| amount)
    }

    /// Grants memory beside the stage.
    ///
    /// # Errors
    /// As [`Ledger::stage`].
    pub fn beside(&self, bytes: u64) -> Result<Held, Lacking> {
        self.hold(For::Beside, |_| Amount::of_stage(bytes))
    }

    /// Grants memory beside the stage, as much of `bytes` as is left. A worker of its own knows itself what it has: it gets
    /// `room`. A node's stage needs no more than `bytes`.
    pub fn beside_up_to(&self, bytes: u64, room: u64) -> Option<Held> {
        let wanted = if self.0.shared.is_some() { bytes.min(room) } else { room };
        self.hold(For::Beside, |left| Amount::of_stage(wanted.min(left.stage))).ok()
    }

    /// Grants what `wanted` makes of that which is left beside all that was granted.
    fn hold(&self, what: For, wanted: impl FnOnce(Amount) -> Amount) -> Result<Held, Lacking> {
        let mut holds = self.holds();
        let id = holds.next;
        holds.next += 1;
        let Some(shared) = &self.0.shared else {
            let amount = wanted(Amount { stage: u64::MAX, host: u64::MAX });
            return Ok(self.note(&mut holds, what, id, amount));
        };
        let before = holds.total();
        // Without the lock nothing is granted; without the table nothing is known to be left.
        let lock = lock(&shared.file).map_err(told);
        let left = if lock.is_ok() { shared.left(self.0.limit) } else { before };
        let held = self.note(&mut holds, what, id, wanted(left.minus(before)));
        let total = holds.total();
        let is_there = total.is_within(left) || total.is_within(before);
        if is_there && shared.write(total).is_ok() {
            return Ok(held);
        }
        drop(lock);
        drop(holds);
        // It gives back what was noted for it.
        drop(held);
        Err(Lacking { left })
    }

    fn note(&self, holds: &mut Holds, what: For, id: u64, amount: Amount) -> Held {
        match what {
            For::Stage => holds.stages.insert(id, amount),
            For::Beside => holds.beside.insert(id, amount),
        };
        Held { ledger: self.clone(), id, amount }
    }

    /// Gives back all above `total`; this needs no lock.
    fn lower(&self, total: Amount) {
        if let Some(shared) = &self.0.shared {
            // It was told; the row says too much then, until the process ends.
            let _ = shared.write(total);
        }
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        // Each change is whole before anything that could panic.
        self.0.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// What this stage may have in all, beside its process, while the others have what they have.
    fn left(&self, limit: Amount) -> Amount {
        let Ok(words) = read(&self.file).map_err(told) else { return Amount::default() };
        let own = row_of(self.share);
        let others = rows()
            .filter(|at| *at != own)
            .map(|at| Amount { stage: words[at], host: words[at + 1] });
        let others = others.fold(processes(self.share.of), Amount::plus);
        limit.minus(others)
    }

    fn write(&self, row: Amount) -> io::Result<()> {
        write(&self.file, row_of(self.share), &[row.stage, row.host]).map_err(told)
    }
}

/// What so many processes take beside their stages.
fn processes(n: usize) -> Amount {
    Amount::of_stage(PROCESS_BYTES.saturating_mul(n as u64))
}

/// The first words of all rows.
fn rows() -> impl Iterator<Item = usize> {
    (HEADER..WORDS).step_by(ROW)
}

/// The first word of a stage's row.
fn row_of(share: Share) -> usize {
    HEADER + ROW * (share.number - 1)
}

fn told(error: io::Error) -> io::Error {
    tracing::error!(%error, "the ledger of this node's memory cannot be read or written");
    error
}

/// Opens an inherited file, with a lock of its own.
fn open(number: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{number}"))
}

fn read(file: &File) -> io::Result<[u64; WORDS]> {
    let mut bytes = [0; WORDS * WORD];
    file.read_exact_at(&mut bytes, 0)?;
    let (words, _) = bytes.as_chunks::<WORD>();
    let mut table = [0; WORDS];
    table.iter_mut().zip(words).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
    Ok(table)
}

fn write(file: &File, at: usize, words: &[u64]) -> io::Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all_at(&bytes, (at * WORD) as u64)
}

/// The right to raise a row, until it is dropped.
struct Lock<'a>(&'a File);

fn lock(file: &File) -> io::Result<Lock<'_>> {
    retry_on_intr(|| flock(file, FlockOperation::LockExclusive))?;
    Ok(Lock(file))
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if let Err(error) = flock(self.0, FlockOperation::Unlock) {
            told(error.into());
        }
    }
}

#[cfg(test)]
mod tests;
