//! Advice about a model that does not fit.
//!
//! For each kind of change, it finds the smallest one that suffices by itself, by planning again. Kept sequences are
//! not counted: the planner gives them up before anything else.

use std::ops::Range;

use super::capacity::{capacity, largest, wishes};
use super::cost::Costs;
use super::cuts::{self, Join};
use super::facts::{ModelFacts, WorkerFacts};
use super::units::{format_bytes, format_bytes_up};
use super::{KV_TYPE_SMALLEST, PlanSettings};

/// Fewer rows in a ubatch than this are not advised: prefill would crawl.
const LEAST_UBATCH: u32 = 32;

/// Ways to make a model fit, for people.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// Each of these suffices by itself.
    pub suffices: Vec<String>,
    /// Changes that free something but do not suffice by themselves.
    pub helps: Vec<String>,
}

/// A model, the workers on which it does not fit, and the settings that were asked for.
pub(super) struct Case<'a> {
    pub model: &'a ModelFacts,
    pub workers: &'a [WorkerFacts],
    pub settings: PlanSettings,
}

impl Case<'_> {
    /// All changes that free anything.
    pub(super) fn advice(&self) -> Advice {
        let mut advice = Advice::default();
        if let Some(memory) = self.one_more_worker() {
            let memory = format_bytes_up(memory);
            advice.suffices.push(format!("one more worker with {memory} or more"));
        }
        let ways = [self.shorter(), self.smaller_values(), self.fewer(), self.fewer_rows()];
        for (suffices, text) in ways.into_iter().flatten() {
            if suffices { advice.suffices.push(text) } else { advice.helps.push(text) }
        }
        if advice.suffices.len() <= 1 && advice.helps.len() > 1 {
            advice.suffices.extend(self.all_together());
        }
        advice.helps.push("a smaller quantisation of the model".to_owned());
        advice
    }

    /// Whether it fits in the given order of workers, with KV cache for one sequence.
    fn fits(&self) -> bool {
        let costs = Costs::new(self.model, self.workers, &self.settings);
        let least = wishes(&self.settings).least;
        let capacity = capacity(&self.settings, least, 0);
        let cost = |worker: usize, range: &Range<usize>| {
            costs.lacks(worker, range, capacity).is_none().then_some(0.0)
        };
        cuts::cheapest(self.workers.len(), costs.n_layers(), Join::Max, cost).is_some()
    }

    /// Bytes of the whole model as one stage.
    fn total(&self) -> u64 {
        let costs = Costs::new(self.model, self.workers, &self.settings);
        let least = wishes(&self.settings).least;
        costs.memory_over(1, capacity(&self.settings, least, 0))
    }

    fn with(&self, change: impl FnOnce(&mut PlanSettings)) -> Case<'_> {
        let mut settings = self.settings;
        change(&mut settings);
        Case { model: self.model, workers: self.workers, settings }
    }

    /// The memory that a change of the settings frees, for people.
    fn freed(&self, changed: &Case<'_>) -> String {
        format_bytes(self.total().saturating_sub(changed.total()))
    }

    /// Memory of the smallest worker that suffices at the line's end; the whole model as one stage surely does.
    fn one_more_worker(&self) -> Option<u64> {
        let mut workers = self.workers.to_vec();
        let speed = workers.last()?.clone();
        let (link, host, node, disk) = Default::default();
        workers.push(WorkerFacts { memory: 0, link, host, holds: 0..0, node, disk, ..speed });
        let mut fits = |memory: u64| {
            if let Some(last) = workers.last_mut() {
                last.memory = memory;
            }
            Case { model: self.model, workers: &workers, settings: self.settings }.fits()
        };
        let (mut low, mut high) = (0, self.total());
        if !fits(high) {
            return None;
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if fits(middle) { high = middle } else { low = middle }
        }
        Some(high)
    }

    fn shorter(&self) -> Option<(bool, String)> {
        let page = self.settings.block_positions;
        let pages = wishes(&self.settings).least.checked_sub(1).filter(|pages| *pages > 0)?;
        let to = |pages: u32| {
            self.with(|settings| (settings.ctx, settings.least_ctx) = (pages * page, pages * page))
        };
        if self.total() == to(1).total() {
            return None;
        }
        let most = largest(0, pages, |pages| pages == 0 || to(pages).fits());
        let case = to(most.max(1));
        let text = format!("--ctx {} (frees {} of KV cache)", case.settings.ctx, self.freed(&case));
        Some((most > 0, text))
    }

    fn smaller_values(&self) -> Option<(bool, String)> {
        let model = self.model.with_smallest_kv()?;
        let case = Case { model: &model, workers: self.workers, settings: self.settings };
        let text =
            format!("--kv-type {KV_TYPE_SMALLEST} (frees {} of KV cache)", self.freed(&case));
        Some((case.fits(), text))
    }

    fn fewer(&self) -> Option<(bool, String)> {
        let before = self.settings.max_seqs;
        let to = |n: u32| self.with(|settings| settings.max_seqs = n);
        if before < 2 || self.total() == to(1).total() {
            return None;
        }
        let most = largest(0, before - 1, |n| n == 0 || to(n).fits());
        let case = to(most.max(1));
        let (n, freed) = (case.settings.max_seqs, self.freed(&case));
        Some((most > 0, format!("--max-seqs {n} (frees {freed} of states)")))
    }

    fn fewer_rows(&self) -> Option<(bool, String)> {
        // A ubatch has a row at least for each sequence that decodes.
        let least = LEAST_UBATCH.max(self.settings.max_seqs);
        let before = self.settings.max_rows;
        if before <= least {
            return None;
        }
        let to = |n: u32| self.with(|settings| settings.max_rows = n);
        let suffices = to(least).fits();
        let rows = if suffices { largest(least, before - 1, |n| to(n).fits()) } else { least };
        let case = to(rows);
        let freed = self.freed(&case);
        Some((suffices, format!("--ubatch {rows} (frees {freed} of work memory on each worker)")))
    }

    /// The effect of all settings together, where no single one suffices.
    fn all_together(&self) -> Option<String> {
        let small = self.model.with_smallest_kv();
        let model = small.as_ref().unwrap_or(self.model);
        let mut settings = self.settings;
        settings.max_seqs = 1;
        settings.max_rows = settings.max_rows.min(LEAST_UBATCH);
        let page = settings.block_positions;
        let with = |pages: u32| {
            let settings = PlanSettings { ctx: pages * page, least_ctx: pages * page, ..settings };
            Case { model, workers: self.workers, settings }
        };
        let pages = wishes(&self.settings).least;
        let most = largest(0, pages, |pages| pages == 0 || with(pages).fits());
        let (case, rows) = (with(most.max(1)), settings.max_rows);
        let kv = small.as_ref().map_or(String::new(), |_| format!(" --kv-type {KV_TYPE_SMALLEST}"));
        let (ctx, freed) = (case.settings.ctx.min(self.settings.ctx), self.freed(&case));
        let text = format!("together --ctx {ctx}{kv} --max-seqs 1 --ubatch {rows} (frees {freed})");
        (most > 0).then_some(text)
    }
}
