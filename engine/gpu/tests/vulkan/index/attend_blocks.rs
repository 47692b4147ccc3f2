//! Attention to chosen blocks of positions.

use brigade_engine::kernels::{Attend, Vector};
use brigade_gpu::{AttendPages, BlockSizes, Gpu, KvLayout, KvType, ValuePlace};
use brigade_ops::{AttendVariant, ChosenBlocks, NO_BLOCK};

use super::{LENS, Paged, TYPES, in_turn, some_ranges};
use crate::common::{Random, all_pairs, assert_same, compute, gpu, on, values_of, words_on};

/// Attention of some heads to blocks of so many positions, so many for each head of a row.
struct Case {
    heads: (usize, usize),
    dims: (usize, usize),
    values: ValuePlace,
    ty: KvType,
    positions: usize,
    per_row: usize,
    lens: &'static [usize],
    /// Sequences are long: only their last rows are asked.
    long: bool,
    /// With a bound of the scores, sinks and slopes.
    unusual: bool,
}

impl Case {
    fn check(&self, gpu: &Gpu) {
        let Self { heads: (n_head, n_kv_head), dims: (dk, dv), positions, per_row, .. } = *self;
        let (compute, mut random) = (compute(), Random(positions as u64 + 3));
        let (values, ty) = (self.values, self.ty);
        let layout =
            KvLayout { n_kv_head, head_dim_k: dk, head_dim_v: dv, values, index_dim: 0, ty };
        let paged = Paged::new(layout, self.lens, &mut random);
        let pool = paged.there(gpu);
        let sinks: Vector = random.values(n_head, 2.0).into();
        let slopes: Vector = random.values(n_head, 0.1).into();
        for ranges in some_ranges(self.lens).into_iter().skip(usize::from(self.long)) {
            let n: usize = ranges.iter().map(|range| range.len()).sum();
            let q = random.values(n * n_head * dk, 1.0);
            let blocks: Vec<u32> = ranges
                .iter()
                .flat_map(|range| range.clone())
                .flat_map(|pos| (0..n_kv_head).map(move |_| pos))
                .flat_map(|pos| self.blocks(pos, &mut random))
                .collect();
            let mut want = vec![0.0; n * n_head * dv];
            let n_near = positions * per_row;
            let sizes = BlockSizes { positions, per_row, newest: 1 };
            let on_cpu = Attend {
                layout: &layout,
                pool: paged.bytes(),
                parts: &paged.parts(&ranges),
                n_head,
                scale: 0.2,
                variant: AttendVariant {
                    softcap: self.unusual.then_some(3.0),
                    sinks: self.unusual.then_some(&sinks),
                    slopes: self.unusual.then_some(&slopes),
                    blocks: Some(ChosenBlocks { sizes, n_near, blocks: &blocks[..] }),
                    ..AttendVariant::default()
                },
            };
            compute.attend(&on_cpu, &q, &mut want);
            let (q, blocks) = (on(gpu, &q), words_on(gpu, &blocks));
            let mut out = on(gpu, &vec![f32::NAN; want.len()]);
            let sizes = BlockSizes { positions, per_row, newest: 1 };
            let blocks = Some(ChosenBlocks { sizes, n_near, blocks: blocks.span() });
            let over = AttendPages {
                layout: &layout,
                pool: pool.span(),
                parts: &paged.parts(&ranges),
                n_head,
                scale: 0.2,
                variant: AttendVariant {
                    softcap: self.unusual.then_some(3.0),
                    sinks: self.unusual.then_some(&sinks),
                    slopes: self.unusual.then_some(&slopes),
                    blocks,
                    ..AttendVariant::default()
                },
            };
            gpu.attend(&over, q.span(), out.span_mut()).expect("room");
            let name = format!("{per_row} blocks of {positions}, {ty:?}, {n} rows");
            assert_same(&name, &values_of(&out), &want);
        }
    }

    /// Ascending blocks for a row at `pos`; the row's own among them, or none behind some.
    fn blocks(&self, pos: usize, random: &mut Random) -> Vec<u32> {
        let Self { positions, per_row, .. } = *self;
        let own = pos / positions;
        if pos < positions * per_row {
            return vec![0; per_row];
        }
        let mut left: Vec<usize> = (0..own).collect();
        let mut blocks: Vec<u32> =
            (1..per_row).map(|_| left.swap_remove(random.below(left.len())) as u32).collect();
        blocks.sort_unstable();
        // There may be one block alone.
        blocks.push(if random.below(4) > 0 || per_row == 1 { own as u32 } else { NO_BLOCK });
        blocks
    }
}

fn case(ty: KvType, positions: usize, per_row: usize) -> Case {
    let (heads, dims, values) = ((4, 2), (24, 20), ValuePlace::Apart);
    Case { heads, dims, values, ty, positions, per_row, lens: &LENS, long: false, unusual: false }
}

#[test]
fn blocks_are_attended_to_with_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for ([positions, per_row], ty) in
        in_turn(&[[16, 3], [1, 9], [7, 4], [64, 1], [100, 1], [48, 2], [4, 2]])
    {
        case(ty, positions, per_row).check(&gpu);
    }
    for &ty in if all_pairs(&gpu) { &TYPES[..] } else { &TYPES[1..2] } {
        Case { unusual: true, ..case(ty, 16, 3) }.check(&gpu);
        let (dims, values) = ((40, 32), ValuePlace::InKeys);
        Case { dims, values, heads: (6, 1), ..case(ty, 9, 5) }.check(&gpu);
    }
}

#[test]
fn lists_of_several_spans_and_wide_groups_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let (heads, long) = ((40, 2), true);
    // More pages than a span has, and more heads of a row than a tile.
    Case { long, lens: &[2600, 70], ..case(KvType::F16, 64, 20) }.check(&gpu);
    Case { heads, long, lens: &[1500], ..case(KvType::F32, 32, 38) }.check(&gpu);
    Case { heads, long, lens: &[1400], ..case(KvType::F32, 3, 70) }.check(&gpu);
}
