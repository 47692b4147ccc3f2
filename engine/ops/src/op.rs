//! All ops as one type, so that a device is one object with few methods.

use crate::carry::Carry;
use crate::place::{Anywhere, Place};
use crate::{
    attention, entries, experts, greatest, index, moves, pooling, products, rope, rowwise, scan,
    streams,
};

/// The operands of one op, as the caller gives them.
pub trait Operands<'a>: Into<Op<'a, Anywhere>> {
    /// The op with its operands at another place: as [`Op::carried`], where it is known which op it is.
    fn at<'b, B: Place>(self, by: &mut impl Carry<'a, 'b, Anywhere, B>) -> Op<'b, B>
    where
        'a: 'b;
}

/// Writes the type of all ops, and what each of them needs: how it comes from its operands, its name, where it writes, and its
/// way to another place.
macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident($($operands:ident)::+),)*) => {
        /// An op for a device, with its operands at the place `P`. The type of the operands documents the meaning.
        pub enum Op<'a, P: Place> {
            $($(#[$doc])* $op($($operands)::+<'a, P>),)*
        }

        $(impl<'a, P: Place> From<$($operands)::+<'a, P>> for Op<'a, P> {
            #[inline]
            fn from(operands: $($operands)::+<'a, P>) -> Self {
                Self::$op(operands)
            }
        })*

        $(impl<'a> Operands<'a> for $($operands)::+<'a, Anywhere> {
            #[inline]
            fn at<'b, B: Place>(self, by: &mut impl Carry<'a, 'b, Anywhere, B>) -> Op<'b, B>
            where
                'a: 'b,
            {
                Op::$op(self.carried(by))
            }
        })*

        impl<'a, A: Place> Op<'a, A> {
            /// Name of the op, for messages and counts.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$op(_) => stringify!($op),)*
                }
            }

            /// The same at another place.
            pub fn carried<'b, B: Place>(self, by: &mut impl Carry<'a, 'b, A, B>) -> Op<'b, B>
            where
                'a: 'b,
            {
                match self {
                    $(Self::$op(operands) => Op::$op(operands.carried(by)),)*
                }
            }
        }

        impl Op<'_, Anywhere> {
            /// Whether all that it writes lies with a device.
            pub fn writes_with_device(&self) -> bool {
                match self {
                    $(Self::$op(operands) => operands.writes_with_device(),)*
                }
            }
        }
    };
}

ops! {
    /// Products of rows with weights.
    Products(products::Products),
    /// A choice of experts.
    Route(experts::Route),
    /// The row of each pair of a row and an expert.
    RowsOfPairs(experts::RowsOfPairs),
    /// Rows of pairs by their weights.
    WeighPairs(experts::WeighPairs),
    /// Biases of experts, added by pair.
    AddExpertBiases(experts::AddExpertBiases),
    /// Sums of the pairs of each row.
    AddPairs(experts::AddPairs),
    /// Rows for some of the pairs, added to those of all pairs.
    AddToPairs(experts::AddToPairs),
    /// Products of rows with experts.
    ExpertProducts(experts::ExpertProducts),
    /// A copy of values.
    Copy(moves::Copy),
    /// A slot to another.
    CopySlot(moves::CopySlot),
    /// The greatest value of each row.
    Greatest(greatest::Greatest),
    /// The greatest values of each row.
    FewGreatest(greatest::FewGreatest),
    /// Columns of heads to rows of their own.
    HeadsApart(moves::HeadsApart),
    /// Rows of heads to columns.
    HeadsTogether(moves::HeadsTogether),
    /// One value to columns.
    FillColumns(moves::FillColumns),
    /// Each row several times.
    RepeatRows(moves::RepeatRows),
    /// Rows by their numbers.
    GatherRows(moves::GatherRows),
    /// Rows of a table by their numbers, added to others.
    AddPicked(moves::AddPicked),
    /// Runs of values between places of any distance.
    CopyParts(moves::CopyParts),
    /// Halves of rows to pairs.
    HalvesToPairs(moves::HalvesToPairs),
    /// Rotary positions of heads.
    Rope(rope::Rope),
    /// A function of each value.
    Map(rowwise::Map),
    /// A function of each value and another.
    Combine(rowwise::Combine),
    /// A step from rows towards others.
    Lerp(rowwise::Lerp),
    /// Decay factors of a gate.
    DecayFactors(rowwise::DecayFactors),
    /// RMS norm to another place.
    RmsNorm(rowwise::RmsNorm),
    /// A norm in place.
    Norm(rowwise::Norm),
    /// Keys and values to their pages.
    KvWrite(attention::KvWrite),
    /// Entries to their pages.
    WriteEntries(entries::WriteEntries),
    /// Entries by an index.
    ChooseEntries(entries::ChooseEntries),
    /// Attention to compressed entries.
    AttendEntries(entries::AttendEntries),
    /// Pools by an index.
    Choose(index::Choose),
    /// Blocks by an index.
    ChooseBlocks(index::ChooseBlocks),
    /// Blocks by the means of their keys.
    ChooseByMeans(index::ChooseByMeans),
    /// Index keys of pools that become complete.
    PoolKeys(index::PoolKeys),
    /// Rows of pools to one each.
    PoolGated(pooling::PoolGated),
    /// Attention over pages of keys and values.
    Attend(attention::Attend),
    /// Attention to chosen positions.
    AttendChosen(attention::AttendChosen),
    /// Sums of sources by weights.
    Weigh(streams::Weigh),
    /// Attention over earlier layers' rows of a token.
    AttendDepth(streams::AttendDepth),
    /// Mixing weights of residual streams.
    StreamWeights(streams::StreamWeights),
    /// Magnitudes of other rows.
    MatchMagnitudes(streams::MatchMagnitudes),
    /// Sparsity by a threshold of deviations above a row's mean.
    KeepAbove(streams::KeepAbove),
    /// Roots of products of rows.
    ProductRoots(streams::ProductRoots),
    /// A convolution with taps apart.
    DilatedRows(streams::DilatedRows),
    /// The last inputs of that convolution, kept in slots.
    KeepLastRows(streams::KeepLastRows),
    /// A causal convolution of each channel.
    Conv(scan::ConvRows),
    /// The recurrence of Mamba-2.
    Ssd(scan::SsdScan),
    /// The gated delta rule.
    Delta(scan::DeltaScan),
    /// The selective scan of Mamba.
    Mamba(scan::MambaScan),
    /// Decay factors of RWKV-6.
    Wkv6Decay(scan::Wkv6Decay),
    /// The recurrence of RWKV-6.
    Wkv6(scan::Wkv6),
    /// Inputs of RWKV-7's recurrence, from projections.
    Wkv7Prepare(scan::Wkv7Prepare),
    /// The recurrence of RWKV-7.
    Wkv7(scan::Wkv7),
    /// The part of RWKV-7's output that does not depend on the state.
    Wkv7Bonus(scan::Wkv7Bonus),
}
