//! Cuts that the operator gives instead of the planner: shares of the layers (`--tensor-split`) or the first
//! layers of stages (`--cuts`).
//!
//! Workers are taken in the order in which they are given. A cut that does not fit is refused with one that
//! would.

use std::fmt;
use std::ops::Range;

use super::capacity;
use super::cost::Costs;
use super::error::PlanError;
use super::facts::WorkerFacts;
use super::keep::KeptRoom;
use super::place::{self, Placement};
use super::units::format_bytes;
use super::{Capacity, MAX_WORKERS};

/// Largest share that may be given: sums of so many stay exact enough.
const MAX_SHARE: f64 = 1e9;

/// The operator's cut of the layers.
#[derive(Clone, Debug, PartialEq)]
pub enum HandCut {
    /// One share a worker, in proportion to which it gets layers; 0 leaves it out, any other gets one layer at
    /// least.
    Shares(Vec<f64>),
    /// The first layer of each worker but the first.
    Borders(Vec<usize>),
}

impl HandCut {
    /// Reads `3,1,1` (or `3/1/1`).
    ///
    /// # Errors
    /// The text is invalid; the error shows the valid forms.
    pub fn shares(text: &str) -> Result<Self, String> {
        let share = |item: &str| {
            let good = |share: &f64| (0.0..=MAX_SHARE).contains(share);
            item.trim().parse().ok().filter(good).ok_or_else(|| {
                format!("{item:?} is not a share: a number from 0 to {MAX_SHARE} is needed for each worker, as in 3,1,1")
            })
        };
        let shares: Vec<f64> = text.split([',', '/']).map(share).collect::<Result<_, _>>()?;
        if shares.len() > MAX_WORKERS {
            return Err(format!("{} shares: at most {MAX_WORKERS} workers", shares.len()));
        }
        if shares.iter().all(|share| *share == 0.0) {
            return Err(
                "all shares are 0: one worker at least must get layers, as in 3,0,1".to_string()
            );
        }
        Ok(Self::Shares(shares))
    }

    /// Reads the first layers of stages, such as `12,24`.
    ///
    /// # Errors
    /// The text is invalid; the error names the allowed values.
    pub fn borders(text: &str) -> Result<Self, String> {
        let border = |item: &str| {
            item.trim().parse().map_err(|_| {
                format!("{item:?} is not a layer: give the first layer of each worker but the first, as in 12,24")
            })
        };
        let borders: Vec<usize> = text.split(',').map(border).collect::<Result<_, _>>()?;
        if borders.len() >= MAX_WORKERS {
            return Err(format!("{} cuts: at most {}", borders.len(), MAX_WORKERS - 1));
        }
        if let Some(pair) = borders.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!(
                "{} does not come before {}: cuts must ascend, as in 12,24",
                pair[0], pair[1]
            ));
        }
        Ok(Self::Borders(borders))
    }

    /// Workers that it names.
    pub fn n_workers(&self) -> usize {
        match self {
            Self::Shares(shares) => shares.len(),
            Self::Borders(borders) => borders.len() + 1,
        }
    }

    /// Layers of each worker that it names; empty: none.
    ///
    /// # Errors
    /// [`PlanError::Cut`] where a model of `n_layers` layers cannot be cut like this.
    pub fn ranges(&self, n_layers: usize) -> Result<Vec<Range<usize>>, PlanError> {
        let borders = match self {
            Self::Shares(shares) => self.borders_of(shares, n_layers)?,
            Self::Borders(borders) => {
                let outside = |border: &&usize| !(1..n_layers).contains(*border);
                if let Some(border) = borders.iter().find(outside) {
                    return Err(self.refused(format!(
                        "there is no cut before layer {border}: the model has {n_layers} layers, so cuts lie from 1 \
                         to {}",
                        n_layers.saturating_sub(1)
                    )));
                }
                borders.clone()
            }
        };
        let starts = std::iter::once(0).chain(borders.iter().copied());
        let ends = borders.iter().copied().chain([n_layers]);
        Ok(starts.zip(ends).map(|(start, end)| start..end).collect())
    }

    /// The nearest borders to the shares of `n_layers` layers; a share above 0 gets one layer at least.
    fn borders_of(&self, shares: &[f64], n_layers: usize) -> Result<Vec<usize>, PlanError> {
        let used = shares.iter().filter(|share| **share > 0.0).count();
        if used > n_layers {
            return Err(self.refused(format!(
                "{used} workers are to get layers and the model has {n_layers}: give at most {n_layers} shares above 0"
            )));
        }
        let total: f64 = shares.iter().sum();
        let mut sum = 0.0;
        // Workers with a share up to and after this one.
        let (mut begun, mut left) = (0, used);
        let mut border = 0;
        let mut borders = Vec::new();
        for share in &shares[..shares.len() - 1] {
            sum += share;
            if *share > 0.0 {
                (begun, left) = (begun + 1, left - 1);
                let nearest = (sum / total * n_layers as f64).round() as usize;
                border = nearest.max(border + 1).max(begun).min(n_layers - left);
            }
            borders.push(border);
        }
        Ok(borders)
    }

    /// Refuses it for a line of another number of workers.
    ///
    /// # Errors
    /// [`PlanError::Cut`] with a cut that would do.
    pub fn check_workers(&self, n_workers: usize, n_layers: usize) -> Result<(), PlanError> {
        let named = self.n_workers();
        if named == n_workers {
            return Ok(());
        }
        let even: Vec<usize> = (1..n_workers).map(|i| i * n_layers / n_workers).collect();
        let (given, example) = match self {
            Self::Shares(_) => (format!("{named} shares"), Self::Shares(vec![1.0; n_workers])),
            Self::Borders(_) => (format!("that makes {named} stages"), Self::Borders(even)),
        };
        let what = match (self, n_workers) {
            (Self::Borders(_), 1) => "leave --cuts out".to_string(),
            (Self::Borders(_), n) if n > n_layers => {
                format!("{n_layers} layers cannot be cut over {n}")
            }
            _ => format!("{example} would do"),
        };
        Err(self.refused(format!("{given}, and there are {n_workers} workers: {what}")))
    }

    fn refused(&self, problem: String) -> PlanError {
        PlanError::Cut { cut: self.to_string(), problem }
    }
}

impl fmt::Display for HandCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flag, items): (_, Vec<String>) = match self {
            Self::Shares(shares) => ("--tensor-split", shares.iter().map(f64::to_string).collect()),
            Self::Borders(borders) => ("--cuts", borders.iter().map(usize::to_string).collect()),
        };
        write!(f, "{flag} {}", items.join(","))
    }
}

/// The operator's cut, with as much KV cache as fits.
pub(super) fn place(costs: &Costs, cut: &HandCut) -> Result<Placement, PlanError> {
    cut.check_workers(costs.workers.len(), costs.n_layers())?;
    let ranges = cut.ranges(costs.n_layers())?;
    let fits = |n_blocks: u32, n_kept: u32| {
        let capacity = capacity::capacity(costs.settings, n_blocks, n_kept);
        short(costs, &ranges, capacity).next().is_none()
    };
    let capacity::Wishes { least, all: wished, .. } = capacity::wishes(costs.settings);
    if !fits(least, 0) {
        return Err(does_not_fit(
            costs,
            cut,
            &ranges,
            capacity::capacity(costs.settings, least, 0),
        ));
    }
    let n_blocks = capacity::largest(least, wished, |n| fits(n, 0));
    let KeptRoom { states, pages } = costs.keep;
    let n_kept = if costs.has_states() {
        capacity::largest(0, states, |n| fits(n_blocks, n))
    } else {
        states
    };
    let with_kept = n_blocks.saturating_add(if n_kept > 0 { pages } else { 0 });
    let n_blocks = capacity::largest(n_blocks, with_kept, |n| fits(n, n_kept));
    Ok(Placement {
        order: (0..ranges.len()).collect(),
        ranges,
        capacity: capacity::capacity(costs.settings, n_blocks, n_kept),
        wished_blocks: wished,
        by_hand: Some(cut.to_string()),
    })
}

/// Workers whose layers are too many for their memory.
fn short<'a>(
    costs: &'a Costs,
    ranges: &'a [Range<usize>],
    capacity: Capacity,
) -> impl Iterator<Item = usize> + 'a {
    let lacks = move |w: usize| costs.lacks(w, &ranges[w], capacity).is_some();
    (0..ranges.len()).filter(move |&w| !ranges[w].is_empty() && lacks(w))
}

fn does_not_fit(
    costs: &Costs,
    cut: &HandCut,
    ranges: &[Range<usize>],
    capacity: Capacity,
) -> PlanError {
    let own = match place::place(costs) {
        Ok(own) => own,
        // No cut fits: the error is about missing memory, not about the cut.
        Err(error) => return error,
    };
    let each = short(costs, ranges, capacity).map(|w| {
        let (worker, range) = (&costs.workers[w], &ranges[w]);
        let (needs, has) = costs.lacks(w, range, capacity).unwrap_or_default();
        let most = most_layers(costs, w, range, capacity);
        format!(
            "{} has {} and its {} layers need {} (at most {most} of them fit)",
            worker.name,
            format_bytes(has),
            range.len(),
            format_bytes(needs)
        )
    });
    let each: Vec<String> = each.collect();
    cut.refused(format!(
        "{}; the planner's own cut fits: {}",
        each.join("; "),
        own_cut(costs.workers, &own)
    ))
}

/// Layers that a worker holds at most of those that it was given.
fn most_layers(costs: &Costs, worker: usize, range: &Range<usize>, capacity: Capacity) -> usize {
    let last = range.end == costs.n_layers();
    let part =
        |n: usize| if last { range.end - n..range.end } else { range.start..range.start + n };
    let fits = |n: &usize| costs.lacks(worker, &part(*n), capacity).is_none();
    (1..range.len()).rev().find(fits).unwrap_or(0)
}

/// The planner's own cut as text, such as `a 0..8, b 8..24`, with the options for it where they can express it.
fn own_cut(workers: &[WorkerFacts], own: &Placement) -> String {
    let used: Vec<(usize, &Range<usize>)> =
        own.order.iter().copied().zip(&own.ranges).filter(|(_, range)| !range.is_empty()).collect();
    let each = used.iter().map(|(w, r)| format!("{} {}..{}", workers[*w].name, r.start, r.end));
    let each: Vec<String> = each.collect();
    let in_order = own.order.is_sorted() && used.len() == workers.len() && used.len() > 1;
    let borders = used.iter().skip(1).map(|(_, range)| range.start).collect();
    if in_order {
        format!("{} ({})", each.join(", "), HandCut::Borders(borders))
    } else {
        each.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(cut: &str, n_layers: usize) -> Vec<Range<usize>> {
        HandCut::shares(cut).unwrap().ranges(n_layers).unwrap()
    }

    #[test]
    fn shares_become_the_nearest_layers() {
        assert_eq!(ranges("3,1,1", 20), [0..12, 12..16, 16..20]);
        assert_eq!(ranges("1/1", 5), [0..3, 3..5]);
        assert_eq!(ranges("3,0,1", 8), [0..6, 6..6, 6..8]);
        assert_eq!(ranges("0,1", 4), [0..0, 0..4]);
        assert_eq!(ranges("0.5,0.5,0", 4), [0..2, 2..4, 4..4]);
    }

    #[test]
    fn whoever_has_a_share_gets_a_layer() {
        assert_eq!(ranges("1000,1,1", 4), [0..2, 2..3, 3..4]);
        assert_eq!(ranges("1,1,1000", 4), [0..1, 1..2, 2..4]);
        assert_eq!(ranges("1,0,1e9,0,1", 3), [0..1, 1..1, 1..2, 2..2, 2..3]);
        let error = HandCut::shares("1,1,1,1").unwrap().ranges(3).unwrap_err().to_string();
        assert!(error.contains("4 workers") && error.contains("at most 3 shares"), "{error}");
    }

    #[test]
    fn what_is_no_cut_is_refused_with_what_would_be() {
        for (text, says) in [
            ("", "is not a share"),
            ("1,x", "\"x\" is not a share"),
            ("1,-1", "\"-1\" is not a share"),
            ("1,NaN", "\"NaN\" is not a share"),
            ("1,inf", "\"inf\" is not a share"),
            ("0,0", "all shares are 0"),
        ] {
            let error = HandCut::shares(text).unwrap_err();
            assert!(error.contains(says) && error.contains("as in 3,"), "{text}: {error}");
        }
        for (text, says) in [
            ("", "is not a layer"),
            ("-1", "is not a layer"),
            ("4,4", "must ascend"),
            ("8,4", "must ascend"),
        ] {
            let error = HandCut::borders(text).unwrap_err();
            assert!(error.contains(says) && error.contains("as in 12,24"), "{text}: {error}");
        }
        for outside in ["0", "6", "3,7"] {
            let error = HandCut::borders(outside).unwrap().ranges(6).unwrap_err().to_string();
            assert!(error.contains("from 1 to 5"), "{outside}: {error}");
        }
    }

    #[test]
    fn the_number_of_workers_must_be_that_of_the_cut() {
        let error = HandCut::borders("4").unwrap().check_workers(3, 9).unwrap_err().to_string();
        assert!(error.contains("3 workers") && error.contains("--cuts 3,6 would do"), "{error}");
        let error = HandCut::shares("1,2,3").unwrap().check_workers(2, 9).unwrap_err().to_string();
        assert!(error.contains("3 shares") && error.contains("--tensor-split 1,1"), "{error}");
        assert!(HandCut::shares("1,0,3").unwrap().check_workers(3, 9).is_ok());
    }
}
