//! Drafts by definition, without an index, and the property tests that compare with them.

use proptest::prelude::*;

use super::super::cursor::MAX_PLACES;
use super::super::filter::WIDTH;
use super::{OWNER, STREAM};
use crate::{Drafter, Source, StreamId, Suffix};

/// Where a match in a text ends: the text's number in [`Texts`], and the position of the token behind the match.
#[derive(Clone, Copy)]
struct Place {
    text: usize,
    next: usize,
}

/// The searched texts, newest first, each with the start of its places.
struct Texts<'a> {
    texts: Vec<(&'a [u32], usize)>,
    /// Whether the text is the stream's own, and so continues in the draft.
    is_own: bool,
}

impl Texts<'_> {
    fn behind(&self, beyond: &[u32], place: Place) -> Option<u32> {
        let Place { text, next } = place;
        let (tokens, _) = self.texts[text];
        let beyond = if self.is_own { beyond.get(next.wrapping_sub(tokens.len())) } else { None };
        tokens.get(next).or(beyond).copied()
    }

    /// The longest match of the end of `said`, and its places, the newest first.
    fn longest(&self, said: &[u32]) -> (usize, Vec<Place>) {
        let mut best = (if self.is_own { 1 } else { WIDTH }, Vec::new());
        for (number, (text, from)) in self.texts.iter().enumerate() {
            for next in (*from..text.len()).rev() {
                let pairs = text[..next].iter().rev().zip(said.iter().rev());
                let matched = pairs.take_while(|(a, b)| a == b).count();
                if matched > best.0 {
                    best = (matched, Vec::new());
                }
                if matched == best.0 {
                    best.1.push(Place { text: number, next });
                }
            }
        }
        best.1.truncate(MAX_PLACES);
        best
    }

    /// At most `most` tokens behind `sure` and `ahead`, and the matched length before the first.
    fn draft(&self, sure: &[u32], ahead: &[u32], most: usize) -> (usize, Vec<u32>) {
        let (mut matched, mut places) = self.longest(sure);
        let mut path = ahead.to_vec();
        for token in ahead {
            places.retain(|place| self.behind(ahead, *place) == Some(*token));
            places.iter_mut().for_each(|place| place.next += 1);
            places.retain(|place| self.behind(ahead, *place).is_some());
            matched += 1;
        }
        if places.is_empty() {
            (matched, places) = self.longest(&[sure, ahead].concat());
        }
        while path.len() < ahead.len() + most && !places.is_empty() {
            let next: Vec<_> = places.iter().map(|place| self.behind(&path, *place)).collect();
            let count = |token: &Option<u32>| next.iter().filter(|other| *other == token).count();
            // The last of the greatest is the newest.
            let token = next.iter().rev().max_by_key(|token| count(token)).copied().flatten();
            path.extend(token);
            places.retain(|place| self.behind(&path, *place) == token);
            places.iter_mut().for_each(|place| place.next += 1);
            places.retain(|place| self.behind(&path, *place).is_some());
        }
        (matched, path.split_off(ahead.len()))
    }
}

/// A text of few different tokens, so that much of it stands in it several times.
fn text(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    (1u32..5).prop_flat_map(move |n_vocab| prop::collection::vec(0..n_vocab, len.clone()))
}

/// A drafter whose owner has these answers, with a stream that said `said` behind `prompt`.
fn begun(answers: &[Vec<u32>], prompt: &[u32], said: &[u32]) -> Suffix {
    let mut suffix = Suffix::default();
    for answer in answers {
        suffix.begin(StreamId(9), OWNER, &[70, 71], 2, &[]);
        answer.iter().for_each(|token| suffix.push(StreamId(9), *token));
        suffix.end(StreamId(9));
    }
    suffix.begin(STREAM, OWNER, prompt, prompt.len(), &[]);
    for token in said {
        suffix.push(STREAM, *token);
    }
    suffix
}

/// Compares one draft with the definition for the text that it says it comes from.
fn check(
    suffix: &mut Suffix,
    answers: &[Vec<u32>],
    sure: &[u32],
    ahead: &[u32],
    most: usize,
) -> Result<Vec<u32>, TestCaseError> {
    let kept: Vec<Vec<u32>> =
        answers.iter().map(|answer| [&[70, 71], &answer[..]].concat()).collect();
    let own = Texts { texts: vec![(sure, 1)], is_own: true };
    let recent =
        Texts { texts: kept.iter().rev().map(|text| (&text[..], 2)).collect(), is_own: false };
    let draft = suffix.draft(STREAM, ahead, most);
    let wanted = [&own, &recent].map(|texts| texts.draft(sure, ahead, most));
    if draft.tokens.is_empty() {
        prop_assert!(wanted.iter().all(|(_, tokens)| tokens.is_empty()), "{:?}", wanted);
        return Ok(draft.tokens);
    }
    let (matched, tokens) = &wanted[usize::from(draft.source == Source::Recent)];
    prop_assert_eq!(&draft.tokens, tokens, "{:?} behind {:?} and {:?}", draft.source, sure, ahead);
    prop_assert_eq!(draft.matched, *matched);
    prop_assert_eq!(draft.odds.len(), draft.tokens.len());
    prop_assert!(draft.odds.iter().all(|odds| (0.0..=1.0).contains(odds)));
    Ok(draft.tokens)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Compares drafts after each token, with and without tokens in flight that may be anything.
    #[test]
    fn drafts_are_what_the_definition_says(
        answers in prop::collection::vec(text(4..16), 0..4),
        prompt in text(0..30),
        said in text(0..30),
        strange in text(0..4),
        most in 1usize..12,
    ) {
        let mut suffix = begun(&answers, &prompt, &[]);
        let mut sure = prompt.clone();
        for token in [None].into_iter().chain(said.into_iter().map(Some)) {
            if let Some(token) = token {
                suffix.push(STREAM, token);
                sure.push(token);
            }
            check(&mut suffix, &answers, &sure, &strange, most)?;
            check(&mut suffix, &answers, &sure, &[], most)?;
        }
    }

    /// Tokens in flight that were drafted, all or a part of them, before and after some of them are sure.
    #[test]
    fn a_draft_is_the_same_in_every_cut(
        answers in prop::collection::vec(text(4..16), 0..4),
        prompt in text(0..30),
        said in text(0..20),
        strange in text(0..3),
        most in 1usize..20,
    ) {
        let mut suffix = begun(&answers, &prompt, &said);
        for _ in 0..4 {
            let mut path = strange.clone();
            path.extend(suffix.draft(STREAM, &strange, most).tokens);
            for cut in strange.len()..path.len() {
                let rest = suffix.draft(STREAM, &path[..cut], path.len() - cut).tokens;
                prop_assert_eq!(&rest, &path[cut..], "cut at {} of {:?}", cut, path);
            }
            // Longer by one at a time, as far as once.
            let mut one_by_one = strange.clone();
            while one_by_one.len() < path.len() {
                one_by_one.extend(suffix.draft(STREAM, &one_by_one, 1).tokens);
            }
            prop_assert_eq!(&one_by_one, &path);
            // Where nothing is in flight, another text may be the better one.
            if path.len() < 2 {
                break;
            }
            // One is sure; the others continue as before.
            let whole = [&path[..], &suffix.draft(STREAM, &path, 5).tokens].concat();
            suffix.push(STREAM, whole[0]);
            let behind = suffix.draft(STREAM, &path[1..], whole.len() - path.len()).tokens;
            prop_assert_eq!(&behind, &whole[path.len()..]);
        }
    }
}
