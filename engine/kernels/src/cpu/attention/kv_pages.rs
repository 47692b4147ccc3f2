//! The types of KV pages: how keys and values are written, and how a head's page is read back.
//!
//! Pages of `F32` and `F16` are read as they lie. A page of `Q8_0` is widened once for the queries of a tile,
//! and then read as one of `F32`. An element is its code times its scale, which f32 holds exactly. So results
//! depend neither on tiles nor on neighbours.

use std::marker::PhantomData;

use crate::cpu::products::matmul_f32::{F16, F32, Float};
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::attention::kv_pages::KvRow;
use brigade_shapes::KV_PAGE;
use brigade_shapes::{KvLayout, KvType, SCALE_ELEMS, ValuePlace};

/// Vectors of a block of elements with one scale.
const SCALE_VECTORS: usize = SCALE_ELEMS / LANES;
/// Vectors of positions in a page.
const POSITIONS: usize = KV_PAGE / LANES;
/// Greatest code of an 8-bit element.
const MAX_CODE: f32 = 127.0;

/// An element type that pages are read in.
pub(super) trait Element: Float {
    /// Sixteen f32, rounded to this type.
    fn store<S: Simd>(s: S, v: S::F, out: &mut [Self::Bits; LANES]);
}

impl Element for F32 {
    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::F, out: &mut [f32; LANES]) {
        s.store(v, out);
    }
}

impl Element for F16 {
    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::F, out: &mut [u16; LANES]) {
        s.store_f16(v, out);
    }
}

/// A type of pages, and what their elements are read as.
pub(super) trait PageType {
    type Read: Element;
    /// Whether elements are read where they lie in the page.
    const READ_IN_PLACE: bool;

    /// Elements of one head's page, laid out as a page of `Read` has them; of rows at least those of the
    /// first `n_seen` positions. `wide` is memory for a page that has to be widened.
    fn head<'a, S: Simd>(
        s: S,
        layout: &KvLayout,
        head: &'a [u8],
        n_seen: usize,
        wide: &'a mut Vec<[f32; LANES]>,
    ) -> &'a [<Self::Read as Float>::Bits];
}

impl<E: Element> PageType for E {
    type Read = E;
    const READ_IN_PLACE: bool = true;

    #[inline(always)]
    fn head<'a, S: Simd>(
        _: S,
        _: &KvLayout,
        head: &'a [u8],
        _: usize,
        _: &'a mut Vec<[f32; LANES]>,
    ) -> &'a [E::Bits] {
        bytemuck::cast_slice(head)
    }
}

pub(super) struct Q8;
impl PageType for Q8 {
    type Read = F32;
    const READ_IN_PLACE: bool = false;

    #[inline(always)]
    fn head<'a, S: Simd>(
        s: S,
        layout: &KvLayout,
        head: &'a [u8],
        n_seen: usize,
        wide: &'a mut Vec<[f32; LANES]>,
    ) -> &'a [f32] {
        let [keys, values, key_scales, value_scales] = layout.planes();
        wide.resize((keys.len() + values.len()) / LANES, [0.0; LANES]);
        let (k, v) = wide.split_at_mut(keys.len() / LANES);
        let codes = |plane| bytemuck::cast_slice::<u8, i8>(plane).as_chunks().0;
        let (keys, values) = (codes(&head[keys]), codes(&head[values]));
        let key_scales = scales_of(&head[key_scales]);
        match layout.values {
            ValuePlace::InKeys => {
                widen_rows(s, keys, key_scales, layout.k_stride() / LANES, n_seen, k);
            }
            ValuePlace::Apart => {
                widen_columns(s, keys, key_scales, k);
                let value_scales = scales_of(&head[value_scales]);
                widen_rows(s, values, value_scales, layout.v_stride() / LANES, n_seen, v);
            }
        }
        wide.as_flattened()
    }
}

/// Scales of each block at all positions of a page.
type Scales = [[u16; LANES]; POSITIONS];

#[inline(always)]
fn scales_of(plane: &[u8]) -> &[Scales] {
    bytemuck::cast_slice::<u8, [u16; LANES]>(plane).as_chunks().0
}

/// Widens keys that lie across, `[head_dim_k][POSITIONS]` vectors.
#[inline(always)]
fn widen_columns<S: Simd>(
    s: S,
    codes: &[[i8; LANES]],
    scales: &[Scales],
    out: &mut [[f32; LANES]],
) {
    let (codes, out) = (codes.as_chunks::<POSITIONS>().0, out.as_chunks_mut::<POSITIONS>().0);
    for (b, scales) in scales.iter().enumerate() {
        let mut scale = [s.zero(); POSITIONS];
        for g in 0..POSITIONS {
            scale[g] = s.load_f16(&scales[g]);
        }
        for i in b * SCALE_ELEMS..((b + 1) * SCALE_ELEMS).min(codes.len()) {
            for g in 0..POSITIONS {
                s.store(s.mul(code(s, &codes[i][g]), scale[g]), &mut out[i][g]);
            }
        }
    }
}

/// Widens the first `n` rows of a page, of `stride` vectors each.
#[inline(always)]
fn widen_rows<S: Simd>(
    s: S,
    codes: &[[i8; LANES]],
    scales: &[Scales],
    stride: usize,
    n: usize,
    out: &mut [[f32; LANES]],
) {
    for (b, scales) in scales.iter().enumerate() {
        let mut scale = [[0.0; LANES]; POSITIONS];
        for g in 0..POSITIONS {
            s.store(s.load_f16(&scales[g]), &mut scale[g]);
        }
        let (from, to) = (b * SCALE_VECTORS, ((b + 1) * SCALE_VECTORS).min(stride));
        for pos in 0..n {
            let scale = s.splat(scale[pos / LANES][pos % LANES]);
            for at in pos * stride + from..pos * stride + to {
                s.store(s.mul(code(s, &codes[at]), scale), &mut out[at]);
            }
        }
    }
}

#[inline(always)]
fn code<S: Simd>(s: S, codes: &[i8; LANES]) -> S::F {
    s.to_f32(s.load_i8(bytemuck::cast_ref(codes)))
}

/// Writes one position of one head: its keys apart by [`KV_PAGE`], its values side by side.
pub(crate) fn kv_write<S: Simd>(row: &mut KvRow<'_>) {
    match row.layout.ty {
        KvType::F32 => run::<S, _>(Write::<F32>(row, PhantomData)),
        KvType::F16 => run::<S, _>(Write::<F16>(row, PhantomData)),
        KvType::Q8_0 => run::<S, _>(WriteBlocks(row)),
    }
}

struct Write<'a, 'b, E>(&'a mut KvRow<'b>, PhantomData<E>);

impl<E: Element> Op for Write<'_, '_, E> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let row = self.0;
        let stored = |x: &[f32]| {
            let mut out: [E::Bits; LANES] = bytemuck::Zeroable::zeroed();
            E::store(s, s.load_part(x), &mut out);
            out
        };
        let pos = row.pos;
        // Rows are filled up to whole lanes with zeros.
        let write_row = |x: &[f32], stride: usize, rows: &mut [E::Bits]| {
            let (row, _) = rows[pos * stride..][..stride].as_chunks_mut::<LANES>();
            for (x, to) in x.chunks(LANES).zip(row) {
                *to = stored(x);
            }
        };
        let [keys, ..] = row.layout.planes();
        let (keys, beside) = row.to.split_at_mut(keys.end);
        let keys = bytemuck::cast_slice_mut::<u8, E::Bits>(keys);
        write_row(row.v, row.layout.beside_stride(), bytemuck::cast_slice_mut(beside));
        if row.layout.values == ValuePlace::InKeys {
            return write_row(row.k, row.layout.k_stride(), keys);
        }
        for (k, keys) in row.k.chunks(LANES).zip(keys.chunks_mut(LANES * KV_PAGE)) {
            let stored = stored(k);
            for (keys, k) in keys.chunks_exact_mut(KV_PAGE).zip(stored) {
                keys[pos] = k;
            }
        }
    }
}

struct WriteBlocks<'a, 'b>(&'a mut KvRow<'b>);

impl Op for WriteBlocks<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let KvRow { layout, pos, k, v, to } = self.0;
        let [keys, _, key_scales, _] = layout.planes();
        let (codes, scales) = to.split_at_mut(key_scales.start);
        let (key_scales, value_scales) =
            bytemuck::cast_slice_mut::<u8, u16>(scales).split_at_mut(key_scales.len() / 2);
        let (keys, values) = bytemuck::cast_slice_mut::<u8, i8>(codes).split_at_mut(keys.len());
        write_row(s, v, *pos, layout.beside_stride(), values, value_scales);
        if layout.values == ValuePlace::InKeys {
            return write_row(s, k, *pos, layout.k_stride(), keys, key_scales);
        }
        let keys = keys.chunks_mut(SCALE_ELEMS * KV_PAGE).zip(key_scales.chunks_exact_mut(KV_PAGE));
        for (k, (keys, scales)) in k.chunks(SCALE_ELEMS).zip(keys) {
            let codes;
            (codes, scales[*pos]) = encode(s, k);
            for (keys, code) in keys.chunks_exact_mut(KV_PAGE).zip(codes.as_flattened()) {
                keys[*pos] = *code;
            }
        }
    }
}

/// Writes one row of `stride` elements, those that `x` lacks as zeros.
#[inline(always)]
fn write_row<S: Simd>(
    s: S,
    x: &[f32],
    pos: usize,
    stride: usize,
    rows: &mut [i8],
    scales: &mut [u16],
) {
    let row = rows[pos * stride..][..stride].chunks_mut(SCALE_ELEMS);
    for (x, (row, scales)) in x.chunks(SCALE_ELEMS).zip(row.zip(scales.chunks_exact_mut(KV_PAGE))) {
        let codes;
        (codes, scales[pos]) = encode(s, x);
        row.copy_from_slice(&codes.as_flattened()[..row.len()]);
    }
}

/// Codes of a block of up to [`SCALE_ELEMS`] values, then zeros, and the f16 bits of its scale: NaN where
/// a value is infinite or NaN, so that the block reads as NaN.
#[inline(always)]
fn encode<S: Simd>(s: S, x: &[f32]) -> ([[i8; LANES]; SCALE_VECTORS], u16) {
    let (mut top, mut poison) = (s.zero(), s.zero());
    let mut parts = [s.zero(); SCALE_VECTORS];
    for (part, x) in parts.iter_mut().zip(x.chunks(LANES)) {
        *part = s.load_part(x);
        top = s.max(top, s.max(*part, s.sub(s.zero(), *part)));
        poison = s.fma(*part, s.zero(), poison);
    }
    let mut bits = [0; LANES];
    s.store_f16(s.splat(s.max_lane(top) / MAX_CODE + s.sum(poison)), &mut bits);
    // Codes are of the scale as it is stored; of zero and of infinity they are zeros.
    let mut scale = [0.0; LANES];
    s.store(s.load_f16(&bits), &mut scale);
    let inverse = if scale[0] > 0.0 { 1.0 / scale[0] } else { 0.0 };
    let (low, high) = (s.splat(-MAX_CODE), s.splat(MAX_CODE));
    let mut codes = [[0; LANES]; SCALE_VECTORS];
    for (part, codes) in parts.iter().zip(&mut codes) {
        // A scale that is subnormal may be far below the exact one.
        let code = s.max(s.mul(*part, s.splat(inverse)), low);
        s.store_low_bytes(s.round_i32(s.select_gt(high, code, code, high)), codes);
    }
    (codes, bits[0])
}
