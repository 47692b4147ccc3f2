//! What a GPU is told of convolutions and recurrences: the same as the host's kernels, by where it lies there.

use brigade_gpu::{self as there, ColumnsSpan, Gpu};

use super::Values;
use super::scan_rows::{Columns, DeltaRows, MambaRows, SsdInput, Wkv6Rows, Wkv7Rows};
use crate::kernels::ScanPart;

impl<'a> Columns<'a> {
    pub(super) fn on_gpu(self, gpu: &'a Gpu) -> ColumnsSpan<'a> {
        let Self { rows, first_col } = self;
        ColumnsSpan { span: rows.on_gpu(gpu), stride: rows.cols(), first_col }
    }
}

impl<'a> SsdInput<'a> {
    pub(super) fn on_gpu(self, gpu: &'a Gpu) -> there::SsdInput<'a> {
        let [x, b, c, dt] = [self.x, self.b, self.c, self.dt].map(|x| x.on_gpu(gpu));
        there::SsdInput { x, b, c, dt }
    }
}

impl<'a> DeltaRows<'a> {
    pub(super) fn on_gpu(self, gpu: &'a Gpu) -> there::DeltaRows<'a> {
        let all = [self.q, self.k, self.v, self.decay, self.beta];
        let [q, k, v, decay, beta] = all.map(|x| x.on_gpu(gpu));
        there::DeltaRows { q, k, v, decay, beta }
    }
}

impl<'a> MambaRows<'a> {
    pub(super) fn on_gpu(self, gpu: &'a Gpu) -> there::MambaRows<'a> {
        let [u, dt, b, c] = [self.u, self.dt, self.b, self.c].map(|x| x.on_gpu(gpu));
        there::MambaRows { u, dt, b, c, gate: self.gate.on_gpu(gpu) }
    }
}

impl<'a> Wkv6Rows<'a> {
    pub(super) fn on_gpu(self, gpu: &'a Gpu) -> there::Wkv6Rows<'a> {
        let [r, w, k, v] = [self.r, self.w, self.k, self.v].map(|x| x.on_gpu(gpu));
        there::Wkv6Rows { r, w, k, v, own: self.own.map(|own| own.on_gpu(gpu)) }
    }
}

impl<'a> Wkv7Rows<'a> {
    pub(super) fn on_gpu(self, gpu: &'a Gpu) -> there::Wkv7Rows<'a> {
        let all = [self.r, self.w, self.k, self.v, self.kappa, self.kappa_a];
        let [r, w, k, v, kappa, kappa_a] = all.map(|x| x.on_gpu(gpu));
        there::Wkv7Rows { r, w, k, v, kappa, kappa_a }
    }
}

/// Parts as the GPU has them.
pub(super) fn parts(parts: &[ScanPart]) -> Vec<there::ScanPart> {
    let part = |part: &ScanPart| {
        let ScanPart { from, slot, first_pos, first_row, n_rows } = *part;
        there::ScanPart { from, slot, first_pos, first_row, n_rows }
    };
    parts.iter().map(part).collect()
}
