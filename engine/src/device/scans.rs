//! What goes through the rows of each sequence in order: convolutions and recurrences. States lie in slots.

use super::on_gpu::OnGpu;
use brigade_gpu::{Gpu, SpanMut};

use super::scan_rows::{Columns, DeltaRows, MambaRows, SsdInput, Wkv6Rows, Wkv7Rows};
use super::{Device, Memory, Rows, Values, scan_spans as spans};
use crate::kernels::{
    self, Conv, DeltaShape, MambaScan, ScanPart, Ssd, StateAt, Vector, Wkv7Weights,
};

impl Device {
    /// A convolution over the rows of each part; states are those of the convolution alone ([`kernels::Compute::conv`]).
    pub fn conv(
        &self,
        conv: &Conv,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        x: Columns<'_>,
        out: &mut Rows,
    ) {
        let at = StateAt { per_slot: conv.state_len(), first: 0 };
        self.conv_at(conv, parts, states, at, x, out);
    }

    /// [`Device::conv`] whose state is a part of a slot's values.
    pub fn conv_at(
        &self,
        conv: &Conv,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        at: StateAt,
        x: Columns<'_>,
        out: &mut Rows,
    ) {
        if let Some((gpu, states, out)) = self.scan_on_gpu(states, out) {
            return gpu.conv(
                &conv.on_gpu(gpu),
                &spans::parts(parts),
                states,
                at,
                x.on_gpu(gpu),
                out,
            );
        }
        self.compute.conv_at(conv, parts, states, at, x.on_host(), out);
    }

    /// The recurrence of Mamba-2 ([`kernels::Compute::ssd`]).
    pub fn ssd(
        &self,
        ssd: &Ssd,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        input: SsdInput<'_>,
        out: &mut Rows,
    ) {
        if let Some((gpu, states, out)) = self.scan_on_gpu(states, out) {
            return gpu.ssd(&ssd.on_gpu(gpu), &spans::parts(parts), states, input.on_gpu(gpu), out);
        }
        let SsdInput { x, b, c, dt } = input;
        let [x, b, c, dt] = [x, b, c, dt].map(Columns::on_host);
        self.compute.ssd(ssd, parts, states, kernels::SsdInput { x, b, c, dt }, out);
    }

    /// The gated delta rule ([`kernels::Compute::delta_scan`]).
    pub fn delta_scan(
        &self,
        shape: &DeltaShape,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        x: DeltaRows<'_>,
        out: &mut Rows,
    ) {
        if let Some((gpu, states, out)) = self.scan_on_gpu(states, out) {
            return gpu.delta_scan(shape, &spans::parts(parts), states, x.on_gpu(gpu), out);
        }
        let DeltaRows { q, k, v, decay, beta } = x;
        let [q, k, v, decay, beta] = [q, k, v, decay, beta].map(Columns::on_host);
        let x = kernels::DeltaRows { q, k, v, decay, beta };
        self.compute.delta_scan(shape, parts, states, x, out);
    }

    /// The selective scan of Mamba ([`kernels::Compute::mamba_scan`]).
    pub fn mamba_scan(
        &self,
        scan: &MambaScan,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        rows: MambaRows<'_>,
        out: &mut Rows,
    ) {
        if let Some((gpu, states, out)) = self.scan_on_gpu(states, out) {
            return gpu.mamba_scan(
                &scan.on_gpu(gpu),
                &spans::parts(parts),
                states,
                rows.on_gpu(gpu),
                out,
            );
        }
        let MambaRows { u, dt, b, c, gate } = rows;
        let rows = kernels::MambaRows { u, dt, b, c, gate: gate.on_host() };
        self.compute.mamba_scan(scan, parts, states, rows, out);
    }

    /// From what was projected to decays of RWKV-6 ([`kernels::Compute::wkv6_decay`]).
    pub fn wkv6_decay(&self, w: &mut Rows, bias: &Vector) {
        match self.gpu_of(w) {
            Some((gpu, w)) => gpu.wkv6_decay(w, bias.on_gpu(gpu)),
            None => self.compute.wkv6_decay(w, bias),
        }
    }

    /// The recurrence of RWKV-6 ([`kernels::Compute::wkv6`]) in `heads`: so many, of so many values.
    pub fn wkv6(
        &self,
        heads: (usize, usize),
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        rows: Wkv6Rows<'_>,
        out: &mut Rows,
    ) {
        if let Some((gpu, states, out)) = self.scan_on_gpu(states, out) {
            return gpu.wkv6(heads, &spans::parts(parts), states, rows.on_gpu(gpu), out);
        }
        let Wkv6Rows { r, w, k, v, own } = rows;
        let rows = kernels::Wkv6Rows { r, w, k, v, own: own.map(Values::on_host) };
        self.compute.wkv6(heads, parts, states, rows, out);
    }

    /// What RWKV-7 scans, in place of what was projected ([`kernels::Compute::wkv7_prepare`]).
    pub fn wkv7_prepare(&self, weights: &Wkv7Weights, d: usize, rows: [&mut Rows; 4]) {
        if let Some(gpu) = self.gpu.as_ref().filter(|_| rows.iter().all(|rows| rows.is_with_gpu()))
        {
            let rows = rows.map(|rows| rows.span_mut().expect("rows with a GPU have a span"));
            return gpu.wkv7_prepare(weights.on_gpu(gpu), d, rows);
        }
        self.compute.wkv7_prepare(weights, d, rows.map(|rows| &mut rows[..]));
    }

    /// The recurrence of RWKV-7 ([`kernels::Compute::wkv7`]) in `heads`: so many, of so many values.
    pub fn wkv7(
        &self,
        heads: (usize, usize),
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        rows: Wkv7Rows<'_>,
        out: &mut Rows,
    ) {
        if let Some((gpu, states, out)) = self.scan_on_gpu(states, out) {
            return gpu.wkv7(heads, &spans::parts(parts), states, rows.on_gpu(gpu), out);
        }
        self.compute.wkv7(heads, parts, states, rows.on_host(), out);
    }

    /// Adds to each head what its row alone contributes ([`kernels::Compute::wkv7_bonus`]).
    pub fn wkv7_bonus(&self, out: &mut Rows, d: usize, rows: Wkv7Rows<'_>, r_k: &Vector) {
        match self.gpu_of(out) {
            Some((gpu, out)) => {
                let rows = [rows.r, rows.k, rows.v].map(|rows| rows.on_gpu(gpu));
                gpu.wkv7_bonus(out, d, rows, r_k.on_gpu(gpu));
            }
            None => self.compute.wkv7_bonus(out, d, rows.on_host(), r_k),
        }
    }
}

impl Device {
    /// The GPU with states and output, if both lie there.
    fn scan_on_gpu<'a>(
        &'a self,
        states: &'a mut Memory<f32>,
        out: &'a mut Rows,
    ) -> Option<(&'a Gpu, SpanMut<'a>, SpanMut<'a>)> {
        Some((self.gpu.as_ref()?, states.span_mut()?, out.span_mut()?))
    }
}
