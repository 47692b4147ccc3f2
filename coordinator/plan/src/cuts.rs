//! Finds the best contiguous cuts of layers over workers in a given order, exactly, by dynamic programming.
//!
//! It knows numbers only. A worker may get nothing. It looks up `O(workers * layers^2)` costs.

use std::ops::Range;

/// How the costs of stages add up to that of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// The slowest stage counts.
    Max,
    /// The sum of all stages counts.
    Sum,
}

impl Join {
    fn join(self, a: f64, b: f64) -> f64 {
        match self {
            Join::Max => a.max(b),
            Join::Sum => a + b,
        }
    }
}

/// The cheapest way to give layers `0..n_layers` to `n_workers` in order: the cost and a range for each worker
/// (empty: unused). `cost(worker, range)` is `None` where the worker cannot have the range. Returns `None` if no way
/// is possible. It takes the way that uses the earlier workers, where several are equally cheap.
pub(super) fn cheapest(
    n_workers: usize,
    n_layers: usize,
    join: Join,
    cost: impl Fn(usize, &Range<usize>) -> Option<f64>,
) -> Option<(f64, Vec<Range<usize>>)> {
    // best[l]: cheapest way to place layers 0..l on the workers so far.
    let mut best: Vec<Option<f64>> = vec![None; n_layers + 1];
    best[0] = Some(0.0);
    let mut starts = Vec::with_capacity(n_workers);
    for worker in 0..n_workers {
        let mut next = best.clone();
        let mut start: Vec<usize> = (0..=n_layers).collect();
        for end in 1..=n_layers {
            for (from, before) in best[..end].iter().enumerate() {
                let Some(before) = *before else { continue };
                if next[end].is_some_and(|found| join == Join::Max && before >= found) {
                    continue;
                }
                let Some(own) = cost(worker, &(from..end)) else { continue };
                let total = join.join(before, own);
                if next[end].is_none_or(|found| total < found) {
                    next[end] = Some(total);
                    start[end] = from;
                }
            }
        }
        best = next;
        starts.push(start);
    }
    let total = best[n_layers]?;
    let mut ranges = vec![0..0; n_workers];
    let mut end = n_layers;
    for worker in (0..n_workers).rev() {
        let from = starts[worker][end];
        ranges[worker] = from..end;
        end = from;
    }
    Some((total, ranges))
}

/// The cuts with the least slowest stage; among those, the most even ones: with the least sum of `squares`,
/// which is asked about ranges that can be. The first result is the slowest stage's cost.
pub(super) fn most_even(
    n_workers: usize,
    n_layers: usize,
    cost: impl Fn(usize, &Range<usize>) -> Option<f64>,
    squares: impl Fn(usize, &Range<usize>) -> f64,
) -> Option<(f64, Vec<Range<usize>>)> {
    let (slowest, _) = cheapest(n_workers, n_layers, Join::Max, &cost)?;
    let limit = slowest * (1.0 + 1e-9);
    let within = |worker: usize, range: &Range<usize>| {
        cost(worker, range).filter(|&own| own <= limit).map(|_| squares(worker, range))
    };
    let (_, ranges) = cheapest(n_workers, n_layers, Join::Sum, within)?;
    Some((slowest, ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squared(_: usize, range: &Range<usize>) -> f64 {
        (range.len() * range.len()) as f64
    }

    #[test]
    fn even_costs_are_cut_evenly() {
        let cost = |_: usize, r: &Range<usize>| Some(r.len() as f64);
        assert_eq!(most_even(3, 9, cost, squared), Some((3.0, vec![0..3, 3..6, 6..9])));
        // Any of two 4s and one 2, or 4 3 3: the latter is more even.
        let (slowest, ranges) = most_even(3, 10, cost, squared).unwrap();
        let mut sizes: Vec<_> = ranges.iter().map(ExactSizeIterator::len).collect();
        sizes.sort_unstable();
        assert_eq!((slowest, sizes), (4.0, vec![3, 3, 4]));
    }

    #[test]
    fn more_workers_than_layers_leaves_some_unused() {
        let (slowest, ranges) = most_even(5, 2, |_, r| Some(r.len() as f64), squared).unwrap();
        assert_eq!(slowest, 1.0);
        assert_eq!(ranges.iter().filter(|r| !r.is_empty()).count(), 2);
    }

    #[test]
    fn impossible_is_none() {
        assert_eq!(most_even(2, 4, |_, r| (r.len() < 2).then_some(1.0), squared), None);
        assert_eq!(most_even(0, 4, |_, _| Some(1.0), squared), None);
    }
}
