//! The choice of experts: which of them a row uses, and how much each weighs.

use brigade_shapes::{ChooseBy, ExpertChoice, ExpertGroups, ExpertWeights, LEAST_WEIGHT_SUM};

use crate::compute::Compute;

/// Members of a group whose scores are its score.
const GROUP_SCORES: usize = 2;

impl Compute {
    /// The experts of each row with their weights, `[n_rows, n_used]` both, by what a router gives each expert, `probs`
    /// `[n_rows, n_expert]`.
    ///
    /// # Panics
    /// If there are not as many known experts as are used, or one is none.
    pub fn choose_experts(
        &self,
        choice: &ExpertChoice<'_, &[f32]>,
        probs: &[f32],
    ) -> (Vec<u32>, Vec<f32>) {
        let ExpertChoice { n_expert, n_used, by, weights: how } = *choice;
        let rows = || probs.chunks_exact(n_expert);
        let mut ids = Vec::with_capacity(rows().len() * n_used);
        match by {
            ChooseBy::Score { bias, groups } => {
                let mut scores = Vec::with_capacity(n_expert);
                for probs in rows() {
                    score(probs, bias, groups, &mut scores);
                    ids.extend(best(&scores, n_used));
                }
            }
            ChooseBy::GroupsOfBest(per_group) => {
                let group = |id: u32| id / per_group as u32;
                rows().for_each(|probs| ids.extend(best(probs, n_used).into_iter().map(group)));
            }
            ChooseBy::Known(known) => ids.extend_from_slice(known),
        }
        assert_eq!(ids.len(), rows().len() * n_used, "choose_experts: {n_used} of each row");
        let mut weights = Vec::with_capacity(ids.len());
        for (probs, ids) in rows().zip(ids.chunks_exact(n_used)) {
            weigh(probs, ids, how, &mut weights);
        }
        if let ExpertWeights::Softmax(scale) = how {
            self.softmax(&mut weights, n_used);
            weights.iter_mut().for_each(|weight| *weight *= scale);
        }
        (ids, weights)
    }
}

/// The scores of one row's experts.
fn score(probs: &[f32], bias: Option<&[f32]>, groups: Option<ExpertGroups>, out: &mut Vec<f32>) {
    out.clear();
    out.extend_from_slice(probs);
    for (score, bias) in out.iter_mut().zip(bias.unwrap_or_default()) {
        *score += bias;
    }
    if let Some(groups) = groups {
        close_groups(out, groups);
    }
}

/// Puts the scores of all but the best groups out of reach.
fn close_groups(scores: &mut [f32], groups: ExpertGroups) {
    let size = scores.len() / groups.count;
    let group_score =
        |group: &[f32]| best(group, GROUP_SCORES).iter().map(|&e| group[e as usize]).sum();
    let group_scores: Vec<f32> = scores.chunks_exact(size).map(group_score).collect();
    let open = best(&group_scores, groups.used);
    for (g, group) in scores.chunks_exact_mut(size).enumerate() {
        if !open.contains(&(g as u32)) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Indices of the `n` highest scores, descending; ties by ascending index.
fn best(scores: &[f32], n: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    let score = |i: u32| scores[i as usize];
    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
    order.truncate(n);
    order
}

/// Adds the weights of one row's experts, in their order. What a softmax is of stays as it is.
fn weigh(probs: &[f32], ids: &[u32], how: ExpertWeights, out: &mut Vec<f32>) {
    let probs = ids.iter().map(|&id| probs[id as usize]);
    match how {
        ExpertWeights::Softmax(_) => out.extend(probs),
        ExpertWeights::Scaled(scale) => out.extend(probs.map(|p| p * scale)),
        ExpertWeights::Normed(scale) => {
            let mut sum = 0.0;
            probs.clone().for_each(|p| sum += p);
            let norm = sum.max(LEAST_WEIGHT_SUM);
            out.extend(probs.map(|p| p / norm * scale));
        }
    }
}
