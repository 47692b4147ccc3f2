//! Experts: which of them rows use, and what is made of pairs of a row and one of its experts.

use std::any::Any;

use brigade_shapes::ExpertChoice;

use crate::carry::carried;
use crate::derived::Derived;
use crate::place::Place;
use crate::routing::{Routing, RoutingPart};

/// Chooses experts for each row by what a router gives each.
pub struct Route<'a, P: Place> {
    /// Rule of choice and of weights; the bias is `[n_expert]`.
    pub choice: ExpertChoice<'a, P::Read<'a, f32>>,
    /// The router's scores, `[n_rows, n_expert]`.
    pub probs: P::Read<'a, f32>,
    /// Filled with what was chosen, where that was chosen.
    pub routing: &'a mut Routing,
}

carried!(Route { choice: choice, probs: decides, routing: same });

/// The row of each pair.
pub struct RowsOfPairs<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// The pairs of rows and experts.
    pub routing: &'a Routing,
    /// `[n_pairs, d]`.
    pub out: P::Write<'a, f32>,
}

carried!(RowsOfPairs { x: read, d: same, routing: pairs, out: write });

/// Multiplies the row of each pair by the pair's weight.
pub struct WeighPairs<'a, P: Place> {
    /// `[n_pairs, d]`.
    pub x: P::Write<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// The pairs of rows and experts.
    pub routing: &'a Routing,
}

carried!(WeighPairs { x: write, d: same, routing: pairs });

/// Adds to the row of each pair its expert's biases.
pub struct AddExpertBiases<'a, P: Place> {
    /// `[n_pairs, d]`.
    pub out: P::Write<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// `[n_expert, d]`.
    pub biases: P::Read<'a, f32>,
    /// The pairs of rows and experts.
    pub routing: &'a Routing,
}

carried!(AddExpertBiases { out: write, d: same, biases: read, routing: pairs });

/// Adds to each row the rows of its pairs times their weights, one after the other in the order in which its experts were chosen.
pub struct AddPairs<'a, P: Place> {
    /// `[n_rows, d]`.
    pub out: P::Write<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// `[n_pairs, d]`.
    pub x: P::Read<'a, f32>,
    /// The pairs of rows and experts.
    pub routing: &'a Routing,
    /// Whether the rows of `x` were weighed before; then each has weight 1.
    pub are_weighed: bool,
}

carried!(AddPairs { out: write, d: same, x: read, routing: pairs, are_weighed: same });

/// Adds rows for the pairs of some rows alone to those of all pairs: `out[pair] += x[i] * factor`.
pub struct AddToPairs<'a, P: Place> {
    /// `[n_pairs, d]` of all rows that were routed.
    pub out: P::Write<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// `[part.n_pairs(), d]`, sorted as pairs are.
    pub x: P::Read<'a, f32>,
    /// The pairs of some rows.
    pub part: &'a RoutingPart<'a>,
    /// Factor on `x`.
    pub factor: f32,
}

carried!(AddToPairs { out: write, d: same, x: read, part: pairs, factor: same });

/// Several products of the same rows with matrices of their experts, none of which reads what another writes. The host has no such
/// op: it multiplies expert by expert.
pub struct ExpertProducts<'a, P: Place> {
    /// The pairs of rows and experts that are multiplied.
    pub pairs: PairsOf<'a>,
    /// Rows that the experts read.
    pub x: ExpertRows<P::Read<'a, f32>>,
    /// Values of a row of `x`.
    pub cols: usize,
    /// The other forms of `x` that products read.
    pub forms: &'a Derived,
    /// The products, each with a tensor and an output.
    pub jobs: Vec<ExpertProduct<'a, P>>,
}

carried!(ExpertProducts { pairs: pairs, x: rows, cols: same, forms: derived, jobs: all });

/// One product: `out[i, o] = Σ_k x[i, k] * w[o, k]` for each pair `i`, `x` being its row and `w` its expert.
pub struct ExpertProduct<'a, P: Place> {
    /// The device's table of the matrices of all experts, `[rows, cols]` each, by
    /// [`Accelerator::table`](crate::Accelerator::table).
    pub table: &'a (dyn Any + Send + Sync),
    /// `[n_pairs, rows]`.
    pub out: P::Write<'a, f32>,
}

carried!(ExpertProduct { table: same, out: write });

/// Pairs that are multiplied.
#[derive(Clone, Copy, Debug)]
pub enum PairsOf<'a> {
    /// Pairs of all rows that were routed.
    All(&'a Routing),
    /// Pairs of some consecutive rows.
    Some(&'a RoutingPart<'a>),
}

impl<'a> PairsOf<'a> {
    /// The routing that the pairs belong to.
    pub fn routing(&self) -> &'a Routing {
        match self {
            Self::All(routing) => routing,
            Self::Some(part) => part.routing(),
        }
    }
}

/// The rows that experts read.
#[derive(Clone, Copy, Debug)]
pub enum ExpertRows<V> {
    /// The rows that were routed, `[n_rows, cols]`. With pairs of some rows, these are still the rows of all pairs.
    Routed(V),
    /// One for each pair, `[n_pairs, cols]`.
    OfPairs(V),
}

impl<V> ExpertRows<V> {
    /// The same of other values.
    pub fn map<W>(self, by: impl FnOnce(V) -> W) -> ExpertRows<W> {
        match self {
            Self::Routed(rows) => ExpertRows::Routed(by(rows)),
            Self::OfPairs(rows) => ExpertRows::OfPairs(by(rows)),
        }
    }
}

impl<P: Place> Route<'_, P> {
    /// Holds the shapes to each other.
    ///
    /// # Panics
    /// If they disagree.
    pub fn check(&self) {
        let n = self.routing.n_rows() * self.choice.n_expert;
        assert_eq!(P::len(&self.probs), n, "route: values of the router");
    }
}

/// Holds rows of pairs to their number.
fn check_pairs(op: &str, n: usize, d: usize, n_pairs: usize) {
    assert_eq!(n, n_pairs * d, "{op}: rows of {d} for {n_pairs} pairs");
}

macro_rules! checked {
    ($($op:ident { $rows:ident: $len:ident }),*) => {
        $(impl<P: Place> $op<'_, P> {
            /// Holds the shapes to each other.
            ///
            /// # Panics
            /// If they disagree.
            pub fn check(&self) {
                let n = P::$len(&self.$rows);
                check_pairs(stringify!($op), n, self.d, self.routing.n_pairs());
            }
        })*
    };
}

checked!(RowsOfPairs { out: len_mut }, WeighPairs { x: len_mut }, AddPairs { x: len });

impl<P: Place> AddExpertBiases<'_, P> {
    /// Holds the shapes to each other.
    ///
    /// # Panics
    /// If they disagree.
    pub fn check(&self) {
        check_pairs("biases", P::len_mut(&self.out), self.d, self.routing.n_pairs());
        let n = self.routing.n_expert() * self.d;
        assert_eq!(P::len(&self.biases), n, "biases: {} of each expert", self.d);
    }
}

impl<P: Place> AddToPairs<'_, P> {
    /// Holds the shapes to each other.
    ///
    /// # Panics
    /// If they disagree.
    pub fn check(&self) {
        check_pairs("add to pairs", P::len(&self.x), self.d, self.part.n_pairs());
        check_pairs("add to pairs", P::len_mut(&self.out), self.d, self.part.routing().n_pairs());
    }
}
