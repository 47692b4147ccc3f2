//! Embeddings of the last few tokens together, as data.

use crate::state::StateSpec;

/// Embeddings of n-grams that a hash chooses (Qwen3.8-Flash-Next). With the row's token `t_0` and those before it, `t_1`,
/// `t_2` and so on, an n-gram of `n` tokens is the number `t_0 m_0 xor ... xor t_(n-1) m_(n-1)` in 64 bits. Each of its
/// heads takes the row `number mod size + first` of one table. Tokens at an end of text or before it, and those before the
/// sequence's first, count as ends of text; the row's own token counts as it is.
///
/// All heads of all n-grams, of 2 tokens up to `longest`, side by side are a row `e`. Then stream `i` gains
/// `v_i + silu(conv(norm_i v)_i)` with `v_i = sigmoid(root(norm(key_i e) · norm(x_i) / sqrt(n_embd))) value e`, where
/// `root(s)` is the root of `|s|` with the sign of `s`. The convolution's taps are `longest` positions apart.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramSpec {
    /// Streams of a token, all of which the block reads and writes.
    pub n_streams: usize,
    /// Width of a stream, which is that of all heads' rows together.
    pub n_embd: usize,
    /// Tokens of the longest n-gram, at least 2.
    pub longest: usize,
    /// One for each token of the longest n-gram.
    pub multipliers: Vec<u64>,
    /// The rows of the table that each head has, heads of the shorter n-grams first.
    pub heads: Vec<NgramHead>,
    /// Rows of the table.
    pub table_rows: usize,
    /// The end of text.
    pub end: u32,
    /// Taps of the convolution.
    pub conv_taps: usize,
    /// Epsilon of its norms.
    pub eps: f32,
}

/// Rows of the table that one head has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramHead {
    /// First row of the table.
    pub first: u64,
    /// Number of rows, at least 1.
    pub size: u64,
}

impl NgramSpec {
    /// Rows before a row that its convolution reaches back to.
    #[inline]
    pub fn n_before(&self) -> usize {
        (self.conv_taps - 1) * self.longest
    }

    /// Width of all streams together.
    #[inline]
    pub fn width(&self) -> usize {
        self.n_streams * self.n_embd
    }

    /// Width of a row of the table.
    #[inline]
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.heads.len()
    }

    /// Sizes of the block's state of a sequence: the last inputs of its convolution, then the last tokens.
    pub fn state(&self) -> StateSpec {
        StateSpec::Slot { conv: self.n_before() * self.width(), scan: self.longest - 1 }
    }

    /// The rows of the table for a row with the tokens `t_0`, `t_1`, ..., as many as the longest n-gram has; `None` for
    /// those before the sequence's first.
    #[inline]
    pub fn rows<'a>(&'a self, tokens: &[Option<u32>]) -> impl Iterator<Item = u64> + use<'a> {
        let mut is_over = false;
        let mut number = 0;
        let mut numbers = Vec::with_capacity(self.longest);
        for (i, (token, multiplier)) in tokens.iter().zip(&self.multipliers).enumerate() {
            is_over |= i > 0 && token.is_none_or(|token| token == self.end);
            let token = if is_over { self.end } else { token.unwrap_or(self.end) };
            number ^= u64::from(token).wrapping_mul(*multiplier);
            numbers.push(number);
        }
        let per_ngram = self.heads.len() / (self.longest - 1);
        let head = move |(i, head): (usize, &NgramHead)| {
            numbers[1 + i / per_ngram] % head.size + head.first
        };
        self.heads.iter().enumerate().map(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> NgramSpec {
        NgramSpec {
            n_streams: 4,
            n_embd: 8,
            longest: 3,
            multipliers: vec![1_000_003, u64::MAX - 12, 7],
            heads: [(0, 11), (11, 13), (24, 17), (41, 19)]
                .map(|(first, size)| NgramHead { first, size })
                .into(),
            table_rows: 60,
            end: 9,
            conv_taps: 4,
            eps: 1e-6,
        }
    }

    #[test]
    fn a_row_depends_on_its_ngrams_alone() {
        let spec = spec();
        let rows = |tokens: [Option<u32>; 3]| spec.rows(&tokens).collect::<Vec<u64>>();
        let [two, three] = {
            let two = 5u64.wrapping_mul(1_000_003) ^ 6u64.wrapping_mul(u64::MAX - 12);
            [two, two ^ (8 * 7)]
        };
        let want = vec![two % 11, two % 13 + 11, three % 17 + 24, three % 19 + 41];
        assert_eq!(rows([Some(5), Some(6), Some(8)]), want);
        // The first token changes the longer n-grams alone.
        assert_eq!(rows([Some(5), Some(6), Some(2)])[..2], want[..2]);
        assert_ne!(rows([Some(5), Some(6), Some(2)])[2..], want[2..]);
    }

    #[test]
    fn nothing_before_an_end_of_text_counts() {
        let spec = spec();
        let rows = |tokens: [Option<u32>; 3]| spec.rows(&tokens).collect::<Vec<u64>>();
        assert_eq!(rows([Some(5), Some(9), Some(3)]), rows([Some(5), Some(9), Some(9)]));
        assert_eq!(rows([Some(5), None, None]), rows([Some(5), Some(9), Some(3)]));
        // The row's own token is no end of what is before it.
        assert_ne!(rows([Some(9), Some(3), Some(2)]), rows([Some(9), Some(9), Some(9)]));
    }

    #[test]
    fn a_slot_has_inputs_of_the_convolution_and_tokens() {
        assert_eq!(spec().state(), StateSpec::Slot { conv: 9 * 32, scan: 2 });
    }
}
