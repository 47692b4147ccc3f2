//! Ops that are joined with the one before them: one kernel does the work of both, with the same bits, and nothing waits between them; or
//! both run at the same time.
//!
//! The results of the first one are written all the same, since a later op may read them. A run that the next one joins
//! is known by its kernel and its push constants, so the callers of ops need not know of this.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::elementwise::{self, Function};
use crate::commands::dispatch::{Fusion, Work};
use crate::pipelines::shader::{Shader, shader};

pub(super) static ROWS: Shader = shader!("rows");
pub(crate) static QUANTIZE: Shader = shader!("quantize");
pub(crate) static ROPE: Shader = shader!("rope");

/// Operations of `rows.comp` on a row, by their numbers there.
#[derive(Clone, Copy)]
pub(super) enum RowsKind {
    Rms = 0,
    L2 = 1,
    Layer = 2,
    Softmax = 3,
}

/// Push constants of `rows.comp`. Its constants are the kind, the invocations on a row, whether it adds, whether it
/// makes blocks, and what [`RowsPush::held_fours`] says.
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

/// Push constants of `quantize.comp`. Its constants are a function of each value, or [`AS_THEY_ARE`], and the place of
/// its operand.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct QuantizePush {
    pub(crate) x: u64,
    pub(crate) blocks: u64,
    pub(crate) y: u64,
    pub(crate) result: u64,
    pub(crate) n_blocks: u32,
    pub(crate) width: u32,
    pub(crate) constants: [f32; 4],
}

/// Push constants of `rope.comp`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct RopePush {
    pub(crate) x: u64,
    pub(crate) table: u64,
    /// Pairs of all heads.
    pub(crate) n: u32,
    /// Pairs of a head.
    pub(crate) pairs: u32,
    /// Heads of a row.
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
}

/// Stands for no function in `quantize.comp`.
pub(crate) const AS_THEY_ARE: u32 = u32::MAX;

/// Functions of `elementwise.comp` that have a third operand.
const OF_THREE: [u32; 3] =
    [Function::Lerp as u32, Function::DecayFactors as u32, Function::BoundedDecayFactors as u32];

/// Place of `elementwise.comp`: an operand has a value for each.
const EACH: u32 = 1;

/// Values of a block of activations, and its bytes.
const BLOCK: u32 = 32;
const BLOCK_BYTES: u64 = 64;

/// Addresses of `n` f32 values.
fn values(address: u64, n: u32) -> Range<u64> {
    address..address + u64::from(n) * size_of::<f32>() as u64
}

/// Whether what a run writes lies apart from what the run before it reads. Memory that was given back behind that one may have been
/// given to this one: together they would read what they write.
fn is_apart<const N: usize>(written: &Range<u64>, read: [Range<u64>; N]) -> bool {
    read.iter().all(|read| written.end <= read.start || read.end <= written.start)
}

/// Rows at least as long are worth a workgroup, with this many invocations.
const LONG_ROW: u32 = 512;
const WORKGROUP: u32 = 256;

/// Values of the longest row that a workgroup holds in registers.
const MAX_HELD: u32 = 8192;

impl RowsPush {
    /// Invocations on a row.
    pub(super) fn threads(&self) -> u32 {
        if self.d < LONG_ROW { 16 } else { WORKGROUP }
    }

    /// Number of groups of four values that each invocation on a row holds of it. 0: it reads them one by one, whenever
    /// it needs them.
    pub(super) fn held_fours(&self, kind: u32) -> u32 {
        let read = [self.x, self.weights, self.biases, self.result, self.added];
        let is_aligned = read.iter().all(|address| address.is_multiple_of(16));
        let is_whole = self.d.is_multiple_of(16) && self.threads() == WORKGROUP;
        if kind == RowsKind::Softmax as u32 || !is_aligned || !is_whole || self.d > MAX_HELD {
            return 0;
        }
        self.d.div_ceil(4 * WORKGROUP)
    }

    fn rows(&self, address: u64) -> Range<u64> {
        values(address, self.n * self.d)
    }

    /// All that the run reads.
    fn operands(&self) -> [Range<u64>; 4] {
        let weights = |address| values(address, self.groups * self.d);
        let [x, added] = [self.rows(self.x), self.rows(self.added)];
        [x, added, weights(self.weights), weights(self.biases)]
    }
}

/// A norm of rows that the last run has added others to.
pub(super) fn norm_of_sum(last: &Work, norm: &Work) -> Option<Fusion> {
    let (sum, function) = last.of::<elementwise::Push>(&elementwise::SHADER)?;
    let (push, constants) = norm.of::<RowsPush>(&ROWS)?;
    let is_sum = function == [Function::AddScaled as u32, EACH] && sum.x == sum.result;
    let is_norm = constants[0] != RowsKind::Softmax as u32;
    let is_whole = push.x == sum.result && sum.n == push.n * push.d;
    // In place, the sum would be lost. What was added may give its place to the norm: each value is read before it is written.
    let (to, added) = (push.rows(push.result), push.rows(sum.y));
    let is_kept = is_apart(&to, [push.rows(push.x)]);
    if !(is_sum && is_norm && is_whole && is_kept && (to == added || is_apart(&to, [added]))) {
        return None;
    }
    let push = RowsPush { added: sum.y, factor: sum.constants[0], ..push };
    let constants = [constants[0], constants[1], 1, 0, push.held_fours(constants[0])];
    Some(Fusion::Fused(Work::new(&ROWS, &constants, &push, norm.groups)))
}

/// Blocks of values that the last run has made: a norm, or a function of each value.
pub(crate) fn blocks_of_result(last: &Work, blocks: &Work) -> Option<Fusion> {
    let (push, _) = blocks.of::<QuantizePush>(&QUANTIZE)?;
    let n = push.n_blocks * BLOCK;
    let to = push.blocks..push.blocks + u64::from(push.n_blocks) * BLOCK_BYTES;
    if let Some((norm, constants)) = last.of::<RowsPush>(&ROWS) {
        let is_norm = constants[0] != RowsKind::Softmax as u32 && constants[3] == 0;
        let is_whole = norm.n * norm.d == n && norm.d.is_multiple_of(BLOCK);
        let is_it = norm.result == push.x && is_apart(&to, norm.operands());
        if !(is_norm && is_whole && is_it) {
            return None;
        }
        let push = RowsPush { blocks: push.blocks, ..norm };
        let constants = [constants[0], constants[1], constants[2], 1, constants[4]];
        return Some(Fusion::Fused(Work::new(&ROWS, &constants, &push, last.groups)));
    }
    let (made, constants) = last.of::<elementwise::Push>(&elementwise::SHADER)?;
    let is_whole = made.result == push.x && made.n == n && !OF_THREE.contains(&constants[0]);
    // An operand has a value for each at most.
    if !is_whole || !is_apart(&to, [made.x, made.y].map(|of| values(of, n))) {
        return None;
    }
    let elementwise::Push { x, y, result, width, constants: numbers, .. } = made;
    let push = QuantizePush { x, y, result, width, constants: numbers, ..push };
    Some(Fusion::Fused(Work::new(&QUANTIZE, constants, &push, blocks.groups)))
}

/// A rotation of other rows than those that the last run has rotated: of keys behind queries.
pub(crate) fn rope_beside(last: &Work, rope: &Work) -> Option<Fusion> {
    let (last, _) = last.of::<RopePush>(&ROPE)?;
    let (rope, _) = rope.of::<RopePush>(&ROPE)?;
    let rows = |push: &RopePush| values(push.x, push.n / push.pairs * push.head_dim);
    let table = |push: &RopePush| values(push.table, 2 * push.n / push.heads);
    let apart = is_apart(&rows(&rope), [rows(&last), table(&last)])
        && is_apart(&rows(&last), [table(&rope)]);
    apart.then_some(Fusion::Concurrent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norm(x: u64, result: u64) -> Work {
        let push =
            RowsPush { x, result, weights: 1 << 20, groups: 1, n: 1, d: 64, ..RowsPush::zeroed() };
        Work::new(&ROWS, &[RowsKind::Rms as u32, 16, 0, 0, 0], &push, [1; 3])
    }

    fn sum(x: u64, y: u64) -> Work {
        let push = elementwise::Push { x, y, result: x, n: 64, ..elementwise::Push::zeroed() };
        let constants = [Function::AddScaled as u32, EACH];
        Work::new(&elementwise::SHADER, &constants, &push, [1; 3])
    }

    fn quantize(x: u64, blocks: u64) -> Work {
        let push = QuantizePush { x, blocks, n_blocks: 2, ..QuantizePush::zeroed() };
        Work::new(&QUANTIZE, &[AS_THEY_ARE, 0], &push, [1; 3])
    }

    /// Memory of the first op's operands may be the second one's result by then.
    #[test]
    fn nothing_is_joined_that_would_read_what_it_writes() {
        let (x, y, out) = (0x1000, 0x2000, 0x3000);
        let is_one = |joined: Option<Fusion>| matches!(joined, Some(Fusion::Fused(_)));
        assert!(is_one(norm_of_sum(&sum(x, y), &norm(x, out))));
        assert!(is_one(norm_of_sum(&sum(x, y), &norm(x, y))), "value by value");
        assert!(!is_one(norm_of_sum(&sum(x, y), &norm(x, y + 64))));
        assert!(!is_one(norm_of_sum(&sum(x, y), &norm(x, x))));
        assert!(!is_one(norm_of_sum(&sum(x, y), &norm(y, out))));
        assert!(is_one(blocks_of_result(&norm(x, out), &quantize(out, y))));
        assert!(!is_one(blocks_of_result(&norm(x, out), &quantize(out, x))));
        assert!(!is_one(blocks_of_result(&norm(x, out), &quantize(out, (1 << 20) + 64))));
        assert!(is_one(blocks_of_result(&sum(x, y), &quantize(x, out))));
        assert!(!is_one(blocks_of_result(&sum(x, y), &quantize(x, y - 64))));
        let Some(Fusion::Fused(both)) = norm_of_sum(&sum(x, y), &norm(x, out)) else {
            unreachable!("seen above")
        };
        assert!(is_one(blocks_of_result(&both, &quantize(out, 0x4000))));
        assert!(!is_one(blocks_of_result(&both, &quantize(out, y))), "what was added");
    }

    /// Four values at once need an address on four of them.
    #[test]
    fn rows_are_held_where_all_of_them_lie_on_whole_fours() {
        let held = |d: u32, y: u64| {
            let push = RowsPush {
                d,
                ..norm(0x10000, 0x20000).of::<RowsPush>(&ROWS).expect("it is one").0
            };
            let alone =
                Work::new(&ROWS, &[0, push.threads(), 0, 0, push.held_fours(0)], &push, [1; 3]);
            let sum = elementwise::Push {
                n: d,
                ..sum(0x10000, y).of(&elementwise::SHADER).expect("it is one").0
            };
            let sum =
                Work::new(&elementwise::SHADER, &[Function::AddScaled as u32, EACH], &sum, [1; 3]);
            let Some(Fusion::Fused(both)) = norm_of_sum(&sum, &alone) else {
                unreachable!("a sum and its norm")
            };
            [&alone, &both].map(|work| work.of::<RowsPush>(&ROWS).expect("it is one").1[4])
        };
        assert_eq!(held(4096, 0x30000), [4, 4]);
        assert_eq!(held(4096, 0x30004), [4, 0]);
        assert_eq!(held(8192, 0x30000), [8, 8]);
        assert_eq!([held(496, 0x30000), held(4104, 0x30000), held(8208, 0x30000)], [[0; 2]; 3]);
    }

    #[test]
    fn rotations_are_beside_each_other_where_their_rows_are() {
        let rope = |x: u64, table: u64| {
            let push = RopePush { x, table, n: 32, pairs: 8, heads: 2, head_dim: 16 };
            Work::new(&ROPE, &[0], &push, [1; 3])
        };
        let beside = |one: &Work, other: &Work| rope_beside(one, other).is_some();
        assert!(beside(&rope(0x1000, 0x8000), &rope(0x1100, 0x8000)));
        assert!(!beside(&rope(0x1000, 0x8000), &rope(0x10f0, 0x8000)));
        assert!(!beside(&rope(0x1000, 0x1100), &rope(0x1100, 0x8000)), "the first one's table");
        assert!(!beside(&rope(0x1000, 0x8000), &rope(0x1100, 0x1000)), "the second one's table");
    }
}
