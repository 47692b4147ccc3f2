//! Measurement of the speed at which a GPU reads and writes its memory.

use std::time::Instant;

use super::Device;
use crate::kernels::KernelError;
use crate::ops::Copy;

/// Bytes that are copied at a time: more than any GPU's caches hold.
const BYTES: usize = 256 << 20;

/// Copies that are timed together, so that handing them over does not count.
const COPIES: usize = 4;

/// Times that this is done; the fastest counts.
const ROUNDS: usize = 4;

impl Device {
    /// Bytes a second that a GPU reads and writes while it copies; `None` for the CPU.
    ///
    /// # Errors
    /// The GPU has not twice 256 MiB left, or fails.
    pub fn copy_speed(&self) -> Result<Option<f64>, KernelError> {
        let Some(there) = &self.there else { return Ok(None) };
        let no_room = || {
            let source =
                std::io::Error::other("too little of the GPU's memory is free to measure it");
            KernelError::Memory { bytes: 2 * BYTES, source }
        };
        let from = self.memory::<f32>(BYTES / size_of::<f32>()).ok_or_else(no_room)?;
        let mut to = self.memory::<f32>(BYTES / size_of::<f32>()).ok_or_else(no_room)?;
        there.finish()?;
        let mut fastest = f64::INFINITY;
        for _ in 0..ROUNDS {
            let started = Instant::now();
            for _ in 0..COPIES {
                there.do_now(Copy { from: from.view(), to: to.view_mut() });
            }
            there.finish()?;
            fastest = fastest.min(started.elapsed().as_secs_f64());
        }
        Ok(Some((2 * COPIES * BYTES) as f64 / fastest))
    }
}
