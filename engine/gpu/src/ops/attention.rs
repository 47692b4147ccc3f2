//! Attention of query rows over the pages of their sequences.
//!
//! A row walks its sequence's pages in order of position, page by page, for its scores, its softmax and its sums. Every span of
//! sixteen pages starts afresh, on a workgroup of its own; spans are merged in order.

use bytemuck::{Pod, Zeroable};

use super::attend_blocks::{ChosenBlocks, PageList};
use super::attend_plan::{Batch, Plan, Sight, Window};
use super::elementwise::count;
use super::pages::{PageLayout, PagePart, ValuePlace};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static SPAN: Shader = shader!("attend_span");
static MERGE: Shader = shader!("attend_merge");

/// Invocations of a workgroup that merges.
const MERGE_GROUP: usize = 64;

/// Most elements of a key and of a value.
const MAX_KEY: usize = 4096;
const MAX_VALUE: usize = 1024;

/// One layer's attention over all rows of a ubatch. Each row sees its own position and those before; in an encoder all of
/// its part.
#[derive(Clone, Copy, Debug)]
pub struct AttendPages<'a> {
    /// Shape of the pages.
    pub layout: &'a PageLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: Span<'a>,
    /// The rows.
    pub parts: &'a [PagePart<'a>],
    /// Query heads, a multiple of the layout's heads; consecutive ones share a head.
    pub n_head: usize,
    /// Factor on the scores, usually `1 / sqrt(head_dim_k)`.
    pub scale: f32,
    /// What few models change of the softmax.
    pub variant: AttendVariant<'a>,
}

/// What few models change of a layer's attention; the default changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttendVariant<'a> {
    /// What a row sees of the positions before it; `None`: all of them.
    pub window: Option<Window>,
    /// Bound of the scores: `cap * tanh(score / cap)` after the scale.
    pub softcap: Option<f32>,
    /// For each query head a score without a value, `[n_head]`: `exp` of it joins the sum of the weights.
    pub sinks: Option<Span<'a>>,
    /// For each query head what a score loses for every position between it and its row, `[n_head]` (ALiBi, arXiv
    /// 2108.12409): after the scale and the bound.
    pub slopes: Option<Span<'a>>,
    /// What scores gain by the distance.
    pub biases: Option<DistanceBiases<'a>>,
    /// Whether a row sees the positions of its part that come after its own. The part is all of its sequence.
    pub both_ways: bool,
    /// The blocks that a row's heads see of the positions before it; `None`: all. Not beside a window, nor where rows see
    /// those after them.
    pub blocks: Option<ChosenBlocks<'a>>,
}

/// What a score gains by how far its position is ahead of the row's own (T5, arXiv 1910.10683, section 2.1): after the
/// scale and the bound.
#[derive(Clone, Copy, Debug)]
pub struct DistanceBiases<'a> {
    /// `[n_head, 2 * reach + 1]`: of the distances `-reach..=reach`. Farther ones count as the farthest.
    pub of_heads: Span<'a>,
    /// The farthest distance that is told from others.
    pub reach: usize,
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
    /// Attention: `q` is `[n_rows, n_head * head_dim_k]`, `out` is `[n_rows, n_head * head_dim_v]`, rows as the parts
    /// number them. Keys and values of the rows themselves must be in their pages.
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
        let n_pages = over.check(q.values(), out.values());
        let sight = Sight { window: over.variant.window, both_ways: over.variant.both_ways };
        let listed = over.variant.blocks.map(|blocks| blocks.listed(over.parts));
        let sees = (sight, listed);
        let plan = Plan::new(over.layout, over.parts, over.group(), sees, n_pages);
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
            self.attend_spans(over, batch, (tiles, pages, lists), q, states.span_mut());
            self.merge_spans(over, batch, (tiles, lists), states.span(), out.address());
        }
        Ok(())
    }

    /// Fills the states of all spans of a batch.
    fn attend_spans(
        &self,
        over: &AttendPages<'_>,
        batch: &Batch,
        (tiles, pages, lists): (Span<'_>, Span<'_>, PageList),
        q: Span<'_>,
        states: SpanMut<'_>,
    ) {
        let (layout, variant) = (over.layout, &over.variant);
        let push = SpanPush {
            pool: over.pool.address(),
            q: q.address(),
            tiles: tiles.address(),
            spans: self.upload(bytemuck::cast_slice(&batch.spans)).address(),
            pages: pages.address(),
            states: states.address(),
            slopes: variant.slopes.map_or(0, |slopes| slopes.address()),
            biases: variant.biases.map_or(0, |biases| biases.of_heads.address()),
            lists: lists.address,
            page_bytes: count(layout.page_bytes()),
            n_kv_head: layout.n_kv_head as u32,
            group: over.group() as u32,
            window: variant.window_len(),
            reach: variant.biases.map_or(0, |biases| count(biases.reach)),
            n_spans: count(batch.spans.len()),
            most: lists.most,
            scale: over.scale,
            softcap: variant.softcap.unwrap_or(1.0),
            inverse_cap: 1.0 / variant.softcap.unwrap_or(1.0),
        };
        let [ty, in_keys] = over.page_constants();
        let tile = batch.tile as u32;
        let (dk, dv) = (layout.head_dim_k as u32, layout.head_dim_v as u32);
        let constants = [ty, in_keys, tile, variant.bits(batch), dk, dv];
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
        batch: &Batch,
        (tiles, lists): (Span<'_>, PageList),
        states: Span<'_>,
        result: u64,
    ) {
        let (layout, variant) = (over.layout, &over.variant);
        let push = MergePush {
            tiles: tiles.address(),
            states: states.address(),
            sinks: variant.sinks.map_or(0, |sinks| sinks.address()),
            result,
            lists: lists.address,
            n_tiles: count(batch.tiles.len()),
            n_kv_head: layout.n_kv_head as u32,
            group: over.group() as u32,
            window: variant.window_len(),
            dv: layout.head_dim_v as u32,
            most: lists.most,
        };
        let [ty, in_keys] = over.page_constants();
        let constants = [ty, in_keys, batch.tile as u32, variant.bits(batch)];
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

impl AttendPages<'_> {
    /// Query heads that share a head of keys and values.
    fn group(&self) -> usize {
        self.n_head / self.layout.n_kv_head
    }

    /// The first constants of the kernels: type, and whether values are in keys.
    fn page_constants(&self) -> [u32; 2] {
        [self.layout.ty.code(), u32::from(self.layout.values == ValuePlace::InKeys)]
    }

    /// Checks the shapes. Returns how many pages the pool has.
    fn check(&self, q_len: usize, out_len: usize) -> usize {
        let (layout, n_head, variant) = (self.layout, self.n_head, &self.variant);
        let (dk, dv) = (layout.head_dim_k, layout.head_dim_v);
        assert!((1..=MAX_KEY).contains(&dk), "attend: keys of {dk} elements");
        assert!((1..=MAX_VALUE).contains(&dv), "attend: values of {dv} elements");
        assert!(layout.values == ValuePlace::Apart || dv <= dk, "attend: values of {dv} in {dk}");
        let n_kv_head = layout.n_kv_head;
        assert!(
            n_kv_head > 0 && n_head > 0 && n_head.is_multiple_of(n_kv_head),
            "attend: {n_head} query heads over {n_kv_head} heads"
        );
        let n_rows = q_len / (n_head * dk);
        assert_eq!(q_len, n_rows * n_head * dk, "attend: length of q");
        assert_eq!(out_len, n_rows * n_head * dv, "attend: length of out");
        let fits = |of: Option<Span<'_>>, n: usize| of.is_none_or(|of| of.values() == n);
        assert!(fits(variant.sinks, n_head), "attend: a sink for each query head");
        assert!(fits(variant.slopes, n_head), "attend: a slope for each query head");
        let reach = variant.biases.map_or(0, |biases| biases.reach);
        let biases = variant.biases.map(|biases| biases.of_heads);
        assert!(fits(biases, n_head * (2 * reach + 1)), "attend: biases for each query head");
        if let Some(blocks) = variant.blocks {
            let sees_before = variant.window.is_none() && !variant.both_ways;
            assert!(sees_before, "attend: chosen blocks of all positions before a row");
            blocks.check(n_rows, n_kv_head);
        }
        let mut next = 0;
        for part in self.parts {
            assert!(part.first_row >= next, "attend: parts are out of order");
            next = part.first_row + part.n_rows;
        }
        assert!(next <= n_rows, "attend: {next} rows of {n_rows}");
        layout.check_pool("attend", self.pool.address(), self.pool.len());
        self.pool.len() / layout.page_bytes()
    }
}

impl AttendVariant<'_> {
    /// The constant by which shaders know it: see `attend_tile.glsl`.
    fn bits(&self, batch: &Batch) -> u32 {
        let window = match self.window {
            None => 0,
            Some(Window::Sliding(_)) => 1,
            Some(Window::Chunk(_)) => 2,
            Some(Window::Around(_)) => 3,
        };
        let flags = [
            self.softcap.is_some(),
            self.slopes.is_some(),
            self.biases.is_some(),
            self.both_ways,
            self.sinks.is_some(),
            batch.is_listed,
        ];
        (2..).zip(flags).fold(window, |bits, (place, flag)| bits | u32::from(flag) << place)
    }

    fn window_len(&self) -> u32 {
        match self.window {
            None => 0,
            Some(Window::Sliding(n) | Window::Chunk(n) | Window::Around(n)) => n,
        }
    }
}
