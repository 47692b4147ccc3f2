//! Adapters inside the model's file, which tokens switch on: those of the rows of a ubatch.

use crate::batch::{Boundary, UBatch};
use crate::block::RowAdapters;
use crate::device::Rows;
use crate::error::BatchError;
use crate::residual::{Begin, BoundaryRows, On};
use crate::spec::{Beside, BlockKind, SwitchSpec};

/// The adapters that rows use: those that a user named, and the model's own once they are known.
pub(super) struct OwnAdapters<'a> {
    of_users: &'a RowAdapters,
    has_own: bool,
    all: Option<RowAdapters>,
}

impl<'a> OwnAdapters<'a> {
    /// Adapters of rows that use `of_users`, in a model that has `beside` beside its stream.
    pub(super) fn new(beside: Beside, of_users: &'a RowAdapters) -> Self {
        Self { of_users, has_own: beside == Beside::Adapters, all: None }
    }

    /// Adapters for a block of this kind, which gets `rows`. They include the model's own, which are read from the rows
    /// beside the stream, except for the block that finds these.
    pub(super) fn of(&mut self, kind: &BlockKind, rows: &BoundaryRows) -> &RowAdapters {
        if !self.has_own || matches!(kind, BlockKind::Switch(_)) {
            return self.of_users;
        }
        self.all
            .get_or_insert_with(|| self.of_users.with_places(rows.beside[Beside::ADAPTERS].host()))
    }
}

/// Puts beside each row of a ubatch the place of the adapter that its token switches on, 0 for none.
pub(super) struct SwitchedOn(pub(super) SwitchSpec);

impl Begin for SwitchedOn {
    fn begin(&self, _: On<'_>, ub: &UBatch, rows: &mut BoundaryRows) {
        let places = ub.tokens().into_iter().map(|token| self.0.place_of(token) as f32);
        rows.beside.push(Rows::new(places.collect(), 1));
    }
}

/// Refuses a boundary whose last column names adapters that there are none of: it comes from another machine.
pub(super) fn check(switch: &SwitchSpec, input: &Boundary) -> Result<(), BatchError> {
    let places = &input.data[input.data.len() - input.n_rows..];
    let is_place =
        |place: &f32| place.fract() == 0.0 && (0.0..switch.n_places as f32).contains(place);
    match places.iter().position(|place| !is_place(place)) {
        Some(row) => Err(BatchError::Boundary(format!(
            "row {row} is to use an adapter that the model does not have: it has {}",
            switch.n_places - 1
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn places_that_there_are_none_of_are_refused() {
        let switch = SwitchSpec { n_places: 3, rank: 1, gain: 15.0, tokens: BTreeMap::new() };
        let said = |place: f32| {
            let data = vec![0.5, 0.5, 0.5, 0.5, 2.0, place];
            check(&switch, &Boundary { n_rows: 2, data })
        };
        for good in [0.0, 1.0, 2.0] {
            said(good).unwrap();
        }
        for bad in [3.0, -1.0, 0.5, f32::NAN, f32::INFINITY] {
            assert!(matches!(said(bad), Err(BatchError::Boundary(why)) if why.contains("row 1")));
        }
    }
}
