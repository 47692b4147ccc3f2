//! Rows of pairs: of a row and one of the experts that it was routed to.

use brigade_ops::{
    AddExpertBiases, AddPairs, AddToPairs, Buffer, ExpertProduct, ExpertProducts, ExpertRows,
    PairLists, PairsOf, Part, Route, Routes, Routing, RoutingPart, RowsOfPairs, WeighPairs,
};

use super::routing::ExpertRoutes;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::memory::span::Span;
use crate::operands::OnGpu;
use crate::ops::products::expert_work::ExpertWork;
use crate::ops::products::{ExpertTable, FormedExpertProduct};

impl Routes for ExpertRoutes {
    fn chosen(&self) -> Part<'_> {
        let lists: &dyn Buffer = self.lists();
        Part::of(lists, 0..self.chosen().len())
    }
}

/// The lists that the pairs of some rows have, once they are made.
type PartWork = Result<ExpertWork, GpuError>;

impl Gpu {
    pub(crate) fn run_route(&self, op: Route<'_, OnGpu>) -> Result<(), GpuError> {
        op.check();
        op.routing.keep_there(Box::new(self.route(&op.choice, op.probs)?));
        Ok(())
    }

    pub(crate) fn run_rows_of_pairs(&self, op: RowsOfPairs<'_, OnGpu>) {
        op.check();
        let rows = self.list(op.routing, ExpertRoutes::rows, |lists| lists.rows.clone());
        self.gather_rows(op.x, op.d, rows, op.out);
    }

    pub(crate) fn run_weigh_pairs(&self, op: WeighPairs<'_, OnGpu>) {
        op.check();
        let weights = self.list(op.routing, ExpertRoutes::pair_weights, PairLists::weights);
        self.scale_rows(op.x, op.d, weights);
    }

    pub(crate) fn run_add_expert_biases(&self, op: AddExpertBiases<'_, OnGpu>) {
        op.check();
        let experts = self.list(op.routing, ExpertRoutes::experts, PairLists::experts);
        self.add_listed_rows(op.out, op.d, op.biases, experts);
    }

    pub(crate) fn run_add_pairs(&self, op: AddPairs<'_, OnGpu>) {
        op.check();
        let AddPairs { out, d, x, routing, are_weighed } = op;
        let of_shares = |lists: &PairLists| -> Vec<u32> {
            lists.shares.iter().map(|share| share.pair).collect()
        };
        let pairs = self.list(routing, ExpertRoutes::pairs, of_shares);
        let weights = if are_weighed {
            self.upload(bytemuck::cast_slice(&vec![1.0f32; routing.n_pairs()]))
        } else {
            self.list(routing, ExpertRoutes::weights, |lists| -> Vec<f32> {
                lists.shares.iter().map(|share| share.weight).collect()
            })
        };
        self.scatter_add(out, d, x, pairs, weights);
    }

    pub(crate) fn run_add_to_pairs(&self, op: AddToPairs<'_, OnGpu>) -> Result<(), GpuError> {
        op.check();
        let work = self.part_work(op.part)?;
        self.add_to_listed(op.out, op.d, op.x, work.rows(), op.factor);
        Ok(())
    }

    pub(crate) fn run_expert_products(
        &self,
        op: ExpertProducts<'_, OnGpu>,
    ) -> Result<(), GpuError> {
        let ExpertProducts { pairs, x, cols, forms, jobs } = op;
        let work = match pairs {
            PairsOf::All(routing) => routes_of(routing).work(),
            PairsOf::Some(part) => self.part_work(part)?,
        };
        // Collected first: what makes another form of rows may not stand between products that run beside each other.
        let jobs = jobs.into_iter().map(|ExpertProduct { table, out }| {
            let w: &ExpertTable = table.downcast_ref().expect("a table of this device");
            let form = self.expert_row_form(w.ty(), work);
            let x = match x {
                ExpertRows::Routed(x) => ExpertRows::Routed(self.in_form(form, x, cols, forms)?),
                ExpertRows::OfPairs(x) => ExpertRows::OfPairs(self.in_form(form, x, cols, forms)?),
            };
            Ok(FormedExpertProduct { w, x, out })
        });
        self.expert_products(work, jobs.collect::<Result<Vec<_>, GpuError>>()?);
        Ok(())
    }

    /// A list of a routing: that of the device, or a copy of the host's.
    fn list<'a, T: bytemuck::Pod>(
        &'a self,
        routing: &'a Routing,
        there: impl FnOnce(&'a ExpertRoutes) -> Span<'a>,
        here: impl FnOnce(&PairLists) -> Vec<T>,
    ) -> Span<'a> {
        match routing.there_as() {
            Some(routes) => there(routes),
            None => self.upload(bytemuck::cast_slice(&here(routing.lists()))),
        }
    }

    /// The pairs of some rows, as products take them. They are made when they are first asked for.
    fn part_work<'a>(&self, part: &'a RoutingPart<'_>) -> Result<&'a ExpertWork, GpuError> {
        let make = || -> PartWork { self.work_of_rows(routes_of(part.routing()), part.rows()) };
        let work = part.there().kept::<PartWork>(make).expect("pairs of one device");
        work.as_ref().map_err(Clone::clone)
    }
}

/// # Panics
/// If experts were chosen elsewhere: such ops are not supported.
fn routes_of(routing: &Routing) -> &ExpertRoutes {
    routing.there_as().expect("experts were chosen on this device")
}
