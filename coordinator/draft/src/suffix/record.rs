//! The accuracy of a stream's drafts, from all sources.

/// Drafts in a row that were right after which a stream is believed to go on like that ...
const IN_A_ROW: u32 = 2;
/// ... or fewer, where the next one is so likely.
const FEWER: u32 = 1;
const LIKELY: f32 = 0.9;
/// The number of drafts after which a stream's own accuracy counts.
const ENOUGH: f32 = 8.0;
const SHARE: f32 = 0.8;
/// Drafts that the share reaches back to.
const MEMORY: f32 = 32.0;

/// The record of one stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    /// Drafts that were right since the last wrong one.
    in_a_row: u32,
    /// Share of right ones, and how many are in it.
    share: f32,
    n: f32,
}

impl Record {
    /// A drafted token was right, or not.
    pub fn judged(&mut self, right: bool) {
        self.in_a_row = if right { self.in_a_row + 1 } else { 0 };
        self.n = (self.n + 1.0).min(MEMORY);
        self.share += (f32::from(u8::from(right)) - self.share) / self.n;
    }

    /// Whether a draft that is right with probability `odds` is believed.
    pub fn believes(&self, odds: f32) -> bool {
        let few = self.in_a_row >= FEWER && odds >= LIKELY;
        few || self.in_a_row >= IN_A_ROW || (self.n >= ENOUGH && self.share >= SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_believed_once_it_has_shown_it() {
        let mut record = Record::default();
        assert!(!record.believes(0.99));
        record.judged(true);
        assert!(record.believes(0.95) && !record.believes(0.6));
        record.judged(true);
        assert!(record.believes(0.6));
        record.judged(false);
        assert!(!record.believes(0.99), "two of three were right");
        (0..20).for_each(|_| record.judged(true));
        record.judged(false);
        assert!(record.believes(0.6), "nearly all were right");
        (0..20).for_each(|_| record.judged(false));
        assert!(!record.believes(0.99));
    }
}
