//! Memory, and what it costs to tell a GPU something.

use std::time::Instant;

use brigade_gpu::{Gpu, GpuBuffer, Purpose};

use crate::warm::Warm;
use crate::{Options, random};

/// Runs of a kernel that does next to nothing, one behind the other.
const RUNS: usize = 4096;
const TIMES: usize = 5;

pub fn run(options: &Options, warm: &mut Warm) -> Result<(), String> {
    let gpu = options.open(false)?;
    let bytes = if options.small { 4 << 20 } else { 1 << 30 };
    println!("| what | figure |\n|---|---|");
    let gigabytes =
        |seconds: f64, bytes: usize| format!("{:.1} GB/s", bytes as f64 / seconds / 1e9);
    let mut sides =
        [buffer(&gpu, bytes, Purpose::Weights)?, buffer(&gpu, bytes, Purpose::Weights)?];
    let [from, to] = &mut sides;
    warm.up()?;
    let copy = best(&gpu, || gpu.copy(from.span(), to.span_mut()))?;
    println!("| copy on the device, read and written | {} |", gigabytes(copy, 2 * bytes));
    let host = random::bytes(bytes / 4);
    let upload = best(&gpu, || to.write(0, &host))?;
    println!("| upload | {} |", gigabytes(upload, host.len()));
    let mut back = Vec::with_capacity(host.len());
    let download = best(&gpu, || {
        back.clear();
        to.read(0..host.len(), &mut back).expect("room for the copy");
    })?;
    println!("| download | {} |", gigabytes(download, host.len()));
    warm.up()?;
    let mut small = buffer(&gpu, 256, Purpose::Activations)?;
    let mut runs = |n: usize| best(&gpu, || (0..n).for_each(|_| gpu.scale(small.span_mut(), 0.5)));
    let (one, many) = (runs(1)?, runs(RUNS)?);
    println!("| one run, handed over and waited for (host's clock) | {:.1} us |", one * 1e6);
    println!("| a run behind another (host's clock) | {:.2} us |", many * 1e6 / RUNS as f64);
    Ok(())
}

fn buffer(gpu: &Gpu, len: usize, purpose: Purpose) -> Result<GpuBuffer, String> {
    gpu.buffer(len, purpose).map_err(|error| error.to_string())
}

/// Seconds until `work` is done: the least of some times.
fn best(gpu: &Gpu, mut work: impl FnMut()) -> Result<f64, String> {
    let mut least = f64::MAX;
    for _ in 0..TIMES {
        let start = Instant::now();
        work();
        gpu.finish().map_err(|error| error.to_string())?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}
