//! The end of the model: wanted rows become logits, and logits become tokens.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::verify::Drafts;
use super::wanted::wanted_rows;
use crate::batch::{RowOutput, RowValue, SampledToken, SamplerSetup, SeqOp, SlotId, Want};
use crate::block::{Linear, RowAdapters, project_all};
use crate::constraint::{Drawn, Mask, Masks};
use crate::device::{Device, Fetched, FewValues, FoundGreatest, Rows, Scratch};
use crate::kernels::Vector;
use crate::residual::{BoundaryRows, HeadInput, On};
use crate::sample::{Next, Sampler, looks_at};
use crate::spec::HeadSpec;
use crate::state::{PartRows, Sequences};

/// Most logits of a row that a GPU finds for a draw: where more are looked at, all of them leave it.
const MOST_OF_FEW: usize = 1024;

/// Time that a ubatch which holds only put-off draws waits for the mask of one of them. Its sender has nothing else to
/// do: without the wait, an idle line would carry empty ubatches as fast as it can.
const MASK_WITHIN: Duration = Duration::from_millis(5);

/// Norm and head matrix `[n_vocab, n_embd]`, with the sampler.
pub(super) struct Head {
    pub(super) spec: HeadSpec,
    pub(super) read: HeadInput,
    /// `None` in an encoder, which has no logits.
    pub(super) output: Option<Linear>,
    /// Width of a row.
    pub(super) n_embd: usize,
    /// `[n_vocab]`, where the model has one.
    pub(super) bias: Option<Vector>,
    pub(super) sampler: Sampler,
    /// Masks of answers that are held to a grammar.
    pub(super) masks: Masks,
    /// Rows whose mask was not there.
    pub(super) put_off: BTreeMap<SlotId, PutOff>,
    /// Drafts of sequences that run ahead of their drawn tokens.
    pub(super) drafts: Drafts,
}

/// A row whose token is still to be drawn.
pub(super) struct PutOff {
    pos: u32,
    mu: Option<f32>,
    /// `[n_vocab]`, a companion's beside it taken in.
    logits: Vec<f32>,
}

/// Results of parts, on their way to the host.
pub(super) struct HeadRows {
    parts: Vec<PartRows>,
    values: Values,
    /// Sequences whose draws were put off, and are asked for again.
    pub(super) draws: Vec<SlotId>,
}

enum Values {
    /// All that is drawn looks at few logits, which a GPU finds. The others stay there, where one is no number.
    Few { few: FoundGreatest, logits: Box<Rows> },
    /// `[n, n_embd]` and `[n, n_vocab]`, the latter empty where no logits are wanted.
    All { normed: Fetched, logits: Fetched },
}

/// Rows of a ubatch that a head reads.
#[derive(Clone, Copy)]
pub(super) struct WantedRows<'a> {
    pub(super) rows: &'a BoundaryRows,
    /// The adapters that they use.
    pub(super) adapters: &'a RowAdapters,
}

impl HeadRows {
    /// Results of parts that were not computed, since all of them [are refuted](Head::is_refuted).
    pub(super) fn refuted(parts: Vec<PartRows>) -> Self {
        let values = Values::All { normed: Fetched::default(), logits: Fetched::default() };
        Self { parts, values, draws: Vec::new() }
    }
}

impl Head {
    /// Results of the parts, from their gathered rows, except for the draws.
    pub(super) fn rows(
        &self,
        device: &Device,
        scratch: &Scratch,
        sequences: &Sequences,
        parts: Vec<PartRows>,
        wanted: WantedRows<'_>,
    ) -> HeadRows {
        let WantedRows { rows: wanted, adapters } = wanted;
        let n = wanted.hidden.n_rows();
        if n == 0 {
            return HeadRows::refuted(Vec::new());
        }
        let mut normed = scratch.take(n, self.n_embd);
        self.read.read(On { device, scratch }, wanted, &mut normed);
        // Rows without wanted logits are left out only if no row has wanted ones. A companion never comes alone.
        let of_logits = |want| matches!(want, Want::Sample | Want::Verify | Want::Logits);
        let any_logits = parts.iter().any(|part| of_logits(part.want));
        let logits = match self.output.as_ref().filter(|_| any_logits) {
            Some(output) => self.logits(device, scratch, output, &normed, adapters),
            None => Rows::default(),
        };
        let few = few_looked_at(sequences, &parts)
            .filter(|k| *k <= MOST_OF_FEW.min(logits.cols()))
            .and_then(|k| device.greatest(&logits, k));
        let values = match few {
            Some(few) => Values::Few { few, logits: Box::new(logits) },
            None => Values::All { normed: normed.fetched(), logits: logits.fetched() },
        };
        HeadRows { parts, values, draws: Vec::new() }
    }

    /// Whether a ubatch holds only drafts behind a wrong one, so that its results would not be read.
    pub(super) fn is_refuted(&self, sequences: &Sequences, parts: &[PartRows]) -> bool {
        let is_refuted = |part: &PartRows| {
            let (first, tokens) = verified_tokens(sequences, part);
            !self.drafts.may_go_on(part.slot, first, tokens[0])
        };
        let mut parts = parts.iter().peekable();
        parts.peek().is_some() && parts.all(|part| part.want == Want::Verify && is_refuted(part))
    }

    /// Outputs of the parts, in their order; tokens are drawn now.
    pub(super) fn outputs(&mut self, sequences: &Sequences, rows: HeadRows) -> Vec<RowOutput> {
        let HeadRows { parts, values, draws } = rows;
        let mut outputs = self.drawn_later(sequences, &draws, parts.is_empty());
        outputs.extend(self.part_outputs(sequences, &parts, values));
        outputs
    }

    /// Follows what happens to sequences.
    pub(super) fn follow(&mut self, ops: &[SeqOp]) {
        self.masks.follow(ops);
        for op in ops {
            if let SeqOp::Open { slot, .. }
            | SeqOp::Copy { dst: slot, .. }
            | SeqOp::Close { slot } = op
            {
                self.put_off.remove(slot);
            }
            if let SeqOp::Truncate { slot, len, .. } = op
                && self.put_off.get(slot).is_some_and(|row| row.pos >= *len)
            {
                self.put_off.remove(slot);
            }
            self.drafts.follow(op);
        }
    }

    /// Begins with the masks along drafts, which are then there when their rows are computed.
    pub(super) fn draft_masks(&mut self, sequences: &Sequences, parts: &[PartRows]) {
        for part in parts.iter().filter(|part| part.want == Want::Verify) {
            let Some(rule) = &setup_of(sequences, part.slot).constraint else { continue };
            let (first, tokens) = verified_tokens(sequences, part);
            if self.drafts.may_go_on(part.slot, first, tokens[0]) {
                self.masks.draft(part.slot, rule, first, tokens);
            }
        }
    }

    /// Forgets all sequences.
    pub(super) fn clear(&mut self) {
        self.masks.clear();
        self.put_off.clear();
        self.drafts.clear();
    }

    /// The tokens of rows that were put off, as far as their masks are there now.
    fn drawn_later(
        &mut self,
        sequences: &Sequences,
        draws: &[SlotId],
        nothing_else: bool,
    ) -> Vec<RowOutput> {
        if nothing_else && !draws.is_empty() {
            self.masks.wait_for_any(draws, MASK_WITHIN);
        }
        let mut outputs = Vec::with_capacity(draws.len());
        for &slot in draws {
            let Some(row) = self.put_off.remove(&slot) else {
                let value = RowValue::Failed("no draw of it was put off".to_owned());
                outputs.push(RowOutput { slot, pos: 0, value, mask_us: 0 });
                continue;
            };
            let value = self.draw(sequences, slot, row.pos, row.mu, &row.logits);
            let pos = row.pos;
            if value == RowValue::NotYet {
                self.put_off.insert(slot, row);
            }
            outputs.push(self.output(slot, pos, value));
        }
        outputs
    }

    /// A row's result, with what its masks took.
    fn output(&self, slot: SlotId, pos: u32, value: RowValue) -> RowOutput {
        let mask_us = u32::try_from(self.masks.take_spent_us(slot)).unwrap_or(u32::MAX);
        RowOutput { slot, pos, value, mask_us }
    }

    fn part_outputs(
        &mut self,
        sequences: &Sequences,
        parts: &[PartRows],
        values: Values,
    ) -> Vec<RowOutput> {
        let (normed, logits) = match values {
            Values::All { normed, logits } => (normed, logits),
            Values::Few { few, logits } => match few.values() {
                Some(few) => return self.drawn_of_few(sequences, parts, &few),
                None => (Fetched::default(), logits.fetched()),
            },
        };
        let (n_vocab, n_embd) = (self.output.as_ref().map_or(0, Linear::rows), self.n_embd);
        let mut outputs = Vec::with_capacity(parts.len());
        let mut index = 0;
        let mut companion = None;
        for part in parts {
            let row_logits = |index: usize| &logits[index * n_vocab..(index + 1) * n_vocab];
            if part.want == Want::Verify {
                let first = index;
                let draw = |head: &mut Self, i: usize, pos: u32| {
                    head.draw(sequences, part.slot, pos, None, row_logits(first + i))
                };
                let drawn = self.verified(sequences, part, draw);
                if let [RowOutput { pos, value: RowValue::NotYet, .. }] = drawn[..]
                    && wanted_rows(part).len() == 1
                {
                    let logits = row_logits(first).to_vec();
                    self.put_off.insert(part.slot, PutOff { pos, mu: None, logits });
                }
                outputs.extend(drawn);
                index += wanted_rows(part).len();
                continue;
            }
            for row in wanted_rows(part) {
                let pos = part.pos + (row - part.rows.start) as u32;
                let logits = || row_logits(index);
                let value = match part.want {
                    Want::Companion => {
                        companion = Some(index);
                        index += 1;
                        continue;
                    }
                    Want::Sample => {
                        let companion = companion.take().map(row_logits);
                        self.sample(sequences, part, pos, logits(), companion)
                    }
                    Want::Hidden | Want::HiddenFirst | Want::HiddenLast => {
                        RowValue::Hidden(normed[index * n_embd..(index + 1) * n_embd].to_vec())
                    }
                    Want::Logits | Want::Nothing | Want::Verify => {
                        RowValue::Logits(logits().to_vec())
                    }
                };
                outputs.push(self.output(part.slot, pos, value));
                index += 1;
            }
        }
        outputs
    }

    /// `[n, n_vocab]` from normed rows `[n, n_embd]`.
    pub(super) fn logits(
        &self,
        device: &Device,
        scratch: &Scratch,
        output: &Linear,
        normed: &Rows,
        adapters: &RowAdapters,
    ) -> Rows {
        let mut logits = scratch.take(normed.n_rows(), output.rows());
        project_all(device, scratch, adapters, &mut [output.job(normed, &mut logits)]);
        if let Some(bias) = &self.bias {
            device.add_bias(&mut logits, bias);
        }
        if self.spec.logit_scale != 1.0 {
            device.scale(&mut logits, self.spec.logit_scale);
        }
        if let Some(cap) = self.spec.softcap {
            device.softcap(&mut logits, cap);
        }
        if !self.spec.masked.is_empty() {
            device.fill_columns(&mut logits, self.spec.masked.clone(), f32::MIN);
        }
        logits
    }

    /// The tokens that the parts want, drawn of the greatest logits of each row.
    fn drawn_of_few(
        &mut self,
        sequences: &Sequences,
        parts: &[PartRows],
        few: &[FewValues],
    ) -> Vec<RowOutput> {
        let mut outputs = Vec::with_capacity(parts.len());
        let mut left = few;
        for part in parts {
            let (few, others) = left.split_at(wanted_rows(part).len());
            left = others;
            let setup = (part.want != Want::Nothing).then(|| setup_of(sequences, part.slot));
            let Some(setup) = setup else { continue };
            let draw = |head: &mut Self, i: usize, pos: u32| match head.sampler.sample_few(
                &few[i],
                setup,
                pos + 1,
            ) {
                Ok(token) => RowValue::Sampled(token),
                Err(error) => RowValue::Failed(error.to_string()),
            };
            if part.want == Want::Verify {
                outputs.extend(self.verified(sequences, part, draw));
            } else {
                let pos = last_pos(part);
                let value = draw(self, 0, pos);
                outputs.push(RowOutput { slot: part.slot, pos, value, mask_us: 0 });
            }
        }
        outputs
    }

    /// Outputs of a part whose tokens may be drafts. `draw` draws from its wanted row `i`, at a position. The outputs
    /// end with a row whose mask is not there: no token is known behind it, so the rows there are of no use.
    fn verified(
        &mut self,
        sequences: &Sequences,
        part: &PartRows,
        mut draw: impl FnMut(&mut Self, usize, u32) -> RowValue,
    ) -> Vec<RowOutput> {
        let slot = part.slot;
        let (first, tokens) = verified_tokens(sequences, part);
        if !self.drafts.goes_on(slot, first, tokens[0]) {
            return vec![self.output(slot, first, RowValue::Refuted)];
        }
        let mut outputs = Vec::with_capacity(tokens.len());
        for (i, pos) in (first..).take(tokens.len()).enumerate() {
            let value = draw(self, i, pos);
            let drawn = match &value {
                RowValue::Sampled(token) => Some(token.id),
                _ => None,
            };
            outputs.push(self.output(slot, pos, value));
            match (drawn, tokens.get(i + 1)) {
                (Some(drawn), Some(next)) if drawn == *next => {}
                (Some(drawn), None) => self.drafts.drawn(slot, pos + 1, drawn),
                (Some(_) | None, _) => {
                    self.drafts.refute(slot);
                    break;
                }
            }
        }
        outputs
    }

    fn sample(
        &mut self,
        sequences: &Sequences,
        part: &PartRows,
        pos: u32,
        logits: &[f32],
        of_companion: Option<&[f32]>,
    ) -> RowValue {
        let setup = setup_of(sequences, part.slot);
        let logits = match (setup.companion, of_companion) {
            (Some(companion), Some(of_companion)) => {
                match companion.combine(logits, of_companion) {
                    Ok(combined) => Cow::Owned(combined),
                    Err(error) => return RowValue::Failed(error.to_string()),
                }
            }
            // That a draw which wants a companion has it was checked with the ubatch.
            _ => Cow::Borrowed(logits),
        };
        let value = self.draw(sequences, part.slot, pos, part.mu, &logits);
        if value == RowValue::NotYet {
            let (mu, logits) = (part.mu, logits.into_owned());
            self.put_off.insert(part.slot, PutOff { pos, mu, logits });
        }
        value
    }

    /// Draws the token behind position `pos` of a sequence.
    fn draw(
        &mut self,
        sequences: &Sequences,
        slot: SlotId,
        pos: u32,
        mu: Option<f32>,
        logits: &[f32],
    ) -> RowValue {
        let setup = setup_of(sequences, slot);
        // It may be further by now, where a later ubatch was begun.
        let history = sequences.history(slot);
        let history = &history[..history.len().min(pos as usize + 1)];
        let sampler = &mut self.sampler;
        let next = Next { pos: pos + 1, mask: None, mu };
        let drawn = match &setup.constraint {
            None => sampler.sample(logits, setup, history, next),
            Some(rule) => {
                let draw = |mask: Option<&Mask>| {
                    sampler.sample(logits, setup, history, Next { mask, ..next })
                };
                let token = |drawn: &Result<SampledToken, _>| drawn.as_ref().ok().map(|t| t.id);
                match self.masks.draw(slot, rule, history, draw, token) {
                    Ok(Drawn::Now(drawn)) => drawn.map(|token| SampledToken {
                        forced: self.masks.forced(slot, rule, history, token.id),
                        ..token
                    }),
                    Ok(Drawn::NotYet) => return RowValue::NotYet,
                    Err(error) => return RowValue::Failed(error.to_string()),
                }
            }
        };
        match drawn {
            Ok(token) => RowValue::Sampled(token),
            Err(error) => RowValue::Failed(error.to_string()),
        }
    }
}

/// Position of the first row of a part that a token is drawn from, and the tokens of the part from there on.
fn verified_tokens<'a>(sequences: &'a Sequences, part: &PartRows) -> (u32, &'a [u32]) {
    let first = part.pos + part.known as u32;
    // The history may be further by now, where a later ubatch was begun.
    let tokens = &sequences.history(part.slot)[first as usize..];
    (first, &tokens[..wanted_rows(part).len()])
}

/// Number of greatest logits to look at in each row. `None` where a part wants more than tokens, or a draw looks at all
/// logits.
fn few_looked_at(sequences: &Sequences, parts: &[PartRows]) -> Option<usize> {
    let wanting = parts.iter().filter(|part| part.want != Want::Nothing);
    let looked_at = wanting.map(|part| match part.want {
        Want::Sample => looks_at(setup_of(sequences, part.slot), last_pos(part) + 1),
        // Of the rows of a part its first one looks at most.
        Want::Verify => looks_at(setup_of(sequences, part.slot), part.pos + 1),
        _ => None,
    });
    looked_at.collect::<Option<Vec<usize>>>()?.into_iter().max()
}

/// Settings for drawing the token of a part. Nothing changes the sequence between its ubatch and the draw.
fn setup_of(sequences: &Sequences, slot: SlotId) -> &SamplerSetup {
    let setup = sequences.get(slot).and_then(|sequence| sequence.sampler.as_ref());
    setup.expect("a part that wants a sample was checked to have a sampler")
}

fn last_pos(part: &PartRows) -> u32 {
    part.pos + part.rows.len() as u32 - 1
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::batch::{PageId, SamplingParams, SeqPart, UBatch};
    use crate::kernels::{self, PackedMatrix};
    use crate::quant::GgmlType;
    use crate::residual::Norm;
    use crate::spec::Prefixes;

    const N_EMBD: usize = 4;
    const N_VOCAB: usize = 3;

    fn head(device: &Device) -> Head {
        // Row `i` weighs input `i` alone, so that the largest of the first inputs wins.
        let rows = (0..N_VOCAB).flat_map(|i| (0..N_EMBD).map(move |j| f32::from(u8::from(i == j))));
        let weights: Vec<f32> = rows.collect();
        let bytes = bytemuck::cast_slice(&weights);
        Head {
            spec: HeadSpec::usual(1e-5),
            read: HeadInput::new(Some(Norm::plain(N_EMBD, 1e-5)), None),
            output: PackedMatrix::pack(device.host(), GgmlType::F32, N_VOCAB, N_EMBD, bytes)
                .ok()
                .map(Linear::plain),
            n_embd: N_EMBD,
            bias: None,
            sampler: Sampler::new(),
            masks: Masks::new(Box::new(|| unreachable!("nothing is held to a grammar here"))),
            put_off: BTreeMap::new(),
            drafts: Drafts::default(),
        }
    }

    /// Two sequences of one token each, both of which want a token.
    fn two_parts(sequences: &mut Sequences) -> Vec<PartRows> {
        let params = SamplingParams::greedy();
        let setup = Arc::new(SamplerSetup {
            params,
            seed: 0,
            top_logprobs: None,
            ..SamplerSetup::default()
        });
        let open = |slot| SeqOp::Open {
            slot: SlotId(slot),
            blocks: vec![PageId(slot)],
            sampler: Some(setup.clone()),
            request: "r".into(),
        };
        let part = |slot| SeqPart {
            slot: SlotId(slot),
            pos: 0,
            tokens: vec![0],
            want: Want::Sample,
            mu: None,
            ahead: None,
        };
        let ops = vec![open(0), open(1)];
        sequences.apply(&UBatch { id: 0, ops, parts: vec![part(0), part(1)] }).unwrap().parts
    }

    #[test]
    fn only_drafts_behind_wrong_ones_are_of_no_use() {
        let device = Device::cpu(kernels::select(None).unwrap(), 1, None).unwrap();
        let mut sequences = Sequences::new(2, 2, Prefixes::All, true);
        let sampled = two_parts(&mut sequences);
        let mut head = head(&device);
        head.drafts.refute(SlotId(0));
        assert!(!head.is_refuted(&sequences, &sampled), "nobody drafted these");
        let windows = sampled.into_iter().map(|part| PartRows { want: Want::Verify, ..part });
        let windows: Vec<PartRows> = windows.collect();
        assert!(!head.is_refuted(&sequences, &windows), "one is of use");
        assert!(head.is_refuted(&sequences, &windows[..1]));
        head.drafts.refute(SlotId(1));
        assert!(head.is_refuted(&sequences, &windows));
        let rows = head.outputs(&sequences, HeadRows::refuted(windows.clone()));
        let values: Vec<_> = rows.iter().map(|row| &row.value).collect();
        assert_eq!(values, [&RowValue::Refuted; 2]);
        head.follow(&[SeqOp::Truncate { slot: SlotId(0), len: 0, planes: None }]);
        assert!(!head.is_refuted(&sequences, &windows[..1]), "it goes on from what is kept");
        assert!(!head.is_refuted(&sequences, &[]), "nothing is");
    }

    #[test]
    fn a_row_of_nan_fails_its_own_sequence_alone() {
        let device = Device::cpu(kernels::select(None).unwrap(), 1, None).unwrap();
        let mut sequences = Sequences::new(2, 2, Prefixes::All, true);
        let parts = two_parts(&mut sequences);
        let mut hidden = vec![0.1, 0.9, 0.2, 0.0, 0.5, f32::NAN, 0.1, 0.0];
        let run = |hidden: &[f32]| {
            let scratch = Scratch::default();
            let wanted = BoundaryRows::stream(Rows::new(hidden.to_vec(), N_EMBD));
            let wanted = WantedRows { rows: &wanted, adapters: &RowAdapters::default() };
            let mut head = head(&device);
            let rows = head.rows(&device, &scratch, &sequences, parts.clone(), wanted);
            head.outputs(&sequences, rows)
        };
        let rows = run(&hidden);
        let RowValue::Sampled(token) = &rows[0].value else { panic!("{rows:?}") };
        assert_eq!(token.id, 1);
        let RowValue::Failed(why) = &rows[1].value else { panic!("{rows:?}") };
        assert!(why.contains("NaN"), "{why}");
        assert_eq!((rows[1].slot, rows[1].pos), (SlotId(1), 0));
        hidden[5] = 0.0;
        assert!(matches!(&run(&hidden)[1].value, RowValue::Sampled(token) if token.id == 0));
    }
}
