//! Causal depthwise convolution with taps some rows apart. Its state is the rows before it, as they are.

use brigade_ops::{DilatedRows, Host};
use brigade_shapes::DilatedConv;

use crate::compute::Compute;
use crate::tiles::scan::ScanPart;

impl Compute {
    /// Runs the op [`DilatedRows`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn dilated_conv(&self, op: DilatedRows<'_, Host>) {
        let DilatedRows { conv, parts, states, x, weight, out } = op;
        let (channels, n_before) = (conv.channels, conv.n_before());
        self.fill_rows(out, channels, &|row, out| {
            let is_in =
                |part: &&ScanPart| (part.first_row..part.first_row + part.n_rows).contains(&row);
            let Some(part) = parts.iter().find(is_in) else { return };
            let state = &states[part.from * conv.state_len()..][..conv.state_len()];
            out.fill(0.0);
            for (tap, weights) in weight.chunks_exact(channels).enumerate() {
                // Places from the oldest remembered row on.
                let at = row - part.first_row + tap * conv.apart;
                let x = match at.checked_sub(n_before) {
                    Some(at) => &x[(part.first_row + at) * channels..][..channels],
                    None => &state[at * channels..][..channels],
                };
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weights) {
                    *out += x * weight;
                }
            }
        });
    }

    /// Leaves in the slots of `parts` what [`Compute::dilated_conv`] reads of `x` behind them.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn keep_last_rows(
        &self,
        conv: &DilatedConv,
        parts: &[ScanPart],
        states: &mut [f32],
        x: &[f32],
    ) {
        let (channels, n_before) = (conv.channels, conv.n_before());
        for part in parts {
            let new = part.n_rows.min(n_before);
            let old = part.from * conv.state_len()..(part.from + 1) * conv.state_len();
            let kept = part.slot * conv.state_len();
            states.copy_within(old.start + new * channels..old.end, kept);
            let kept = &mut states[kept..][..conv.state_len()];
            let end = part.first_row + part.n_rows;
            kept[(n_before - new) * channels..]
                .copy_from_slice(&x[(end - new) * channels..end * channels]);
        }
    }
}
