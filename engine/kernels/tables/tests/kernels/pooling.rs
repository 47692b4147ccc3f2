//! Gated pools against f64, and bit equality on all tables and thread counts, also of each pool alone. Pools in pages
//! are tested for where their keys stand, and for what stays as it was.

use super::paged::{Line, Paged, gather};
use super::{Rng, close, same_bits, same_bits_everywhere};
use crate::reference::kv::kept;
use crate::reference::pooling::{pool_gated, pooled};
use brigade_kernels::{
    Compute, GatedRow, KV_PAGE, KvLayout, KvRows, KvType, PoolGated, Pooling, ValuePlace,
};

/// Elements of a key: no multiple of the lanes, nor of a block with one scale.
const DIM: usize = 20;

fn layout(ty: KvType) -> KvLayout {
    KvLayout {
        n_kv_head: 1,
        head_dim_k: 16,
        head_dim_v: 16,
        values: ValuePlace::InKeys,
        index_dim: 2 * DIM,
        ty,
    }
}

/// Writes these rows of a sequence, and makes the keys of the pools that they complete.
fn step(
    compute: &Compute,
    layout: &KvLayout,
    sequences: &Paged,
    pool: &mut [Line],
    pooling: Pooling<'_>,
    rows: &[f32],
    range: std::ops::Range<usize>,
) {
    let pool: &mut [u8] = bytemuck::cast_slice_mut(pool);
    let (parts, numbers) = sequences.parts(&[range]);
    let (k, index) = (vec![0.5; numbers.len() * 16], gather(rows, 2 * DIM, &numbers));
    compute.kv_write(layout, pool, &parts, &KvRows { k: &k, v: None, index: Some(&index) });
    compute.pool_keys(layout, pool, &parts, pooling);
}

/// Index values of all positions in the pages, `[len, 2 * DIM]`, read back as f32.
fn held(layout: &KvLayout, sequences: &Paged, pool: &[Line]) -> Vec<f32> {
    let (pool, of_index) = (bytemuck::cast_slice::<Line, u8>(pool), layout.of_index());
    let [codes, _, scales, _] = of_index.planes();
    let (codes, scales, stride) = (&codes, &scales, of_index.k_stride());
    let read = |pos: usize| {
        let page = layout.index(pool, sequences.blocks[0][pos / KV_PAGE].0 as usize);
        let at = pos % KV_PAGE * stride;
        (0..2 * DIM).map(move |i| match layout.ty {
            KvType::F32 => bytemuck::cast_slice::<u8, f32>(page)[at + i],
            KvType::F16 => half::f16::from_bits(bytemuck::cast_slice(page)[at + i]).to_f32(),
            KvType::Q8_0 => {
                let scales: &[u16] = bytemuck::cast_slice(&page[scales.clone()]);
                let scale = half::f16::from_bits(scales[i / 32 * KV_PAGE + pos % KV_PAGE]);
                f32::from(page[codes.clone()][at + i] as i8) * scale.to_f32()
            }
        })
    };
    (0..sequences.lens[0]).flat_map(read).collect()
}

#[test]
fn a_pool_has_its_key_in_the_place_of_its_last_position() {
    const LEN: usize = 150;
    for (ty, bound) in [(KvType::F32, 2e-6), (KvType::F16, 1e-3), (KvType::Q8_0, 2e-2)] {
        for positions in [2, 4, 5, 64, 70] {
            let (layout, sequences) = (layout(ty), Paged::new(&[LEN]));
            let mut rng = Rng::new(positions as u64);
            let (rows, bias) = (rng.values(LEN * 2 * DIM), rng.values(positions * DIM));
            let pooling = Pooling { positions, bias: &bias };
            // In one step, and in steps that part pools.
            let run = |compute: &Compute, ends: &[usize]| {
                let mut pool = sequences.pool(&layout, 0xee);
                let mut at = 0;
                for end in ends {
                    step(compute, &layout, &sequences, &mut pool, pooling, &rows, at..*end);
                    at = *end;
                }
                held(&layout, &sequences, &pool)
            };
            let out = same_bits_everywhere("keys of pools", |compute| run(compute, &[LEN]));
            let cut =
                same_bits_everywhere("in steps", |compute| run(compute, &[1, 3, 66, 70, 140, LEN]));
            assert!(out == cut, "{positions} positions, {ty:?}: steps change keys");
            let kept: Vec<Vec<f32>> = rows.chunks_exact(2 * DIM).map(|row| kept(ty, row)).collect();
            for (pos, got) in out.chunks_exact(2 * DIM).enumerate() {
                if (pos + 1) % positions != 0 {
                    assert!(got == kept[pos], "{positions} positions, {ty:?}: position {pos}");
                    continue;
                }
                let members = &kept[pos + 1 - positions..=pos];
                let part = |from: usize| {
                    members.iter().map(|row| row[from..from + DIM].to_vec()).collect()
                };
                let (keys, gates): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (part(0), part(DIM));
                for (got, want) in got.iter().zip(pooled(&keys, &gates, &bias)) {
                    close(&format!("pool at {pos} of {positions}, {ty:?}"), *got, want, bound);
                }
                assert!(got[DIM..].iter().all(|x| *x == 0.0), "position {pos} still has a gate");
            }
        }
    }
}

/// Gates far apart: the greatest has all the weight, and nothing overflows.
#[test]
fn great_gates_are_no_trouble() {
    let (layout, sequences) = (layout(KvType::F32), Paged::new(&[4]));
    let mut rows = vec![0.0; 4 * 2 * DIM];
    for (i, row) in rows.chunks_exact_mut(2 * DIM).enumerate() {
        row[..DIM].fill(i as f32 + 1.0);
        row[DIM..].fill([1e30, -1e30, 200.0, 1e30][i]);
    }
    let bias = vec![0.0; 4 * DIM];
    let out = same_bits_everywhere("great gates", |compute| {
        let mut pool = sequences.pool(&layout, 0xee);
        let pooling = Pooling { positions: 4, bias: &bias };
        step(compute, &layout, &sequences, &mut pool, pooling, &rows, 0..4);
        held(&layout, &sequences, &pool)
    });
    assert!(out[3 * 2 * DIM..][..DIM].iter().all(|x| *x == 2.5), "{:?}", &out[3 * 2 * DIM..]);
}

#[test]
fn gated_pools_match_f64() {
    let mut rng = Rng::new(191);
    for (n_pools, n_rows, width) in [(1, 1, 1), (3, 4, 24), (7, 8, 512), (2, 128, 80), (90, 8, 64)]
    {
        let values: Vec<f32> = rng.values(n_pools * n_rows * width);
        let gates: Vec<f32> = rng.values(n_pools * n_rows * width);
        let row = |p: usize, i: usize| {
            let at = (p * n_rows + i) * width..(p * n_rows + i + 1) * width;
            GatedRow { values: &values[at.clone()], gates: &gates[at] }
        };
        // The first pool is short.
        let rows = |p: usize| -> Vec<GatedRow<&[f32]>> {
            let n = if p == 0 { n_rows.div_ceil(2) } else { n_rows };
            (0..n).map(|i| row(p, i)).collect()
        };
        let pools: Vec<_> = (0..n_pools).map(rows).collect();
        let of = |pools: &[Vec<GatedRow<&[f32]>>]| {
            same_bits_everywhere("pool_gated", |compute| {
                let mut out = vec![f32::NAN; pools.len() * width];
                compute.pool_gated(PoolGated { pools: pools.to_vec(), width, out: &mut out });
                out
            })
        };
        let out = of(&pools);
        for (rows, out) in pools.iter().zip(out.chunks_exact(width)) {
            for (got, want) in out.iter().zip(pool_gated(rows)) {
                close("pool_gated", *got, want, 1e-5);
            }
        }
        let last = of(&pools[n_pools - 1..]);
        same_bits("the last pool alone", &last, &out[(n_pools - 1) * width..]);
    }
}

#[test]
fn a_gate_far_above_the_others_gives_its_row() {
    let values = [[1.0f32, -2.0], [3.0, 4.0], [-5.0, 6.0]];
    let gates = [[0.0f32, 500.0], [300.0, 0.0], [-1e30, -400.0]];
    let rows = values.iter().zip(&gates);
    let rows = rows.map(|(values, gates)| GatedRow { values: &values[..], gates: &gates[..] });
    let out = same_bits_everywhere("pool_gated", |compute| {
        let mut out = vec![0.0; 2];
        let pools = vec![rows.clone().collect()];
        compute.pool_gated(PoolGated { pools, width: 2, out: &mut out });
        out
    });
    same_bits("far gates", &out, &[3.0, -2.0]);
}
