//! Parts of a scan: those that overlap are refused, and a state may be read in one slot and left in another.

use brigade_kernels::{Compute, ScanPart};

use super::{Rng, compute, same_bits};

/// Rows of the two parts that [`states_may_be_read_elsewhere`] runs.
pub(super) const N_ROWS: usize = 7;

/// Runs an op over two parts that read one slot and write others, and over the same parts with copies of that state in
/// place. Outputs and states have the same bits, and the slot that was read stays as it is. `run` gets parts, states
/// and [`N_ROWS`] rows of `width` to write.
pub(super) fn states_may_be_read_elsewhere(
    op: &str,
    state_len: usize,
    width: usize,
    run: impl Fn(&Compute, &[ScanPart], &mut [f32], &mut [f32]),
) {
    let states = Rng::new(60).values(4 * state_len);
    let of =
        |states: &[f32], slot: usize| states[slot * state_len..(slot + 1) * state_len].to_vec();
    for kernels in crate::all_tables() {
        let compute = compute(kernels, 2);
        let [elsewhere, in_place] = [true, false].map(|is_elsewhere| {
            let parts = [(0, 0, 3), (3, 3, 4)].map(|(slot, first_row, n_rows)| {
                let from = if is_elsewhere { 1 } else { slot };
                ScanPart { from, slot, first_pos: 9, first_row, n_rows }
            });
            let mut states = states.clone();
            if !is_elsewhere {
                states.copy_within(state_len..2 * state_len, 0);
                states.copy_within(state_len..2 * state_len, 3 * state_len);
            }
            let mut out = vec![0.0; N_ROWS * width];
            run(&compute, &parts, &mut states, &mut out);
            out.extend(states);
            out
        });
        same_bits(op, &elsewhere, &in_place);
        let after = &elsewhere[N_ROWS * width..];
        assert_eq!(
            [1, 2].map(|slot| of(after, slot)),
            [1, 2].map(|slot| of(&states, slot)),
            "{op}"
        );
        assert_ne!(of(after, 0), of(&states, 1), "{op}: no state was written");
    }
}

fn part(slot: usize, first_row: usize, n_rows: usize) -> ScanPart {
    ScanPart::in_place(slot, 0, first_row, n_rows)
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
    // A slot that one part reads and another writes; two may read one.
    let reads = |from, part: ScanPart| ScanPart { from, ..part };
    assert!(!refused(&[reads(9, part(0, 0, 2)), reads(9, part(1, 2, 2)), part(2, 4, 1)]));
    assert!(refused(&[reads(1, part(0, 0, 2)), part(1, 2, 2), part(2, 4, 1)]));
    assert!(refused(&[part(0, 0, 2), reads(0, part(1, 2, 2)), part(2, 4, 1)]));
    assert!(refused(&[reads(200, part(0, 0, 2)), part(1, 2, 2), part(2, 4, 1)]));
    // What a refused check had seen is forgotten.
    assert!(!refused(&[part(70, 0, 2), part(3, 2, 2), part(1, 4, 1)]));
}
