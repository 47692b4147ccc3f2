//! Classifier-free guidance: two rows of logits made one.
//!
//! `guide + scale * (row - guide)`, element by element, where both are log-probabilities (Sanchez et al., "Stay on topic
//! with Classifier-Free Guidance", arXiv 2306.17806, equation 7). Transformers and the old `--cfg-scale` of llama.cpp
//! compute the same. Raw logits would give the same distribution, since each row's offset falls out of it. But a
//! repetition penalty looks at the sign of a value, and the offsets of two rows mean nothing to each other.

use super::{SampleError, check_row, log_sum_exp};
use crate::batch::Guidance;

impl Guidance {
    /// What a token is drawn from, `[n_vocab]`, of a sequence's logits and its guide's. What either of them excludes
    /// (`-inf`) stays excluded.
    ///
    /// # Errors
    /// A logit is NaN or `+inf`, or a row excludes everything.
    pub fn combine(&self, row: &[f32], guide: &[f32]) -> Result<Vec<f32>, SampleError> {
        let (own, other) = (log_sum_exp(row)?, log_sum_exp(guide)?);
        let log_prob = |logit: f32, (max, ln_sum): (f32, f64)| f64::from(logit - max) - ln_sum;
        let scale = f64::from(self.scale);
        let one = |(row, guide): (&f32, &f32)| {
            if *row == f32::NEG_INFINITY || *guide == f32::NEG_INFINITY {
                return f32::NEG_INFINITY;
            }
            let (row, guide) = (log_prob(*row, own), log_prob(*guide, other));
            (guide + scale * (row - guide)) as f32
        };
        let combined: Vec<f32> = row.iter().zip(guide).map(one).collect();
        check_row(&combined)?;
        Ok(combined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::log_prob;

    const ROW: [f32; 4] = [2.0, -1.0, 0.5, 3.0];
    const GUIDE: [f32; 4] = [7.0, 9.0, 8.5, 4.0];

    #[test]
    fn it_is_the_formula_on_log_probabilities() {
        for scale in [-0.5, 0.0, 1.0, 1.5, 7.0] {
            let combined = Guidance { scale }.combine(&ROW, &GUIDE).unwrap();
            for (i, value) in combined.iter().enumerate() {
                let of = |row| log_prob(row, i as u32).unwrap();
                let want = of(&GUIDE) + f64::from(scale) * (of(&ROW) - of(&GUIDE));
                assert!((f64::from(*value) - want).abs() < 1e-5, "{scale} {i}: {value} {want}");
            }
        }
    }

    #[test]
    fn an_offset_of_either_row_changes_nothing() {
        let combined = |row: &[f32], guide: &[f32]| {
            Guidance { scale: 3.0 }.combine(row, guide).unwrap().into_iter().map(f32::to_bits)
        };
        let moved = ROW.map(|l| l + 64.0);
        assert!(combined(&moved, &GUIDE).eq(combined(&ROW, &GUIDE)));
        let moved = GUIDE.map(|l| l - 32.0);
        assert!(combined(&ROW, &moved).eq(combined(&ROW, &GUIDE)));
    }

    #[test]
    fn what_one_excludes_is_excluded_and_nonsense_is_an_error() {
        let guidance = Guidance { scale: 2.0 };
        let none = f32::NEG_INFINITY;
        let combined = guidance.combine(&[none, 1.0, 2.0], &[0.0, none, 2.0]).unwrap();
        assert_eq!((combined[0], combined[1]), (none, none));
        assert!(combined[2].is_finite());
        let is_nan = |e: SampleError| matches!(e, SampleError::NotFinite { index: 1, .. });
        assert!(is_nan(guidance.combine(&ROW, &[0.0, f32::NAN, 0.0, 0.0]).unwrap_err()));
        assert!(is_nan(guidance.combine(&[0.0, f32::INFINITY, 0.0, 0.0], &GUIDE).unwrap_err()));
        assert_eq!(guidance.combine(&ROW, &[none; 4]), Err(SampleError::NothingLeft));
    }
}
