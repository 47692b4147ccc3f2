//! The distance between the predictions of two runs, summed token by token in f64.

use std::fmt;

use serde_json::{Value, json};

/// Mean of values that come one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    n: usize,
    sum: f64,
    squares: f64,
}

impl Mean {
    pub(super) fn add(&mut self, value: f64) {
        self.n += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// How many values came.
    pub(super) fn count(&self) -> usize {
        self.n
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.n as f64
    }

    /// Standard error of the mean, the values taken as independent.
    pub(super) fn standard_error(&self) -> f64 {
        let n = self.n as f64;
        let variance = (self.squares / n - self.mean() * self.mean()).max(0.0);
        (variance / (n - 1.0).max(1.0)).sqrt()
    }
}

/// The value to subtract from a logit of `row` for the logarithm of its probability under softmax.
fn log_sum_exp(row: &[f32]) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|v| (f64::from(*v) - f64::from(max)).exp()).sum();
    f64::from(max) + sum.ln()
}

/// Minus the logarithm of the probability of `token` under softmax of `row`.
pub(super) fn nll(row: &[f32], token: u32) -> f64 {
    log_sum_exp(row) - f64::from(row[token as usize])
}

/// Index of the largest value, the first of equal ones.
fn top(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// Distance of one run's predictions from a base's, over scored tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Difference {
    base_nll: Mean,
    /// Kullback-Leibler divergence `sum p_base ln (p_base / p)`, nats.
    kl: Mean,
    max_kl: f64,
    same_top: usize,
}

impl Difference {
    /// The next row of logits of both, and the token that came after it.
    pub(super) fn add(&mut self, base: &[f32], row: &[f32], next: u32) {
        let (base_sum, sum) = (log_sum_exp(base), log_sum_exp(row));
        let term = |(&b, &r): (&f32, &f32)| {
            let log_p = f64::from(b) - base_sum;
            // A token with probability 0 in the base run adds nothing.
            let p = log_p.exp();
            if p > 0.0 { p * (log_p - (f64::from(r) - sum)) } else { 0.0 }
        };
        // Below zero by rounding only.
        let kl = base.iter().zip(row).map(term).sum::<f64>().max(0.0);
        self.kl.add(kl);
        self.max_kl = self.max_kl.max(kl);
        self.same_top += usize::from(top(base) == top(row));
        self.base_nll.add(nll(base, next));
    }

    fn base_perplexity(&self) -> f64 {
        self.base_nll.mean().exp()
    }

    /// Share of scored tokens at which both hold the same token for the most probable one.
    fn same_top(&self) -> f64 {
        self.same_top as f64 / self.kl.count() as f64
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "perplexity": self.base_perplexity(),
            "mean_kl": self.kl.mean(),
            "mean_kl_standard_error": self.kl.standard_error(),
            "max_kl": self.max_kl,
            "same_top": self.same_top(),
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "base perplexity {:.4}; KL divergence from it {:.2e} +/- {:.1e} nats a token, at most \
             {:.2e}; same top token {:.2} %",
            self.base_perplexity(),
            self.kl.mean(),
            self.kl.standard_error(),
            self.max_kl,
            self.same_top() * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_logits_have_the_vocabulary_as_perplexity() {
        let mut mean = Mean::default();
        for token in 0..4 {
            mean.add(nll(&[0.5; 8], token));
        }
        assert_eq!(mean.count(), 4);
        assert!((mean.mean().exp() - 8.0).abs() < 1e-9);
        assert!(mean.standard_error().abs() < 1e-7);
    }

    #[test]
    fn equal_rows_do_not_differ_even_where_a_token_is_excluded() {
        let row = [1.0, -2.0, f32::NEG_INFINITY, 0.25];
        let mut difference = Difference::default();
        difference.add(&row, &row, 0);
        assert_eq!((difference.kl.mean(), difference.same_top()), (0.0, 1.0));
    }

    #[test]
    fn the_divergence_of_two_coins_is_the_known_one() {
        let logits = |p: f64| [p.ln() as f32, (1.0 - p).ln() as f32];
        let mut difference = Difference::default();
        difference.add(&logits(0.75), &logits(0.25), 0);
        difference.add(&logits(0.75), &logits(0.75), 1);
        let expected = 0.75 * 3.0_f64.ln() + 0.25 * (1.0_f64 / 3.0).ln();
        assert!((difference.max_kl - expected).abs() < 1e-6, "{difference:?}");
        assert!((difference.kl.mean() - expected / 2.0).abs() < 1e-6);
        assert!((difference.same_top() - 0.5).abs() < 1e-12);
        let base = (0.75_f64 * 0.25).powf(-0.5);
        assert!((difference.base_perplexity() - base).abs() < 1e-6);
    }
}
