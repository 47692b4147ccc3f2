//! Branches beside each other: blocks that read what was there before the blocks before them.

use super::norm::{self, Norm};
use super::{BoundaryRows, Inputs, Met, On, Residual};
use crate::device::Rows;

/// A block that reads what the block before it read, and meets the stream as this residual says.
pub(super) struct AsBefore(pub(super) Box<dyn Residual>);

impl Residual for AsBefore {
    fn nbytes(&self) -> usize {
        self.0.nbytes()
    }

    fn enter(
        &self,
        _: On<'_>,
        _: Option<&Norm>,
        _: &mut BoundaryRows,
        _: &mut Inputs,
    ) -> Option<Rows> {
        None
    }

    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        self.0.meet(on, met, rows);
    }
}

/// A block that reads the stream as it came into the layer, and meets it as this residual says.
pub(super) struct OfLayerInput(pub(super) Box<dyn Residual>);

impl Residual for OfLayerInput {
    fn nbytes(&self) -> usize {
        self.0.nbytes()
    }

    fn enter_layer(&self, on: On<'_>, norm: Option<&Norm>, rows: &BoundaryRows) -> Option<Rows> {
        let mut input = on.scratch.take(rows.hidden.n_rows(), rows.hidden.cols());
        norm::read(on.device, norm, &rows.hidden, &mut input);
        Some(input)
    }

    fn enter(
        &self,
        _: On<'_>,
        _: Option<&Norm>,
        _: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        inputs.rows = inputs.early.pop_front().expect("made when the layer began");
        None
    }

    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        self.0.meet(on, met, rows);
    }
}
