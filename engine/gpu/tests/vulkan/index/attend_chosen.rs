//! Attention to chosen positions and pools of them.

use brigade_engine::kernels::{Attend, Chosen, Vector};
use brigade_gpu::{AttendPages, Gpu, KvLayout, KvType, PoolSizes, ValuePlace};
use brigade_ops::{AttendChosen, AttendVariant};

use super::{LENS, Paged, in_turn, some_ranges};
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
fn room(layout: &KvLayout, sizes: PoolSizes, n_rows: usize) -> Vec<f32> {
    vec![f32::NAN; Chosen::room_len(layout, sizes, n_rows)]
}

fn check(gpu: &Gpu, ty: KvType, sizes: PoolSizes, dk: usize, dv: usize, lens: &[usize]) {
    let (compute, mut random) = (compute(), Random(sizes.width() as u64));
    let (n_head, index_dim, values) = (5, 12, ValuePlace::InKeys);
    let layout = KvLayout { n_kv_head: 1, head_dim_k: dk, head_dim_v: dv, values, index_dim, ty };
    let paged = Paged::new(layout, lens, &mut random);
    let pool = paged.there(gpu);
    let sinks: Vector = random.values(n_head, 2.0).into();
    for ranges in some_ranges(lens) {
        let n: usize = ranges.iter().map(|range| range.len()).sum();
        let q = random.values(n * n_head * dk, 1.0);
        let positions = ranges.iter().flat_map(|range| range.clone());
        let pools: Vec<f32> = positions.flat_map(|pos| pools(sizes, pos, &mut random)).collect();
        let mut want = vec![0.0; n * n_head * dv];
        let on_cpu = Attend {
            layout: &layout,
            pool: paged.bytes(),
            parts: &paged.parts(&ranges),
            n_head,
            scale: 0.2,
            variant: AttendVariant { sinks: Some(&sinks), ..AttendVariant::default() },
        };
        let chosen = Chosen { sizes, pools: &pools };
        let mut room = room(on_cpu.layout, sizes, n);
        compute.attend_chosen(&on_cpu, &chosen, &mut room, &q, &mut want);
        let (q, pools) = (on(gpu, &q), on(gpu, &pools));
        let mut out = on(gpu, &vec![f32::NAN; want.len()]);
        let over = AttendPages {
            layout: &layout,
            pool: pool.span(),
            parts: &paged.parts(&ranges),
            n_head,
            scale: 0.2,
            variant: AttendVariant { sinks: Some(&sinks), ..AttendVariant::default() },
        };
        let (pools, q, out_there) = (pools.span(), q.span(), out.span_mut());
        let op = AttendChosen { over, sizes, pools, q, out: out_there };
        gpu.attend_chosen(op).expect("room");
        assert_same(&format!("{sizes:?} of {ty:?}, {n} rows"), &values_of(&out), &want);
    }
}

#[test]
fn chosen_positions_are_attended_to_with_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for ((positions, per_row), ty) in in_turn(&[(1, 1), (1, 70), (4, 16), (3, 5), (70, 1)]) {
        check(&gpu, ty, PoolSizes { positions, per_row }, 40, 32, &LENS);
    }
    check(&gpu, KvType::Q8_0, PoolSizes { positions: 1, per_row: 30 }, 20, 12, &[90]);
    check(&gpu, KvType::F16, PoolSizes { positions: 1, per_row: 8 }, 576, 512, &[20, 3]);
}
