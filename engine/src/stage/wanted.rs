//! The rows of a ubatch that pass through the head: those of which a token or logits are wanted.

use crate::batch::Want;
use crate::state::PartRows;

/// Rows of a part that pass through the head.
pub(super) fn wanted_rows(part: &PartRows) -> std::ops::Range<usize> {
    match part.want {
        Want::Nothing => part.rows.end..part.rows.end,
        Want::Sample | Want::Companion => part.rows.end - 1..part.rows.end,
        Want::HiddenFirst => part.rows.start..part.rows.start + 1,
        Want::HiddenLast => part.rows.end - 1..part.rows.end,
        Want::Verify => part.rows.start + part.known..part.rows.end,
        Want::Logits | Want::Hidden => part.rows.clone(),
    }
}
