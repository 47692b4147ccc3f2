//! Attention to a window and to entries that stand for several positions each (DeepSeek-V4).
//!
//! A row attends to the last positions before it, its own included, and in the same softmax to entries: all that are complete,
//! or those of them that an index chose. A position has one key for all heads, which is its value too; so has an entry. Keys
//! are rotated, and so what a head gives is rotated back by its row's position.
//!
//! Entries lie in pages, rounded to the cache's type. A sequence remembers the keys of its last positions, and the
//! inputs of entries, in f32. An entry depends on its positions alone, so that no cut of a prompt changes a bit of it.

use super::compressor::{Recent, Ring};
use super::entry_maker::{EntryMaker, MakerRows};
use super::mla::per_head;
use crate::block::linear::Linear;
use crate::block::{Block, BlockCx, rotate_last};
use crate::device::{Device, Rows, Scratch};
use crate::kernels::{EntryLayout, HeadColumns, KV_PAGE, KvType, PackedMatrix, Vector};
use crate::ops::{AttendEntries, ChosenEntries, CopyParts};
use crate::spec::{CompressedSpec, ModelError};
use crate::state::{BlockState, EntryPages, PartRows, SlotStates, attend_parts};
use crate::weights::WeightLoader;

/// Weights of one such block.
pub struct Compressed {
    spec: CompressedSpec,
    /// `[q_rank, n_embd]`, normed before `q_b` `[n_head * head_dim, q_rank]`.
    q_a: Linear,
    q_norm: Vector,
    q_b: Linear,
    /// `[head_dim, n_embd]`.
    key: Linear,
    key_norm: Vector,
    /// Weights of a norm that weighs all alike, `[head_dim]`.
    ones: Vector,
    /// `[n_head]`.
    sinks: Vector,
    /// For each group of heads `[group_rank, heads of the group * head_dim]`.
    out_a: Vec<PackedMatrix>,
    /// `[n_embd, n_group * group_rank]`.
    out_b: Linear,
    maker: Option<EntryMaker>,
}

/// The projections of rows.
struct Projected {
    /// `[n, n_head * head_dim]`.
    q: Rows,
    /// `[n, head_dim]`.
    key: Rows,
    /// Inputs of entries, where the block makes some.
    entries: Option<MakerRows>,
}

impl Compressed {
    /// Loads `<stem>.attn_{q_a,q_a_norm,q_b,kv,kv_a_norm,sinks,output_a,output_b}`; with entries `attn_compressor`, and with
    /// an index `indexer.attn_q_b`, `indexer.proj` and `indexer_compressor`.
    pub fn load(
        spec: &CompressedSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.attn_{part}.weight");
        let CompressedSpec { n_head, head_dim, q_rank, n_group, group_rank, .. } = *spec;
        let group_width = n_head / n_group * head_dim;
        let maker = match spec.entries {
            Some(entries) => {
                let start = spec.n_remembered() * head_dim;
                Some(EntryMaker::load(spec, entries, stem, n_embd, start, loader)?)
            }
            None => None,
        };
        Ok(Self {
            q_a: Linear::matrix(loader, &name("q_a"), q_rank, n_embd)?,
            q_norm: loader.vector(&name("q_a_norm"), q_rank)?,
            q_b: Linear::matrix(loader, &name("q_b"), n_head * head_dim, q_rank)?,
            key: Linear::matrix(loader, &name("kv"), head_dim, n_embd)?,
            key_norm: loader.vector(&name("kv_a_norm"), head_dim)?,
            ones: vec![1.0; head_dim].into(),
            sinks: loader.vector(&name("sinks"), n_head)?,
            out_a: loader.stacked(&name("output_a"), n_group, group_rank, group_width)?,
            out_b: Linear::matrix(loader, &name("output_b"), n_embd, n_group * group_rank)?,
            maker,
            spec: spec.clone(),
        })
    }
}

impl Block for Compressed {
    fn nbytes(&self) -> usize {
        let own = [&self.q_a, &self.q_b, &self.key, &self.out_b].map(Linear::nbytes);
        let groups = self.out_a.iter().map(PackedMatrix::nbytes).sum::<usize>();
        let maker = self.maker.as_ref().map_or(0, EntryMaker::nbytes);
        own.iter().sum::<usize>() + groups + maker
    }

    /// Remembers the rows, and what entries they complete.
    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let (slots, mut pages) = split(state);
        let mut rows = self.project(cx, x);
        // Every value is read and written where it stays.
        let _ = slots.parts_in_place(cx.parts);
        let mut recent = Recent { values: slots.split().0, of_slot: self.spec.recent_len() };
        if let (Some(maker), Some(pages), Some(rows)) =
            (&self.maker, pages.as_deref_mut(), &mut rows.entries)
        {
            maker.complete(cx, rows, cx.rope_of(self.spec.rotation), &recent, pages);
            maker.remember(cx.device, cx.parts, rows, &mut recent);
        }
        let near = self.near_keys(cx.device, cx.scratch, cx.parts, &rows.key, &mut recent);
        let mut heads = self.attend(cx, pages.as_deref(), &rows, &near);
        if let Some(table) = cx.rope_of(self.spec.rotation) {
            rotate_last(
                cx.device,
                cx.scratch,
                &mut heads,
                self.spec.head_dim,
                self.spec.n_rot,
                table.backwards(),
            );
        }
        self.way_back(cx, &heads)
    }
}

impl Compressed {
    /// All projections of the rows, normed and rotated.
    fn project(&self, cx: &BlockCx<'_>, x: &Rows) -> Projected {
        let CompressedSpec { head_dim, n_rot, eps, rotation, .. } = self.spec;
        let maker = self.maker.as_ref();
        let [values, gates, index_weights, index_values, index_gates] =
            maker.map_or([None; 5], EntryMaker::of_input);
        let weights = [
            Some(&self.q_a),
            Some(&self.key),
            values,
            gates,
            index_weights,
            index_values,
            index_gates,
        ];
        let [narrow, key, of_maker @ ..] = cx.project_some(x, weights);
        let [mut narrow, mut key] = [narrow, key].map(Option::unwrap_or_default);
        cx.device.rms_norm_inplace(&mut narrow, &self.q_norm, eps);
        let mut q = self.q_b.forward(cx, &narrow);
        cx.device.rms_norm_inplace(&mut q, &self.ones, eps);
        cx.device.rms_norm_inplace(&mut key, &self.key_norm, eps);
        let table = cx.rope_of(rotation);
        if let Some(table) = table {
            rotate_last(cx.device, cx.scratch, &mut q, head_dim, n_rot, table);
            rotate_last(cx.device, cx.scratch, &mut key, head_dim, n_rot, table);
        }
        let entries = maker.map(|maker| maker.finish(cx, of_maker, &narrow, table));
        Projected { q, key, entries }
    }

    /// Place of a sequence's last keys in its slot.
    fn near_ring(&self) -> Ring {
        Ring { start: 0, n: self.spec.n_remembered(), width: self.spec.head_dim }
    }

    /// The keys that the rows see of their windows, part by part; those of the rows are remembered.
    fn near_keys(
        &self,
        device: &Device,
        scratch: &Scratch,
        parts: &[PartRows],
        key: &Rows,
        recent: &mut Recent<'_>,
    ) -> Rows {
        let (ring, width) = (self.near_ring(), self.spec.head_dim);
        let n_old: usize = parts.iter().map(|part| self.n_before(part)).sum();
        let mut near = scratch.take(n_old + key.n_rows(), width);
        let (mut old, mut new, mut at) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            let pos = part.pos as usize;
            for pos in pos - self.n_before(part)..pos {
                old.push([recent.first(&ring, part, pos), at]);
                at += width;
            }
            for row in part.rows.clone() {
                new.push([row * width, at]);
                at += width;
            }
        }
        for (from, places) in [(recent.values.view(), &old), (key.view(), &new)] {
            if !places.is_empty() {
                device.run(CopyParts { from, to: near.view_mut(), width, places });
            }
        }
        if ring.n > 0 {
            recent.keep(device, &ring, 0, parts, key);
        }
        near
    }

    /// Positions before a part that its first row sees of its window.
    fn n_before(&self, part: &PartRows) -> usize {
        self.spec.n_near().min(part.pos as usize)
    }

    /// Attention of the queries to what [`Self::near_keys`] gave and to entries; `[n, n_head * head_dim]`.
    fn attend(
        &self,
        cx: &BlockCx<'_>,
        pages: Option<&EntryPages>,
        rows: &Projected,
        near: &Rows,
    ) -> Rows {
        let width = self.spec.head_dim;
        let parts = &attend_parts(cx.parts, cx.sequences, None)[..];
        let chosen = match (&self.maker, pages, &rows.entries) {
            (Some(maker), Some(pages), Some(rows)) => maker.choose(cx.device, pages, rows, parts),
            _ => None,
        };
        // Without entries, keys are attended to as they are remembered.
        let none = EntryLayout { every: KV_PAGE, width, index_dim: 0, ty: KvType::F32 };
        let mut out = cx.scratch.take(rows.q.n_rows(), rows.q.cols());
        cx.device.run(AttendEntries {
            layout: pages.map_or(&none, EntryPages::layout),
            pool: pages.map(|pages| pages.pool().view()),
            parts,
            chosen: chosen.as_ref().map(|ChosenEntries { per_row, lists }| ChosenEntries {
                per_row: *per_row,
                lists: lists.view(),
            }),
            window: self.spec.window,
            near: near.view(),
            n_head: rows.q.cols() / width,
            scale: 1.0 / (width as f32).sqrt(),
            sinks: Some(&self.sinks),
            q: rows.q.view(),
            out: out.view_mut(),
        });
        out
    }

    /// From what the heads gave, `[n, n_head * head_dim]`, group by group and then together, to `[n, n_embd]`.
    fn way_back(&self, cx: &BlockCx<'_>, heads: &Rows) -> Rows {
        let CompressedSpec { n_group, group_rank, .. } = self.spec;
        let whole = |width| HeadColumns { stride: width, first: 0, width };
        let (n, of_group) = (heads.n_rows(), heads.cols() / n_group);
        let mut by_group = cx.scratch.take(n_group * n, of_group);
        cx.device.heads_apart(heads, n_group, whole(of_group), &mut by_group);
        let narrow = per_head(cx.device, cx.scratch, &self.out_a, &by_group);
        let mut together = cx.scratch.take(n, n_group * group_rank);
        cx.device.heads_together(&narrow, n_group, whole(group_rank), &mut together);
        self.out_b.forward(cx, &together)
    }
}

/// The block's state: last positions in slots, and pages where the block makes entries.
fn split(state: &mut BlockState) -> (&mut SlotStates, Option<&mut EntryPages>) {
    if let BlockState::Both(both) = state {
        return match &mut **both {
            [BlockState::Entries(pages), BlockState::Slots(slots)] => (slots, Some(pages)),
            _ => unreachable!("entries stand before slots"),
        };
    }
    match state {
        BlockState::Slots(slots) => (slots, None),
        _ => unreachable!("the stage gives every such block its slots"),
    }
}
