//! Routing of tokens to experts: the choice from a router's logits, and the order in which experts then work.

use std::ops::Range;

use crate::arch::{ExpertGroups, MoeSpec, Router};
use crate::device::Share;

/// The smallest sum that chosen weights are divided by (the smallest normal f16).
const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;
/// Members of a group whose scores are its score.
const GROUP_SCORES: usize = 2;

/// The experts of one row with their weights, by descending score (ties: the lower id). The score
/// is the router's weight, plus `bias` where there is one. [`Router::SoftmaxOfChosen`] has no weights yet:
/// its logits are chosen from, and come back as they are.
pub(super) fn choose(probs: &[f32], bias: Option<&[f32]>, spec: &MoeSpec) -> Vec<(usize, f32)> {
    let mut scores = probs.to_vec();
    for (score, bias) in scores.iter_mut().zip(bias.unwrap_or_default()) {
        *score += bias;
    }
    if let Some(groups) = spec.groups {
        close_groups(&mut scores, groups);
    }
    weigh(best(&scores, spec.n_used), probs, spec)
}

/// Some experts of one row with their weights, in their order.
pub(super) fn weigh(order: Vec<usize>, probs: &[f32], spec: &MoeSpec) -> Vec<(usize, f32)> {
    let mut sum = 0.0;
    for &e in &order {
        sum += probs[e];
    }
    if spec.router == Router::SoftmaxOfChosen {
        return order.into_iter().map(|e| (e, probs[e])).collect();
    }
    let norm = if spec.norm_weights { sum.max(MIN_WEIGHT_SUM) } else { 1.0 };
    order.into_iter().map(|e| (e, probs[e] / norm * spec.weights_scale)).collect()
}

/// The adjugates of one row with their weights: those of the groups of its `n_used` best experts, each as often as its
/// group has one of them. Group `g` has the probability of expert `g`, divided by the sum of those that are used.
pub(super) fn choose_adjugates(
    probs: &[f32],
    per_group: usize,
    n_used: usize,
) -> Vec<(usize, f32)> {
    let groups: Vec<usize> = best(probs, n_used).into_iter().map(|e| e / per_group).collect();
    let mut sum = 0.0;
    groups.iter().for_each(|&g| sum += probs[g]);
    groups.into_iter().map(|g| (g, probs[g] / sum.max(MIN_WEIGHT_SUM))).collect()
}

/// Indices of the `n` highest scores, descending; ties by ascending index.
fn best(scores: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order.truncate(n);
    order
}

/// Puts the scores of all but the best groups out of reach.
fn close_groups(scores: &mut [f32], groups: ExpertGroups) {
    let size = scores.len() / groups.count;
    let group_score = |group: &[f32]| best(group, GROUP_SCORES).iter().map(|&e| group[e]).sum();
    let group_scores: Vec<f32> = scores.chunks_exact(size).map(group_score).collect();
    let open = best(&group_scores, groups.used);
    for (g, group) in scores.chunks_exact_mut(size).enumerate() {
        if !open.contains(&g) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Which expert computes what, as pairs (row, expert) sorted by expert.
pub(super) struct Routing {
    /// Row of each pair.
    pub rows: Vec<u32>,
    /// For each expert that has rows: its id and its pairs.
    pub spans: Vec<(usize, Range<usize>)>,
    /// Pairs of each row with their weights, in order of selection.
    shares: Vec<Share>,
}

impl Routing {
    /// Sorts the picks `(expert, weight)` of all rows, `n_used` for each row in order of selection.
    pub fn new(picks: Vec<(usize, f32)>, n_expert: usize, n_used: usize) -> Self {
        let mut starts = vec![0usize; n_expert + 1];
        for (expert, _) in &picks {
            starts[expert + 1] += 1;
        }
        for e in 0..n_expert {
            starts[e + 1] += starts[e];
        }
        let spans = (0..n_expert)
            .map(|e| (e, starts[e]..starts[e + 1]))
            .filter(|(_, pairs)| !pairs.is_empty())
            .collect();
        let mut next = starts;
        let mut rows = vec![0u32; picks.len()];
        let mut shares = Vec::with_capacity(picks.len());
        for (i, (expert, weight)) in picks.into_iter().enumerate() {
            let pair = next[expert];
            next[expert] += 1;
            rows[pair] = (i / n_used) as u32;
            shares.push(Share { row: pair as u32, weight });
        }
        Self { rows, spans, shares }
    }

    /// Weight of each pair.
    pub fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.shares.len()];
        self.shares.iter().for_each(|share| weights[share.row as usize] = share.weight);
        weights
    }

    /// What each row takes of the pairs, in order of selection; with weight 1 where pairs were weighed before.
    pub fn shares(&self, are_weighed: bool) -> Vec<Share> {
        let weight = |share: &Share| if are_weighed { 1.0 } else { share.weight };
        self.shares.iter().map(|share| Share { weight: weight(share), ..*share }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(picks: &[(usize, f32)]) -> Vec<usize> {
        picks.iter().map(|p| p.0).collect()
    }

    #[test]
    fn weights_are_normed_then_scaled_and_ties_go_to_the_lower_id() {
        let probs = [0.1, 0.3, 0.2, 0.3, 0.1];
        let spec = MoeSpec { weights_scale: 2.5, ..MoeSpec::new(5, 3, 8) };
        let picks = choose(&probs, None, &spec);
        assert_eq!(ids(&picks), [1, 3, 2]);
        let sum = 0.3f32 + 0.3 + 0.2;
        assert_eq!(picks[2].1, 0.2 / sum * 2.5);
        let spec = MoeSpec { norm_weights: false, ..MoeSpec::new(5, 3, 8) };
        assert_eq!(choose(&probs, None, &spec), [(1, 0.3), (3, 0.3), (2, 0.2)]);
    }

    #[test]
    fn tiny_sums_do_not_blow_weights_up() {
        let spec = MoeSpec { router: Router::Sigmoid, ..MoeSpec::new(2, 1, 8) };
        let picks = choose(&[1e-10, 1e-12], None, &spec);
        assert_eq!(picks, [(0, 1e-10 / MIN_WEIGHT_SUM)]);
    }

    #[test]
    fn a_bias_changes_the_choice_and_no_weight() {
        let spec = MoeSpec { norm_weights: false, ..MoeSpec::new(4, 2, 8) };
        let picks = choose(&[0.4, 0.3, 0.2, 0.1], Some(&[-1.0, 0.0, 0.0, 0.5]), &spec);
        assert_eq!(picks, [(3, 0.1), (1, 0.3)]);
    }

    #[test]
    fn groups_have_the_probability_of_the_expert_of_their_number() {
        let picks = choose_adjugates(&[0.1, 0.2, 0.05, 0.05, 0.4, 0.2], 2, 3);
        // Experts 4, 1 and 5 are the best: of groups 2, 0 and 2.
        let sum = 0.05f32 + 0.1 + 0.05;
        assert_eq!(picks, [(2, 0.05 / sum), (0, 0.1 / sum), (2, 0.05 / sum)]);
    }

    #[test]
    fn only_the_best_groups_are_open() {
        let groups = Some(ExpertGroups { count: 3, used: 1 });
        let spec = MoeSpec { groups, norm_weights: false, ..MoeSpec::new(9, 2, 8) };
        // The highest expert stands alone in its group; the pair of the second sums to more.
        let probs = [0.9, 0.1, 0.1, 0.6, 0.6, 0.0, 0.5, 0.5, 0.5];
        assert_eq!(ids(&choose(&probs, None, &spec)), [3, 4]);
        // The bias counts in the group's score too.
        let bias = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.0, 0.3];
        assert_eq!(choose(&probs, Some(&bias), &spec), [(6, 0.5), (8, 0.5)]);
    }
}
