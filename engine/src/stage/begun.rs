//! Forward passes, in two halves: a ubatch is begun, and finished. A GPU computes between the two, and the next ubatch can be begun
//! there before this one is finished. So the GPU goes on with that while the host sends what this one gave.

use std::time::Duration;

use super::head::{HeadRows, WantedRows};
use super::layers::OfRows;
use super::own_drafts::LeftRows;
use super::wanted::wanted_rows;
use super::{Stage, StageOutput};
use crate::batch::{Boundary, SeqOp, SeqPart, SlotId, UBatch, Want};
use crate::block::RowAdapters;
use crate::device::Milestone;
use crate::error::BatchError;
use crate::residual::{BoundaryRows, FetchedRows};

/// A ubatch that a stage began.
pub struct Begun {
    results: Results,
    /// On a GPU, the point at which the results are complete.
    point: Option<Box<dyn Milestone>>,
    /// Sequences that a token is drawn for.
    drawn: Vec<SlotId>,
    /// Sequences that the model's own blocks are to draft for, and how many tokens of each.
    drafts: Vec<(SlotId, u32)>,
    /// Whether these blocks read some of its rows.
    is_read: bool,
}

/// Output of a ubatch, before the model's own blocks draft behind it ([`Stage::draft_behind`]).
pub struct Finished {
    output: StageOutput,
    drafts: Vec<(SlotId, u32)>,
}

impl Finished {
    /// Whether drafts are wanted.
    pub fn wants_drafts(&self) -> bool {
        !self.drafts.is_empty()
    }
}

/// Results of a ubatch, on their way to the host.
enum Results {
    Boundary(FetchedRows),
    Rows(HeadRows),
}

impl Begun {
    /// Waits for so long at most; whether all is computed but the draws. A GPU that failed is done: [`Stage::finish`] tells.
    pub fn is_done_within(&mut self, within: Duration) -> bool {
        self.point.as_mut().is_none_or(|point| point.is_reached_within(within))
    }
}

/// Sequences whose draws were put off and are asked for, and all that a token is drawn for.
fn draws_of(ub: &UBatch) -> [Vec<SlotId>; 2] {
    let put_off = ub.ops.iter().filter_map(|op| match op {
        SeqOp::Draw { slot } => Some(*slot),
        _ => None,
    });
    let put_off: Vec<SlotId> = put_off.collect();
    let is_drawn = |part: &&SeqPart| matches!(part.want, Want::Sample | Want::Verify);
    let of_parts = ub.parts.iter().filter(is_drawn).map(|part| part.slot);
    let drawn = put_off.iter().copied().chain(of_parts).collect();
    [put_off, drawn]
}

impl Stage {
    /// Runs one ubatch from its input to its output. `input` holds the rows of the stage before (`None` on the first
    /// stage).
    ///
    /// # Errors
    /// A ubatch that does not fit the stage is refused before anything changes. A row that no token
    /// can be drawn from is not an error: it says so itself ([`RowValue::Failed`]).
    ///
    /// [`RowValue::Failed`]: crate::batch::RowValue::Failed
    pub fn forward(
        &mut self,
        ub: &UBatch,
        input: Option<Boundary>,
    ) -> Result<StageOutput, BatchError> {
        let begun = self.begin(ub, input)?;
        let finished = self.finish(begun)?;
        self.draft_behind(finished)
    }

    /// Whether a ubatch can be begun now: it says nothing of sequences whose token is still to be drawn, but for parts
    /// whose tokens are verified. These are known whatever is drawn. None is begun behind one that the model's own
    /// blocks read: these draft when its tokens are drawn.
    pub fn may_begin(&self, ub: &UBatch) -> bool {
        let of_ops = ub.ops.iter().flat_map(|op| op.slots());
        let drawn_on = ub.parts.iter().filter(|part| part.want != Want::Verify);
        let mut named = of_ops.chain(drawn_on.map(|part| part.slot));
        self.n_reading == 0 && !named.any(|slot| self.drawing.contains(&slot))
    }

    /// Begins a ubatch, as [`Stage::forward`] runs it, behind those that were begun before. They are finished in the same order.
    ///
    /// # Errors
    /// As of [`Stage::forward`].
    ///
    /// # Panics
    /// If [`Stage::may_begin`] says no.
    pub fn begin(&mut self, ub: &UBatch, input: Option<Boundary>) -> Result<Begun, BatchError> {
        assert!(self.may_begin(ub), "ubatch {}: a token is still to be drawn", ub.id);
        self.check(ub, input.as_ref())?;
        let applied = self.sequences.apply(ub)?;
        self.run_actions(&applied);
        let read = self.follow_drafts(ub, &applied);
        if let Some(head) = &mut self.head {
            head.follow(&ub.ops);
            head.draft_masks(&self.sequences, &applied.parts);
            if read.is_empty() && head.is_refuted(&self.sequences, &applied.parts) {
                return Ok(self.begun_rows(ub, HeadRows::refuted(applied.parts)));
            }
        }
        let n_rows = ub.n_rows();
        let tokens = ub.tokens();
        let adapters = RowAdapters::of_parts(&applied.parts, &self.sequences);
        let mut rows = match input {
            Some(input) => {
                BoundaryRows::from_boundary(input, &self.spec.boundary(self.layers.start))
            }
            None => self.embed(ub, &adapters),
        };
        rows = rows.adopted(&self.scratch, self.spec.skeleton.beside.of_host());
        let of_rows =
            OfRows { parts: &applied.parts, tokens: &tokens, adapters: &adapters, n_rows };
        if self.head.is_none() {
            self.run_blocks(0..self.blocks.len(), &of_rows, &mut rows);
            let spec = self.spec.boundary(self.layers.end);
            rows.leave_behind(&self.device, &self.scratch, &spec);
            let results = Results::Boundary(rows.fetched(n_rows));
            return Ok(self.begun(results));
        }
        // Blocks at the end that do not mix rows run on the wanted rows alone.
        let mixing = self.n_mixing();
        self.run_blocks(0..mixing, &of_rows, &mut rows);
        // Blocks of drafts read all rows of their parts.
        let mut left: Vec<usize> = applied.parts.iter().flat_map(wanted_rows).collect();
        let n_wanted = left.len();
        left.extend(read.iter().flat_map(|part| part.rows.clone()));
        if left.len() > n_wanted {
            left.sort_unstable();
            left.dedup();
        }
        let mut wanted = rows.picked(&self.device, &self.scratch, left.iter().copied());
        drop(rows);
        let mut adapters = adapters.picked(left.iter().copied());
        let tokens: Vec<u32> = left.iter().map(|row| tokens[*row]).collect();
        let of_rows =
            OfRows { parts: &[], tokens: &tokens, adapters: &adapters, n_rows: left.len() };
        self.run_blocks(mixing..self.blocks.len(), &of_rows, &mut wanted);
        let is_read = !read.is_empty();
        if is_read {
            let rows = LeftRows { numbers: &left, tokens: &tokens, hidden: &wanted };
            self.read_for_drafts(read, &rows);
            let numbers = applied.parts.iter().flat_map(wanted_rows);
            let places: Vec<usize> = numbers.map(|row| rows.place(row)).collect();
            wanted = wanted.picked(&self.device, &self.scratch, places.iter().copied());
            adapters = adapters.picked(places);
        }
        let drafts = self.drafts_wanted(ub);
        let Some(head) = &self.head else { unreachable!("checked above") };
        let wanted = WantedRows { rows: &wanted, adapters: &adapters };
        let (device, sequences) = (&self.device, &self.sequences);
        let rows = head.rows(device, &self.scratch, sequences, applied.parts, wanted);
        self.n_reading += usize::from(is_read);
        Ok(Begun { drafts, is_read, ..self.begun_rows(ub, rows) })
    }

    /// The begun ubatch of the last stage, with the results of its parts and the tokens to draw.
    fn begun_rows(&mut self, ub: &UBatch, mut rows: HeadRows) -> Begun {
        let [draws, drawn] = draws_of(ub);
        rows.draws = draws;
        self.drawing.extend(&drawn);
        Begun { drawn, ..self.begun(Results::Rows(rows)) }
    }

    /// A begun ubatch with these results and nothing to draw.
    fn begun(&self, results: Results) -> Begun {
        let (drawn, drafts) = (Vec::new(), Vec::new());
        Begun { results, point: self.device.milestone(), drawn, drafts, is_read: false }
    }

    /// Waits for what a ubatch gives, and draws its tokens. Ubatches are finished in the order in which they were begun, and
    /// [`Stage::draft_behind`] comes before the next one.
    ///
    /// # Errors
    /// The device failed: the stage cannot be used again.
    pub fn finish(&mut self, begun: Begun) -> Result<Finished, BatchError> {
        let Begun { results, point, drawn, drafts, is_read } = begun;
        self.drawing.drain(..drawn.len());
        self.n_reading -= usize::from(is_read);
        point.map_or(Ok(()), |point| point.wait())?;
        let output = match results {
            Results::Boundary(rows) => StageOutput::Boundary(rows.into_boundary()),
            Results::Rows(rows) => {
                let Some(head) = &mut self.head else { unreachable!("it made these rows") };
                StageOutput::Rows(head.outputs(&self.sequences, rows))
            }
        };
        // What was read of a device that failed meanwhile is anything.
        self.device.check()?;
        Ok(Finished { output, drafts })
    }

    /// Has the model's own blocks draft behind the tokens that a ubatch drew, where that is wanted.
    ///
    /// # Errors
    /// As of [`Stage::finish`].
    pub fn draft_behind(&mut self, finished: Finished) -> Result<StageOutput, BatchError> {
        let Finished { mut output, drafts } = finished;
        if let StageOutput::Rows(rows) = &mut output
            && !drafts.is_empty()
        {
            self.draft(&drafts, rows);
            self.device.check()?;
        }
        Ok(output)
    }
}
