//! Noise that is a function of (seed, tensor name, row, column), so that rows may be made in any order.
//!
//! A value takes whole numbers and one f32 product, and nothing of a mathematics library. So it has the same
//! bits on every machine.

/// Distribution of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fill {
    /// Near-normal around 0 with this standard deviation.
    Normal(f32),
    /// Near-normal around 1 with this standard deviation: norms.
    AroundOne(f32),
    /// Near-normal around -1 with this standard deviation, which must be below 2/7 to stay negative:
    /// rates of decay.
    Decay(f32),
    /// Near-normal around -2 with this standard deviation: step sizes before their softplus, so that a
    /// state forgets in about ten tokens.
    Step(f32),
    /// In each row some of so many experts, as whole numbers, none twice as long as there are enough.
    Experts(usize),
}

/// The noise of one tensor.
pub(super) struct RowNoise {
    key: u64,
}

/// Increment of the counter: the golden ratio's fraction, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection whose output bits all depend on
/// all input bits.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The sum of four uniform 16-bit numbers: a mean of 2 * 65535 and a variance of 4 * (2^32 - 1) / 12,
/// never further than 3.5 standard deviations away.
fn four_uniforms(bits: u64) -> i32 {
    let lane = |i: u32| (bits >> (16 * i) & 0xffff) as i32;
    lane(0) + lane(1) + lane(2) + lane(3)
}

const SUM_MEAN: i32 = 2 * 65535;
/// 1 / sqrt(4 * (2^32 - 1) / 12).
const INV_SUM_DEVIATION: f32 = 2.642_86e-5;

impl RowNoise {
    pub fn new(seed: u64, tensor: &str) -> Self {
        let key = tensor
            .bytes()
            .fold(mix(seed.wrapping_add(STEP)), |key, byte| mix(key ^ u64::from(byte)));
        Self { key }
    }

    /// Fills `out` with row `row`.
    pub fn fill(&self, row: u64, fill: Fill, out: &mut [f32]) {
        let (mean, deviation) = match fill {
            Fill::Normal(deviation) => (0.0, deviation),
            Fill::AroundOne(deviation) => (1.0, deviation),
            Fill::Decay(deviation) => (-1.0, deviation),
            Fill::Step(deviation) => (-2.0, deviation),
            Fill::Experts(n) => {
                let first = mix(self.key ^ mix(row.wrapping_add(STEP))) % n as u64;
                for (value, expert) in out.iter_mut().zip(first..) {
                    *value = (expert % n as u64) as f32;
                }
                return;
            }
        };
        let scale = deviation * INV_SUM_DEVIATION;
        let mut counter = mix(self.key ^ mix(row.wrapping_add(STEP)));
        for value in out {
            counter = counter.wrapping_add(STEP);
            *value = mean + (four_uniforms(mix(counter)) - SUM_MEAN) as f32 * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_moments_it_promises() {
        let noise = RowNoise::new(7, "blk.0.attn_q.weight");
        let mut values = vec![0.0; 1 << 16];
        let fills = [
            (Fill::Normal(0.02), 0.0),
            (Fill::AroundOne(0.1), 1.0),
            (Fill::Decay(0.25), -1.0),
            (Fill::Step(0.5), -2.0),
        ];
        for (fill, want) in fills {
            noise.fill(3, fill, &mut values);
            let n = values.len() as f64;
            let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
            let (Fill::Normal(deviation)
            | Fill::AroundOne(deviation)
            | Fill::Decay(deviation)
            | Fill::Step(deviation)) = fill
            else {
                unreachable!("these fills have a deviation")
            };
            let deviation = f64::from(deviation);
            assert!((mean - want).abs() < deviation * 0.02, "mean {mean}");
            assert!(
                (variance.sqrt() / deviation - 1.0).abs() < 0.02,
                "deviation {}",
                variance.sqrt()
            );
        }
    }

    #[test]
    fn rows_tensors_and_seeds_differ() {
        let row = |seed, name: &str, row| {
            let mut out = [0.0; 64];
            RowNoise::new(seed, name).fill(row, Fill::Normal(1.0), &mut out);
            out
        };
        let base = row(1, "a", 0);
        assert_eq!(base, row(1, "a", 0));
        for other in [row(1, "a", 1), row(1, "b", 0), row(2, "a", 0)] {
            let same = base.iter().zip(other).filter(|(a, b)| **a == *b).count();
            assert!(same < 4, "{same} of 64 equal");
        }
    }
}
