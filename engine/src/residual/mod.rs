//! Residual streams: the ways in which blocks read and change them, one in each file.
//!
//! Beside each block stands a [`Residual`]. It makes the block's input of a token's streams, and later changes the
//! streams by the block's output. So the code that runs blocks knows none of these ways by name. The parts at a model's
//! two ends are here as well: [`Begin`] makes what goes into the first layer beside the embedded rows, and a
//! [`HeadInput`] reads the streams for the head. [`Behind`] changes them between two layers.
//!
//! [`BoundaryRows`] are the streams of a ubatch's rows, with what travels beside them.

mod alike;
mod altup;
mod boundary_rows;
mod depth;
mod from_norm;
mod gated;
mod head_input;
mod hyper;
mod norm;
mod normed;
mod parallel;
mod passes;
mod plain;
mod scaled;
mod steering;
mod with_embedding;

use std::collections::VecDeque;

pub(crate) use boundary_rows::{BoundaryRows, FetchedRows};
pub(crate) use head_input::HeadInput;
pub(crate) use norm::Norm;
pub(crate) use passes::{PassBoundary, load_pass_norm};
pub(crate) use steering::ControlVector;

use crate::batch::UBatch;
use crate::device::{Device, Rows, Scratch};
use crate::spec::{Beside, BlockSpec, HeadReads, ModelError, ModelSpec, Passes, Reads, Streams};
use crate::weights::WeightLoader;
use alike::{Alike, Mean};
use altup::StreamMatrices;
use depth::{DepthMixture, OverDepth};
use from_norm::FromNorm;
use gated::GatedConnection;
use hyper::HyperConnection;
use normed::Normed;
use parallel::{AsBefore, OfLayerInput};
use passes::LowStart;
use plain::Plain;
use scaled::Scaled;
use with_embedding::{Embedded, WithEmbedding};

/// The way in which a block meets the residual stream. By default it reads the stream as it is, or normed.
pub(crate) trait Residual: Send + Sync {
    /// Bytes of all matrices as the kernels hold them.
    fn nbytes(&self) -> usize {
        0
    }

    /// The block's input, if it reads the streams as they come into its layer. `None`: it reads them in its turn.
    fn enter_layer(&self, on: On<'_>, norm: Option<&Norm>, rows: &BoundaryRows) -> Option<Rows> {
        let _ = (on, norm, rows);
        None
    }

    /// Makes the block's input, normed by `norm` if there is one. Returns rows that [`Self::meet`] needs again.
    fn enter(
        &self,
        on: On<'_>,
        norm: Option<&Norm>,
        rows: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        norm::read(on.device, norm, &rows.hidden, &mut inputs.rows);
        None
    }

    /// Brings the block's output into the streams.
    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows);
}

/// The start of rows beside the embedded one, before the first layer.
pub(crate) trait Begin: Send + Sync {
    /// Puts it beside the embedded rows of a ubatch.
    fn begin(&self, on: On<'_>, ub: &UBatch, rows: &mut BoundaryRows);
}

/// One row of all that a token has.
pub(crate) trait Merge: Send + Sync {
    /// Makes `out` `[n_rows, n_embd]` of them.
    fn merge(&self, on: On<'_>, rows: &BoundaryRows, out: &mut Rows);
}

/// A change of the streams behind a layer.
pub(crate) trait Behind: Send + Sync {
    /// Changes the streams of all rows.
    fn apply(&self, device: &Device, rows: &mut BoundaryRows);
}

/// Device and memory for new rows.
#[derive(Clone, Copy)]
pub(crate) struct On<'a> {
    pub device: &'a Device,
    pub scratch: &'a Scratch,
}

/// Inputs of blocks, in the order in which the blocks run.
pub(crate) struct Inputs {
    /// Input of the next block, `[n_rows, n_embd]`. It stays until another block reads something else.
    pub rows: Rows,
    /// Inputs that later blocks read of the rows that came into their layer, in their order.
    early: VecDeque<Rows>,
}

impl Inputs {
    /// Inputs of blocks, of which the first reads `rows`.
    pub(crate) fn new(rows: Rows) -> Self {
        Self { rows, early: VecDeque::new() }
    }

    /// Takes in what blocks read of their layer's input, in their order.
    pub(crate) fn begin_layer(&mut self, early: impl Iterator<Item = Rows>) {
        self.early.extend(early);
    }
}

/// Output of a block, on its way to the streams.
pub(crate) struct Met<'a> {
    /// Output of the block, `[n_rows, n_embd]`, behind its norm.
    pub output: Rows,
    /// Input of the block.
    pub input: &'a Rows,
    /// Rows that [`Residual::enter`] returned.
    pub kept: Option<Rows>,
}

/// Loads what joins a block to the streams of a model; names of its tensors follow `stem`.
///
/// # Errors
/// As of every tensor that is missing, misshapen or of an unknown type.
pub(crate) fn load(
    model: &ModelSpec,
    block: &BlockSpec,
    stem: &str,
    loader: &mut WeightLoader<'_>,
) -> Result<Box<dyn Residual>, ModelError> {
    let residual = load_kind(model, block, stem, loader)?;
    Ok(match block.reads {
        Reads::Stream => residual,
        Reads::AsBefore => Box::new(AsBefore(residual)),
        Reads::LayerInput => Box::new(OfLayerInput(residual)),
    })
}

fn load_kind(
    model: &ModelSpec,
    block: &BlockSpec,
    stem: &str,
    loader: &mut WeightLoader<'_>,
) -> Result<Box<dyn Residual>, ModelError> {
    use crate::spec::Residual as Kind;
    let n_embd = model.n_embd;
    let name = |tensor: &str| format!("{stem}{tensor}");
    Ok(match &block.residual {
        Kind::Plain => Box::new(Plain),
        Kind::Scaled { output, stream } => Box::new(Scaled { output: *output, stream: *stream }),
        Kind::Factor(tensor) => Box::new(Scaled::by_tensor(loader, &name(tensor))?),
        Kind::FromNorm { scale } => Box::new(FromNorm { scale: *scale }),
        Kind::WithEmbedding(tensor) => Box::new(WithEmbedding::load(loader, &name(tensor))?),
        Kind::Normed(normed) => Box::new(Normed::load(loader, model, normed, stem)?),
        Kind::OverDepth { mixture, keeps } => {
            let mixture = DepthMixture::load(loader, mixture, stem, n_embd)?;
            Box::new(OverDepth { mixture, keeps: *keeps })
        }
        Kind::Hyper(hyper) => Box::new(HyperConnection::of_block(loader, hyper, stem, n_embd)?),
        Kind::Gated(gated) => Box::new(GatedConnection::of_block(loader, gated, stem, n_embd)?),
        Kind::AltUp(altup, step) => altup::load(loader, *altup, *step, stem, n_embd)?,
    })
}

/// Loads what makes one row of a token's streams for a head; `None`: it reads the first one.
///
/// # Errors
/// As of [`load`].
pub(crate) fn load_merge(
    model: &ModelSpec,
    loader: &mut WeightLoader<'_>,
) -> Result<Option<Box<dyn Merge>>, ModelError> {
    let n_embd = model.n_embd;
    Ok(Some(match &model.head.reads {
        HeadReads::Stream => return Ok(None),
        HeadReads::Mean(n) => Box::new(Mean(*n)),
        HeadReads::OverDepth(depth) => Box::new(DepthMixture::load(loader, depth, "", n_embd)?),
        HeadReads::Hyper(hyper) => Box::new(HyperConnection::of_head(loader, hyper, n_embd)?),
        HeadReads::Gated(gated) => Box::new(GatedConnection::of_head(loader, gated, n_embd)?),
        HeadReads::AltUp(altup) => Box::new(StreamMatrices::of_head(loader, altup, n_embd)?),
    }))
}

/// Loads what tokens of a model have beside their embedded rows: in the order in which the tensors lie there, `others`
/// between those of passes and those of streams.
///
/// # Errors
/// As of [`load`].
pub(crate) fn load_beginning(
    model: &ModelSpec,
    others: Vec<Box<dyn Begin>>,
    loader: &mut WeightLoader<'_>,
) -> Result<Vec<Box<dyn Begin>>, ModelError> {
    let mut beginning: Vec<Box<dyn Begin>> = Vec::new();
    if let Passes::Stacks(_) = model.skeleton.passes {
        beginning.push(Box::new(LowStart::load(loader, model.n_embd)?));
    }
    if model.skeleton.beside == Beside::Embedding {
        beginning.push(Box::new(Embedded));
    }
    beginning.extend(others);
    match &model.skeleton.streams {
        Streams::One | Streams::Kept { .. } => {}
        Streams::Alike(n) => beginning.push(Box::new(Alike(*n))),
        Streams::AltUp(altup) => {
            beginning.push(Box::new(StreamMatrices::of_tokens(loader, altup, model.n_embd)?));
        }
    }
    Ok(beginning)
}

#[cfg(test)]
mod tests;
