//! Sequences that run ahead of their last drawn token: parts with drafts, several behind each other on the line.
//!
//! Such a part is a *window*. The last stage draws at each of its rows and stops where the drawn token is not the
//! window's next one. Drafts behind a wrong token are taken back: the stages forget their positions, and the next
//! part goes on from there. A draw depends on its row, the tokens before it and its position alone. So drafts never
//! change the answer.
//!
//! Two lengths must not be mixed up. *Sure* are the tokens that were drawn (`Admitted::n_tokens`); *sent* are the
//! positions on the line, those of drafts among them (`Admitted::sent`). Data that outlives a ubatch counts the sure
//! ones only (`Admitted::sure_sent`).
//!
//! Some sequences have a state at their end only ([`Prefixes::Whole`]). A window then reads the state in one plane
//! and leaves it in another, so that the sequence can be taken back to the window's beginning. Planes are the places
//! of free slots. The rows of the window that were right are then read again, and nothing is drawn from them.
//!
//! [`Prefixes::Whole`]: brigade_spec::Prefixes::Whole

use std::collections::VecDeque;

use brigade_draft::{Draft, Source};
use brigade_engine::batch::{Planes, SeqOp, SlotId};
use brigade_spec::Prefixes;

use crate::events::{LineSpec, Micros};

/// The next window of a sequence, behind its sure tokens.
pub(crate) struct NextWindow {
    pub drafts: Draft,
    /// Whether it leaves its state elsewhere than where it found it.
    pub in_planes: bool,
    /// How many tokens the model's own block is to draft behind the token that is drawn from it.
    pub asked: u32,
}

impl NextWindow {
    /// A window of the sure tokens alone, without drafts.
    pub fn of_nothing(spec: LineSpec) -> Self {
        let in_planes = spec.prefixes == Prefixes::Whole;
        Self { drafts: Draft::default(), in_planes, asked: 0 }
    }
}

/// A window in flight.
#[derive(Debug)]
pub(crate) struct Window {
    /// Position of its first row.
    pub pos: u32,
    pub tokens: Vec<u32>,
    /// Planes of the sequence's state before the window and behind it; `None` where each prefix has a state.
    pub planes: Option<Planes>,
    /// The text that its drafts are from, and the number of tokens that matched it before the first of them.
    pub from: (Source, usize),
    /// Tokens of it that were sure when it was sent.
    pub n_sure: usize,
    /// Tokens of its sequence that were drawn by then.
    pub n_drawn: u32,
    pub sent_at: Micros,
}

impl Window {
    /// The judgement of its token `at`, which was compared with the drawn one.
    pub fn judged(&self, at: usize, right: bool) -> Judged {
        let (source, matched) = self.from;
        let depth = self.pos + at as u32 + 1 - self.n_drawn.min(self.pos + at as u32);
        Judged { source, matched: matched + at.saturating_sub(self.n_sure), depth, right }
    }
}

/// The windows of a sequence that are in flight, and the counts of its drafts.
#[derive(Debug, Default)]
pub(crate) struct RunAhead {
    /// Windows in flight, oldest first.
    pub windows: VecDeque<Window>,
    /// Rows that the windows have which were chosen last.
    pub wanted: u32,
    /// How often drafts were taken back. Windows that were sent before the last time are stale.
    pub run: u32,
    /// The change that the stages must hear before its next part.
    pub take_back: Option<SeqOp>,
    /// Planes that are lent to it and that nothing is read from.
    pub spare: Vec<SlotId>,
    /// The plane of the state behind the last row sent, if it is not its slot's own.
    pub plane: Option<SlotId>,
    /// Drafts that were drawn, and those that were not.
    pub judged: [u32; 2],
    /// The same for drafts from its client's prediction.
    pub expected: [u32; 2],
    /// The end of the last time with two useful windows in flight, and such time that is not counted yet.
    pub overlapped: (Micros, Micros),
}

/// A draft that was compared with the drawn token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub source: Source,
    pub matched: usize,
    /// How far behind the last drawn token it stood when it was sent, from 1.
    pub depth: u32,
    pub right: bool,
}

/// The state of a sequence after a token was drawn at a window's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Later rows in flight will decide.
    Goes(Option<Judged>),
    /// Nothing useful of it is in flight any more: its next part can be sent.
    Ready(Option<Judged>),
}

impl Outcome {
    /// The draft that was compared with the token, if there was one.
    pub fn judged(self) -> Option<Judged> {
        match self {
            Self::Goes(judged) | Self::Ready(judged) => judged,
        }
    }
}

impl RunAhead {
    /// The number of windows in flight.
    pub fn n_windows(&self) -> usize {
        self.windows.len()
    }

    /// Counts a draft that was compared with the drawn token.
    pub fn count(&mut self, judged: Option<Judged>) {
        let Some(Judged { source, right, .. }) = judged else { return };
        self.judged[usize::from(!right)] += 1;
        if source == Source::Expected {
            self.expected[usize::from(!right)] += 1;
        }
    }

    /// The window that is over has another one behind it in flight since `since`, of which a token is drawn as well.
    pub fn note_overlap(&mut self, since: Micros, now: Micros) {
        let (until, us) = &mut self.overlapped;
        *us += now.saturating_sub(since.max(*until));
        *until = now;
    }

    /// How often drafts were taken back.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// Planes that are lent to it.
    pub fn lent(&self, own: SlotId) -> Vec<SlotId> {
        let in_windows = self.windows.iter().filter_map(|w| w.planes).flat_map(|p| [p.from, p.to]);
        let all = self.spare.iter().copied().chain(self.plane).chain(in_windows);
        let mut lent: Vec<SlotId> = all.filter(|plane| *plane != own).collect();
        lent.sort_unstable();
        lent.dedup();
        lent
    }

    /// Gives it another plane.
    pub fn lend(&mut self, plane: SlotId) {
        self.spare.push(plane);
    }

    /// Whether the next window has a plane to write to.
    pub fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Takes the change that the stages must hear before its next part.
    pub fn take_back(&mut self) -> Option<SeqOp> {
        self.take_back.take()
    }

    /// Whether its next part does not begin where the sent rows end.
    pub fn is_taken_back(&self) -> bool {
        self.take_back.is_some()
    }

    /// A plane is read by nothing any more.
    pub fn free(&mut self, plane: SlotId) {
        if self.plane != Some(plane) && !self.spare.contains(&plane) {
            self.spare.push(plane);
        }
    }
}
