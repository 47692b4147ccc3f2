//! A card that has little to do turns its clock down, to a fifth and less, and back up only after a while of work.

use std::time::{Duration, Instant};

use brigade_gpu::{Gpu, GpuBuffer, Purpose};

/// Time of work before anything is measured.
const WORK: Duration = Duration::from_millis(300);

/// Work that keeps the card busy.
pub struct Warm {
    gpu: Gpu,
    from: GpuBuffer,
    to: GpuBuffer,
    work: Duration,
}

impl Warm {
    pub fn new(gpu: Gpu, small: bool) -> Result<Self, String> {
        let bytes = if small { 4096 } else { 256 << 20 };
        let buffer = || gpu.buffer(bytes, Purpose::Weights).map_err(|error| error.to_string());
        let (from, to) = (buffer()?, buffer()?);
        Ok(Self { gpu, from, to, work: if small { Duration::ZERO } else { WORK } })
    }

    /// Works for a while.
    pub fn up(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < self.work {
            (0..32).for_each(|_| self.gpu.copy(self.from.span(), self.to.span_mut()));
            self.gpu.finish().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
