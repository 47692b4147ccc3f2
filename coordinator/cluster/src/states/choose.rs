//! Chooses the position to which a sequence goes back after a lost line: the newest one that every stage can have,
//! and the sources of its layers. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use brigade_engine::batch::TokenMark;
use brigade_line::stages::states::{Choice, From};

/// Copies that one worker has of a sequence: some layers, at some positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Has {
    /// The worker's number: that of its stage; workers beside the line come after all stages.
    pub worker: usize,
    /// The layers of these copies.
    pub layers: Range<u32>,
    /// Whether the worker's loaded stage holds them in place, so that only it can use them.
    pub in_place: bool,
    /// Whether they are parting copies, which do not stay.
    pub parting: bool,
    /// Every position up to this one.
    pub up_to: u32,
    /// Single positions, with the marks of their tokens.
    pub positions: BTreeMap<u32, TokenMark>,
}

impl Has {
    /// These layers on a worker, with nothing found yet.
    pub(crate) fn of(worker: usize, layers: Range<u32>) -> Self {
        let (in_place, parting, up_to, positions) = Default::default();
        Self { worker, layers, in_place, parting, up_to, positions }
    }

    fn reaches(&self, len: u32, tokens: &[u32]) -> bool {
        // A mark is of the tokens: a sequence that went on otherwise is another one.
        let marked = || TokenMark::of(&tokens[..len as usize]);
        len <= self.up_to || self.positions.get(&len).is_some_and(|mark| *mark == marked())
    }
}

/// The newest position at which all of `stages` can have their layers of a sequence with `tokens`, of which at least one
/// is left to compute. `keeper` of a stage keeps its copies.
pub fn choose(
    stages: &[Range<u32>],
    has: &[Has],
    tokens: &[u32],
    keeper: impl Fn(usize) -> usize,
) -> Option<Choice> {
    let most = (tokens.len() as u32).checked_sub(1)?;
    let positions = has.iter().flat_map(|has| {
        has.positions.keys().copied().chain([has.up_to.min(most)]).collect::<Vec<u32>>()
    });
    let candidates: BTreeSet<u32> = positions.filter(|len| (1..=most).contains(len)).collect();
    candidates.into_iter().rev().find_map(|len| {
        let there: Vec<&Has> = has.iter().filter(|has| has.reaches(len, tokens)).collect();
        let of = |(stage, layers): (usize, &Range<u32>)| sources(stage, layers, &there);
        let sources: Vec<Vec<From>> = stages.iter().enumerate().map(of).collect::<Option<_>>()?;
        let kept = |(stage, layers): (usize, &Range<u32>)| {
            let stays = |has: &Has| !has.in_place && !has.parting;
            let keeps = |has: &&&Has| stays(has) && has.worker == keeper(stage);
            covered(stage, layers, &there.iter().filter(keeps).copied().collect::<Vec<_>>())
                .is_some()
        };
        let kept = stages.iter().enumerate().map(kept).collect();
        Some(Choice { len, sources, kept, records: None })
    })
}

fn sources(stage: usize, layers: &Range<u32>, there: &[&Has]) -> Option<Vec<From>> {
    let own = |has: &&Has| has.in_place && has.worker == stage && has.layers == *layers;
    if there.iter().any(own) {
        return Some(Vec::new());
    }
    let apart: Vec<&Has> = there.iter().filter(|has| !has.in_place).copied().collect();
    covered(stage, layers, &apart)
}

/// The workers that have a stage's `layers`; `None` if some layers are missing. The stage's own worker comes first,
/// then as few others as reach furthest.
pub(crate) fn covered(stage: usize, layers: &Range<u32>, there: &[&Has]) -> Option<Vec<From>> {
    let (mut from, mut next) = (Vec::new(), layers.start);
    while next < layers.end {
        let has_next = there.iter().filter(|has| has.layers.contains(&next));
        let best = has_next.max_by_key(|has| (has.worker == stage, has.layers.end))?;
        let begins = |has: &&&Has| has.worker == stage && has.layers.start > next;
        let own = there.iter().filter(begins).map(|has| has.layers.start).min();
        let until = own.filter(|_| best.worker != stage).unwrap_or(layers.end);
        let end = best.layers.end.min(layers.end).min(until);
        from.push(From { worker: best.worker, layers: next..end });
        next = end;
    }
    Some(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: [u32; 300] = [7; 300];

    fn at(worker: usize, layers: Range<u32>, positions: &[u32]) -> Has {
        let mark = |len: &u32| (*len, TokenMark::of(&TOKENS[..*len as usize]));
        let positions = positions.iter().map(mark).collect();
        Has { worker, layers, in_place: false, parting: false, up_to: 0, positions }
    }

    fn left(worker: usize, layers: Range<u32>, position: u32) -> Has {
        Has { parting: true, ..at(worker, layers, &[position]) }
    }

    fn held(stage: usize, layers: Range<u32>, up_to: u32) -> Has {
        Has { in_place: true, up_to, ..at(stage, layers, &[]) }
    }

    fn from(worker: usize, layers: Range<u32>) -> From {
        From { worker, layers }
    }

    fn chosen(stages: &[Range<u32>], has: &[Has]) -> Option<Choice> {
        choose(stages, has, &TOKENS, |stage| (stage + 1) % stages.len())
    }

    #[test]
    fn what_was_lost_comes_from_its_neighbour_and_the_others_stay() {
        let stages = [0..2, 2..4, 4..6];
        let has = [
            held(0, 0..2, 210),
            held(2, 4..6, 205),
            at(2, 2..4, &[64, 128, 192]),
            // Its own states: of a recurrent stage.
            Has { in_place: true, ..at(0, 0..2, &[192]) },
        ];
        let choice = chosen(&stages, &has).unwrap();
        assert_eq!(choice.len, 192);
        assert_eq!(choice.sources, [vec![], vec![from(2, 2..4)], vec![]]);
        assert_eq!(choice.kept, [false, true, false]);
        assert_eq!(chosen(&stages, &has[..2]), None, "nobody has layers 2..4");
    }

    #[test]
    fn the_newest_position_that_all_have_is_taken() {
        let stages = [0..2, 2..4];
        let has = [at(1, 0..2, &[64, 128, 192]), at(0, 2..4, &[64, 128])];
        assert_eq!(chosen(&stages, &has).unwrap().len, 128);
        let apart = [at(1, 0..2, &[192]), at(0, 2..4, &[64, 128])];
        assert_eq!(chosen(&stages, &apart), None);
        // Pages can be cut anywhere.
        let cut = [held(0, 0..2, 150), at(0, 2..4, &[64, 128])];
        assert_eq!(chosen(&stages, &cut).unwrap().len, 128);
        let both = [held(0, 0..2, 150), held(1, 2..4, 149)];
        assert_eq!(chosen(&stages, &both).unwrap().len, 149);
    }

    #[test]
    fn another_cut_takes_its_layers_from_several() {
        let has = [at(0, 0..3, &[64]), at(1, 3..5, &[64]), at(2, 2..6, &[64]), held(0, 0..2, 64)];
        let choice = chosen(&[0..4, 4..6], &has).unwrap();
        let second = vec![from(1, 4..5), from(2, 5..6)];
        assert_eq!(choice.sources, [vec![from(0, 0..3), from(2, 3..4)], second]);
    }

    #[test]
    fn layers_of_a_worker_that_left_the_line_come_from_beside_it() {
        // Three stages were there. The worker of the second one has none of the new stages, so it is number 2.
        let has = [left(0, 0..2, 210), left(2, 2..4, 210), held(1, 4..6, 210), left(1, 4..6, 210)];
        let choice = chosen(&[0..3, 3..6], &has).unwrap();
        assert_eq!(choice.len, 210);
        let moved = [vec![from(0, 0..2), from(2, 2..3)], vec![from(2, 3..4), from(1, 4..6)]];
        assert_eq!(choice.sources, moved);
        assert_eq!(chosen(&[0..3, 3..6], &[&has[..1], &has[2..]].concat()), None, "it is gone");
        // A stage that stays has them in place.
        let stays = chosen(&[0..4, 4..6], &has).unwrap();
        assert_eq!(stays.sources, [vec![from(0, 0..2), from(2, 2..4)], vec![]]);
    }

    #[test]
    fn a_worker_fetches_no_layers_that_it_has_itself() {
        let has = [left(0, 0..6, 100), left(1, 4..5, 100)];
        let choice = chosen(&[0..3, 3..6], &has).unwrap();
        let second = vec![from(0, 3..4), from(1, 4..5), from(0, 5..6)];
        assert_eq!(choice.sources, [vec![from(0, 0..3)], second]);
    }

    #[test]
    fn parting_copies_do_not_stay_where_checkpoints_go() {
        let has = [left(0, 2..4, 128), at(0, 2..4, &[64]), left(1, 0..2, 128)];
        let choice = chosen(&[0..2, 2..4], &has).unwrap();
        assert_eq!((choice.len, choice.kept), (128, vec![false, false]));
    }

    #[test]
    fn one_row_is_left_and_other_tokens_are_another_sequence() {
        let stage = std::slice::from_ref(&(0..1));
        let all = [held(0, 0..1, 300)];
        assert_eq!(chosen(stage, &all).unwrap().len, 299);
        let mut other = at(0, 0..1, &[64, 128]);
        other.positions.insert(128, TokenMark([0; 16]));
        assert_eq!(chosen(stage, &[other]).unwrap().len, 64);
        assert_eq!(chosen(stage, &[at(0, 0..1, &[300])]), None);
    }
}
