//! Choosing of blocks by their best positions.

use brigade_engine::kernels::BlockIndex;
use brigade_gpu::{BlockIndexSpans, BlockSizes, Gpu, KvLayout, KvType, ValuePlace};

use super::{LENS, Paged, in_turn, some_ranges, words_of};
use crate::common::{Random, compute, gpu, on, words_on};

fn check(gpu: &Gpu, ty: KvType, sizes: BlockSizes, index_dim: usize, lens: &[usize]) {
    let BlockSizes { positions, per_row, newest } = sizes;
    let (compute, mut random) = (compute(), Random(positions as u64));
    let (n_kv_head, values) = (3, ValuePlace::Apart);
    let layout = KvLayout { n_kv_head, head_dim_k: 8, head_dim_v: 5, values, index_dim, ty };
    let paged = Paged::new(layout, lens, &mut random);
    let pool = paged.there(gpu);
    for ranges in some_ranges(lens) {
        let n: usize = ranges.iter().map(|range| range.len()).sum();
        let q = random.values(n * n_kv_head * index_dim, 1.0);
        let on_cpu = BlockIndex {
            layout: &layout,
            pool: paged.bytes(),
            parts: &paged.parts(&ranges),
            sizes,
        };
        let here = compute.choose_blocks(&on_cpu, &q);
        let mut there = words_on(gpu, &vec![7; n * n_kv_head * per_row]);
        let on_gpu = BlockIndexSpans {
            layout: &layout,
            pool: pool.span(),
            parts: &paged.parts(&ranges),
            sizes,
        };
        let q = on(gpu, &q);
        let chosen = gpu.choose_blocks(&on_gpu, q.span(), there.span_mut()).expect("room");
        let name = format!("{ty:?}, {per_row} blocks of {positions}, {newest} newest, {n} rows");
        assert_eq!(chosen, here.is_some(), "{name}");
        let none = || vec![7; n * n_kv_head * per_row];
        assert!(words_of(&there) == here.unwrap_or_else(none), "{name}");
    }
}

#[test]
fn blocks_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let sizes = [[16, 3, 1], [1, 9, 0], [7, 4, 2], [64, 1, 1], [100, 1, 0], [5, 5, 5]];
    for ([positions, per_row, newest], ty) in in_turn(&sizes) {
        check(&gpu, ty, BlockSizes { positions, per_row, newest }, 36, &LENS);
    }
    check(&gpu, KvType::F16, BlockSizes { positions: 32, per_row: 4, newest: 1 }, 128, &[1100]);
    check(&gpu, KvType::F32, BlockSizes { positions: 3, per_row: 2, newest: 1 }, 1, &[70]);
}

#[test]
fn of_equal_scores_the_lower_blocks_are_chosen() {
    let Some(gpu) = gpu() else { return };
    let (index_dim, values, ty) = (4, ValuePlace::Apart, KvType::F32);
    let layout = KvLayout { n_kv_head: 1, head_dim_k: 4, head_dim_v: 4, values, index_dim, ty };
    let paged = Paged::new(layout, &[200], &mut Random(1));
    let (pool, q) = (paged.there(&gpu), on(&gpu, &[0.0; 4]));
    let mut there = words_on(&gpu, &[0; 4]);
    let on_gpu = BlockIndexSpans {
        layout: &layout,
        pool: pool.span(),
        parts: &paged.parts(&some_ranges(&[200])[2]),
        sizes: BlockSizes { positions: 10, per_row: 4, newest: 1 },
    };
    gpu.choose_blocks(&on_gpu, q.span(), there.span_mut()).expect("room");
    assert_eq!(words_of(&there), [0, 1, 2, 19]);
}
