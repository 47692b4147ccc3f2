//! Writing keys and values to pages.

use brigade_ops::{AttendPart, KvRows};
use brigade_shapes::{KV_PAGE, KvLayout, KvType};
use bytemuck::{Pod, Zeroable};

use super::pages::{check_pool, page_constants, units};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static WRITE: Shader = shader!("kv_write");

/// Invocations of a workgroup.
const GROUP: usize = 64;

/// Stands for the place of a row that is in no part.
const NO_PLACE: u32 = u32::MAX;

/// Push constants of `kv_write.comp`. With no heads it writes pages of an index alone.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct WritePush {
    pub(super) pool: u64,
    pub(super) places: u64,
    pub(super) k: u64,
    pub(super) v: u64,
    pub(super) index: u64,
    pub(super) page_bytes: u32,
    pub(super) n_rows: u32,
    pub(super) n_head: u32,
    pub(super) dk: u32,
    pub(super) dv: u32,
    pub(super) index_dim: u32,
}

impl Gpu {
    /// Writes keys and values of every row of `parts` into their pages, and their keys of an index.
    ///
    /// `pool` holds a layer's pages one after the other and starts on a multiple of 64 bytes. Rows are as the parts number them.
    ///
    /// # Panics
    /// If shapes disagree, or a part lies outside its pages, or a page outside the pool.
    pub fn kv_write(
        &self,
        layout: &KvLayout,
        pool: SpanMut<'_>,
        parts: &[AttendPart<'_>],
        rows: &KvRows<Span<'_>>,
    ) {
        check_pool(layout, "kv_write", pool.address(), pool.len());
        let n_rows = rows.k.values() / (layout.n_kv_head * layout.head_dim_k).max(1);
        let fits = |width: usize, of: Option<Span<'_>>| {
            of.map_or(0, |span| span.values()) == n_rows * width
        };
        assert!(fits(layout.n_kv_head * layout.head_dim_k, Some(rows.k)), "kv_write: keys");
        assert!(fits(layout.n_kv_head * layout.v_width(), rows.v), "kv_write: values");
        assert!(fits(layout.index_dim, rows.index), "kv_write: keys of an index");
        let places = places(parts, n_rows, pool.len() / layout.page_bytes());
        if n_rows == 0 {
            return;
        }
        let address = |of: Option<Span<'_>>| of.map_or(0, |span| span.address());
        let push = WritePush {
            pool: pool.address(),
            places: self.upload(bytemuck::cast_slice(&places)).address(),
            k: rows.k.address(),
            v: address(rows.v),
            index: address(rows.index),
            page_bytes: count(layout.page_bytes()),
            n_rows: count(n_rows),
            n_head: layout.n_kv_head as u32,
            dk: layout.head_dim_k as u32,
            dv: layout.v_width() as u32,
            index_dim: layout.index_dim as u32,
        };
        let constants = page_constants(layout);
        let unit = if layout.ty == KvType::Q8_0 { 32 } else { 4 };
        let groups = lines(count(n_rows * units(layout, unit)).div_ceil(GROUP as u32) as usize);
        // SAFETY: the kernel reads the `n_rows` rows of keys, of values and of an index (checked), and writes to the pages that
        // parts name: they are in the pool (`places` checks that).
        unsafe { self.dispatch(Order::After, &WRITE, &constants, &push, groups) };
    }
}

/// For each row its page times [`KV_PAGE`] and its position there.
fn places(parts: &[AttendPart<'_>], n_rows: usize, n_pages: usize) -> Vec<u32> {
    assert!(n_pages <= 1 << 25, "kv_write: {n_pages} pages");
    let mut places = vec![NO_PLACE; n_rows];
    for part in parts {
        part.used("kv_write", part.first_pos / KV_PAGE, n_pages);
        let rows = part.first_row..part.first_row + part.n_rows;
        assert!(rows.end <= n_rows, "kv_write: rows {rows:?} of {n_rows}");
        for (pos, place) in (part.first_pos..).zip(&mut places[rows]) {
            *place = part.pages[pos / KV_PAGE].0 * KV_PAGE as u32 + (pos % KV_PAGE) as u32;
        }
    }
    places
}
