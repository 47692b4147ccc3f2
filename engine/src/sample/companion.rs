//! Classifier-free guidance: one row of logits made of a sequence's own and of its companion's. The companion is a second
//! sequence with another prompt and the same answer.
//!
//! `companion + scale * (row - companion)`, element by element, where both are log-probabilities (Sanchez et al., "Stay on topic
//! with Classifier-Free Guidance", arXiv 2306.17806, equation 7). Transformers and the old `--cfg-scale` of llama.cpp
//! compute the same. Raw logits would give the same distribution. They are not used, because a repetition penalty looks at
//! the sign of a value, and the logits of two rows have no zero in common.

use super::{SampleError, check_row, log_sum_exp};
use crate::batch::Companion;

impl Companion {
    /// The logits that a token is drawn from, `[n_vocab]`, made of a sequence's logits and its companion's. A token
    /// that either of them excludes (`-inf`) stays excluded.
    ///
    /// # Errors
    /// A logit is NaN or `+inf`, or a row excludes everything.
    pub fn combine(&self, row: &[f32], companion: &[f32]) -> Result<Vec<f32>, SampleError> {
        let (own, other) = (log_sum_exp(row)?, log_sum_exp(companion)?);
        // `(max, ln_sum)` is what `log_sum_exp` gives of a row: its greatest logit, and the logarithm of the sum above it.
        let log_prob = |logit: f32, (max, ln_sum): (f32, f64)| f64::from(logit - max) - ln_sum;
        let scale = f64::from(self.scale);
        let one = |(row, companion): (&f32, &f32)| {
            if *row == f32::NEG_INFINITY || *companion == f32::NEG_INFINITY {
                return f32::NEG_INFINITY;
            }
            let (row, companion) = (log_prob(*row, own), log_prob(*companion, other));
            (companion + scale * (row - companion)) as f32
        };
        let combined: Vec<f32> = row.iter().zip(companion).map(one).collect();
        check_row(&combined)?;
        Ok(combined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::log_prob;

    const ROW: [f32; 4] = [2.0, -1.0, 0.5, 3.0];
    const COMPANION: [f32; 4] = [7.0, 9.0, 8.5, 4.0];

    #[test]
    fn it_is_the_formula_on_log_probabilities() {
        for scale in [-0.5, 0.0, 1.0, 1.5, 7.0] {
            let combined = Companion { scale }.combine(&ROW, &COMPANION).unwrap();
            for (i, value) in combined.iter().enumerate() {
                let of = |row| log_prob(row, i as u32).unwrap();
                let want = of(&COMPANION) + f64::from(scale) * (of(&ROW) - of(&COMPANION));
                assert!((f64::from(*value) - want).abs() < 1e-5, "{scale} {i}: {value} {want}");
            }
        }
    }

    #[test]
    fn an_offset_of_either_row_changes_nothing() {
        let combined = |row: &[f32], companion: &[f32]| {
            Companion { scale: 3.0 }.combine(row, companion).unwrap().into_iter().map(f32::to_bits)
        };
        let moved = ROW.map(|l| l + 64.0);
        assert!(combined(&moved, &COMPANION).eq(combined(&ROW, &COMPANION)));
        let moved = COMPANION.map(|l| l - 32.0);
        assert!(combined(&ROW, &moved).eq(combined(&ROW, &COMPANION)));
    }

    #[test]
    fn what_one_excludes_is_excluded_and_nonsense_is_an_error() {
        let companion = Companion { scale: 2.0 };
        let none = f32::NEG_INFINITY;
        let combined = companion.combine(&[none, 1.0, 2.0], &[0.0, none, 2.0]).unwrap();
        assert_eq!((combined[0], combined[1]), (none, none));
        assert!(combined[2].is_finite());
        let is_nan = |e: SampleError| matches!(e, SampleError::NotFinite { index: 1, .. });
        assert!(is_nan(companion.combine(&ROW, &[0.0, f32::NAN, 0.0, 0.0]).unwrap_err()));
        assert!(is_nan(
            companion.combine(&[0.0, f32::INFINITY, 0.0, 0.0], &COMPANION).unwrap_err()
        ));
        assert_eq!(companion.combine(&ROW, &[none; 4]), Err(SampleError::NothingLeft));
    }
}
