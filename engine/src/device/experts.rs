//! What experts do with the rows that a router sent them.

use super::on_gpu::{buffer_of, refused};
use std::ops::Range;
use std::sync::Arc;

use brigade_gpu::{self as there, ExpertTable, ExpertWork, Gpu};

use super::products::{in_form, weight_type};
use super::routing::Routing;
use super::{Device, Product, Rows, Scratch, Values};
use crate::kernels::{KernelError, PackedMatrix, Vector};

/// The matrices of all experts of a tensor, of one type and shape.
pub struct ExpertMatrices {
    all: Vec<Arc<PackedMatrix>>,
    /// Whose they are, in ascending order, where these are not all experts.
    of: Option<Vec<usize>>,
    /// Where they lie with a GPU.
    table: Option<ExpertTable>,
    /// Whether a GPU computes, and they lie with the host.
    is_beside: bool,
}

/// The rows that experts read.
#[derive(Clone, Copy)]
pub enum ExpertRows<'a> {
    /// Those that were routed, `[n_rows, cols]`.
    Routed(&'a Rows),
    /// One for each pair, `[n_pairs, cols]`.
    OfPairs(&'a Rows),
}

/// One product: `out[i, o] = Σ_k x[i, k] * w[o, k]` for each pair `i`, `x` being its row and `w` its expert.
pub struct ExpertProduct<'a> {
    /// Of all experts, `[out features, cols]` each.
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

    /// Rows of each matrix, which are output features; 0 where there is none.
    pub(super) fn rows(&self) -> usize {
        self.all.first().map_or(0, |matrix| matrix.rows())
    }

    /// Those of some experts, in ascending order: products find them one by one.
    pub(super) fn of_some(experts: Vec<usize>, all: Vec<Arc<PackedMatrix>>) -> Self {
        Self { all, of: Some(experts), table: None, is_beside: false }
    }

    /// That of an expert.
    ///
    /// # Panics
    /// If there is none of that number.
    pub(super) fn matrix(&self, expert: usize) -> &PackedMatrix {
        let place = self.of.as_ref().map_or(Some(expert), |of| of.binary_search(&expert).ok());
        &self.all[place.expect("an expert that is here")]
    }

    /// Whether they lie with a GPU.
    pub(super) fn is_with_gpu(&self) -> bool {
        self.table.is_some()
    }
}

impl Device {
    /// Matrices of one type and shape, where products of all of them find them.
    ///
    /// # Errors
    /// [`KernelError::Device`] where a GPU has no room for a table of them.
    pub fn experts(&self, all: Vec<Arc<PackedMatrix>>) -> Result<ExpertMatrices, KernelError> {
        let placed =
            |matrix: &Arc<PackedMatrix>| Some((buffer_of(matrix)?.clone(), matrix.scale()));
        let placed: Option<Vec<_>> = all.iter().map(placed).collect();
        let table = match (&self.gpu, placed, all.first()) {
            (Some(gpu), Some(placed), Some(one)) => {
                let shape = [one.rows(), one.cols()];
                Some(gpu.expert_table(weight_type(one.ty()), shape, placed).map_err(refused)?)
            }
            _ => None,
        };
        let is_beside = self.gpu.is_some() && table.is_none() && !all.is_empty();
        Ok(ExpertMatrices { all, of: None, table, is_beside })
    }

    /// The row of each pair: `out` is `[n_pairs, x.cols()]`.
    pub fn rows_of_pairs(&self, x: &Rows, routing: &Routing, out: &mut Rows) {
        match (self.gpu_of(out), routing.on_gpu()) {
            (Some((gpu, out)), Some(routes)) => {
                gpu.gather_rows(x.on_gpu(gpu), x.cols(), routes.rows(), out);
            }
            _ => self.gather_rows(x, &routing.lists().rows, out),
        }
    }

    /// Multiplies the row of each pair, `[n_pairs, cols]`, by the pair's weight.
    pub fn weigh_pairs(&self, routing: &Routing, x: &mut Rows) {
        let cols = x.cols();
        match (self.gpu_of(x), routing.on_gpu()) {
            (Some((gpu, x)), Some(routes)) => gpu.scale_rows(x, cols, routes.pair_weights()),
            _ => self.scale_rows(x, cols, &routing.lists().weights()),
        }
    }

    /// Products of the same rows with several matrices of each expert, which do not wait for each other.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn expert_products(
        &self,
        scratch: &Scratch,
        routing: &Routing,
        x: ExpertRows<'_>,
        products: &mut [ExpertProduct<'_>],
    ) {
        let (ExpertRows::Routed(rows) | ExpertRows::OfPairs(rows)) = x;
        let is_there = |product: &ExpertProduct<'_>| {
            product.w.is_with_gpu() && product.out.is_with_gpu() && rows.is_with_gpu()
        };
        if let (Some(gpu), Some(routes)) = (&self.gpu, routing.on_gpu())
            && products.iter().all(is_there)
        {
            // Collected first: what makes another form of rows may not stand between products that run beside each other.
            let jobs = products.iter_mut().map(|product| product.on_gpu(gpu, routes.work(), x));
            let jobs: Vec<_> = jobs.collect();
            return gpu.expert_products(routes.work(), jobs);
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
        let spans = &routing.lists().spans;
        let jobs = products.iter_mut();
        let jobs = jobs.flat_map(|ExpertProduct { w, out }| products_of(w, x, spans, out));
        self.products(&mut jobs.collect::<Vec<_>>());
    }

    /// Adds to the row of each pair, `[n_pairs, cols]`, its expert's row of `biases`, `[n_expert, cols]`.
    pub fn add_expert_biases(&self, routing: &Routing, biases: &Vector, out: &mut Rows) {
        let cols = out.cols();
        if let (Some((gpu, out)), Some(routes)) = (self.gpu_of(out), routing.on_gpu()) {
            return gpu.add_listed_rows(out, cols, biases.on_gpu(gpu), routes.experts());
        }
        let mut out = out.to_write();
        for (expert, pairs) in &routing.lists().spans {
            self.add_bias(&mut out.part(pairs.clone()), &biases[expert * cols..][..cols]);
        }
    }

    /// Adds to each row of `out`, `[n_rows, x.cols()]`, the rows `x` of its pairs times their weights, one after the other in
    /// the order in which its experts were chosen; with weight 1 where pairs were weighed before.
    pub fn add_pairs(&self, out: &mut Rows, x: &Rows, routing: &Routing, are_weighed: bool) {
        let width = x.cols();
        if let Some((gpu, out)) = self.gpu_of(out) {
            let ones = || gpu.upload(bytemuck::cast_slice(&vec![1.0f32; routing.n_pairs()]));
            if let Some(routes) = routing.on_gpu() {
                let weights = if are_weighed { ones() } else { routes.weights() };
                let pairs = routes.pairs();
                return self.with_gpu(gpu, x, |x| gpu.scatter_add(out, width, x, pairs, weights));
            }
            let shares = routing.lists().shares.iter();
            let (pairs, weights): (Vec<u32>, Vec<f32>) =
                shares.map(|share| (share.pair, share.weight)).unzip();
            let pairs = gpu.upload(bytemuck::cast_slice(&pairs));
            let weights =
                if are_weighed { ones() } else { gpu.upload(bytemuck::cast_slice(&weights)) };
            return self.with_gpu(gpu, x, |x| gpu.scatter_add(out, width, x, pairs, weights));
        }
        let shares = routing.lists().shares.chunks_exact(routing.n_used());
        for (out, shares) in out.chunks_exact_mut(width).zip(shares) {
            for share in shares {
                let weight = if are_weighed { 1.0 } else { share.weight };
                self.compute.add_scaled(out, x.row(share.pair as usize), weight);
            }
        }
    }
}

/// Products of rows `spans` of `x` with the matrices of their experts. `out` has a row for each of them, one behind the other.
pub(super) fn products_of<'a>(
    w: &'a ExpertMatrices,
    x: &'a Rows,
    spans: &[(usize, Range<usize>)],
    out: &'a mut Rows,
) -> Vec<Product<'a>> {
    let mut left = out.to_write();
    let mut products = Vec::with_capacity(spans.len());
    for (expert, rows) in spans {
        let (mine, rest) = left.split_at(rows.len());
        left = rest;
        products.push(Product { w: w.matrix(*expert), x, rows: rows.clone(), out: mine });
    }
    products
}

impl ExpertProduct<'_> {
    /// # Panics
    /// If something of it does not lie with a GPU.
    pub(super) fn on_gpu<'a>(
        &'a mut self,
        gpu: &Gpu,
        work: &ExpertWork,
        x: ExpertRows<'a>,
    ) -> there::ExpertProduct<'a> {
        const THERE: &str = "asked before";
        let Self { w, out } = self;
        let table = w.table.as_ref().expect(THERE);
        let form = gpu.expert_row_form(table.ty(), work);
        let span = |x: &'a Rows| in_form(gpu, form, x).expect(THERE);
        let x = match x {
            ExpertRows::Routed(x) => there::ExpertRows::Routed(span(x)),
            ExpertRows::OfPairs(x) => there::ExpertRows::OfPairs(span(x)),
        };
        there::ExpertProduct { w: table, x, out: out.span_mut().expect(THERE) }
    }
}
