//! Parts of a scan that overlap are refused.

use brigade_kernels::ScanPart;

fn part(slot: usize, first_row: usize, n_rows: usize) -> ScanPart {
    ScanPart { slot, first_pos: 0, first_row, n_rows }
}

fn refused(parts: &[ScanPart]) -> bool {
    std::panic::catch_unwind(|| ScanPart::check(parts, 10, 200, "test")).is_err()
}

#[test]
fn parts_that_overlap_are_refused() {
    assert!(!refused(&[]));
    assert!(!refused(&[part(3, 0, 2), part(0, 2, 3), part(199, 5, 0), part(64, 6, 4)]));
    let overlapping = [
        // Rows 1, or all of a part's, or those of a part further on, in two parts.
        [part(0, 0, 2), part(1, 1, 2), part(2, 5, 1)],
        [part(0, 0, 4), part(1, 1, 2), part(2, 5, 1)],
        [part(0, 0, 2), part(1, 4, 2), part(2, 1, 1)],
        // A slot in two parts, neighbours or not.
        [part(1, 0, 2), part(1, 2, 2), part(2, 4, 1)],
        [part(70, 0, 2), part(3, 2, 2), part(70, 4, 1)],
        // Outside the rows or the slots.
        [part(0, 0, 2), part(1, 2, 9), part(2, 11, 1)],
        [part(0, 0, 2), part(1, 2, usize::MAX), part(2, 1, 1)],
        [part(0, 0, 2), part(200, 2, 2), part(2, 4, 1)],
    ];
    for parts in overlapping {
        assert!(refused(&parts), "{parts:?}");
    }
    // What a refused check had seen is forgotten.
    assert!(!refused(&[part(70, 0, 2), part(3, 2, 2), part(1, 4, 1)]));
}
