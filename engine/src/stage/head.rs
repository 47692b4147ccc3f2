//! The end of the line: wanted rows to logits, logits to tokens.

use super::norm::Norm;
use crate::arch::HeadSpec;
use crate::batch::{RowOutput, RowValue, Want};
use crate::block::Scratch;
use crate::error::BatchError;
use crate::kernels::{ActRows, Compute, MatmulJob, PackedMatrix};
use crate::sample::Sampler;
use crate::state::{PartRows, Sequences};

/// Norm and head matrix `[n_vocab, n_embd]`, with the sampler.
pub(super) struct Head {
    pub(super) spec: HeadSpec,
    pub(super) norm: Norm,
    pub(super) output: PackedMatrix,
    /// `[n_vocab]`, where the model has one.
    pub(super) bias: Option<Vec<f32>>,
    pub(super) sampler: Sampler,
}

/// Rows of a part that pass through the head.
fn wanted_rows(part: &PartRows) -> std::ops::Range<usize> {
    match part.want {
        Want::Nothing => part.rows.end..part.rows.end,
        Want::Sample => part.rows.end - 1..part.rows.end,
        Want::Logits => part.rows.clone(),
    }
}

/// The wanted rows of `hidden[n_rows, n_embd]`, in the order of the parts.
pub(super) fn gather_wanted(parts: &[PartRows], n_embd: usize, hidden: &[f32]) -> Vec<f32> {
    let mut wanted = Vec::new();
    for part in parts {
        let rows = wanted_rows(part);
        wanted.extend_from_slice(&hidden[rows.start * n_embd..rows.end * n_embd]);
    }
    wanted
}

impl Head {
    /// What the parts want, from their gathered rows `[n_wanted, n_embd]`.
    pub(super) fn outputs(
        &mut self,
        compute: &Compute,
        scratch: &mut Scratch,
        sequences: &Sequences,
        parts: &[PartRows],
        wanted: Vec<f32>,
    ) -> Result<Vec<RowOutput>, BatchError> {
        let n_embd = self.norm.width();
        let n_vocab = self.output.rows();
        let n = wanted.len() / n_embd;
        if n == 0 {
            return Ok(Vec::new());
        }
        let logits = self.logits(compute, scratch, wanted, n);
        let mut outputs = Vec::with_capacity(n);
        let mut rows = logits.chunks_exact(n_vocab);
        for part in parts {
            for row in wanted_rows(part) {
                let pos = part.pos + (row - part.rows.start) as u32;
                let logits = rows.next().expect("one row of logits for each wanted row");
                let value = match part.want {
                    Want::Sample => self.sample(sequences, part, pos, logits)?,
                    _ => RowValue::Logits(logits.to_vec()),
                };
                outputs.push(RowOutput { slot: part.slot, pos, value });
            }
        }
        scratch.give_all([logits]);
        Ok(outputs)
    }

    /// `[n, n_vocab]` from hidden rows `[n, n_embd]`.
    fn logits(
        &self,
        compute: &Compute,
        scratch: &mut Scratch,
        hidden: Vec<f32>,
        n: usize,
    ) -> Vec<f32> {
        let n_embd = self.norm.width();
        let mut normed = scratch.take(n * n_embd);
        self.norm.apply(compute, &hidden, &mut normed);
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
    ) -> Result<RowValue, BatchError> {
        let sequence = sequences.get(part.slot).ok_or(BatchError::NotOpen(part.slot))?;
        let setup = sequence.sampler.as_ref().ok_or(BatchError::NoSampler(part.slot))?;
        self.sampler
            .sample(logits, setup, sequences.history(part.slot), pos + 1)
            .map(RowValue::Sampled)
            .map_err(|e| BatchError::Sample { slot: part.slot, reason: e.to_string() })
    }
}
