//! Attention of rows to some of the positions before them. Each row's keys are copied side by side, in the order of
//! their positions, and attended to as a sequence of their own. The cost of a row does not grow with its context.

use brigade_ops::{AttendChosen, Host};

use super::copied_keys::with_room;
use crate::compute::Compute;
use crate::ops::index::positions::{FarRow, far_rows};
use crate::tiles::attention::paged::{Attend, AttendPart};
use crate::tiles::out_rows::Rows;
use brigade_ops::PageId;
use brigade_shapes::PoolSizes;
use brigade_shapes::{KV_PAGE, KvLayout, ValuePlace};

/// Positions that rows attend to.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// Positions of a pool, and the pools chosen for a row. Rows that see no more pools attend to all they see.
    pub sizes: PoolSizes,
    /// `[n_rows, per_row]`: the pools, ascending, as whole numbers. Where a pool is one position, these are positions.
    pub pools: &'a [f32],
}

/// Rows whose keys are copied at once.
const ROWS_AT_ONCE: usize = 8;

/// Bytes of a line of the cache: pages start on one.
const LINE: usize = 64;

impl Chosen<'_> {
    /// The positions that a row attends to, ascending.
    fn of_row(&self, far: &FarRow<'_>) -> impl Iterator<Item = usize> {
        let n = self.sizes.per_row;
        self.sizes.attended(&self.pools[far.row * n..][..n], far.pos)
    }

    /// Values of the room for copied keys that [`Compute::attend_chosen`] needs for so many rows.
    pub fn room_len(layout: &KvLayout, sizes: PoolSizes, n_rows: usize) -> usize {
        let pages = sizes.width().div_ceil(KV_PAGE) * n_rows.min(ROWS_AT_ONCE);
        (pages * copied(layout).page_bytes() + LINE).div_ceil(size_of::<f32>())
    }
}

impl Compute {
    /// Runs the op [`AttendChosen`].
    ///
    /// # Panics
    /// As [`Compute::attend_chosen`].
    pub(crate) fn run_attend_chosen(&self, op: AttendChosen<'_, Host>) {
        let n_rows = op.check();
        let AttendChosen { over, sizes, pools, q, out } = op;
        let len = Chosen::room_len(over.layout, sizes, n_rows);
        with_room(len, |room| {
            self.attend_chosen(&over, &Chosen { sizes, pools }, room, q, out);
        });
    }

    /// [`Compute::attend`] to the chosen positions. `room` has [`Chosen::room_len`] values; what is in it does not matter.
    ///
    /// # Panics
    /// As [`Compute::attend`]; if values are not in the keys, the variant is not the plain one, pools are not as many
    /// as they should be or not before their rows, or the room is too small.
    pub fn attend_chosen(
        &self,
        attend: &Attend<'_>,
        chosen: &Chosen<'_>,
        room: &mut [f32],
        q: &[f32],
        out: &mut [f32],
    ) {
        assert_eq!(attend.layout.values, ValuePlace::InKeys, "attend_chosen: values apart");
        let n = chosen.sizes.width();
        let near: Vec<AttendPart<'_>> = attend
            .parts
            .iter()
            .map(|part| AttendPart { n_rows: part.n_near(n), ..*part })
            .collect();
        if near.iter().any(|part| part.n_rows > 0) {
            self.attend(&Attend { parts: &near, ..*attend }, q, out);
        }
        let far: Vec<FarRow<'_>> =
            attend.parts.iter().flat_map(|part| far_rows(part, chosen.sizes)).collect();
        let layout = copied(attend.layout);
        let pages = n.div_ceil(KV_PAGE);
        let blocks: Vec<PageId> = (0..(pages * ROWS_AT_ONCE) as u32).map(PageId).collect();
        let room: &mut [u8] = bytemuck::cast_slice_mut(room);
        let start = room.as_ptr().align_offset(LINE);
        for rows in far.chunks(ROWS_AT_ONCE) {
            let pool = &mut room[start..][..rows.len() * pages * layout.page_bytes()];
            self.copy_keys(attend, chosen, rows, pool);
            let parts: Vec<AttendPart<'_>> = rows
                .iter()
                .zip(blocks.chunks_exact(pages))
                .map(|(far, blocks)| AttendPart {
                    pages: blocks,
                    first_pos: chosen.sizes.n_attended(far.pos) - 1,
                    n_rows: 1,
                    first_row: far.row,
                })
                .collect();
            self.attend(&Attend { layout: &layout, pool, parts: &parts, ..*attend }, q, out);
        }
    }

    /// Copies the keys of each row's positions to pages of its own, one row's behind the other's.
    fn copy_keys(
        &self,
        attend: &Attend<'_>,
        chosen: &Chosen<'_>,
        rows: &[FarRow<'_>],
        pool: &mut [u8],
    ) {
        let (from, to) = (attend.layout, copied(attend.layout));
        let (page_bytes, of_row) = (to.page_bytes(), pool.len() / rows.len());
        let pages_of_rows = Rows::new(pool, of_row);
        self.pool().run(rows.len(), &|i, _| {
            // SAFETY: the pool hands out each row once.
            let pages = unsafe { pages_of_rows.rows(i..i + 1) };
            for (at, pos) in chosen.of_row(&rows[i]).enumerate() {
                let block = rows[i].blocks[pos / KV_PAGE].0 as usize;
                let page = &mut pages[at / KV_PAGE * page_bytes..][..page_bytes];
                let (from_page, at) = (from.head(attend.pool, block, 0), at % KV_PAGE);
                copy_key(from, from_page, pos % KV_PAGE, &to, page, at);
            }
        });
    }
}

/// The shape of pages without the keys of an index.
fn copied(layout: &KvLayout) -> KvLayout {
    KvLayout { index_dim: 0, ..*layout }
}

/// Copies the key at one place of a page to a place of another.
fn copy_key(
    from: &KvLayout,
    from_page: &[u8],
    from_at: usize,
    to: &KvLayout,
    to_page: &mut [u8],
    to_at: usize,
) {
    let ([from_keys, _, from_scales, _], [to_keys, _, to_scales, _]) = (from.planes(), to.planes());
    let row = from_keys.len() / KV_PAGE;
    let key = &from_page[from_keys.start + from_at * row..][..row];
    to_page[to_keys.start + to_at * row..][..row].copy_from_slice(key);
    let scale = size_of::<u16>();
    let across = KV_PAGE * scale;
    let blocks = from_page[from_scales].chunks_exact(across);
    for (from, to) in blocks.zip(to_page[to_scales].chunks_exact_mut(across)) {
        to[to_at * scale..][..scale].copy_from_slice(&from[from_at * scale..][..scale]);
    }
}
