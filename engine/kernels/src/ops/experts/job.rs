//! All that routed experts do with a few rows, as one run of the threads. The ways in of all experts come first, then
//! the ways out. The thread that computes the last part of an expert's up and gate matrices makes the input of its down
//! matrix of them, while others go on with other experts. So threads do not meet between the steps, and the weights are
//! read without a pause.
//!
//! Bits are those of the steps one after the other: each output is one kernel's walk along one weight row.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::compute::Compute;
use crate::cpu::products::matmul_many::MANY_ROWS;
use crate::ops::products::matmul::{CHUNKS_PER_THREAD, MIN_CHUNK_COST, panel_cost};
use crate::shares::{Deal, Shares};
use crate::tiles::out_rows::Rows;
use crate::tiles::products::activations::ActRows;
use crate::tiles::products::matmul::{MatmulChunk, OutMatrix};
use crate::tiles::products::pack::Panels;
use brigade_ops::{Derived, Weights};

/// Turns that a thread spins for another's part of an expert before it gives way to a thread that has lost its core.
const SPINS: u32 = 4_000;

/// Makes what goes down in place of what came up: given the number of the run, what the gate gave for it (empty where there is
/// none), and what came up.
pub type Between<'a> = dyn Fn(usize, &mut [f32], &mut [f32]) + Sync + 'a;

/// An expert that has rows.
pub struct ExpertRun<'a> {
    /// Rows of what it reads.
    pub rows: Range<usize>,
    /// Rows of all that it writes, as many. No other expert has them.
    pub pairs: Range<usize>,
    /// The way up, `[n_ff, width]`.
    pub up: Weights<&'a [u8]>,
    /// The gate, as large, where there is one.
    pub gate: Option<Weights<&'a [u8]>>,
    /// The way down, `[width, n_ff]`.
    pub down: Weights<&'a [u8]>,
}

/// The FFN of some experts on their rows.
pub struct ExpertsJob<'a> {
    /// Rows that the experts read.
    pub x: ActRows<'a>,
    /// The experts that have rows.
    pub runs: &'a [ExpertRun<'a>],
    /// Activation between the up and down matrices. It runs on one thread for each run.
    pub between: &'a Between<'a>,
    /// Outputs of the up matrices, `[n_pairs, n_ff]`.
    pub up: &'a mut [f32],
    /// Outputs of the gate matrices, of the same size; empty where there is no gate.
    pub gate: &'a mut [f32],
    /// `[n_pairs, width]`.
    pub out: &'a mut [f32],
}

/// A part of an expert's matrix.
struct Part {
    run: usize,
    of: Of,
    panels: Range<usize>,
}

/// The matrices of an expert.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Up,
    Gate,
    Down,
}

/// Progress of one expert.
#[derive(Default)]
struct Progress {
    /// Parts of its ways in that are not computed yet.
    left: AtomicUsize,
    /// Whether the input of the down matrix is complete.
    is_ready: AtomicBool,
    /// Forms of the down matrix's input that its product reads.
    forms: Derived,
}

/// Data that threads share while they work.
struct Work<'a> {
    compute: &'a Compute,
    x: ActRows<'a>,
    runs: &'a [ExpertRun<'a>],
    between: &'a Between<'a>,
    /// Outputs of the up and of the gate matrices.
    inner: [Rows<'a, f32>; 2],
    out: Rows<'a, f32>,
    progress: Vec<Progress>,
    /// Whether a thread panicked. Results that other threads wait for are then never complete.
    is_broken: AtomicBool,
}

/// Says so when its thread panics.
struct Warn<'a>(&'a AtomicBool);

impl Drop for Warn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

impl Compute {
    /// Whether [`Compute::run_experts`] is made for runs of so many rows: for more of them products lay rows out in slices, and
    /// steps are so long that meeting between them costs nothing.
    pub fn runs_experts_whole(&self, most_rows: usize) -> bool {
        most_rows < MANY_ROWS
    }

    /// Computes what experts make of their rows.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn run_experts(&self, job: ExpertsJob<'_>) {
        let ExpertsJob { x, runs, between, up, gate, out } = job;
        let Some(first) = runs.first() else { return };
        let [n_ff, width] = [first.up.rows, first.down.rows];
        check(&x, runs, up.len(), gate.len(), out.len());
        for run in runs {
            let ways_in = [Of::Up, Of::Gate].into_iter().filter_map(|of| run.panels(of));
            ways_in.for_each(|w| x.prepare(self, w));
        }
        let threads = self.pool().threads();
        let parts = |ways: &[Of]| parts_of(runs, ways, threads);
        let (parts_in, parts_out) = (parts(&[Of::Up, Of::Gate]), parts(&[Of::Down]));
        let progress = (0..runs.len()).map(|run| {
            let left = parts_in.iter().filter(|part| part.run == run).count();
            Progress { left: left.into(), ..Progress::default() }
        });
        let work = Work {
            compute: self,
            x,
            runs,
            between,
            inner: [Rows::new(up, n_ff), Rows::new(gate, n_ff)],
            out: Rows::new(out, width),
            progress: progress.collect(),
            is_broken: AtomicBool::new(false),
        };
        let shares = [Shares::of(threads), Shares::of(threads)];
        let deals = [&parts_in, &parts_out].map(|parts| Deal::new(0, parts.len()));
        self.pool().run(threads, &|_, thread| {
            let _warn = Warn(&work.is_broken);
            let mut ways_in = shares[0].claims(deals[0], thread);
            while let Some(part) = ways_in.next() {
                work.way_in(&parts_in[part]);
            }
            let mut ways_out = shares[1].claims(deals[1], thread);
            while let Some(part) = ways_out.next() {
                work.way_out(&parts_out[part]);
            }
        });
    }
}

impl<'a> ExpertRun<'a> {
    fn panels(&self, of: Of) -> Option<Panels<'a>> {
        match of {
            Of::Up => Some(self.up),
            Of::Gate => self.gate,
            Of::Down => Some(self.down),
        }
        .map(Panels::of)
    }
}

fn check(x: &ActRows<'_>, runs: &[ExpertRun<'_>], up: usize, gate: usize, out: usize) {
    let [n_ff, width] = [runs[0].up.rows, runs[0].down.rows];
    let mut end = 0;
    for run in runs {
        assert!(run.rows.end <= x.n_rows(), "experts: rows");
        assert_eq!(run.rows.len(), run.pairs.len(), "experts: rows and pairs");
        assert!(run.pairs.start >= end, "experts: pairs one after the other");
        end = run.pairs.end;
        let ways_in = [Some(run.up), run.gate].into_iter().flatten();
        ways_in.for_each(|w| assert_eq!([w.rows, w.cols], [n_ff, x.cols()], "experts: in"));
        assert_eq!([run.down.rows, run.down.cols], [width, n_ff], "experts: out");
        assert_eq!(run.gate.is_some(), gate > 0, "experts: gates");
    }
    assert!(end * n_ff <= up && (gate == 0 || gate == up), "experts: values of the ways in");
    assert!(end * width <= out, "experts: values of the way out");
}

/// Parts of these matrices of all experts, in the order in which they lie.
fn parts_of(runs: &[ExpertRun<'_>], ways: &[Of], threads: usize) -> Vec<Part> {
    let mut matrices = Vec::new();
    for (run, of_run) in runs.iter().enumerate() {
        let found = ways.iter().filter_map(|of| Some((*of, of_run.panels(*of)?)));
        matrices
            .extend(found.map(|(of, w)| (run, of, w.n_panels(), panel_cost(w, of_run.rows.len()))));
    }
    let total: usize = matrices.iter().map(|(_, _, n_panels, cost)| n_panels * cost).sum();
    let target = (total / (threads * CHUNKS_PER_THREAD)).max(MIN_CHUNK_COST);
    let mut parts = Vec::new();
    for (run, of, n_panels, cost) in matrices {
        let at_once = (target / cost.max(1)).clamp(1, n_panels.max(1));
        let starts = (0..n_panels).step_by(at_once);
        parts.extend(starts.map(|start| {
            let panels = start..(start + at_once).min(n_panels);
            Part { run, of, panels }
        }));
    }
    parts
}

impl Work<'_> {
    fn way_in(&self, part: &Part) {
        let run = &self.runs[part.run];
        let Some(w) = run.panels(part.of) else { return };
        let inner = &self.inner[usize::from(part.of == Of::Gate)];
        self.product(w, &self.x, part, run.rows.clone(), inner.start_of(run.pairs.start));
        let progress = &self.progress[part.run];
        // Releases what this part wrote, and for the last part acquires what the others did.
        if progress.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.turn(part.run);
            progress.is_ready.store(true, Ordering::Release);
        }
    }

    /// Makes what goes down of what came up.
    fn turn(&self, index: usize) {
        let run = &self.runs[index];
        let [up, gate] = &self.inner;
        let n_gate = if run.gate.is_some() { run.pairs.clone() } else { 0..0 };
        // SAFETY: all parts that write these rows are done, nobody reads them before the expert is ready, and no other expert has
        // them (checked).
        let (up, gate) = unsafe { (up.rows(run.pairs.clone()), gate.rows(n_gate)) };
        (self.between)(index, gate, up);
        self.goes_down(index).prepare(self.compute, Panels::of(run.down));
    }

    /// Input of the down matrix. It is complete and does not change any more.
    fn goes_down(&self, index: usize) -> ActRows<'_> {
        let run = &self.runs[index];
        // SAFETY: it is called by the thread that made it, when it was made, and by those that saw that the expert is ready.
        let rows = unsafe { self.inner[0].read(run.pairs.clone()) };
        ActRows::new(rows, run.down.cols, &self.progress[index].forms)
    }

    fn way_out(&self, part: &Part) {
        let run = &self.runs[part.run];
        let mut turns = 0u32;
        while !self.progress[part.run].is_ready.load(Ordering::Acquire) {
            if self.is_broken.load(Ordering::Acquire) {
                return;
            }
            turns = turns.saturating_add(1);
            if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let x = self.goes_down(part.run);
        let rows = 0..run.pairs.len();
        self.product(Panels::of(run.down), &x, part, rows, self.out.start_of(run.pairs.start));
    }

    /// The product of some panels of `w` with rows of `x`, to rows from `start` on.
    fn product(
        &self,
        w: Panels<'_>,
        x: &ActRows<'_>,
        part: &Part,
        rows: Range<usize>,
        start: *mut f32,
    ) {
        let (first_row, n_rows, cols) = (rows.start, rows.len(), w.rows);
        let out = OutMatrix { start, first_row, n_rows, cols, owner: PhantomData };
        self.compute.kernels().multiply(&MatmulChunk {
            w,
            x,
            panels: part.panels.clone(),
            rows,
            n_rows,
            out,
        });
    }
}
