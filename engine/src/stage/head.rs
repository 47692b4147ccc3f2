//! The end of the model: wanted rows become logits, and logits become tokens.

use super::block_input::BlockInput;
use super::boundary_rows::BoundaryRows;
use super::wanted::wanted_rows;
use crate::arch::HeadSpec;
use crate::batch::{RowOutput, RowValue, Want};
use crate::block::Scratch;
use crate::kernels::{ActRows, Compute, MatmulJob, PackedMatrix};
use crate::sample::Sampler;
use crate::state::{PartRows, Sequences};

/// Norm and head matrix `[n_vocab, n_embd]`, with the sampler.
pub(super) struct Head {
    pub(super) spec: HeadSpec,
    pub(super) read: BlockInput,
    pub(super) output: PackedMatrix,
    /// `[n_vocab]`, where the model has one.
    pub(super) bias: Option<Vec<f32>>,
    pub(super) sampler: Sampler,
}

impl Head {
    /// What the parts want, from their gathered rows.
    pub(super) fn outputs(
        &mut self,
        compute: &Compute,
        scratch: &mut Scratch,
        sequences: &Sequences,
        parts: &[PartRows],
        wanted: &BoundaryRows,
    ) -> Vec<RowOutput> {
        let n_vocab = self.output.rows();
        let n = wanted.hidden.len() / self.output.cols();
        if n == 0 {
            return Vec::new();
        }
        let logits = self.logits(compute, scratch, wanted, n);
        let mut outputs = Vec::with_capacity(n);
        let mut rows = logits.chunks_exact(n_vocab);
        for part in parts {
            for row in wanted_rows(part) {
                let pos = part.pos + (row - part.rows.start) as u32;
                let logits = rows.next().expect("one row of logits for each wanted row");
                let value = match part.want {
                    Want::Sample => self.sample(sequences, part, pos, logits),
                    _ => RowValue::Logits(logits.to_vec()),
                };
                outputs.push(RowOutput { slot: part.slot, pos, value });
            }
        }
        scratch.give_all([logits]);
        outputs
    }

    /// `[n, n_vocab]` from `n` rows.
    fn logits(
        &self,
        compute: &Compute,
        scratch: &mut Scratch,
        rows: &BoundaryRows,
        n: usize,
    ) -> Vec<f32> {
        let n_embd = self.output.cols();
        let mut normed = scratch.take(n * n_embd);
        self.read.apply(compute, rows, &mut normed);
        let x = ActRows::new(compute, &normed, n_embd, &[&self.output]);
        let mut logits = scratch.take(n * self.output.rows());
        let job = MatmulJob { w: &self.output, x: &x, rows: 0..n, out: &mut logits };
        compute.matmul(&mut [job]);
        if let Some(bias) = &self.bias {
            compute.add_bias(&mut logits, bias);
        }
        if self.spec.logit_scale != 1.0 {
            compute.scale(&mut logits, self.spec.logit_scale);
        }
        if let Some(cap) = self.spec.softcap {
            compute.softcap(&mut logits, cap);
        }
        drop(x);
        scratch.give_all([normed]);
        logits
    }

    fn sample(
        &mut self,
        sequences: &Sequences,
        part: &PartRows,
        pos: u32,
        logits: &[f32],
    ) -> RowValue {
        let setup = sequences.get(part.slot).and_then(|sequence| sequence.sampler.as_ref());
        let setup = setup.expect("a part that wants a sample was checked to have a sampler");
        let history = sequences.history(part.slot);
        match self.sampler.sample(logits, setup, history, pos + 1) {
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
    use crate::kernels;
    use crate::quant::GgmlType;
    use crate::stage::norm::Norm;
    use crate::state::Prefixes;

    const N_EMBD: usize = 4;
    const N_VOCAB: usize = 3;

    fn head(compute: &Compute) -> Head {
        // Row `i` weighs input `i` alone, so that the largest of the first inputs wins.
        let rows = (0..N_VOCAB).flat_map(|i| (0..N_EMBD).map(move |j| f32::from(u8::from(i == j))));
        let weights: Vec<f32> = rows.collect();
        let bytes = bytemuck::cast_slice(&weights);
        Head {
            spec: HeadSpec {
                norm: crate::arch::OUTPUT_NORM,
                eps: 1e-5,
                logit_scale: 1.0,
                softcap: None,
            },
            read: BlockInput::new(Some(Norm::plain(N_EMBD, 1e-5)), None),
            output: PackedMatrix::pack(compute, GgmlType::F32, N_VOCAB, N_EMBD, bytes).unwrap(),
            bias: None,
            sampler: Sampler::new(),
        }
    }

    /// Two sequences of one token each, both of which want a token.
    fn two_parts(sequences: &mut Sequences) -> Vec<PartRows> {
        let params = SamplingParams::greedy();
        let setup = Arc::new(SamplerSetup { params, seed: 0, top_logprobs: None });
        let open = |slot| SeqOp::Open {
            slot: SlotId(slot),
            blocks: vec![BlockId(slot)],
            sampler: Some(setup.clone()),
            request: "r".into(),
        };
        let part =
            |slot| SeqPart { slot: SlotId(slot), pos: 0, tokens: vec![0], want: Want::Sample };
        let ops = vec![open(0), open(1)];
        sequences.apply(&UBatch { id: 0, ops, parts: vec![part(0), part(1)] }).unwrap().parts
    }

    #[test]
    fn a_row_of_nan_fails_its_own_sequence_alone() {
        let compute = Compute::new(kernels::select(None).unwrap(), 1, None).unwrap();
        let mut sequences = Sequences::new(2, 2, Prefixes::All, true);
        let parts = two_parts(&mut sequences);
        let mut hidden = vec![0.1, 0.9, 0.2, 0.0, 0.5, f32::NAN, 0.1, 0.0];
        let run = |hidden: &[f32]| {
            let mut scratch = Scratch::default();
            let wanted = BoundaryRows::stream(hidden.to_vec());
            head(&compute).outputs(&compute, &mut scratch, &sequences, &parts, &wanted)
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
