//! Copies that are read part by part, since all of a sequence's state may be more than there is memory for.

use std::collections::VecDeque;

use brigade_engine::batch::TokenMark;
use brigade_proto::failure::{Failure, FailureKind};
use bytes::Bytes;

use super::piece::Piece;
use super::store::{Head, Item, Pieces, What};

/// The state of some layers at a position, wherever it is.
pub trait Source: Send {
    /// The sequence and the layers.
    fn head(&self) -> &Head;

    /// Length of the sequence at the position, and the mark of its tokens up to there.
    fn position(&self) -> (u32, TokenMark);

    /// The next items, with `max_bytes` at most as far as they are not one page or one rest, which have `most` at most; none:
    /// all have come. Pages of a block come in order. Blocks.
    ///
    /// # Errors
    /// Something is missing or damaged, or cannot be read. NoMemory for a page or a rest of more than `most` bytes, unread.
    fn next(&mut self, max_bytes: u64, most: u64) -> Result<Vec<(Item, Bytes)>, Failure>;
}

/// Checks that there is memory for a page or a rest of so many bytes.
///
/// # Errors
/// NoMemory.
pub fn check_room(nbytes: u64, most: u64) -> Result<(), Failure> {
    if nbytes <= most {
        return Ok(());
    }
    let why = format!(
        "a page or a state of {nbytes} bytes has no room beside the stage: there is memory for {most}; give the worker \
         more, or fewer layers, or serve fewer or shorter sequences"
    );
    Err(Failure::refusal(FailureKind::NoMemory, why))
}

/// Pieces of a copy that are still to come.
pub struct PieceSource {
    head: Head,
    position: (u32, TokenMark),
    items: VecDeque<(Item, Piece)>,
}

impl From<Pieces> for PieceSource {
    fn from(pieces: Pieces) -> Self {
        let Pieces { head, len, mark, blocks } = pieces;
        let mut items = VecDeque::new();
        for of in blocks {
            let item = |what| Item { layer: of.layer, block: of.block, paged: of.paged, what };
            let mut first = 0;
            for (n, piece) in of.pages {
                items.push_back((item(What::Pages { first, n }), piece));
                first += n;
            }
            items.extend(of.rest.map(|rest| (item(What::Rest { len }), rest)));
        }
        items.retain(|(_, piece)| !piece.is_empty());
        Self { head, position: (len, mark), items }
    }
}

impl Source for PieceSource {
    fn head(&self) -> &Head {
        &self.head
    }

    fn position(&self) -> (u32, TokenMark) {
        self.position
    }

    fn next(&mut self, max_bytes: u64, most: u64) -> Result<Vec<(Item, Bytes)>, Failure> {
        let (mut part, mut nbytes) = (Vec::new(), 0);
        while let Some((item, piece)) = self.items.pop_front() {
            let left = max_bytes.saturating_sub(nbytes);
            if piece.len() > left && !part.is_empty() {
                self.items.push_front((item, piece));
                break;
            }
            let (now, later) = split(item, piece, left);
            later.into_iter().for_each(|later| self.items.push_front(later));
            let (item, piece) = now;
            check_room(piece.len(), most)?;
            nbytes += piece.len();
            let bytes = piece.read().map_err(|error| {
                let why = format!("a copy cannot be read: {error}");
                Failure::refusal(FailureKind::Io, why)
            })?;
            part.push((item, bytes));
        }
        Ok(part)
    }
}

/// As many pages of a run as have `max_bytes`, but at least one, and those behind them.
fn split(item: Item, piece: Piece, max_bytes: u64) -> ((Item, Piece), Option<(Item, Piece)>) {
    let What::Pages { first, n } = item.what else { return ((item, piece), None) };
    let page = (piece.len() / u64::from(n.max(1))).max(1);
    let fits = u32::try_from(max_bytes / page).unwrap_or(u32::MAX).max(1);
    if fits >= n {
        return ((item, piece), None);
    }
    let of = |first, n| Item { what: What::Pages { first, n }, ..item };
    let at = u64::from(fits) * page;
    let later = piece.part(at, piece.len() - at);
    ((of(first, fits), piece.part(0, at)), Some((of(first + fits, n - fits), later)))
}

#[cfg(test)]
mod tests {
    use brigade_engine::batch::CopyName;

    use super::super::store::BlockPieces;
    use super::*;

    /// Two layers: one with runs of 3 and 2 pages of 10 bytes and a rest of 4, one with a rest of 25.
    fn pieces() -> Pieces {
        let memory = |bytes: Vec<u8>| Piece::Memory(bytes.into());
        let run = |n: u8, first: u8| (u32::from(n), memory((first..first + 10 * n).collect()));
        let paged = |pages, rest| BlockPieces { layer: 4, block: 1, paged: true, pages, rest };
        let rest = Some(memory(vec![8; 25]));
        Pieces {
            head: Head {
                name: CopyName([1; 16]),
                kind: [2; 32],
                layers: 4..6,
                prints: vec![blake3::hash(b"4"), blake3::hash(b"5")],
            },
            len: 321,
            mark: TokenMark([3; 16]),
            blocks: vec![
                paged(vec![run(3, 0), run(2, 30)], Some(memory(vec![7; 4]))),
                BlockPieces { layer: 5, block: 0, paged: false, pages: vec![], rest },
            ],
        }
    }

    #[test]
    fn parts_have_all_bytes_in_order_and_are_no_larger_than_asked() {
        for max in [1, 10, 15, 20, 24, 30, 54, 79, 1000] {
            let mut source = PieceSource::from(pieces());
            let (mut pages, mut rests, mut next) = (Vec::new(), Vec::new(), 0);
            loop {
                let part = source.next(max, max.max(25)).unwrap();
                let nbytes: usize = part.iter().map(|(_, bytes)| bytes.len()).sum();
                let is_one =
                    part.len() == 1 && (nbytes == 10 || part[0].0.layer == 5 || nbytes == 4);
                assert!(nbytes as u64 <= max || is_one, "{nbytes} bytes of {max}");
                if part.is_empty() {
                    break;
                }
                for (item, bytes) in part {
                    match item.what {
                        What::Pages { first, n } => {
                            assert_eq!((first, bytes.len()), (next, 10 * n as usize));
                            next += n;
                            pages.extend_from_slice(&bytes);
                        }
                        What::Rest { len } => rests.push((item.layer, len, bytes.len())),
                    }
                }
            }
            assert_eq!(pages, (0..50).collect::<Vec<u8>>(), "{max} bytes at once");
            assert_eq!(rests, [(4, 321, 4), (5, 321, 25)], "{max} bytes at once");
        }
    }

    #[test]
    fn what_there_is_no_memory_for_is_not_read() {
        let (path, offset, len) = (std::path::Path::new("nowhere").into(), 0, 100);
        let rest = Some(Piece::File { path, offset, len });
        let block = BlockPieces { layer: 4, block: 0, paged: false, pages: vec![], rest };
        let mut source = PieceSource::from(Pieces { blocks: vec![block], ..pieces() });
        let refused = source.next(10, 99).unwrap_err();
        assert_eq!(refused.kind(), FailureKind::NoMemory);
        assert!(refused.reason.contains("give the worker more"), "{}", refused.reason);
    }
}
