//! Routing: which experts rows use, chosen on the device.

use brigade_shapes::{ChooseBy, ExpertChoice, ExpertWeights, LEAST_WEIGHT_SUM};
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::ops::products::expert_work::{ExpertWork, PairLists, Rows, room};
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};
use crate::transfer::buffer::GpuBuffer;

static CHOOSE: Shader = shader!("choose_experts");

/// Most experts that are chosen from, and most that a row uses: what shared memory of every device has room for.
const MAX_EXPERTS: usize = 1024;

/// Experts of rows, in lists on the device, with the [pairs](ExpertWork) of each expert.
///
/// A row and one of its experts are a pair. Pairs are sorted by expert, and those of an expert by row. Kernels alone write these
/// lists: their numbers are below what they count.
#[derive(Debug)]
pub struct ExpertRoutes {
    lists: GpuBuffer,
    n_used: usize,
    work: ExpertWork,
}

/// The lists of [`ExpertRoutes`], each with a word for each pair, by their places.
#[derive(Clone, Copy)]
enum List {
    Ids = 0,
    Weights = 1,
    Pairs = 2,
    Experts = 3,
    PairWeights = 4,
}

/// Number of lists.
const LISTS: usize = 5;

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct ChoosePush {
    probs: u64,
    bias: u64,
    known: u64,
    ids: u64,
    weights: u64,
    n_rows: u32,
    n_expert: u32,
    n_used: u32,
    n_groups: u32,
    n_open: u32,
    per_group: u32,
    scale: f32,
    least_sum: f32,
}

impl Gpu {
    /// Chooses experts for each row of `probs` (`[n_rows, n_expert]`), what a router gives each, and sorts rows by expert.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where the device has no room for the lists.
    ///
    /// # Panics
    /// If shapes disagree, or the choice is more than [`Gpu::can_route`].
    pub fn route(
        &self,
        choice: &ExpertChoice<'_, Span<'_>>,
        probs: Span<'_>,
    ) -> Result<ExpertRoutes, GpuError> {
        let n = probs.values();
        assert!(n.is_multiple_of(choice.n_expert.max(1)), "route: {n} values of {choice:?}");
        let n_rows = n / choice.n_expert.max(1);
        check(choice, n_rows);
        let mut routes = self.routes(n_rows, choice.n_used, choice.n_working())?;
        if n_rows > 0 {
            self.choose_experts(choice, probs, &mut routes);
            if let ExpertWeights::Softmax(scale) = choice.weights {
                self.softmax(routes.list_mut(List::Weights), choice.n_used);
                self.scale(routes.list_mut(List::Weights), scale);
            }
            let address = |list| routes.list(list).address();
            let lists = PairLists {
                ids: address(List::Ids),
                weights: address(List::Weights),
                pairs: address(List::Pairs),
                experts: address(List::Experts),
                pair_weights: address(List::PairWeights),
            };
            // SAFETY: all lists have a word for each pair, and are new.
            unsafe { self.sort_pairs(&routes.work, choice.n_used, &lists, Rows::All) };
        }
        Ok(routes)
    }

    /// The work for some of the rows that were routed, those numbered `rows`: their pairs, sorted by themselves. The rows that it
    /// lists are pairs of `routes`, as whose rows activations lie there.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where the device has no room for the lists.
    ///
    /// # Panics
    /// If so many rows were not routed.
    pub fn work_of_rows(
        &self,
        routes: &ExpertRoutes,
        rows: Range<usize>,
    ) -> Result<ExpertWork, GpuError> {
        let (n, n_used) = (rows.len(), routes.n_used);
        assert!(rows.end <= routes.n_rows(), "work_of_rows: {rows:?} of {}", routes.n_rows());
        let n_expert = routes.work.n_expert();
        let work = self.expert_work(n, routes.n_pairs(), n * n_used, n_expert)?;
        let first = 4 * rows.start * n_used;
        let part = |list| routes.list(list).part(first..first + 4 * work.n_pairs()).address();
        let lists =
            PairLists { ids: part(List::Ids), pairs: part(List::Pairs), ..PairLists::default() };
        // SAFETY: both lists have a word for each of these pairs; numbers of pairs are below the count of all.
        unsafe { self.sort_pairs(&work, n_used, &lists, Rows::Some) };
        Ok(work)
    }

    /// Allocates the lists of a routing.
    fn routes(
        &self,
        n_rows: usize,
        n_used: usize,
        n_expert: usize,
    ) -> Result<ExpertRoutes, GpuError> {
        let n_pairs = count(n_rows * n_used) as usize;
        let lists = self.buffer(4 * LISTS * n_pairs, Purpose::Activations)?;
        let work = self.expert_work(n_rows, n_rows, n_pairs, n_expert)?;
        Ok(ExpertRoutes { lists, n_used, work })
    }

    fn choose_experts(
        &self,
        choice: &ExpertChoice<'_, Span<'_>>,
        probs: Span<'_>,
        routes: &mut ExpertRoutes,
    ) {
        let ExpertChoice { n_expert, n_used, by, weights } = *choice;
        let (weighing, scale) = match weights {
            ExpertWeights::Softmax(_) => (0, 1.0),
            ExpertWeights::Scaled(scale) => (1, scale),
            ExpertWeights::Normed(scale) => (2, scale),
        };
        let mut push = ChoosePush {
            probs: probs.address(),
            ids: routes.list(List::Ids).address(),
            weights: routes.list(List::Weights).address(),
            n_rows: count(routes.n_rows()),
            n_expert: count(n_expert),
            n_used: count(n_used),
            per_group: 1,
            scale,
            least_sum: LEAST_WEIGHT_SUM,
            ..ChoosePush::default()
        };
        match by {
            ChooseBy::Score { bias, groups } => {
                let fits = bias.is_none_or(|bias| bias.values() == n_expert);
                assert!(fits, "route: a bias for each expert");
                push.bias = bias.map_or(0, |bias| bias.address());
                let groups = groups.map_or([0; 2], |groups| [groups.count, groups.used]);
                [push.n_groups, push.n_open] = groups.map(count);
            }
            ChooseBy::GroupsOfBest(per_group) => push.per_group = count(per_group),
            ChooseBy::Known(known) => {
                push.known = self.upload(bytemuck::cast_slice(known)).address();
            }
        }
        let constants = [
            u32::from(push.known != 0),
            weighing,
            u32::from(push.bias != 0),
            room(n_expert),
            room(n_used),
        ];
        // SAFETY: the kernel reads the rows of `probs`, `n_expert` values of the bias and `n_used` known numbers for each row
        // (checked); experts that it chooses or that are known are below `n_expert`. It writes the first two of the lists.
        // Its shared memory has room for all experts of a row.
        unsafe { self.dispatch(Order::After, &CHOOSE, &constants, &push, lines(routes.n_rows())) };
    }
}

impl ExpertRoutes {
    /// Pairs of a row and one of its experts.
    pub fn n_pairs(&self) -> usize {
        self.work.n_pairs()
    }

    /// Rows that were routed.
    pub fn n_rows(&self) -> usize {
        self.work.n_rows()
    }

    /// The pairs of each expert. The rows that it lists are those that were routed.
    pub fn work(&self) -> &ExpertWork {
        &self.work
    }

    /// The experts of each row in their order, `[n_rows, n_used]`, u32.
    pub fn ids(&self) -> Span<'_> {
        self.list(List::Ids)
    }

    /// Weights of these experts, `[n_rows, n_used]`.
    pub fn weights(&self) -> Span<'_> {
        self.list(List::Weights)
    }

    /// Pairs of these experts, `[n_rows, n_used]`, u32.
    pub fn pairs(&self) -> Span<'_> {
        self.list(List::Pairs)
    }

    /// The row of each pair, u32.
    pub fn rows(&self) -> Span<'_> {
        self.work.rows()
    }

    /// The expert of each pair, u32.
    pub fn experts(&self) -> Span<'_> {
        self.list(List::Experts)
    }

    /// The weight of each pair.
    pub fn pair_weights(&self) -> Span<'_> {
        self.list(List::PairWeights)
    }

    /// Buffer with all lists.
    pub(super) fn lists(&self) -> &GpuBuffer {
        &self.lists
    }

    /// The experts and the weights of each row, `[n_rows, n_used]` both, for the host: waits for the device.
    pub fn on_host(&self) -> (&[u32], &[f32]) {
        let (ids, rest) = self.lists.bytes().split_at(4 * self.n_pairs());
        (bytemuck::cast_slice(ids), bytemuck::cast_slice(&rest[..ids.len()]))
    }

    /// The experts of each row and behind them their weights, as [`ExpertRoutes::on_host`] has them.
    pub fn chosen(&self) -> Span<'_> {
        self.lists.span().part(0..2 * 4 * self.n_pairs())
    }

    fn list(&self, list: List) -> Span<'_> {
        self.lists.span().part(self.range(list))
    }

    fn list_mut(&mut self, list: List) -> SpanMut<'_> {
        let range = self.range(list);
        let (_, from) = self.lists.span_mut().split_at(range.start);
        from.split_at(range.len()).0
    }

    fn range(&self, list: List) -> Range<usize> {
        let len = 4 * self.n_pairs();
        list as usize * len..(list as usize + 1) * len
    }
}

impl Gpu {
    /// Whether a device can choose so.
    pub fn can_route<B>(choice: &ExpertChoice<'_, B>) -> bool {
        choice.n_expert <= MAX_EXPERTS && choice.n_used <= MAX_EXPERTS
    }
}

/// # Panics
/// If sizes disagree.
fn check(choice: &ExpertChoice<'_, Span<'_>>, n_rows: usize) {
    let ExpertChoice { n_expert, n_used, by, .. } = *choice;
    assert!(Gpu::can_route(choice) && n_expert > 0 && n_used > 0, "route: {n_used} of {n_expert}");
    let groups = match by {
        ChooseBy::Score { groups, .. } => groups.map(|groups| groups.count),
        ChooseBy::GroupsOfBest(per_group) => Some(per_group),
        ChooseBy::Known(known) => {
            return assert_eq!(known.len(), n_rows * n_used, "route: known experts");
        }
    };
    assert!(n_used <= n_expert, "route: {n_used} of {n_expert}");
    let whole = groups.is_none_or(|n| n > 0 && n_expert.is_multiple_of(n));
    assert!(whole, "route: {n_expert} experts in groups");
}
