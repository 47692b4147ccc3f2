//! One block of drafts: its weights, and its pass over rows.

use super::super::head::Head;
use super::super::layers::{LoadedBlock, rope_table};
use super::Tools;
use crate::batch::SlotId;
use crate::block::{BlockCx, Embedding, Linear, Ropes, RowAdapters, RowInputs, project_all};
use crate::device::{Device, Rows, Scratch};
use crate::kernels::HeadColumns;
use crate::residual::{BoundaryRows, HeadInput, Inputs, Met, Norm, On};
use crate::state::{BlockState, PartRows, Sequences};

/// A loaded block of drafts.
pub(in crate::stage) struct DraftBlock {
    pub(super) embedding: Embedding,
    /// Norms of embedded rows, and of hidden ones.
    pub(super) norms: [Norm; 2],
    /// `[n_embd, 2 n_embd]`: makes one row of both.
    pub(super) join: Linear,
    pub(super) blocks: Vec<LoadedBlock>,
    /// Input of the output matrix: the block's rows, joined to one where there are several streams, and normed.
    pub(super) head_read: HeadInput,
    /// Number of residual streams.
    pub(super) n_streams: usize,
    /// Output matrix; `None`: the model's.
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

    /// Bytes among these of experts that lie elsewhere than the device that computes the rest.
    pub(super) fn nbytes_beside(&self) -> u64 {
        self.blocks.iter().map(|block| block.weights.block.nbytes_beside() as u64).sum()
    }

    /// Outputs of the block for its rows, `[n_rows, n_embd]` of each of its streams. Their entries are written. `seen`
    /// has the sequences as the block sees them.
    pub(super) fn run(&mut self, tools: &Tools<'_>, seen: &Sequences, input: &Input) -> Rows {
        self.pass(tools, seen, input, self.blocks.len())
    }

    /// Writes the rows' entries, where the block's outputs are not read.
    pub(super) fn remember(&mut self, tools: &Tools<'_>, seen: &Sequences, input: &Input) {
        let remembers = |block: &LoadedBlock| !matches!(block.state, BlockState::None);
        if let Some(last) = self.blocks.iter().rposition(remembers) {
            self.pass(tools, seen, input, last);
        }
    }

    /// Passes the rows through all that is before place `upto`; what stands there only remembers them, and nothing comes out.
    fn pass(&mut self, tools: &Tools<'_>, seen: &Sequences, input: &Input, upto: usize) -> Rows {
        let Tools { device, scratch, ropes: [rope, local_rope], .. } = *tools;
        let Input { parts, tokens, hidden } = input;
        let n = hidden.n_rows();
        let adapters = &RowAdapters::of_parts(parts, seen);
        let mut rows = self.joined(tools, input, adapters);
        let rope = rope_table(device, rope, parts);
        let local_rope = rope_table(device, local_rope, parts);
        let on = On { device, scratch };
        let mut inputs = Inputs::new(scratch.take(n, rows.hidden.cols()));
        let early = self.blocks.iter().filter_map(|block| block.weights.enter_layer(on, &rows));
        inputs.begin_layer(early);
        let layer_input = Rows::default();
        for (at, block) in self.blocks.iter_mut().take(upto + 1).enumerate() {
            let weights = block.weights.clone();
            let kept = weights.enter(on, &mut rows, &mut inputs);
            let mut cx = BlockCx {
                device,
                scratch,
                parts,
                sequences: seen,
                ropes: Ropes { model: rope.as_ref(), local: local_rope.as_ref() },
                rows: RowInputs { tokens, adapters, layer_input: &layer_input },
                beside: &mut rows.beside,
            };
            if at == upto {
                weights.block.remember(&mut cx, &mut block.state, &inputs.rows);
                return Rows::default();
            }
            let output = weights.block.forward(&mut cx, &mut block.state, &inputs.rows);
            weights.meet(on, Met { output, input: &inputs.rows, kept }, &mut rows);
        }
        streams_as_one(device, scratch, rows, self.n_streams)
    }

    /// The streams that the block begins with: each is made of the embedded row and of that stream's hidden row.
    fn joined(&self, tools: &Tools<'_>, input: &Input, adapters: &RowAdapters) -> BoundaryRows {
        let Tools { device, scratch, .. } = *tools;
        let [of_embedded, of_hidden] = &self.norms;
        let n_embd = of_hidden.width();
        let embedded = Rows::new(self.embedding.rows(device, &input.tokens, 1.0), n_embd);
        let embedded = scratch.adopt(embedded);
        let hidden = one_as_streams(device, scratch, &input.hidden, self.n_streams);
        let n = embedded.n_rows();
        let (mut joined, mut normed) = (scratch.take(n, 2 * n_embd), scratch.take(n, n_embd));
        let half = |i: usize| HeadColumns { stride: 2 * n_embd, first: i * n_embd, width: n_embd };
        of_embedded.apply(device, &embedded, &mut normed);
        device.heads_together(&normed, 1, half(0), &mut joined);
        let mut streams = Vec::with_capacity(self.n_streams);
        for stream in hidden.streams(self.n_streams) {
            of_hidden.apply(device, stream, &mut normed);
            device.heads_together(&normed, 1, half(1), &mut joined);
            let mut x = scratch.take(n, n_embd);
            project_all(device, scratch, adapters, &mut [self.join.job(&joined, &mut x)]);
            streams.push(x);
        }
        let beside = streams.split_off(1);
        BoundaryRows { hidden: streams.pop().unwrap_or_default(), beside }
    }

    /// The normed rows of what the block gave, and their logits.
    pub(super) fn logits(
        &self,
        tools: &Tools<'_>,
        head: &Head,
        rows: &Rows,
        adapters: &RowAdapters,
    ) -> [Rows; 2] {
        let Tools { device, scratch, .. } = *tools;
        let mut normed = scratch.take(rows.n_rows(), rows.cols() / self.n_streams);
        let rows = one_as_streams(device, scratch, rows, self.n_streams);
        self.head_read.read(On { device, scratch }, &rows, &mut normed);
        let logits = match self.output.as_ref().or(head.output.as_ref()) {
            Some(output) => head.logits(device, scratch, output, &normed, adapters),
            None => Rows::default(),
        };
        [normed, logits]
    }
}

/// `n` streams, `[n_rows, n_embd]` each, as rows that have one stream after the other.
pub(super) fn streams_as_one(
    device: &Device,
    scratch: &Scratch,
    rows: BoundaryRows,
    n: usize,
) -> Rows {
    if n == 1 {
        return rows.hidden;
    }
    let (n_rows, width) = (rows.hidden.n_rows(), rows.hidden.cols());
    let mut all = scratch.take(n_rows, n * width);
    for (i, stream) in rows.streams(n).enumerate() {
        let columns = HeadColumns { stride: n * width, first: i * width, width };
        device.heads_together(stream, 1, columns, &mut all);
    }
    all
}

/// The streams of rows that have `n` of them one after the other.
fn one_as_streams(device: &Device, scratch: &Scratch, all: &Rows, n: usize) -> BoundaryRows {
    let (n_rows, stride) = (all.n_rows(), all.cols());
    let width = stride / n;
    let stream = |i: usize| {
        let mut stream = scratch.take(n_rows, width);
        let columns = HeadColumns { stride, first: i * width, width };
        device.heads_apart(all, 1, columns, &mut stream);
        stream
    };
    BoundaryRows { hidden: stream(0), beside: (1..n).map(stream).collect() }
}
