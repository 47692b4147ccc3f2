//! What is added to experts' products for some of the rows alone.

use std::ops::Range;

use brigade_gpu::ExpertWork;

use super::experts::{ExpertMatrices, ExpertProduct, ExpertRows, products_of};
use super::routing::Routing;
use super::{Device, Rows, Scratch, Values, give_up};

/// The pairs of some consecutive rows of those that were routed, for what is computed of these alone.
pub struct RoutingPart<'a> {
    routing: &'a Routing,
    rows: Range<usize>,
    /// Their lists, where those of all rows lie with a GPU.
    on_gpu: Option<ExpertWork>,
}

/// A change of low rank of each expert's product: `s B (A x)`.
pub struct ExpertChange<'a> {
    /// `[rank, cols]` each.
    pub a: &'a ExpertMatrices,
    /// `[out features, rank]` each.
    pub b: &'a ExpertMatrices,
    /// What multiplies it.
    pub scale: f32,
}

impl Device {
    /// The pairs of the rows numbered `rows`.
    ///
    /// # Panics
    /// If so many rows were not routed, or a GPU has no memory for the lists: the stage ends with this as its reason.
    pub fn pairs_of_rows<'a>(&self, routing: &'a Routing, rows: Range<usize>) -> RoutingPart<'a> {
        assert!(rows.end * routing.n_used() <= routing.n_pairs(), "{rows:?} of those routed");
        let on_gpu = self.gpu.as_ref().zip(routing.on_gpu()).map(|(gpu, routes)| {
            let work = gpu.work_of_rows(routes, rows.clone());
            work.unwrap_or_else(|error| give_up("the routing of experts", &error))
        });
        RoutingPart { routing, rows, on_gpu }
    }

    /// Adds a change for the pairs of `part`: to their rows of `out`, `[n_pairs, out features]`, of what their rows of `x`,
    /// `[n_pairs, cols]`, give. Both have rows for the pairs of all rows that were routed.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn add_expert_change(
        &self,
        scratch: &Scratch,
        part: &RoutingPart<'_>,
        (change, x): (&ExpertChange<'_>, &Rows),
        out: &mut Rows,
    ) {
        let ExpertChange { a, b, scale } = *change;
        let n_pairs = part.rows.len() * part.routing.n_used();
        let mut low = scratch.take(n_pairs, a.rows());
        let mut added = scratch.take(n_pairs, b.rows());
        let is_there = a.is_with_gpu() && b.is_with_gpu() && x.is_with_gpu();
        if let (Some(gpu), Some(work)) = (self.gpu.as_ref().filter(|_| is_there), &part.on_gpu)
            && let (cols, Some(out)) = (out.cols(), out.span_mut())
        {
            let mut first = ExpertProduct { w: a, out: &mut low };
            gpu.expert_products(work, [first.on_gpu(gpu, work, ExpertRows::Routed(x))]);
            let mut second = ExpertProduct { w: b, out: &mut added };
            gpu.expert_products(work, [second.on_gpu(gpu, work, ExpertRows::OfPairs(&low))]);
            return gpu.add_to_listed(out, cols, added.on_gpu(gpu), work.rows(), scale);
        }
        let (pairs, places) = part.spans();
        self.products(&mut products_of(a, x, &pairs, &mut low));
        self.products(&mut products_of(b, &low, &places, &mut added));
        let mut out = out.to_write();
        for ((_, pairs), (_, places)) in pairs.into_iter().zip(places) {
            self.add_scaled(&mut out.part(pairs), &added.part(places), scale);
        }
    }
}

/// Rows for each of some experts, with the expert's number.
type Spans = Vec<(usize, Range<usize>)>;

impl RoutingPart<'_> {
    /// For each expert that has some of the rows, its pairs among those of all rows; and where these are if the pairs of the part
    /// alone lie one behind the other.
    fn spans(&self) -> (Spans, Spans) {
        let (lists, mut n) = (self.routing.lists(), 0);
        let (mut pairs, mut places) = (Spans::new(), Spans::new());
        for (expert, all) in &lists.spans {
            // An expert's pairs are in the order of their rows.
            let rows = &lists.rows[all.clone()];
            let before = |row: usize| all.start + rows.partition_point(|r| (*r as usize) < row);
            let mine = before(self.rows.start)..before(self.rows.end);
            if !mine.is_empty() {
                places.push((*expert, n..n + mine.len()));
                n += mine.len();
                pairs.push((*expert, mine));
            }
        }
        (pairs, places)
    }
}
