//! The CPUs that threads run on.

/// Pins the calling thread to a CPU. Returns whether it now is.
pub(crate) fn pin_current(cpu: usize) -> bool {
    core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}
