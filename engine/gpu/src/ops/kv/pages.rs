//! Pages of keys and values as shaders address them. Their shape is the host's ([`KvLayout`]): a page here is byte for byte a page
//! there.

use brigade_shapes::{KvLayout, KvType, ValuePlace};

/// Rows of a page are filled up to a multiple of this.
pub(crate) use brigade_shapes::LANES;

/// The number of a type in shaders.
pub(crate) fn code_of(ty: KvType) -> u32 {
    match ty {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
    }
}

/// The first constants of kernels that read pages: the type, and whether values are in keys.
pub(crate) fn page_constants(layout: &KvLayout) -> [u32; 2] {
    [code_of(layout.ty), u32::from(layout.values == ValuePlace::InKeys)]
}

/// Values of a row that invocations write, `unit` each.
pub(super) fn units(layout: &KvLayout, unit: usize) -> usize {
    let key_width = |n: usize| match layout.values {
        ValuePlace::Apart => n,
        ValuePlace::InKeys => n.next_multiple_of(LANES),
    };
    let key = key_width(layout.head_dim_k).div_ceil(unit);
    let value = layout.v_width().next_multiple_of(LANES).div_ceil(unit);
    layout.n_kv_head * (key + value) + key_width(layout.index_dim).div_ceil(unit)
}

/// Number of pages in a pool of `len` bytes at `address`.
///
/// # Panics
/// If it is no row of pages.
pub(crate) fn check_pool(layout: &KvLayout, op: &str, address: u64, len: usize) -> usize {
    assert!(address.is_multiple_of(64), "{op}: the pool starts on no multiple of 64 bytes");
    let bytes = layout.page_bytes();
    assert!(bytes > 0 && len.is_multiple_of(bytes), "{op}: {len} bytes in pages of {bytes}");
    len / bytes
}
