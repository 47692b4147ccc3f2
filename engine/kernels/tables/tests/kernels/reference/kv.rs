//! A head's elements as pages store them, in plain loops. Tests compare the kernels with it.

use half::f16;

use brigade_kernels::KvType;

/// The scale and the codes of a block of `Q8_0`.
pub(crate) fn q8_block(block: &[f32]) -> (f16, Vec<i8>) {
    let top = block.iter().fold(0.0, |top: f32, x| top.max(x.abs()));
    let numbers = block.iter().all(|x| x.is_finite());
    let scale = if numbers { f16::from_f32(top / 127.0) } else { f16::NAN };
    let inverse = if scale > f16::ZERO { 1.0 / scale.to_f32() } else { 0.0 };
    let code = |x: &f32| (x * inverse).clamp(-127.0, 127.0).round_ties_even() as i8;
    (scale, block.iter().map(code).collect())
}

/// A head's elements as a page of type `ty` keeps them.
pub(crate) fn kept(ty: KvType, x: &[f32]) -> Vec<f32> {
    match ty {
        KvType::F32 => x.to_vec(),
        KvType::F16 => x.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
        KvType::Q8_0 => {
            let blocks = x.chunks(32).map(q8_block);
            let read = |(scale, codes): (f16, Vec<i8>)| {
                codes.into_iter().map(move |code| f32::from(code) * scale.to_f32())
            };
            blocks.flat_map(read).collect()
        }
    }
}
