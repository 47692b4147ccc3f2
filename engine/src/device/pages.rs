//! Pages and the rows that use them, as a GPU takes them.

use brigade_gpu::{GpuError, PageLayout, PagePart};

use super::give_up;
use crate::batch::BlockId;
use crate::kernels::{AttendPart, KvLayout, KvType, ValuePlace};

pub(super) fn page_layout(layout: &KvLayout) -> PageLayout {
    let KvLayout { n_kv_head, head_dim_k, head_dim_v, values, index_dim, ty } = *layout;
    let values = match values {
        ValuePlace::Apart => brigade_gpu::ValuePlace::Apart,
        ValuePlace::InKeys => brigade_gpu::ValuePlace::InKeys,
    };
    PageLayout { n_kv_head, head_dim_k, head_dim_v, values, index_dim, ty: page_type(ty) }
}

pub(super) fn page_type(ty: KvType) -> brigade_gpu::KvType {
    match ty {
        KvType::F32 => brigade_gpu::KvType::F32,
        KvType::F16 => brigade_gpu::KvType::F16,
        KvType::Q8_0 => brigade_gpu::KvType::Q8_0,
    }
}

pub(super) fn page_parts<'a>(parts: &[AttendPart<'a>]) -> Vec<PagePart<'a>> {
    let part = |part: &AttendPart<'a>| PagePart {
        pages: page_numbers(part.blocks),
        first_pos: part.first_pos,
        n_rows: part.n_rows,
        first_row: part.first_row,
    };
    parts.iter().map(part).collect()
}

pub(super) fn page_numbers(blocks: &[BlockId]) -> &[u32] {
    bytemuck::cast_slice(blocks)
}

/// What an op gave that needs memory of its own.
///
/// # Panics
/// If the GPU had none: the stage ends with this as its reason.
pub(super) fn with_room<T>(what: &str, given: Result<T, GpuError>) -> T {
    given.unwrap_or_else(|error| give_up(what, &error))
}
