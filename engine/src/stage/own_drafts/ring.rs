//! The last hidden rows of each sequence, by position: what a block reads with the token behind them.

use std::ops::Range;

use super::Tools;
use crate::batch::SlotId;
use crate::device::{Device, Rows, Scratch};
use crate::kernels::HeadColumns;
use crate::spec::KEPT_HIDDEN;

/// `[n_slots * KEPT_HIDDEN, n_embd]`: that of position `p` of a slot is its row `p % KEPT_HIDDEN`.
pub(super) struct Ring {
    rows: Rows,
}

impl Ring {
    /// Room for the rows of `n_slots` sequences.
    pub(super) fn new(device: &Device, n_slots: usize, n_embd: usize) -> Self {
        // A scratch of its own: these rows never go back.
        Self { rows: device.scratch().zeros(n_slots * KEPT_HIDDEN, n_embd) }
    }

    /// Values of a row.
    pub(super) fn cols(&self) -> usize {
        self.rows.cols()
    }

    /// Bytes that it takes.
    pub(super) fn nbytes(&self) -> u64 {
        (self.rows.len() * size_of::<f32>()) as u64
    }

    fn at(slot: SlotId, pos: u32) -> usize {
        slot.0 as usize * KEPT_HIDDEN + pos as usize % KEPT_HIDDEN
    }

    /// Keeps the last rows of `rows` of `from`, the first of which stands at `pos`.
    pub(super) fn keep(
        &mut self,
        device: &Device,
        slot: SlotId,
        pos: u32,
        from: &Rows,
        rows: Range<usize>,
    ) {
        let mut left = rows.end.saturating_sub(KEPT_HIDDEN).max(rows.start)..rows.end;
        while !left.is_empty() {
            let to = Self::at(slot, pos + (left.start - rows.start) as u32);
            let n = left.len().min((slot.0 as usize + 1) * KEPT_HIDDEN - to);
            let now = left.start..left.start + n;
            copy_rows(device, from, now.clone(), &mut self.rows, to);
            left.start = now.end;
        }
    }

    /// The kept rows of these positions, in this order.
    pub(super) fn picked(&self, device: &Device, scratch: &Scratch, of: &[(SlotId, u32)]) -> Rows {
        let picked: Vec<u32> = of.iter().map(|&(slot, pos)| Self::at(slot, pos) as u32).collect();
        device.picked_rows(scratch, &self.rows, &picked)
    }

    /// Puts what is read with the tokens at some positions to its place, whose first row is `at`: the kept rows before each of
    /// them. The first of a sequence has none. Gives the number of rows that are there then.
    pub(super) fn put_before(
        &self,
        tools: &Tools<'_>,
        slot: SlotId,
        positions: Range<u32>,
        to: &mut Rows,
        at: usize,
    ) -> usize {
        let before = positions.start.saturating_sub(1)..positions.end - 1;
        let kept: Vec<_> = before.map(|pos| (slot, pos)).collect();
        let first = usize::from(positions.start == 0);
        if !kept.is_empty() {
            let rows = self.picked(tools.device, tools.scratch, &kept);
            copy_rows(tools.device, &rows, 0..kept.len(), to, at + first);
        }
        first + kept.len()
    }

    /// Gives a slot what another has.
    pub(super) fn copy(&mut self, device: &Device, scratch: &Scratch, src: SlotId, dst: SlotId) {
        let all: Vec<(SlotId, u32)> = (0..KEPT_HIDDEN as u32).map(|pos| (src, pos)).collect();
        let rows = self.picked(device, scratch, &all);
        copy_rows(device, &rows, 0..KEPT_HIDDEN, &mut self.rows, Self::at(dst, 0));
    }
}

/// Copies rows to those of others from `at` on.
pub(super) fn copy_rows(
    device: &Device,
    from: &Rows,
    rows: Range<usize>,
    to: &mut Rows,
    at: usize,
) {
    let n = rows.len();
    if n == 0 {
        return;
    }
    let width = from.cols();
    let whole = HeadColumns { stride: width, first: 0, width };
    device.heads_apart(&from.part(rows), 1, whole, &mut to.to_write().part(at..at + n));
}
