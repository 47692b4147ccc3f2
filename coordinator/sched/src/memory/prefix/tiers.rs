//! Lower tiers of the prefix cache: chooses the states that are to be written below the stages' memory, and makes
//! places for those that are loaded. The driver writes and finds them beside the scheduler.

use std::collections::BTreeSet;

use crate::Scheduler;
use crate::events::{Action, KeptId, Micros, Request};
use crate::line::Line;
use crate::memory::prefix::kept::{Kept, KeptInfo, Prompt};
use crate::memory::prefix::spoilt::Spoilt;
use crate::memory::prefix::tree::{NodeId, Space};
use crate::sequence::Admitted;

/// A kept state with all that has to be the same for another prompt to begin with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptOf {
    /// The kept state.
    pub kept: KeptInfo,
    /// The prefix's namespace, the same in every process.
    pub space: Vec<u8>,
    /// The number of its owner.
    pub owner: u64,
}

impl Space {
    /// Names it, the same in every process.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (namespace, adapters) = self.parts();
        let adapters = adapters.iter().flat_map(|(adapter, scale)| [*adapter, *scale]);
        let adapters = adapters.flat_map(u32::to_le_bytes);
        namespace.number().to_le_bytes().into_iter().chain(adapters).collect()
    }
}

/// The namespace of a request, the same in every process.
pub fn space_of(request: &Request) -> Vec<u8> {
    Space::new(request.namespace(), &request.adapters).bytes()
}

impl Line {
    /// The state that has waited longest to be written, but for those that are `known`. `None` while the stages have
    /// not heard of all changes, since a slot may hold another state there. A state whose pages are needed before it is
    /// written is written in vain. So at least `awaited` other pages must be unused by running sequences.
    fn unsaved(&self, known: &BTreeSet<KeptId>, awaited: u32) -> Option<KeptOf> {
        if self.faulted || self.is_parting() || !self.ops.is_empty() || !self.settling.is_empty() {
            return None;
        }
        let unused = self.blocks.total() - self.blocks.n_running();
        let leaves_room =
            |kept: &Kept| unused >= self.blocks.n_kept_of(&kept.blocks).saturating_add(awaited);
        let is_new = |kept: &&Kept| kept.filled && !kept.stays() && !known.contains(&kept.id);
        let kept = self.kept.iter().find(|kept| is_new(kept) && leaves_room(kept))?;
        let space = self.kept.space_of(kept)?.bytes();
        Some(KeptOf { kept: self.kept.info(kept), space, owner: kept.owner })
    }

    /// Notes what a sequence had whose numbers are no good.
    pub(super) fn note_spoilt(&mut self, sequence: &Admitted) {
        let (tokens, space) = (sequence.tokens.clone(), sequence.space.bytes());
        self.spoilt.push(Spoilt { tokens, space });
    }

    /// The same for the tokens of a state that it left behind.
    pub(super) fn note_spoilt_at(&mut self, node: NodeId) {
        let tokens = self.kept.tree.tokens(node);
        let space = self.kept.tree.space_of(node).map(|space| space.bytes());
        self.spoilt.extend(space.map(|space| Spoilt { tokens, space }));
    }
}

impl Scheduler {
    /// The kept state that has waited longest to be written, but for those that are `known`.
    ///
    /// A state is left out whose pages the next request in the queue needs, or the next tokens of running sequences.
    pub fn unsaved(&self, known: &BTreeSet<KeptId>) -> Option<KeptOf> {
        let next_tokens = self.live.all().map(|sequence| sequence.n_slots()).sum::<u32>();
        let awaited = self.pages_of_next().saturating_add(next_tokens);
        self.line.as_ref()?.unsaved(known, awaited)
    }

    /// Notes that the stages write a kept state, until [`Event::KeptWritten`](crate::Event::KeptWritten). It is not
    /// evicted for other kept states. A request that needs its pages gets them at once: then the stages hear of it, and
    /// do not write the state. False if it does not exist, or something else is done with it.
    pub fn begin_writing(&mut self, id: KeptId) -> bool {
        let kept = self.line.as_mut().and_then(|line| line.kept.get_mut(id));
        let Some(kept) = kept.filter(|kept| !kept.stays()) else { return false };
        kept.written = true;
        true
    }

    /// Whether a state is kept on this line with all of so many tokens.
    pub fn keeps_all(&self, id: KeptId, tokens: u32) -> bool {
        let line = self.line.as_ref();
        let kept = line.and_then(|line| Some((line, line.kept.get(id)?)));
        kept.is_some_and(|(line, kept)| line.kept.tree.tokens(kept.node).len() as u32 >= tokens)
    }

    /// Kept states that are not `known`.
    pub fn n_unsaved(&self, known: &BTreeSet<KeptId>) -> usize {
        let kept = self.line.iter().flat_map(|line| line.kept.iter());
        kept.filter(|kept| kept.filled && !known.contains(&kept.id)).count()
    }

    /// Whether a state is kept on this line.
    pub fn is_kept(&self, id: KeptId) -> bool {
        self.line.as_ref().is_some_and(|line| line.kept.get(id).is_some())
    }

    /// How many tokens of a request's prompt it would begin with now; `None` where its kind never reuses states.
    pub fn begins_with(&self, request: &Request) -> Option<u32> {
        let line = self.line.as_ref().filter(|line| !line.faulted && !line.is_parting())?;
        if !line.reuses(request) || request.companion.is_some() {
            return None;
        }
        let space = Space::new(request.namespace(), &request.adapters);
        let prompt = Prompt { tokens: &request.prompt, space: &space };
        Some(line.best(&self.live, prompt).map_or(0, |(_, len)| len))
    }

    /// How long the line takes to read so many rows of prompts, as far as it was measured.
    pub fn reading_us(&self, rows: u32) -> Option<Micros> {
        const SECOND: Micros = 1_000_000;
        let times = &self.line.as_ref()?.times;
        let per_second = times.measured().then(|| times.rows_in(SECOND).max(1))?;
        Some(u64::from(rows) * SECOND / per_second)
    }

    /// The same as [`Self::open_kept`], for the first `len` tokens of a request's prompt. Until it is ready its pages
    /// count as those of a running sequence. So there is no room where the next request in the queue needs them.
    pub fn open_kept_of(
        &mut self,
        now: Micros,
        request: &Request,
        len: u32,
    ) -> (Option<KeptInfo>, Vec<Action>) {
        let mut out = Vec::new();
        let awaited = self.pages_of_next();
        let line = self.line.as_mut().filter(|line| !line.faulted && !line.is_parting());
        let line = line.filter(|line| {
            let pages = line.pages_of(len.into()).saturating_add(awaited);
            line.blocks.total() - line.blocks.n_running() >= pages
        });
        let space = Space::new(request.namespace(), &request.adapters);
        let tokens = request.prompt[..len as usize].to_vec();
        let opened = line.and_then(|line| {
            line.open_kept_in(tokens, &space, request.share.owner, &request.adapters)
        });
        self.fill_line(now, &mut out);
        (opened, out)
    }

    /// Takes the prefixes that may hold invalid numbers, found since the last call.
    pub fn take_spoilt(&mut self) -> Vec<Spoilt> {
        self.line.as_mut().map(|line| std::mem::take(&mut line.spoilt)).unwrap_or_default()
    }
}
