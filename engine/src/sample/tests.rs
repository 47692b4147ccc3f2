//! The chain against plain definitions of its parts, and against what the module promises as a whole.

use proptest::prelude::*;

use super::filters::Candidates;
use super::*;
use crate::batch::{Companion, DryParams, Mirostat};

fn setup(params: SamplingParams, seed: u64) -> SamplerSetup {
    SamplerSetup { params, seed, top_logprobs: None, ..SamplerSetup::default() }
}

/// Everything off: a plain draw at temperature 1.
fn plain() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplingParams::default()
    }
}

fn at(pos: u32) -> Next<'static> {
    Next { pos, ..Next::default() }
}

fn sample(row: &[f32], params: SamplingParams, seed: u64, pos: u32) -> u32 {
    Sampler::new().sample(row, &setup(params, seed), &[], at(pos)).unwrap().id
}

/// Ids that can be drawn at all, found by drawing often.
fn reachable(row: &[f32], params: &SamplingParams) -> Vec<u32> {
    let mut sampler = Sampler::new();
    let setup = setup(params.clone(), 5);
    let mut ids: Vec<u32> =
        (0..4000).map(|pos| sampler.sample(row, &setup, &[], at(pos)).unwrap().id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = row.iter().map(|l| f64::from(l - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// Ids by descending logit, equal ones by id.
fn ranked(row: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    ids.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
    ids
}

#[test]
fn greedy_takes_the_first_of_equal_maxima() {
    let row = [0.5, 2.0, -1.0, 2.0];
    assert_eq!(sample(&row, SamplingParams::greedy(), 1, 0), 1);
    let typical = SamplingParams { typical_p: 0.99, ..SamplingParams::greedy() };
    assert_eq!(sample(&row, typical, 1, 0), 1);
}

/// Each setting by which a draw could look at other logits, or that asks for more than the token.
#[test]
fn how_many_logits_a_draw_looks_at_is_known_beforehand() {
    let greedy = SamplingParams::greedy;
    let top_40 =
        SamplingParams { xtc_probability: 0.5, typical_p: 0.9, ..SamplingParams::default() };
    let looked_at = |params: SamplingParams| looks_at(&setup(params, 1), 7);
    assert_eq!(looked_at(greedy()), Some(1));
    assert_eq!(looked_at(SamplingParams { top_k: 20, ..greedy() }), Some(1));
    assert_eq!(looked_at(top_40.clone()), Some(40));
    assert_eq!(looked_at(SamplingParams { temperature: 0.0, ..top_40.clone() }), Some(40));
    assert_eq!(looked_at(SamplingParams { temperature: 0.5, top_k: 0, ..greedy() }), None);
    for base in [greedy(), top_40.clone()] {
        let others = [
            SamplingParams { repeat_penalty: 1.1, ..base.clone() },
            SamplingParams { frequency_penalty: 0.1, ..base.clone() },
            SamplingParams { presence_penalty: 0.1, ..base.clone() },
            SamplingParams { logit_bias: vec![(1, -1.0)], ..base.clone() },
            SamplingParams {
                dry: DryParams { multiplier: 0.8, ..base.dry.clone() },
                ..base.clone()
            },
        ];
        for params in others {
            assert_eq!(looked_at(params.clone()), None, "{params:?}");
        }
        let (plain, most) = (setup(base.clone(), 1), looked_at(base));
        assert_eq!(looks_at(&SamplerSetup { top_logprobs: Some(0), ..plain.clone() }, 7), None);
        let companion = Some(Companion { scale: 2.0 });
        assert_eq!(looks_at(&SamplerSetup { companion, ..plain.clone() }, 7), None);
        let later = NotBefore { pos: 8, tokens: [1].into() };
        let later = SamplerSetup { not_before: later, ..plain };
        assert_eq!([7, 8].map(|pos| looks_at(&later, pos)), [None, most]);
    }
    let mirostat = Some(Mirostat { tau: 5.0, eta: 0.1 });
    assert_eq!(looked_at(SamplingParams { mirostat, ..top_40.clone() }), None);
    assert_eq!(looked_at(SamplingParams { top_n_sigma: 1.0, ..top_40 }), None);
}

proptest! {
    /// A draw of few logits, with or without others among them, is that of the whole row.
    #[test]
    fn a_draw_of_few_logits_is_that_of_the_row(
        row in prop::collection::vec(prop_oneof![Just(0.0f32), Just(-0.0), Just(f32::NEG_INFINITY), -4.0f32..4.0], 3..60),
        top_k in 1u32..12,
        more in 0usize..9,
        greedy in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let temperature = if greedy { 0.0 } else { 0.9 };
        let params = SamplingParams {
            temperature, top_k, top_p: 0.9, xtc_probability: 0.5, typical_p: 0.95, ..SamplingParams::default()
        };
        let mut few: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        few.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        few.truncate(top_k as usize + more);
        few.sort_by_key(|(id, _)| *id);
        let setup = setup(params, seed);
        for pos in 0..8 {
            let of_few = Sampler::new().sample_few(&few, &setup, pos);
            prop_assert_eq!(of_few, Sampler::new().sample(&row, &setup, &[], at(pos)));
        }
    }
}

#[test]
fn penalties_follow_their_formula_over_the_window_only() {
    let params = SamplingParams {
        repeat_penalty: 2.0,
        frequency_penalty: 0.25,
        presence_penalty: 0.5,
        penalty_last_n: 3,
        ..plain()
    };
    let mut penalties = Penalties::default();
    let mut row = [4.0, -4.0, 1.0, 8.0];
    // Token 3 is in front of the window.
    assert!(penalties.count(&params, &[3, 0, 1, 1], row.len()).unwrap());
    penalties.apply(&params, &mut row);
    assert_eq!(row, [4.0 / 2.0 - 0.75, -4.0 * 2.0 - 1.0, 1.0, 8.0]);
    let off = SamplingParams { penalty_last_n: 0, ..params };
    assert!(!penalties.count(&off, &[0], 4).unwrap());
}

#[test]
fn prompt_tokens_are_penalised_like_generated_ones() {
    let params = SamplingParams { repeat_penalty: 10.0, ..SamplingParams::greedy() };
    let drawn = |history: &[u32]| {
        Sampler::new().sample(&[3.0, 2.0], &setup(params.clone(), 0), history, at(1)).unwrap().id
    };
    assert_eq!(drawn(&[]), 0);
    assert_eq!(drawn(&[0]), 1);
}

#[test]
fn dry_takes_from_what_would_go_on_with_a_run() {
    let dry = |allowed_length, breakers: &[u32]| DryParams {
        multiplier: 2.0,
        base: 3.0,
        allowed_length,
        breakers: breakers.into(),
        ..DryParams::default()
    };
    // The history ends with 1 2 3, which was there before with 4 behind it, and 2 3 with 5 behind it.
    let history = [1, 2, 3, 4, 2, 3, 5, 1, 2, 3];
    let loss = |params: &DryParams| {
        let (mut finder, mut row) = (Dry::default(), [0.0f32; 8]);
        let found = finder.find(params, &history, row.len()).unwrap();
        finder.apply(params, &mut row);
        assert_eq!(found, row.iter().any(|l| *l != 0.0));
        row
    };
    let row = loss(&dry(2, &[]));
    assert_eq!((row[4], row[5]), (-2.0 * 3.0, -2.0), "by length: 3 and 2");
    assert_eq!(row.iter().filter(|l| **l != 0.0).count(), 2);
    assert_eq!(loss(&dry(3, &[]))[4..6], [-2.0, 0.0]);
    assert_eq!(loss(&dry(2, &[1]))[4..6], [-2.0, -2.0], "no run goes across a breaker");
    assert_eq!(loss(&dry(2, &[3])), [0.0; 8]);
    assert_eq!(loss(&DryParams { last_n: 5, ..dry(2, &[]) }), [0.0; 8], "the window is short");
    let foreign = Dry::default().find(&dry(2, &[]), &history, 5);
    assert!(matches!(foreign, Err(SampleError::BadToken { id: 5, .. })));
}

#[test]
fn top_n_sigma_keeps_what_is_near_the_best() {
    let mut row = vec![0.0f32; 100];
    (row[3], row[4], row[5]) = (10.0, 9.5, f32::NEG_INFINITY);
    let params = SamplingParams { top_n_sigma: 1.0, ..plain() };
    assert_eq!(reachable(&row, &params), [3, 4]);
    assert_eq!(reachable(&[1.0, 1.0], &params), [0, 1], "no deviation, nothing to leave out");
}

#[test]
fn xtc_leaves_out_all_but_the_last_of_the_best() {
    // p: 0.53, 0.32, 0.12, 0.03.
    let row = [3.0, 2.5, 1.5, 0.0];
    let with = |probability, threshold| {
        let params =
            SamplingParams { xtc_probability: probability, xtc_threshold: threshold, ..plain() };
        reachable(&row, &params)
    };
    assert_eq!(with(1.0, 0.1), [2, 3]);
    assert_eq!(with(1.0, 0.3), [1, 2, 3]);
    assert_eq!(with(1.0, 0.6), [0, 1, 2, 3], "off above one half");
    assert_eq!(with(0.5, 0.1), [0, 1, 2, 3], "in some of the draws only");
}

#[test]
fn a_dynamic_temperature_follows_the_entropy() {
    let temperature = |row: &[f32]| {
        let mut candidates = Candidates::default();
        candidates.take_top_k(row, 0);
        candidates.dynamic_temperature(0.5, 1.5, 2.0)
    };
    assert_eq!(temperature(&[1.0; 8]), 1.5, "all alike: the largest entropy");
    let sure = temperature(&[50.0, 0.0, 0.0]);
    assert!((0.5..0.5001).contains(&sure), "{sure}");
    let p: f64 = 1.0 / (1.0 + (-1.0f64).exp());
    let entropy = -(p * p.ln() + (1.0 - p) * (1.0 - p).ln()) / 2f64.ln();
    let between = f64::from(temperature(&[1.0, 0.0]));
    assert!((between - (0.5 + entropy * entropy)).abs() < 1e-6, "{between}");
}

#[test]
fn mirostat_leaves_out_what_surprises_too_much_and_moves_mu() {
    // Of 1, 2, 3 and 3 bits.
    let row = [0.5_f32, 0.25, 0.125, 0.125].map(f32::ln);
    let mirostat = Mirostat { tau: 1.25, eta: 0.4 };
    let params = SamplingParams { mirostat: Some(mirostat), top_k: 1, ..plain() };
    let draw = |pos, mu| {
        let next = Next { pos, mu, mask: None };
        Sampler::new().sample(&row, &setup(params.clone(), 3), &[], next).unwrap()
    };
    let reached = |mu| (0..200).map(|pos| draw(pos, mu).id).max().unwrap();
    assert_eq!([reached(Some(0.1)), reached(Some(1.5)), reached(Some(2.1))], [0, 0, 1]);
    assert_eq!(reached(Some(3.5)), 3, "top-k has no say");
    // The first mu is twice tau: two tokens are left, of 2/3 and 1/3.
    for pos in 0..50 {
        let token = draw(pos, None);
        let surprise = [1.5_f32.log2(), 3.0_f32.log2()][token.id as usize];
        let mu = 2.5 - 0.4 * (surprise - 1.25);
        assert!((token.mu.unwrap() - mu).abs() < 1e-5, "{token:?}");
    }
    let greedy = SamplingParams { temperature: 0.0, ..params.clone() };
    let token = Sampler::new().sample(&row, &setup(greedy, 3), &[], at(0)).unwrap();
    assert_eq!((token.id, token.mu), (0, None));
}

#[test]
fn mirostat_keeps_the_surprise_near_its_goal() {
    // Zipf's distribution, as a text's.
    let row: Vec<f32> = (1..=5000).map(|rank| -(rank as f32).ln()).collect();
    let mean = |tau: f32| {
        let mirostat = Some(Mirostat { tau, eta: 0.1 });
        let setup = setup(SamplingParams { mirostat, ..plain() }, 9);
        let (mut mu, mut sum, mut sampler) = (None, 0.0, Sampler::new());
        for pos in 0..2000 {
            let before = mu.unwrap_or(2.0 * tau);
            let next = Next { pos, mu, mask: None };
            mu = sampler.sample(&row, &setup, &[], next).unwrap().mu;
            sum += (before - mu.unwrap()) / 0.1 + tau;
        }
        sum / 2000.0
    };
    for tau in [2.0, 4.0, 6.0] {
        assert!((mean(tau) - tau).abs() < 0.1, "{tau}: {}", mean(tau));
    }
}

#[test]
fn what_may_not_come_yet_comes_later() {
    let not_before = NotBefore { pos: 5, tokens: [0].into() };
    let setup = SamplerSetup { not_before, ..setup(SamplingParams::greedy(), 0) };
    let drawn = |pos| Sampler::new().sample(&[2.0, 1.0], &setup, &[], at(pos)).unwrap().id;
    assert_eq!((drawn(4), drawn(5)), (1, 0));
}

#[test]
fn bias_comes_first_and_minus_infinity_bans() {
    let biased = |bias: Vec<(u32, f32)>| {
        sample(
            &[3.0, 2.0, 1.0],
            SamplingParams { logit_bias: bias, ..SamplingParams::greedy() },
            0,
            0,
        )
    };
    assert_eq!(biased(vec![(2, 5.0)]), 2);
    assert_eq!(biased(vec![(0, f32::NEG_INFINITY)]), 1);
    // Before the penalties: the biased logit is what the penalty divides.
    let params = SamplingParams {
        logit_bias: vec![(0, 7.0)],
        repeat_penalty: 2.0,
        ..SamplingParams::greedy()
    };
    // (1 + 7) / 2 = 4 beats 3; 1 / 2 + 7 would as well, but (-2 + 7) / 2 = 2.5 does not.
    let with = |first: f32| {
        Sampler::new().sample(&[first, 3.0], &setup(params.clone(), 0), &[0], at(1)).unwrap().id
    };
    assert_eq!((with(1.0), with(-2.0)), (0, 1));
}

#[test]
fn the_filters_act_in_their_order() {
    // p = 0.4, 0.3, 0.2, 0.1
    let row: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
    // Top-k first: of the two left the first has p = 0.57, enough for top_p = 0.55. Top-p first would
    // keep two.
    let params = SamplingParams { top_k: 2, top_p: 0.55, ..plain() };
    assert_eq!(reachable(&row, &params), [0]);
    // Top-p sees the logits before temperature: at temperature 3 it would keep more.
    let params = SamplingParams { top_p: 0.65, temperature: 3.0, ..plain() };
    assert_eq!(reachable(&row, &params), [0, 1]);
    // Min-p likewise: 0.2 / 0.4 is the bar, whatever the temperature.
    let params = SamplingParams { min_p: 0.45, temperature: 0.1, ..plain() };
    assert!(reachable(&row, &params).iter().all(|id| *id <= 2));
    let params = SamplingParams { min_p: 0.45, temperature: 5.0, ..plain() };
    assert_eq!(reachable(&row, &params), [0, 1, 2]);
    // Typical drops the most probable token when its surprise is the oddest.
    let row: Vec<f32> = [0.4f32, 0.2, 0.2, 0.2].iter().map(|p| p.ln()).collect();
    let params = SamplingParams { typical_p: 0.5, ..plain() };
    assert_eq!(reachable(&row, &params), [1, 2, 3]);
    // Greedy still goes through it.
    let params = SamplingParams { temperature: 0.0, ..params };
    assert_eq!(reachable(&row, &params), [1]);
}

#[test]
fn drawn_frequencies_follow_the_probabilities() {
    const N: u32 = 40_000;
    let row = [1.0f32, 0.0, 2.0, -1.0, 0.5, 1.5, -2.0, 0.2];
    for temperature in [0.5, 1.0, 2.0] {
        let scaled: Vec<f32> = row.iter().map(|l| l / temperature).collect();
        let p = softmax(&scaled);
        let params = SamplingParams { temperature, ..plain() };
        let mut counts = [0f64; 8];
        let mut sampler = Sampler::new();
        let setup = setup(params, 99);
        for pos in 0..N {
            counts[sampler.sample(&row, &setup, &[], at(pos)).unwrap().id as usize] += 1.0;
        }
        let chi2: f64 = counts
            .iter()
            .zip(&p)
            .map(|(c, p)| (c - p * f64::from(N)).powi(2) / (p * f64::from(N)))
            .sum();
        // 7 degrees of freedom: 1 in 100,000 exceeds 36.
        assert!(chi2 < 36.0, "temperature {temperature}: chi-square {chi2}");
    }
}

#[test]
fn the_result_depends_on_seed_and_position_alone() {
    let row: Vec<f32> = (0..300).map(|i| (i as f32 * 0.7).sin()).collect();
    let other: Vec<f32> = (0..50).map(|i| i as f32).collect();
    let setup_of = |seed| setup(plain(), seed);
    let alone: Vec<u32> = (0..64).map(|pos| sample(&row, plain(), 11, pos)).collect();
    let mut busy = Sampler::new();
    for pos in (0..64).rev() {
        busy.sample(&other, &setup_of(3), &[1, 2], at(pos * 7)).unwrap();
        assert_eq!(busy.sample(&row, &setup_of(11), &[], at(pos)).unwrap().id, alone[pos as usize]);
    }
    let reseeded: Vec<u32> = (0..64).map(|pos| sample(&row, plain(), 12, pos)).collect();
    assert_ne!(alone, reseeded);
}

#[test]
fn unusable_rows_and_settings_are_errors() {
    let draw = |row: &[f32], params: SamplingParams| {
        Sampler::new().sample(row, &setup(params, 0), &[], at(0))
    };
    for params in [plain(), SamplingParams::greedy(), SamplingParams::default()] {
        let nan = draw(&[0.0, f32::NAN], params.clone()).unwrap_err();
        assert!(matches!(nan, SampleError::NotFinite { index: 1, .. }), "{nan}");
        assert!(draw(&[f32::INFINITY, 0.0], params.clone()).is_err());
        assert_eq!(draw(&[], params.clone()), Err(SampleError::Empty));
        assert_eq!(draw(&[f32::NEG_INFINITY; 3], params), Err(SampleError::NothingLeft));
    }
    let params = SamplingParams { logit_bias: vec![(2, 1.0)], ..plain() };
    assert!(matches!(draw(&[0.0, 1.0], params), Err(SampleError::BadToken { id: 2, .. })));
    let params = SamplingParams { repeat_penalty: 2.0, ..plain() };
    let far = Sampler::new().sample(&[0.0], &setup(params, 0), &[9], at(0));
    assert!(matches!(far, Err(SampleError::BadToken { id: 9, .. })));
    assert_eq!(check_params(&SamplingParams::default()), Ok(()));
    for bad in [
        SamplingParams { temperature: f32::NAN, ..plain() },
        SamplingParams { repeat_penalty: 0.0, ..plain() },
        SamplingParams { logit_bias: vec![(0, f32::INFINITY)], ..plain() },
    ] {
        assert!(matches!(check_params(&bad), Err(SampleError::BadSetting { .. })), "{bad:?}");
    }
}

#[test]
fn extreme_temperatures_are_safe() {
    let row = [1.0, 3.0, 2.9];
    let cold = SamplingParams { temperature: f32::MIN_POSITIVE, ..plain() };
    let hot = SamplingParams { temperature: f32::MAX, ..plain() };
    assert_eq!(reachable(&row, &cold), [1]);
    assert_eq!(reachable(&row, &hot), [0, 1, 2]);
}

#[test]
fn log_probabilities_are_those_of_the_raw_row() {
    let row = [1.0, 3.0, 3.0, -2.0];
    let mut setup = setup(SamplingParams { logit_bias: vec![(0, 100.0)], ..plain() }, 0);
    setup.top_logprobs = Some(3);
    let token = Sampler::new().sample(&row, &setup, &[], at(0)).unwrap();
    let p = softmax(&row);
    let close = |a: f32, b: f64| (f64::from(a) - b.ln()).abs() < 1e-6;
    assert_eq!(token.id, 0);
    assert!(close(token.logprob.unwrap(), p[0]));
    assert_eq!(token.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 0]);
    assert!(token.top.iter().all(|(id, l)| close(*l, p[*id as usize])));
    setup.top_logprobs = Some(99);
    assert_eq!(Sampler::new().sample(&row, &setup, &[], at(0)).unwrap().top.len(), 4);
    setup.top_logprobs = Some(0);
    let token = Sampler::new().sample(&row, &setup, &[], at(0)).unwrap();
    assert!(token.top.is_empty() && token.logprob.is_some());
    assert!((log_prob(&row, 3).unwrap() - p[3].ln()).abs() < 1e-6);
    assert!(log_prob(&row, 4).is_err());
}

/// Rows with equal values, so that ties are common.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![-8.0f32..8.0, (-3i8..3).prop_map(f32::from), Just(f32::NEG_INFINITY),];
    prop::collection::vec(value, 1..3000)
        .prop_filter("something to draw", |r| r.iter().any(|l| l.is_finite()))
}

fn finite_ranked(row: &[f32]) -> Vec<u32> {
    ranked(row).into_iter().filter(|id| row[*id as usize].is_finite()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn top_k_keeps_the_k_best(row in rows(), k in 1usize..80) {
        let mut candidates = Candidates::default();
        candidates.take_top_k(&row, k);
        let mut want = finite_ranked(&row);
        if k < row.len() {
            want.truncate(k);
            prop_assert_eq!(candidates.ids(), want);
        } else {
            want.sort_unstable();
            prop_assert_eq!(candidates.ids(), want);
        }
    }

    #[test]
    fn top_p_keeps_the_shortest_sufficient_run(row in rows(), limit in 0.0f32..0.999) {
        let mut candidates = Candidates::default();
        candidates.take_top_k(&row, 0);
        candidates.top_p(limit);
        let kept = candidates.ids();
        let order = finite_ranked(&row);
        prop_assert_eq!(&kept[..], &order[..kept.len()]);
        let p = softmax(&row);
        let sum = |n: usize| order[..n].iter().map(|id| p[*id as usize]).sum::<f64>();
        // The weights are rounded to f32, so the border itself is only known to that precision.
        prop_assert!(sum(kept.len()) >= f64::from(limit) - 1e-5);
        prop_assert!(kept.len() == 1 || sum(kept.len() - 1) < f64::from(limit) + 1e-5);
    }

    #[test]
    fn min_p_keeps_what_reaches_the_share_of_the_best(row in rows(), share in 0.001f32..1.0) {
        let mut candidates = Candidates::default();
        candidates.take_top_k(&row, 0);
        candidates.min_p(share);
        let kept = candidates.ids();
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for (id, l) in row.iter().enumerate().filter(|(_, l)| l.is_finite()) {
            let ratio = f64::from(l - max).exp() / f64::from(share);
            if ratio > 1.0 + 1e-5 {
                prop_assert!(kept.contains(&(id as u32)));
            } else if ratio < 1.0 - 1e-5 {
                prop_assert!(!kept.contains(&(id as u32)));
            }
        }
        prop_assert!(!kept.is_empty());
    }

    #[test]
    fn typical_sums_to_its_limit_and_keeps_the_nearest(row in rows(), limit in 0.05f32..0.99) {
        let mut candidates = Candidates::default();
        candidates.take_top_k(&row, 0);
        candidates.typical(limit);
        let kept = candidates.ids();
        let p = softmax(&row);
        let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        let gap = |id: u32| (-p[id as usize].ln() - entropy).abs();
        let worst = kept.iter().map(|id| gap(*id)).fold(0.0, f64::max);
        let sum: f64 = kept.iter().map(|id| p[*id as usize]).sum();
        prop_assert!(sum > f64::from(limit) - 1e-5);
        for id in finite_ranked(&row) {
            prop_assert!(kept.contains(&id) || gap(id) > worst - 1e-5);
        }
    }

    #[test]
    fn any_settings_give_an_allowed_token_and_the_same_again(
        row in rows(),
        history in prop::collection::vec(0u32..1, 0..5),
        temperature in 0.0f32..3.0,
        top_k in 0u32..50,
        top_p in 0.0f32..1.2,
        min_p in -0.1f32..1.1,
        typical_p in 0.0f32..1.2,
        repeat_penalty in 0.5f32..2.0,
        seed in any::<u64>(),
        pos in any::<u32>(),
    ) {
        let params = SamplingParams {
            temperature, top_k, top_p, min_p, typical_p, repeat_penalty,
            frequency_penalty: 0.1, presence_penalty: 0.1, penalty_last_n: 3, logit_bias: vec![(0, 0.5)], ..SamplingParams::default()
        };
        let setup = SamplerSetup { params, seed, top_logprobs: Some(5), ..SamplerSetup::default() };
        let draw = || Sampler::new().sample(&row, &setup, &history, at(pos)).unwrap();
        let token = draw();
        prop_assert!(row[token.id as usize].is_finite());
        prop_assert_eq!(draw(), token);
    }
}
