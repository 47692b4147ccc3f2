//! Attention of query rows over the pages of their sequences.
//!
//! A row walks its sequence's pages in order of position, page by page, for its scores, its softmax and its sums. Every span of
//! sixteen pages starts afresh, on a workgroup of its own; spans are merged in order.

use brigade_ops::attention::check_over;
use brigade_shapes::Window;
use bytemuck::{Pod, Zeroable};

use super::page_lists::{PageList, listed};
use super::tiling::{Batch, Plan, Sight};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;
use crate::ops::kv::pages::{check_pool, page_constants};
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static SPAN: Shader = shader!("attend_span");
static MERGE: Shader = shader!("attend_merge");

/// Invocations of a workgroup that merges.
const MERGE_GROUP: usize = 64;

/// Most elements of a key and of a value.
const MAX_KEY: usize = 4096;
const MAX_VALUE: usize = 1024;

/// Pages, rows and softmax of attention, in a GPU's memory.
pub type AttendPages<'a> = brigade_ops::AttendOver<'a, Span<'a>, Span<'a>>;

/// Changes to attention that only some models have, in a GPU's memory.
pub type AttendVariant<'a> = brigade_ops::AttendVariant<'a, Span<'a>>;

/// A batch, and where its kernels read what the plan says of it.
#[derive(Clone, Copy)]
struct Uploaded<'a> {
    batch: &'a Batch,
    tiles: Span<'a>,
    pages: Span<'a>,
    lists: PageList,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SpanPush {
    pool: u64,
    q: u64,
    tiles: u64,
    spans: u64,
    pages: u64,
    states: u64,
    slopes: u64,
    biases: u64,
    lists: u64,
    page_bytes: u32,
    n_kv_head: u32,
    group: u32,
    window: u32,
    reach: u32,
    n_spans: u32,
    most: u32,
    scale: f32,
    softcap: f32,
    inverse_cap: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct MergePush {
    tiles: u64,
    states: u64,
    sinks: u64,
    result: u64,
    lists: u64,
    n_tiles: u32,
    n_kv_head: u32,
    group: u32,
    window: u32,
    dv: u32,
    most: u32,
}

impl Gpu {
    /// Records the op [`Attend`](brigade_ops::Attend).
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where the device has no room for the sums of spans.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, a part's positions lie outside its pages or the
    /// pool, or heads are larger than any model's.
    pub fn attend(
        &self,
        over: &AttendPages<'_>,
        q: Span<'_>,
        out: SpanMut<'_>,
    ) -> Result<(), GpuError> {
        let n_pages = check(over, q.values(), out.values());
        let sight = Sight { window: over.variant.window, both_ways: over.variant.both_ways };
        let listed = over.variant.blocks.map(|blocks| listed(&blocks, over.parts));
        let plan = Plan::new(over.layout, over.parts, group(over), sight, listed, n_pages);
        if plan.batches.is_empty() {
            return Ok(());
        }
        let lists = match (over.variant.blocks, listed) {
            (Some(blocks), Some(listed)) if !plan.far_rows.is_empty() => {
                Some(self.list_pages(&blocks, listed, &plan.far_rows, over.layout.n_kv_head)?)
            }
            _ => None,
        };
        let lists = lists.as_ref().map_or(PageList::NONE, |(lists, most)| PageList {
            address: lists.span().address(),
            most: *most,
        });
        let mut states = self.buffer(plan.state_bytes(over.layout), Purpose::Activations)?;
        let pages = self.upload(bytemuck::cast_slice(&plan.pages));
        for batch in &plan.batches {
            let tiles = self.upload(bytemuck::cast_slice(&batch.tiles));
            let uploaded = Uploaded { batch, tiles, pages, lists };
            self.attend_spans(over, uploaded, q, states.span_mut());
            self.merge_spans(over, uploaded, states.span(), out.address());
        }
        Ok(())
    }

    /// Fills the states of all spans of a batch.
    fn attend_spans(
        &self,
        over: &AttendPages<'_>,
        uploaded: Uploaded<'_>,
        q: Span<'_>,
        states: SpanMut<'_>,
    ) {
        let Uploaded { batch, tiles, pages, lists } = uploaded;
        let (layout, variant) = (over.layout, &over.variant);
        let push = SpanPush {
            pool: over.pool.address(),
            q: q.address(),
            tiles: tiles.address(),
            spans: self.upload(bytemuck::cast_slice(&batch.spans)).address(),
            pages: pages.address(),
            states: states.address(),
            slopes: variant.slopes.map_or(0, |slopes| self.vector(slopes).address()),
            biases: variant.biases.map_or(0, |biases| self.vector(biases.of_heads).address()),
            lists: lists.address,
            page_bytes: count(layout.page_bytes()),
            n_kv_head: layout.n_kv_head as u32,
            group: group(over) as u32,
            window: window_len(variant),
            reach: variant.biases.map_or(0, |biases| count(biases.reach)),
            n_spans: count(batch.spans.len()),
            most: lists.most,
            scale: over.scale,
            softcap: variant.softcap.unwrap_or(1.0),
            inverse_cap: 1.0 / variant.softcap.unwrap_or(1.0),
        };
        let [ty, in_keys] = page_constants(over.layout);
        let tile = batch.tile as u32;
        let (dk, dv) = (layout.head_dim_k as u32, layout.head_dim_v as u32);
        let constants = [ty, in_keys, tile, bits(variant, batch), dk, dv];
        let groups = lines(batch.spans.len() * layout.n_kv_head);
        // SAFETY: the kernel reads the queries of the tiles' rows, which are rows of `q` (`check`), the pages that the parts name,
        // which are in the pool (`Plan::new`), and slopes and biases of each head (`check`). Lists that it reads name no page
        // behind the row's own (`Gpu::list_pages`). It writes a state for each span, head and query: `Plan::state_bytes`
        // counts them.
        unsafe { self.dispatch(Order::After, &SPAN, &constants, &push, groups) };
    }

    /// Merges the spans of a batch's queries and writes their outputs to `result`.
    fn merge_spans(
        &self,
        over: &AttendPages<'_>,
        uploaded: Uploaded<'_>,
        states: Span<'_>,
        result: u64,
    ) {
        let Uploaded { batch, tiles, lists, .. } = uploaded;
        let (layout, variant) = (over.layout, &over.variant);
        let push = MergePush {
            tiles: tiles.address(),
            states: states.address(),
            sinks: variant.sinks.map_or(0, |sinks| self.vector(sinks).address()),
            result,
            lists: lists.address,
            n_tiles: count(batch.tiles.len()),
            n_kv_head: layout.n_kv_head as u32,
            group: group(over) as u32,
            window: window_len(variant),
            dv: layout.head_dim_v as u32,
            most: lists.most,
        };
        let [ty, in_keys] = page_constants(over.layout);
        let constants = [ty, in_keys, batch.tile as u32, bits(variant, batch)];
        let queries = batch.tiles.len() * layout.n_kv_head * batch.tile;
        let n = count(queries * layout.head_dim_v.div_ceil(4)) as usize;
        // SAFETY: the kernel reads the states that were filled before, and a sink of each head. It writes the rows of the tiles,
        // which are rows of the output (`check`).
        unsafe {
            let groups = lines(n.div_ceil(MERGE_GROUP));
            self.dispatch(Order::After, &MERGE, &constants, &push, groups);
        }
    }
}

/// Query heads that share a head of keys and values.
fn group(over: &AttendPages<'_>) -> usize {
    over.n_head / over.layout.n_kv_head
}

/// Checks the shapes, and returns the number of pages in the pool. Returns how many pages the pool has.
fn check(over: &AttendPages<'_>, q_len: usize, out_len: usize) -> usize {
    check_over::<OnGpu>("attend", over, q_len, out_len);
    let (dk, dv) = (over.layout.head_dim_k, over.layout.head_dim_v);
    assert!((1..=MAX_KEY).contains(&dk), "attend: keys of {dk} elements");
    assert!((1..=MAX_VALUE).contains(&dv), "attend: values of {dv} elements");
    check_pool(over.layout, "attend", over.pool.address(), over.pool.len())
}

/// The constant by which shaders know what is changed: see `attend_tile.glsl`.
fn bits(variant: &AttendVariant<'_>, batch: &Batch) -> u32 {
    let window = match variant.window {
        None => 0,
        Some(Window::Sliding(_)) => 1,
        Some(Window::Chunk(_)) => 2,
        Some(Window::Around(_)) => 3,
    };
    let flags = [
        variant.softcap.is_some(),
        variant.slopes.is_some(),
        variant.biases.is_some(),
        variant.both_ways,
        variant.sinks.is_some(),
        batch.is_listed,
    ];
    (2..).zip(flags).fold(window, |bits, (place, flag)| bits | u32::from(flag) << place)
}

fn window_len(variant: &AttendVariant<'_>) -> u32 {
    match variant.window {
        None => 0,
        Some(Window::Sliding(n) | Window::Chunk(n) | Window::Around(n)) => n,
    }
}
