//! The time that the model's own drafting block takes on the last stage.
//!
//! Drafts of one run come one after the other, so those of a ubatch take the time of a step each. Several sequences
//! share their steps.

use crate::events::Micros;

/// Numbers of sequences that are told apart: 1, 2, 3..4, 5..8, and all beyond.
const N_SIZES: usize = 5;

/// Weight of a new time, once there are `1 / RECENT`.
const RECENT: f64 = 1.0 / 16.0;

/// Times that count as much as the hope that a step takes none. So one slow time does not end drafts for good.
const AS_THE_HOPE: f64 = 1.0;

/// Ubatches after which times count half: a step may have become quicker, which is not seen while none are made.
const HALF_LIFE: f64 = 1024.0;

/// Times of steps of about so many sequences.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    n: f64,
    us: f64,
    last: u64,
}

/// Measured times of drafting steps, by the number of sequences.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chains {
    sizes: [Size; N_SIZES],
    n_ubatches: u64,
    /// The expected time of a step. It is optimistic where few or old measurements exist.
    step_us: [f64; N_SIZES],
}

/// Drafts that a ubatch brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drafted {
    /// The number of sequences with drafts.
    pub sequences: u32,
    /// The largest number of drafts of a sequence.
    pub most: u32,
}

impl Drafted {
    /// Adds a sequence for which `n` tokens were drafted.
    pub fn and(&mut self, n: usize) {
        self.sequences += u32::from(n > 0);
        self.most = self.most.max(n as u32);
    }
}

fn size_of(n_sequences: u32) -> usize {
    let log2_up = u32::BITS - n_sequences.saturating_sub(1).leading_zeros();
    (log2_up as usize).min(N_SIZES - 1)
}

impl Chains {
    /// A ubatch is back, for whose drafts the last stage took so long.
    pub fn observe(&mut self, drafted: Drafted, us: Micros) {
        self.n_ubatches += 1;
        if drafted.most > 0 {
            let size = &mut self.sizes[size_of(drafted.sequences)];
            size.n = (size.n + 1.0).min(1.0 / RECENT);
            size.us += (us as f64 / f64::from(drafted.most) - size.us) / size.n;
            size.last = self.n_ubatches;
        }
        let mut least = 0.0;
        for (Size { n, us, last }, step_us) in self.sizes.iter().zip(&mut self.step_us) {
            let n = n * (-((self.n_ubatches - last) as f64) / HALF_LIFE).exp2();
            // More sequences take no less.
            least = f64::max(least, us * n / (n + AS_THE_HOPE));
            *step_us = least;
        }
    }

    /// Microseconds for so many drafts of each of so many sequences, as far as is known.
    pub fn of(&self, drafted: Drafted) -> f64 {
        self.step_us[size_of(drafted.sequences)] * f64::from(drafted.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_what_was_seen_of_about_so_many_sequences() {
        let mut chains = Chains::default();
        let of = |sequences, most| Drafted { sequences, most };
        assert_eq!(chains.of(of(1, 3)), 0.0);
        for _ in 0..64 {
            chains.observe(of(1, 2), 200);
            chains.observe(of(4, 1), 300);
        }
        let near = |us: f64, about: f64| assert!((0.9..=1.0).contains(&(us / about)), "{us}");
        near(chains.of(of(1, 1)), 100.0);
        near(chains.of(of(1, 3)), 300.0);
        near(chains.of(of(3, 2)), 600.0);
        near(chains.of(of(64, 1)), 300.0);
        // Where it was long ago, it is hoped for again.
        (0..8 * 1024).for_each(|_| chains.observe(Drafted::default(), 0));
        assert!(chains.of(of(1, 1)) < 10.0, "{}", chains.of(of(1, 1)));
    }

    #[test]
    fn one_slow_time_counts_half() {
        let mut chains = Chains::default();
        chains.observe(Drafted { sequences: 1, most: 1 }, 10_000);
        let us = chains.of(Drafted { sequences: 1, most: 1 });
        assert!((4_000.0..6_000.0).contains(&us), "{us}");
    }
}
