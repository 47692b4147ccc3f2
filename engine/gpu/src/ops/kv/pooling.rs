//! Pools of rows by a learned gate. A pool becomes a mean of its rows, in which each column has weights of its own: a
//! softmax of the rows' gates.

use brigade_ops::{AttendPart, PoolGated};
use brigade_shapes::{KV_PAGE, KvLayout, KvType, ValuePlace};
use bytemuck::{Pod, Zeroable};

use super::index_pages::{IndexKeys, PageLists};
use super::write::WritePush;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static GATED: Shader = shader!("pool_gated");
static KEYS: Shader = shader!("pool_keys");
static WRITE: Shader = shader!("kv_write");

/// Sizes and biases by which the keys of a pool's positions become one.
#[derive(Clone, Copy, Debug)]
pub struct PoolingSpans<'a> {
    /// Positions of a pool, at least 2; pools lie side by side from position 0.
    pub positions: usize,
    /// `[positions, dim]`: added to the gate of each position.
    pub bias: Span<'a>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct GatedPush {
    rows: u64,
    starts: u64,
    result: u64,
    n_pools: u32,
    width: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct KeysPush {
    pool: u64,
    members: u64,
    bias: u64,
    result: u64,
    page_bytes: u32,
    n_pools: u32,
    positions: u32,
    dim: u32,
}

impl Gpu {
    /// Records the op [`PoolGated`].
    ///
    /// # Panics
    /// If a pool has no rows or one that is not as wide as the others, or `out` is not as long as it should be.
    pub fn pool_gated(&self, op: PoolGated<'_, OnGpu>) {
        op.check();
        let PoolGated { pools, width, out } = op;
        let rows = pools.iter().flatten().map(|row| [row.values.address(), row.gates.address()]);
        let rows: Vec<[u64; 2]> = rows.collect();
        let mut starts = vec![0];
        for rows in &pools {
            starts.push(starts[starts.len() - 1] + count(rows.len()));
        }
        let push = GatedPush {
            rows: self.upload(bytemuck::cast_slice(&rows)).address(),
            starts: self.upload(bytemuck::cast_slice(&starts)).address(),
            result: out.address(),
            n_pools: count(pools.len()),
            width: count(width),
        };
        let groups = lines(pools.len() * width.div_ceil(64));
        // SAFETY: the kernel reads the `width` values of each of the rows' spans, and writes the rows of `out` (checked).
        unsafe { self.dispatch(Order::After, &GATED, &[], &push, groups) };
    }

    /// Makes the key of each pool that the parts' rows complete: `Σ_i p_i * key_i`, element by element, over its positions
    /// `i`, with `p = softmax_i(gate_i + bias_i)`. The rows' own keys and gates must be in their pages; in the page of the
    /// pool's last position its key takes their place, with zeros behind it.
    ///
    /// # Errors
    /// Where there is no room for the keys.
    ///
    /// # Panics
    /// If pages have no rows of keys and gates, shapes disagree, or a part's positions lie outside its pages or the pool.
    pub fn pool_keys(
        &self,
        layout: &KvLayout,
        pool: SpanMut<'_>,
        parts: &[AttendPart<'_>],
        pooling: PoolingSpans<'_>,
    ) -> Result<(), GpuError> {
        let (positions, kept) = (pooling.positions, layout.index_dim);
        assert_eq!(layout.values, ValuePlace::InKeys, "pool_keys: keys that are no rows");
        assert!(positions > 1 && kept > 0, "pool_keys: {positions} positions, {kept} values");
        assert_eq!(pooling.bias.values() * 2, positions * kept, "pool_keys: length of the bias");
        let keys = IndexKeys::new("pool_keys", layout, pool.address(), pool.len());
        let members = members(layout, pool.len(), parts, positions);
        let n = members.len() / positions;
        if n == 0 {
            return Ok(());
        }
        let mut made = self.buffer(4 * n * kept, Purpose::Activations)?;
        let push = KeysPush {
            pool: keys.address,
            members: self.upload(bytemuck::cast_slice(&members)).address(),
            bias: pooling.bias.address(),
            result: made.span_mut().address(),
            page_bytes: keys.page_bytes,
            n_pools: count(n),
            positions: count(positions),
            dim: count(kept / 2),
        };
        let groups = lines((n * (kept / 2)).div_ceil(64));
        // SAFETY: the kernel reads the members' keys and gates, which are in the pool, and the bias; it writes the `n` rows
        // of the buffer.
        unsafe { self.dispatch(Order::After, &KEYS, &keys.constants, &push, groups) };
        let places: Vec<u32> = members.chunks_exact(positions).map(|m| m[positions - 1]).collect();
        self.write_keys(keys, layout, &places, made.span());
        Ok(())
    }

    /// Writes rows of an index, `[places.len(), index_dim]`, to their places.
    fn write_keys(&self, keys: IndexKeys, layout: &KvLayout, places: &[u32], rows: Span<'_>) {
        let push = WritePush {
            pool: keys.address,
            places: self.upload(bytemuck::cast_slice(places)).address(),
            k: 0,
            v: 0,
            index: rows.address(),
            page_bytes: keys.page_bytes,
            n_rows: count(places.len()),
            n_head: 0,
            dk: 0,
            dv: 0,
            index_dim: count(layout.index_dim),
        };
        let unit = if layout.ty == KvType::Q8_0 { 32 } else { 4 };
        let units = (keys.width as usize).div_ceil(unit);
        let groups = lines((places.len() * units).div_ceil(64));
        // SAFETY: the kernel reads the rows and writes the index's keys at their places, which are in the pool: `places` has
        // pages of parts that were checked. With no heads it reads and writes no keys and values of heads.
        unsafe { self.dispatch(Order::After, &WRITE, &keys.constants, &push, groups) };
    }
}

/// For each position of each pool that the parts' rows complete, its page times [`KV_PAGE`] and its position there.
fn members(
    layout: &KvLayout,
    pool_bytes: usize,
    parts: &[AttendPart<'_>],
    positions: usize,
) -> Vec<u32> {
    // Rows stand in no operand here, so that there are as many as parts say.
    let n_rows = parts.iter().map(|part| part.first_row + part.n_rows).max().unwrap_or(0);
    PageLists::new("pool_keys", layout, pool_bytes, parts, n_rows);
    assert!(pool_bytes / layout.page_bytes() <= 1 << 25, "pool_keys: {pool_bytes} bytes of pages");
    let of_part = |part: &AttendPart<'_>| {
        let AttendPart { pages, first_pos, n_rows, .. } = *part;
        let end = (first_pos + n_rows) / positions * positions;
        let place = |pos: usize| pages[pos / KV_PAGE].0 * KV_PAGE as u32 + (pos % KV_PAGE) as u32;
        (first_pos / positions * positions..end).map(place).collect::<Vec<u32>>()
    };
    parts.iter().flat_map(of_part).collect()
}
