//! Where a token has several streams (AltUp, arXiv 2301.13310, as Gemma 3n has it): how they begin, and how one row is made of
//! them for the head.

use super::boundary_rows::BoundaryRows;
use crate::device::{Device, Rows, Scratch};
use crate::kernels::PackedMatrix;
use crate::spec::ModelError;
use crate::weights::WeightLoader;

/// A matrix `[n_embd, n_embd]` for each stream but the first.
pub(super) struct StreamMatrices(Vec<PackedMatrix>);

impl StreamMatrices {
    /// Loads them from one tensor, for so many streams beside the first.
    ///
    /// # Errors
    /// As of every tensor that is missing, misshapen or of an unknown type.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        name: &str,
        streams: usize,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self(loader.experts(name, streams, n_embd, n_embd)?))
    }

    /// The other streams of rows `hidden` `[n_rows, n_embd]`, each of the same magnitude row by row.
    pub(super) fn of(&self, tools: (&Device, &Scratch), hidden: &Rows) -> Vec<Rows> {
        self.0.iter().map(|matrix| projected(tools, matrix, hidden, hidden)).collect()
    }

    /// `out = (hidden + what the matrices make of the other streams) / number of streams`; these are the last tensors
    /// beside the stream, and get the magnitude that it has row by row.
    pub(super) fn merge(
        &self,
        (device, scratch): (&Device, &Scratch),
        rows: &BoundaryRows,
        first: usize,
        out: &mut Rows,
    ) {
        out.set(&rows.hidden);
        for (matrix, stream) in self.0.iter().zip(&rows.beside[first..]) {
            device.add(out, &projected((device, scratch), matrix, stream, &rows.hidden));
        }
        device.scale(out, 1.0 / (1 + self.0.len()) as f32);
    }
}

/// `matrix` times each row of `x`, with the magnitude that the row of `like` has.
fn projected(
    (device, scratch): (&Device, &Scratch),
    matrix: &PackedMatrix,
    x: &Rows,
    like: &Rows,
) -> Rows {
    let mut out = scratch.take(x.n_rows(), matrix.rows());
    device.multiply(matrix, x, &mut out);
    device.match_magnitudes(&mut out, like);
    out
}
