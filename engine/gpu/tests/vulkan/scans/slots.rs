//! Slots of states, made zero and copied.

use crate::common::{Random, assert_same, gpu, on, values_of};

#[test]
fn slots_are_copied_both_ways_and_made_zero() {
    let Some(gpu) = gpu() else { return };
    let (n, per_slot) = (5, 37);
    let mut here = Random(60).values(n * per_slot, 1.0);
    let mut there = on(&gpu, &here);
    for (from, to) in [(0, 3), (4, 1), (2, 2), (3, 4)] {
        gpu.copy_slot(there.span_mut(), per_slot, from, to);
        here.copy_within(from * per_slot..(from + 1) * per_slot, to * per_slot);
    }
    gpu.fill(there.span_mut().part(4 * per_slot..8 * per_slot), 0.0);
    here[per_slot..2 * per_slot].fill(0.0);
    assert_same("slots", &values_of(&there), &here);
}
