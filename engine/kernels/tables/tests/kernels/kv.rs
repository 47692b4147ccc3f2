//! The contents of pages, byte by byte. Codes and scales of `Q8_0` are compared with the plain rule on every table. A
//! page whose tail was cleared holds nothing of it.

use half::f16;

use super::{Rng, compute};
use crate::reference::kv::{kept, q8_block};
use brigade_kernels::PageId;
use brigade_kernels::{AttendPart, Compute, KV_PAGE, KvLayout, KvRows, KvType, ValuePlace};
use brigade_kernels_tables::available;

const LANES: usize = 16;

fn layout(n_kv_head: usize, head_dim_k: usize, head_dim_v: usize, ty: KvType) -> KvLayout {
    KvLayout { n_kv_head, head_dim_k, head_dim_v, values: ValuePlace::Apart, index_dim: 0, ty }
}

fn in_keys(layout: KvLayout) -> KvLayout {
    KvLayout { values: ValuePlace::InKeys, ..layout }
}

/// A page with all positions written, rows position after position.
fn page(compute: &Compute, layout: &KvLayout, rows: &KvRows<'_>) -> Vec<u8> {
    let mut lines = vec![u64::MAX; layout.page_bytes() / 8 + 8];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
    let start = bytes.as_ptr().align_offset(64);
    let pool = &mut bytes[start..][..layout.page_bytes()];
    let part = AttendPart { pages: &[PageId(0)], first_pos: 0, n_rows: KV_PAGE, first_row: 0 };
    compute.kv_write(layout, pool, &[part], rows);
    pool.to_vec()
}

/// Blocks as they can be: random ones of any size, zeros, ends of what a scale holds, no numbers.
fn blocks(n: usize, rng: &mut Rng) -> Vec<f32> {
    let mut x: Vec<f32> = Vec::new();
    for i in 0..n.div_ceil(32) {
        let size = f32::powi(2.0, (rng.bits() % 60) as i32 - 30);
        let mut block = rng.values(32).iter().map(|x| x * size).collect::<Vec<f32>>();
        match i % 16 {
            3 => block.fill(0.0),
            5 => block.fill(-1e-40),
            7 => block = (0..32).map(|i| (i as f32 - 16.0) * 0.5).collect(),
            9 => block[rng.bits() as usize % 32] = f32::NEG_INFINITY,
            11 => block[rng.bits() as usize % 32] = f32::NAN,
            13 => block.fill(8.4e6),
            15 => block.fill(8.3e6),
            _ => {}
        }
        x.extend(block);
    }
    x.truncate(n);
    x
}

/// The elements of one head's page of `Q8_0` at `pos`, from the documented layout: blocks of codes, and
/// their scales. `across` where positions lie side by side.
struct Plane<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    width: usize,
    across: bool,
}

impl Plane<'_> {
    fn check(&self, what: &str, pos: usize, x: &[f32]) {
        for (b, block) in x.chunks(32).enumerate() {
            let (scale, codes) = q8_block(block);
            let at = 2 * (b * KV_PAGE + pos);
            let got = f16::from_le_bytes([self.scales[at], self.scales[at + 1]]);
            if scale.is_nan() {
                assert!(got.is_nan(), "{what}: scale {b} of position {pos} is {got}");
                continue;
            }
            assert_eq!(got, scale, "{what}: scale {b} of position {pos}");
            for (i, code) in codes.iter().enumerate() {
                let i = b * 32 + i;
                let at = if self.across { i * KV_PAGE + pos } else { pos * self.width + i };
                assert_eq!(self.codes[at] as i8, *code, "{what}: code {i} of position {pos}");
            }
        }
    }
}

#[test]
fn codes_and_scales_are_those_of_the_plain_rule_on_every_table() {
    let mut rng = Rng::new(8);
    for (n_head, dk, dv) in [(1, 32, 32), (2, 64, 128), (3, 80, 80), (2, 20, 36), (1, 8, 8)] {
        let layout = layout(n_head, dk, dv, KvType::Q8_0);
        let k = blocks(KV_PAGE * n_head * dk, &mut rng);
        let v = blocks(KV_PAGE * n_head * dv, &mut rng);
        let v_width = dv.next_multiple_of(LANES);
        let (k_scales, v_scales) = (dk.div_ceil(32) * 2, v_width.div_ceil(32) * 2);
        for kernels in crate::all_tables() {
            let rows = KvRows { k: &k, v: Some(&v), index: None };
            let page = page(&compute(kernels, 2), &layout, &rows);
            assert_eq!(page.len(), n_head * KV_PAGE * (dk + v_width + k_scales + v_scales));
            for (h, head) in page.chunks_exact(page.len() / n_head).enumerate() {
                let (codes, scales) = head.split_at(KV_PAGE * (dk + v_width));
                let (k_codes, v_codes) = codes.split_at(KV_PAGE * dk);
                let (k_scales, v_scales) = scales.split_at(KV_PAGE * k_scales);
                let keys = Plane { codes: k_codes, scales: k_scales, width: dk, across: true };
                let values =
                    Plane { codes: v_codes, scales: v_scales, width: v_width, across: false };
                for pos in 0..KV_PAGE {
                    keys.check(kernels.name, pos, &k[(pos * n_head + h) * dk..][..dk]);
                    values.check(kernels.name, pos, &v[(pos * n_head + h) * dv..][..dv]);
                }
            }
        }
    }
}

#[test]
fn codes_of_keys_with_values_in_them_are_rows() {
    let mut rng = Rng::new(9);
    for (dk, dv) in [(576, 512), (40, 32), (36, 20)] {
        let layout = in_keys(layout(1, dk, dv, KvType::Q8_0));
        let k = blocks(KV_PAGE * dk, &mut rng);
        let width = dk.next_multiple_of(LANES);
        for kernels in crate::all_tables() {
            let page = page(&compute(kernels, 1), &layout, &KvRows { k: &k, v: None, index: None });
            assert_eq!(page.len(), KV_PAGE * (width + width.div_ceil(32) * 2));
            let (codes, scales) = page.split_at(KV_PAGE * width);
            let keys = Plane { codes, scales, width, across: false };
            for (pos, k) in k.chunks_exact(dk).enumerate() {
                keys.check(kernels.name, pos, k);
            }
        }
    }
}

#[test]
fn keys_of_an_index_stand_behind_the_heads_and_lie_as_keys_do() {
    let mut rng = Rng::new(11);
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        for plain in [layout(2, 40, 20, ty), in_keys(layout(2, 40, 20, ty))] {
            let layout = KvLayout { index_dim: 36, ..plain };
            let alone = KvLayout { values: plain.values, ..self::layout(1, 36, 0, ty) };
            let n = KV_PAGE * 2;
            let (k, index) = (rng.values(n * 40), rng.values(KV_PAGE * 36));
            let v = if plain.values == ValuePlace::Apart { rng.values(n * 20) } else { vec![] };
            for kernels in crate::all_tables() {
                let page = |layout, k: &[f32], v: &[f32], index: &[f32]| {
                    page(
                        &compute(kernels, 2),
                        layout,
                        &KvRows { k, v: Some(v), index: Some(index) },
                    )
                };
                let heads = page(&plain, &k, &v, &[]);
                let keys = page(&alone, &index, &[], &[]);
                let both = page(&layout, &k, &v, &index);
                assert!(both == [heads, keys].concat(), "{layout:?} on {}", kernels.name);
            }
        }
    }
}

#[test]
fn an_element_is_off_by_half_a_code_and_the_rounding_of_its_scale() {
    let mut rng = Rng::new(10);
    for _ in 0..2_000 {
        // Sizes at which an f16 scale is a normal number.
        let size = f32::powi(2.0, (rng.bits() % 24) as i32 - 6);
        let x: Vec<f32> = rng.values(32).iter().map(|x| x * size).collect();
        let top = x.iter().fold(0.0, |top: f32, x| top.max(x.abs()));
        for (kept, x) in kept(KvType::Q8_0, &x).iter().zip(&x) {
            assert!((kept - x).abs() <= top * (0.5 / 127.0 + f32::powi(2.0, -11)), "{kept} of {x}");
        }
    }
}

#[test]
fn what_is_cleared_is_the_tail_of_every_head() {
    for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let plain = [layout(2, 40, 20, ty), in_keys(layout(2, 40, 20, ty))];
        let indexed = plain.map(|layout| KvLayout { index_dim: 36, ..layout });
        for layout in plain.into_iter().chain(indexed) {
            let written = |last: usize| {
                let rows = |width: usize| {
                    let mut x = vec![0.0; KV_PAGE * width];
                    x[..last * width].fill(0.75);
                    x
                };
                let v = if layout.values == ValuePlace::Apart { rows(2 * 20) } else { vec![] };
                let rows =
                    KvRows { k: &rows(2 * 40), v: Some(&v), index: Some(&rows(layout.index_dim)) };
                page(&compute(available()[0], 1), &layout, &rows)
            };
            let mut cleared = written(KV_PAGE);
            layout.clear_tail(&mut cleared, 24);
            // Zeros are kept as zeros; where rows are filled up, the page was all ones before.
            let mut want = written(24);
            layout.clear_tail(&mut want, 24);
            assert_eq!(cleared, want, "{layout:?}");
            let n_zero = cleared.iter().filter(|byte| **byte == 0).count();
            assert!(n_zero * KV_PAGE >= cleared.len() * (KV_PAGE - 24), "{layout:?}: {n_zero}");
            layout.clear_tail(&mut cleared, 0);
            assert!(cleared.iter().all(|byte| *byte == 0), "{layout:?}");
        }
    }
}
