//! What makes entries of positions, and where there is an index also its keys; and what chooses among them.

use super::compressor::{Compressor, Inputs, Recent, completed};
use super::linear::{Linear, Projection};
use super::{BlockCx, Buffer};
use super::{project, rotate_last};
use crate::arch::{CompressedSpec, EntriesSpec, EntryIndexSpec};
use crate::error::ModelError;
use crate::kernels::{ActRows, EntryIndex, IndexedRow, NewEntries, RopeTable};
use crate::state::EntryPages;
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

/// What rows give for entries, in borrowed buffers.
pub(super) struct MakerRows {
    inputs: Inputs,
    index: Option<IndexRows>,
}

/// What an index makes of rows.
struct IndexRows {
    /// `[n, n_head * head_dim]` of the index.
    query: Buffer,
    /// `[n, n_head]` of the index.
    weights: Buffer,
    inputs: Inputs,
}

impl EntryMaker {
    /// Loads `<stem>.attn_compressor`; with an index `indexer.attn_q_b`, `indexer.proj` and `indexer_compressor`. What a
    /// sequence remembers for it begins at `start`.
    pub(super) fn load(
        (block, spec): (&CompressedSpec, EntriesSpec),
        stem: &str,
        (n_embd, start): (usize, usize),
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let of = |width| (spec, width, block.eps);
        let name = format!("{stem}.attn_compressor");
        let keys = Compressor::load(of(block.head_dim), &name, (n_embd, start), loader)?;
        let index = match spec.index {
            Some(index) => {
                let name = |part: &str| format!("{stem}.indexer.{part}.weight");
                let wide = index.n_head * index.head_dim;
                let stem = format!("{stem}.indexer_compressor");
                let at = (n_embd, keys.end());
                Some(Index {
                    query: Linear::matrix(loader, &name("attn_q_b"), wide, block.q_rank)?,
                    weights: Linear::matrix(loader, &name("proj"), index.n_head, n_embd)?,
                    keys: Compressor::load(of(index.head_dim), &stem, at, loader)?,
                    spec: index,
                })
            }
            None => None,
        };
        Ok(Self { spec, n_rot: block.n_rot, keys, index })
    }

    /// Room for `n` rows.
    pub(super) fn take(&self, cx: &mut BlockCx<'_>, n: usize) -> MakerRows {
        let index = self.index.as_ref().map(|index| IndexRows {
            query: Buffer::default(),
            weights: cx.scratch.take(n * index.spec.n_head),
            inputs: index.keys.take(cx, n),
        });
        MakerRows { inputs: self.keys.take(cx, n), index }
    }

    /// The projections of a block's input `x`.
    pub(super) fn jobs<'a>(
        &'a self,
        x: &'a ActRows<'a>,
        rows: &'a mut MakerRows,
    ) -> Vec<Projection<'a>> {
        let mut jobs = Vec::from(self.keys.jobs(x, &mut rows.inputs));
        if let (Some(index), Some(IndexRows { weights, inputs, .. })) =
            (&self.index, &mut rows.index)
        {
            jobs.push(index.weights.job(x, weights));
            jobs.extend(index.keys.jobs(x, inputs));
        }
        jobs
    }

    /// Makes the index's queries of the block's narrow ones, and finishes the projected rows; `table` rotates them.
    pub(super) fn finish(
        &self,
        cx: &mut BlockCx<'_>,
        narrow: &[f32],
        table: Option<&RopeTable>,
        rows: &mut MakerRows,
    ) {
        self.keys.finish(cx, &mut rows.inputs);
        let (Some(index), Some(of_index)) = (&self.index, &mut rows.index) else { return };
        index.keys.finish(cx, &mut of_index.inputs);
        let EntryIndexSpec { n_head, head_dim, .. } = index.spec;
        cx.compute.scale(&mut of_index.weights, 1.0 / ((n_head * head_dim) as f32).sqrt());
        of_index.query = project(cx, &index.query, narrow);
        if let Some(table) = table {
            rotate_last(cx, &mut of_index.query, [head_dim, self.n_rot], table);
        }
    }

    /// Makes the entries that the rows complete, and writes them to their pages. `rope` rotates each by the first of its
    /// positions.
    pub(super) fn complete(
        &self,
        cx: &mut BlockCx<'_>,
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
        let mut keys = self.keys.compress(cx, &rows.inputs, recent);
        let mut of_index = match (&self.index, &rows.index) {
            (Some(index), Some(rows)) => index.keys.compress(cx, &rows.inputs, recent),
            _ => cx.scratch.take(0),
        };
        let (width, index_dim) = (pages.layout().width, pages.layout().index_dim);
        if let Some(rope) = rope {
            let table = rope.at(cx.compute, &positions);
            rotate_last(cx, &mut keys, [width, self.n_rot], &table);
            if index_dim > 0 {
                rotate_last(cx, &mut of_index, [index_dim, self.n_rot], &table);
            }
        }
        let mut at = 0;
        for part in cx.parts {
            let entries = completed(part, every);
            let made = at..at + entries.len();
            at = made.end;
            let Some(sequence) = cx.sequences.get(part.slot) else { continue };
            let new = NewEntries {
                blocks: &sequence.blocks,
                first: entries.start,
                keys: &keys[made.start * width..made.end * width],
                index: &of_index[made.start * index_dim..made.end * index_dim],
            };
            pages.write(cx.compute, &new);
        }
    }

    /// Remembers what entries of later rows are made of.
    pub(super) fn remember(&self, cx: &BlockCx<'_>, rows: &MakerRows, recent: &mut Recent<'_>) {
        self.keys.remember(cx, &rows.inputs, recent);
        if let (Some(index), Some(rows)) = (&self.index, &rows.index) {
            index.keys.remember(cx, &rows.inputs, recent);
        }
    }

    /// The entries of the rows that see more than they attend to, each with its row; none without an index.
    pub(super) fn choose(
        &self,
        cx: &BlockCx<'_>,
        pages: &EntryPages,
        rows: &MakerRows,
    ) -> Vec<(usize, Vec<u32>)> {
        let (Some(index), Some(rows)) = (&self.index, &rows.index) else { return Vec::new() };
        let EntryIndexSpec { n_head, per_row, .. } = index.spec;
        let mut far = Vec::new();
        for part in cx.parts {
            let Some(sequence) = cx.sequences.get(part.slot) else { continue };
            for (i, row) in part.rows.clone().enumerate() {
                let n_seen = pages.layout().n_entries(part.pos as usize + i + 1);
                if n_seen > per_row {
                    far.push(IndexedRow { row, blocks: &sequence.blocks, n_seen });
                }
            }
        }
        let (layout, pool) = (pages.layout(), pages.pool());
        let index = EntryIndex { layout, pool, rows: &far, n_head, per_row };
        let chosen = cx.compute.choose_entries(&index, &rows.query, &rows.weights);
        far.iter().map(|far| far.row).zip(chosen).collect()
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        let of_index =
            |index: &Index| index.query.nbytes() + index.weights.nbytes() + index.keys.nbytes();
        self.keys.nbytes() + self.index.as_ref().map_or(0, of_index)
    }
}
