//! Ubatches that were sent and are not back. Results are matched with the rows that each of them was to return.

use std::collections::VecDeque;

use brigade_engine::batch::{RowOutput, RowValue, SlotId};

use crate::drafts::chains::Drafted;
use crate::events::{Micros, Share};
use crate::sequence::SeqNo;

/// A wanted row that has not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The sequence that waits for the row; the slot may belong to another by the time it comes.
    pub seq: SeqNo,
    pub slot: SlotId,
    pub pos: u32,
    pub kind: WantedKind,
    /// Whether the row was computed before, and only its draw was put off.
    pub is_draw: bool,
    /// The owner to whom the row is charged, also when its sequence has ended.
    pub share: Share,
    /// The row's place in its window, where it is a window's row.
    pub ahead: Option<InWindow>,
}

/// A row's place in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InWindow {
    /// How often its sequence had been taken back when it was sent.
    pub run: u32,
    /// The window's next token; the rows behind it come only if that is drawn.
    pub next: Option<u32>,
    /// Rows of the window behind it.
    pub left: u32,
}

impl InWindow {
    /// Whether nothing more comes of the window.
    fn ends_with(self, value: &RowValue) -> bool {
        match value {
            RowValue::Sampled(token) => self.next.is_some_and(|next| next != token.id),
            _ => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedKind {
    Token,
    Logits,
}

/// A ubatch on its way.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub id: u64,
    pub sent_at: Micros,
    pub n_rows: u32,
    /// Rows of sequences past their prompt.
    pub decode_rows: u32,
    /// Parts that tokens are to be drawn from.
    pub drawn_parts: u32,
    /// Rows of windows.
    pub in_windows: u32,
    /// Tokens that were drawn from its rows, and those of them that are of windows.
    pub tokens: u32,
    pub tokens_of_windows: u32,
    /// Drafts that the model's own block makes behind them.
    pub drafted: Drafted,
    /// Whether a whole window in it was of no use.
    pub has_stale: bool,
    /// Whether the ubatch has nothing but windows of sequences that run ahead.
    pub only_windows: bool,
    /// With prompt rows beside streams: bound of the time between two tokens of a stream.
    pub gap_bound: Option<Micros>,
    /// The sequences with rows in it, each with its number of positions sent by then.
    pub computed: Vec<(SeqNo, u32)>,
    /// First the draws that were put off, then in the order of the ubatch's parts, as the last stage returns them.
    pub wanted: VecDeque<Wanted>,
}

impl InFlight {
    /// Rows of windows that gave no token: those behind a wrong draft, and those that were read again.
    pub fn rows_in_vain(&self) -> u32 {
        self.in_windows.saturating_sub(self.tokens_of_windows)
    }

    /// Takes the next wanted row if `row` is it. The error says how it differs.
    pub fn claim(&mut self, row: &RowOutput) -> Result<Wanted, String> {
        let Some(next) = self.wanted.front().copied() else {
            return Err(format!("a row of slot {} but none was wanted any more", row.slot.0));
        };
        let kind = match row.value {
            RowValue::Sampled(_) | RowValue::Failed(_) => WantedKind::Token,
            RowValue::NotYet | RowValue::Refuted => WantedKind::Token,
            RowValue::Logits(_) | RowValue::Hidden(_) => WantedKind::Logits,
        };
        if (row.slot, row.pos, kind) != (next.slot, next.pos, next.kind) {
            return Err(format!(
                "{kind:?} of slot {} at position {} came, {:?} of slot {} at position {} was next",
                row.slot.0, row.pos, next.kind, next.slot.0, next.pos
            ));
        }
        self.wanted.pop_front();
        if let RowValue::Sampled(token) = &row.value {
            self.drafted.and(token.drafted.len());
            self.tokens += 1;
            self.tokens_of_windows += u32::from(next.ahead.is_some());
        }
        self.has_stale |= row.value == RowValue::Refuted;
        if let Some(window) = next.ahead.filter(|window| window.ends_with(&row.value)) {
            self.wanted.drain(..window.left as usize);
        }
        Ok(next)
    }
}
