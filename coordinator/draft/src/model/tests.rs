//! Tests of the choice between drafts, and of the streams for which the block drafts.

use super::*;
use crate::{Forced, Suffix};

const ID: StreamId = StreamId(1);
const OWNER: OwnerId = OwnerId::of(7);

/// A stream of which texts know nothing.
fn begun() -> WithModel {
    let mut drafter = WithModel::new(Box::new(Suffix::new(0)));
    drafter.begin(ID, OWNER, &[1, 2, 3], 3, &[]);
    drafter
}

fn run(tokens: &[u32]) -> Vec<(u32, f32)> {
    tokens.iter().map(|token| (*token, 0.93)).collect()
}

#[test]
fn a_run_is_drafted_behind_what_came_and_what_is_in_flight() {
    let mut drafter = begun();
    drafter.push(ID, 9);
    drafter.model_drafted(ID, run(&[10, 11, 12, 13]));
    let draft = drafter.draft(ID, &[], 3);
    assert_eq!((&draft.tokens[..], draft.source), (&[10, 11, 12][..], Source::Model));
    assert!(draft.is_proven && draft.odds.len() == 3 && draft.matched == 0);
    assert_eq!(drafter.draft(ID, &[10, 11], 9).tokens, [12, 13]);
    assert!(drafter.draft(ID, &[10, 11, 12, 13], 9).tokens.is_empty());
    assert!(drafter.draft(ID, &[10, 12], 9).tokens.is_empty());
    drafter.push(ID, 10);
    let draft = drafter.draft(ID, &[11], 9);
    assert_eq!((draft.tokens, draft.matched), (vec![12, 13], 2));
}

#[test]
fn nothing_of_a_run_is_left_behind_another_token() {
    let mut drafter = begun();
    drafter.push(ID, 9);
    drafter.model_drafted(ID, run(&[10, 11, 12]));
    drafter.push(ID, 10);
    drafter.push(ID, 99);
    assert!(drafter.draft(ID, &[], 9).tokens.is_empty());
    drafter.push(ID, 12);
    assert!(drafter.draft(ID, &[], 9).tokens.is_empty());
}

#[test]
fn a_later_run_takes_the_place_where_it_goes_further_or_another_way() {
    let mut drafter = begun();
    drafter.model_drafted(ID, run(&[10, 11, 12, 13]));
    drafter.push(ID, 10);
    drafter.model_drafted(ID, run(&[11]));
    assert_eq!(drafter.draft(ID, &[], 9).tokens, [11, 12, 13]);
    drafter.model_drafted(ID, Vec::new());
    assert_eq!(drafter.draft(ID, &[], 9).tokens, [11, 12, 13]);
    drafter.model_drafted(ID, run(&[11, 12, 13, 14]));
    assert_eq!(drafter.draft(ID, &[], 9).tokens, [11, 12, 13, 14]);
    drafter.model_drafted(ID, run(&[11, 20]));
    assert_eq!(drafter.draft(ID, &[], 9).tokens, [11, 20]);
    assert!(drafter.draft(ID, &[11, 12], 9).tokens.is_empty());
}

#[test]
fn what_promises_more_is_drafted() {
    // A text with drafts of these odds.
    let of = |acceptance, model: &[u32]| {
        let mut drafter = WithModel::new(Box::new(Forced::new(acceptance, 0, 1)));
        drafter.begin(ID, OWNER, &[1], 1, &[0; 6]);
        drafter.model_drafted(ID, run(model));
        drafter.draft(ID, &[], 6)
    };
    assert_eq!(of(0.99, &[5, 6]).source, Source::Forced);
    assert_eq!(of(0.2, &[5, 6]).source, Source::Model);
    // A text that goes on along the model's drafts is both.
    let both = of(0.5, &[0, 0]);
    assert_eq!((both.source, both.tokens.len()), (Source::Forced, 6));
    assert!(both.odds[0] > 0.8 && both.odds[2] == 0.5, "{both:?}");
}

#[test]
fn what_a_grammar_forces_comes_before_what_the_block_thinks() {
    let mut drafter = WithModel::new(Box::new(Suffix::new(1 << 20)));
    drafter.begin(ID, OWNER, &[1, 2, 3], 3, &[]);
    drafter.must_follow(ID, &[5]);
    drafter.model_drafted(ID, run(&[6, 7, 8, 9]));
    assert_eq!(drafter.draft(ID, &[], 9).tokens, [5]);
    drafter.model_drafted(ID, run(&[5, 7, 8, 9]));
    assert_eq!(drafter.draft(ID, &[], 9).tokens, [5, 7, 8, 9]);
}

/// A request of the owner, all of whose drafts are right or wrong; whether it passes through the block.
fn request(drafter: &mut WithModel, id: u64, right: bool) -> bool {
    let (id, wants) = (StreamId(id), drafter.wants_model(OWNER, 3, &|_| true));
    drafter.begin(id, OWNER, &[1], 1, &[]);
    for token in 0..if wants { 20 } else { 0 } {
        drafter.model_drafted(id, run(&[token + u32::from(!right)]));
        drafter.push(id, token);
    }
    drafter.end(id);
    wants
}

#[test]
fn an_owner_whose_drafts_are_wrong_does_without_and_tries_again() {
    let mut drafter = WithModel::new(Box::new(Suffix::new(0)));
    let with: Vec<bool> = (0..60).map(|i| request(&mut drafter, i, false)).collect();
    let n_first = with.iter().take_while(|with| **with).count();
    let n_tries = with[n_first..].iter().filter(|with| **with).count();
    assert!((3..=6).contains(&n_first), "{with:?}");
    assert!((3..=4).contains(&n_tries), "{with:?}");
    assert!(drafter.wants_model(OwnerId::of(8), 3, &|_| true), "others hope");
    // Once they are right, all pass again.
    for i in 60..400 {
        request(&mut drafter, i, true);
    }
    let with: Vec<bool> = (400..420).map(|i| request(&mut drafter, i, true)).collect();
    assert!(with.iter().all(|with| *with), "{with:?}");
}

#[test]
fn an_owner_whose_right_drafts_do_not_pay_does_without() {
    let mut drafter = WithModel::new(Box::new(Suffix::new(0)));
    (0..20).for_each(|i| assert!(request(&mut drafter, i, true)));
    let pays = |odds: &[f32]| {
        assert!(odds.len() == 3 && odds[0] > 0.9, "{odds:?}");
        false
    };
    let with = (0..32).filter(|_| drafter.wants_model(OWNER, 3, &pays)).count();
    assert_eq!(with, 2, "it tries again");
    assert!(drafter.wants_model(OwnerId::of(8), 3, &|_| false), "nobody knows of others");
}

/// Whether a text that repeats itself is used in the end, although the block thinks otherwise of each token.
#[test]
fn a_text_that_has_become_right_is_noticed_beside_a_block_that_drafts() {
    let mut drafter = WithModel::new(Box::new(Suffix::new(1 << 20)));
    drafter.begin(ID, OWNER, &[90], 1, &[]);
    for i in 0..120 {
        drafter.model_drafted(ID, run(&[50]));
        drafter.draft(ID, &[], 8);
        drafter.push(ID, i % 6);
    }
    drafter.model_drafted(ID, run(&[50]));
    let draft = drafter.draft(ID, &[], 8);
    assert_eq!((draft.source, draft.is_proven), (Source::Own, true), "{draft:?}");
    assert_eq!(draft.tokens[..3], [0, 1, 2]);
}

#[test]
fn a_stream_whose_drafts_are_wrong_has_none_for_a_while() {
    let mut drafter = WithModel::new(Box::new(Suffix::new(0)));
    drafter.wants_model(OWNER, 3, &|_| true);
    (0..20).for_each(|i| assert!(request(&mut drafter, i, true)));
    drafter.begin(ID, OWNER, &[1], 1, &[]);
    assert_eq!(drafter.model_odds(ID, 3).len(), 3);
    for token in 0..240 {
        drafter.model_drafted(ID, run(&[token + 1]));
        drafter.push(ID, token);
    }
    assert!(drafter.model_odds(ID, 3).is_empty());
    assert!(drafter.model_odds(StreamId(99), 3).is_empty(), "nobody's stream");
    (0..AGAIN_AFTER).for_each(|token| drafter.push(ID, token));
    assert_eq!(drafter.model_odds(ID, 3).len(), 3, "others of its owner were right");
    drafter.model_drafted(ID, run(&[1]));
    assert!(drafter.model_odds(ID, 3).is_empty());
}

#[test]
fn owners_are_bounded_and_forgotten() {
    let mut drafter = WithModel::new(Box::new(Suffix::new(0)));
    for key in 0..2 * MAX_OWNERS as u64 {
        drafter.wants_model(OwnerId::of(key), 3, &|_| true);
    }
    assert_eq!(drafter.owners.len(), MAX_OWNERS);
    drafter.begin(ID, OWNER, &[1], 1, &[]);
    drafter.model_drafted(ID, run(&[5]));
    drafter.forget(OWNER.key);
    assert!(drafter.draft(ID, &[], 9).tokens.is_empty());
    assert!(drafter.nbytes() > 0);
}
