//! A line that ends while a state comes in parts leaves nothing of it behind.

use std::time::Duration;

use brigade_engine::batch::Boundary;
use bytes::Bytes;

use super::*;
use crate::backend::{FindPart, FindSource, Finished, KeptWeights, StageOutput, StageShape};

const SLOT: u32 = 1;
const NAME: CopyName = CopyName([5; 16]);
const LEN: u32 = KV_PAGE as u32 + 1;

/// A stage of one layer, which takes all parts.
#[derive(Default)]
struct Stage {
    whole: bool,
}

impl StageRunner for Stage {
    fn shape(&self) -> StageShape {
        StageShape { output_exact: true, input_width: None, output_width: None, n_vocab: 1 }
    }

    fn may_begin(&self, _: &UBatch) -> bool {
        true
    }

    fn begin(&mut self, _: &UBatch, _: Option<Boundary>) -> Result<(), StageError> {
        Ok(())
    }

    fn is_done_within(&mut self, _: Duration) -> bool {
        true
    }

    fn finish(&mut self) -> Result<Finished, StageError> {
        Ok(Finished::without_drafts(StageOutput::Rows(Vec::new())))
    }

    fn snapshot(&self, _: u32) -> Result<Vec<u8>, SnapshotError> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: u32, _: &[u8]) -> Result<(), SnapshotError> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), StageError> {
        Ok(())
    }

    fn into_kept(self: Box<Self>) -> KeptWeights {
        KeptWeights::default()
    }

    fn places(&self, slot: u32) -> Option<(Vec<PageId>, u32)> {
        (slot == SLOT).then(|| (vec![PageId(3), PageId(4)], LEN))
    }

    fn put_part(
        &mut self,
        _: u32,
        _: u32,
        part: FindPart<'_, '_>,
    ) -> Result<Vec<(u32, u32, Written)>, SnapshotError> {
        let part = part(&(0, blake3::hash(b"0")), 0).expect("the layer's part");
        let pages = part.first_page + part.pages.len() as u32;
        Ok(vec![(0, 0, Written { pages, rest: part.rest.len() })])
    }

    fn put_back(
        &mut self,
        _: u32,
        _: u32,
        _: &[u32],
        source: FindSource<'_, '_>,
    ) -> Result<(), SnapshotError> {
        let source = source(&(0, blake3::hash(b"0")), 0);
        let whole = Written { pages: 1, rest: 2 };
        self.whole = matches!(source, Some(BlockSource::Written(written)) if written == whole);
        let missing = || SnapshotError::Foreign("a part is missing".into());
        self.whole.then_some(()).ok_or_else(missing)
    }
}

fn facts() -> CopyFacts {
    let prints = vec![blake3::hash(b"0")];
    CopyFacts { kind: "k".into(), layers: 0..1, prints, has_slots: false }
}

/// A taker on a line with checkpoints, on which the sequence is open and named.
fn taker(stage: &Stage) -> Taker {
    let mut taker = Taker::new(Some(facts()));
    let (own, buffers) = (Arc::default(), Arc::default());
    let (outbox, _) = Outbox::new(own, buffers, Arc::default());
    let parting = Arc::default();
    taker.begin(LaneCopies { outbox: Some(outbox), parting, wire_type: 0 });
    let ops = vec![SeqOp::Name { slot: SlotId(SLOT), name: Some(NAME) }];
    taker.after(stage, &UBatch { ops, ..UBatch::default() });
    taker
}

fn part(taker: &Taker, item: What, nbytes: usize) -> PutPart {
    let is_first = matches!(item, What::Pages { .. });
    let kind = taker.lane.as_ref().expect("a lane").kind(&facts());
    let head = Head { name: NAME, kind, layers: 0..1, prints: facts().prints };
    let mut gathered = Gathered::default();
    let item = Item { layer: 0, block: 0, paged: true, what: item };
    gathered.push(&head, item, Bytes::from(vec![1; nbytes]));
    let grant = Arc::new(());
    PutPart { slot: SLOT, name: Some(NAME), len: LEN, is_first, gathered, grant }
}

fn put_back() -> PutBack {
    PutBack {
        slot: SLOT,
        name: Some(NAME),
        len: LEN,
        tokens: Vec::new(),
        kept_len: 0,
        has_parts: true,
    }
}

#[test]
fn of_a_state_that_came_in_part_nothing_is_left_for_the_next_line() {
    for (is_whole, tries) in [(false, false), (false, true), (true, true)] {
        let mut stage = Stage::default();
        let mut taker = taker(&stage);
        // Of a line before it there are as many positions.
        taker.held.insert(NAME, Held { blocks: vec![PageId(3), PageId(4)], len: LEN });
        let page = part(&taker, What::Pages { first: 0, n: 1 }, 9);
        taker.put_part(&mut stage, &page).unwrap();
        if is_whole {
            let rest = part(&taker, What::Rest { len: LEN }, 2);
            taker.put_part(&mut stage, &rest).unwrap();
        }
        if tries {
            assert_eq!(taker.put_back(&mut stage, &put_back()).is_ok(), is_whole);
        }
        // Nothing of it is copied either.
        let mark = TokenMark([1; 16]);
        let (slot, plane) = (SlotId(SLOT), None);
        let ops = vec![SeqOp::Checkpoint { slot, len: LEN, mark, plane, parting: true }];
        taker.before(&stage, &UBatch { ops, ..UBatch::default() }).unwrap();
        assert_eq!(taker.named[&SLOT].parting.is_some(), is_whole);
        taker.reset(&stage, None);
        assert_eq!(taker.find(&[NAME]), [if is_whole { LEN } else { 0 }]);
    }
}

#[test]
fn parts_count_for_one_state_alone() {
    let mut stage = Stage::default();
    let mut taker = taker(&stage);
    let page = part(&taker, What::Pages { first: 0, n: 1 }, 9);
    let rest = part(&taker, What::Rest { len: LEN }, 2);
    taker.put_part(&mut stage, &rest).unwrap_err();
    taker.put_part(&mut stage, &page).unwrap();
    // Another attempt begins, with less of it.
    taker.put_part(&mut stage, &PutPart { is_first: true, ..rest }).unwrap();
    taker.put_back(&mut stage, &put_back()).unwrap_err();
    // The slot was closed.
    taker.put_part(&mut stage, &page).unwrap();
    let (slot, name) = (SlotId(SLOT), Some(NAME));
    let ops = vec![SeqOp::Close { slot }, SeqOp::Name { slot, name }];
    taker.after(&stage, &UBatch { ops, ..UBatch::default() });
    let rest = part(&taker, What::Rest { len: LEN }, 2);
    taker.put_part(&mut stage, &rest).unwrap_err();
    taker.put_back(&mut stage, &put_back()).unwrap_err();
    assert!(!stage.whole);
}
