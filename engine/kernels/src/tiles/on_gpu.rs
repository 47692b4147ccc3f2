//! Weights of convolutions and recurrences with a GPU. It gets them when they are first asked for.

use brigade_gpu::{ConvSpans, Gpu, MambaSpans, SsdSpans, Wkv7Spans};

use super::conv::Conv;
use super::mamba::MambaScan;
use super::ssd::Ssd;
use super::wkv7::Wkv7Weights;

impl Conv {
    /// Its weights with a GPU.
    ///
    /// # Panics
    /// If it has no memory left.
    pub fn on_gpu<'a>(&'a self, gpu: &Gpu) -> ConvSpans<'a> {
        ConvSpans {
            taps: self.taps,
            channels: self.channels,
            weight: self.weight.on_gpu(gpu),
            bias: self.bias.on_gpu(gpu),
            silu: self.silu,
        }
    }
}

impl Ssd {
    /// Its weights with a GPU.
    ///
    /// # Panics
    /// If it has no memory left.
    pub fn on_gpu<'a>(&'a self, gpu: &Gpu) -> SsdSpans<'a> {
        SsdSpans {
            shape: self.shape,
            a: self.a.on_gpu(gpu),
            d: self.d.on_gpu(gpu),
            dt_bias: self.dt_bias.on_gpu(gpu),
        }
    }
}

impl MambaScan {
    /// Its weights with a GPU.
    ///
    /// # Panics
    /// If it has no memory left.
    pub fn on_gpu<'a>(&'a self, gpu: &Gpu) -> MambaSpans<'a> {
        MambaSpans {
            channels: self.channels,
            n_state: self.n_state,
            a: self.a.on_gpu(gpu),
            dt_bias: self.dt_bias.on_gpu(gpu),
            d: self.d.on_gpu(gpu),
        }
    }
}

impl Wkv7Weights {
    /// The weights with a GPU.
    ///
    /// # Panics
    /// If it has no memory left.
    pub fn on_gpu<'a>(&'a self, gpu: &Gpu) -> Wkv7Spans<'a> {
        Wkv7Spans {
            w0: self.w0.on_gpu(gpu),
            a0: self.a0.on_gpu(gpu),
            k_k: self.k_k.on_gpu(gpu),
            k_a: self.k_a.on_gpu(gpu),
        }
    }
}
