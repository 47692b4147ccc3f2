//! Choosing of blocks by the means of their keys.

use brigade_engine::kernels::{Compute, RopeParams, RopeTable};
use brigade_gpu::{BlockSizes, Gpu, KvLayout, KvType, RopeLayout, ValuePlace};
use brigade_ops::{Angles, ChooseByMeans};

use super::{LENS, Paged, TYPES, in_turn, some_ranges, words_of};
use crate::common::{Random, compute, gpu, on, words_on};

const N_ROT: usize = 12;
const EPS: f32 = 1e-5;

fn rope(compute: &Compute, positions: &[u32]) -> RopeTable {
    let layout = RopeLayout::Neox;
    let (freq_base, freq_scale, attn_factor) = (10_000.0, 1.0, 1.0);
    let (n_rot, freq_factors, yarn) = (N_ROT, None, None);
    let params =
        RopeParams { layout, n_rot, freq_base, freq_scale, freq_factors, attn_factor, yarn };
    RopeTable::new(compute, &params, positions)
}

/// Cosines and sines of every row: what the CPU makes of pairs (1, 0).
fn angles(compute: &Compute, table: &RopeTable) -> Vec<f32> {
    let mut turned = vec![0.0; table.n_rows() * N_ROT];
    turned.chunks_exact_mut(N_ROT).for_each(|row| row[..N_ROT / 2].fill(1.0));
    compute.rope(&mut turned, N_ROT, table);
    turned
}

/// Holds the choice of blocks of so many positions, of which a row attends to `whole` and to what is behind.
fn check(gpu: &Gpu, ty: KvType, positions: usize, whole: usize, values: ValuePlace, rotated: bool) {
    let (compute, mut random) = (compute(), Random(positions as u64));
    let (n_kv_head, n_head, index_dim) = (2, 5, 36);
    let layout = KvLayout { n_kv_head, head_dim_k: 8, head_dim_v: 8, values, index_dim, ty };
    let paged = Paged::new(layout, &LENS, &mut random);
    let (pool, norm) = (paged.there(gpu), random.values(index_dim, 1.0));
    let norm_there = on(gpu, &norm);
    let starts: Vec<u32> =
        (0..LENS[0] as u32 / positions as u32).map(|b| b * positions as u32).collect();
    let table = rope(&compute, &starts);
    let turned = angles(&compute, &table);
    let turned_there = on(gpu, &turned);
    let per_row = whole + 1;
    for ranges in some_ranges(&LENS) {
        let n: usize = ranges.iter().map(|range| range.len()).sum();
        let q = random.values(n * n_head * index_dim, 1.0);
        let (parts, sizes) =
            (&paged.parts(&ranges)[..], BlockSizes { positions, per_row, newest: 1 });
        let (layout, eps) = (&layout, EPS);
        let mut here = vec![7; n * n_kv_head * per_row];
        compute.choose_by_means(ChooseByMeans {
            layout,
            pool: paged.bytes(),
            parts,
            n_head,
            sizes,
            norm: &norm,
            eps,
            rope: rotated.then(|| table.angles().map(|values| &values[..])),
            q: &q,
            out: &mut here,
        });
        let (q, mut there) = (on(gpu, &q), words_on(gpu, &vec![7; here.len()]));
        let by_pair = turned_there.span();
        gpu.choose_by_means(ChooseByMeans {
            layout,
            pool: pool.span(),
            parts,
            n_head,
            sizes,
            norm: norm_there.span(),
            eps,
            rope: rotated.then_some(Angles { by_pair, n_rot: N_ROT, layout: RopeLayout::Neox }),
            q: q.span(),
            out: there.span_mut(),
        })
        .expect("room");
        let name = format!("{ty:?} {values:?}, {whole} blocks of {positions}, {n} rows");
        assert!(words_of(&there) == here, "{name}");
    }
}

#[test]
fn blocks_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for ([positions, whole], ty) in in_turn(&[[16, 3], [1, 9], [7, 4], [64, 1], [40, 2]]) {
        check(&gpu, ty, positions, whole, ValuePlace::Apart, positions != 7);
    }
    TYPES.iter().for_each(|ty| check(&gpu, *ty, 9, 3, ValuePlace::InKeys, true));
}
