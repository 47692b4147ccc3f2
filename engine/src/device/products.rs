//! Products of rows with packed weights.

use super::on_gpu::span_of;
use std::ops::Range;

use brigade_gpu::{Gpu, GpuBuffer, Purpose, RowForm, Span, WeightType, Weights};

use super::{Device, Rows, RowsMut, Values, ValuesMut, give_up};
use crate::kernels::{MatmulJob, PackedMatrix};
use crate::quant::GgmlType;

/// One product: `out[i, o] = Σ_k x[rows.start + i, k] * w[o, k]`.
pub struct Product<'a> {
    /// Weights `[out features, cols]`.
    pub w: &'a PackedMatrix,
    /// Rows `[_, cols]`.
    pub x: &'a Rows,
    /// Those to multiply.
    pub rows: Range<usize>,
    /// `[rows.len(), w.rows()]`.
    pub out: RowsMut<'a>,
}

impl Product<'_> {
    fn on_host(&mut self) -> MatmulJob<'_> {
        let Self { w, x, rows, out } = self;
        MatmulJob { w, x: x.act(), rows: rows.clone(), out: out.on_host_mut() }
    }
}

impl Product<'_> {
    fn is_with_gpu(&self) -> bool {
        span_of(self.w).is_some() && self.x.is_with_gpu() && self.out.host().is_none()
    }

    /// # Panics
    /// If something of it does not lie with a GPU.
    fn on_gpu<'a>(&'a mut self, gpu: &Gpu) -> brigade_gpu::Product<'a> {
        const THERE: &str = "asked before";
        let Product { w, x, rows, out } = self;
        let w = weights(w, span_of(w).expect(THERE));
        let form = gpu.row_form(w.ty, rows.len());
        let row_bytes = form.row_bytes(w.cols);
        let x = in_form(gpu, form, x).expect(THERE);
        let x = x.part(rows.start * row_bytes..rows.end * row_bytes);
        brigade_gpu::Product { w, x, n_rows: rows.len(), out: out.span_mut().expect(THERE) }
    }
}

/// Rows in a form that products read, if they lie with the GPU. Another than f32 is made once, until a value changes.
pub(super) fn in_form<'a>(gpu: &Gpu, form: RowForm, x: &'a Rows) -> Option<Span<'a>> {
    x.in_form(form, |values| formed(gpu, form, values, x.cols()))
}

/// Rows `[_, cols]` in another form than f32.
///
/// # Panics
/// If the GPU has no memory for it. The stage ends with this as its reason.
fn formed(gpu: &Gpu, form: RowForm, x: Span<'_>, cols: usize) -> GpuBuffer {
    let n_rows = x.values().checked_div(cols).unwrap_or(0);
    match gpu.buffer(n_rows * form.row_bytes(cols), Purpose::Activations) {
        Ok(mut buffer) => {
            match form {
                RowForm::Floats => gpu.copy(x, buffer.span_mut()),
                RowForm::Blocks => gpu.quantize(x, buffer.span_mut()),
                RowForm::Halves => gpu.halve(x, cols, buffer.span_mut()),
            }
            buffer
        }
        Err(error) => give_up("rows as products read them", &error),
    }
}

fn weights<'a>(w: &PackedMatrix, panels: Span<'a>) -> Weights<'a> {
    Weights { ty: weight_type(w.ty()), rows: w.rows(), cols: w.cols(), scale: w.scale(), panels }
}

impl Device {
    /// Computes several products, which do not wait for each other.
    ///
    /// # Panics
    /// If a product's shapes disagree.
    pub fn products(&self, products: &mut [Product<'_>]) {
        if let Some(gpu) = self.gpu.as_ref().filter(|_| products.iter().all(Product::is_with_gpu)) {
            // Collected first: what makes another form of rows may not stand between products that run beside each other.
            let jobs: Vec<_> = products.iter_mut().map(|product| product.on_gpu(gpu)).collect();
            gpu.products(jobs);
            return;
        }
        self.compute.matmul(&mut products.iter_mut().map(Product::on_host).collect::<Vec<_>>());
    }

    /// One product of rows that no other matrix multiplies: `out[n_rows, w.rows()]` from `x[n_rows, w.cols()]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn multiply(
        &self,
        w: &PackedMatrix,
        x: &(impl Values + ?Sized),
        out: &mut (impl ValuesMut + ?Sized),
    ) {
        let Some((gpu, out, panels)) =
            self.gpu_of(out).zip(span_of(w)).map(|((g, o), p)| (g, o, p))
        else {
            return self.compute.multiply(w, x.on_host(), out.on_host_mut());
        };
        let (w, x) = (weights(w, panels), x.on_gpu(gpu));
        let n_rows = x.values() / w.cols;
        match gpu.row_form(w.ty, n_rows) {
            RowForm::Floats => gpu.product(&w, x, n_rows, out),
            form => gpu.product(&w, formed(gpu, form, x, w.cols).span(), n_rows, out),
        }
    }
}

/// # Panics
/// For a type without a kernel, of which no matrix is packed.
pub(super) fn weight_type(ty: GgmlType) -> WeightType {
    macro_rules! of_the_same_name {
        ($($name:ident)*) => {
            match ty {
                $(GgmlType::$name => WeightType::$name,)*
                other => unreachable!("a packed matrix of {other}"),
            }
        };
    }
    of_the_same_name!(
        F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4 IQ1_S
        IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 Q1_0 Q2_0
    )
}
