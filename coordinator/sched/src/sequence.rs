//! A sequence from admission to its end, and the set of all that are live.
//!
//! | state       | `sent`                     | `awaiting` | where it queues |
//! |-------------|----------------------------|------------|-----------------|
//! | prefilling  | `< n_known`                | no         | `prefilling`    |
//! | in flight   | `== tokens.len()`          | yes        | nowhere         |
//! | ready       | `== tokens.len() - 1`      | no         | `ready`         |
//! | logits tail | `== n_known`, [`Work::Logits`] | rows outstanding | nowhere |
//!
//! Two lengths must not be mixed up. `n_prompt` is what the client sent; tokens behind it are its answer. `n_known`
//! counts the tokens known when the sequence got its place on this line: the prompt, and after a lost line also the
//! tokens generated before. These rows are computed as a prompt is.
//!
//! A request may be two sequences. They are admitted, sent, kept and released together. The companion is in the
//! sequence that it belongs to and in no queue. Its prompt is computed first; the last known rows of both are in one
//! ubatch, and from then on each token goes to both.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use brigade_engine::batch::{
    AdapterUse, CopyName, PageId, SamplerSetup, SeqOp, SeqPart, SlotId, Want,
};

use super::events::{HiddenRows, KeptId, Micros, RequestId, Share, Work};
use crate::drafts::ahead::{NextWindow, RunAhead};
use crate::memory::prefix::{ConversationNo, Mark, NodeId, Space};
use crate::waiting::fair::{Needs, Owners};

/// A request under which so many lines were lost since it last got further than ever runs alone.
const ALONE_AFTER: u32 = 2;

/// Whether a request with so many losses in a row may be what breaks the lines.
pub(super) fn is_suspect(losses: u32) -> bool {
    losses >= ALONE_AFTER
}

/// Admission number: the order of sequences, and a name that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeqNo(pub u64);

/// A request that has its place on the line.
#[derive(Debug)]
pub(super) struct Admitted {
    pub request: RequestId,
    pub label: Arc<str>,
    pub work: Work,
    /// LoRA adapters of its rows.
    pub adapters: Arc<[AdapterUse]>,
    /// Prompt, then what was generated.
    pub tokens: Vec<u32>,
    /// Tokens of the client's prompt.
    pub n_prompt: u32,
    /// Tokens that are computed as a prompt is: those known at admission.
    pub n_known: u32,
    /// Whether its rows see those after them: all that is known is sent in one part.
    pub whole: bool,
    pub slot: SlotId,
    pub blocks: Vec<PageId>,
    /// The space within which others may begin with its states.
    pub space: Space,
    /// The sequence's place in the tree of prompts, and its number there; `None`: others begin with nothing of it.
    pub node: Option<(SeqNo, NodeId)>,
    /// The kept state that it began with, if that was one.
    pub source: Option<KeptId>,
    /// The conversation that it goes on with or begins; `None` where that says nothing about later prompts.
    pub conversation: Option<ConversationNo>,
    /// Positions at which its state is to be kept while its prompt is read, ascending.
    pub marks: VecDeque<Mark>,
    /// Tokens of the prompt that others stood for.
    pub reused: u32,
    /// Whether its open was sent or its copy decided (only then does it need a close).
    pub opened: bool,
    /// Positions sent to the line, those of drafts among them ([`Admitted::sure_sent`]).
    pub sent: u32,
    /// A sampled token of it is on its way.
    pub awaiting: bool,
    /// Whether the sequence's mask was not ready when that token was to be drawn. Until then it has no rows, and
    /// nothing waits for it.
    pub put_off: bool,
    /// A window's mask was not made in time: its next part has no drafts.
    pub masks_late: bool,
    /// Logits rows that were reported.
    pub rows_returned: u32,
    /// Positions that have come back computed, on the line on which most of them did.
    pub furthest: u32,
    /// Lines lost under it since it last got further than ever.
    pub losses: u32,
    /// The name of its state's copies; `None`: it has none.
    pub name: Option<CopyName>,
    /// Whether copies are taken while it runs. A planned change takes its state along without, too.
    pub copied: bool,
    /// Whether the stages know its name.
    pub named: bool,
    /// The position up to which its state was last copied, or with which it began.
    pub checkpointed: u32,
    /// Whether its state is being restored: nothing is sent before it is there.
    pub restoring: bool,
    /// Mirostat's, after its last token.
    pub mu: Option<f32>,
    /// The owner and its share of the line.
    pub share: Share,
    /// The time after which its client does not want it any more.
    pub deadline: Option<Micros>,
    /// The sequence beside whose rows its tokens are drawn: places and positions of its own, and the same answer.
    pub companion: Option<Box<Admitted>>,
    /// Whether it is such a companion: nothing is drawn from it.
    pub is_companion: bool,
    /// Tokens that the answer is expected to resemble, for drafts; `None`: no drafts.
    pub drafts: Option<Arc<[u32]>>,
    /// Whether the model's own block reads its rows too.
    pub own_drafts: bool,
    /// The sequence's windows in flight; `None`: it has never run ahead.
    pub ahead: Option<Box<RunAhead>>,
}

/// One of the two that a request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// The sequence that tokens are drawn for.
    Own,
    Companion,
}

impl Admitted {
    /// How its tokens are drawn; `None` where only logits are wanted, and of a companion.
    pub fn sampler(&self) -> Option<Arc<SamplerSetup>> {
        match &self.work {
            Work::Generate { sampler, .. } if !self.is_companion => Some(sampler.clone()),
            Work::Generate { .. } | Work::Logits | Work::Hidden(_) => None,
        }
    }

    /// The changes that open it on the stages.
    pub fn open_ops(&self) -> impl Iterator<Item = SeqOp> + use<> {
        let (slot, blocks) = (self.slot, self.blocks.clone());
        let (sampler, request) = (self.sampler(), self.label.clone());
        let adapt = SeqOp::adapt(slot, &self.adapters);
        let draft = self.own_drafts.then_some(SeqOp::Draft { slot });
        [SeqOp::Open { slot, blocks, sampler, request }].into_iter().chain(adapt).chain(draft)
    }

    /// Itself, and its companion.
    pub fn halves(&self) -> impl Iterator<Item = &Admitted> {
        std::iter::once(self).chain(self.companion.as_deref())
    }

    /// # Panics
    /// If it has no companion and that is asked for.
    pub fn half_mut(&mut self, half: Half) -> &mut Admitted {
        match half {
            Half::Own => self,
            Half::Companion => {
                self.companion.as_mut().expect("only a sequence with a companion is asked for it")
            }
        }
    }

    /// The places that it holds, with its companion.
    pub fn taken(&self) -> Needs {
        let pages = self.halves().map(|half| half.blocks.len() as u32).sum();
        Needs { slots: self.n_slots(), pages }
    }

    /// Whether its next row has no page, or one so many positions behind that.
    pub fn is_full(&self, block_positions: u32, ahead: u32) -> bool {
        let end = u64::from(self.n_tokens()) + u64::from(ahead);
        end > self.blocks.len() as u64 * u64::from(block_positions)
    }

    /// Slots of it and its companion, which are its rows in a ubatch while it decodes.
    pub fn n_slots(&self) -> u32 {
        self.halves().count() as u32
    }

    /// Whether the stages know of it.
    pub fn is_on_stages(&self) -> bool {
        self.halves().any(|half| half.opened)
    }

    /// A token was drawn.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.companion.iter_mut().for_each(|companion| companion.tokens.push(token));
    }

    /// The change that tells the stages its name, if it has one that they do not know.
    pub fn tell_name(&mut self) -> Option<SeqOp> {
        let name = self.name.filter(|_| !self.named)?;
        self.named = true;
        Some(SeqOp::Name { slot: self.slot, name: Some(name) })
    }

    pub fn n_tokens(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn generated(&self) -> u32 {
        self.n_tokens() - self.n_prompt
    }

    /// Whether all that was known is on its way or through, tokens are wanted after it, and its rows can go on.
    pub fn is_decoding(&self) -> bool {
        self.sent >= self.n_known && !self.put_off && matches!(self.work, Work::Generate { .. })
    }

    /// Whether it is decoding and a token will come after those asked for: a gap would be felt.
    pub fn is_stream(&self) -> bool {
        match self.work {
            Work::Generate { max_tokens, .. } => {
                let asked = self.generated() + u32::from(self.awaiting);
                self.sent >= self.n_known && !self.put_off && asked < max_tokens
            }
            Work::Logits | Work::Hidden(_) => false,
        }
    }

    /// Rows of known tokens that are not yet sent, its companion's among them.
    pub fn prompt_left(&self) -> u32 {
        self.halves().map(Admitted::own_left).sum()
    }

    /// The same without its companion's.
    pub fn own_left(&self) -> u32 {
        self.n_known.saturating_sub(self.sent)
    }

    /// How many rows of it and of its companion come next where at most `max_rows` may, and `room` are left in the ubatch.
    /// The last known row of one comes with that of the other, so that one draw has both.
    pub fn next_rows(&self, max_rows: u32, room: u32) -> (u32, u32) {
        let own = self.own_left();
        let to_mark = self.rows_to_mark().unwrap_or(u32::MAX);
        let Some(of_companion) = self.companion.as_deref() else {
            return (own.min(max_rows).min(to_mark), 0);
        };
        let (companion, companion_to_mark) =
            (of_companion.own_left(), of_companion.rows_to_mark().unwrap_or(u32::MAX));
        if max_rows == 0 {
            return (0, 0);
        }
        let is_marked = own > to_mark || companion > companion_to_mark;
        if own + companion <= max_rows.max(2).min(room) && !is_marked {
            return (own, companion);
        }
        let of_companion = max_rows.min(companion - 1).min(companion_to_mark);
        ((max_rows - of_companion).min(own - 1).min(to_mark), of_companion)
    }

    /// Positions of sure tokens that are on the line, its companion's among them.
    pub fn all_sent(&self) -> u32 {
        self.halves().map(Admitted::sure_sent).sum()
    }

    /// All rows before position `end` have come back computed.
    pub fn note_computed(&mut self, end: u32) {
        if end > self.furthest {
            (self.furthest, self.losses) = (end, 0);
        }
    }

    /// Rows whose logits were reported before the line was lost, and that are not yet sent again. A text that is sent
    /// whole comes back whole, so rows that were reported are dropped then.
    pub fn reported_left(&self) -> u32 {
        if self.whole { 0 } else { self.rows_returned.saturating_sub(self.sent) }
    }

    /// Rows that are reported in the end.
    pub fn rows_wanted(&self) -> u32 {
        match self.work {
            Work::Hidden(rows) => rows.count(self.n_prompt),
            Work::Logits | Work::Generate { .. } => self.n_prompt,
        }
    }

    /// Takes the next rows, `max_rows` at most, and marks them as sent. Where [`Admitted::reported_left`] is not 0,
    /// it takes no more than that.
    ///
    /// # Panics
    /// If one of its tokens is on its way, since a decoding sequence is in at most one ubatch in flight.
    pub fn next_part(&mut self, max_rows: u32) -> SeqPart {
        assert!(!self.awaiting, "{:?} is in flight and was composed again", self.request);
        let pos = self.sent;
        let end = self.n_tokens().min(pos + max_rows);
        assert!(end > pos, "{:?} has nothing to send", self.request);
        let want = match self.work {
            Work::Logits | Work::Hidden(_) if self.reported_left() > 0 => Want::Nothing,
            Work::Logits => Want::Logits,
            Work::Hidden(HiddenRows::All) => Want::Hidden,
            Work::Hidden(HiddenRows::First) => Want::HiddenFirst,
            Work::Hidden(HiddenRows::Last) => Want::HiddenLast,
            Work::Generate { .. } if end == self.n_tokens() && self.is_companion => Want::Companion,
            Work::Generate { .. } if end == self.n_tokens() => Want::Sample,
            Work::Generate { .. } => Want::Nothing,
        };
        self.sent = end;
        self.awaiting = want == Want::Sample;
        let tokens = self.tokens[pos as usize..end as usize].to_vec();
        SeqPart { slot: self.slot, pos, tokens, want, mu: self.mu, ahead: None }
    }
}

/// All admitted sequences and the queues they stand in.
#[derive(Debug, Default)]
pub(super) struct Live {
    seqs: BTreeMap<SeqNo, Admitted>,
    by_request: BTreeMap<RequestId, SeqNo>,
    /// Prompts not completely sent, oldest first.
    pub prefilling: VecDeque<SeqNo>,
    /// Sequences with a token to send, longest waiting first.
    pub ready: VecDeque<SeqNo>,
    /// Sequences whose draws were put off and are to be asked for again.
    pub draws: VecDeque<SeqNo>,
    /// The usage and the places of each owner.
    pub owners: Owners,
    next: u64,
}

impl Live {
    pub fn insert(&mut self, sequence: Admitted) -> SeqNo {
        let no = self.insert_restoring(sequence);
        self.prefilling.push_back(no);
        no
    }

    /// The same as [`Self::insert`], but in no queue: its state is still to come.
    pub fn insert_restoring(&mut self, sequence: Admitted) -> SeqNo {
        let no = SeqNo(self.next);
        self.next += 1;
        self.by_request.insert(sequence.request, no);
        self.owners.admitted(sequence.share, sequence.prompt_left(), sequence.taken());
        self.seqs.insert(no, sequence);
        no
    }

    /// The number of the next sequence.
    pub fn next_no(&self) -> SeqNo {
        SeqNo(self.next)
    }

    /// Whether a sequence has this name.
    pub fn has_name(&self, name: CopyName) -> bool {
        self.seqs.values().any(|sequence| sequence.name == Some(name))
    }

    /// All sequences, oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Admitted> {
        self.seqs.values()
    }

    /// All sequences, for changes.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Admitted> {
        self.seqs.values_mut()
    }

    /// Whether the state of one is being put back.
    pub fn is_restoring(&self) -> bool {
        self.seqs.values().any(|sequence| sequence.restoring)
    }

    /// A draw found no mask: the sequence sits out until it is there.
    pub fn put_off(&mut self, no: SeqNo) {
        if let Some(sequence) = self.seqs.get_mut(&no) {
            sequence.put_off = true;
            self.draws.push_back(no);
        }
    }

    /// Sequences that sit out.
    pub fn n_put_off(&self) -> usize {
        self.seqs.values().filter(|s| s.put_off).count()
    }

    pub fn get_mut(&mut self, no: SeqNo) -> Option<&mut Admitted> {
        self.seqs.get_mut(&no)
    }

    pub fn contains(&self, no: SeqNo) -> bool {
        self.seqs.contains_key(&no)
    }

    pub fn find(&self, request: RequestId) -> Option<SeqNo> {
        self.by_request.get(&request).copied()
    }

    pub fn of(&self, no: SeqNo) -> Option<&Admitted> {
        self.seqs.get(&no)
    }

    pub fn remove(&mut self, no: SeqNo) -> Option<Admitted> {
        let sequence = self.seqs.remove(&no)?;
        self.by_request.remove(&sequence.request);
        self.prefilling.retain(|&other| other != no);
        self.ready.retain(|&other| other != no);
        self.draws.retain(|&other| other != no);
        self.owners.left(sequence.share, sequence.prompt_left(), sequence.taken());
        Some(sequence)
    }

    /// Removes and returns all, oldest first.
    pub fn drain(&mut self) -> Vec<Admitted> {
        self.by_request.clear();
        self.prefilling.clear();
        self.ready.clear();
        self.draws.clear();
        self.owners.all_left();
        std::mem::take(&mut self.seqs).into_values().collect()
    }

    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Whether prompts of other owners may come soon, and should find little before them.
    pub fn leaves_room(&self) -> bool {
        let leaves = |no: &SeqNo| self.seqs.get(no).is_some_and(|s| s.share.leaves_room);
        self.prefilling.iter().any(leaves)
    }

    /// The prompt whose rows come next: the oldest of the owner whose turn it is. Its place in `prefilling`.
    pub fn next_prompt(&self) -> Option<usize> {
        self.next_prompt_but(&[])
    }

    /// The same without those that go on with another ubatch.
    pub fn next_prompt_but(&self, cut: &[SeqNo]) -> Option<usize> {
        let rank = |no: &SeqNo| self.seqs.get(no).map(|s| self.owners.rank_for_rows(s.share));
        let all = self.prefilling.iter().enumerate().filter(|(_, no)| !cut.contains(no));
        let ranked = all.map(|(at, no)| (rank(no), at));
        ranked.min().map(|(_, at)| at)
    }

    /// Whether the owner of the prompt whose rows come next has had more than another one that has streams. Its rows
    /// are not to hold these up for longer than they must.
    pub fn next_prompt_is_ahead(&self) -> bool {
        let next = self.next_prompt().and_then(|at| self.seqs.get(&self.prefilling[at]));
        let Some(next) = next.filter(|next| next.share.leaves_room) else { return false };
        let rank = self.owners.rank_for_rows(next.share);
        let is_behind = |s: &Admitted| {
            s.share.owner != next.share.owner
                && s.is_stream()
                && self.owners.rank_for_rows(s.share) < rank
        };
        self.seqs.values().any(is_behind)
    }

    /// Takes the next at most `max_rows` rows of a sequence or its companion ([`Admitted::next_part`]) on its owner's
    /// account.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn next_part(&mut self, no: SeqNo, half: Half, max_rows: u32) -> SeqPart {
        let sequence = self.seqs.get_mut(&no).expect("queues name live sequences only");
        let before = sequence.prompt_left();
        let part = sequence.half_mut(half).next_part(max_rows);
        let of_prompt = before - sequence.prompt_left();
        self.owners.sent(sequence.share, part.tokens.len() as u32, of_prompt);
        part
    }

    /// The next window of a sequence ([`Admitted::next_window`]), on its owner's account.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn next_window(&mut self, now: Micros, no: SeqNo, window: &NextWindow) -> SeqPart {
        let sequence = self.seqs.get_mut(&no).expect("queues name live sequences only");
        let before = sequence.prompt_left();
        let part = sequence.next_window(now, window);
        let of_prompt = before - sequence.prompt_left();
        self.owners.sent(sequence.share, part.tokens.len() as u32, of_prompt);
        part
    }

    /// Sequences with windows in flight, oldest first.
    pub fn running_ahead(&self) -> Vec<SeqNo> {
        let ahead = self.seqs.iter().filter(|(_, s)| s.n_windows() > 0);
        ahead.map(|(no, _)| *no).collect()
    }

    /// Sequences whose deadline has passed.
    pub fn late(&self, now: Micros) -> Vec<SeqNo> {
        let late = |s: &Admitted| s.deadline.is_some_and(|deadline| deadline <= now);
        self.seqs.iter().filter(|(_, s)| late(s)).map(|(no, _)| *no).collect()
    }

    /// Whether one of them may have broken its lines, and has not shown yet that it did not.
    pub fn has_suspect(&self) -> bool {
        self.seqs.values().any(|sequence| is_suspect(sequence.losses))
    }

    /// Requests; one with a companion has two rows in a ubatch.
    pub fn n_decoding(&self) -> usize {
        self.seqs.values().filter(|s| s.is_decoding()).count()
    }

    /// Most rows that one of them has in a ubatch.
    pub fn widest_decoding(&self) -> u32 {
        let decoding = self.seqs.values().filter(|s| s.is_decoding());
        decoding.map(Admitted::n_slots).max().unwrap_or(1)
    }

    /// Whether any stream would show a gap between tokens.
    pub fn has_streams(&self) -> bool {
        self.seqs.values().any(Admitted::is_stream)
    }

    /// Prompt rows not yet sent, of all sequences.
    pub fn prompt_rows_left(&self) -> u64 {
        let left = |no| self.seqs.get(no).map_or(0, |s| u64::from(s.prompt_left()));
        self.prefilling.iter().map(left).sum()
    }
}
