//! All ops by their name.

use brigade_ops::{
    Anywhere, Choose, ChooseBlocks, DecayFactors, Op, PoolKeys, Product, StreamWeights, Weigh,
};

use super::experts::routing::ExpertRoutes;
use super::index::blocks::BlockIndexSpans;
use super::index::positions::{IndexSpans, MAX_INDEX_HEADS};
use super::kv::pooling::PoolingSpans;
use super::rowwise::weighted_sums::WeighedSpans;

use crate::device::Gpu;
use crate::error::GpuError;
use crate::operands::OnGpu;

impl Gpu {
    /// Whether the device has a kernel for an op. Products read weights of its own memory. It may lack f64, and an
    /// index may have only so many heads.
    pub fn supports(&self, op: &Op<'_, Anywhere>) -> bool {
        match op {
            Op::Products(op) => {
                let is_there = |job: &Product<'_, Anywhere>| job.w.panels.is_with_device();
                op.jobs.iter().all(is_there)
            }
            Op::Route(op) => Self::can_route(&op.choice),
            Op::AddToPairs(op) => op.part.routing().there_as::<ExpertRoutes>().is_some(),
            Op::KeepAbove(op) => self.facts().float64 && op.d > 1,
            Op::Choose(op) => op.n_head <= MAX_INDEX_HEADS,
            Op::ChooseByMeans(op) => op.n_head <= MAX_INDEX_HEADS,
            Op::ChooseEntries(op) => op.n_head <= MAX_INDEX_HEADS,
            Op::MatchMagnitudes(_) | Op::ProductRoots(_) => self.facts().float64,
            _ => true,
        }
    }

    /// Records an op, which the device runs later.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where it needs memory of its own, and the device has no room.
    ///
    /// # Panics
    /// If its shapes disagree.
    pub fn run(&self, op: Op<'_, OnGpu>) -> Result<(), GpuError> {
        match op {
            Op::Products(op) => return self.run_products(op),
            Op::Route(op) => return self.run_route(op),
            Op::RowsOfPairs(op) => self.run_rows_of_pairs(op),
            Op::WeighPairs(op) => self.run_weigh_pairs(op),
            Op::AddExpertBiases(op) => self.run_add_expert_biases(op),
            Op::AddPairs(op) => self.run_add_pairs(op),
            Op::AddToPairs(op) => return self.run_add_to_pairs(op),
            Op::ExpertProducts(op) => return self.run_expert_products(op),
            Op::Copy(op) => self.copy(op.from, op.to),
            Op::CopySlot(op) => self.copy_slot(op.slots, op.per_slot, op.from, op.to),
            Op::Greatest(op) => return self.greatest(op),
            Op::FewGreatest(op) => self.greatest_few(op),
            Op::HeadsApart(op) => self.heads_apart(op.from, op.n_head, op.columns, op.to),
            Op::HeadsTogether(op) => self.heads_together(op.from, op.n_head, op.columns, op.to),
            Op::FillColumns(op) => self.fill_columns(op.x, op.columns, op.value),
            Op::RepeatRows(op) => self.repeat_rows(op.x, op.d, op.times, op.out),
            Op::GatherRows(op) => self.gather_rows(op.x, op.d, op.picked, op.out),
            Op::AddPicked(op) => return self.add_picked(op),
            Op::CopyParts(op) => self.copy_parts(op),
            Op::HalvesToPairs(op) => return self.halves_to_pairs(op),
            Op::Rope(op) => self.rope(op),
            Op::Map(op) => self.run_map(op),
            Op::Combine(op) => self.run_combine(op),
            Op::Lerp(op) => self.lerp(op.x, op.to, op.share),
            Op::DecayFactors(op) => self.run_decay_factors(op),
            Op::RmsNorm(op) => self.rms_norm(op.x, op.weight, op.eps, op.out),
            Op::Norm(op) => self.run_norm(op),
            Op::KvWrite(op) => self.kv_write(op.layout, op.pool, op.parts, &op.rows),
            Op::WriteEntries(op) => self.write_entries(op),
            Op::ChooseEntries(op) => return self.choose_entries(op),
            Op::AttendEntries(op) => return self.attend_entries(op),
            Op::Choose(op) => return self.run_choose(op),
            Op::ChooseBlocks(op) => return self.run_choose_blocks(op),
            Op::ChooseByMeans(op) => return self.choose_by_means(op),
            Op::PoolKeys(op) => return self.run_pool_keys(op),
            Op::PoolGated(op) => self.pool_gated(op),
            Op::Attend(op) => return self.attend(&op.over, op.q, op.out),
            Op::AttendChosen(op) => return self.attend_chosen(op),
            Op::Weigh(op) => self.run_weigh(op),
            Op::AttendDepth(op) => {
                self.attend_depth(&op.sources, self.vector(op.score), op.eps, op.out)
            }
            Op::StreamWeights(op) => self.run_stream_weights(op),
            Op::MatchMagnitudes(op) => self.match_magnitudes(op.x, op.like, op.d),
            Op::KeepAbove(op) => self.keep_above(op.x, op.d, op.deviations),
            Op::ProductRoots(op) => self.product_roots(op),
            Op::DilatedRows(op) => self.dilated_conv(op),
            Op::KeepLastRows(op) => self.keep_last_rows(op.conv, op.parts, op.states, op.x),
            Op::Conv(op) => self.conv(op),
            Op::Ssd(op) => self.ssd(op),
            Op::Delta(op) => self.delta_scan(op),
            Op::Mamba(op) => self.mamba_scan(op),
            Op::Wkv6Decay(op) => self.wkv6_decay(op),
            Op::Wkv6(op) => self.wkv6(op),
            Op::Wkv7Prepare(op) => self.wkv7_prepare(op),
            Op::Wkv7(op) => self.wkv7(op),
            Op::Wkv7Bonus(op) => self.wkv7_bonus(op),
        }
        Ok(())
    }

    fn run_decay_factors(&self, op: DecayFactors<'_, OnGpu>) {
        match op.bound {
            None => self.decay_factors(op.x, op.bias, op.rates),
            Some(bound) => self.bounded_decay_factors(op.x, op.bias, op.rates, bound),
        }
    }

    fn run_choose(&self, op: Choose<'_, OnGpu>) -> Result<(), GpuError> {
        op.check();
        let Choose { layout, pool, parts, n_head, sizes, q, weights, out } = op;
        self.choose(&IndexSpans { layout, pool, parts, n_head, sizes }, q, weights, out)
    }

    fn run_choose_blocks(&self, op: ChooseBlocks<'_, OnGpu>) -> Result<(), GpuError> {
        op.check();
        let ChooseBlocks { layout, pool, parts, sizes, q, mut out } = op;
        let index = BlockIndexSpans { layout, pool, parts, sizes };
        if !self.choose_blocks(&index, q, out.again())? {
            self.fill(out, 0.0);
        }
        Ok(())
    }

    fn run_pool_keys(&self, op: PoolKeys<'_, OnGpu>) -> Result<(), GpuError> {
        op.check();
        let (positions, bias) = (op.positions, self.vector(op.bias));
        self.pool_keys(op.layout, op.pool, op.parts, PoolingSpans { positions, bias })
    }

    fn run_weigh(&self, op: Weigh<'_, OnGpu>) {
        let sources = op.sources.iter().zip(&op.firsts);
        let sources = sources.map(|(x, first)| x.part(4 * first..x.len()));
        let sources = &sources.collect::<Vec<_>>()[..];
        let (stride, weights, at) = (op.stride, op.weights, op.at);
        self.weigh(op.out, op.d, op.start, &WeighedSpans { sources, stride, weights, at });
    }

    fn run_stream_weights(&self, op: StreamWeights<'_, OnGpu>) {
        let [base, scale] = [op.base, op.scale].map(|values| self.vector(values));
        self.stream_weights(op.shape, base, scale, op.weights);
    }
}
