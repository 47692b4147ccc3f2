//! All ops by their name.

use brigade_ops::{Choose, ChooseBlocks, DecayFactors, Op, Place};

use super::block_index::BlockIndexSpans;
use super::index::{IndexSpans, MAX_INDEX_HEADS};
use super::pooling::PoolingSpans;
use super::weigh::WeighedSpans;

use crate::device::Gpu;
use crate::error::GpuError;
use crate::operands::OnGpu;

impl Gpu {
    /// Whether it has a kernel for an op: it may lack what computes in f64, and has room for so many heads of an index.
    pub fn supports<P: Place>(&self, op: &Op<'_, P>) -> bool {
        match op {
            Op::KeepAbove(op) => self.facts().float64 && op.d > 1,
            Op::Choose(op) => op.n_head <= MAX_INDEX_HEADS,
            Op::MatchMagnitudes(_) | Op::ProductRoots(_) => self.facts().float64,
            _ => true,
        }
    }

    /// Records an op.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where it needs memory of its own, and the device has no room.
    ///
    /// # Panics
    /// If its shapes disagree.
    pub fn run(&self, op: Op<'_, OnGpu>) -> Result<(), GpuError> {
        match op {
            Op::HeadsApart(op) => self.heads_apart(op.from, op.n_head, op.columns, op.to),
            Op::HeadsTogether(op) => self.heads_together(op.from, op.n_head, op.columns, op.to),
            Op::FillColumns(op) => self.fill_columns(op.x, op.columns, op.value),
            Op::RepeatRows(op) => self.repeat_rows(op.x, op.d, op.times, op.out),
            Op::GatherRows(op) => self.gather_rows(op.x, op.d, op.picked, op.out),
            Op::Map(op) => self.run_map(op),
            Op::Combine(op) => self.run_combine(op),
            Op::Lerp(op) => self.lerp(op.x, op.to, op.share),
            Op::DecayFactors(DecayFactors { x, bias, rates, bound: None }) => {
                self.decay_factors(x, bias, rates);
            }
            Op::DecayFactors(DecayFactors { x, bias, rates, bound: Some(bound) }) => {
                self.bounded_decay_factors(x, bias, rates, bound);
            }
            Op::RmsNorm(op) => self.rms_norm(op.x, op.weight, op.eps, op.out),
            Op::Norm(op) => self.run_norm(op),
            Op::KvWrite(op) => self.kv_write(op.layout, op.pool, op.parts, &op.rows),
            Op::WriteEntries(op) => self.write_entries(op),
            Op::Choose(op) => {
                let Choose { layout, pool, parts, n_head, sizes, q, weights, out } = op;
                let index = IndexSpans { layout, pool, parts, n_head, sizes };
                return self.choose(&index, q, weights, out);
            }
            Op::ChooseBlocks(op) => {
                op.check();
                let ChooseBlocks { layout, pool, parts, sizes, q, mut out } = op;
                let index = BlockIndexSpans { layout, pool, parts, sizes };
                if !self.choose_blocks(&index, q, out.again())? {
                    self.fill(out, 0.0);
                }
            }
            Op::PoolKeys(op) => {
                let (positions, bias) = (op.positions, self.vector(op.bias));
                let pooling = PoolingSpans { positions, bias };
                return self.pool_keys(op.layout, op.pool, op.parts, pooling);
            }
            Op::Attend(op) => return self.attend(&op.over, op.q, op.out),
            Op::AttendChosen(op) => return self.attend_chosen(op),
            Op::Weigh(op) => {
                let sources = op.sources.iter().zip(&op.firsts);
                let sources = sources.map(|(x, first)| x.part(4 * first..x.len()));
                let sources = &sources.collect::<Vec<_>>()[..];
                let (stride, weights, at) = (op.stride, op.weights, op.at);
                let of = WeighedSpans { sources, stride, weights, at };
                self.weigh(op.out, op.d, op.start, &of);
            }
            Op::AttendDepth(op) => {
                self.attend_depth(&op.sources, self.vector(op.score), op.eps, op.out);
            }
            Op::StreamWeights(op) => {
                let [base, scale] = [op.base, op.scale].map(|values| self.vector(values));
                self.stream_weights(op.shape, base, scale, op.weights);
            }
            Op::MatchMagnitudes(op) => self.match_magnitudes(op.x, op.like, op.d),
            Op::KeepAbove(op) => self.keep_above(op.x, op.d, op.deviations),
            Op::ProductRoots(op) => {
                self.product_roots((op.x, op.y), op.d, (op.divisor, op.least), op.out);
            }
            Op::DilatedRows(op) => {
                let operands = (op.states, op.x, self.vector(op.weight));
                self.dilated_conv(op.conv, op.parts, operands, op.out);
            }
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
}
