//! Products of activation rows with packed weights. Several products run in one fork-join of the threads.
//!
//! The work of all jobs is cut into chunks of (job, panels, rows), which threads claim. How it is cut never
//! changes a result, because each output element is one kernel's walk along one weight row.

use std::marker::PhantomData;
use std::ops::Range;

use crate::compute::Compute;
use crate::cpu::products::matmul_many::MANY_ROWS;
use crate::simd::MAX_TILE;
use crate::tiles::products::activations::ActRows;
use crate::tiles::products::matmul::{MatmulChunk, OutMatrix};
use crate::tiles::products::pack::{PackedMatrix, Panels};
use brigade_ops::{Derived, Host, Product, Products};

/// Most rows of a chunk: a slice of each ([`crate::cpu::products::matmul_many`]'s products of many rows) stays in the
/// second-level cache while the panels pass.
const MAX_GROUP_ROWS: usize = 128;

/// Chunks of few rows that each thread should find, for balance.
pub(crate) const CHUNKS_PER_THREAD: usize = 16;

/// The same of many rows, which each chunk first lays side by side.
const MANY_CHUNKS_PER_THREAD: usize = 6;

/// Least cost of a chunk, in units of [`panel_cost`]: some microseconds.
pub(crate) const MIN_CHUNK_COST: usize = 20 << 10;

/// Cost of a panel with `rows` rows, in bytes of memory traffic. The panel is read once, and each row takes 16 * cols
/// multiply-adds. A core does about 16 of these in the time that it reads a byte.
pub(crate) fn panel_cost(w: Panels<'_>, rows: usize) -> usize {
    w.panel_bytes + rows * w.cols
}

/// Rows of a chunk: evened out over the chunks, in whole tiles.
fn row_group(n_rows: usize) -> usize {
    let n_groups = n_rows.div_ceil(MAX_GROUP_ROWS).max(1);
    n_rows.div_ceil(n_groups).max(1).next_multiple_of(MAX_TILE)
}

/// The cut of a job into chunks.
struct JobChunks {
    n_panels: usize,
    panels_per_chunk: usize,
    row_group: usize,
    /// Index of the job's first chunk.
    first_chunk: usize,
    panel_chunks: usize,
    n_chunks: usize,
}

impl Compute {
    /// One product of rows that no other matrix multiplies: `out[n_rows, w.rows()]` from `x[n_rows, w.cols()]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn multiply(&self, w: &PackedMatrix, x: &[f32], out: &mut [f32]) {
        let (w, forms) = (w.on_host(), &Derived::default());
        let rows = 0..x.len().checked_div(w.cols).unwrap_or(0);
        self.products(Products { jobs: vec![Product { w, x, forms, rows, out }] });
    }

    /// Runs several products in one fork-join.
    ///
    /// # Panics
    /// If a job's shapes disagree.
    pub fn products(&self, products: Products<'_, Host>) {
        let mut jobs: Vec<Job<'_>> = products.jobs.into_iter().map(Job::new).collect();
        let plans = self.plan(&jobs);
        jobs.iter().for_each(|job| job.x.prepare(self, job.w));
        let n_chunks = plans.last().map_or(0, |plan| plan.first_chunk + plan.n_chunks);
        let shared: Vec<_> = jobs.iter_mut().map(Job::shared).collect();
        let matmul = self.kernels().matmul;
        self.pool().run(n_chunks, &|chunk, _| {
            let job = plans.partition_point(|plan| plan.first_chunk <= chunk) - 1;
            let (plan, Shared { w, x, rows, out }) = (&plans[job], &shared[job]);
            let index = chunk - plan.first_chunk;
            let first_panel = index % plan.panel_chunks * plan.panels_per_chunk;
            let first_row = rows.start + index / plan.panel_chunks * plan.row_group;
            matmul(&MatmulChunk {
                w: *w,
                x,
                panels: first_panel..(first_panel + plan.panels_per_chunk).min(plan.n_panels),
                rows: first_row..(first_row + plan.row_group).min(rows.end),
                out: *out,
            });
        });
    }

    fn plan(&self, jobs: &[Job<'_>]) -> Vec<JobChunks> {
        let cost = |job: &Job<'_>| {
            let (n_rows, group) = (job.rows.len(), row_group(job.rows.len()));
            n_rows.div_ceil(group) * job.w.n_panels() * panel_cost(job.w, group.min(n_rows))
        };
        let total: usize = jobs.iter().map(cost).sum();
        let most_rows = jobs.iter().map(|job| job.rows.len()).max().unwrap_or(0);
        let n_chunks = match self.pool().threads() {
            1 => 1,
            threads if most_rows < MANY_ROWS => threads * CHUNKS_PER_THREAD,
            threads => threads * MANY_CHUNKS_PER_THREAD,
        };
        let target = (total / n_chunks).max(MIN_CHUNK_COST);
        let mut first_chunk = 0;
        let plan = |job: &Job<'_>| {
            let (n_panels, n_rows) = (job.w.n_panels(), job.rows.len());
            let row_group = row_group(n_rows);
            let cost = panel_cost(job.w, row_group.min(n_rows)).max(1);
            let panels_per_chunk = (target / cost).clamp(1, n_panels.max(1));
            let panel_chunks = n_panels.div_ceil(panels_per_chunk);
            let n_chunks = panel_chunks * n_rows.div_ceil(row_group);
            let plan = JobChunks {
                n_panels,
                panels_per_chunk,
                row_group,
                first_chunk,
                panel_chunks,
                n_chunks,
            };
            first_chunk += n_chunks;
            plan
        };
        jobs.iter().map(plan).collect()
    }
}

/// A product, as it is cut.
struct Job<'a> {
    w: Panels<'a>,
    x: ActRows<'a>,
    rows: Range<usize>,
    out: &'a mut [f32],
}

/// Data that the chunks of a product share.
struct Shared<'a> {
    w: Panels<'a>,
    x: &'a ActRows<'a>,
    rows: Range<usize>,
    out: OutMatrix<'a>,
}

impl<'a> Job<'a> {
    /// # Panics
    /// If shapes disagree.
    fn new(product: Product<'a, Host>) -> Self {
        product.check();
        let Product { w, x, forms, rows, out } = product;
        Self { w: Panels::of(w), x: ActRows::new(x, w.cols, forms), rows, out }
    }

    fn shared(&mut self) -> Shared<'_> {
        let out = OutMatrix {
            start: self.out.as_mut_ptr(),
            first_row: self.rows.start,
            n_rows: self.rows.len(),
            cols: self.w.rows,
            owner: PhantomData,
        };
        Shared { w: self.w, x: &self.x, rows: self.rows.clone(), out }
    }
}
