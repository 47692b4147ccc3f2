//! The limits of requests now. Where the operator names no context length, it is the model's own, as far as the
//! line's memory allows. So it is known only when a line is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::handle::{Engine, LineInfo, Status};
use crate::request::{LEAST_ANSWER, Limits};

/// The limits of the line that is up, or of the last one; clones share them.
#[derive(Clone, Debug)]
pub struct CurrentLimits {
    longest: Limits,
    engine: Engine,
    /// Context and share of the last line, in one number; 0 before the first.
    last: Arc<AtomicU64>,
}

impl CurrentLimits {
    /// The limits of the lines of `engine`; no line allows more than `longest`.
    pub fn new(longest: Limits, engine: Engine) -> Self {
        Self { longest, engine, last: Arc::default() }
    }

    /// The limits of the present line or the last one. Before the first line, the longest possible.
    pub fn now(&self) -> Limits {
        if let Status::Ready(line) = self.engine.status() {
            self.last.store(packed(&line), Ordering::Relaxed);
        }
        limits(self.longest, self.last.load(Ordering::Relaxed))
    }
}

fn packed(line: &LineInfo) -> u64 {
    u64::from(line.n_ctx) << 32 | u64::from(line.share)
}

fn limits(longest: Limits, packed: u64) -> Limits {
    let (n_ctx, share) = ((packed >> 32) as u32, packed as u32);
    if n_ctx == 0 {
        return longest;
    }
    let n_ctx = n_ctx.min(longest.n_ctx);
    Limits { n_ctx, answer: share.max(LEAST_ANSWER).min(n_ctx), ..longest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_may_be_shorter_than_the_model() {
        let longest = Limits { n_ctx: 1 << 17, n_vocab: 9, answer: LEAST_ANSWER, encoder: None };
        assert_eq!(limits(longest, 0), longest);
        let line = |n_ctx, share| packed(&LineInfo { n_ctx, share, ..LineInfo::default() });
        let of = |n_ctx, share| {
            let limits = limits(longest, line(n_ctx, share));
            (limits.n_ctx, limits.answer)
        };
        assert_eq!(of(1 << 17, 8192), (1 << 17, 8192));
        assert_eq!(of(32_768, 4096), (32_768, 4096));
        assert_eq!(of(256, 256), (256, 256), "an answer has no more room than there is");
        assert_eq!(of(32_768, 64), (32_768, LEAST_ANSWER));
    }
}
