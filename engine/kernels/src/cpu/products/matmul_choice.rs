//! The choice between two loops for a middling number of rows: tiles that take a panel whole
//! ([`super::matmul_few`]), or slices of columns ([`super::matmul_many`]). Both give the same bits, and the quicker
//! one depends on the processor. Where 512 bits pass in two halves, unpacking a slice pays from about a hundred rows
//! on. Where they pass at once, it pays from a dozen on.
//!
//! So the first chunks of such a size are computed both ways, and the way that most of them were quicker goes from then on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use brigade_quant::GgmlType;

use super::matmul_many::MANY_ROWS;
use crate::tiles::products::matmul::MatmulChunk;

/// Rows from which on slices are quicker on any processor.
const SURELY_MANY_ROWS: usize = 96;

/// Chunks that are computed both ways: odd, so that one of them wins.
const VOTES: u32 = 31;

/// Computes a chunk: a pointer, so that choosing is compiled once.
pub(super) type ComputeChunk = fn(&MatmulChunk<'_>);

/// Votes of the chunks on the faster way.
#[derive(Debug, Default)]
pub(super) struct Ways {
    few: AtomicU32,
    many: AtomicU32,
}

/// Numbers of types of weights are below this.
const TYPES: usize = 64;

/// The votes of this process, for each type of weights. One set is enough: a process computes with one table of
/// kernels.
static WAYS: [Ways; TYPES] =
    [const { Ways { few: AtomicU32::new(0), many: AtomicU32::new(0) } }; TYPES];

/// The votes for a type of weights.
pub(super) fn of(ty: GgmlType) -> &'static Ways {
    &WAYS[ty as usize % TYPES]
}

/// A way to compute a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Few,
    Many,
    /// Both ways; the slices first if `many_first`: the first one finds less in the caches.
    Both {
        many_first: bool,
    },
}

impl Ways {
    /// Computes a chunk by `few` or by `many`, or by both.
    pub(super) fn run(&self, chunk: &MatmulChunk<'_>, few: ComputeChunk, many: ComputeChunk) {
        let time = |compute: ComputeChunk| {
            let begun = Instant::now();
            compute(chunk);
            begun.elapsed()
        };
        match self.way(chunk.rows.len()) {
            Way::Few => few(chunk),
            Way::Many => many(chunk),
            Way::Both { many_first: true } => {
                let many = time(many);
                self.vote(time(few), many);
            }
            Way::Both { many_first: false } => self.vote(time(few), time(many)),
        }
    }

    fn way(&self, n_rows: usize) -> Way {
        let votes = [&self.few, &self.many].map(|votes| votes.load(Ordering::Relaxed));
        let n: u32 = votes.iter().sum();
        match n_rows {
            ..MANY_ROWS => Way::Few,
            SURELY_MANY_ROWS.. => Way::Many,
            _ if n < VOTES => Way::Both { many_first: n % 2 == 1 },
            _ if votes[0] > votes[1] => Way::Few,
            _ => Way::Many,
        }
    }

    /// Threads that vote at once may be more than are needed; that does no harm.
    fn vote(&self, few: Duration, many: Duration) {
        let quicker = if few < many { &self.few } else { &self.many };
        quicker.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_middling_number_of_rows_goes_the_way_that_was_quicker_more_often() {
        for (few_is_quicker, chosen) in [(true, Way::Few), (false, Way::Many)] {
            let ways = Ways::default();
            let (short, long) = (Duration::from_micros(3), Duration::from_micros(5));
            for n in 0..VOTES {
                assert_eq!(ways.way(MANY_ROWS - 1), Way::Few);
                assert_eq!(ways.way(SURELY_MANY_ROWS), Way::Many);
                for n_rows in [MANY_ROWS, SURELY_MANY_ROWS - 1] {
                    assert_eq!(ways.way(n_rows), Way::Both { many_first: n % 2 == 1 });
                }
                // Some are disturbed.
                if few_is_quicker == (n % 3 > 0) {
                    ways.vote(short, long)
                } else {
                    ways.vote(long, short)
                }
            }
            assert_eq!([MANY_ROWS, SURELY_MANY_ROWS - 1].map(|n| ways.way(n)), [chosen; 2]);
        }
    }
}
