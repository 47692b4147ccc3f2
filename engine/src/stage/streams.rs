//! Where a token has several streams (AltUp, arXiv 2301.13310, as Gemma 3n has it): how they begin, and how one row is made of
//! them for the head.

use super::boundary_rows::BoundaryRows;
use crate::device::{Device, Rows};
use crate::error::ModelError;
use crate::kernels::PackedMatrix;
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
    pub(super) fn of(&self, device: &Device, hidden: &[f32]) -> Vec<Rows> {
        let stream = |matrix: &PackedMatrix| {
            Rows::new(projected(device, matrix, hidden, hidden), matrix.rows())
        };
        self.0.iter().map(stream).collect()
    }

    /// `out = (hidden + what the matrices make of the other streams) / number of streams`; these are the last tensors
    /// beside the stream, and get the magnitude that it has row by row.
    pub(super) fn merge(
        &self,
        device: &Device,
        rows: &BoundaryRows,
        first: usize,
        out: &mut [f32],
    ) {
        out.copy_from_slice(&rows.hidden);
        for (matrix, stream) in self.0.iter().zip(&rows.beside[first..]) {
            device.add(out, &projected(device, matrix, stream, &rows.hidden));
        }
        device.scale(out, 1.0 / (1 + self.0.len()) as f32);
    }
}

/// `matrix` times each row of `x`, with the magnitude that the row of `like` has.
fn projected(device: &Device, matrix: &PackedMatrix, x: &[f32], like: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    device.multiply(matrix, x, &mut out);
    let n_embd = matrix.rows();
    device.fill_rows(&mut out, n_embd, &|row, out| {
        let (target, own) = (magnitude(&like[row * n_embd..][..n_embd]), magnitude(out));
        out.iter_mut().for_each(|x| *x = *x * target / own);
    });
    out
}

fn magnitude(row: &[f32]) -> f32 {
    (row.iter().map(|x| f64::from(x * x)).sum::<f64>() as f32).sqrt()
}
