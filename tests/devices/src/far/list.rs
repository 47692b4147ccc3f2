//! The ops that far memory has kernels for, by op and by type of weights.

use brigade_ops::{Anywhere, Op, Product};
use brigade_quant::GgmlType;

/// The ops, by name. The only recurrence is Mamba-2's.
pub const OPS: [&str; 21] = [
    "AddExpertBiases",
    "AddPairs",
    "Attend",
    "Combine",
    "Conv",
    "Copy",
    "CopySlot",
    "ExpertProducts",
    "GatherRows",
    "HeadsApart",
    "HeadsTogether",
    "KvWrite",
    "Map",
    "Norm",
    "Products",
    "RmsNorm",
    "Rope",
    "Route",
    "RowsOfPairs",
    "Ssd",
    "WeighPairs",
];

/// Types of weights that are multiplied with.
pub const WEIGHTS: [GgmlType; 5] =
    [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q6_K];

/// Whether there is a kernel for an op. Products read weights of far memory.
pub fn has(op: &Op<'_, Anywhere>) -> bool {
    let is_known =
        |job: &Product<'_, Anywhere>| job.w.panels.is_with_device() && WEIGHTS.contains(&job.w.ty);
    match op {
        Op::Products(op) => op.jobs.iter().all(is_known),
        other => OPS.contains(&other.name()),
    }
}
