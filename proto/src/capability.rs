//! Who can run what: the checks of a handshake, done before any layer is placed.

use crate::WIRE_VERSION;
use crate::control::{Capabilities, KvType, WireType};

/// What a model and a run ask of every worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// `general.architecture`.
    pub architecture: String,
    /// Types of the tensors the worker would get.
    pub quant_types: Vec<String>,
    /// Type of boundaries on the wire.
    pub wire_type: WireType,
    /// Type of KV cache values.
    pub kv_type: KvType,
    /// Kernel table the user forces, if any.
    pub kernels: Option<String>,
}

/// Why a worker cannot take part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// Wire versions differ.
    #[error(
        "wire version {theirs} ({software}) does not match ours, {WIRE_VERSION}: \
         run the same brigade release on every machine"
    )]
    Version {
        /// The peer's version.
        theirs: u32,
        /// The peer's program version.
        software: String,
    },
    /// Something the worker does not have.
    #[error("it has no {what} \"{name}\" (it has: {has})")]
    Lacks {
        /// Kind of capability.
        what: &'static str,
        /// What was asked for.
        name: String,
        /// What the worker offers.
        has: String,
    },
}

/// Compares a peer's wire version with ours.
///
/// # Errors
/// [`Incompatible::Version`].
pub fn check_version(theirs: u32, software: &str) -> Result<(), Incompatible> {
    if theirs == WIRE_VERSION {
        return Ok(());
    }
    Err(Incompatible::Version { theirs, software: software.chars().take(100).collect() })
}

/// Checks that a worker has everything in `needs`.
///
/// # Errors
/// [`Incompatible::Lacks`], naming the first thing missing.
pub fn check_capabilities(caps: &Capabilities, needs: &Requirements) -> Result<(), Incompatible> {
    require("architecture", &needs.architecture, caps.architectures.iter().map(String::as_str))?;
    for quant in &needs.quant_types {
        require("tensor type", quant, caps.quant_types.iter().map(String::as_str))?;
    }
    require(
        "wire type",
        needs.wire_type.as_str_name(),
        caps.wire_types().map(|t| t.as_str_name()),
    )?;
    require("KV type", needs.kv_type.as_str_name(), caps.kv_types().map(|t| t.as_str_name()))?;
    if let Some(kernels) = &needs.kernels {
        require("kernel table", kernels, caps.kernel_tables.iter().map(String::as_str))?;
    }
    Ok(())
}

fn require<'a>(
    what: &'static str,
    name: &str,
    has: impl Iterator<Item = &'a str>,
) -> Result<(), Incompatible> {
    let has: Vec<&str> = has.collect();
    if has.contains(&name) {
        return Ok(());
    }
    Err(Incompatible::Lacks { what, name: name.to_owned(), has: has.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker() -> Capabilities {
        Capabilities {
            architectures: vec!["llama".into(), "qwen3".into()],
            quant_types: vec!["F32".into(), "Q8_0".into()],
            wire_types: vec![WireType::F32.into()],
            kv_types: vec![KvType::F16.into()],
            kernel_tables: vec!["avx2".into()],
            ..Capabilities::default()
        }
    }

    fn needs() -> Requirements {
        Requirements {
            architecture: "qwen3".into(),
            quant_types: vec!["Q8_0".into()],
            wire_type: WireType::F32,
            kv_type: KvType::F16,
            kernels: None,
        }
    }

    #[test]
    fn a_fitting_worker_passes() {
        assert_eq!(check_capabilities(&worker(), &needs()), Ok(()));
    }

    #[test]
    fn each_lack_is_named() {
        let cases = [
            (Requirements { architecture: "jamba".into(), ..needs() }, "architecture \"jamba\""),
            (Requirements { quant_types: vec!["Q4_K".into()], ..needs() }, "type \"Q4_K\""),
            (Requirements { wire_type: WireType::F16, ..needs() }, "WIRE_TYPE_F16"),
            (Requirements { kv_type: KvType::F32, ..needs() }, "KV_TYPE_F32"),
            (Requirements { kernels: Some("avx512".into()), ..needs() }, "table \"avx512\""),
        ];
        for (needs, word) in cases {
            let reason = check_capabilities(&worker(), &needs).unwrap_err().to_string();
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn another_version_is_refused_with_both_numbers() {
        let reason = check_version(WIRE_VERSION + 1, "brigade 9").unwrap_err().to_string();
        let theirs = format!("wire version {}", WIRE_VERSION + 1);
        let ours = format!("ours, {WIRE_VERSION}");
        assert!(reason.contains(&theirs) && reason.contains(&ours), "{reason}");
    }
}
