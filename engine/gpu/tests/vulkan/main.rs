//! The GPU's kernels and the ops that run them, beside the CPU's. Devices that are not there, or have not what it takes, skip.
//!
//! All of it is one program. Its modules are what `KERNELS.md` names: `cargo test --release -p brigade-gpu --test vulkan rope::`.

mod attention;
mod common;
mod elementwise;
mod experts;
mod fast_math;
mod index;
mod joining;
mod kv;
mod moves;
mod numbers;
mod products;
mod rope;
mod rows;
mod runtime;
mod scans;
mod token_streams;
mod transfers;
