//! Copies of states in a simulation: taken by the stages, found for the next line, and put back or lost. Lost copies
//! are drawn from a seed. Copies of a line that has parted are never lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use brigade_engine::batch::{CopyName, SeqOp, SlotId, UBatch};

use super::rng::Rng;
use crate::{Action, Interrupted, RequestId};

/// One in so many sequences finds no copies, and one in so many states is not put back.
const LOST: u64 = 6;

/// A state on its way into a slot.
#[derive(Debug)]
struct Waiting {
    request: RequestId,
    slot: SlotId,
    tokens: Vec<u32>,
    /// Whether the state is as it was when the sequence left the line.
    is_moved: bool,
    opened_by: Option<u64>,
}

/// A state that has come, or has not.
#[derive(Debug)]
pub(super) struct Arrived {
    pub request: RequestId,
    pub slot: SlotId,
    /// `None`: it did not come.
    pub tokens: Option<Vec<u32>>,
}

/// Copies of all sequences.
#[derive(Debug)]
pub(super) struct Copies {
    names: BTreeMap<SlotId, CopyName>,
    positions: BTreeMap<CopyName, BTreeSet<u32>>,
    /// Where sequences were when they left the line.
    left: BTreeMap<CopyName, u32>,
    n_moved: u64,
    /// Copies that were taken of a state while its sequence ran ahead of it.
    n_ahead: u64,
    waiting: Vec<Waiting>,
    arrived: VecDeque<Arrived>,
    rng: Rng,
}

impl Copies {
    pub fn new(seed: u64) -> Self {
        let rng = Rng::new(seed ^ 0xc0b1e5);
        let (names, positions, left, n_moved, n_ahead, waiting, arrived) = Default::default();
        Self { names, positions, left, n_moved, n_ahead, waiting, arrived, rng }
    }

    /// Whether a state is on its way.
    pub fn is_putting_back(&self) -> bool {
        !self.waiting.is_empty() || !self.arrived.is_empty()
    }

    /// Follows a ubatch that is sent; the error names an operation that cannot be done.
    pub fn sent(&mut self, ubatch: &UBatch) -> Result<(), String> {
        for op in &ubatch.ops {
            match op {
                SeqOp::Open { slot, .. } => {
                    for waiting in self.waiting.iter_mut().filter(|w| w.slot == *slot) {
                        waiting.opened_by.get_or_insert(ubatch.id);
                    }
                }
                SeqOp::Name { slot, name: Some(name) } => {
                    if self.names.values().any(|other| other == name) {
                        return Err(format!("{slot:?} has the name of another"));
                    }
                    self.names.insert(*slot, *name);
                }
                SeqOp::Name { slot, name: None } | SeqOp::Close { slot } => {
                    self.names.remove(slot);
                }
                SeqOp::Checkpoint { slot, len, plane, parting, .. } => {
                    self.n_ahead += u64::from(plane.is_some());
                    let name = self.names.get(slot);
                    let name = name.ok_or_else(|| format!("a checkpoint of {slot:?}, unnamed"))?;
                    if *parting {
                        self.left.insert(*name, *len);
                    }
                    self.positions.entry(*name).or_default().insert(*len);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A line comes: what each sequence can go back to, if its copies are not lost.
    pub fn found(&mut self, interrupted: &[Interrupted]) -> BTreeMap<RequestId, u32> {
        (self.names, self.waiting, self.arrived) = Default::default();
        let mut found = BTreeMap::new();
        for Interrupted { request, name, tokens, .. } in interrupted {
            let positions = self.positions.get(name).into_iter().flatten();
            let there: Vec<u32> =
                positions.copied().filter(|len| (*len as usize) < tokens.len()).collect();
            if let Some(len) = self.left.get(name) {
                found.insert(*request, *len);
            } else if !there.is_empty() && !self.rng.one_in(LOST) {
                let i = self.rng.between(0, there.len() as u64 - 1);
                found.insert(*request, there[i as usize]);
            }
        }
        found
    }

    /// A state may be wanted.
    ///
    /// An error says that a sequence goes back to another position than the one at which it left its line.
    pub fn observe(&mut self, action: &Action) -> Result<(), String> {
        let Action::Restore { request, slot, name, tokens } = action else { return Ok(()) };
        let left = self.left.remove(name);
        if left.is_some_and(|len| len as usize != tokens.len()) {
            return Err(format!("{request:?} left at {left:?} and goes to {}", tokens.len()));
        }
        let (request, slot, tokens, is_moved) = (*request, *slot, tokens.clone(), left.is_some());
        self.waiting.push(Waiting { request, slot, tokens, is_moved, opened_by: None });
        Ok(())
    }

    /// States put back as they had left a line.
    pub fn n_moved(&self) -> u64 {
        self.n_moved
    }

    /// Copies that were taken of a state while its sequence ran ahead of it.
    pub fn n_ahead(&self) -> u64 {
        self.n_ahead
    }

    /// A ubatch is back: states may come after it.
    pub fn returned(&mut self, ubatch: u64) {
        let due = |waiting: &mut Waiting| waiting.opened_by.is_some_and(|id| id <= ubatch);
        for Waiting { request, slot, tokens, is_moved, .. } in self.waiting.extract_if(.., due) {
            self.n_moved += u64::from(is_moved);
            let tokens = (is_moved || !self.rng.one_in(LOST)).then_some(tokens);
            self.arrived.push_back(Arrived { request, slot, tokens });
        }
    }

    /// The next state that has come.
    pub fn arrive(&mut self) -> Option<Arrived> {
        self.arrived.pop_front()
    }
}
