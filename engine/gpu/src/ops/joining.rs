//! Ops that are joined with the one before them: one kernel does the work of both, with the same bits, and nothing waits between them.
//!
//! What the first one writes is written all the same, since somebody may read it later. A run that the next one joins is known by
//! its kernel and by what it is told, so nobody who calls ops has to know of this.

use super::products::{QUANTIZE, QuantizePush};
use super::{elementwise, rows};
use crate::work::Work;

/// Functions of `elementwise.comp` that have a third operand.
const OF_THREE: [u32; 3] = [
    elementwise::Function::Lerp as u32,
    elementwise::Function::DecayFactors as u32,
    elementwise::Function::BoundedDecayFactors as u32,
];

/// Place of `elementwise.comp`: an operand has a value for each.
const EACH: u32 = 1;

/// Values of a block of activations.
const BLOCK: u32 = 32;

/// A norm of rows that the last run has added others to.
pub(super) fn norm_of_sum(last: &Work, norm: &Work) -> Option<Work> {
    let (sum, function) = last.of::<elementwise::Push>(&elementwise::SHADER)?;
    let (push, constants) = norm.of::<rows::Push>(&rows::SHADER)?;
    let is_sum = function == [elementwise::Function::AddScaled as u32, EACH] && sum.x == sum.result;
    let is_norm = constants[0] != rows::Kind::Softmax as u32;
    // In place, the sum would be lost.
    let is_kept = push.x == sum.result && push.result != push.x;
    if !(is_sum && is_norm && is_kept && sum.n == push.n * push.d) {
        return None;
    }
    let push = rows::Push { added: sum.y, factor: sum.constants[0], ..push };
    let constants = [constants[0], constants[1], 1, 0];
    Some(Work::new(&rows::SHADER, &constants, &push, norm.groups))
}

/// Blocks of values that the last run has made: a norm, or a function of each value.
pub(super) fn blocks_of_result(last: &Work, blocks: &Work) -> Option<Work> {
    let (push, _) = blocks.of::<QuantizePush>(&QUANTIZE)?;
    let n = push.n_blocks * BLOCK;
    if let Some((norm, constants)) = last.of::<rows::Push>(&rows::SHADER) {
        let is_norm = constants[0] != rows::Kind::Softmax as u32 && constants[3] == 0;
        let is_whole = norm.n * norm.d == n && norm.d.is_multiple_of(BLOCK);
        if !(is_norm && is_whole && norm.result == push.x) {
            return None;
        }
        let push = rows::Push { blocks: push.blocks, ..norm };
        let constants = [constants[0], constants[1], constants[2], 1];
        return Some(Work::new(&rows::SHADER, &constants, &push, last.groups));
    }
    let (made, constants) = last.of::<elementwise::Push>(&elementwise::SHADER)?;
    if OF_THREE.contains(&constants[0]) || made.result != push.x || made.n != n {
        return None;
    }
    let elementwise::Push { x, y, result, width, constants: numbers, .. } = made;
    let push = QuantizePush { x, y, result, width, constants: numbers, ..push };
    Some(Work::new(&QUANTIZE, constants, &push, blocks.groups))
}
