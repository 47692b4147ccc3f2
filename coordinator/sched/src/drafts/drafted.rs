//! Counts of drafts: their source, their depth, and the cost of those in vain.

use brigade_draft::Source;

use crate::drafts::ahead::Judged;
use crate::events::{Micros, StageTime};
use crate::times::timing::LineTimes;
use crate::ubatches::in_flight::InFlight;

/// The largest depth of each group of counts but the last. A draft's depth is its distance behind the last drawn
/// token when it was sent.
const DEPTH_ENDS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Names of these groups.
pub const DRAFT_DEPTHS: [&str; DEPTH_ENDS.len() + 1] =
    ["1", "2", "3-4", "5-8", "9-16", "17-32", "33+"];

/// The yield of a ubatch that came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The ubatch's id.
    pub ubatch: u64,
    /// Tokens that were drawn from its rows.
    pub tokens: u32,
    /// Rows that gave no token: those behind a wrong draft, and those that were read again.
    pub rows_in_vain: u32,
    /// Whether a whole part was useless, so that the last stage skipped some of its work.
    pub has_stale: bool,
}

/// Counts of drafted tokens, and of the parts that tokens are drawn from, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Drafts that were right and wrong, by source in the order of [`Source::ALL`] and by depth in the order of
    /// [`DRAFT_DEPTHS`].
    judged: [[[u64; 2]; DRAFT_DEPTHS.len()]; Source::ALL.len()],
    /// Parts behind a wrong one, from which nothing was drawn.
    pub stale: u64,
    /// Parts that ended where the mask of an answer's grammar was not made in time.
    pub unmasked: u64,
    /// Parts that came back and that tokens were to be drawn from, stale ones among them.
    pub parts: u64,
    /// Tokens that were drawn from them.
    pub tokens: u64,
    /// Rows of them that gave no token.
    pub rows_in_vain: u64,
    /// Time of all stages for these rows.
    pub vain_us: Micros,
    /// Time of all stages for all ubatches.
    pub stages_us: Micros,
    /// Time in which a sequence had two windows or more in flight from which tokens were drawn.
    pub overlapped_us: Micros,
}

impl DraftCounts {
    /// Counts a draft that was compared with the drawn token.
    pub(crate) fn note(&mut self, Judged { source, depth, right, .. }: Judged) {
        let group = DEPTH_ENDS.iter().position(|end| depth <= *end).unwrap_or(DEPTH_ENDS.len());
        self.judged[source as usize][group][usize::from(!right)] += 1;
    }

    /// Counts the results of a ubatch that came back.
    pub(crate) fn note_done(
        &mut self,
        done: &InFlight,
        times: &LineTimes,
        stages: &[StageTime],
    ) -> Given {
        let took: Micros = stages.iter().map(|time| time.compute_us).sum();
        let in_vain = done.rows_in_vain();
        self.stages_us = self.stages_us.saturating_add(took);
        self.parts += u64::from(done.drawn_parts);
        self.tokens += u64::from(done.tokens);
        self.rows_in_vain += u64::from(in_vain);
        if in_vain > 0 {
            let share = times.share_of_last(in_vain, done.n_rows);
            self.vain_us = self.vain_us.saturating_add((took as f64 * share) as Micros);
        }
        let InFlight { id: ubatch, tokens, has_stale, .. } = *done;
        Given { ubatch, tokens, rows_in_vain: in_vain, has_stale }
    }

    /// How many of a source were drawn, and how many were not.
    pub fn judged(&self, source: Source) -> [u64; 2] {
        self.judged[source as usize]
            .iter()
            .fold([0, 0], |[r, w], [right, wrong]| [r + right, w + wrong])
    }

    /// The same by how far ahead they were: see [`DRAFT_DEPTHS`].
    pub fn by_depth(&self, source: Source) -> [[u64; 2]; DRAFT_DEPTHS.len()] {
        self.judged[source as usize]
    }

    /// The difference between these counts and the earlier counts `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = *self;
        for (now, then) in since.judged.iter_mut().zip(&before.judged) {
            for (now, then) in now.iter_mut().flatten().zip(then.iter().flatten()) {
                *now -= then;
            }
        }
        since.stale -= before.stale;
        since.unmasked -= before.unmasked;
        since.parts -= before.parts;
        since.tokens -= before.tokens;
        since.rows_in_vain -= before.rows_in_vain;
        since.vain_us -= before.vain_us;
        since.stages_us -= before.stages_us;
        since.overlapped_us -= before.overlapped_us;
        since
    }

    /// Share of the stages' time that went into rows that gave no token, 0 to 1.
    pub fn share_in_vain(&self) -> f64 {
        self.vain_us as f64 / self.stages_us.max(1) as f64
    }

    /// Tokens drawn from each part: more than one where drafts were right.
    pub fn tokens_per_part(&self) -> f64 {
        self.tokens as f64 / self.parts.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_counted_by_source_and_depth() {
        let mut counts = DraftCounts::default();
        let of = |depth, right| Judged { source: Source::Recent, matched: 5, depth, right };
        for (depth, right) in [(1, true), (1, false), (3, true), (4, true), (64, false)] {
            counts.note(of(depth, right));
        }
        let before = counts;
        assert_eq!(counts.judged(Source::Recent), [3, 2]);
        assert_eq!(counts.judged(Source::Own), [0, 0]);
        let by_depth = counts.by_depth(Source::Recent);
        assert_eq!((by_depth[0], by_depth[2], by_depth[6]), ([1, 1], [2, 0], [0, 1]));
        counts.note(of(2, true));
        assert_eq!(counts.since(&before).by_depth(Source::Recent)[1], [1, 0]);
        assert_eq!(counts.since(&before).judged(Source::Recent), [1, 0]);
    }
}
