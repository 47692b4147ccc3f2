//! The last stage's calls of its blocks of drafts: reading rows, and drafting.

use super::Tools;
use super::block::streams_as_one;
use crate::batch::{RowOutput, SeqPart, SlotId, UBatch, Want};
use crate::residual::{BoundaryRows, On};
use crate::spec::DraftInput;
use crate::stage::Stage;
use crate::state::{Applied, PartRows};

/// Rows of a ubatch that are left behind the last layer that mixes rows.
pub(in crate::stage) struct LeftRows<'a> {
    /// Numbers of the rows in the ubatch, ascending.
    pub numbers: &'a [usize],
    /// Tokens of the rows.
    pub tokens: &'a [u32],
    /// Rows behind the last layer.
    pub hidden: &'a BoundaryRows,
}

impl LeftRows<'_> {
    /// The place among them of a row of the ubatch.
    pub(in crate::stage) fn place(&self, number: usize) -> usize {
        self.numbers.partition_point(|&left| left < number)
    }
}

impl Stage {
    /// The parts that blocks of drafts read, once the ops of their ubatch have been followed.
    pub(in crate::stage) fn follow_drafts(
        &mut self,
        ub: &UBatch,
        applied: &Applied,
    ) -> Vec<PartRows> {
        let Some(drafts) = &mut self.own_drafts else { return Vec::new() };
        let tools = Tools {
            device: &self.device,
            scratch: &self.scratch,
            ropes: [self.rope.as_ref(), self.local_rope.as_ref()],
            sequences: &self.sequences,
        };
        drafts.follow(&tools, ub, applied);
        applied.parts.iter().filter(|part| drafts.has(part.slot)).cloned().collect()
    }

    /// Has blocks of drafts read `parts`, all of whose rows are left.
    pub(in crate::stage) fn read_for_drafts(
        &mut self,
        mut parts: Vec<PartRows>,
        left: &LeftRows<'_>,
    ) {
        let (Some(drafts), Some(head)) = (&mut self.own_drafts, &self.head) else { return };
        let tools = Tools {
            device: &self.device,
            scratch: &self.scratch,
            ropes: [self.rope.as_ref(), self.local_rope.as_ref()],
            sequences: &self.sequences,
        };
        let (mut picked, mut tokens) = (Vec::new(), Vec::new());
        for part in &mut parts {
            let first = left.place(part.rows.start);
            let places = first..first + part.rows.len();
            part.rows = tokens.len()..tokens.len() + places.len();
            tokens.extend_from_slice(&left.tokens[places.clone()]);
            picked.extend(places);
        }
        let rows = left.hidden.picked(tools.device, tools.scratch, picked.iter().copied());
        let hidden = match drafts.reads {
            DraftInput::Normed => {
                let mut hidden = tools.scratch.take(picked.len(), rows.hidden.cols());
                let on = On { device: tools.device, scratch: tools.scratch };
                head.read.read(on, &rows, &mut hidden);
                hidden
            }
            DraftInput::Stream => rows.hidden,
            DraftInput::Streams(n) => streams_as_one(tools.device, tools.scratch, rows, n),
        };
        drafts.read(&tools, head, &parts, &tokens, &hidden);
    }

    /// The sequences of a ubatch that drafts are wanted of, and how many of each.
    pub(in crate::stage) fn drafts_wanted(&self, ub: &UBatch) -> Vec<(SlotId, u32)> {
        let Some(drafts) = &self.own_drafts else { return Vec::new() };
        let wanted = |part: &SeqPart| {
            let n = part.ahead.map_or(0, |ahead| ahead.drafts);
            let is_drawn = matches!(part.want, Want::Sample | Want::Verify);
            (n > 0 && is_drawn && drafts.has(part.slot)).then_some((part.slot, n))
        };
        ub.parts.iter().filter_map(wanted).collect()
    }

    /// Puts drafts beside the tokens that were drawn last.
    pub(in crate::stage) fn draft(&mut self, wanted: &[(SlotId, u32)], outputs: &mut [RowOutput]) {
        let (Some(drafts), Some(head)) = (&mut self.own_drafts, &mut self.head) else { return };
        let tools = Tools {
            device: &self.device,
            scratch: &self.scratch,
            ropes: [self.rope.as_ref(), self.local_rope.as_ref()],
            sequences: &self.sequences,
        };
        drafts.draft(&tools, head, wanted, outputs);
    }
}
