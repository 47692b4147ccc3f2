//! The end of the model: wanted rows become logits, and logits become tokens.

use std::borrow::Cow;

use super::block_input::BlockInput;
use super::boundary_rows::BoundaryRows;
use super::wanted::wanted_rows;
use crate::arch::HeadSpec;
use crate::batch::{RowOutput, RowValue, SampledToken, Want};
use crate::block::{Linear, RowAdapters, project_all};
use crate::constraint::{Mask, Masks};
use crate::device::{Device, Rows, Scratch};
use crate::kernels::Vector;
use crate::sample::{Next, Sampler, looks_at};
use crate::state::{PartRows, Sequences};

/// Most logits of a row that a GPU finds for a draw: where more are looked at, all of them leave it.
const MOST_OF_FEW: usize = 1024;

/// Norm and head matrix `[n_vocab, n_embd]`, with the sampler.
pub(super) struct Head {
    pub(super) spec: HeadSpec,
    pub(super) read: BlockInput,
    /// `None` in an encoder, which has no logits.
    pub(super) output: Option<Linear>,
    /// Width of a row.
    pub(super) n_embd: usize,
    /// `[n_vocab]`, where the model has one.
    pub(super) bias: Option<Vector>,
    pub(super) sampler: Sampler,
    /// Of answers that are held to a grammar.
    pub(super) masks: Masks,
}

impl Head {
    /// What the parts want, from their gathered rows, and the adapters that these use.
    pub(super) fn outputs(
        &mut self,
        (device, scratch): (&Device, &Scratch),
        sequences: &Sequences,
        parts: &[PartRows],
        (wanted, adapters): (&BoundaryRows, &RowAdapters),
    ) -> Vec<RowOutput> {
        let n_vocab = self.output.as_ref().map_or(0, Linear::rows);
        let n_embd = self.n_embd;
        let n = wanted.hidden.n_rows();
        if n == 0 {
            return Vec::new();
        }
        let mut normed = scratch.take(n, n_embd);
        self.read.apply((device, scratch), wanted, &mut normed);
        // Rows whose logits nobody wants are not multiplied if no other is either. A guide never comes alone.
        let any_logits = parts.iter().any(|part| matches!(part.want, Want::Sample | Want::Logits));
        let logits = match self.output.as_ref().filter(|_| any_logits) {
            Some(output) => self.logits((device, scratch), output, &normed, adapters),
            None => Rows::default(),
        };
        if let Some(tokens) = self.drawn_of_few(device, sequences, parts, &logits) {
            return tokens;
        }
        let (normed, logits) = (normed.fetched(), logits.fetched());
        let mut outputs = Vec::with_capacity(n);
        let mut index = 0;
        let mut guide = None;
        for part in parts {
            for row in wanted_rows(part) {
                let pos = part.pos + (row - part.rows.start) as u32;
                let row_logits = |index: usize| &logits[index * n_vocab..(index + 1) * n_vocab];
                let logits = || row_logits(index);
                let value = match part.want {
                    Want::Guide => {
                        guide = Some(index);
                        index += 1;
                        continue;
                    }
                    Want::Sample => {
                        let guide = guide.take().map(row_logits);
                        self.sample(sequences, part, pos, logits(), guide)
                    }
                    Want::Hidden | Want::HiddenFirst | Want::HiddenLast => {
                        RowValue::Hidden(normed[index * n_embd..(index + 1) * n_embd].to_vec())
                    }
                    Want::Logits | Want::Nothing => RowValue::Logits(logits().to_vec()),
                };
                outputs.push(RowOutput { slot: part.slot, pos, value });
                index += 1;
            }
        }
        outputs
    }

    /// `[n, n_vocab]` from normed rows `[n, n_embd]`.
    fn logits(
        &self,
        (device, scratch): (&Device, &Scratch),
        output: &Linear,
        normed: &Rows,
        adapters: &RowAdapters,
    ) -> Rows {
        let mut logits = scratch.take(normed.n_rows(), output.rows());
        project_all((device, scratch), adapters, &mut [output.job(normed, &mut logits)]);
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

    /// What the parts want where they all want tokens for which few logits of their rows are looked at, and a GPU finds these:
    /// no others leave it then.
    fn drawn_of_few(
        &mut self,
        device: &Device,
        sequences: &Sequences,
        parts: &[PartRows],
        logits: &Rows,
    ) -> Option<Vec<RowOutput>> {
        let wanting: Vec<&PartRows> =
            parts.iter().filter(|part| part.want != Want::Nothing).collect();
        let setup_of = |part: &PartRows| sequences.get(part.slot)?.sampler.as_ref();
        let last_pos = |part: &PartRows| part.pos + part.rows.len() as u32 - 1;
        let looked_at = wanting.iter().map(|part| match part.want {
            Want::Sample => looks_at(setup_of(part)?, last_pos(part) + 1),
            _ => None,
        });
        let k = looked_at.collect::<Option<Vec<usize>>>()?.into_iter().max()?;
        let few = match k {
            1 => device.greatest(logits)?.into_iter().map(|id| vec![(id, 0.0)]).collect(),
            _ if k <= MOST_OF_FEW.min(logits.cols()) => device.greatest_few(logits, k)?,
            _ => return None,
        };
        let drawn = wanting.into_iter().zip(few).map(|(part, few)| {
            let pos = last_pos(part);
            let value = match self.sampler.sample_few(&few, setup_of(part)?, pos + 1) {
                Ok(token) => RowValue::Sampled(token),
                Err(error) => RowValue::Failed(error.to_string()),
            };
            Some(RowOutput { slot: part.slot, pos, value })
        });
        drawn.collect()
    }

    fn sample(
        &mut self,
        sequences: &Sequences,
        part: &PartRows,
        pos: u32,
        logits: &[f32],
        guide: Option<&[f32]>,
    ) -> RowValue {
        let setup = sequences.get(part.slot).and_then(|sequence| sequence.sampler.as_ref());
        let setup = setup.expect("a part that wants a sample was checked to have a sampler");
        let logits = match (setup.guidance, guide) {
            (Some(guidance), Some(guide)) => match guidance.combine(logits, guide) {
                Ok(combined) => Cow::Owned(combined),
                Err(error) => return RowValue::Failed(error.to_string()),
            },
            // That a guided draw has its guide was checked with the ubatch.
            _ => Cow::Borrowed(logits),
        };
        let history = sequences.history(part.slot);
        let sampler = &mut self.sampler;
        let next = Next { pos: pos + 1, mask: None, mu: part.mu };
        let drawn = match &setup.constraint {
            None => sampler.sample(&logits, setup, history, next),
            Some(rule) => {
                let draw = |mask: Option<&Mask>| {
                    sampler.sample(&logits, setup, history, Next { mask, ..next })
                };
                let token = |drawn: &Result<SampledToken, _>| drawn.as_ref().ok().map(|t| t.id);
                match self.masks.draw(part.slot, rule, history, draw, token) {
                    Ok(drawn) => drawn,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::batch::{BlockId, SamplerSetup, SamplingParams, SeqOp, SeqPart, SlotId, UBatch};
    use crate::kernels::{self, PackedMatrix};
    use crate::quant::GgmlType;
    use crate::stage::norm::Norm;
    use crate::state::Prefixes;

    const N_EMBD: usize = 4;
    const N_VOCAB: usize = 3;

    fn head(device: &Device) -> Head {
        // Row `i` weighs input `i` alone, so that the largest of the first inputs wins.
        let rows = (0..N_VOCAB).flat_map(|i| (0..N_EMBD).map(move |j| f32::from(u8::from(i == j))));
        let weights: Vec<f32> = rows.collect();
        let bytes = bytemuck::cast_slice(&weights);
        Head {
            spec: HeadSpec::usual(1e-5),
            read: BlockInput::new(Some(Norm::plain(N_EMBD, 1e-5)), None),
            output: PackedMatrix::pack(device.host(), GgmlType::F32, N_VOCAB, N_EMBD, bytes)
                .ok()
                .map(Linear::plain),
            n_embd: N_EMBD,
            bias: None,
            sampler: Sampler::new(),
            masks: Masks::new(Box::new(|| unreachable!("nothing is held to a grammar here"))),
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
            blocks: vec![BlockId(slot)],
            sampler: Some(setup.clone()),
            request: "r".into(),
        };
        let part = |slot| SeqPart {
            slot: SlotId(slot),
            pos: 0,
            tokens: vec![0],
            want: Want::Sample,
            mu: None,
        };
        let ops = vec![open(0), open(1)];
        sequences.apply(&UBatch { id: 0, ops, parts: vec![part(0), part(1)] }).unwrap().parts
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
            let wanted = (&wanted, &RowAdapters::default());
            head(&device).outputs((&device, &scratch), &sequences, &parts, wanted)
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
