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
    row_group: usize,
    panel_parts: usize,
    panels: PanelParts,
    n_chunks: usize,
}

/// How panels are parted.
enum PanelParts {
    /// So many in each part; the last one has what is left.
    Of(usize),
    /// As evenly as may be.
    Even,
}

impl JobChunks {
    fn panels(&self, part: usize) -> Range<usize> {
        let bound = |part: usize| match self.panels {
            PanelParts::Of(n) => (part * n).min(self.n_panels),
            PanelParts::Even => part * self.n_panels / self.panel_parts,
        };
        bound(part)..bound(part + 1)
    }
}

/// The cut of all jobs.
struct Cut {
    jobs: Vec<JobChunks>,
    n_chunks: usize,
    /// The threads that each have a part of every job; `None`: the jobs come one after the other.
    threads: Option<usize>,
}

/// A chunk of a job: which part of the panels, and which group of rows.
struct Place {
    job: usize,
    part: usize,
    group: usize,
}

impl Cut {
    /// Where a chunk is.
    fn place(&self, chunk: usize) -> Place {
        // Chunks of a thread follow each other, those of the first job first.
        let (thread, mut index) = match self.threads {
            None => (0, chunk),
            Some(threads) => {
                let of_thread = self.n_chunks / threads;
                (chunk / of_thread, chunk % of_thread)
            }
        };
        let own = |job: &JobChunks| job.n_chunks / self.threads.unwrap_or(1);
        let mut job = 0;
        while index >= own(&self.jobs[job]) {
            index -= own(&self.jobs[job]);
            job += 1;
        }
        let index = thread * own(&self.jobs[job]) + index;
        let parts = self.jobs[job].panel_parts;
        Place { job, part: index % parts, group: index / parts }
    }
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
        let cut = self.cut(&jobs);
        jobs.iter().for_each(|job| job.x.prepare(self, job.w));
        let shared: Vec<_> = jobs.iter_mut().map(Job::shared).collect();
        let kernels = self.kernels();
        self.pool().run(cut.n_chunks, &|chunk, _| {
            let Place { job, part, group } = cut.place(chunk);
            let (of_job, Shared { w, x, rows, out }) = (&cut.jobs[job], &shared[job]);
            let first_row = rows.start + group * of_job.row_group;
            kernels.multiply(&MatmulChunk {
                w: *w,
                x,
                panels: of_job.panels(part),
                rows: first_row..(first_row + of_job.row_group).min(rows.end),
                n_rows: rows.len(),
                out: *out,
            });
        });
    }

    fn cut(&self, jobs: &[Job<'_>]) -> Cut {
        let most_rows = jobs.iter().map(|job| job.rows.len()).max().unwrap_or(0);
        let threads = self.pool().threads();
        let chunks = match threads {
            1 => 1,
            threads if most_rows < MANY_ROWS => threads * CHUNKS_PER_THREAD,
            threads => threads * MANY_CHUNKS_PER_THREAD,
        };
        let total: usize = jobs.iter().map(Job::cost).sum();
        let target = (total / chunks).max(MIN_CHUNK_COST);
        // Weights lie with the thread that packed them, which had an even part of each matrix. So a thread that has its place is
        // to read a part of each, where rows are few, jobs are several, and parts of them are worth a chunk.
        let is_worth_it =
            |job: &Job<'_>| job.w.n_panels() >= threads && job.cost() >= threads * MIN_CHUNK_COST;
        let is_apart = self.pool().has_places() && jobs.len() > 1 && most_rows < MANY_ROWS;
        let each = (is_apart && jobs.iter().all(is_worth_it)).then_some(threads);
        let jobs: Vec<JobChunks> = jobs.iter().map(|job| job.cut(target, each)).collect();
        Cut { n_chunks: jobs.iter().map(|job| job.n_chunks).sum(), jobs, threads: each }
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

    /// Cost of all of it.
    fn cost(&self) -> usize {
        let (n_rows, group) = (self.rows.len(), row_group(self.rows.len()));
        n_rows.div_ceil(group) * self.w.n_panels() * panel_cost(self.w, group.min(n_rows))
    }

    /// Cuts it into chunks that cost about `target`: as many for each of `threads`, if there are some.
    fn cut(&self, target: usize, threads: Option<usize>) -> JobChunks {
        let (n_panels, n_rows) = (self.w.n_panels(), self.rows.len());
        let row_group = row_group(n_rows);
        let cost = panel_cost(self.w, row_group.min(n_rows)).max(1);
        let at_once = (target / cost).clamp(1, n_panels.max(1));
        let parts = n_panels.div_ceil(at_once);
        let (panel_parts, panels) = match threads {
            None => (parts, PanelParts::Of(at_once)),
            Some(threads) => (threads * (parts / threads).max(1), PanelParts::Even),
        };
        let n_chunks = panel_parts * n_rows.div_ceil(row_group);
        JobChunks { n_panels, row_group, panel_parts, panels, n_chunks }
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
