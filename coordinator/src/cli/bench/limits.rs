//! The limits of the machine, measured by `bench` before its tests: how fast memory is read and how fast
//! products are computed, with one core and with all cores of the line. Tests are shown as shares of them.

use anyhow::{Context, Result};
use brigade_engine::device::{DeviceName, Devices};
use brigade_engine::kernels::{Compute, fast, probe, select};
use brigade_line::handle::LineInfo;
use brigade_worker::host;
use serde::Serialize;

use crate::cli::options::args::LineArgs;
use crate::cli::printing::output;

/// Limits of some cores of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Limits {
    /// Threads that were measured together, each on a core of its own.
    pub(super) threads: usize,
    /// Memory read, 10^9 bytes a second; of a GPU read and written, while it copies.
    pub(super) memory_gb_per_second: f64,
    /// Arithmetic; `None` of a GPU.
    #[serde(flatten)]
    pub(super) peaks: Option<Peaks>,
}

/// The most that arithmetic gives, 10^9 operations a second (a multiply-add is two).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Peaks {
    /// Products of 8-bit activations with codes of four bits.
    pub(super) nibble_gop_per_second: f64,
    /// The same with weights that fill the byte.
    pub(super) int8_gop_per_second: f64,
    /// f32 products, 10^9 operations a second.
    pub(super) f32_gop_per_second: f64,
    /// Products in pairs of bfloat16 values, with fast math.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pairs_gop_per_second: Option<f64>,
}

/// The arithmetic that bounds a model's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Peak {
    /// Weights in blocks of integers that are narrower than a byte.
    Nibble,
    /// Weights in blocks of bytes.
    Int8,
    /// f32 arithmetic, for floating-point weights.
    F32,
    /// Pairs of bfloat16 values, for those of 16 bits with fast math.
    Pairs,
}

impl Peak {
    /// The arithmetic of a model most of whose weights have the type `quant`, on a machine with `limits`; `is_prompt`: in
    /// prompts, whose rows are enough for pairs.
    pub(super) fn of(quant: &str, limits: Option<Limits>, is_prompt: bool) -> Self {
        let in_pairs =
            |of: Limits| of.peaks.is_some_and(|peaks| peaks.pairs_gop_per_second.is_some());
        match quant {
            "F16" | "BF16" if is_prompt && limits.is_some_and(in_pairs) => Self::Pairs,
            "F32" | "F16" | "BF16" => Self::F32,
            "Q8_0" => Self::Int8,
            _ => Self::Nibble,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nibble => "4-bit int8",
            Self::Int8 => "int8",
            Self::F32 => "f32",
            Self::Pairs => "bf16 pairs",
        }
    }
}

impl Limits {
    /// The measured limit of an arithmetic; `None`: it was not measured.
    pub(super) fn peak(&self, peak: Peak) -> Option<f64> {
        let peaks = self.peaks?;
        match peak {
            Peak::Nibble => Some(peaks.nibble_gop_per_second),
            Peak::Int8 => Some(peaks.int8_gop_per_second),
            Peak::F32 => Some(peaks.f32_gop_per_second),
            Peak::Pairs => peaks.pairs_gop_per_second,
        }
    }

    /// Prints them as a line.
    pub(super) fn print(&self) -> Result<()> {
        let memory = self.memory_gb_per_second;
        let Some(peaks) = self.peaks else {
            return output::line(format_args!("  the GPU: memory copied at {memory:.1} GB/s"));
        };
        output::line(format_args!(
            "  {} thread{}: memory read {memory:.1} GB/s, int8 {:.0} GOP/s ({:.0} with 4-bit codes), f32 {:.1} GOP/s{}",
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            peaks.int8_gop_per_second,
            peaks.nibble_gop_per_second,
            peaks.f32_gop_per_second,
            peaks
                .pairs_gop_per_second
                .map_or(String::new(), |pairs| format!(", bf16 pairs {pairs:.1} GOP/s")),
        ))
    }
}

/// Measures one core and all cores that the line's threads run on, with the table and on the CPUs that
/// they use; or the first stage's GPU. Empty where workers were started elsewhere: this machine's limits are not theirs.
///
/// # Errors
/// A thread or memory is refused.
pub(super) async fn measure(info: &LineInfo, line: &LineArgs) -> Result<Vec<Limits>> {
    let Some(table) = info.stages.first().map(|s| s.kernels.clone()) else { return Ok(Vec::new()) };
    if !line.worker.is_empty() {
        return Ok(Vec::new());
    }
    if let Ok(gpu @ DeviceName::Accelerator { .. }) = table.parse() {
        let speed = Devices::default().open(&gpu, 1, None)?.copy_speed()?;
        let memory_gb_per_second = speed.context("a GPU that copies nothing")? / 1e9;
        return Ok(vec![Limits { threads: 1, memory_gb_per_second, peaks: None }]);
    }
    let wanted: usize = info.stages.iter().map(|s| s.threads as usize).sum();
    let cores = host::cores();
    let cpus = line.worker_cpus.as_ref().map(|lists| {
        let mut cpus: Vec<usize> =
            lists.0.iter().take(info.stages.len()).flatten().copied().collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    });
    let all = wanted.min(cpus.as_ref().map_or(cores, Vec::len)).max(1);
    // A thread of their own: the probes pin the thread that calls them.
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("limits".into()).spawn(move || {
        let mut counts = vec![1, all];
        counts.dedup();
        let limits = counts.into_iter().map(|n| of_threads(&table, n, cpus.as_deref()));
        // The receiver is gone when the command was interrupted.
        let _ = send.send(limits.collect::<Result<Vec<_>>>());
    })?;
    receive.await.context("measuring this machine's limits")?
}

fn of_threads(table: &str, threads: usize, cpus: Option<&[usize]>) -> Result<Limits> {
    let fast = fast().filter(|fast| fast.name == table);
    let kernels = fast.map_or_else(|| select(Some(table)), Ok)?;
    let compute = Compute::new(kernels, threads, cpus)?;
    compute.pool().pin_caller();
    let int8 = probe::int8_peak(&compute);
    Ok(Limits {
        threads,
        memory_gb_per_second: probe::memory_bandwidth(&compute)? / 1e9,
        peaks: Some(Peaks {
            nibble_gop_per_second: int8.narrow / 1e9,
            int8_gop_per_second: int8.wide / 1e9,
            f32_gop_per_second: probe::f32_peak(&compute) / 1e9,
            pairs_gop_per_second: probe::pairs_peak(&compute).map(|peak| peak / 1e9),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_limits() {
        let limits = of_threads("reference", 1, None).unwrap();
        assert!(limits.memory_gb_per_second > 0.0, "{limits:?}");
        let peaks = [Peak::Nibble, Peak::Int8, Peak::F32].map(|peak| limits.peak(peak).unwrap());
        assert!(peaks.iter().all(|peak| *peak > 0.0), "{limits:?}");
        let kinds = |limits: Limits, is_prompt| {
            ["F32", "F16", "BF16", "Q8_0", "Q4_K"]
                .map(|quant| Peak::of(quant, Some(limits), is_prompt))
        };
        let plain = [Peak::F32, Peak::F32, Peak::F32, Peak::Int8, Peak::Nibble];
        assert_eq!([false, true].map(|is_prompt| kinds(limits, is_prompt)), [plain; 2]);
        assert_eq!(limits.peak(Peak::Pairs), None);
        if let Some(fast) = fast() {
            let limits = of_threads(fast.name, 1, None).unwrap();
            let paired = [Peak::F32, Peak::Pairs, Peak::Pairs, Peak::Int8, Peak::Nibble];
            assert_eq!([false, true].map(|is_prompt| kinds(limits, is_prompt)), [plain, paired]);
            assert!(limits.peak(Peak::Pairs) > Some(0.0), "{limits:?}");
        }
    }
}
