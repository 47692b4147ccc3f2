//! The positions of a prompt at which states are kept while it is computed, for models that have a state at a
//! sequence's end only.
//!
//! - Before the last row: the same prompt once more computes that row alone, and the next turn of a chat whose template
//!   rewrites the answer goes on from there.
//! - At borders of a chat that its endpoint knows: behind instructions and tools, and before the last user's message.
//!   So the first agent leaves a state that the second one begins with.
//! - Where other prompts differ or end, such as agents with one system prompt. A prompt is looked up before it is
//!   computed, so the second one that differs at a fork leaves a state there.
//! - At growing distances back from the end: an edit near the end costs little.
//!
//! Results do not depend on where a prompt is cut, so each of these is an exact position. A mark costs one more
//! ubatch and a copy of the state. A mark that would save few rows beside the one before it is left out.

use std::collections::VecDeque;

use crate::line::Line;
use crate::memory::prefix::kept::Prompt;
use crate::memory::prefix::place::{Mark, Place};
use crate::sequence::Admitted;

/// Rows that a mark must save beside another one. The mark before a prompt's last row is always made.
const LEAST_ROWS: u32 = 16;

/// The first distance from the end, in rows, which one at a distance must save at least; and how many times as far the next
/// one is.
const FIRST_DISTANCE: u32 = 64;
const NEXT_DISTANCE: u32 = 8;

/// Marks of a prompt of `n` tokens of which the first `begun` are there, ascending, at most so many. The more important
/// come first: the end, the borders between its messages as far as they are known, forks, then distances.
fn marks(
    n: u32,
    begun: u32,
    page: u32,
    borders: &[u32],
    forks: &[u32],
    most: usize,
) -> VecDeque<Mark> {
    let mut chosen: Vec<Mark> = Vec::new();
    let forks =
        borders.iter().chain(forks.iter().rev()).map(|at| Mark { at: *at, place: Place::Fork });
    let distances = std::iter::successors(Some(FIRST_DISTANCE), |d| d.checked_mul(NEXT_DISTANCE));
    // A whole number of pages, so that nothing but the state is copied.
    let distances = distances.map_while(|d| Some(n.checked_sub(d)? / page * page));
    let distances = distances.map(|at| Mark { at, place: Place::Distance });
    let end = Mark { at: n.saturating_sub(1), place: Place::Prompt };
    for mark in [end].into_iter().chain(forks).chain(distances) {
        let is_near = |other: u32| mark.at.abs_diff(other) < LEAST_ROWS;
        // A prompt that differs before the end cannot use a state at the end.
        let counts = |other: &&Mark| other.place != Place::Prompt || mark.place != Place::Fork;
        let is_new = match mark.place {
            Place::Prompt => true,
            Place::Distance if mark.at < begun.saturating_add(FIRST_DISTANCE) => false,
            _ => !is_near(begun) && !chosen.iter().filter(counts).any(|other| is_near(other.at)),
        };
        if mark.at > begun && mark.at < n && is_new && chosen.len() < most {
            chosen.push(mark);
        }
    }
    chosen.sort_unstable_by_key(|mark| mark.at);
    chosen.into()
}

impl Line {
    /// The positions at which the state of a sequence is to be kept while its prompt is read. The first `begun`
    /// tokens of the prompt are there.
    pub(super) fn marks(&self, prompt: Prompt<'_>, begun: u32, borders: &[u32]) -> VecDeque<Mark> {
        if !self.marks {
            return VecDeque::new();
        }
        // Half of all places: one prompt does not take those of all others.
        let most = 1 + self.n_kept_places() / 2;
        let forks = self.kept.forks(prompt, begun);
        let most = most.min(self.n_kept_places());
        let page = self.spec.block_positions;
        marks(prompt.tokens.len() as u32, begun, page, borders, &forks, most)
    }
}

impl Admitted {
    /// Rows up to the next mark; `None`: no mark is left.
    pub fn rows_to_mark(&self) -> Option<u32> {
        let next = self.marks.iter().find(|mark| mark.at > self.sent)?;
        Some(next.at - self.sent)
    }

    /// Whether it or its companion has a mark at the end of the rows sent.
    pub fn is_at_mark(&self) -> bool {
        self.halves().any(|half| half.marks.iter().any(|mark| mark.at == half.sent))
    }

    /// Takes the mark at the end of the rows sent, if there is one.
    pub fn take_mark(&mut self) -> Option<Mark> {
        while let Some(mark) = self.marks.front().copied().filter(|mark| mark.at <= self.sent) {
            self.marks.pop_front();
            if mark.at == self.sent {
                return Some(mark);
            }
        }
        None
    }

    /// Marks `at`, or uses a mark a little before it; returns the mark's position. `None`: the sequence has been read
    /// beyond that.
    pub fn mark_fork(&mut self, at: u32) -> Option<u32> {
        if at <= self.sent {
            return None;
        }
        let is_near = |mark: &&Mark| mark.at <= at && at - mark.at < LEAST_ROWS;
        if let Some(near) = self.marks.iter().rev().find(is_near).filter(|m| m.at > self.sent) {
            return Some(near.at);
        }
        let next = self.marks.partition_point(|mark| mark.at < at);
        self.marks.insert(next, Mark { at, place: Place::Fork });
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u32, begun: u32, forks: &[u32], most: usize) -> Vec<u32> {
        marks(n, begun, 64, &[], forks, most).iter().map(|mark| mark.at).collect()
    }

    #[test]
    fn the_end_comes_first_then_forks_then_distances() {
        assert_eq!(at(10_000, 0, &[3_000], 9), [3_000, 5_888, 9_472, 9_920, 9_999]);
        assert_eq!(at(10_000, 0, &[3_000], 2), [3_000, 9_999]);
        assert_eq!(at(10_000, 0, &[3_000], 1), [9_999]);
        assert_eq!(at(10_000, 0, &[3_000, 4_000], 2), [4_000, 9_999], "the deepest");
    }

    #[test]
    fn borders_of_messages_come_before_forks() {
        let at = |borders: &[u32], most| -> Vec<u32> {
            let marks = marks(1_000, 100, 64, borders, &[400, 700], most);
            marks.iter().map(|mark| mark.at).collect()
        };
        assert_eq!(at(&[300, 90, 1_000], 3), [300, 700, 999], "those that are still to be read");
        assert_eq!(at(&[300], 9), [300, 400, 448, 700, 896, 999]);
    }

    #[test]
    fn marks_that_would_save_few_rows_are_left_out() {
        assert_eq!(at(100, 0, &[95], 9), [95, 99]);
        assert_eq!(at(200, 0, &[195], 9), [128, 195, 199]);
        assert_eq!(at(100, 30, &[40, 60], 9), [60, 99]);
        assert_eq!(at(100, 98, &[], 9), [99], "but that before the last row");
        assert!(at(100, 99, &[], 9).is_empty());
        assert!(at(1, 0, &[], 9).is_empty());
    }
}
