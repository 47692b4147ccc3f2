//! Drafts behind drawn tokens: the first block reads the drawn token with the row that it was drawn from. Its draft is
//! read next, together with the block's own output row.

use super::block::Input;
use super::readings::Step;
use super::ring::copy_rows;
use super::{OwnDrafts, Tools};
use crate::batch::{DraftedToken, RowOutput, RowValue, SamplerSetup, SlotId};
use crate::block::RowAdapters;
use crate::device::Rows;
use crate::kernels::KV_PAGE;
use crate::spec::DraftInput;
use crate::stage::head::Head;
use crate::state::{PartRows, Sequences};

/// Drafts of one sequence.
struct Chain<'a> {
    slot: SlotId,
    /// Position of the drawn token, and of the sequence's first entry.
    pos: u32,
    base: u32,
    most: usize,
    /// The result that they are of.
    output: usize,
    setup: &'a SamplerSetup,
    /// All tokens up to the last draft.
    history: Vec<u32>,
    drafted: Vec<DraftedToken>,
    is_over: bool,
}

/// Rows that are read with drafts, and the chains that they are of.
type Fed = (Rows, Vec<usize>);

/// Input of a block for the chains `alive`.
struct ChainInput {
    input: Input,
    alive: Vec<usize>,
}

impl OwnDrafts {
    /// Drafts tokens behind the last one that was drawn of each sequence of `wanted`, as many at most, and puts them beside it.
    pub(in crate::stage) fn draft(
        &mut self,
        tools: &Tools<'_>,
        head: &mut Head,
        wanted: &[(SlotId, u32)],
        outputs: &mut [RowOutput],
    ) {
        let begun =
            wanted.iter().filter_map(|&(slot, n)| self.begin(tools.sequences, slot, n, outputs));
        let mut chains: Vec<Chain<'_>> = begun.filter(|chain| !chain.is_over).collect();
        if chains.is_empty() {
            return;
        }
        match self.blocks.len() {
            1 => self.draft_with_one(tools, head, &mut chains),
            _ => self.draft_with_several(tools, head, &mut chains),
        }
        for chain in chains {
            if let RowValue::Sampled(token) = &mut outputs[chain.output].value {
                token.drafted = chain.drafted;
            }
        }
    }

    /// One block reads what waits with the drawn token, and then each draft with the row that it gave for the one before.
    fn draft_with_one(&mut self, tools: &Tools<'_>, head: &mut Head, chains: &mut [Chain<'_>]) {
        let mut steps = Vec::with_capacity(chains.len());
        for Chain { slot, pos, base, history, .. } in &*chains {
            let waiting = self.readings.take_waiting(*slot, *pos);
            let mut step =
                waiting.unwrap_or_else(|| Step { base: *base, from: *pos, tokens: Vec::new() });
            let drawn = history[*pos as usize];
            step.tokens.push(drawn);
            self.readings.has_next(*slot, *pos, drawn);
            steps.push((*slot, step));
        }
        let input = self.kept_input(tools, &steps);
        let first = ChainInput { input, alive: (0..chains.len()).collect() };
        let mut fed = self.step(tools, head, 0, chains, first);
        while let Some(alive) = alive(chains) {
            let next = chain_input(tools, chains, alive, std::slice::from_ref(&fed));
            fed = self.step(tools, head, 0, chains, next);
        }
    }

    /// Each of several blocks reads the drawn token and the drafts before its own. Waiting rows are read before.
    fn draft_with_several(&mut self, tools: &Tools<'_>, head: &mut Head, chains: &mut [Chain<'_>]) {
        for Chain { slot, pos, base, .. } in &*chains {
            self.read_waiting(tools, head, *slot, *pos);
            self.show(tools.sequences, *slot, *base);
        }
        let before: Vec<_> = chains.iter().map(|chain| (chain.slot, chain.pos - 1)).collect();
        let first = self.ring.picked(tools.device, tools.scratch, &before);
        let mut fed: Vec<Fed> = vec![(first, (0..chains.len()).collect())];
        while let Some(alive) = alive(chains) {
            let next = chain_input(tools, chains, alive, &fed);
            fed.push(self.step(tools, head, fed.len() - 1, chains, next));
        }
    }

    /// Start of a chain of drafts behind the last draw of a sequence; `None`: nothing can be drafted there.
    fn begin<'a>(
        &self,
        sequences: &'a Sequences,
        slot: SlotId,
        wanted: u32,
        outputs: &[RowOutput],
    ) -> Option<Chain<'a>> {
        let output = outputs.iter().rposition(|output| output.slot == slot)?;
        let RowOutput { pos, value: RowValue::Sampled(token), .. } = &outputs[output] else {
            return None;
        };
        let (drawn_at, token) = (*pos, token.id);
        let pos = drawn_at + 1;
        let base = self.readings.base_for(slot, pos)?;
        let sequence = sequences.get(slot)?;
        let setup = sequence.sampler.as_deref()?;
        // Drafts know no masks: what an answer's grammar does not allow is found wrong when it is verified.
        if !setup.can_verify() {
            return None;
        }
        let room = self.n_ctx.min((sequence.blocks.len() * KV_PAGE) as u32).saturating_sub(pos);
        let most = self.depth.min(wanted as usize).min(room as usize);
        let history = sequences.history(slot).get(..pos as usize)?;
        let history = [history, &[token]].concat();
        let (drafted, is_over) = (Vec::with_capacity(most), most == 0);
        Some(Chain { slot, pos, base, most, output, setup, history, drafted, is_over })
    }

    /// A block drafts the next token of some chains from what it reads of them. Gives the rows that are read with it.
    fn step(
        &mut self,
        tools: &Tools<'_>,
        head: &mut Head,
        block: usize,
        chains: &mut [Chain<'_>],
        next: ChainInput,
    ) -> Fed {
        let ChainInput { input, alive } = next;
        let rows = self.blocks[block].run(tools, &self.seen, &input);
        self.see_rows(tools, head, block, &self.new_rows(&input), &rows);
        let ends: Vec<u32> = input.parts.iter().map(|part| part.rows.end as u32 - 1).collect();
        let rows = tools.device.picked_rows(tools.scratch, &rows, &ends);
        let adapters = RowAdapters::of_parts(&input.parts, &self.seen);
        let adapters = adapters.picked(ends.iter().map(|row| *row as usize));
        let [normed, logits] = self.blocks[block].logits(tools, head, &rows, &adapters);
        let n_vocab = logits.cols();
        let values = logits.fetched();
        for (i, &chain) in alive.iter().enumerate() {
            let row = &values[i * n_vocab..(i + 1) * n_vocab];
            let chain = &mut chains[chain];
            let pos = chain.history.len() as u32;
            match head.sampler.draft(row, chain.setup, &chain.history, pos) {
                Ok(draft) => {
                    chain.history.push(draft.id);
                    chain.drafted.push(draft);
                    chain.is_over = chain.drafted.len() == chain.most;
                }
                // Drafts are advice: a missing one is not reported.
                Err(_) => chain.is_over = true,
            }
        }
        let next = if self.reads == DraftInput::Normed { normed } else { rows };
        (next, alive)
    }

    /// The rows of a step that were not there in one before: several blocks read all of a chain's again.
    fn new_rows(&self, input: &Input) -> Vec<PartRows> {
        let last = |part: &PartRows| {
            let n_before = part.rows.len() - 1;
            let (pos, rows) = (part.pos + n_before as u32, part.rows.end - 1..part.rows.end);
            PartRows { pos, rows, ..part.clone() }
        };
        match self.blocks.len() {
            1 => input.parts.clone(),
            _ => input.parts.iter().map(last).collect(),
        }
    }
}

/// The numbers of those that go on; `None`: all are over.
fn alive(chains: &[Chain<'_>]) -> Option<Vec<usize>> {
    let alive: Vec<usize> = (0..chains.len()).filter(|&i| !chains[i].is_over).collect();
    (!alive.is_empty()).then_some(alive)
}

/// Input for the next draft of the chains `alive`: their last tokens, each with the row that was fed with it.
fn chain_input(
    tools: &Tools<'_>,
    chains: &[Chain<'_>],
    alive: Vec<usize>,
    fed: &[Fed],
) -> ChainInput {
    let n_each = fed.len();
    let cols = fed[0].0.cols();
    let mut input = Input {
        parts: Vec::with_capacity(alive.len()),
        tokens: Vec::new(),
        hidden: tools.scratch.take(alive.len() * n_each, cols),
    };
    for &i in &alive {
        let chain = &chains[i];
        let (at, pos) = (input.tokens.len(), chain.history.len() - n_each);
        input.parts.push(Input::part(chain.slot, pos as u32 - chain.base, at..at + n_each));
        input.tokens.extend_from_slice(&chain.history[pos..]);
        for (t, (rows, of)) in fed.iter().enumerate() {
            let Some(row) = of.iter().position(|of| *of == i) else { continue };
            copy_rows(tools.device, rows, row..row + 1, &mut input.hidden, at + t);
        }
    }
    ChainInput { input, alive }
}
