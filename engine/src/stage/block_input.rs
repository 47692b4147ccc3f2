//! What a block or the head reads of a token's rows. Where the model attends over depth, that is a mixture of
//! rows; where it has several streams, the head reads them all. Where there is a norm, it is normed.

use super::boundary_rows::BoundaryRows;
use super::gated_streams::GatedConnection;
use super::hyper::{HyperConnection, Spread};
use super::norm::Norm;
use super::streams::StreamMatrices;
use crate::device::{Device, Rows, Scratch};
use crate::kernels::Vector;
use crate::spec::ModelError;
use crate::weights::WeightLoader;

/// A norm, where there is one, and what comes before it.
pub(super) struct BlockInput {
    /// `None` where the stream is read as it is.
    norm: Option<Norm>,
    /// `None` where the stream alone is read.
    mix: Option<Mix>,
}

/// What is read of the stream and of what is beside it.
pub(super) enum Mix {
    /// Residual attention over depth.
    Depth(DepthMix),
    /// All streams as one row; those beside the first begin with the tensor of this number.
    Streams(StreamMatrices, usize),
    /// A sum of all streams, as they weigh themselves.
    Hyper(HyperConnection),
    /// The mean of all streams, each value through a gate.
    Gated(GatedConnection),
    /// The mean of so many streams.
    Mean(usize),
}

/// The weights of one mixture over depth.
pub(super) struct DepthMix {
    /// `[n_embd]`.
    score: Vector,
    /// Epsilon of the norm under the scores.
    eps: f32,
}

impl DepthMix {
    /// Loads the score vector.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        score: &str,
        n_embd: usize,
        eps: f32,
    ) -> Result<Self, ModelError> {
        Ok(Self { score: loader.vector(score, n_embd)?, eps })
    }
}

impl BlockInput {
    pub(super) fn new(norm: Option<Norm>, mix: Option<Mix>) -> Self {
        Self { norm, mix }
    }

    /// `out = norm(stream)`, or the norm of a mixture of the stream and what is beside it. Returns how the output of what
    /// reads it goes to the streams, where that is not the sum.
    pub(super) fn apply(
        &self,
        (device, scratch): (&Device, &Scratch),
        rows: &BoundaryRows,
        out: &mut Rows,
    ) -> Option<Spread> {
        let Some(mix) = self.mix.as_ref().filter(|_| !rows.beside.is_empty()) else {
            match &self.norm {
                Some(norm) => norm.apply(device, &rows.hidden, out),
                None => out.set(&rows.hidden),
            }
            return None;
        };
        let mut spread = None;
        match mix {
            Mix::Depth(mix) => {
                let sources: Vec<&Rows> = rows.beside.iter().chain([&rows.hidden]).collect();
                device.attend_depth(&sources, &mix.score, mix.eps, out);
            }
            Mix::Streams(matrices, first) => matrices.merge((device, scratch), rows, *first, out),
            Mix::Hyper(connection) => spread = Some(connection.read((device, scratch), rows, out)),
            Mix::Gated(connection) => spread = connection.read((device, scratch), rows, out),
            Mix::Mean(n) => {
                out.set(&rows.hidden);
                rows.streams(*n).skip(1).for_each(|stream| device.add(out, stream));
                device.scale(out, 1.0 / *n as f32);
            }
        }
        if let Some(norm) = &self.norm {
            norm.apply_inplace(device, out);
        }
        spread
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        match &self.mix {
            Some(Mix::Hyper(connection)) => connection.nbytes(),
            Some(Mix::Gated(connection)) => connection.nbytes(),
            _ => 0,
        }
    }
}
