//! One block of drafts: its weights, and its pass over rows.

use super::super::boundary_rows::BoundaryRows;
use super::super::head::Head;
use super::super::norm::Norm;
use super::super::{LoadedBlock, rope_table};
use super::Tools;
use crate::batch::SlotId;
use crate::block::{BlockCx, Embedding, Linear, RowAdapters, project_all};
use crate::device::Rows;
use crate::kernels::HeadColumns;
use crate::spec::Reads;
use crate::state::{PartRows, Sequences};

/// A loaded block.
pub(in crate::stage) struct DraftBlock {
    pub(super) embedding: Embedding,
    /// Of embedded rows, and of hidden ones.
    pub(super) norms: [Norm; 2],
    /// `[n_embd, 2 n_embd]`: makes one row of both.
    pub(super) join: Linear,
    pub(super) blocks: Vec<LoadedBlock>,
    pub(super) head_norm: Norm,
    /// `None`: the model's.
    pub(super) output: Option<Linear>,
}

/// Rows that a block reads: `tokens[i]` with row `i` of `hidden`, the row of the position before.
pub(super) struct Input {
    pub(super) parts: Vec<PartRows>,
    pub(super) tokens: Vec<u32>,
    pub(super) hidden: Rows,
}

impl Input {
    /// Rows `rows` of `slot`, from position `pos` behind the first entry on.
    pub(super) fn part(slot: SlotId, pos: u32, rows: std::ops::Range<usize>) -> PartRows {
        let (want, mu, known) = (crate::batch::Want::Nothing, None, 0);
        let planes = crate::batch::Planes { from: slot, to: slot };
        PartRows { slot, pos, rows, want, mu, known, planes }
    }
}

impl DraftBlock {
    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> u64 {
        let own = self.join.nbytes() + self.output.as_ref().map_or(0, Linear::nbytes);
        own as u64 + self.blocks.iter().map(|block| block.weights.nbytes()).sum::<u64>()
    }

    /// Of these, bytes of experts that lie elsewhere than what computes the rest.
    pub(super) fn nbytes_beside(&self) -> u64 {
        self.blocks.iter().map(|block| block.weights.block.nbytes_beside() as u64).sum()
    }

    /// What the block gives for its rows, `[n_rows, n_embd]`; their entries are written. `seen` has the sequences as it sees
    /// them.
    pub(super) fn run(&mut self, tools: &Tools<'_>, seen: &Sequences, input: &Input) -> Rows {
        let Tools { device, scratch, ropes: [rope, local_rope], .. } = *tools;
        let Input { parts, tokens, hidden } = input;
        let (n, n_embd) = (hidden.n_rows(), hidden.cols());
        let adapters = &RowAdapters::of_parts(parts, seen);
        let embedded = Rows::new(self.embedding.rows(device, tokens, 1.0), n_embd);
        let embedded = scratch.adopt(embedded);
        let mut joined = scratch.take(n, 2 * n_embd);
        for (i, (norm, rows)) in self.norms.iter().zip([&embedded, hidden]).enumerate() {
            let mut normed = scratch.take(n, n_embd);
            norm.apply(device, rows, &mut normed);
            let half = HeadColumns { stride: 2 * n_embd, first: i * n_embd, width: n_embd };
            device.heads_together(&normed, 1, half, &mut joined);
        }
        let mut x = scratch.take(n, n_embd);
        project_all((device, scratch), adapters, &mut [self.join.job(&joined, &mut x)]);
        let mut rows = BoundaryRows::stream(x);
        let rope = rope_table(device, rope, parts);
        let local_rope = rope_table(device, local_rope, parts);
        let (mut normed, layer_input) = (scratch.take(n, n_embd), Rows::default());
        for block in &mut self.blocks {
            let weights = block.weights.clone();
            if let (Reads::Stream, Some(read)) = (block.spec.reads, &weights.read) {
                read.apply((device, scratch), &rows, &mut normed);
            }
            let mut cx = BlockCx {
                device,
                parts,
                tokens,
                sequences: seen,
                rope: rope.as_ref(),
                local_rope: local_rope.as_ref(),
                layer_input: &layer_input,
                beside: &mut rows.beside,
                adapters,
                scratch,
            };
            let mut out = weights.block.forward(&mut cx, &mut block.state, &normed);
            if let Some(norm) = &weights.post_norm {
                norm.apply_inplace(device, &mut out);
            }
            block.add(device, (&out, &normed), None, &mut rows);
        }
        rows.hidden
    }

    /// The normed rows of what the block gave, and their logits.
    pub(super) fn logits(
        &self,
        tools: &Tools<'_>,
        head: &Head,
        (rows, adapters): (&Rows, &RowAdapters),
    ) -> [Rows; 2] {
        let Tools { device, scratch, .. } = *tools;
        let mut normed = scratch.take(rows.n_rows(), rows.cols());
        self.head_norm.apply(device, rows, &mut normed);
        let logits = match self.output.as_ref().or(head.output.as_ref()) {
            Some(output) => head.logits((device, scratch), output, &normed, adapters),
            None => Rows::default(),
        };
        [normed, logits]
    }
}
