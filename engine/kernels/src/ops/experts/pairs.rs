//! Rows of pairs: of a row and one of the experts that it was routed to.

use brigade_ops::{
    AddExpertBiases, AddPairs, AddToPairs, Combine, GatherRows, Host, Pairing, Route, RowsOfPairs,
    WeighPairs,
};

use crate::compute::Compute;

impl Compute {
    /// Runs the op [`Route`].
    pub(crate) fn route(&self, op: Route<'_, Host>) {
        op.check();
        let (ids, weights) = self.choose_experts(&op.choice, op.probs);
        op.routing.keep_here(&ids, &weights);
    }

    /// Runs the op [`RowsOfPairs`].
    pub(crate) fn rows_of_pairs(&self, op: RowsOfPairs<'_, Host>) {
        op.check();
        let RowsOfPairs { x, d, routing, out } = op;
        self.gather_rows(GatherRows { x, d, picked: &routing.lists().rows, out });
    }

    /// Runs the op [`WeighPairs`].
    pub(crate) fn weigh_pairs(&self, op: WeighPairs<'_, Host>) {
        op.check();
        let (x, y) = (op.x, &op.routing.lists().weights()[..]);
        self.run_combine(Combine { x, y, with: Pairing::MulColumn(op.d) });
    }

    /// Runs the op [`AddExpertBiases`].
    pub(crate) fn add_expert_biases(&self, op: AddExpertBiases<'_, Host>) {
        op.check();
        let AddExpertBiases { out, d, biases, routing } = op;
        for (expert, pairs) in &routing.lists().spans {
            let out = &mut out[pairs.start * d..pairs.end * d];
            self.add_bias(out, &biases[expert * d..][..d]);
        }
    }

    /// Runs the op [`AddPairs`].
    pub(crate) fn add_pairs(&self, op: AddPairs<'_, Host>) {
        op.check();
        let AddPairs { out, d, x, routing, are_weighed } = op;
        let shares = routing.lists().shares.chunks_exact(routing.n_used());
        for (out, shares) in out.chunks_exact_mut(d).zip(shares) {
            for share in shares {
                let weight = if are_weighed { 1.0 } else { share.weight };
                self.add_scaled(out, &x[share.pair as usize * d..][..d], weight);
            }
        }
    }

    /// Runs the op [`AddToPairs`].
    pub(crate) fn add_to_pairs(&self, op: AddToPairs<'_, Host>) {
        op.check();
        let AddToPairs { out, d, x, part, factor } = op;
        let (pairs, places) = part.spans();
        for ((_, pairs), (_, places)) in pairs.into_iter().zip(places) {
            let out = &mut out[pairs.start * d..pairs.end * d];
            self.add_scaled(out, &x[places.start * d..places.end * d], factor);
        }
    }
}
