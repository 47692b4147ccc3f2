//! The states of a line's sequences, as the driver asks for them. The driver does not know which workers have them.

use std::fmt::Debug;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use brigade_engine::batch::{CopyName, SlotId};

use crate::handle::StageResident;
use crate::stages::prefix_names::{Key, Names};

/// Resolves to the stages' answer, or to the reason why there is none.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// Resolves to the way of restoring each sequence; `None`: it cannot be restored.
pub type Found<'a> = Pin<Box<dyn Future<Output = Vec<Option<Choice>>> + Send + 'a>>;

/// A sequence whose copies are looked for: its name and its tokens.
pub type Sought = (CopyName, Vec<u32>);

/// Where a stage's layers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct From {
    /// The worker that has them, as it was asked: that of its stage; workers beside the line come after all stages.
    pub worker: usize,
    /// The layers that it has.
    pub layers: Range<u32>,
}

/// How a sequence goes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The position to go back to.
    pub len: u32,
    /// For each stage: the sources of its layers; empty: it holds them itself.
    pub sources: Vec<Vec<From>>,
    /// For each stage: whether its copies at this position are already at their destination.
    pub kept: Vec<bool>,
    /// The sources have records of prefixes: by these names, and whether there is something for that position alone.
    pub records: Option<(Arc<Names>, bool)>,
}

/// The usable records that workers have of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixChoice {
    /// The length of the prefix.
    pub len: u32,
    /// Whether there is something for that position alone; else pages are all that is needed.
    pub has_rest: bool,
    /// For each stage: the workers with its layers' records.
    pub sources: Vec<Vec<From>>,
    /// About how many bytes the slowest worker reads.
    pub nbytes: u64,
}

/// A slot into which a state goes.
#[derive(Clone, Copy, Debug)]
pub struct PutSlot {
    /// The slot.
    pub slot: SlotId,
    /// The last ubatch that went out before: if a later one changes the slot, it has become another sequence's, and stages take
    /// no more of the state. `None`: none has gone out on this line.
    pub unchanged_since: Option<u64>,
}

/// Access to the states of a line's sequences.
pub trait StateAccess: Debug + Send + Sync {
    /// Whether copies of states are taken.
    fn takes_copies(&self) -> bool;

    /// The state of the sequence in `slot`, over all layers: one snapshot, whatever the cut. The
    /// sequence must be at rest.
    ///
    /// # Errors
    /// A stage refused, or is gone.
    fn read(&self, slot: SlotId) -> Asked<'_, Vec<u8>>;

    /// Gives the sequence in `slot`, at rest and with pages of its own, the state of a snapshot.
    ///
    /// # Errors
    /// The snapshot does not fit, or a stage is gone. Some stages may have it then: the sequence is
    /// to be closed.
    fn write(&self, slot: SlotId, snapshot: Vec<u8>) -> Asked<'_, ()>;

    /// Bytes that each stage's process holds now, first stage first.
    ///
    /// # Errors
    /// A worker did not answer; the text says why.
    fn memory(&self) -> Asked<'_, Vec<StageResident>>;

    /// The way of restoring each sequence; `None`: it cannot be restored. Copies of all others are dropped by the
    /// workers. A worker that does not answer has none.
    fn find_copies<'a>(&'a self, sought: &'a [Sought]) -> Found<'a>;

    /// Restores the state after `tokens` to the sequence in a slot, on every stage. The sequence must be at rest and
    /// have pages of its own. Returns the bytes that went from one worker to another.
    ///
    /// # Errors
    /// A stage could not restore it. Other stages may have it then, so the sequence is to be closed.
    fn put_back(
        &self,
        to: PutSlot,
        name: CopyName,
        tokens: Vec<u32>,
        choice: Choice,
    ) -> Asked<'_, u64>;

    /// Whether every worker of the line keeps records of prefixes.
    fn keeps_prefixes(&self) -> bool;

    /// Finds the longest usable prefix of a prompt in the workers' records. At least one row is left to compute.
    ///
    /// # Errors
    /// A worker did not answer.
    fn find_prefix<'a>(&'a self, names: &'a Names) -> Asked<'a, Option<PrefixChoice>>;

    /// Whether every stage notices that a slot was changed while its state is written.
    fn notices_changes(&self) -> bool;

    /// Writes the state of the kept sequence in `slot`, which is at rest and has exactly these tokens; returns the bytes
    /// that were written. If stages notice changes, `unchanged_since` is the last ubatch that may have changed the slot:
    /// a stage that sees a later one change it ends, and has not written the state. `None`: nothing may change it.
    ///
    /// # Errors
    /// Why a stage's part is not written: the slot was changed, for example.
    fn save_prefix<'a>(
        &'a self,
        slot: SlotId,
        unchanged_since: Option<u64>,
        names: &'a Names,
    ) -> Asked<'a, u64>;

    /// Gives the sequence in a slot, at rest and with pages of its own, a state that was found.
    ///
    /// # Errors
    /// Why a stage has not got it. Some stages may have it then: the sequence is to be closed.
    fn load_prefix<'a>(
        &'a self,
        to: PutSlot,
        names: &'a Names,
        choice: PrefixChoice,
    ) -> Asked<'a, u64>;

    /// Drops all records that have something of a prompt.
    ///
    /// # Errors
    /// A worker did not do it.
    fn forget_prefix<'a>(&'a self, names: &'a Names) -> Asked<'a, ()>;

    /// Drops the records of this realm whose owner is not among `owners`.
    ///
    /// # Errors
    /// A worker did not do it.
    fn keep_prefixes_of(&self, realm: Key, owners: Vec<Key>) -> Asked<'_, ()>;
}
