//! Positions, or pools of them, that an index chose on the stage before: they come from another machine, and what they name
//! is read.

use crate::batch::{Boundary, UBatch};
use crate::error::BatchError;
use crate::kernels::PoolSizes;

/// Refuses a boundary whose last tensor names pools that cannot have been chosen. For each row, a pool must be a whole
/// number, greater than the one before it, and must end at the row's own position or before it. `input` has the right
/// length.
pub(super) fn check(sizes: PoolSizes, ub: &UBatch, input: &Boundary) -> Result<(), BatchError> {
    let per_row = sizes.per_row;
    let (_, pools) = input.data.split_at(input.data.len() - input.n_rows * per_row);
    let own =
        ub.parts.iter().flat_map(|part| (0..part.tokens.len()).map(|i| part.pos as usize + i));
    // A row that sees no more than so many attends to all of them, whatever is named.
    let rows = own.zip(pools.chunks_exact(per_row));
    for (own, row) in rows.filter(|(own, _)| sizes.n_seen(*own) > per_row) {
        let n_seen = sizes.n_seen(own) as f32;
        let whole = row.iter().all(|p| p.fract() == 0.0 && (0.0..n_seen).contains(p));
        if !whole || !row.is_sorted_by(|a, b| a < b) {
            return Err(BatchError::Boundary(format!(
                "the row at position {own} is to attend to positions that cannot have been chosen"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{SeqPart, SlotId, Want};

    /// Checks these positions for a row at position 40 that attends to 16.
    fn said(positions: &[f32]) -> Result<(), BatchError> {
        said_of(PoolSizes::single(16), positions)
    }

    fn said_of(sizes: PoolSizes, pools: &[f32]) -> Result<(), BatchError> {
        let (slot, want) = (SlotId(0), Want::Nothing);
        let part = SeqPart { slot, pos: 40, tokens: vec![1], want, mu: None, ahead: None };
        let ub = UBatch { id: 0, ops: Vec::new(), parts: vec![part] };
        let data = [&[0.5; 3], pools].concat();
        check(sizes, &ub, &Boundary { n_rows: 1, data })
    }

    /// The row sees ten pools of four and one position more.
    #[test]
    fn pools_that_are_not_whole_yet_are_refused() {
        let of = |per_row| PoolSizes { positions: 4, per_row };
        said_of(of(3), &[0.0, 5.0, 9.0]).unwrap();
        for bad in [[0.0, 5.0, 10.0], [5.0, 5.0, 9.0], [9.0, 5.0, 0.0], [0.0, 1.5, 2.0]] {
            assert!(matches!(said_of(of(3), &bad), Err(BatchError::Boundary(_))), "{bad:?}");
        }
        // It attends to all of them.
        said_of(of(10), &[40.0; 10]).unwrap();
    }

    #[test]
    fn positions_that_no_index_chooses_are_refused() {
        let good: Vec<f32> = (0..16).map(|i| (2 * i) as f32).collect();
        said(&good).unwrap();
        let last = |value: f32| [&good[..15], &[value]].concat();
        said(&last(40.0)).unwrap();
        for bad in [last(41.0), last(28.0), last(30.5), last(f32::NAN), last(f32::INFINITY)] {
            assert!(matches!(said(&bad), Err(BatchError::Boundary(_))), "{bad:?}");
        }
        let negative = [&[-1.0], &good[1..]].concat();
        assert!(matches!(said(&negative), Err(BatchError::Boundary(_))));
    }
}
