//! The maker of entries from positions, with the index that chooses among the entries where there is one.

use super::compressor::{Compressor, CompressorShape, Inputs, Recent, completed};
use crate::block::linear::Linear;
use crate::block::{BlockCx, rotate_last};
use crate::device::{Device, Lists, Rows};
use crate::kernels::{AttendPart, RopeTable};
use crate::ops::{ChooseEntries, ChosenEntries, NewEntries, n_far};
use crate::spec::{CompressedSpec, EntriesSpec, EntryIndexSpec, ModelError};
use crate::state::{EntryPages, PartRows};
use crate::weights::WeightLoader;

/// Weights of what makes a block's entries.
pub(super) struct EntryMaker {
    spec: EntriesSpec,
    /// Elements of a key that are rotated, the last ones.
    n_rot: usize,
    keys: Compressor,
    index: Option<Index>,
}

/// Weights of an index of entries.
struct Index {
    spec: EntryIndexSpec,
    /// `[n_head * head_dim, q_rank]`.
    query: Linear,
    /// `[n_head, n_embd]`.
    weights: Linear,
    keys: Compressor,
}

/// Inputs of entries, projected from rows.
pub(super) struct MakerRows {
    inputs: Inputs,
    index: Option<IndexRows>,
}

/// Queries and weights that the index makes of rows.
struct IndexRows {
    /// `[n, n_head * head_dim]` of the index.
    query: Rows,
    /// `[n, n_head]` of the index.
    weights: Rows,
    inputs: Inputs,
}

impl EntryMaker {
    /// Loads `<stem>.attn_compressor`; with an index `indexer.attn_q_b`, `indexer.proj` and `indexer_compressor`. The
    /// values that a sequence remembers for it begin at `start`.
    pub(super) fn load(
        block: &CompressedSpec,
        spec: EntriesSpec,
        stem: &str,
        n_embd: usize,
        start: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (width, eps) = (block.head_dim, block.eps);
        let shape = CompressorShape { spec, width, eps, n_embd, start };
        let keys = Compressor::load(&format!("{stem}.attn_compressor"), shape, loader)?;
        let index = match spec.index {
            Some(index) => {
                let name = |part: &str| format!("{stem}.indexer.{part}.weight");
                loader.check_index(index.n_head)?;
                let wide = index.n_head * index.head_dim;
                let stem = format!("{stem}.indexer_compressor");
                let shape = CompressorShape { width: index.head_dim, start: keys.end(), ..shape };
                Some(Index {
                    query: Linear::matrix(loader, &name("attn_q_b"), wide, block.q_rank)?,
                    weights: Linear::matrix(loader, &name("proj"), index.n_head, n_embd)?,
                    keys: Compressor::load(&stem, shape, loader)?,
                    spec: index,
                })
            }
            None => None,
        };
        Ok(Self { spec, n_rot: block.n_rot, keys, index })
    }

    /// The projections of a block's input: to values and gates of entries; with an index to its weights, and to values and
    /// gates of its keys.
    pub(super) fn of_input(&self) -> [Option<&Linear>; 5] {
        let [values, gates] = self.keys.of_input().map(Some);
        let index = self.index.as_ref();
        let [index_values, index_gates] =
            index.map_or([None; 2], |index| index.keys.of_input().map(Some));
        [values, gates, index.map(|index| &index.weights), index_values, index_gates]
    }

    /// Finishes the projected rows. The index makes its own queries of the block's narrow ones, which `table` rotates.
    pub(super) fn finish(
        &self,
        cx: &BlockCx<'_>,
        projected: [Option<Rows>; 5],
        narrow: &Rows,
        table: Option<&RopeTable>,
    ) -> MakerRows {
        let [values, gates, mut weights, index_values, index_gates] =
            projected.map(Option::unwrap_or_default);
        let inputs = self.keys.finish(cx, values, gates);
        let index = self.index.as_ref().map(|index| {
            let EntryIndexSpec { n_head, head_dim, .. } = index.spec;
            cx.device.scale(&mut weights, 1.0 / ((n_head * head_dim) as f32).sqrt());
            let mut query = index.query.forward(cx, narrow);
            if let Some(table) = table {
                rotate_last(cx.device, cx.scratch, &mut query, head_dim, self.n_rot, table);
            }
            let inputs = index.keys.finish(cx, index_values, index_gates);
            IndexRows { query, weights, inputs }
        });
        MakerRows { inputs, index }
    }

    /// Makes the entries that the rows complete, and writes them to their pages. `rope` rotates each by the first of its
    /// positions.
    pub(super) fn complete(
        &self,
        cx: &BlockCx<'_>,
        rows: &MakerRows,
        rope: Option<&RopeTable>,
        recent: &Recent<'_>,
        pages: &mut EntryPages,
    ) {
        let every = self.spec.every;
        let of_part =
            |part| completed(part, every).map(|entry| (entry * every) as u32).collect::<Vec<u32>>();
        let positions: Vec<u32> = cx.parts.iter().flat_map(of_part).collect();
        if positions.is_empty() {
            return;
        }
        let mut keys = self.keys.compress(cx.device, cx.scratch, cx.parts, &rows.inputs, recent);
        let mut of_index = match (&self.index, &rows.index) {
            (Some(index), Some(rows)) => {
                Some(index.keys.compress(cx.device, cx.scratch, cx.parts, &rows.inputs, recent))
            }
            _ => None,
        };
        let (width, index_dim) = (pages.layout().width, pages.layout().index_dim);
        if let Some(rope) = rope {
            let table = rope.at(cx.device.host(), &positions);
            rotate_last(cx.device, cx.scratch, &mut keys, width, self.n_rot, &table);
            if let Some(of_index) = &mut of_index {
                rotate_last(cx.device, cx.scratch, of_index, index_dim, self.n_rot, &table);
            }
        }
        let new = |part| {
            let entries = completed(part, every);
            let blocks = cx.sequences.get(part.slot).map_or(&[][..], |sequence| &sequence.blocks);
            NewEntries { pages: blocks, first: entries.start, n: entries.len() }
        };
        let new: Vec<NewEntries<'_>> = cx.parts.iter().map(new).collect();
        pages.write(cx.device, &new, &keys, of_index.as_ref());
    }

    /// Remembers what entries of later rows are made of.
    pub(super) fn remember(
        &self,
        device: &Device,
        parts: &[PartRows],
        rows: &MakerRows,
        recent: &mut Recent<'_>,
    ) {
        self.keys.remember(device, parts, &rows.inputs, recent);
        if let (Some(index), Some(rows)) = (&self.index, &rows.index) {
            index.keys.remember(device, parts, &rows.inputs, recent);
        }
    }

    /// The entries of rows that see more than an index lets them attend to. `None` without an index, and where there are no such
    /// rows. `parts` are the ubatch's.
    pub(super) fn choose(
        &self,
        device: &Device,
        pages: &EntryPages,
        rows: &MakerRows,
        parts: &[AttendPart<'_>],
    ) -> Option<ChosenEntries<Lists>> {
        let (index, rows) = (self.index.as_ref()?, rows.index.as_ref()?);
        let (layout, per_row) = (pages.layout(), index.spec.per_row);
        let n_far = Some(n_far(layout, parts, per_row)).filter(|n| *n > 0)?;
        let mut lists = device.lists(n_far * per_row);
        device.run(ChooseEntries {
            layout,
            pool: pages.pool().view(),
            parts,
            n_head: rows.weights.cols(),
            per_row,
            q: rows.query.view(),
            weights: rows.weights.view(),
            out: lists.view_mut(),
        });
        Some(ChosenEntries { per_row, lists })
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        let of_index =
            |index: &Index| index.query.nbytes() + index.weights.nbytes() + index.keys.nbytes();
        self.keys.nbytes() + self.index.as_ref().map_or(0, of_index)
    }
}
