//! The choice of experts and their weights, by hand.

use brigade_kernels::{ChooseBy, Compute, ExpertChoice, ExpertGroups, ExpertWeights};
use brigade_kernels_tables::select;

const BY_SCORE: ChooseBy<'static, &[f32]> = ChooseBy::Score { bias: None, groups: None };

/// One row's experts with their weights.
fn choose(
    n_used: usize,
    by: ChooseBy<'_, &[f32]>,
    weights: ExpertWeights,
    probs: &[f32],
) -> Vec<(u32, f32)> {
    let compute = Compute::new(select(None).unwrap(), 1, None).unwrap();
    let choice = ExpertChoice { n_expert: probs.len(), n_used, by, weights };
    let (ids, weights) = compute.choose_experts(&choice, probs);
    ids.into_iter().zip(weights).collect()
}

fn ids(picks: &[(u32, f32)]) -> Vec<u32> {
    picks.iter().map(|p| p.0).collect()
}

#[test]
fn weights_are_normed_then_scaled_and_ties_go_to_the_lower_id() {
    let probs = [0.1, 0.3, 0.2, 0.3, 0.1];
    let picks = choose(3, BY_SCORE, ExpertWeights::Normed(2.5), &probs);
    assert_eq!(ids(&picks), [1, 3, 2]);
    let sum = 0.3f32 + 0.3 + 0.2;
    assert_eq!(picks[2].1, 0.2 / sum * 2.5);
    let picks = choose(3, BY_SCORE, ExpertWeights::Scaled(1.0), &probs);
    assert_eq!(picks, [(1, 0.3), (3, 0.3), (2, 0.2)]);
}

#[test]
fn tiny_sums_do_not_blow_weights_up() {
    let picks = choose(1, BY_SCORE, ExpertWeights::Normed(1.0), &[1e-10, 1e-12]);
    assert_eq!(picks, [(0, 1e-10 / 6.103_515_6e-5)]);
}

#[test]
fn a_softmax_is_of_the_chosen_alone() {
    let picks = choose(2, BY_SCORE, ExpertWeights::Softmax(3.0), &[1.0, -7.0, 2.0]);
    assert_eq!(ids(&picks), [2, 0]);
    let one = 1.0 / (1.0 + (-1.0f32).exp());
    assert!((picks[0].1 - 3.0 * one).abs() < 1e-5, "{picks:?}");
    assert!((picks[1].1 - 3.0 * (1.0 - one)).abs() < 1e-5, "{picks:?}");
}

#[test]
fn a_bias_changes_the_choice_and_no_weight() {
    let bias = [-1.0, 0.0, 0.0, 0.5];
    let by = ChooseBy::Score { bias: Some(&bias[..]), groups: None };
    let picks = choose(2, by, ExpertWeights::Scaled(1.0), &[0.4, 0.3, 0.2, 0.1]);
    assert_eq!(picks, [(3, 0.1), (1, 0.3)]);
}

#[test]
fn known_experts_are_weighed_as_the_router_says() {
    let picks =
        choose(2, ChooseBy::Known(&[3, 1]), ExpertWeights::Scaled(2.0), &[0.4, 0.3, 0.2, 0.1]);
    assert_eq!(picks, [(3, 0.2), (1, 0.6)]);
}

#[test]
fn groups_have_the_probability_of_the_expert_of_their_number() {
    let probs = [0.1, 0.2, 0.05, 0.05, 0.4, 0.2];
    let picks = choose(3, ChooseBy::GroupsOfBest(2), ExpertWeights::Normed(1.0), &probs);
    // Experts 4, 1 and 5 are the best: of groups 2, 0 and 2.
    let sum = 0.05f32 + 0.1 + 0.05;
    assert_eq!(picks, [(2, 0.05 / sum), (0, 0.1 / sum), (2, 0.05 / sum)]);
}

#[test]
fn only_the_best_groups_are_open() {
    let groups = Some(ExpertGroups { count: 3, used: 1 });
    let by = |bias| ChooseBy::Score { bias, groups };
    // The highest expert stands alone in its group; the pair of the second sums to more.
    let probs = [0.9, 0.1, 0.1, 0.6, 0.6, 0.0, 0.5, 0.5, 0.5];
    assert_eq!(ids(&choose(2, by(None), ExpertWeights::Scaled(1.0), &probs)), [3, 4]);
    // The bias counts in the group's score too.
    let bias = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.0, 0.3];
    let picks = choose(2, by(Some(&bias)), ExpertWeights::Scaled(1.0), &probs);
    assert_eq!(picks, [(6, 0.5), (8, 0.5)]);
}
