//! What crosses a cut: a token's row of the residual stream, and of what a model keeps beside it what somebody behind the
//! cut reads.

use super::{Beside, BlockKind, BoundarySpec, ChosenBy, KvFrom, ModelSpec};

impl ModelSpec {
    /// What crosses the cut before layer `cut` (`0 < cut < n_layer`): a token's row of the residual
    /// stream, then what goes along beside it.
    pub fn boundary(&self, cut: usize) -> BoundarySpec {
        let mut widths = vec![self.n_embd; 1 + self.skeleton.residual.n_beside(cut)];
        let chosen = self.chosen_before(cut);
        match self.skeleton.beside {
            Beside::Nothing => {}
            Beside::FirstValue | Beside::Embedding => widths.insert(1, self.n_embd),
            Beside::Chosen => widths.extend(chosen),
            Beside::Adapters => widths.push(1),
            Beside::ForLayers { row, lent, streams } => {
                widths.push((self.n_layer() - cut) * row);
                widths.extend((0..lent).flat_map(|pair| self.lent_across(cut, pair)));
                widths.extend(std::iter::repeat_n(self.n_embd, streams));
            }
        }
        if let Some(is_read) = self.skeleton.passes.beside(cut, self.n_layer()) {
            widths.push(if is_read { self.n_embd } else { 0 });
        }
        let exact = chosen.is_some() || self.skeleton.beside == Beside::Adapters;
        BoundarySpec { widths, exact }
    }

    /// How many positions of each row a layer is told that the index of a layer before it chose; `None`: it is told of
    /// none.
    pub fn chosen_before(&self, layer: usize) -> Option<usize> {
        self.layers[layer].blocks.iter().find_map(|block| match &block.kind {
            BlockKind::Mla(mla) => {
                mla.chosen.filter(|c| c.by == ChosenBy::Before).map(|c| c.per_row)
            }
            _ => None,
        })
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

    /// Where the attention of a layer has its keys and values from, and how wide their rows are.
    fn kv_of(&self, layer: usize) -> Option<(KvFrom, [usize; 2])> {
        self.layers[layer].blocks.iter().find_map(|block| match &block.kind {
            BlockKind::Attention(a) => {
                Some((a.kv, [a.n_kv_head * a.head_dim_k, a.n_kv_head * a.head_dim_v]))
            }
            _ => None,
        })
    }

    /// Values that a token carries from layer to layer, at most: those of the widest cut.
    pub fn widest_row(&self) -> usize {
        (1..self.n_layer()).map(|cut| self.boundary(cut).width()).max().unwrap_or(self.n_embd)
    }
}
