//! Computes one chunk of a matrix product, by what its weights are and how many rows it has.

use std::marker::PhantomData;

use super::matmul_choice;
use super::matmul_f32::{Bf16, F16, F32, FloatTile};
use super::matmul_few::{Tile, Tiles};
use super::matmul_many::{MANY_ROWS, Sliced, slices};
use super::matmul_q8::QuantTile;
use crate::format::{FormatVisitor, PanelFormat, with_kernel_format};
use crate::simd::Simd;
use crate::tiles::products::matmul::MatmulChunk;
use brigade_quant::GgmlType;

/// Computes one chunk of a product.
pub(crate) fn chunk<S: Simd>(chunk: &MatmulChunk<'_>) {
    struct Quantised<'a, 'b, S>(&'a MatmulChunk<'b>, PhantomData<S>);
    impl<S: Simd> FormatVisitor for Quantised<'_, '_, S> {
        type Out = ();
        fn visit<Q: PanelFormat>(self) {
            let (few, many) = (few::<S, QuantTile<Q>>, slices::<S, QuantTile<Q>>);
            matmul_choice::of(self.0.w.ty).run(self.0, few, many);
        }
    }
    match chunk.w.ty {
        GgmlType::F32 => product::<S, FloatTile<F32>>(chunk),
        GgmlType::F16 => product::<S, FloatTile<F16>>(chunk),
        GgmlType::BF16 => product::<S, FloatTile<Bf16>>(chunk),
        ty => with_kernel_format(ty, Quantised::<S>(chunk, PhantomData))
            .expect("a matrix was packed, so its type has a kernel"),
    }
}

/// Computes one chunk with weights of kind `K`, which are multiplied in f32.
fn product<S: Simd, K: Tile + Sliced>(chunk: &MatmulChunk<'_>) {
    if chunk.rows.len() < MANY_ROWS {
        few::<S, K>(chunk);
    } else {
        slices::<S, K>(chunk);
    }
}

/// Computes one chunk with weights of kind `K`, by tiles of few rows.
fn few<S: Simd, K: Tile>(chunk: &MatmulChunk<'_>) {
    const { Tiles::of::<S, K>() }.run(chunk);
}
