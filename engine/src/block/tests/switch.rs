//! The router of a model's own adapters against its definition in f64.

use super::{Bench, Tensors, bits};
use crate::device::Rows;
use crate::kernels::available;
use crate::spec::{BlockKind, SwitchRouterSpec};

const N_EMBD: usize = 4;
/// Places that the tokens of a sequence switch on: none, one, the same again, and several.
const TOKENS: [f32; 12] = [0.0, 0.0, 3.0, 0.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0, 5.0, 0.0];

/// The place of each row's adapter, and how far its mean is from a half, where it could be rounded either way.
fn defined(gain: f64) -> Vec<(f32, f64)> {
    let weight = |place: f32| if place > 0.0 { gain.exp() } else { (-gain).exp() };
    let upto = |row: usize| {
        let seen = &TOKENS[..=row];
        let all: f64 = seen.iter().map(|place| weight(*place)).sum();
        let mean = seen.iter().map(|place| f64::from(*place) * weight(*place)).sum::<f64>() / all;
        (mean.round() as f32, (mean.fract() - 0.5).abs())
    };
    (0..TOKENS.len()).map(upto).collect()
}

/// The places that rows get on every table, the same bits on each, cut into ubatches at `cuts`.
fn found(gain: f32, cuts: &[usize]) -> Vec<f32> {
    let kind = BlockKind::Switch(SwitchRouterSpec { gain, n_places: 5 });
    let mut first: Option<Vec<f32>> = None;
    for kernels in available() {
        let mut bench = Bench::new(&kind, &Tensors::default(), N_EMBD, kernels);
        let mut places = Vec::new();
        for cut in cuts.windows(2) {
            bench.beside = vec![Rows::new(TOKENS[cut[0]..cut[1]].to_vec(), 1)];
            let n = cut[1] - cut[0];
            let out = bench.step(&[(1, cut[0], n)], None, &vec![1.0; n * N_EMBD]);
            assert!(out.iter().all(|x| x.to_bits() == 0));
            places.extend_from_slice(&bench.beside[0]);
        }
        let first = first.get_or_insert_with(|| places.clone());
        assert!(bits(&places) == bits(first), "{}", kernels.name);
    }
    first.expect("the reference is always there")
}

#[test]
fn a_row_uses_the_mean_of_the_adapters_before_it() {
    for gain in [15.0, 0.5, 0.0] {
        let places = found(gain, &[0, TOKENS.len()]);
        for (row, (place, (wanted, from_half))) in
            places.iter().zip(defined(gain.into())).enumerate()
        {
            // Five adapters less than the tokens name: the last is the highest that there is.
            assert!(
                *place == wanted.min(4.0) || from_half < 1e-6,
                "gain {gain}, row {row}: {place}"
            );
        }
        assert_eq!(found(gain, &[0, 1, 5, 12]), places, "gain {gain}");
    }
    // Of 3, 3, 1 and 1 it is 2; of 3, 3 and 1 it is 7/3.
    assert_eq!(found(15.0, &[0, 12])[..8], [0.0, 0.0, 3.0, 3.0, 3.0, 3.0, 2.0, 2.0]);
}

#[test]
fn a_mean_between_two_adapters_is_the_higher_one() {
    // Of 3, 3, 1, 1, 1 and 1 the mean is 10 / 6; of these and 5 it is 15 / 7.
    let places = found(15.0, &[0, 12]);
    assert_eq!(places[8..], [2.0, 2.0, 2.0, 2.0]);
    let kind = BlockKind::Switch(SwitchRouterSpec { gain: 15.0, n_places: 4 });
    for kernels in available() {
        let mut bench = Bench::new(&kind, &Tensors::default(), N_EMBD, kernels);
        bench.beside = vec![Rows::new(vec![1.0, 0.0, 2.0], 1)];
        bench.step(&[(0, 0, 3)], None, &[0.0; 3 * N_EMBD]);
        assert_eq!(bench.beside[0][..], [1.0, 1.0, 2.0], "{}", kernels.name);
    }
}
