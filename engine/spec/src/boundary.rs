//! The rows of a token that cross a cut. Its row of the residual stream always does. A model may keep further rows
//! beside it; those cross that a layer behind the cut reads.

use super::{Beside, BlockKind, BoundarySpec, ChosenBy, KvFrom, ModelSpec};
use brigade_shapes::PoolSizes;

impl ModelSpec {
    /// The rows that cross the cut before layer `cut` (`0 < cut < n_layer`): a token's row of the residual stream, then
    /// the rows beside it.
    pub fn boundary(&self, cut: usize) -> BoundarySpec {
        let streams = &self.skeleton.streams;
        let mut widths = self.widths_beside(cut);
        let of_streams = std::iter::repeat_n(self.n_embd, streams.n_beside(cut));
        widths.splice(streams.place()..streams.place(), of_streams);
        widths.insert(0, self.n_embd);
        let exact = self.chosen_before(cut).is_some() || self.skeleton.beside == Beside::Adapters;
        BoundarySpec { widths, exact }
    }

    /// Widths of what crosses the cut before layer `cut` besides streams.
    fn widths_beside(&self, cut: usize) -> Vec<usize> {
        let mut widths = match self.skeleton.beside {
            Beside::Nothing => Vec::new(),
            Beside::FirstValue | Beside::Embedding => vec![self.n_embd],
            Beside::Chosen => {
                self.chosen_before(cut).map(|sizes| sizes.per_row).into_iter().collect()
            }
            Beside::Adapters => vec![1],
            Beside::ForLayers { row, lent } => {
                let rows = (self.n_layer() - cut) * row;
                let of_pair = |pair| self.lent_across(cut, pair);
                std::iter::once(rows).chain((0..lent).flat_map(of_pair)).collect()
            }
        };
        if let Some(is_read) = self.skeleton.passes.beside(cut, self.n_layer()) {
            widths.push(if is_read { self.n_embd } else { 0 });
        }
        widths
    }

    /// The choice of positions that layers from `layer` on need from a layer before it. `None`: no such layer attends to
    /// chosen positions, or the first that does has an index of its own.
    pub fn chosen_before(&self, layer: usize) -> Option<PoolSizes> {
        let mut blocks = self.layers[layer..].iter().flat_map(|layer| &layer.blocks);
        let first = blocks.find_map(|block| match &block.kind {
            BlockKind::Mla(mla) => mla.chosen,
            _ => None,
        });
        first.filter(|chosen| chosen.by == ChosenBy::Before).map(|chosen| chosen.sizes)
    }

    /// Widths of the keys and the values of a pair that cross the cut before layer `cut`: none where they are made behind
    /// it, or where no layer behind it borrows them.
    fn lent_across(&self, cut: usize, pair: usize) -> [usize; 2] {
        let is_read = (cut..self.n_layer())
            .any(|layer| matches!(self.kv_of(layer), Some((KvFrom::Borrowed(p), _)) if p == pair));
        let lender = (0..cut).find_map(|layer| {
            self.kv_of(layer).filter(|(kv, _)| *kv == KvFrom::Lent(pair)).map(|(_, widths)| widths)
        });
        lender.filter(|_| is_read).unwrap_or_default()
    }

    /// Source of the keys and values of a layer's attention, and the widths of their rows.
    fn kv_of(&self, layer: usize) -> Option<(KvFrom, [usize; 2])> {
        self.layers[layer].blocks.iter().find_map(|block| match &block.kind {
            BlockKind::Attention(a) => {
                Some((a.kv.from, [a.n_kv_head * a.head_dim_k, a.n_kv_head * a.head_dim_v]))
            }
            _ => None,
        })
    }

    /// Values that a token carries from layer to layer, at most: those of the widest cut.
    pub fn widest_row(&self) -> usize {
        (1..self.n_layer()).map(|cut| self.boundary(cut).width()).max().unwrap_or(self.n_embd)
    }
}
