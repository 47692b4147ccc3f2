//! Sizes of Mamba-1's selective scan (arXiv 2312.00752, section 3.2).

use super::LANES;

/// Values of a sequence's state of `channels` channels with `n_state` values each: tiles of whole lanes.
pub const fn mamba_state_len(channels: usize, n_state: usize) -> usize {
    channels.next_multiple_of(LANES) * n_state
}
