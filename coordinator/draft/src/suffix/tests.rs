//! Tests of drafts against a slow definition, of owners' separation, and of memory.

mod rules;
mod slow;

use super::*;

/// A drafter with one stream, all of whose prompt is indexed.
pub(super) fn begun(prompt: &[u32], expected: &[u32]) -> Suffix {
    let mut suffix = Suffix::default();
    suffix.begin(STREAM, OWNER, prompt, prompt.len(), expected);
    while suffix.prepare(STREAM, 100) > 0 {}
    suffix
}

pub(super) const STREAM: StreamId = StreamId(1);
pub(super) const OWNER: OwnerId = OwnerId::of(1);

fn say(suffix: &mut Suffix, tokens: &[u32]) {
    tokens.iter().for_each(|token| suffix.push(STREAM, *token));
}

/// Says an answer to a short prompt, and ends.
fn answered(suffix: &mut Suffix, owner: OwnerId, tokens: &[u32]) {
    suffix.begin(StreamId(99), owner, &[900, 901], 2, &[]);
    tokens.iter().for_each(|token| suffix.push(StreamId(99), *token));
    suffix.end(StreamId(99));
}

#[test]
fn a_quote_is_drafted_from_the_prompt_and_goes_on_behind_what_is_in_flight() {
    let prompt: Vec<u32> = (100..160).collect();
    let mut suffix = begun(&prompt, &[]);
    assert_eq!(suffix.draft(STREAM, &[], 8), Draft::default());
    say(&mut suffix, &[110, 111, 112]);
    let draft = suffix.draft(STREAM, &[], 4);
    assert_eq!((&draft.tokens[..], draft.source, draft.matched), (&prompt[13..17], Source::Own, 3));
    assert_eq!(suffix.draft(STREAM, &draft.tokens, 4).tokens, prompt[17..21]);
    // A long match is more likely than a short one.
    assert!(draft.odds.iter().is_sorted() && draft.odds[3] > draft.odds[0]);
}

#[test]
fn a_text_that_repeats_never_runs_dry() {
    let mut suffix = begun(&[1, 2, 3, 1, 2, 3, 1], &[]);
    let mut ahead = Vec::new();
    for _ in 0..10 {
        let draft = suffix.draft(STREAM, &ahead, 20);
        assert_eq!(draft.tokens.len(), 20);
        ahead.extend(draft.tokens);
    }
    assert!(ahead.iter().zip([2, 3, 1].iter().cycle()).all(|(a, b)| a == b));
}

#[test]
fn a_refuted_draft_is_made_anew_from_where_the_text_goes_on() {
    // Behind 1 2 3 comes 4 twice, and 9 once; behind 9 something else.
    let prompt = [1, 2, 3, 9, 7, 7, 8, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 5, 0];
    let mut suffix = begun(&prompt, &[]);
    say(&mut suffix, &[1, 2, 3]);
    let draft = suffix.draft(STREAM, &[], 3);
    // Of those behind 4 5 the newer.
    assert_eq!(draft.tokens, [4, 5, 5]);
    say(&mut suffix, &[9]);
    let draft = suffix.draft(STREAM, &[], 3);
    assert_eq!((&draft.tokens[..], draft.matched), (&[7, 7, 8][..], 4));
}

#[test]
fn what_the_client_expects_is_drafted_before_anything_was_said() {
    let expected: Vec<u32> = (200..300).collect();
    let mut suffix = begun(&[1, 2, 3], &expected);
    let draft = suffix.draft(STREAM, &[], 5);
    let wanted = (&expected[..5], Source::Expected, 0);
    assert_eq!((&draft.tokens[..], draft.source, draft.matched), wanted);
    assert_eq!(suffix.draft(STREAM, &expected[..7], 2).tokens, expected[7..9]);
    // Something else, then the text further on.
    say(&mut suffix, &[5, 6, 240, 241]);
    assert_eq!(suffix.draft(STREAM, &[], 5).tokens, []);
    say(&mut suffix, &[242]);
    assert_eq!(suffix.draft(STREAM, &[], 5).tokens, expected[43..48]);
    assert_eq!(suffix.draft(STREAM, &expected[43..95], 9).tokens, expected[95..]);
}

#[test]
fn a_stream_that_goes_on_after_a_lost_line_drafts_as_before() {
    let expected: Vec<u32> = (200..300).collect();
    let tokens: Vec<u32> = [&[1, 2, 3, 4][..], &expected[..20]].concat();
    let mut suffix = Suffix::default();
    for _ in 0..2 {
        suffix.begin(STREAM, OWNER, &tokens, 4, &expected);
        assert_eq!(suffix.draft(STREAM, &[], 3).tokens, expected[20..23]);
    }
    say(&mut suffix, &expected[20..30]);
    suffix.end(STREAM);
    // All of the answer is kept, not only what was said behind the loss.
    suffix.begin(STREAM, OWNER, &[7, 7, 200, 201], 4, &[]);
    let draft = suffix.draft(STREAM, &[], 40);
    assert_eq!((&draft.tokens[..], draft.source), (&expected[2..30], Source::Recent));
}

#[test]
fn recent_answers_are_drafted_from_and_what_was_right_counts() {
    let mut suffix = Suffix::default();
    answered(&mut suffix, OWNER, &[50, 51, 52, 53, 54, 55]);
    answered(&mut suffix, OWNER, &[50, 51, 52, 63, 64, 65]);
    // In the prompt as in the newer answer, the text goes on in its own way; both match as far.
    suffix.begin(STREAM, OWNER, &[50, 51, 52, 73, 74, 75, 8, 50, 51, 52], 10, &[]);
    while suffix.prepare(STREAM, 100) > 0 {}
    let first = |suffix: &mut Suffix| suffix.draft(STREAM, &[], 3);
    assert_eq!(first(&mut suffix).tokens, [73, 74, 75]);
    for _ in 0..50 {
        suffix.judged(STREAM, Source::Own, 3, false);
        suffix.judged(STREAM, Source::Recent, 3, true);
    }
    let draft = first(&mut suffix);
    // Of two answers that are as frequent the newer.
    assert_eq!((&draft.tokens[..], draft.source), (&[63, 64, 65][..], Source::Recent));
    assert!(draft.odds[0] > 0.5, "{:?}", draft.odds);
}

#[test]
fn what_was_right_counts_for_the_owners_next_stream() {
    let mut suffix = begun(&[1, 2, 3, 1, 2], &[]);
    let odds = |suffix: &mut Suffix, id: u64, owner| {
        suffix.begin(StreamId(id), OwnerId::of(owner), &[1, 2, 3, 1, 2], 5, &[]);
        suffix.draft(StreamId(id), &[], 1).odds[0]
    };
    let before = odds(&mut suffix, 2, OWNER.key);
    (0..100).for_each(|_| suffix.judged(STREAM, Source::Own, 2, true));
    assert!(odds(&mut suffix, 3, OWNER.key) > before + 0.2);
    assert_eq!(odds(&mut suffix, 4, 77), before);
}

#[test]
fn answers_that_come_and_go_move_no_place() {
    let mut suffix = Suffix::default();
    let other = |i: u32| [[8, 9, 1000 + i, 2000 + i, 3000 + i], [i; 5]].concat();
    answered(&mut suffix, OWNER, &other(0));
    let known: Vec<u32> = (100..120).collect();
    answered(&mut suffix, OWNER, &known);
    suffix.begin(STREAM, OWNER, &known[..2], 2, &[]);
    let draft = suffix.draft(STREAM, &[], 4);
    assert_eq!((&draft.tokens[..], draft.source), (&known[2..6], Source::Recent));
    // So many more that the first goes, and that the known one has another number.
    let n = MAX_ANSWERS as u32;
    (1..n).for_each(|i| answered(&mut suffix, OWNER, &other(i)));
    assert_eq!(suffix.draft(STREAM, &draft.tokens, 4).tokens, known[6..10]);
    assert_eq!(suffix.draft(STREAM, &[], 4).tokens, known[2..6]);
    suffix.push(STREAM, known[2]);
    assert_eq!(suffix.draft(STREAM, &known[3..6], 4).tokens, known[6..10]);
    // The newest of the others is the newest, wherever it is kept.
    suffix.begin(STREAM, OWNER, &[8, 9], 2, &[]);
    assert_eq!(suffix.draft(STREAM, &[], 3).tokens, other(n - 1)[2..5]);
    assert_eq!(suffix.nbytes(), suffix.count());
}

#[test]
fn a_long_prompt_is_indexed_from_its_end_while_it_is_asked() {
    let prompt: Vec<u32> = (0..50_000).collect();
    let mut suffix = Suffix::default();
    suffix.begin(STREAM, OWNER, &prompt, prompt.len(), &[]);
    say(&mut suffix, &[49_000, 49_001]);
    assert_eq!(suffix.draft(STREAM, &[], 2).tokens, [49_002, 49_003]);
    say(&mut suffix, &[100, 101]);
    assert_eq!(suffix.draft(STREAM, &[], 2).tokens, []);
    let mut left = usize::MAX;
    while left > 0 {
        let now = suffix.prepare(STREAM, 7_000);
        assert!(now < left);
        left = now;
    }
    assert_eq!(suffix.draft(STREAM, &[], 2).tokens, [102, 103]);
}

#[test]
fn drafts_have_a_greatest_length() {
    let mut suffix = begun(&[1; 20], &[]);
    assert_eq!(suffix.draft(STREAM, &[], usize::MAX).tokens, [1; MAX_AHEAD]);
    assert_eq!(suffix.draft(STREAM, &[1; MAX_AHEAD - 1], 9).tokens, [1]);
    assert!(suffix.draft(STREAM, &[1; MAX_AHEAD], 9).tokens.is_empty());
    assert!(suffix.draft(STREAM, &[1; 2 * MAX_AHEAD], 9).tokens.is_empty());
    assert!(suffix.draft(STREAM, &[], 0).tokens.is_empty());
}

#[test]
fn strange_calls_do_nothing() {
    let mut suffix = Suffix::default();
    suffix.push(STREAM, 1);
    suffix.judged(STREAM, Source::Own, 1, true);
    suffix.end(STREAM);
    suffix.forget(OWNER.key);
    assert_eq!(suffix.draft(STREAM, &[1], 2), Draft::default());
    assert_eq!((suffix.prepare(STREAM, 2), suffix.nbytes()), (0, 0));
    // A prompt that is said to be longer than all tokens, and an empty one.
    suffix.begin(STREAM, OWNER, &[1, 2], 7, &[]);
    suffix.begin(StreamId(2), OWNER, &[], 0, &[]);
    for id in [STREAM, StreamId(2)] {
        [4, 5, 6, 4, 5].into_iter().for_each(|token| suffix.push(id, token));
        assert_eq!(suffix.draft(id, &[], 2).tokens, [6, 4]);
        suffix.end(id);
    }
    suffix.forget(OWNER.key);
    assert_eq!(suffix.nbytes(), 0);
}
