//! Copies of a sequence's state as bytes, by layer and block.

use std::collections::HashMap;

use blake3::Hash;
use brigade_engine::state::LayerPrint;
use bytes::Bytes;

use super::piece::Piece;
use super::store::{BlockPieces, Head, Item, Pieces, What};
use crate::records::Kind;

/// One block's bytes, and the properties that they depend on.
#[derive(Debug, Default)]
struct Found {
    kind: Kind,
    /// A hash of all that the layer's bits depend on: weights, adapters, types.
    print: Option<Hash>,
    pages: Vec<Bytes>,
    rest: Bytes,
}

/// Copies of a sequence at one position, or a part of them.
#[derive(Debug, Default)]
pub struct Gathered {
    blocks: HashMap<(u32, u32), Found>,
    nbytes: u64,
}

/// Full pages in runs of several, and the rest of the state, which holds at exactly this position.
type BlockBytes<'a> = (Vec<&'a [u8]>, &'a [u8]);

impl Gathered {
    /// The pieces that are in memory.
    pub fn in_memory(pieces: &Pieces) -> Self {
        let mut gathered = Self::default();
        for BlockPieces { layer, block, paged, pages, rest } in &pieces.blocks {
            let mut push = |what, piece: &Piece| {
                let Piece::Memory(bytes) = piece else { return };
                let item = Item { layer: *layer, block: *block, paged: *paged, what };
                gathered.push(&pieces.head, item, bytes.clone());
            };
            let mut first = 0;
            for (n, piece) in pages {
                push(What::Pages { first, n: *n }, piece);
                first += n;
            }
            rest.iter().for_each(|rest| push(What::Rest { len: pieces.len }, rest));
        }
        gathered
    }

    /// Adds an item of the copies with this head. Pages of a block come in order.
    pub fn push(&mut self, head: &Head, item: Item, bytes: Bytes) {
        self.nbytes += bytes.len() as u64;
        let at = item.layer.checked_sub(head.layers.start);
        let print = at.and_then(|at| head.prints.get(at as usize)).copied();
        let found = self.blocks.entry((item.layer, item.block)).or_default();
        (found.kind, found.print) = (head.kind, print);
        match item.what {
            What::Pages { .. } => found.pages.push(bytes),
            What::Rest { .. } => found.rest = bytes,
        }
    }

    /// Bytes of all blocks.
    pub fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// The bytes of a block, if they are of these weights and this kind.
    pub fn find(&self, layer: &LayerPrint, block: u32, kind: Kind) -> Option<BlockBytes<'_>> {
        let (layer, print) = layer;
        let found = self.blocks.get(&(*layer, block))?;
        let same = found.kind == kind && found.print.as_ref() == Some(print);
        same.then(|| (found.pages.iter().map(|run| &run[..]).collect(), &found.rest[..]))
    }
}
