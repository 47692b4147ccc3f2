//! Attention to chosen positions and pools of them.

use brigade_engine::kernels::{self, Attend, Chosen, KvLayout, Vector};
use brigade_gpu::{
    AttendPages, AttendVariant, ChosenSpans, Gpu, KvType, PageLayout, PoolSizes, ValuePlace,
};

use super::{LENS, Paged, cpu_layout, in_turn, some_ranges};
use crate::common::{Random, assert_same, compute, gpu, on, values_of};

/// Pools of a row at `pos`, ascending; zeros where it sees no more than it attends to.
fn pools(sizes: PoolSizes, pos: usize, random: &mut Random) -> Vec<f32> {
    let PoolSizes { positions, per_row } = sizes;
    if pos < sizes.width() {
        return vec![0.0; per_row];
    }
    let mut left: Vec<usize> = (0..(pos + 1) / positions).collect();
    let mut pools: Vec<usize> =
        (0..per_row).map(|_| left.swap_remove(random.below(left.len()))).collect();
    pools.sort_unstable();
    pools.into_iter().map(|pool| pool as f32).collect()
}

/// Room for copied keys, on a line of the cache wherever it starts.
fn room(layout: &KvLayout, sizes: kernels::PoolSizes, n_rows: usize) -> Vec<f32> {
    vec![f32::NAN; Chosen::room_len(layout, sizes, n_rows)]
}

fn check(gpu: &Gpu, ty: KvType, sizes: PoolSizes, (dk, dv): (usize, usize), lens: &[usize]) {
    let (compute, mut random) = (compute(), Random(sizes.width() as u64));
    let (n_head, index_dim, values) = (5, 12, ValuePlace::InKeys);
    let layout = PageLayout { n_kv_head: 1, head_dim_k: dk, head_dim_v: dv, values, index_dim, ty };
    let paged = Paged::new(layout, lens, &mut random);
    let pool = paged.there(gpu);
    let sinks: Vector = random.values(n_head, 2.0).into();
    let sinks_there = on(gpu, &sinks);
    for ranges in some_ranges(lens) {
        let n: usize = ranges.iter().map(|range| range.len()).sum();
        let q = random.values(n * n_head * dk, 1.0);
        let positions = ranges.iter().flat_map(|range| range.clone());
        let pools: Vec<f32> = positions.flat_map(|pos| pools(sizes, pos, &mut random)).collect();
        let mut want = vec![0.0; n * n_head * dv];
        let on_cpu = Attend {
            layout: &cpu_layout(&layout),
            pool: paged.bytes(),
            parts: &paged.on_cpu(&ranges),
            n_head,
            scale: 0.2,
            variant: kernels::AttendVariant {
                sinks: Some(&sinks),
                ..kernels::AttendVariant::default()
            },
        };
        let PoolSizes { positions, per_row } = sizes;
        let cpu_sizes = kernels::PoolSizes { positions, per_row };
        let chosen = Chosen { sizes: cpu_sizes, pools: &pools };
        let mut room = room(on_cpu.layout, cpu_sizes, n);
        compute.attend_chosen(&on_cpu, &chosen, &mut room, &q, &mut want);
        let (q, pools) = (on(gpu, &q), on(gpu, &pools));
        let mut out = on(gpu, &vec![f32::NAN; want.len()]);
        let over = AttendPages {
            layout: &layout,
            pool: pool.span(),
            parts: &paged.on_gpu(&ranges),
            n_head,
            scale: 0.2,
            variant: AttendVariant { sinks: Some(sinks_there.span()), ..AttendVariant::default() },
        };
        let chosen = ChosenSpans { sizes, pools: pools.span() };
        gpu.attend_chosen(&over, &chosen, q.span(), out.span_mut()).expect("room");
        assert_same(&format!("{sizes:?} of {ty:?}, {n} rows"), &values_of(&out), &want);
    }
}

#[test]
fn chosen_positions_are_attended_to_with_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for ((positions, per_row), ty) in in_turn(&[(1, 1), (1, 70), (4, 16), (3, 5), (70, 1)]) {
        check(&gpu, ty, PoolSizes { positions, per_row }, (40, 32), &LENS);
    }
    check(&gpu, KvType::Q8_0, PoolSizes { positions: 1, per_row: 30 }, (20, 12), &[90]);
    check(&gpu, KvType::F16, PoolSizes { positions: 1, per_row: 8 }, (576, 512), &[20, 3]);
}
