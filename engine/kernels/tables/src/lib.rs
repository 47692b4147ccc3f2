//! The kernels that this machine can run: the tables of this build, and the choice of one by name.
//!
//! Each table is a crate of its own over the generic kernels of `brigade-kernels`, so that they are compiled beside each
//! other.

use brigade_kernels::{KernelError, Kernels};

/// Every table of this build, fastest first.
fn tables() -> impl Iterator<Item = &'static Kernels> {
    [
        #[cfg(target_arch = "x86_64")]
        &brigade_kernels_avx512::TABLE,
        #[cfg(target_arch = "x86_64")]
        &*brigade_kernels_avxvnni::TABLE,
        #[cfg(target_arch = "x86_64")]
        &brigade_kernels_avx2::TABLE,
        #[cfg(target_arch = "aarch64")]
        &brigade_kernels_neon::TABLE,
        #[cfg(all(feature = "software-tables", target_arch = "x86_64"))]
        &brigade_kernels_software::TABLE,
        &brigade_kernels_reference::TABLE,
    ]
    .into_iter()
}

/// Every table of what GPUs compute, fastest first. They have one name.
fn unfused_tables() -> impl Iterator<Item = &'static Kernels> {
    // Processors with AVX-VNNI take that of AVX2: one more is not worth what it takes to compile.
    [
        #[cfg(target_arch = "x86_64")]
        &brigade_kernels_unfused_avx512::TABLE,
        #[cfg(target_arch = "x86_64")]
        &brigade_kernels_unfused_avx2::TABLE,
        #[cfg(target_arch = "aarch64")]
        &brigade_kernels_unfused_neon::TABLE,
        &brigade_kernels_unfused::TABLE,
    ]
    .into_iter()
}

/// The fastest table of what GPUs compute that this machine can run. It is used where it is asked for by name, and beside a GPU.
pub fn unfused() -> &'static Kernels {
    available_unfused().next().unwrap_or(&brigade_kernels_unfused::TABLE)
}

/// All of these that this machine can run, fastest first, for tests; the last one has plain lanes.
pub fn available_unfused() -> impl Iterator<Item = &'static Kernels> {
    unfused_tables().filter(|table| (table.detected)())
}

/// The table that computes prompts faster, with bits of its own
/// ([`NUMERICS_PAIRS`](brigade_kernels::NUMERICS_PAIRS)), if this machine can run it. It is used where fast math is asked for.
pub fn fast() -> Option<&'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    let table = Some(&brigade_kernels_avx512::bf16::TABLE);
    #[cfg(not(target_arch = "x86_64"))]
    let table: Option<&'static Kernels> = None;
    table.filter(|table| (table.detected)() && table.pairs_are_as_stated())
}

/// The tables of [`NUMERICS`](brigade_kernels::NUMERICS) that this machine can run, fastest first; the last one is
/// `reference`.
pub fn available() -> Vec<&'static Kernels> {
    tables().filter(|table| (table.detected)()).collect()
}

/// The table of that name, or the fastest one.
///
/// # Errors
/// [`KernelError::UnknownTable`] when this machine has none of that name.
pub fn select(name: Option<&str>) -> Result<&'static Kernels, KernelError> {
    let tables = available();
    let named =
        |name: &str| tables.iter().copied().chain([unfused()]).find(|table| table.name == name);
    let found = match name {
        None => tables.first().copied(),
        Some(name) => named(name),
    };
    found.ok_or_else(|| KernelError::UnknownTable {
        name: name.unwrap_or_default().to_owned(),
        available: tables.iter().chain([&unfused()]).map(|table| table.name).collect(),
    })
}
