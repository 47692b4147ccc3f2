//! One position of a page of keys and values, as kernels write it ([`KvLayout`]).

use half::f16;

use brigade_shapes::{KV_PAGE, KvLayout, KvType, SCALE_ELEMS, ValuePlace};

/// One position of one head to write.
pub(crate) struct KvRow<'a> {
    pub(crate) layout: &'a KvLayout,
    /// Position in the page.
    pub(crate) pos: usize,
    pub(crate) k: &'a [f32],
    /// The position's value; empty where the key contains it.
    pub(crate) v: &'a [f32],
    pub(crate) to: &'a mut [u8],
}

/// Adds the key of an index at position `at` of a page, `[index_dim]`, to `sum`; `keys` is what [`KvLayout::index`] gives.
pub fn add_index_key(layout: &KvLayout, keys: &[u8], at: usize, sum: &mut [f32]) {
    let shape = layout.of_index();
    let [codes, _, scales, _] = shape.planes();
    let (codes, scales) = (&keys[codes], &keys[scales]);
    let place = |j: usize| match shape.values {
        ValuePlace::InKeys => at * shape.k_stride() + j,
        ValuePlace::Apart => j * KV_PAGE + at,
    };
    match layout.ty {
        KvType::F32 => {
            let codes: &[f32] = bytemuck::cast_slice(codes);
            sum.iter_mut().enumerate().for_each(|(j, sum)| *sum += codes[place(j)]);
        }
        KvType::F16 => {
            let codes: &[u16] = bytemuck::cast_slice(codes);
            let key = |j| f16::from_bits(codes[place(j)]).to_f32();
            sum.iter_mut().enumerate().for_each(|(j, sum)| *sum += key(j));
        }
        KvType::Q8_0 => {
            let (codes, scales): (&[i8], &[u16]) =
                (bytemuck::cast_slice(codes), bytemuck::cast_slice(scales));
            let scale = |j: usize| f16::from_bits(scales[j / SCALE_ELEMS * KV_PAGE + at]);
            let key = |j| f32::from(codes[place(j)]) * scale(j).to_f32();
            sum.iter_mut().enumerate().for_each(|(j, sum)| *sum += key(j));
        }
    }
}
