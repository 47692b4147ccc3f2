//! Keys and values of rows to their pages, and attention over pages.

use brigade_gpu::{self as there, AttendPages, Gpu, KvSpans, PageLayout, PagePart};

use super::{Device, Memory, Rows, Values, give_up};
use crate::kernels::{
    self, Attend, AttendPart, AttendVariant, KvLayout, KvType, ValuePlace, Window,
};

/// What rows leave in their pages.
#[derive(Clone, Copy)]
pub struct KvRows<'a> {
    /// Keys, `[n_rows, n_kv_head * head_dim_k]`.
    pub k: &'a Rows,
    /// Values, `[n_rows, n_kv_head * head_dim_v]`; `None` where they are in the keys.
    pub v: Option<&'a Rows>,
    /// Keys of an index, `[n_rows, index_dim]`, with gates behind them where they are pooled.
    pub index: Option<&'a Rows>,
}

/// What is attended to, and how.
pub struct AttendOver<'a> {
    /// Shape of the pages.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other.
    pub pool: &'a Memory<u8>,
    /// The rows.
    pub parts: &'a [AttendPart<'a>],
    /// Factor on the scores.
    pub scale: f32,
    /// What few models change of the softmax.
    pub variant: AttendVariant<'a>,
}

impl Device {
    /// Writes keys and values of every row of `parts` into their pages, and their keys of an index.
    ///
    /// # Panics
    /// If shapes disagree, a part lies outside its blocks, or a block outside the pool.
    pub fn kv_write(
        &self,
        layout: &KvLayout,
        pool: &mut Memory<u8>,
        parts: &[AttendPart<'_>],
        rows: &KvRows<'_>,
    ) {
        if let (Some(gpu), Some(pool)) = (&self.gpu, pool.span_mut()) {
            let [v, index] = [rows.v, rows.index].map(|rows| rows.map(|rows| rows.on_gpu(gpu)));
            let rows = KvSpans { k: rows.k.on_gpu(gpu), v, index };
            gpu.kv_write(&page_layout(layout), pool, &page_parts(parts), &rows);
            return;
        }
        let [v, index] = [rows.v, rows.index].map(|rows| rows.map_or(&[][..], |rows| &rows[..]));
        let rows = kernels::KvRows { k: rows.k, v, index };
        self.compute.kv_write(layout, pool, parts, &rows);
    }

    /// Attention of queries `[n_rows, n_head * head_dim_k]` over the pages of their parts; `out` is
    /// `[n_rows, n_head * head_dim_v]`.
    ///
    /// # Panics
    /// If shapes disagree, or a GPU has no memory for it: the stage ends with this as its reason.
    pub fn attend(&self, over: &AttendOver<'_>, q: &Rows, out: &mut Rows) {
        let AttendOver { layout, pool, parts, scale, variant } = *over;
        let n_head = q.cols() / layout.head_dim_k;
        let there = (self.gpu.as_ref(), pool.span(), variant.blocks);
        if let ((Some(gpu), Some(pool), None), true) = (there, out.is_with_gpu()) {
            let out = out.span_mut().expect("rows with a GPU have a span");
            let (layout, parts) = (&page_layout(layout), &page_parts(parts)[..]);
            let variant = on_gpu(&variant, gpu);
            let over = AttendPages { layout, pool, parts, n_head, scale, variant };
            if let Err(error) = gpu.attend(&over, q.on_gpu(gpu), out) {
                give_up("attention", &error);
            }
            return;
        }
        self.compute.attend(&Attend { layout, pool, parts, n_head, scale, variant }, q, out);
    }
}

/// Without chosen blocks.
fn on_gpu<'a>(variant: &AttendVariant<'a>, gpu: &Gpu) -> there::AttendVariant<'a> {
    let window = variant.window.map(|window| match window {
        Window::Sliding(n) => there::Window::Sliding(n),
        Window::Chunk(n) => there::Window::Chunk(n),
        Window::Around(n) => there::Window::Around(n),
    });
    let biases = variant.biases.map(|biases| there::DistanceBiases {
        of_heads: biases.of_heads.on_gpu(gpu),
        reach: biases.reach,
    });
    there::AttendVariant {
        window,
        softcap: variant.softcap,
        sinks: variant.sinks.map(|sinks| sinks.on_gpu(gpu)),
        slopes: variant.slopes.map(|slopes| slopes.on_gpu(gpu)),
        biases,
        both_ways: variant.both_ways,
    }
}

fn page_layout(layout: &KvLayout) -> PageLayout {
    let KvLayout { n_kv_head, head_dim_k, head_dim_v, values, index_dim, ty } = *layout;
    let values = match values {
        ValuePlace::Apart => brigade_gpu::ValuePlace::Apart,
        ValuePlace::InKeys => brigade_gpu::ValuePlace::InKeys,
    };
    let ty = match ty {
        KvType::F32 => brigade_gpu::KvType::F32,
        KvType::F16 => brigade_gpu::KvType::F16,
        KvType::Q8_0 => brigade_gpu::KvType::Q8_0,
    };
    PageLayout { n_kv_head, head_dim_k, head_dim_v, values, index_dim, ty }
}

fn page_parts<'a>(parts: &[AttendPart<'a>]) -> Vec<PagePart<'a>> {
    let part = |part: &AttendPart<'a>| PagePart {
        pages: bytemuck::cast_slice(part.blocks),
        first_pos: part.first_pos,
        n_rows: part.n_rows,
        first_row: part.first_row,
    };
    parts.iter().map(part).collect()
}
