//! Experts in far memory: which rows they work on is chosen there, and the host need not know it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use brigade_kernels::Compute;
use brigade_ops::{
    AddExpertBiases, AddPairs, Buffer, Derived, ExpertProducts, ExpertRows, Host, Matrices, Op,
    PairLists, PairsOf, Part, Product, Products, Route, Routes, Routing, RowsOfPairs, WeighPairs,
    Weights,
};
use brigade_quant::GgmlType;

use super::memory::{FarBuffer, FarView};

/// Choice of experts, in far memory.
#[derive(Debug)]
struct FarRoutes {
    /// Ids and weights, as the host fetches them.
    chosen: FarBuffer,
    /// The same lists in the host's memory, for kernels.
    lists: Routing,
}

impl Routes for FarRoutes {
    fn chosen(&self) -> Part<'_> {
        Part::of(&self.chosen, 0..self.chosen.len())
    }
}

/// The matrices of all experts of a tensor.
pub struct FarTable {
    ty: GgmlType,
    rows: usize,
    cols: usize,
    all: Vec<(Arc<dyn Buffer>, f32)>,
}

impl FarTable {
    /// Table of these matrices.
    pub fn new(matrices: &Matrices) -> Self {
        let Matrices { ty, rows, cols, all } = matrices;
        Self { ty: *ty, rows: *rows, cols: *cols, all: all.clone() }
    }
}

/// Runs an op with the host's kernels. Where experts were chosen here, it gets the lists that are here.
pub fn run(compute: &Compute, reads: &Arc<AtomicU64>, op: Op<'_, Host>) {
    let op = match op {
        Op::Route(op) => return route(compute, reads, op),
        Op::ExpertProducts(op) => return expert_products(compute, op),
        Op::RowsOfPairs(RowsOfPairs { x, d, routing, out }) => {
            RowsOfPairs { x, d, routing: here(routing), out }.into()
        }
        Op::WeighPairs(WeighPairs { x, d, routing }) => {
            WeighPairs { x, d, routing: here(routing) }.into()
        }
        Op::AddExpertBiases(AddExpertBiases { out, d, biases, routing }) => {
            AddExpertBiases { out, d, biases, routing: here(routing) }.into()
        }
        Op::AddPairs(AddPairs { out, d, x, routing, are_weighed }) => {
            AddPairs { out, d, x, routing: here(routing), are_weighed }.into()
        }
        other => other,
    };
    compute.run(op);
}

/// The lists that are here, or those that the host has.
fn here(routing: &Routing) -> &Routing {
    routing.there_as::<FarRoutes>().map_or(routing, |routes| &routes.lists)
}

fn route(compute: &Compute, reads: &Arc<AtomicU64>, op: Route<'_, Host>) {
    op.check();
    let (ids, weights) = compute.choose_experts(&op.choice, op.probs);
    let chosen = [bytemuck::cast_slice(&ids), bytemuck::cast_slice(&weights)].concat();
    let (n_expert, n_used) = (op.routing.n_expert(), op.routing.n_used());
    let lists = PairLists::new(&ids, &weights, n_expert, n_used);
    let lists = Routing::new(op.routing.n_rows(), n_expert, n_used).with_lists(lists);
    let chosen = FarBuffer::of(&chosen, reads);
    op.routing.keep_there(Box::new(FarRoutes { chosen, lists }));
}

/// Multiplies expert by expert, which callers do not see.
fn expert_products(compute: &Compute, op: ExpertProducts<'_, Host>) {
    let ExpertProducts { pairs, x, cols, jobs, .. } = op;
    let all = here(pairs.routing());
    // Of each expert: its pairs among all that there are, and where their products go.
    let (pairs, places) = match pairs {
        PairsOf::All(_) => (all.lists().spans.clone(), all.lists().spans.clone()),
        PairsOf::Some(part) => all.part(part.rows()).spans(),
    };
    let is_part = matches!(op.pairs, PairsOf::Some(_));
    let row_of = |pair: usize, place: usize| match x {
        ExpertRows::Routed(_) if is_part => pair,
        ExpertRows::Routed(_) => all.lists().rows[pair] as usize,
        ExpertRows::OfPairs(_) => place,
    };
    let (ExpertRows::Routed(rows) | ExpertRows::OfPairs(rows)) = x;
    for job in jobs {
        let table: &FarTable = job.table.downcast_ref().expect("a table of this device");
        let FarTable { ty, rows: n_out, cols: n_in, .. } = *table;
        assert_eq!(cols, n_in, "rows of experts");
        for ((expert, pairs), (_, places)) in pairs.iter().zip(&places) {
            let read = pairs.clone().zip(places.clone()).map(|(pair, place)| row_of(pair, place));
            let x: Vec<f32> = read.flat_map(|row| &rows[row * cols..][..cols]).copied().collect();
            let (buffer, scale) = &table.all[*expert];
            let panels = FarView::of(Part::of(&**buffer, 0..buffer.len())).decode();
            let panels = bytemuck::cast_slice(&panels);
            let w = Weights { ty, rows: n_out, cols, scale: *scale, panels };
            let out = &mut job.out[places.start * n_out..places.end * n_out];
            let (rows, forms) = (0..pairs.len(), &Derived::default());
            let job = Product { w, x: &x[..], forms, rows, out };
            compute.run(Products { jobs: vec![job] }.into());
        }
    }
}
