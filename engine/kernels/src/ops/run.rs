//! All ops by their name.

use brigade_ops::{Choose, ChooseBlocks, CopySlot, DecayFactors, Host, Op, PoolKeys};

use super::index::blocks::BlockIndex;
use super::index::positions::Index;
use super::kv::pooling::Pooling;
use crate::compute::Compute;

impl Compute {
    /// Runs an op on the host.
    ///
    /// # Panics
    /// If its shapes disagree; and for products of all experts in one, which the host has not.
    pub fn run(&self, op: Op<'_, Host>) {
        match op {
            Op::Products(op) => self.products(op),
            Op::Route(op) => self.route(op),
            Op::RowsOfPairs(op) => self.rows_of_pairs(op),
            Op::WeighPairs(op) => self.weigh_pairs(op),
            Op::AddExpertBiases(op) => self.add_expert_biases(op),
            Op::AddPairs(op) => self.add_pairs(op),
            Op::AddToPairs(op) => self.add_to_pairs(op),
            Op::ExpertProducts(_) => panic!("the host multiplies expert by expert"),
            Op::Copy(op) => op.to.copy_from_slice(op.from),
            Op::CopySlot(CopySlot { slots, per_slot, from, to }) => {
                slots.copy_within(from * per_slot..(from + 1) * per_slot, to * per_slot);
            }
            Op::Greatest(op) => self.greatest(op),
            Op::FewGreatest(op) => self.few_greatest(op),
            Op::HeadsApart(op) => self.heads_apart(op.from, op.n_head, op.columns, op.to),
            Op::HeadsTogether(op) => self.heads_together(op.from, op.n_head, op.columns, op.to),
            Op::FillColumns(op) => self.fill_columns(op),
            Op::RepeatRows(op) => self.repeat_rows(op),
            Op::GatherRows(op) => self.gather_rows(op),
            Op::AddPicked(op) => self.add_picked(op),
            Op::CopyParts(op) => self.copy_parts(op),
            Op::HalvesToPairs(op) => self.halves_to_pairs(op),
            Op::Rope(op) => self.rotate(op),
            Op::Map(op) => self.run_map(op),
            Op::Combine(op) => self.run_combine(op),
            Op::Lerp(op) => self.lerp(op.x, op.to, op.share),
            Op::DecayFactors(op) => self.run_decay_factors(op),
            Op::RmsNorm(op) => self.rms_norm(op.x, op.weight, op.eps, op.out),
            Op::Norm(op) => self.run_norm(op),
            Op::KvWrite(op) => self.kv_write(op.layout, op.pool, op.parts, &op.rows),
            Op::WriteEntries(op) => self.write_entries(op),
            Op::ChooseEntries(op) => self.choose_entries(op),
            Op::AttendEntries(op) => self.attend_entries(op),
            Op::Choose(op) => self.run_choose(op),
            Op::ChooseBlocks(op) => self.run_choose_blocks(op),
            Op::ChooseByMeans(op) => self.choose_by_means(op),
            Op::PoolKeys(op) => self.run_pool_keys(op),
            Op::PoolGated(op) => self.pool_gated(op),
            Op::Attend(op) => self.attend(&op.over, op.q, op.out),
            Op::AttendChosen(op) => self.run_attend_chosen(op),
            Op::Weigh(op) => self.weigh(op),
            Op::AttendDepth(op) => self.attend_depth(&op.sources, op.score, op.eps, op.out),
            Op::StreamWeights(op) => self.stream_weights(op.shape, op.base, op.scale, op.weights),
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
    }

    fn run_decay_factors(&self, op: DecayFactors<'_, Host>) {
        match op.bound {
            None => self.decay_factors(op.x, op.bias, op.rates),
            Some(bound) => self.bounded_decay_factors(op.x, op.bias, op.rates, bound),
        }
    }

    fn run_choose(&self, op: Choose<'_, Host>) {
        op.check();
        let Choose { layout, pool, parts, n_head, sizes, q, weights, out } = op;
        self.choose(&Index { layout, pool, parts, n_head, sizes }, q, weights, out);
    }

    fn run_choose_blocks(&self, op: ChooseBlocks<'_, Host>) {
        op.check();
        let ChooseBlocks { layout, pool, parts, sizes, q, out } = op;
        match self.choose_blocks(&BlockIndex { layout, pool, parts, sizes }, q) {
            Some(chosen) => out.copy_from_slice(&chosen),
            None => out.fill(0),
        }
    }

    fn run_pool_keys(&self, op: PoolKeys<'_, Host>) {
        op.check();
        let (positions, bias) = (op.positions, &op.bias[..]);
        self.pool_keys(op.layout, op.pool, op.parts, Pooling { positions, bias });
    }
}
