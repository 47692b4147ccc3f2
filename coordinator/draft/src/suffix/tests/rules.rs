//! The separation of owners and the limit of memory, under random histories.

use proptest::prelude::*;

use super::super::Suffix;
use super::{OWNER, STREAM, answered, begun, say};
use crate::{Drafter, OwnerId, Source, StreamId};

const N_OWNERS: u64 = 3;
const N_STREAMS: u64 = 6;

/// A call of the drafter. Tokens are unique to an owner.
#[derive(Clone, Debug)]
enum Call {
    Begin { stream: u64, owner: u64, tokens: Vec<u32>, n_answer: usize, expected: Vec<u32> },
    Push { stream: u64, tokens: Vec<u32> },
    Draft { stream: u64, ahead: Vec<u32>, most: usize },
    Follow { stream: u64, most: usize },
    Judge { stream: u64, matched: usize, right: bool },
    Prepare { stream: u64, most: usize },
    End { stream: u64 },
    Forget { owner: u64 },
}

fn call() -> impl Strategy<Value = Call> {
    let text = |most: usize| prop::collection::vec(0u32..4, 0..most);
    let stream = 0..N_STREAMS;
    prop_oneof![
        3 => (stream.clone(), 0..N_OWNERS, text(400), 0usize..20, text(40)).prop_map(
            |(stream, owner, tokens, n_answer, expected)| Call::Begin { stream, owner, tokens, n_answer, expected }),
        6 => (stream.clone(), text(300)).prop_map(|(stream, tokens)| Call::Push { stream, tokens }),
        3 => (stream.clone(), text(6), 0usize..20)
            .prop_map(|(stream, ahead, most)| Call::Draft { stream, ahead, most }),
        3 => (stream.clone(), 1usize..20).prop_map(|(stream, most)| Call::Follow { stream, most }),
        1 => (stream.clone(), 0usize..40, any::<bool>())
            .prop_map(|(stream, matched, right)| Call::Judge { stream, matched, right }),
        1 => (stream.clone(), 0usize..300).prop_map(|(stream, most)| Call::Prepare { stream, most }),
        4 => stream.prop_map(|stream| Call::End { stream }),
        1 => (0..N_OWNERS).prop_map(|owner| Call::Forget { owner }),
    ]
}

/// The drafter, and whose each stream is.
struct World {
    suffix: Suffix,
    owners: [u64; N_STREAMS as usize],
}

impl World {
    fn own(owner: u64, tokens: &[u32]) -> Vec<u32> {
        tokens.iter().map(|token| owner as u32 * 10 + token).collect()
    }

    /// The tokens as the owner of a stream has them.
    fn of(&self, stream: u64, tokens: &[u32]) -> Vec<u32> {
        Self::own(self.owners[stream as usize], tokens)
    }

    fn draft(
        &mut self,
        stream: u64,
        ahead: &[u32],
        most: usize,
    ) -> Result<Vec<u32>, TestCaseError> {
        let draft = self.suffix.draft(StreamId(stream), ahead, most);
        let owner = self.owners[stream as usize] as u32;
        prop_assert!(draft.tokens.iter().all(|token| token / 10 == owner), "{:?}", draft);
        prop_assert!(draft.tokens.len() <= most);
        Ok(draft.tokens)
    }

    fn call(&mut self, call: Call) -> Result<(), TestCaseError> {
        match call {
            Call::Begin { stream, owner, tokens, n_answer, expected } => {
                self.owners[stream as usize] = owner;
                let n_prompt = tokens.len().saturating_sub(n_answer);
                let (tokens, expected) = (Self::own(owner, &tokens), Self::own(owner, &expected));
                self.suffix.begin(
                    StreamId(stream),
                    OwnerId::of(owner),
                    &tokens,
                    n_prompt,
                    &expected,
                );
            }
            Call::Push { stream, tokens } => {
                for token in self.of(stream, &tokens) {
                    self.suffix.push(StreamId(stream), token);
                }
            }
            Call::Draft { stream, ahead, most } => {
                let ahead = self.of(stream, &ahead);
                self.draft(stream, &ahead, most)?;
            }
            Call::Follow { stream, most } => {
                for token in self.draft(stream, &[], most)? {
                    self.draft(stream, &[], most)?;
                    self.suffix.push(StreamId(stream), token);
                }
            }
            Call::Judge { stream, matched, right } => {
                self.suffix.judged(StreamId(stream), Source::Recent, matched, right);
            }
            Call::Prepare { stream, most } => {
                self.suffix.prepare(StreamId(stream), most);
            }
            Call::End { stream } => self.suffix.end(StreamId(stream)),
            Call::Forget { owner } => self.suffix.forget(owner),
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_passes_between_owners_and_the_memory_has_a_limit(
        memory in 0u64..400_000,
        calls in prop::collection::vec(call(), 1..60),
    ) {
        let mut world = World { suffix: Suffix::new(memory), owners: [0; N_STREAMS as usize] };
        for call in calls {
            world.call(call)?;
            prop_assert_eq!(world.suffix.nbytes(), world.suffix.count());
            prop_assert!(world.suffix.nbytes() <= memory);
        }
        for owner in 0..N_OWNERS {
            world.suffix.forget(owner);
        }
        prop_assert_eq!(world.suffix.nbytes(), 0);
    }
}

#[test]
fn what_ends_or_is_forgotten_leaves_nothing() {
    let mut suffix = begun(&[1; 100], &[2; 100]);
    let before = suffix.nbytes();
    // An answer that is too short to be kept.
    answered(&mut suffix, OWNER, &[1, 2]);
    assert_eq!(suffix.nbytes(), before);
    answered(&mut suffix, OwnerId::of(2), &[5; 500]);
    suffix.begin(StreamId(3), OwnerId::of(2), &[5; 500], 500, &[6; 20]);
    assert!(suffix.nbytes() > before);
    suffix.forget(2);
    assert_eq!(suffix.nbytes(), before);
    suffix.push(StreamId(3), 5);
    assert!(suffix.draft(StreamId(3), &[], 3).tokens.is_empty());
    // The same answer again and again takes no more than the most that are kept.
    let mut full = 0;
    for i in 0..200 {
        answered(&mut suffix, OWNER, &[7; 50]);
        if i == 100 {
            full = suffix.nbytes();
        }
    }
    assert_eq!(suffix.nbytes(), full);
    suffix.forget(OWNER.key);
    assert_eq!(suffix.nbytes(), 0);
}

/// The answers `answer(0)`, `answer(1)` … that the drafter knows for an owner.
fn known(suffix: &mut Suffix, owner: OwnerId, n: u32) -> Vec<u32> {
    let is_known = |suffix: &mut Suffix, i: u32| {
        suffix.begin(STREAM, owner, &answer(i)[..2], 2, &[]);
        let draft = suffix.draft(STREAM, &[], 3);
        draft.tokens == answer(i)[2..5]
    };
    (0..n).filter(|i| is_known(suffix, *i)).collect()
}

fn answer(i: u32) -> Vec<u32> {
    (0..500).map(|at| 1000 * i + at).collect()
}

#[test]
fn who_holds_most_loses_the_answer_that_was_used_longest_ago() {
    let rich = OwnerId::of(0);
    let mut suffix = Suffix::default();
    (0..8).for_each(|i| answered(&mut suffix, rich, &answer(i)));
    answered(&mut suffix, OWNER, &answer(0));
    // The first is drafted from.
    suffix.begin(STREAM, rich, &answer(0)[..2], 2, &[]);
    assert_eq!(suffix.draft(STREAM, &[], 1).tokens, [2]);
    suffix.begin(STREAM, OWNER, &[], 0, &[]);
    // One more text of another owner does not fit: the owner with the most loses its second.
    let memory = suffix.nbytes() + 16_000;
    suffix.limit(memory);
    answered(&mut suffix, OwnerId::of(3), &answer(0));
    assert_eq!(known(&mut suffix, OWNER, 1), [0]);
    assert_eq!(known(&mut suffix, OwnerId::of(3), 1), [0]);
    assert_eq!(known(&mut suffix, rich, 8), [0, 2, 3, 4, 5, 6, 7]);
    assert!(suffix.nbytes() <= memory);
    assert_eq!(suffix.nbytes(), suffix.count());
}

#[test]
fn spaces_of_a_key_are_apart_and_count_together() {
    let of = |key, space| OwnerId { key, space };
    let mut suffix = Suffix::default();
    (0..4u32).for_each(|i| answered(&mut suffix, of(1, i.into()), &answer(i)));
    (0..2).for_each(|i| answered(&mut suffix, of(2, 0), &answer(i)));
    assert_eq!(known(&mut suffix, of(1, 2), 4), [2], "not those of its other spaces");
    // Four spaces of one answer each are more than one of two.
    suffix.limit(suffix.nbytes() + 100);
    answered(&mut suffix, of(3, 0), &answer(0));
    assert_eq!(known(&mut suffix, of(2, 0), 2), [0, 1]);
    assert_eq!(known(&mut suffix, of(3, 0), 1), [0]);
    let left = (0..4u32).flat_map(|i| known(&mut suffix, of(1, i.into()), 4));
    assert!(left.count() < 4);
    assert_eq!(suffix.nbytes(), suffix.count());
    suffix.forget(1);
    assert!((0..4u32).all(|i| known(&mut suffix, of(1, i.into()), 4).is_empty()));
    assert_eq!(known(&mut suffix, of(2, 0), 2), [0, 1]);
}

#[test]
fn an_owner_alone_gives_its_answers_for_its_streams() {
    let mut suffix = Suffix::default();
    answered(&mut suffix, OWNER, &answer(0));
    suffix.limit(suffix.nbytes());
    suffix.begin(STREAM, OWNER, &answer(1)[..200], 200, &[]);
    say(&mut suffix, &answer(1)[7..9]);
    assert_eq!(suffix.draft(STREAM, &[], 2).tokens, answer(1)[9..11]);
    assert_eq!(suffix.nbytes(), suffix.count());
}

#[test]
fn streams_that_run_lose_nothing_to_others() {
    let mut suffix = begun(&answer(0), &[]);
    say(&mut suffix, &[3, 4]);
    answered(&mut suffix, OwnerId::of(2), &answer(1));
    suffix.limit(suffix.nbytes());
    // Too large even without all answers: nothing is dropped for it.
    suffix.begin(StreamId(5), OwnerId::of(2), &[1; 5_000], 5_000, &[]);
    assert!(suffix.draft(StreamId(5), &[], 3).tokens.is_empty());
    // In the place of the answer it fits.
    let before = suffix.nbytes();
    suffix.begin(StreamId(6), OwnerId::of(3), &answer(0)[..100], 100, &[]);
    assert!(suffix.nbytes() < before);
    suffix.push(StreamId(6), 7);
    suffix.push(StreamId(6), 8);
    assert_eq!(suffix.draft(StreamId(6), &[], 2).tokens, [9, 10]);
    assert_eq!(suffix.draft(STREAM, &[], 2).tokens, [5, 6]);
    // A stream that grows beyond the limit has no more drafts.
    (0..5_000).for_each(|_| suffix.push(StreamId(6), 1));
    assert!(suffix.draft(StreamId(6), &[], 2).tokens.is_empty());
    assert_eq!(suffix.draft(STREAM, &[], 2).tokens, [5, 6]);
}
