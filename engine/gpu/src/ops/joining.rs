//! Ops that are joined with the one before them: one kernel does the work of both, with the same bits, and nothing waits between them; or
//! both run at the same time.
//!
//! What the first one writes is written all the same, since somebody may read it later. A run that the next one joins is known by
//! its kernel and by what it is told, so nobody who calls ops has to know of this.

use bytemuck::{Pod, Zeroable};

use super::elementwise::{self, Function};
use crate::shader::{Shader, shader};
use crate::work::{Joined, Work};

pub(super) static ROWS: Shader = shader!("rows");
pub(super) static QUANTIZE: Shader = shader!("quantize");
pub(super) static ROPE: Shader = shader!("rope");

/// What `rows.comp` does to a row, by the numbers it has for it.
#[derive(Clone, Copy)]
pub(super) enum RowsKind {
    Rms = 0,
    L2 = 1,
    Layer = 2,
    Softmax = 3,
}

/// What `rows.comp` is told. Its constants are the kind, the invocations on a row, whether it adds, and whether it makes blocks.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct RowsPush {
    pub(super) x: u64,
    pub(super) weights: u64,
    pub(super) biases: u64,
    pub(super) result: u64,
    pub(super) added: u64,
    pub(super) blocks: u64,
    pub(super) n: u32,
    pub(super) d: u32,
    pub(super) groups: u32,
    pub(super) eps: f32,
    pub(super) factor: f32,
    pub(super) pad: u32,
}

/// What `quantize.comp` is told. Its constants are a function of each value, or [`AS_THEY_ARE`], and the place of its operand.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct QuantizePush {
    pub(super) x: u64,
    pub(super) blocks: u64,
    pub(super) y: u64,
    pub(super) result: u64,
    pub(super) n_blocks: u32,
    pub(super) width: u32,
    pub(super) constants: [f32; 4],
}

/// What `rope.comp` is told.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct RopePush {
    pub(super) x: u64,
    pub(super) table: u64,
    /// Pairs of all heads.
    pub(super) n: u32,
    /// Pairs of a head.
    pub(super) pairs: u32,
    /// Heads of a row.
    pub(super) heads: u32,
    pub(super) head_dim: u32,
}

/// Stands for no function in `quantize.comp`.
pub(super) const AS_THEY_ARE: u32 = u32::MAX;

/// Functions of `elementwise.comp` that have a third operand.
const OF_THREE: [u32; 3] =
    [Function::Lerp as u32, Function::DecayFactors as u32, Function::BoundedDecayFactors as u32];

/// Place of `elementwise.comp`: an operand has a value for each.
const EACH: u32 = 1;

/// Values of a block of activations.
const BLOCK: u32 = 32;

/// A norm of rows that the last run has added others to.
pub(super) fn norm_of_sum(last: &Work, norm: &Work) -> Option<Joined> {
    let (sum, function) = last.of::<elementwise::Push>(&elementwise::SHADER)?;
    let (push, constants) = norm.of::<RowsPush>(&ROWS)?;
    let is_sum = function == [Function::AddScaled as u32, EACH] && sum.x == sum.result;
    let is_norm = constants[0] != RowsKind::Softmax as u32;
    // In place, the sum would be lost.
    let is_kept = push.x == sum.result && push.result != push.x;
    if !(is_sum && is_norm && is_kept && sum.n == push.n * push.d) {
        return None;
    }
    let push = RowsPush { added: sum.y, factor: sum.constants[0], ..push };
    let constants = [constants[0], constants[1], 1, 0];
    Some(Joined::One(Work::new(&ROWS, &constants, &push, norm.groups)))
}

/// Blocks of values that the last run has made: a norm, or a function of each value.
pub(super) fn blocks_of_result(last: &Work, blocks: &Work) -> Option<Joined> {
    let (push, _) = blocks.of::<QuantizePush>(&QUANTIZE)?;
    let n = push.n_blocks * BLOCK;
    if let Some((norm, constants)) = last.of::<RowsPush>(&ROWS) {
        let is_norm = constants[0] != RowsKind::Softmax as u32 && constants[3] == 0;
        let is_whole = norm.n * norm.d == n && norm.d.is_multiple_of(BLOCK);
        if !(is_norm && is_whole && norm.result == push.x) {
            return None;
        }
        let push = RowsPush { blocks: push.blocks, ..norm };
        let constants = [constants[0], constants[1], constants[2], 1];
        return Some(Joined::One(Work::new(&ROWS, &constants, &push, last.groups)));
    }
    let (made, constants) = last.of::<elementwise::Push>(&elementwise::SHADER)?;
    if OF_THREE.contains(&constants[0]) || made.result != push.x || made.n != n {
        return None;
    }
    let elementwise::Push { x, y, result, width, constants: numbers, .. } = made;
    let push = QuantizePush { x, y, result, width, constants: numbers, ..push };
    Some(Joined::One(Work::new(&QUANTIZE, constants, &push, blocks.groups)))
}

/// A rotation of other rows than those that the last run has rotated: of keys behind queries.
pub(super) fn rope_beside(last: &Work, rope: &Work) -> Option<Joined> {
    let (last, _) = last.of::<RopePush>(&ROPE)?;
    let (rope, _) = rope.of::<RopePush>(&ROPE)?;
    let bytes = |push: &RopePush| {
        let values = u64::from(push.n / push.pairs) * u64::from(push.head_dim);
        push.x..push.x + values * size_of::<f32>() as u64
    };
    let (one, other) = (bytes(&last), bytes(&rope));
    (one.end <= other.start || other.end <= one.start).then_some(Joined::Beside)
}
