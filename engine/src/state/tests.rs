//! Every kind of state, copied piece by piece and put back elsewhere, is what it was.

use super::*;
use crate::batch::{PageId, SlotId};
use crate::device::Device;
use crate::kernels::{EntryLayout, KV_PAGE, KvLayout, KvType, ValuePlace, Window, select};
use crate::spec::StateRoom;

const ROOM: StateRoom =
    StateRoom { kv_type: KvType::F32, n_slots: 2, n_blocks: 8, max_rows: 64, windows: true };

const LAYOUT: KvLayout = KvLayout {
    n_kv_head: 1,
    head_dim_k: 16,
    head_dim_v: 16,
    values: ValuePlace::Apart,
    index_dim: 0,
    ty: KvType::F32,
};

const ENTRIES: EntryLayout = EntryLayout { every: 4, width: 20, index_dim: 12, ty: KvType::F32 };

/// A name, and an empty state.
type Kind = (&'static str, fn(&Device) -> BlockState);

fn device() -> Device {
    Device::cpu(select(Some("reference")).unwrap(), 1, None).unwrap()
}

fn kv(device: &Device, window: Option<Window>) -> BlockState {
    BlockState::Kv(KvCache::new(device, LAYOUT, false, &ROOM, window).unwrap())
}

const KINDS: [Kind; 4] = [
    ("all pages", |device| kv(device, None)),
    ("a window", |device| kv(device, Some(Window::Sliding(100)))),
    ("entries", |device| BlockState::Entries(EntryPages::new(device, ENTRIES, &ROOM).unwrap())),
    ("slots", |device| BlockState::Slots(SlotStates::new(device, 2, 6, 10, false).unwrap())),
];

fn sequence(len: u32, blocks: [u32; 4]) -> Sequence {
    let blocks = blocks.map(PageId).into();
    let plane = SlotId(0);
    Sequence { len, sure: len, plane, blocks, sampler: None, adapters: [].into() }
}

/// A state of which a sequence of `len` positions is not zero, in pages that are not in order, with its bytes.
fn filled(kind: Kind, device: &Device, len: u32) -> (BlockState, Sequence, Vec<u8>) {
    let (mut state, sequence) = (kind.1(device), sequence(len, [5, 2, 7, 0]));
    let values = (0..state.n_bytes_of(&sequence) / size_of::<f32>()).map(|i| 1.0 + i as f32);
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    state.write(SlotId(0), &sequence, &bytes);
    let bytes = state.read(&sequence).unwrap();
    (state, sequence, bytes)
}

#[test]
fn what_is_copied_and_put_back_elsewhere_is_what_it_was() {
    let device = device();
    for kind in KINDS {
        for len in [1, 63, 64, 100, 128, 192, 200] {
            let (state, from, want) = filled(kind, &device, len);
            let (name, full) = (kind.0, len / KV_PAGE as u32);
            // In two runs, as one checkpoint after the other takes them.
            let room = CopyRoom::fresh(1 << 20);
            let pages = [(0, full / 2), (full / 2, full - full / 2)];
            let pages = pages.map(|(first, n)| state.copy_pages(&from, first, n, room));
            let rest = state.copy_rest(&from, len, room);
            assert_eq!(rest.len(), state.rest_bytes(len), "{name}, {len} positions");
            let mut other = kind.1(&device);
            let to = Sequence { plane: SlotId(1), ..sequence(len, [1, 6, 3, 4]) };
            let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
            let cut = BlockSource::Bytes { pages: pages.clone(), rest: &rest[rest.len().min(1)..] };
            assert_eq!(other.fits(&cut, len), rest.is_empty(), "{name}, {len} positions, cut off");
            let source = BlockSource::Bytes { pages, rest: &rest };
            assert!(other.fits(&source, len), "{name}, {len} positions");
            other.put_back(SlotId(1), &to, &source, len);
            let found = other.read(&to).unwrap();
            assert!(found == want, "{name}: {len} positions have other bytes");
        }
    }
}

/// Writes a part, and says whether all is written then.
fn written(
    state: &mut BlockState,
    to: &Sequence,
    part: &BlockPart<'_>,
    before: Written,
) -> (Written, bool) {
    assert!(state.fits_part(part, to.len));
    let now = state.put_part(SlotId(1), to, part, to.len);
    let written = Written { pages: now.pages, rest: before.rest.max(now.rest) };
    (written, state.fits(&BlockSource::Written(written), to.len))
}

#[test]
fn what_is_put_back_in_parts_is_whole_with_the_last_one() {
    let device = device();
    for kind in KINDS {
        for len in [1, 63, 64, 100, 128, 192, 200] {
            let (state, from, want) = filled(kind, &device, len);
            let (room, full) = (CopyRoom::fresh(1 << 20), len / KV_PAGE as u32);
            let pages = state.copy_pages(&from, 0, full, room);
            let rest = state.copy_rest(&from, len, room);
            let mut other = kind.1(&device);
            let to = Sequence { plane: SlotId(1), ..sequence(len, [1, 6, 3, 4]) };
            let (mut come, mut whole) = (Written::default(), false);
            for page in pages.chunks_exact(state.page_bytes().max(1)) {
                assert!(!whole, "{}: whole at {len} with a page to come", kind.0);
                let part = BlockPart { first_page: come.pages, pages: vec![page], rest: &[] };
                (come, whole) = written(&mut other, &to, &part, come);
            }
            if !rest.is_empty() {
                assert!(!whole, "{}: whole at {len} without its rest", kind.0);
                let cut = BlockPart { rest: &rest[1..], ..BlockPart::default() };
                assert_eq!(other.fits_part(&cut, len), rest.len() == 1, "{}", kind.0);
                let part = BlockPart { first_page: come.pages, pages: vec![], rest: &rest };
                (come, whole) = written(&mut other, &to, &part, come);
            }
            assert!(whole, "{}: {come:?} of {len} positions", kind.0);
            assert!(other.read(&to).unwrap() == want, "{}: {len} positions, other bytes", kind.0);
            let behind = BlockPart { first_page: full, pages: vec![&pages], rest: &[] };
            assert!(pages.is_empty() || !other.fits_part(&behind, len), "{}: one more", kind.0);
        }
    }
}

#[test]
fn pages_that_stay_are_copied_once_and_what_a_window_sees_each_time() {
    let device = device();
    let bytes = |kind: Kind, len| {
        let (state, ..) = filled(kind, &device, len);
        (state.page_bytes(), state.rest_bytes(len))
    };
    let page = LAYOUT.page_bytes();
    let [all, window, entries, slots] = KINDS;
    assert_eq!([bytes(all, 128), bytes(all, 130)], [(page, 0), (page, page)]);
    // A row at 200 sees positions from 101 on: three pages of them.
    assert_eq!([bytes(window, 64), bytes(window, 200)], [(0, page), (0, 3 * page)]);
    let entry = ENTRIES.page_bytes();
    assert_eq!([bytes(entries, 128), bytes(entries, 130)], [(entry, 0), (entry, entry)]);
    assert_eq!(bytes(slots, 130), (0, 16 * size_of::<f32>()));
}

#[test]
#[should_panic(expected = "a page that a row sees has a place")]
fn a_state_that_is_cleared_keeps_no_page_in_its_place() {
    let device = device();
    let (mut state, sequence, _) = filled(KINDS[1], &device, 100);
    state.clear();
    state.read(&sequence);
}
