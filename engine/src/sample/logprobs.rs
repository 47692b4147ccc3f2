//! Natural logarithms of probabilities, under the softmax of a row of raw logits.

use super::SampleError;
use super::filters::Candidates;

/// `ln sum exp(l)` in f64, in index order: `(max, ln sum exp(l - max))`, apart so that a
/// log-probability `(l - max) - ln sum` keeps its precision.
///
/// # Errors
/// The row is empty, or a value is NaN or `+inf`, or all are `-inf`.
pub fn log_sum_exp(row: &[f32]) -> Result<(f32, f64), SampleError> {
    super::check_row(row)?;
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingLeft);
    }
    let sum: f64 = row.iter().map(|l| f64::from(libm::expf(l - max))).sum();
    Ok((max, libm::log(sum)))
}

/// Log-probability of `target` in a raw row (perplexity is `exp` of minus their mean).
///
/// # Errors
/// As [`log_sum_exp`], or `target` is outside the row.
pub fn log_prob(row: &[f32], target: u32) -> Result<f64, SampleError> {
    let n_vocab = row.len();
    let logit = *row.get(target as usize).ok_or(SampleError::BadToken {
        id: target,
        what: "the text",
        n_vocab,
    })?;
    let (max, ln_sum) = log_sum_exp(row)?;
    Ok(f64::from(logit - max) - ln_sum)
}

/// Log-probability of `id`, and the `n` most probable tokens, descending, equal ones by id. Tokens
/// of probability zero are not among them.
pub(super) fn top(
    scratch: &mut Candidates,
    row: &[f32],
    id: u32,
    n: usize,
) -> Result<(f32, Vec<(u32, f32)>), SampleError> {
    let (max, ln_sum) = log_sum_exp(row)?;
    let of = |logit: f32| (f64::from(logit - max) - ln_sum) as f32;
    let best = if n == 0 { &[] } else { scratch.best_of(row, n) };
    Ok((of(row[id as usize]), best.iter().map(|c| (c.id, of(c.logit))).collect()))
}
