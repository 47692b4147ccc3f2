//! Random numbers by counter: the number of a position is a function of (seed, position).
//!
//! Nothing is kept between calls. So a draw is the same whether a sequence runs alone, in a batch, or again
//! after a failure. The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014, constants
//! by Stafford). It is applied to the seed, and again to seed and counter. So seeds and positions that differ
//! in one bit give unrelated numbers.

/// The step of SplitMix64: 2^64 divided by the golden ratio, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Uniform in `[0, 1)` with 53 random bits.
pub fn uniform(seed: u64, pos: u32) -> f64 {
    let stream = mix(seed.wrapping_add(STEP));
    let bits = mix(stream.wrapping_add(STEP.wrapping_mul(u64::from(pos) + 1)));
    // 53 bits fit an f64 exactly.
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixing_function_is_the_published_one() {
        // First output of SplitMix64 seeded with 0.
        assert_eq!(mix(STEP), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn numbers_are_spread_evenly_over_positions_and_over_seeds() {
        const BINS: usize = 64;
        const N: u32 = 64_000;
        let by_pos: Vec<f64> = (0..N).map(|i| uniform(7, i)).collect();
        let by_seed: Vec<f64> = (0..N).map(|i| uniform(u64::from(i), 7)).collect();
        for draws in [by_pos, by_seed] {
            let mut bins = [0f64; BINS];
            for u in &draws {
                assert!((0.0..1.0).contains(u));
                bins[(u * BINS as f64) as usize] += 1.0;
            }
            let expected = f64::from(N) / BINS as f64;
            let chi2: f64 = bins.iter().map(|b| (b - expected).powi(2) / expected).sum();
            // 63 degrees of freedom: mean 63, deviation 11.2; five deviations up.
            assert!(chi2 < 120.0, "chi-square {chi2}");
        }
    }

    #[test]
    fn neighbouring_positions_and_seeds_are_uncorrelated() {
        let n = 20_000u32;
        let cov = |f: &dyn Fn(u32) -> (f64, f64)| {
            (0..n).map(f).map(|(a, b)| (a - 0.5) * (b - 0.5)).sum::<f64>() / f64::from(n)
        };
        // Deviation of the mean product is 1/12/sqrt(n), about 0.0006.
        assert!(cov(&|i| (uniform(3, i), uniform(3, i + 1))).abs() < 0.003);
        assert!(cov(&|i| (uniform(u64::from(i), 0), uniform(u64::from(i) + 1, 0))).abs() < 0.003);
    }
}
