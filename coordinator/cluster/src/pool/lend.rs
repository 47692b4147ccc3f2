//! Chooses the workers to lend to a line: as few as hold its model, and the smallest of these. Pure.

/// Number of a worker of the pool; lower ones joined first.
pub type WorkerId = usize;

/// A worker that could be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The number of the worker.
    pub id: WorkerId,
    /// Bytes that it may use.
    pub memory: u64,
    /// Whether the worker has layers of the model in memory.
    pub has_layers: bool,
    /// Whether the worker broke a line lately. Such a worker is lent where the others do not suffice.
    pub doubted: bool,
    /// The node whose memory it shares with other stages; `None`: it has memory of its own.
    pub node: Option<u64>,
    /// The least number of equal parts of the model of which one has room in its cache.
    pub parts: u64,
}

/// What is lacking for a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lack {
    /// The same in words.
    pub why: String,
    /// Whether it is room in workers' caches, and nothing else.
    pub is_disk: bool,
}

impl From<String> for Lack {
    fn from(why: String) -> Self {
        Self { why, is_disk: false }
    }
}

/// [`Offer::parts`] of a worker whose cache leaves `left` bytes to a model of `needed` bytes; `None`: it needs none, or has no
/// limit.
pub fn parts(needed: u64, left: Option<u64>) -> u64 {
    match left {
        None => 1,
        Some(0) => u64::MAX,
        Some(left) => needed.div_ceil(left).max(1),
    }
}

/// Leading bits of a size that count in a comparison: equal machines differ in free memory by less than the others.
const SIZE_BITS: u32 = 4;

impl Offer {
    /// The worker's memory, for comparing two workers.
    fn size(&self) -> u64 {
        let lower = (u64::BITS - self.memory.leading_zeros()).saturating_sub(SIZE_BITS);
        self.memory >> lower << lower
    }
}

/// Chooses workers for a line beside those that it `holds`: as few as make `at_least` in all and fit. Among these it
/// prefers workers with similar memory, then small ones, so that large ones are left for large models, and then those
/// that have layers of the model. `fits` says whether the model fits on some workers, or what is lacking.
///
/// # Errors
/// The model does not fit on all that are offered; says what is lacking then.
pub fn choose(
    offers: &[Offer],
    holds: &[WorkerId],
    at_least: usize,
    fits: &mut dyn FnMut(&[WorkerId]) -> Result<(), Lack>,
) -> Result<Vec<WorkerId>, Lack> {
    let mut chosen = Err(Lack::default());
    for some in selections(offers) {
        chosen = smallest(some, holds, at_least, fits);
        if chosen.is_ok() {
            break;
        }
    }
    chosen
}

/// The workers to choose from, one selection after the other: those that are trusted, and then all. Of each of these the
/// first stages of all nodes, then two of each, and so on: the second stage of a node brings no memory, so it is taken
/// for the number alone.
fn selections(offers: &[Offer]) -> Vec<Vec<Offer>> {
    let trusted: Vec<Offer> = offers.iter().copied().filter(|offer| !offer.doubted).collect();
    let all = (trusted.len() < offers.len()).then(|| offers.to_vec());
    let mut selections = Vec::new();
    for mut some in [trusted].into_iter().chain(all) {
        // A stage that has layers uses its own memory again.
        some.sort_by_key(|offer| (!offer.has_layers, offer.id));
        let before = |at: usize| {
            let same = |other: &&Offer| other.node.is_some() && other.node == some[at].node;
            some[..at].iter().filter(same).count()
        };
        let rounds: Vec<usize> = (0..some.len()).map(before).collect();
        for round in 0..=rounds.iter().copied().max().unwrap_or(0) {
            let of = some.iter().zip(&rounds).filter(|(_, of)| **of <= round);
            selections.push(of.map(|(offer, _)| *offer).collect());
        }
    }
    selections
}

/// The fewest of `all` that have to go so that something fits, the first ones first.
///
/// # Errors
/// The thing does not fit even without all of them. The error says what is lacking.
pub fn fewest<T: Clone>(
    all: &[T],
    mut fits: impl FnMut(&[T]) -> Result<(), Lack>,
) -> Result<Vec<T>, Lack> {
    fits(all)?;
    let mut go = all.to_vec();
    for place in (0..go.len()).rev() {
        let mut fewer = go.clone();
        fewer.remove(place);
        if fits(&fewer).is_ok() {
            go = fewer;
        }
    }
    Ok(go)
}

/// The same among one selection.
fn smallest(
    mut offers: Vec<Offer>,
    holds: &[WorkerId],
    at_least: usize,
    fits: &mut dyn FnMut(&[WorkerId]) -> Result<(), Lack>,
) -> Result<Vec<WorkerId>, Lack> {
    offers.sort_by_key(|offer| (offer.size(), !offer.has_layers, offer.id));
    let fewest = at_least.saturating_sub(holds.len()).max(usize::from(holds.is_empty()));
    let there = (holds.len() + offers.len()).min(at_least);
    let mut lacking = Lack::from(format!("{there} of {at_least} workers are there"));
    for n in fewest..=offers.len() {
        // Those come first whose caches have room for an equal part of the model.
        let parts = (holds.len() + n) as u64;
        let roomy: Vec<Offer> =
            offers.iter().copied().filter(|offer| offer.parts <= parts).collect();
        let all = (roomy.len() < offers.len()).then_some(&offers);
        for some in [&roomy].into_iter().chain(all).filter(|some| some.len() >= n) {
            match smallest_window(some, holds, n, fits) {
                Ok(ids) => return Ok(ids),
                Err(why) => lacking = why,
            }
        }
    }
    Err(lacking)
}

/// `n` neighbours of offers in order of memory on which the model fits: the smallest, of neighbours since they are the most
/// alike.
fn smallest_window(
    offers: &[Offer],
    holds: &[WorkerId],
    n: usize,
    fits: &mut dyn FnMut(&[WorkerId]) -> Result<(), Lack>,
) -> Result<Vec<WorkerId>, Lack> {
    let (mut chosen, last) = (Err(Lack::default()), if n == 0 { 0 } else { offers.len() - n });
    for window in (0..=last).rev().map(|begin| &offers[begin..begin + n]) {
        let mut ids: Vec<WorkerId> = window.iter().map(|offer| offer.id).collect();
        ids.sort_unstable();
        match fits(&[holds, &ids].concat()) {
            Ok(()) => chosen = Ok(ids),
            // Smaller ones may have larger caches.
            Err(why) if why.is_disk => {
                if chosen.is_err() {
                    chosen = Err(why);
                }
            }
            // If the largest memories do not suffice, no others do.
            Err(why) => return chosen.map_err(|lack| if lack.is_disk { lack } else { why }),
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers with so much memory, numbered from 0.
    fn offers(memory: &[u64]) -> Vec<Offer> {
        let of = |(id, &memory)| Offer {
            id,
            memory,
            has_layers: false,
            doubted: false,
            node: None,
            parts: 1,
        };
        memory.iter().enumerate().map(of).collect()
    }

    /// The smallest choice for a model of so many bytes.
    fn lent(
        offers: &[Offer],
        held: &[(WorkerId, u64)],
        at_least: usize,
        bytes: u64,
    ) -> Option<Vec<WorkerId>> {
        let memory = |id: &WorkerId| {
            let offered = offers.iter().find(|offer| offer.id == *id).map(|offer| offer.memory);
            offered.or_else(|| held.iter().find(|(held, _)| held == id).map(|(_, bytes)| *bytes))
        };
        let mut fits = |ids: &[WorkerId]| {
            if ids.iter().filter_map(memory).sum::<u64>() >= bytes {
                Ok(())
            } else {
                Err("memory".to_owned().into())
            }
        };
        let holds: Vec<WorkerId> = held.iter().map(|(id, _)| *id).collect();
        choose(offers, &holds, at_least, &mut fits).ok()
    }

    #[test]
    fn a_small_model_takes_the_smallest_worker_that_holds_it() {
        let all = offers(&[64, 8, 16, 16]);
        assert_eq!(lent(&all, &[], 1, 10), Some(vec![2]));
        assert_eq!(lent(&all, &[], 1, 5), Some(vec![1]));
        assert_eq!(lent(&all, &[], 1, 60), Some(vec![0]));
    }

    #[test]
    fn a_large_model_takes_as_few_as_hold_it() {
        assert_eq!(lent(&offers(&[16, 64, 16, 32]), &[], 1, 90), Some(vec![1, 3]));
        assert_eq!(lent(&offers(&[16, 64, 16, 32]), &[], 1, 128), Some(vec![0, 1, 2, 3]));
        assert_eq!(lent(&offers(&[16, 64, 16, 32]), &[], 1, 129), None);
        assert_eq!(lent(&[], &[], 1, 0), None, "no line without a worker");
    }

    #[test]
    fn a_worker_whose_cache_has_room_is_preferred_to_a_cut() {
        let mut all = offers(&[8, 16, 16]);
        (all[0].parts, all[1].parts) = (2, u64::MAX);
        let mut fits = |ids: &[WorkerId]| match ids {
            [0] | [1] | [0, 1] => Err(Lack { why: "disk".to_owned(), is_disk: true }),
            _ => Ok(()),
        };
        assert_eq!(choose(&all, &[], 1, &mut fits), Ok(vec![2]));
        // A larger memory may have the smaller cache.
        (all[0].parts, all[2].parts) = (1, 2);
        let mut small = |ids: &[WorkerId]| match ids {
            [0] | [0, 2] => Ok(()),
            _ => Err(Lack { why: "disk".to_owned(), is_disk: true }),
        };
        assert_eq!(choose(&all, &[], 1, &mut small), Ok(vec![0]));
        assert_eq!(choose(&all, &[], 2, &mut small), Ok(vec![0, 2]), "two are expected");
        let lack = choose(&all[1..], &[], 1, &mut small).unwrap_err();
        assert!(lack.is_disk, "{lack:?}");
        assert_eq!(
            [None, Some(0), Some(10), Some(4)].map(|left| parts(10, left)),
            [1, u64::MAX, 1, 3]
        );
    }

    #[test]
    fn a_line_gets_at_least_as_many_as_are_expected() {
        assert_eq!(lent(&offers(&[16, 64, 16]), &[], 2, 5), Some(vec![0, 2]));
        assert_eq!(lent(&offers(&[16]), &[], 2, 5), None);
    }

    #[test]
    fn a_line_that_lost_a_worker_gets_what_it_lacks() {
        let spares = offers(&[8, 16]);
        assert_eq!(lent(&spares, &[(7, 16)], 2, 30), Some(vec![1]));
        assert_eq!(lent(&spares, &[(7, 16)], 2, 20), Some(vec![0]));
        assert_eq!(lent(&spares, &[(7, 16)], 1, 16), Some(vec![]), "it lacks nothing");
    }

    #[test]
    fn of_equal_workers_those_that_have_layers_are_lent() {
        let gib = |n: u64, more: u64| (n << 30) + more;
        let mut all = offers(&[gib(15, 0), gib(15, 77), gib(15, 99), gib(32, 0)]);
        (all[2].has_layers, all[3].has_layers) = (true, true);
        assert_eq!(lent(&all, &[], 1, gib(4, 0)), Some(vec![2]));
        all[2].has_layers = false;
        assert_eq!(lent(&all, &[], 1, gib(4, 0)), Some(vec![0]), "a large one is for large models");
    }

    #[test]
    fn who_broke_a_line_is_lent_where_the_others_do_not_suffice() {
        let mut all = offers(&[16, 64, 64]);
        (all[0].doubted, all[1].doubted) = (true, true);
        assert_eq!(lent(&all, &[], 1, 10), Some(vec![2]));
        assert_eq!(lent(&all, &[], 1, 100), Some(vec![1, 2]));
    }

    #[test]
    fn a_node_lends_one_stage_where_that_suffices() {
        // Two nodes of two stages. A node's stages divide what it has.
        let mut all = offers(&[48, 48, 16, 16, 32]);
        let nodes = [Some(1), Some(1), Some(2), Some(2), None];
        all.iter_mut().zip(nodes).for_each(|(offer, node)| offer.node = node);
        let sizes = all.clone();
        let mut asked = 0;
        let mut chosen = |at_least, bytes| {
            let mut fits = |ids: &[WorkerId]| {
                asked += 1;
                let first = |id: &&WorkerId| match sizes[**id].node {
                    None => true,
                    node => ids.iter().find(|other| sizes[**other].node == node) == Some(id),
                };
                let sum: u64 = ids.iter().filter(first).map(|id| sizes[*id].memory).sum();
                if sum >= bytes { Ok(()) } else { Err("memory".to_owned().into()) }
            };
            choose(&all, &[], at_least, &mut fits).ok()
        };
        assert_eq!(chosen(1, 40), Some(vec![0]));
        assert_eq!(chosen(1, 80), Some(vec![0, 4]), "not both stages of the larger node");
        assert_eq!(chosen(1, 96), Some(vec![0, 2, 4]));
        assert_eq!(chosen(1, 97), None, "their second stages bring nothing");
        assert_eq!(chosen(5, 96), Some(vec![0, 1, 2, 3, 4]), "as many as are expected");
        assert!(asked < 100, "{asked}");
    }
}
