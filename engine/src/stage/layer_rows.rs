//! The rows that a token has for each layer (per-layer embeddings of Gemma 3n and of Gemma 4's small models). Each is
//! the sum of a row of a table and of one that is made of the first layer's input.

use std::sync::Arc;

use crate::batch::UBatch;
use crate::block::Embedding;
use crate::device::Rows;
use crate::kernels::{PackedMatrix, Vector};
use crate::residual::{Begin, BoundaryRows, On};
use crate::spec::{Beside, LAYER_ROW_TABLE, ModelError, ModelSpec};
use crate::weights::{TensorSource, WeightLoader};

/// Rows beside the streams, for layers to come.
pub(super) struct ForLayers {
    /// Weights of a row for each layer, where the model has such rows.
    rows: Option<LayerRows>,
    /// Pairs of keys and values that layers lend.
    lent: usize,
}

impl ForLayers {
    /// Loads what makes rows `row` values wide (0: none), where so many pairs are lent.
    ///
    /// # Errors
    /// As of every tensor that is missing, misshapen or of an unknown type.
    pub(super) fn load(
        spec: &ModelSpec,
        row: usize,
        lent: usize,
        source: &Arc<dyn TensorSource>,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let rows = match row {
            0 => None,
            width => Some(LayerRows::load(spec, width, source, loader)?),
        };
        Ok(Self { rows, lent })
    }
}

impl Begin for ForLayers {
    fn begin(&self, on: On<'_>, ub: &UBatch, rows: &mut BoundaryRows) {
        let of_layers = self.rows.as_ref().map(|layers| layers.rows(on, ub, &rows.hidden));
        rows.beside.push(of_layers.unwrap_or_default());
        // Filled by the layers that lend them.
        rows.beside.resize_with(Beside::n_for_layers(self.lent), Rows::default);
    }
}

/// Tables and weights of the rows for all layers, which the first stage makes.
struct LayerRows {
    /// Width of a layer's row.
    width: usize,
    /// `[n_vocab, n_layer * width]`, left where it is.
    table: Embedding,
    /// `[n_layer * width, n_embd]`.
    projection: PackedMatrix,
    /// `[width]`, of the norm of what the projection gives for a layer.
    norm: Vector,
    /// Epsilon of that norm.
    eps: f32,
}

impl LayerRows {
    /// Loads `per_layer_token_embd`, `per_layer_model_proj` and `per_layer_proj_norm` for rows `width` wide.
    ///
    /// # Errors
    /// As of every tensor that is missing, misshapen or of an unknown type.
    fn load(
        spec: &ModelSpec,
        width: usize,
        source: &Arc<dyn TensorSource>,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let all = spec.n_layer() * width;
        let tensor = loader.reference(LAYER_ROW_TABLE, &[all, spec.n_vocab])?;
        Ok(Self {
            width,
            table: Embedding::new(source.clone(), tensor, all, spec.n_vocab)?,
            projection: loader.matrix("per_layer_model_proj.weight", all, spec.n_embd)?,
            norm: loader.vector("per_layer_proj_norm.weight", width)?,
            eps: spec.head.eps,
        })
    }

    /// The rows of a ubatch, `[n_rows, n_layer * width]`; `hidden` `[n_rows, n_embd]` goes into the first layer.
    fn rows(&self, On { device, scratch }: On<'_>, ub: &UBatch, hidden: &Rows) -> Rows {
        let of_table = self.table.rows(device, &ub.tokens(), (self.width as f32).sqrt());
        let mut rows = scratch.take(hidden.n_rows(), self.projection.rows());
        device.multiply(&self.projection, hidden, &mut rows);
        device.scale(&mut rows, 1.0 / (self.projection.cols() as f32).sqrt());
        device.rms_norm_inplace(&mut rows, &self.norm, self.eps);
        device.add(&mut rows, &of_table);
        device.scale(&mut rows, 1.0 / 2f32.sqrt());
        rows
    }
}
