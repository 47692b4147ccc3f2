//! Tests of reuse, of states that cover others, and of states that were shortened.

use brigade_engine::batch::AdapterUse;

use super::*;
use crate::memory::namespace::Namespace;

fn space(owner: u64) -> Space {
    Space::new(Namespace::of_owner(owner), &[])
}

fn add(pool: &mut KeptPool, space: &Space, tokens: &[u32]) -> KeptId {
    pool.insert(NewKept {
        slot: SlotId(pool.len() as u32),
        blocks: vec![],
        prompt: Prompt { tokens, space },
        owner: 7,
        origin: Origin::default(),
        filled: true,
        pinned: false,
    })
}

fn pool(all: &[&[u32]]) -> KeptPool {
    let mut pool = KeptPool::default();
    for tokens in all {
        add(&mut pool, &space(7), tokens);
    }
    pool
}

fn best(pool: &KeptPool, space: &Space, tokens: &[u32], prefixes: Prefixes) -> Option<(u64, u32)> {
    let best = pool.best(Prompt { tokens, space }, prefixes, |_, _| 0);
    best.map(|(source, len)| match source {
        Source::Kept(id) => (id.0, len),
        Source::Live(..) => panic!("nobody runs"),
    })
}

#[test]
fn the_longest_usable_one_begins_a_prompt() {
    let mut pool = pool(&[&[1, 2], &[1, 2, 3, 9], &[1, 2, 3, 4], &[7]]);
    let of = |pool: &KeptPool, tokens: &[u32], prefixes| best(pool, &space(7), tokens, prefixes);
    assert_eq!(of(&pool, &[1, 2, 3, 4, 5], Prefixes::All), Some((2, 4)));
    assert_eq!(of(&pool, &[1, 2, 3, 4, 5], Prefixes::Whole), Some((2, 4)));
    // One row must be left to compute.
    assert_eq!(of(&pool, &[1, 2, 3, 4], Prefixes::All), Some((2, 3)));
    assert_eq!(of(&pool, &[1, 2, 3, 4], Prefixes::Whole), Some((0, 2)));
    // Of equals the one used last.
    pool.touch(KeptId(1));
    assert_eq!(of(&pool, &[1, 2, 3, 5], Prefixes::All), Some((1, 3)));
    assert_eq!(of(&pool, &[8, 2], Prefixes::All), None);
    assert_eq!(of(&pool, &[7], Prefixes::All), None);
    pool.get_mut(KeptId(2)).unwrap().filled = false;
    assert_eq!(of(&pool, &[1, 2, 3, 4, 5], Prefixes::Whole), Some((0, 2)));
}

#[test]
fn what_a_running_sequence_has_read_begins_others_as_well() {
    let mut pool = pool(&[&[1, 2, 9]]);
    let own = space(7);
    let prompt = Prompt { tokens: &[1, 2, 3, 4], space: &own };
    let node = pool.enter(prompt, SeqNo(5), Half::Own);
    let like = Prompt { tokens: &[1, 2, 3, 4, 5], space: &own };
    let of = |sent| pool.best(like, Prefixes::All, |_, _| sent);
    assert_eq!(of(4), Some((Source::Live(SeqNo(5), Half::Own), 4)));
    assert_eq!(of(3), Some((Source::Live(SeqNo(5), Half::Own), 3)));
    // Of equals the kept one.
    assert_eq!(of(2), Some((Source::Kept(KeptId(0)), 2)));
    assert_eq!(pool.best(like, Prefixes::Whole, |_, _| 4), None);
    assert_eq!(pool.readers(like), [(SeqNo(5), 4)]);
    assert_eq!(pool.readers(Prompt { tokens: &[1, 2, 7, 7], space: &own }), [(SeqNo(5), 2)]);
    assert_eq!(pool.readers(Prompt { tokens: &[1, 2, 3, 4], space: &space(8) }), []);
    pool.leave(node, SeqNo(5), Half::Own);
    assert_eq!(pool.readers(like), []);
}

#[test]
fn forks_are_where_others_went_another_way_or_ended() {
    let pool = pool(&[&[1, 2, 3, 4], &[1, 2, 3, 4, 5, 6, 7], &[1, 9]]);
    let own = space(7);
    let at = |tokens: &[u32], from| pool.forks(Prompt { tokens, space: &own }, from);
    assert_eq!(at(&[1, 2, 3, 4, 5, 8, 8], 0), [1, 4, 5]);
    assert_eq!(at(&[1, 2, 3, 4, 5, 8, 8], 4), [5]);
    assert_eq!(at(&[1, 2, 8], 0), [1, 2]);
    assert!(at(&[8, 8], 0).is_empty());
}

#[test]
fn what_other_adapters_computed_begins_nothing_and_covers_nothing() {
    let mut pool = pool(&[&[1, 2, 3]]);
    let scaled = |scale| Space::new(Namespace::of_owner(7), &[AdapterUse { adapter: 0, scale }]);
    add(&mut pool, &scaled(0.5), &[1, 2]);
    let of = |space: &Space| best(&pool, space, &[1, 2, 3, 4], Prefixes::All);
    assert_eq!(of(&space(7)), Some((0, 3)));
    assert_eq!(of(&scaled(0.5)), Some((1, 2)));
    assert_eq!(of(&scaled(0.25)), None);
    let covered =
        |space: &Space| pool.covered_by(Prompt { tokens: &[1, 2, 3], space }, Prefixes::All);
    assert_eq!(covered(&space(7)), [KeptId(0)]);
    assert_eq!(covered(&scaled(0.5)), [KeptId(1)]);
    let same = |space: &Space| pool.same(Prompt { tokens: &[1, 2], space });
    assert_eq!((same(&space(7)), same(&scaled(0.5))), (None, Some(KeptId(1))));
}

#[test]
fn what_another_owner_has_computed_begins_nothing_and_covers_nothing() {
    let pool = pool(&[&[1, 2, 3]]);
    assert!(best(&pool, &space(7), &[1, 2, 3, 4], Prefixes::All).is_some());
    let other = space(8);
    let whole = Prompt { tokens: &[1, 2, 3], space: &other };
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        assert_eq!(best(&pool, &other, &[1, 2, 3, 4], prefixes), None);
        assert_eq!(pool.covered_by(whole, prefixes), []);
    }
    assert_eq!(pool.same(whole), None);
}

#[test]
fn what_a_longer_one_stands_for_as_well_is_of_no_use() {
    let mut pool = pool(&[&[1, 2], &[1, 2, 3], &[1, 3]]);
    let own = space(7);
    let prompt = Prompt { tokens: &[1, 2, 3], space: &own };
    assert_eq!(pool.covered_by(prompt, Prefixes::All), [KeptId(0), KeptId(1)]);
    assert_eq!(pool.covered_by(prompt, Prefixes::Whole), [KeptId(1)]);
    pool.get_mut(KeptId(0)).unwrap().pinned = true;
    assert_eq!(pool.covered_by(prompt, Prefixes::All), [KeptId(1)]);
}

/// Prints the time of a search for the beginning of a prompt. It is a measurement, not a limit.
#[test]
fn a_look_up_among_ten_thousand_nodes() {
    const TIMES: u32 = 20;
    let mut rng = crate::sim::Rng::new(1);
    let mut draw = |n: u64| (0..n).map(|_| rng.between(0, 30_000) as u32).collect::<Vec<_>>();
    let prompt = draw(100_001);
    let own = space(7);
    // At each of so many places others went another way: few, as agents do, or all of them at a place of its own.
    for places in [100, 5_000] {
        let mut pool = KeptPool::default();
        let whole = add(&mut pool, &own, &prompt[..99_000]);
        for i in 0..10_000 - places {
            let at = (i % places + 1) * 100_000 / places;
            add(&mut pool, &own, &[&prompt[..at], &draw(20)].concat());
        }
        for (prefixes, len) in [(Prefixes::All, 100_000), (Prefixes::Whole, 99_000)] {
            let took = (0..TIMES).map(|_| {
                let begun = std::time::Instant::now();
                let found = best(&pool, &own, &prompt, prefixes).expect("there is one");
                assert_eq!(found.1, len);
                assert!(prefixes == Prefixes::All || found.0 == whole.0);
                begun.elapsed()
            });
            let (least, n) = (took.min().unwrap_or_default(), pool.n_nodes());
            println!("{prefixes:?}, {places} places, {n} nodes: {least:?}, the least of {TIMES}");
        }
    }
}

#[test]
fn one_that_was_shortened_stands_for_what_is_left() {
    let mut pool = pool(&[&[1, 2, 3, 4, 5, 6]]);
    pool.shorten(KeptId(0), &space(7), 4);
    assert_eq!(best(&pool, &space(7), &[1, 2, 3, 4, 5, 6, 7], Prefixes::All), Some((0, 4)));
    assert_eq!(pool.info(pool.get(KeptId(0)).unwrap()).tokens, [1, 2, 3, 4]);
    assert_eq!(pool.n_nodes(), 1);
}
