//! The input of a head: one row of all that a token has, normed where there is a norm. It is the stream in most models.

use super::norm::{self, Norm};
use super::{BoundaryRows, Merge, On};
use crate::device::Rows;

/// A norm, where there is one, and what comes before it.
pub(crate) struct HeadInput {
    /// `None` where the row is read as it is.
    norm: Option<Norm>,
    /// `None` where the stream alone is read.
    merge: Option<Box<dyn Merge>>,
}

impl HeadInput {
    pub(crate) fn new(norm: Option<Norm>, merge: Option<Box<dyn Merge>>) -> Self {
        Self { norm, merge }
    }

    /// Makes what the head reads, `out` `[n_rows, n_embd]`.
    pub(crate) fn read(&self, on: On<'_>, rows: &BoundaryRows, out: &mut Rows) {
        let norm = self.norm.as_ref();
        match self.merge.as_ref().filter(|_| !rows.beside.is_empty()) {
            None => norm::read(on.device, norm, &rows.hidden, out),
            Some(merge) => {
                merge.merge(on, rows, out);
                norm::apply(on.device, norm, out);
            }
        }
    }
}
