//! Pages that the GPU writes beside those that the CPU writes, byte for byte.

use brigade_gpu::{Gpu, GpuBuffer, KV_PAGE, KvLayout, KvType, Purpose, ValuePlace};
use brigade_ops::{AttendPart, KvRows, PageId};

use crate::common::{KV_TYPES as TYPES, Random, bytes_of, compute, gpu, on};

fn layout(n_kv_head: usize, head_dim_k: usize, head_dim_v: usize, ty: KvType) -> KvLayout {
    KvLayout { n_kv_head, head_dim_k, head_dim_v, values: ValuePlace::Apart, index_dim: 0, ty }
}

/// Blocks of 32 values as they can be: of any size, zeros, ends of what a scale holds, no numbers.
fn blocks(random: &mut Random, n: usize) -> Vec<f32> {
    let mut x: Vec<f32> = Vec::new();
    for i in 0..n.div_ceil(32) {
        let size = f32::powi(2.0, random.below(60) as i32 - 30);
        let mut block = random.values(32, size);
        match i % 16 {
            3 => block.fill(0.0),
            5 => block.fill(-1e-40),
            7 => block = (0..32).map(|i| (i as f32 - 16.0) * 0.5).collect(),
            9 => block[random.below(32)] = f32::NEG_INFINITY,
            11 => block[random.below(32)] = f32::NAN,
            13 => block.fill(8.4e6),
            15 => block.fill(8.3e6),
            _ => {}
        }
        x.extend(block);
    }
    x.truncate(n);
    x
}

/// Rows of three sequences, the middle one not from its beginning, in pages that interleave.
const PARTS: [(usize, usize, &[PageId]); 3] = [
    (0, 70, &[PageId(5), PageId(0)]),
    (60, 9, &[PageId(6), PageId(2)]),
    (64 * 2 + 63, 1, &[PageId(1), PageId(1), PageId(3)]),
];

/// The rows of all parts.
const N_ROWS: usize = 80;

/// A page with the same bits for every NaN. A page of `Q8_0` has one head.
fn without_payloads(layout: &KvLayout, page: &[u8]) -> Vec<u8> {
    match layout.ty {
        KvType::F32 => {
            let values: Vec<f32> = bytemuck::pod_collect_to_vec(page);
            let plain = |x: &f32| if x.is_nan() { f32::NAN } else { *x };
            bytemuck::pod_collect_to_vec(&values.iter().map(plain).collect::<Vec<f32>>())
        }
        KvType::F16 => halves(page),
        KvType::Q8_0 => {
            let width = layout.head_dim_k + layout.head_dim_v.next_multiple_of(16);
            let (codes, scales) = page.split_at(KV_PAGE * width);
            [codes, &halves(scales)].concat()
        }
    }
}

fn halves(bytes: &[u8]) -> Vec<u8> {
    let values: Vec<u16> = bytemuck::pod_collect_to_vec(bytes);
    let plain = |x: &u16| if x & 0x7fff > 0x7c00 { 0x7e00 } else { *x };
    bytemuck::pod_collect_to_vec(&values.iter().map(plain).collect::<Vec<u16>>())
}

struct Rows {
    k: Vec<f32>,
    v: Vec<f32>,
    index: Vec<f32>,
}

impl Rows {
    /// With the blocks of [`blocks`], or with the plainest values.
    fn new(layout: &KvLayout, odd: bool) -> Self {
        let mut random = Random(5);
        let mut of = |width: usize| {
            if odd {
                blocks(&mut random, N_ROWS * width)
            } else {
                random.values(N_ROWS * width, 1.0)
            }
        };
        let beside = layout.values == ValuePlace::Apart;
        let v_width = if beside { layout.n_kv_head * layout.head_dim_v } else { 0 };
        let k = of(layout.n_kv_head * layout.head_dim_k);
        Self { k, v: of(v_width), index: of(layout.index_dim) }
    }

    fn parts() -> [AttendPart<'static>; 3] {
        let mut first_row = 0;
        PARTS.map(|(first_pos, n_rows, pages)| {
            first_row += n_rows;
            AttendPart { pages, first_pos, n_rows, first_row: first_row - n_rows }
        })
    }

    fn on_cpu(&self, layout: &KvLayout, pool: &mut [u8]) {
        let rows = KvRows { k: &self.k[..], v: Some(&self.v), index: Some(&self.index) };
        compute().kv_write(layout, pool, &Self::parts(), &rows);
    }

    fn on_gpu(&self, gpu: &Gpu, layout: &KvLayout, pool: &mut GpuBuffer) {
        let (k, v, index) = (on(gpu, &self.k), on(gpu, &self.v), on(gpu, &self.index));
        let v = Some(v.span()).filter(|v| !v.is_empty());
        let index = Some(index.span()).filter(|index| !index.is_empty());
        let rows = KvRows { k: k.span(), v, index };
        gpu.kv_write(layout, pool.span_mut(), &Self::parts(), &rows);
    }
}

/// A pool of seven pages full of a byte, on the device.
fn pool(gpu: &Gpu, layout: &KvLayout) -> GpuBuffer {
    let mut pool = gpu.buffer(7 * layout.page_bytes(), Purpose::States).expect("room");
    pool.write(0, &vec![0x55; pool.len()]);
    pool
}

fn check(gpu: &Gpu, layout: &KvLayout, odd: bool) {
    let rows = Rows::new(layout, odd);
    let mut there = pool(gpu, layout);
    rows.on_gpu(gpu, layout, &mut there);
    let mut lines = vec![0u128; there.len() / 16 + 4];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
    let start = bytes.as_ptr().align_offset(64);
    let here = &mut bytes[start..][..there.len()];
    here.fill(0x55);
    rows.on_cpu(layout, here);
    gpu.check().expect("no failure");
    let pages = |bytes: &[u8]| -> Vec<Vec<u8>> {
        let pages = bytes.chunks_exact(layout.page_bytes());
        pages.map(|page| if odd { without_payloads(layout, page) } else { page.to_vec() }).collect()
    };
    for (page, (there, here)) in pages(&bytes_of(&there)).iter().zip(&pages(here)).enumerate() {
        let differs = there.iter().zip(here).position(|(a, b)| a != b);
        assert!(differs.is_none(), "{layout:?}: page {page} differs at byte {differs:?}");
    }
}

#[test]
fn pages_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for ty in TYPES {
        for (n_head, dk, dv) in
            [(1, 16, 16), (1, 24, 24), (2, 64, 128), (3, 80, 80), (2, 20, 36), (1, 576, 512)]
        {
            let plain = layout(n_head, dk, dv, ty);
            check(&gpu, &plain, false);
            check(&gpu, &KvLayout { values: ValuePlace::InKeys, ..plain }, false);
        }
    }
}

#[test]
fn keys_of_an_index_stand_behind_the_heads() {
    let Some(gpu) = gpu() else { return };
    for ty in TYPES {
        for values in [ValuePlace::Apart, ValuePlace::InKeys] {
            check(&gpu, &KvLayout { values, index_dim: 36, ..layout(2, 40, 20, ty) }, false);
        }
    }
}

#[test]
fn values_of_every_size_are_kept_as_on_the_cpu() {
    let Some(gpu) = gpu() else { return };
    check(&gpu, &layout(2, 64, 32, KvType::F32), true);
    check(&gpu, &layout(2, 64, 32, KvType::F16), true);
    check(&gpu, &layout(1, 64, 96, KvType::Q8_0), true);
}
