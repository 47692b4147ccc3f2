//! The KV cache of one attention block: a pool of pages that all sequences share.
//!
//! The coordinator decides which page belongs to which sequence, and says so in the ubatch. This file owns the
//! memory, and pairs the parts of a ubatch with their pages for the kernels.

use std::borrow::Cow;
use std::ops::Range;

use super::places::{Places, visible};
use super::{PartRows, Sequence, Sequences};
use crate::batch::PageId;
use crate::device::{Device, IndexOfMeans, IndexOver, Lists, Memory, PoolingBy, Rows};
use crate::kernels::{BlockSizes, KV_PAGE, KvLayout, PoolSizes, Window};
use crate::ops::{Attend, AttendChosen, AttendOver, AttendPart, KvWrite, View};
use crate::spec::{ModelError, StateRoom, pages_kept};

/// Changes to attention that only some models have, and the blocks that an index chose.
pub type AttendVariant<'a> = crate::ops::AttendVariant<'a, View<'a, u32>>;

/// Scale and changes of the attention of rows.
#[derive(Clone, Copy)]
pub struct AttendHow<'a> {
    /// The factor on scores.
    pub scale: f32,
    /// Changes that only some models have.
    pub variant: AttendVariant<'a>,
}

/// The rows of a ubatch, and what computes with them.
#[derive(Clone, Copy)]
pub struct UbatchRows<'a> {
    /// Device that computes with the rows.
    pub device: &'a Device,
    /// Parts of the ubatch with their rows.
    pub parts: &'a [PartRows],
    /// Lengths and pages of the sequences.
    pub sequences: &'a Sequences,
}

/// The pools that were chosen for rows.
#[derive(Clone, Copy)]
pub struct ChosenPools<'a> {
    /// Positions of a pool, and pools chosen for a row.
    pub sizes: PoolSizes,
    /// `[n_rows, sizes.per_row]`.
    pub pools: &'a Rows,
}

/// Keys and values that rows write to their pages.
pub type KvRows<'a> = crate::ops::KvRows<&'a Rows>;

/// Pages of keys and values.
pub struct KvCache {
    layout: KvLayout,
    pool: Memory<u8>,
    /// Places of the pages, in a layer that keeps no more than its window sees; `None`: all pages are kept.
    places: Option<Places>,
    /// Pages that there is memory for.
    n_pages: u32,
}

impl KvCache {
    /// Zeroed pages; the system hands out memory as they are first written. They may be of the host, whatever computes. With a
    /// `window`, only those are kept that rows to come see.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(
        device: &Device,
        layout: KvLayout,
        of_host: bool,
        room: &StateRoom,
        window: Option<Window>,
    ) -> Result<Self, ModelError> {
        let StateRoom { n_slots, n_blocks, max_rows, .. } = *room;
        let bytes = layout.page_bytes() as u64 * u64::from(n_blocks);
        let pool = usize::try_from(bytes).ok().and_then(|bytes| {
            if of_host { device.host_memory(bytes) } else { device.memory(bytes) }
        });
        let pool = pool.ok_or(ModelError::OutOfMemory { bytes, what: "KV pages" })?;
        let places = window.map(|window| Places::new(window, n_blocks));
        let kept = |window: Window| pages_kept(window.width(), n_slots, max_rows, n_blocks);
        Ok(Self { layout, pool, places, n_pages: window.map_or(n_blocks, kept) })
    }

    /// Shape of a page.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Bytes that are reserved.
    pub fn nbytes(&self) -> usize {
        self.n_pages as usize * self.layout.page_bytes()
    }

    /// Whether all pages of a sequence are kept, seen or not.
    pub fn keeps_all(&self) -> bool {
        self.places.is_none()
    }

    /// The pages of the first `len` positions of a sequence that are kept: those that a row behind them sees.
    pub fn kept<'a>(&self, sequence: &'a Sequence, len: u32) -> &'a [PageId] {
        &sequence.blocks[self.kept_range(len)]
    }

    /// Number of the pages of [`Self::kept`].
    pub fn n_kept(&self, len: u32) -> usize {
        self.kept_range(len).len()
    }

    fn kept_range(&self, len: u32) -> Range<usize> {
        match &self.places {
            Some(places) => visible(places.window, len, len),
            None => 0..(len as usize).div_ceil(KV_PAGE),
        }
    }

    /// The bytes of a page.
    ///
    /// # Panics
    /// If it is not kept.
    pub fn page(&self, block: PageId) -> Cow<'_, [u8]> {
        let place = match &self.places {
            Some(places) => places.get(block).expect("a page that a row sees has a place"),
            None => block,
        };
        let n = self.layout.page_bytes();
        self.pool.read(place.0 as usize * n..(place.0 as usize + 1) * n)
    }

    /// Writes the bytes of a page.
    pub fn write_page(&mut self, block: PageId, bytes: &[u8]) {
        let place = self.places.as_mut().map_or(block, |places| places.take(block));
        self.pool.write(place.0 as usize * self.layout.page_bytes(), bytes);
    }

    /// Copies one page to another, if it is kept.
    pub fn copy_page(&mut self, src: PageId, dst: PageId) {
        let (src, dst) = match &mut self.places {
            Some(places) => {
                let Some(src) = places.get(src) else { return };
                (src, places.take(dst))
            }
            None => (src, dst),
        };
        self.pool.copy_part(self.layout.page_bytes(), src.0 as usize, dst.0 as usize);
    }

    /// Appends the bytes of pages, the last of which holds the last of `len` positions; what it holds beyond is zeros.
    pub fn read_into(&self, pages: &[PageId], len: u32, bytes: &mut Vec<u8>) {
        for page in pages {
            bytes.extend_from_slice(&self.page(*page));
        }
        let tail = len as usize % KV_PAGE;
        if tail > 0 && !pages.is_empty() {
            let last = bytes.len() - self.layout.page_bytes();
            self.layout.clear_tail(&mut bytes[last..], tail);
        }
    }

    /// Forgets all pages: no sequence is open.
    pub fn clear(&mut self) {
        self.places.iter_mut().for_each(Places::clear);
    }

    /// Writes what the ubatch's rows leave: their keys and values, and keys of an index.
    pub fn append(&mut self, of: UbatchRows<'_>, rows: &KvRows<'_>) {
        let UbatchRows { device, parts, sequences } = of;
        self.take_places(parts, sequences);
        let tables = self.tables(parts, sequences);
        let parts = attend_parts(parts, sequences, tables.as_deref());
        device.run(KvWrite {
            layout: &self.layout,
            pool: self.pool.view_mut(),
            parts: &parts,
            rows: rows.map(Rows::view),
        });
    }

    /// Makes the keys of an index for the pools that the ubatch's rows complete, see [`Device::pool_keys`]. The rows'
    /// own keys and values must have been written.
    pub fn pool_keys(&mut self, of: UbatchRows<'_>, pooling: PoolingBy<'_>) {
        let UbatchRows { device, parts, sequences } = of;
        let tables = self.tables(parts, sequences);
        let parts = attend_parts(parts, sequences, tables.as_deref());
        device.pool_keys(&self.layout, &mut self.pool, &parts, pooling);
    }

    /// Gives the pages of the ubatch's rows their places. Pages that no row sees any more give theirs up first.
    fn take_places(&mut self, parts: &[PartRows], sequences: &Sequences) {
        let Some(places) = &mut self.places else { return };
        for part in parts {
            let Some(sequence) = sequences.get(part.slot) else { continue };
            for &page in &sequence.used_blocks()[part.pos as usize / KV_PAGE..] {
                if places.would_touch(page) {
                    places.keep_visible(sequences.next_rows(parts));
                }
                places.take(page);
            }
        }
    }

    /// For each part the places of its sequence's pages, 0 for those that it does not see; `None` where each page is
    /// where its number says.
    fn tables(&self, parts: &[PartRows], sequences: &Sequences) -> Option<Vec<Vec<PageId>>> {
        let places = self.places.as_ref()?;
        let place = |&page: &PageId| places.get(page).unwrap_or(PageId(0));
        let pages =
            |part: &PartRows| sequences.get(part.slot).map_or(&[][..], Sequence::used_blocks);
        Some(parts.iter().map(|part| pages(part).iter().map(place).collect()).collect())
    }

    /// Attention of queries `[n_rows, n_head * head_dim_k]` over everything up to each row's own
    /// position that the variant lets it see; `out` is `[n_rows, n_head * head_dim_v]`.
    pub fn attend(&self, of: UbatchRows<'_>, how: AttendHow<'_>, q: &Rows, out: &mut Rows) {
        let UbatchRows { device, parts, sequences } = of;
        let tables = self.tables(parts, sequences);
        let parts = &attend_parts(parts, sequences, tables.as_deref())[..];
        device.run(Attend { over: self.over(parts, how, q), q: q.view(), out: out.view_mut() });
    }

    /// Pages, rows and softmax of the queries' attention.
    fn over<'a>(
        &'a self,
        parts: &'a [AttendPart<'a>],
        how: AttendHow<'a>,
        q: &Rows,
    ) -> AttendOver<'a, View<'a, u8>, View<'a, u32>> {
        let AttendHow { scale, variant } = how;
        let n_head = q.cols() / self.layout.head_dim_k;
        AttendOver { layout: &self.layout, pool: self.pool.view(), parts, n_head, scale, variant }
    }

    /// The pools of each row that an index chooses, see [`Device::choose`]: with `queries` `[n_rows, n_head * dim]` and
    /// weights `[n_rows, n_head]`.
    pub fn choose(
        &self,
        of: UbatchRows<'_>,
        sizes: PoolSizes,
        queries: &Rows,
        weights: &Rows,
        out: &mut Rows,
    ) {
        self.asked(of, |device, over| device.choose(over, sizes, queries, weights, out));
    }

    /// The blocks of each row's heads that an index chooses, see [`Device::choose_blocks`]: with `queries` `[n_rows,
    /// n_kv_head * index_dim]`.
    pub fn choose_blocks(
        &self,
        of: UbatchRows<'_>,
        sizes: BlockSizes,
        queries: &Rows,
    ) -> Option<Lists> {
        self.asked(of, |device, over| device.choose_blocks(over, sizes, queries))
    }

    /// The blocks of the rows of `parts` that an index of means chooses, see [`Device::choose_by_means`], with `queries`
    /// `[n_rows, n_head * index_dim]`.
    pub fn choose_by_means(
        &self,
        of: UbatchRows<'_>,
        index: &IndexOfMeans<'_>,
        queries: &Rows,
    ) -> Option<Lists> {
        self.asked(of, |device, over| device.choose_by_means(over, index, queries))
    }

    /// Asks an index whose keys are in the pages.
    fn asked<T>(&self, of: UbatchRows<'_>, ask: impl FnOnce(&Device, &IndexOver<'_>) -> T) -> T {
        let UbatchRows { device, parts, sequences } = of;
        let tables = self.tables(parts, sequences);
        let parts = &attend_parts(parts, sequences, tables.as_deref())[..];
        ask(device, &IndexOver { layout: &self.layout, pool: &self.pool, parts })
    }

    /// As [`Self::attend`], over the pools that were chosen for each row.
    pub fn attend_chosen(
        &self,
        of: UbatchRows<'_>,
        how: AttendHow<'_>,
        chosen: ChosenPools<'_>,
        q: &Rows,
        out: &mut Rows,
    ) {
        let UbatchRows { device, parts, sequences } = of;
        let tables = self.tables(parts, sequences);
        let parts = &attend_parts(parts, sequences, tables.as_deref())[..];
        device.run(AttendChosen {
            over: self.over(parts, how, q),
            sizes: chosen.sizes,
            pools: chosen.pools.view(),
            q: q.view(),
            out: out.view_mut(),
        });
    }
}

/// The parts with their pages, as the kernels take them: of `tables`, where there are such.
pub fn attend_parts<'a>(
    parts: &[PartRows],
    sequences: &'a Sequences,
    tables: Option<&'a [Vec<PageId>]>,
) -> Vec<AttendPart<'a>> {
    let part = |(i, part): (usize, &PartRows)| AttendPart {
        first_row: part.rows.start,
        n_rows: part.rows.len(),
        first_pos: part.pos as usize,
        pages: match tables {
            Some(tables) => &tables[i],
            None => sequences.get(part.slot).map_or(&[], |sequence| &sequence.blocks),
        },
    };
    parts.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Ahead, SeqOp, SeqPart, SlotId, UBatch, Want};
    use crate::error::BatchError;
    use crate::kernels::{KvType, ValuePlace, select};
    use crate::spec::Prefixes;

    const LAYOUT: KvLayout = KvLayout {
        n_kv_head: 1,
        head_dim_k: 16,
        head_dim_v: 16,
        values: ValuePlace::Apart,
        index_dim: 0,
        ty: KvType::F32,
    };

    #[test]
    fn a_sequence_grows_by_pages_that_there_are() {
        let mut s = Sequences::new(2, 8, Prefixes::Whole, false);
        let ids = |ids: &[u32]| ids.iter().map(|&id| PageId(id)).collect::<Vec<_>>();
        let grow = |slot, pages: &[u32]| SeqOp::Grow { slot: SlotId(slot), blocks: ids(pages) };
        let mut apply = |ops, rows: Option<(u32, usize)>| {
            let part = |(pos, n)| {
                let (slot, tokens, want) = (SlotId(0), vec![7; n], Want::Nothing);
                SeqPart { slot, pos, tokens, want, mu: None, ahead: None }
            };
            let parts = rows.into_iter().map(part).collect();
            let applied = s.apply(&UBatch { id: 0, ops, parts }).map(drop);
            applied.map(|()| s.get(SlotId(0)).map(|s| s.used_blocks().to_vec()).unwrap_or_default())
        };
        let (slot, blocks, request) = (SlotId(0), ids(&[5]), "r".into());
        apply(vec![SeqOp::Open { slot, blocks, sampler: None, request }], Some((0, 64))).unwrap();
        assert_eq!(apply(vec![grow(0, &[2])], Some((64, 1))), Ok(ids(&[5, 2])));
        let beyond = Err(BatchError::NoSuchBlock { block: 8, n_blocks: 8 });
        assert_eq!(apply(vec![grow(0, &[8])], None), beyond);
        assert_eq!(apply(vec![grow(1, &[3])], None), Err(BatchError::NotOpen(SlotId(1))));
        let many = apply(vec![grow(0, &[0, 1, 2, 3, 4, 5, 6])], None);
        assert!(matches!(many, Err(BatchError::Malformed(why)) if why.contains("more pages")));
    }

    /// Long sequences, one after the other and side by side, and copies of them, in random ubatches.
    #[test]
    fn a_window_never_needs_more_pages_than_are_counted() {
        let (n_slots, n_blocks, max_rows, per_slot) = (4, 200, 128, 50);
        let room = StateRoom { kv_type: KvType::F32, n_slots, n_blocks, max_rows, windows: true };
        for width in [1, 60, 64, 65, 200] {
            let mut sequences = Sequences::new(n_slots as usize, n_blocks, Prefixes::Whole, false);
            let device = Device::cpu(select(Some("reference")).unwrap(), 1, None).unwrap();
            let window = Some(Window::Sliding(width));
            let mut kv = KvCache::new(&device, LAYOUT, false, &room, window).unwrap();
            let mut state = u64::from(width);
            let mut below = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % n
            };
            for _ in 0..400 {
                let (mut ops, mut parts, mut left) = (Vec::new(), Vec::new(), max_rows as usize);
                for slot in (0..n_slots).map(SlotId) {
                    let have = sequences.get(slot).map(|sequence| sequence.len);
                    if have.is_some_and(|len| len > 3000) {
                        ops.push(SeqOp::Close { slot });
                    }
                    if have.is_none_or(|len| len > 3000) {
                        let blocks = (slot.0 * per_slot..(slot.0 + 1) * per_slot).map(PageId);
                        let (blocks, request) = (blocks.collect(), "r".into());
                        ops.push(SeqOp::Open { slot, blocks, sampler: None, request });
                    }
                    let pos = have.filter(|&len| len <= 3000).unwrap_or(0);
                    let n = ([1, 1, 40, 128][below(4) as usize]).min(left);
                    left -= n;
                    if n > 0 && below(3) > 0 {
                        let tokens = vec![0; n];
                        parts.push(SeqPart {
                            slot,
                            pos,
                            tokens,
                            want: Want::Nothing,
                            mu: None,
                            ahead: None,
                        });
                    }
                }
                let applied = sequences.apply(&UBatch { id: 0, ops, parts }).unwrap();
                let n_rows = applied.parts.last().map_or(0, |part| part.rows.end);
                let rows = Rows::new(vec![0.0; n_rows * 16], 16);
                if n_rows > 0 {
                    let rows = KvRows { k: &rows, v: Some(&rows), index: None };
                    let (device, sequences) = (&device, &sequences);
                    let parts = &applied.parts[..];
                    kv.append(UbatchRows { device, parts, sequences }, &rows);
                }
            }
            let touched = kv.places.as_ref().unwrap().n_touched();
            assert!(touched <= kv.n_pages, "{touched} of {} pages, window {width}", kv.n_pages);
            assert!(kv.n_pages < n_blocks / 2, "{} pages", kv.n_pages);
            assert_eq!(kv.nbytes(), kv.n_pages as usize * LAYOUT.page_bytes());
        }
    }

    /// A sequence that runs ahead by less than a page, and is taken back now and then: page borders lie everywhere in that.
    #[test]
    fn whoever_is_taken_back_finds_the_pages_that_its_next_row_sees() {
        let (n_blocks, max_rows) = (40, 64);
        let room =
            StateRoom { kv_type: KvType::F32, n_slots: 2, n_blocks, max_rows, windows: true };
        let slot = SlotId(0);
        for width in [1, 63, 64, 65, 200] {
            // It is taken back by length alone, as pages are.
            let mut sequences = Sequences::new(2, n_blocks, Prefixes::All, false);
            let device = Device::cpu(select(Some("reference")).unwrap(), 1, None).unwrap();
            let window = Window::Sliding(width);
            let mut kv = KvCache::new(&device, LAYOUT, false, &room, Some(window)).unwrap();
            let blocks = (0..n_blocks).map(PageId).collect();
            let open = SeqOp::Open { slot, blocks, sampler: None, request: "r".into() };
            let (mut ops, mut pos, mut sure, mut state) = (vec![open], 0, 0, width);
            while pos < 2_000 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let random = state >> 16;
                let n_rows = 1 + random % 5;
                // What is sure follows now and then, and must where it would be left behind too far.
                if random.is_multiple_of(7) || pos + n_rows - sure >= KV_PAGE as u32 {
                    sure = pos;
                }
                if random.is_multiple_of(3) && pos > sure {
                    pos = sure + random % (pos - sure);
                    ops.push(SeqOp::Truncate { slot, len: pos, planes: None });
                    let pages = visible(window, pos, pos);
                    let places = kv.places.as_ref().unwrap();
                    let has = |page: usize| places.get(PageId(page as u32)).is_some();
                    assert!(pages.clone().all(has), "{width}: {pages:?} at {pos}, {sure} sure");
                }
                let ahead = Some(Ahead { sure, known: 0, planes: None, drafts: 0 });
                let (tokens, want) = (vec![0; n_rows as usize], Want::Nothing);
                let parts = vec![SeqPart { slot, pos, tokens, want, mu: None, ahead }];
                let ub = UBatch { id: 0, ops: std::mem::take(&mut ops), parts };
                let applied = sequences.apply(&ub).unwrap();
                let rows = Rows::new(vec![0.0; n_rows as usize * 16], 16);
                let rows = KvRows { k: &rows, v: Some(&rows), index: None };
                let (device, sequences) = (&device, &sequences);
                let parts = &applied.parts[..];
                kv.append(UbatchRows { device, parts, sequences }, &rows);
                pos += n_rows;
            }
            let touched = kv.places.as_ref().unwrap().n_touched();
            assert!(touched <= kv.n_pages, "{touched} of {} pages, window {width}", kv.n_pages);
        }
    }
}
