//! Products of rows with the experts that they were routed to: one run of a kernel for all experts of a tensor.

use std::sync::Arc;

use brigade_ops::ExpertRows;
use bytemuck::{Pod, Zeroable};

use super::expert_work::ExpertWork;
use super::kernel::{Factors, Kernel, Pieces};
use super::{LANES, Push, Shape, WeightType};
use crate::commands::Order;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::memory::span::{Span, SpanMut};
use crate::ops::rowwise::elementwise::count;
use crate::transfer::buffer::GpuBuffer;

/// Table of the packed weights of each expert of a tensor, for kernels. It keeps the weights where they are. It keeps
/// them where they are.
#[derive(Debug)]
pub struct ExpertTable {
    entries: GpuBuffer,
    shape: Shape,
    panels: Vec<Arc<GpuBuffer>>,
}

/// One product of several: `out[i, o] = Σ_k x[i, k] * w[o, k]` for each pair `i`, `x` being its row and `w` its expert.
#[derive(Debug)]
pub struct FormedExpertProduct<'a> {
    /// Weights of all experts, `[out features, cols]` each.
    pub w: &'a ExpertTable,
    /// Activations in the form of [`Gpu::expert_row_form`].
    pub x: ExpertRows<Span<'a>>,
    /// `[n_pairs, out features]`, f32.
    pub out: SpanMut<'a>,
}

/// Entry of an expert in the table, in the layout of the shaders.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Entry {
    panels: u64,
    scale: f32,
    pad: u32,
}

impl ExpertTable {
    /// The type of the weights.
    pub fn ty(&self) -> WeightType {
        self.shape.ty
    }

    /// Number of experts.
    pub fn n_expert(&self) -> usize {
        self.panels.len()
    }
}

impl Gpu {
    /// A table of experts of one type and shape, `[rows, cols]` each: their panels, as the engine packs them, and what
    /// products are multiplied with when they are complete.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where the device has no room for it.
    ///
    /// # Panics
    /// If the bytes of some panels are not those of that type and shape.
    pub fn expert_table(
        &self,
        ty: WeightType,
        rows: usize,
        cols: usize,
        experts: Vec<(Arc<GpuBuffer>, f32)>,
    ) -> Result<ExpertTable, GpuError> {
        let shape = Shape { ty, rows, cols };
        let entry = |(panels, scale): &(Arc<GpuBuffer>, f32)| {
            assert_eq!(panels.len(), shape.packed_bytes(), "expert_table: bytes of weights");
            Entry { panels: panels.span().address(), scale: *scale, pad: 0 }
        };
        let entries: Vec<Entry> = experts.iter().map(entry).collect();
        let entries = self.keep(bytemuck::cast_slice(&entries))?;
        let panels = experts.into_iter().map(|(panels, _)| panels).collect();
        Ok(ExpertTable { entries, shape, panels })
    }

    /// Several products of the rows of `work`, none of which reads what another writes: they run beside each other.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn expert_products<'a>(
        &self,
        work: &ExpertWork,
        jobs: impl IntoIterator<Item = FormedExpertProduct<'a>>,
    ) {
        let mut order = Order::After;
        for job in jobs {
            if self.one_expert_product(order, work, job) {
                order = Order::Beside;
            }
        }
    }

    /// Records a product, and says whether there was something to compute.
    fn one_expert_product(
        &self,
        order: Order,
        work: &ExpertWork,
        job: FormedExpertProduct<'_>,
    ) -> bool {
        let FormedExpertProduct { w, x, out } = job;
        let (x, n_rows, kind) = match x {
            ExpertRows::Routed(x) => (x, work.n_rows(), Kind::ListedRows),
            ExpertRows::OfPairs(x) => (x, work.n_pairs(), Kind::Pairs),
        };
        let Shape { ty, rows, .. } = w.shape;
        assert_eq!(work.n_expert(), w.n_expert(), "expert_products: experts");
        assert_eq!(out.values(), work.n_pairs() * rows, "expert_products: values of the output");
        let form = self.expert_row_form(ty, work);
        w.shape.check_rows(form, x, n_rows);
        if work.n_pairs() == 0 || rows == 0 {
            return false;
        }
        let push = Push {
            x: x.address(),
            y: out.address(),
            experts: w.entries.span().address(),
            pieces: work.pieces().address(),
            list: work.rows().address(),
            n: count(work.n_pieces()),
            ..w.shape.push(form)
        };
        let pieces = Pieces { rows: work.piece_rows(), n: work.n_pieces() };
        let (factors, panels) = (Factors { ty, form }, rows.div_ceil(LANES));
        let kernel = Kernel::of_experts(self.facts(), factors, pieces, panels, kind as u32);
        // SAFETY: the table has as many entries as there are experts (checked), and keeps their panels, which are as long as
        // type and shape say (`expert_table`). Pieces are of these experts, and have pairs below `n_pairs`, whose rows are below
        // `n_rows` (`ExpertWork`). So the kernel reads rows of `x`, and writes `rows` values to `out` for each pair.
        unsafe { self.dispatch(order, kernel.shader, &kernel.constants, &push, kernel.groups) };
        true
    }
}

/// Operands of workgroups, by the numbers in `product_work.glsl`.
#[derive(Clone, Copy)]
enum Kind {
    Pairs = 1,
    ListedRows = 2,
}
