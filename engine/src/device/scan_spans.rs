//! What a GPU is told of convolutions and recurrences: the same as the host's kernels, by where it lies there.

use brigade_gpu::{self as there, ColumnsSpan, ConvSpans, Gpu, MambaSpans, SsdSpans, Wkv7Spans};

use super::Values;
use super::scan_rows::{Columns, DeltaRows, MambaRows, SsdInput, Wkv6Rows, Wkv7Rows};
use crate::kernels::{Conv, MambaScan, ScanPart, Ssd, Wkv7Weights};

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

pub(super) fn parts(parts: &[ScanPart]) -> Vec<there::ScanPart> {
    let part = |part: &ScanPart| {
        let ScanPart { slot, first_pos, first_row, n_rows } = *part;
        there::ScanPart { slot, first_pos, first_row, n_rows }
    };
    parts.iter().map(part).collect()
}

pub(super) fn conv<'a>(conv: &'a Conv, gpu: &Gpu) -> ConvSpans<'a> {
    ConvSpans {
        taps: conv.taps,
        channels: conv.channels,
        weight: conv.weight.on_gpu(gpu),
        bias: conv.bias.on_gpu(gpu),
        silu: conv.silu,
    }
}

pub(super) fn ssd<'a>(ssd: &'a Ssd, gpu: &Gpu) -> SsdSpans<'a> {
    SsdSpans {
        shape: *ssd.shape(),
        a: ssd.a.on_gpu(gpu),
        d: ssd.d.on_gpu(gpu),
        dt_bias: ssd.dt_bias.on_gpu(gpu),
    }
}

pub(super) fn mamba<'a>(scan: &'a MambaScan, gpu: &Gpu) -> MambaSpans<'a> {
    MambaSpans {
        channels: scan.channels,
        n_state: scan.n_state,
        a: scan.a.on_gpu(gpu),
        dt_bias: scan.dt_bias.on_gpu(gpu),
        d: scan.d.on_gpu(gpu),
    }
}

pub(super) fn wkv7<'a>(weights: &'a Wkv7Weights, gpu: &Gpu) -> Wkv7Spans<'a> {
    Wkv7Spans {
        w0: weights.w0.on_gpu(gpu),
        a0: weights.a0.on_gpu(gpu),
        k_k: weights.k_k.on_gpu(gpu),
        k_a: weights.k_a.on_gpu(gpu),
    }
}
