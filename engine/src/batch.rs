//! The ubatch: what one trip down the line carries, and what comes back.
//!
//! A [`UBatch`] is self-contained: a stage needs nothing else to run it. Prefill chunks and decode rows are
//! one type, [`SeqPart`]. Changes to a sequence (open, copy, cut, close) are [`SeqOp`]s. A stage applies them
//! in their order before it computes the parts. The coordinator allocates slots and pages for all stages at
//! once, and stages only look them up.

use std::sync::Arc;

pub use brigade_kernels::PageId;
pub use brigade_sampling::{DryParams, Mirostat, SamplingParams};

/// Index of a sequence's place on every stage: its KV block table, recurrent state and sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A sequence's name, under which copies of its state are kept: the same on every line it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyName(pub [u8; 16]);

/// Stands for the tokens of a sequence up to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenMark(pub [u8; 16]);

impl TokenMark {
    /// The mark of these tokens.
    pub fn of(tokens: &[u32]) -> Self {
        let hash = blake3::hash(bytemuck::cast_slice(tokens));
        let (mark, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        Self(*mark)
    }
}

/// One micro-batch: changes to sequences, and rows to compute. Ids are consecutive per lane; a stage refuses a gap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UBatch {
    /// Consecutive number in its lane, from 0 in each epoch.
    pub id: u64,
    /// Applied in order before any part runs. An idle line sends ubatches that hold only these.
    pub ops: Vec<SeqOp>,
    /// Rows to compute. A slot appears at most once.
    pub parts: Vec<SeqPart>,
}

impl UBatch {
    /// The tokens of all rows, in their order.
    pub fn tokens(&self) -> Vec<u32> {
        self.parts.iter().flat_map(|p| &p.tokens).copied().collect()
    }

    /// Number of rows (tokens) over all parts.
    pub fn n_rows(&self) -> usize {
        self.parts.iter().map(|p| p.tokens.len()).sum()
    }
}

/// A change to a sequence that computes nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum SeqOp {
    /// Starts an empty sequence in a free slot with the pages that are sure for it, in position order.
    Open {
        /// The slot, free until now on every stage.
        slot: SlotId,
        /// Page `i` holds positions `i * KV_PAGE ..`; exclusively owned by this sequence.
        blocks: Vec<PageId>,
        /// Settings of the sampler on the last stage; `None` for a sequence that only wants logits.
        sampler: Option<Arc<SamplerSetup>>,
        /// Id of the request it is for, for logs; nothing is computed from it.
        request: Arc<str>,
    },
    /// Starts a sequence in `dst` as a copy of the first `len` positions of `src`. Where the model has recurrent
    /// layers, `len` must be `src`'s length (on every stage, whatever its own layers are). Page `i` of both may be the
    /// same one where all of its positions are below `len`: no sequence writes to it any more. It may also be where
    /// `src` is closed in the same ubatch.
    Copy {
        /// An open sequence, unchanged by this.
        src: SlotId,
        /// Slot of the copy, free until now.
        dst: SlotId,
        /// Number of positions to copy.
        len: u32,
        /// Pages of the copy, as in [`SeqOp::Open`].
        blocks: Vec<PageId>,
        /// Settings of the sampler, as in [`SeqOp::Open`].
        sampler: Option<Arc<SamplerSetup>>,
        /// Id of the request, as in [`SeqOp::Open`].
        request: Arc<str>,
    },
    /// Forgets positions `len..`. A model where only the whole of a sequence has a state ([`Prefixes::Whole`])
    /// refuses it, with two exceptions. Either nothing is forgotten, or a plane has the state of so many positions
    /// and `len` is no less than what is sure.
    ///
    /// [`Prefixes::Whole`]: crate::spec::Prefixes::Whole
    Truncate {
        /// An open sequence, which loses positions.
        slot: SlotId,
        /// Number of positions to keep.
        len: u32,
        /// Place of the recurrent state of the first `len` positions ([`Planes::to`] of the part that ended there), and
        /// the place that it has from now on. If both are the same, nothing is copied.
        planes: Option<Planes>,
    },
    /// Ends a sequence; its slot and pages are free from the next op on.
    Close {
        /// An open sequence, which ends.
        slot: SlotId,
    },
    /// Gives a sequence more pages, behind those that it has.
    Grow {
        /// An open sequence, which gets the pages.
        slot: SlotId,
        /// The additional pages, as in [`SeqOp::Open`].
        blocks: Vec<PageId>,
    },
    /// Draws the token of a sequence whose last row said [`RowValue::NotYet`], if its mask is there now. Its result
    /// comes before those of the ubatch's parts.
    Draw {
        /// The sequence; nothing has happened to it since.
        slot: SlotId,
    },
    /// Has the model's own block of drafts read the sequence from here on, so that it can draft for it
    /// ([`Ahead::drafts`]). It follows the sequence's `Open` or `Copy`. Only a last stage that was loaded with that
    /// block does anything.
    Draft {
        /// An open sequence.
        slot: SlotId,
    },
    /// Names the adapters that all rows of a sequence pass through. It follows the sequence's `Open`: a copy has its
    /// source's adapters.
    Adapt {
        /// An open sequence without rows.
        slot: SlotId,
        /// The adapters, in the order in which they add to a row.
        adapters: Arc<[AdapterUse]>,
    },
    /// Gives a sequence the name under which copies of its state are kept. Nothing is computed from it.
    Name {
        /// An open sequence.
        slot: SlotId,
        /// `None`: it has none any more, and its copies are not needed.
        name: Option<CopyName>,
    },
    /// Copies what is new of a sequence's state, so that it can be put back elsewhere: every stage at the same
    /// ubatch. The state is that which the sequence has when the ubatch arrives, before its ops and parts.
    Checkpoint {
        /// A sequence that was open before, with a name.
        slot: SlotId,
        /// Positions to copy; with recurrent layers in the model, all that the sequence has, or as many as `plane` has
        /// the state of.
        len: u32,
        /// Place of the recurrent state of so many positions, where the sequence runs ahead of it.
        plane: Option<SlotId>,
        /// Mark of the tokens up to there.
        mark: TokenMark,
        /// The line is about to be taken down: the stage keeps the state itself until the next line has it.
        parting: bool,
    },
}

impl SeqOp {
    /// The sequences that it is about: one, or the two of a copy.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> {
        let (slot, other) = match *self {
            Self::Copy { src, dst, .. } => (dst, Some(src)),
            Self::Open { slot, .. }
            | Self::Truncate { slot, .. }
            | Self::Close { slot }
            | Self::Grow { slot, .. }
            | Self::Draw { slot }
            | Self::Draft { slot }
            | Self::Adapt { slot, .. }
            | Self::Name { slot, .. }
            | Self::Checkpoint { slot, .. } => (slot, None),
        };
        other.into_iter().chain([slot])
    }

    /// Names a sequence's adapters, if it has any.
    pub fn adapt(slot: SlotId, adapters: &Arc<[AdapterUse]>) -> Option<Self> {
        (!adapters.is_empty()).then(|| Self::Adapt { slot, adapters: adapters.clone() })
    }
}

/// An adapter of the model in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterUse {
    /// Number of the adapter, in the order in which the model's adapters were given.
    pub adapter: u32,
    /// Factor on the adapter's change.
    pub scale: f32,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SeqPart {
    /// An open sequence.
    pub slot: SlotId,
    /// Position of `tokens[0]`; equals the sequence's length so far on every stage.
    pub pos: u32,
    /// Token ids, in order; never empty. Every stage gets them (four bytes a row).
    pub tokens: Vec<u32>,
    /// Results that the last stage returns for this part.
    pub want: Want,
    /// For a draw with [`Mirostat`]: what came back with the sequence's last token; `None`: it begins.
    pub mu: Option<f32>,
    /// State of a sequence that runs ahead of its drawn tokens; `None`: all tokens up to the part's last are sure.
    pub ahead: Option<Ahead>,
}

/// State of a part whose sequence runs ahead of its drawn tokens. The part's tokens may be drafts, which a
/// [`SeqOp::Truncate`] takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Positions before this one are never taken back; no more than the part's own.
    pub sure: u32,
    /// Number of the part's first rows that were read before: nothing is drawn from them.
    pub known: u32,
    /// Places where recurrent states are read and written; `None` where each prefix of a sequence has a state.
    pub planes: Option<Planes>,
    /// Tokens that the model's own block drafts behind the last token drawn of the part, at most [`MAX_DRAFTED`]. 0:
    /// none. The block must read the sequence ([`SeqOp::Draft`]).
    pub drafts: u32,
}

/// Planes are places of recurrent states: each slot has one, and a slot that no sequence lives in lends its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Place of the state before the part's first row. It keeps that state unless it is `to` as well.
    pub from: SlotId,
    /// Place that gets the state behind the part's last row.
    pub to: SlotId,
}

/// Rows of a part that pass through the head, and the results wanted of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// No row: a prompt chunk that is not the last.
    Nothing,
    /// The last row: one token is sampled from it.
    Sample,
    /// Every row, in order: a token is drawn from each, up to the first that is not the part's next token, or whose mask is
    /// not made ([`RowValue::NotYet`]). A part is
    /// [`RowValue::Refuted`] whole where its first token is not the one that was drawn before it, and so is every later
    /// one up to the sequence's next [`SeqOp::Truncate`].
    Verify,
    /// The last row: the next part's token is drawn with its logits beside that part's own ([`Companion`]).
    /// Nothing is returned.
    Companion,
    /// Every row: whole logits rows are returned.
    Logits,
    /// Every row: what the head's norm makes of it is returned, `[n_embd]`, for embeddings.
    Hidden,
    /// The first row, as in [`Want::Hidden`]. Encoders alone are asked for it.
    HiddenFirst,
    /// The last row, as in [`Want::Hidden`]. Encoders alone are asked for it.
    HiddenLast,
}

/// Everything that decides how a sequence's tokens are drawn; fixed when it opens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplerSetup {
    /// Settings of the sampling chain.
    pub params: SamplingParams,
    /// Seed of the draws. Each draw is seeded by it and by the position, so other rows never disturb it.
    pub seed: u64,
    /// Alternatives to report with log-probabilities; `None`: no log-probabilities at all.
    pub top_logprobs: Option<u32>,
    /// Tokens that are not drawn yet.
    pub not_before: NotBefore,
    /// Grammars that the answer has to match; `None`: none.
    pub constraint: Option<Arc<Constraint>>,
    /// Scale of the guidance by a second sequence; `None`: there is none.
    pub companion: Option<Companion>,
}

impl SamplerSetup {
    /// Whether drafts can be verified ([`Want::Verify`]): a draw may depend on nothing but its row and the tokens before it.
    /// A stage wants [`Constraint::later`] besides.
    pub fn can_verify(&self) -> bool {
        self.companion.is_none() && !self.params.keeps_surprise()
    }
}

/// Classifier-free companion: tokens are drawn from what a sequence says beyond a second one, its companion, which has
/// another prompt and the same answer. The companion's [`Want::Companion`] part stands right before the part that is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Companion {
    /// Factor on the difference of the two: 1 is the sequence alone, 0 the companion alone.
    pub scale: f32,
}

/// Tokens that may be drawn for late positions only: the ends of an answer that must have a length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotBefore {
    /// First position at which they may be.
    pub pos: u32,
    /// Ids of these tokens.
    pub tokens: Arc<[u32]>,
}

/// Grammars that an answer has to match, as a whole or in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraint {
    /// Position of the answer's first token.
    pub answer_at: u32,
    /// The grammars that are named below.
    pub grammars: Vec<Grammar>,
    /// Index of the one that holds from there; `None`: the answer begins free.
    pub first: Option<u32>,
    /// Tokens that the answer may begin with instead, and is free then (they open reasoning, or a call).
    pub unless: Vec<u32>,
    /// Texts behind which grammars begin in free text.
    pub markers: Vec<Marker>,
    /// Whether draws may be put off ([`RowValue::NotYet`]). Without, a ubatch waits for its masks.
    pub later: bool,
    /// Owner of the request. Owners take turns on the threads that make masks; no mask depends on the owner.
    pub owner: u64,
}

/// A grammar for a part of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grammar {
    /// Grammar in llguidance's dialect of Lark, or a list of named grammars as JSON.
    pub text: String,
    /// Whether the text behind the complete grammar is free. Otherwise the answer ends there.
    pub then_free: bool,
}

/// A text behind which a grammar begins, names of control tokens counted as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marker {
    /// White space at its end counts for nothing.
    pub text: String,
    /// Index of the grammar.
    pub grammar: u32,
}

/// Result of the last stage for a row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowOutput {
    /// The row's sequence.
    pub slot: SlotId,
    /// Position of the row that was computed; a sampled token belongs at `pos + 1`.
    pub pos: u32,
    /// Token, logits or another result.
    pub value: RowValue,
    /// Microseconds that masks of the sequence took since its last result.
    pub mask_us: u32,
}

/// The result of one wanted row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowValue {
    /// A token drawn from the row.
    Sampled(SampledToken),
    /// The whole row, `[n_vocab]`.
    Logits(Vec<f32>),
    /// A row that the head's norm made, `[n_embd]`.
    Hidden(Vec<f32>),
    /// Reason why no token can be drawn, such as logits that are not numbers. It ends this sequence, and no other.
    Failed(String),
    /// The mask of the draw is still being made. The stage keeps the row, and draws when [`SeqOp::Draw`] says so. In
    /// a [`Want::Verify`] part it keeps only a row that is the first to be drawn from and the part's last. Rows
    /// behind the part are [`RowValue::Refuted`] up to the sequence's next [`SeqOp::Truncate`].
    NotYet,
    /// A part's first row: what was drafted for it is wrong, and nothing was drawn from the part.
    Refuted,
}

/// Most tokens that the model's own block drafts behind a drawn one.
pub const MAX_DRAFTED: usize = 16;

/// Most tokens that are told to follow a drawn one because its answer's grammar leaves no choice.
pub const MAX_FORCED: usize = 8;

/// A drawn token with what was asked about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledToken {
    /// Id of the token.
    pub id: u32,
    /// Natural logarithm of its probability under softmax of the raw logits; `None` if not asked.
    pub logprob: Option<f32>,
    /// The most probable tokens, descending, of the same distribution.
    pub top: Vec<(u32, f32)>,
    /// Mirostat's state for the next draw ([`Mirostat`]); `None` without.
    pub mu: Option<f32>,
    /// Tokens whose text must follow by the answer's grammar, at most [`MAX_FORCED`]. It may come in other tokens: they are
    /// drafts like others.
    pub forced: Vec<u32>,
    /// Tokens that the model's own block drafts behind it, at most [`MAX_DRAFTED`].
    pub drafted: Vec<DraftedToken>,
}

/// A token that the model's own block drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftedToken {
    /// Id of the token.
    pub id: u32,
    /// The probability that the block gives it among all that could be drawn, 0 to 1.
    pub odds: f32,
}

/// Hidden rows between two stages: for each tensor of the cut's
/// [`BoundarySpec`](crate::spec::BoundarySpec), `[n_rows, width]`, one tensor after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Boundary {
    /// Rows, equal to the ubatch's.
    pub n_rows: usize,
    /// `n_rows * spec.width()` values.
    pub data: Vec<f32>,
}
