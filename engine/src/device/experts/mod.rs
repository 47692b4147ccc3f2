//! Experts on the rows that a router sent them. The experts lie with the device, or in the host's memory beside it.

pub(super) mod changes;
pub(super) mod copies;
pub(super) mod guests;
pub(super) mod job;
pub(super) mod on_host;
pub(super) mod places;
pub(super) mod use_counts;
pub(super) mod visits;

use std::ops::Range;
use std::sync::Arc;

use super::ops::run::bring_lists;
use super::{Device, Rows, Scratch, product};
use crate::kernels::{ExpertChoice, KernelError, PackedMatrix, Vector};
use crate::ops::{
    AddExpertBiases, AddPairs, Anywhere, ExpertProduct, ExpertProducts, ExpertRows, Matrices,
    PairsOf, Product, Route, Routing, RowsOfPairs, Table, View, WeighPairs,
};

/// The matrices of all experts of a tensor, of one type and shape.
pub struct ExpertMatrices {
    all: Vec<Arc<PackedMatrix>>,
    /// Numbers of the experts, in ascending order, where these are not all.
    of: Option<Vec<usize>>,
    /// A device's table of all matrices, where it has made one.
    table: Option<Table>,
    /// Whether a device computes, and they lie with the host.
    is_beside: bool,
}

/// A tensor of experts that rows are multiplied with, and where its products go.
pub struct ExpertJob<'a> {
    /// Matrices of all experts, `[out features, cols]` each.
    pub w: &'a ExpertMatrices,
    /// `[n_pairs, out features]`.
    pub out: &'a mut Rows,
}

impl ExpertMatrices {
    /// Bytes of all matrices. One that several share is counted once over all of them.
    pub fn nbytes(&self) -> usize {
        self.all.iter().map(|matrix| matrix.nbytes() / Arc::strong_count(matrix)).sum()
    }

    /// Bytes of those that lie elsewhere than what the device computes with.
    pub fn nbytes_beside(&self) -> usize {
        if self.is_beside { self.nbytes() } else { 0 }
    }

    /// Whether they lie elsewhere than what the device computes with.
    pub(super) fn is_beside(&self) -> bool {
        self.is_beside
    }

    /// Number of matrices.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Rows of each matrix, which are output features; 0 where there is none.
    pub(super) fn rows(&self) -> usize {
        self.all.first().map_or(0, |matrix| matrix.rows())
    }

    /// Matrices of some experts, in ascending order: products find them one by one.
    pub(super) fn of_some(experts: Vec<usize>, all: Vec<Arc<PackedMatrix>>) -> Self {
        Self { all, of: Some(experts), table: None, is_beside: false }
    }

    /// The matrix of an expert.
    ///
    /// # Panics
    /// If there is none of that number.
    pub(super) fn matrix(&self, expert: usize) -> &PackedMatrix {
        let place = self.of.as_ref().map_or(Some(expert), |of| of.binary_search(&expert).ok());
        &self.all[place.expect("an expert that is here")]
    }

    /// A device's table of all matrices, where it has made one.
    pub(super) fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }
}

impl Device {
    /// Matrices of one type and shape, where products of all of them find them.
    ///
    /// # Errors
    /// [`KernelError::Device`] where a device has no room for a table of them.
    pub fn experts(&self, all: Vec<Arc<PackedMatrix>>) -> Result<ExpertMatrices, KernelError> {
        let placed =
            |matrix: &Arc<PackedMatrix>| Some((matrix.with_device()?.clone(), matrix.scale()));
        let placed: Option<Vec<_>> = all.iter().map(placed).collect();
        let is_beside = self.there.is_some() && placed.is_none();
        let table = match (&self.there, placed, all.first()) {
            (Some(there), Some(placed), Some(one)) => {
                let (ty, rows, cols) = (one.ty(), one.rows(), one.cols());
                there.table(&Matrices { ty, rows, cols, all: placed })?
            }
            _ => None,
        };
        Ok(ExpertMatrices { all, of: None, table, is_beside })
    }

    /// Chooses experts for each row of `probs`, `[n_rows, n_expert]`, what a router gives each.
    ///
    /// # Panics
    /// If known experts are not as many as are used, or a device has no memory for the lists: the stage ends with this as its
    /// reason.
    pub fn route(&self, choice: &ExpertChoice<'_, &Vector>, probs: &Rows) -> Routing {
        let mut routing = Routing::new(probs.n_rows(), choice.n_working(), choice.n_used);
        let choice = choice.map_bias(Vector::view);
        self.run(Route { choice, probs: probs.view(), routing: &mut routing });
        routing
    }

    /// The row of each pair: `out` is `[n_pairs, x.cols()]`.
    pub fn rows_of_pairs(&self, x: &Rows, routing: &Routing, out: &mut Rows) {
        let (d, out) = (x.cols(), out.view_mut());
        self.run(RowsOfPairs { x: x.view(), d, routing, out });
    }

    /// Multiplies the row of each pair, `[n_pairs, cols]`, by the pair's weight.
    pub fn weigh_pairs(&self, routing: &Routing, x: &mut Rows) {
        let d = x.cols();
        self.run(WeighPairs { x: x.view_mut(), d, routing });
    }

    /// Products of the same rows with several matrices of each expert, which do not wait for each other.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn expert_products(
        &self,
        scratch: &Scratch,
        routing: &Routing,
        x: ExpertRows<&Rows>,
        jobs: &mut [ExpertJob<'_>],
    ) {
        if routing.there().is_some() && jobs.iter().all(|job| job.w.table.is_some()) {
            return self.products_of_tables(PairsOf::All(routing), x, jobs);
        }
        let mut own = None;
        let x = match x {
            ExpertRows::OfPairs(x) => x,
            ExpertRows::Routed(x) => {
                let own = own.insert(scratch.take(routing.n_pairs(), x.cols()));
                self.rows_of_pairs(x, routing, own);
                own
            }
        };
        let spans = &bring_lists(routing).spans;
        let products = jobs.iter_mut();
        let products = products.flat_map(|ExpertJob { w, out }| products_of(w, x, spans, out));
        self.products(products.collect());
    }

    /// Products with matrices that a device has tables of.
    pub(super) fn products_of_tables(
        &self,
        pairs: PairsOf<'_>,
        x: ExpertRows<&Rows>,
        jobs: &mut [ExpertJob<'_>],
    ) {
        let (ExpertRows::Routed(rows) | ExpertRows::OfPairs(rows)) = x;
        let jobs = jobs.iter_mut().map(|ExpertJob { w, out }| ExpertProduct {
            table: &**w.table.as_ref().expect("asked before"),
            out: out.view_mut(),
        });
        let (cols, forms, jobs) = (rows.cols(), rows.forms(), jobs.collect());
        self.run(ExpertProducts { pairs, x: x.map(Rows::view), cols, forms, jobs });
    }

    /// Adds to the row of each pair, `[n_pairs, cols]`, its expert's row of `biases`, `[n_expert, cols]`.
    pub fn add_expert_biases(&self, routing: &Routing, biases: &Vector, out: &mut Rows) {
        let (d, biases) = (out.cols(), biases.view());
        self.run(AddExpertBiases { out: out.view_mut(), d, biases, routing });
    }

    /// Adds to each row of `out`, `[n_rows, x.cols()]`, the rows `x` of its pairs times their weights. They are added
    /// one after the other, in the order in which the row's experts were chosen. Pairs that were weighed before have
    /// weight 1.
    pub fn add_pairs(&self, out: &mut Rows, x: &Rows, routing: &Routing, are_weighed: bool) {
        let d = x.cols();
        let mut add = |x: View<'_, f32>| {
            self.run(AddPairs { out: out.view_mut(), d, x, routing, are_weighed });
        };
        self.lent(x, &mut add);
    }

    /// Has `read` take rows, wherever these lie: those that the host made beside a device lie with that meanwhile.
    pub(super) fn lent(&self, rows: &Rows, read: &mut dyn FnMut(View<'_, f32>)) {
        match &self.beside {
            Some(beside) if !rows.is_there() && !rows.is_empty() => beside.lend(rows, read),
            _ => read(rows.view()),
        }
    }
}

/// Products of rows `spans` of `x` with the matrices of their experts. `out` has a row for each of them, one behind the other.
pub(super) fn products_of<'a>(
    w: &'a ExpertMatrices,
    x: &'a Rows,
    spans: &[(usize, Range<usize>)],
    out: &'a mut Rows,
) -> Vec<Product<'a, Anywhere>> {
    let mut left = out.to_write();
    let mut products = Vec::with_capacity(spans.len());
    for (expert, rows) in spans {
        let (mine, rest) = left.split_at(rows.len());
        left = rest;
        products.push(product(w.matrix(*expert), x, rows.clone(), mine));
    }
    products
}
