//! Changes to experts' products for some of the rows alone.

use super::{ExpertJob, ExpertMatrices, products_of};
use crate::device::ops::run::bring_lists;
use crate::device::{Device, Rows, Scratch};
use crate::ops::{AddToPairs, ExpertRows, PairsOf, RoutingPart};

/// A change of low rank of each expert's product: `s B (A x)`.
pub struct ExpertChange<'a> {
    /// `[rank, cols]` each.
    pub a: &'a ExpertMatrices,
    /// `[out features, rank]` each.
    pub b: &'a ExpertMatrices,
    /// Factor `s` on the change.
    pub scale: f32,
}

impl Device {
    /// Adds a change for the pairs of `part`: to their rows of `out`, `[n_pairs, out features]`, of what their rows of `x`,
    /// `[n_pairs, cols]`, give. Both have rows for the pairs of all rows that were routed.
    ///
    /// # Panics
    /// If shapes disagree, or a device has no memory for the lists: the stage ends with this as its reason.
    pub fn add_expert_change(
        &self,
        scratch: &Scratch,
        part: &RoutingPart<'_>,
        change: &ExpertChange<'_>,
        x: &Rows,
        out: &mut Rows,
    ) {
        let ExpertChange { a, b, scale } = *change;
        let (n_pairs, d) = (part.n_pairs(), out.cols());
        let mut low = scratch.take(n_pairs, a.rows());
        let mut added = scratch.take(n_pairs, b.rows());
        if part.routing().there().is_some() && a.table().is_some() && b.table().is_some() {
            let pairs = PairsOf::Some(part);
            let mut job = [ExpertJob { w: a, out: &mut low }];
            self.products_of_tables(pairs, ExpertRows::Routed(x), &mut job);
            let mut job = [ExpertJob { w: b, out: &mut added }];
            self.products_of_tables(pairs, ExpertRows::OfPairs(&low), &mut job);
        } else {
            bring_lists(part.routing());
            let (pairs, places) = part.spans();
            self.products(products_of(a, x, &pairs, &mut low));
            self.products(products_of(b, &low, &places, &mut added));
        }
        self.run(AddToPairs { out: out.view_mut(), d, x: added.view(), part, factor: scale });
    }
}
