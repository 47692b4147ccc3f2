//! Checks of workers' capabilities at the handshake, before any layer is placed.

use crate::control::{Capabilities, Feature, KvType, NodePart, WireType};
use crate::limits::{
    MAX_ABILITIES, MAX_CLAIMED_SPEED, MAX_CLAIMED_STAGES, MAX_CLAIMED_THREADS, MAX_MEMORY_BYTES,
    MAX_NAME_BYTES,
};
use crate::{OLDEST_WIRE_VERSION, SOFTWARE, WIRE_VERSION};

/// The capabilities that a model and a run require of every worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// The architecture, as in `general.architecture`.
    pub architecture: String,
    /// Types of the tensors the worker would get.
    pub quant_types: Vec<String>,
    /// Type of boundaries on the wire.
    pub wire_type: WireType,
    /// Type of KV cache values.
    pub kv_type: KvType,
    /// Kernel table the user forces, if any.
    pub kernels: Option<String>,
    /// Whether the model has adapters beside it.
    pub adapters: bool,
    /// Whether control vectors are added to what its layers give.
    pub control_vectors: bool,
}

/// Why a worker cannot take part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// No version of the wire is spoken by both.
    #[error(
        "it speaks version {theirs} of the wire ({software}), and this {SOFTWARE} {OLDEST_WIRE_VERSION} to \
         {WIRE_VERSION}: upgrade the older of the two; releases beside each other work together"
    )]
    Version {
        /// The peer's newest, or its oldest if that is too new.
        theirs: u32,
        /// The peer's program version.
        software: String,
    },
    /// Something the worker does not have.
    #[error("it has no {what} \"{name}\" (it has: {has})")]
    Lacks {
        /// The kind of capability.
        what: &'static str,
        /// The required one.
        name: String,
        /// The offered ones.
        has: String,
    },
    /// A table of a CPU is wanted of a worker that computes on a GPU: plans count with the GPU's memory and speed.
    #[error(
        "it computes on {device}, and --kernels {kernels} is for CPUs: leave out --kernels, or start that worker with it"
    )]
    Gpu {
        /// The worker's GPU.
        device: String,
        /// The wanted table.
        kernels: String,
    },
    /// The peer is of an older release, without a required feature.
    #[error("it knows no {what}: upgrade it to {SOFTWARE}, or start without {option}")]
    Older {
        /// The kind of value that the worker does not know.
        what: &'static str,
        /// The option that asks for it.
        option: &'static str,
    },
    /// A number or a name that no worker has.
    #[error(
        "its handshake is not valid: {field} is {value}, {expected} was expected: run the same brigade \
         release there, or leave this worker out"
    )]
    Absurd {
        /// Field of the capabilities.
        field: &'static str,
        /// The claimed value.
        value: String,
        /// The possible values.
        expected: String,
    },
}

/// Finds the version of the wire to speak with a peer, which speaks those from `oldest` to `newest` (0: `oldest`
/// alone).
///
/// # Errors
/// [`Incompatible::Version`]: the two have no common version.
pub fn check_version(oldest: u32, newest: u32, software: &str) -> Result<u32, Incompatible> {
    let newest = newest.max(oldest);
    let spoken = newest.min(WIRE_VERSION);
    if spoken >= oldest.max(OLDEST_WIRE_VERSION) {
        return Ok(spoken);
    }
    let theirs = if oldest > WIRE_VERSION { oldest } else { newest };
    Err(Incompatible::Version { theirs, software: software.chars().take(100).collect() })
}

/// Checks that what a worker says of itself can be: a plan is computed from these numbers.
///
/// # Errors
/// [`Incompatible::Absurd`], naming the first field.
pub fn check_claims(caps: &Capabilities) -> Result<(), Incompatible> {
    let speeds = [
        ("capabilities.gb_per_second", caps.gb_per_second),
        ("capabilities.gop_per_second", caps.gop_per_second),
    ];
    let of_products = caps.products.iter().flat_map(|products| {
        [
            ("capabilities.products.q6_k", products.q6_k),
            ("capabilities.products.q8_0", products.q8_0),
            ("capabilities.products.f16", products.f16),
        ]
    });
    for (field, speed) in speeds.into_iter().chain(of_products) {
        let is_possible = speed.is_finite() && speed > 0.0 && speed <= MAX_CLAIMED_SPEED;
        possible(is_possible, field, speed, format!("above 0, at most {MAX_CLAIMED_SPEED}"))?;
    }
    let (limit, free) = (caps.memory_limit, caps.memory_free);
    let bytes = format!("1 to {MAX_MEMORY_BYTES} bytes");
    let is_possible = (1..=MAX_MEMORY_BYTES).contains(&limit);
    possible(is_possible, "capabilities.memory_limit", limit, bytes)?;
    let bytes = format!("at most the limit, {limit} bytes,");
    possible(free <= limit, "capabilities.memory_free", free, bytes)?;
    if let Some(NodePart { memory_limit: shared, stages, .. }) = caps.node {
        let bytes = format!("{limit} to {MAX_MEMORY_BYTES} bytes");
        let is_possible = (limit..=MAX_MEMORY_BYTES).contains(&shared);
        possible(is_possible, "capabilities.node.memory_limit", shared, bytes)?;
        let is_possible = (1..=MAX_CLAIMED_STAGES).contains(&stages);
        let expected = format!("1 to {MAX_CLAIMED_STAGES}");
        possible(is_possible, "capabilities.node.stages", stages, expected)?;
    }
    let is_possible = (1..=MAX_CLAIMED_THREADS).contains(&caps.threads);
    let threads = format!("1 to {MAX_CLAIMED_THREADS}");
    possible(is_possible, "capabilities.threads", caps.threads, threads)?;
    let lists = [
        ("capabilities.architectures", &caps.architectures),
        ("capabilities.quant_types", &caps.quant_types),
        ("capabilities.kernel_tables", &caps.kernel_tables),
    ];
    for (field, names) in lists {
        let n = names.len();
        possible(n <= MAX_ABILITIES, field, n, format!("at most {MAX_ABILITIES} names"))?;
        names.iter().try_for_each(|name| short_name(field, name))?;
    }
    let n = caps.features.len();
    possible(n <= MAX_ABILITIES, "capabilities.features", n, format!("at most {MAX_ABILITIES}"))?;
    let n = caps.kernel_numerics.len();
    possible(
        n <= MAX_ABILITIES,
        "capabilities.kernel_numerics",
        n,
        format!("at most {MAX_ABILITIES}"),
    )?;
    short_name("capabilities.kernels", &caps.kernels)?;
    short_name("capabilities.host_id", &caps.host_id)?;
    short_name("capabilities.platform", &caps.platform)
}

fn short_name(field: &'static str, name: &str) -> Result<(), Incompatible> {
    let is_short = name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control);
    let expected = format!("at most {MAX_NAME_BYTES} without control characters");
    possible(is_short, field, format!("{} bytes", name.len()), expected)
}

fn possible(
    is_possible: bool,
    field: &'static str,
    value: impl ToString,
    expected: String,
) -> Result<(), Incompatible> {
    if is_possible {
        return Ok(());
    }
    Err(Incompatible::Absurd { field, value: value.to_string(), expected })
}

/// The number of a kernel table's numerics on a worker. Releases that do not report it have 1.
pub fn numerics(caps: &Capabilities, table: &str) -> u32 {
    let mut tables = caps.kernel_tables.iter().zip(&caps.kernel_numerics);
    tables.find(|(name, _)| *name == table).map_or(1, |(_, numerics)| *numerics)
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
    let knows = |wanted| caps.features().any(|feature| feature == wanted);
    if needs.adapters && !knows(Feature::Adapters) {
        return Err(Incompatible::Older { what: "adapters", option: "--lora" });
    }
    if needs.control_vectors && !knows(Feature::ControlVectors) {
        let what = "control vectors";
        return Err(Incompatible::Older { what, option: "--control-vector" });
    }
    if let Some(kernels) = &needs.kernels {
        require("kernel table", kernels, caps.kernel_tables.iter().map(String::as_str))?;
        // Its own table is the first one. GPUs are called `vulkan:0`, tables of CPUs by one word.
        let device = caps.kernel_tables.first().filter(|own| own.contains(':') && *own != kernels);
        if let Some(device) = device {
            let (device, kernels) = (device.clone(), kernels.clone());
            return Err(Incompatible::Gpu { device, kernels });
        }
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
    use crate::control::ProductSpeeds;

    use super::*;

    fn worker() -> Capabilities {
        Capabilities {
            architectures: vec!["llama".into(), "qwen3".into()],
            quant_types: vec!["F32".into(), "Q8_0".into()],
            wire_types: vec![WireType::F32.into()],
            kv_types: vec![KvType::F16.into()],
            kernel_tables: vec!["avx2".into()],
            threads: 2,
            memory_limit: 1 << 30,
            memory_free: 1 << 29,
            gb_per_second: 10.0,
            gop_per_second: 100.0,
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
            adapters: false,
            control_vectors: false,
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
            (Requirements { adapters: true, ..needs() }, "start without --lora"),
            (Requirements { control_vectors: true, ..needs() }, "start without --control-vector"),
        ];
        for (needs, word) in cases {
            let reason = check_capabilities(&worker(), &needs).unwrap_err().to_string();
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn a_gpu_is_not_taken_for_a_cpu() {
        let tables = ["vulkan:0", "avx2", "unfused"].map(str::to_owned).to_vec();
        let gpu = Capabilities { kernel_tables: tables, ..worker() };
        let wanted = |kernels: &str| Requirements { kernels: Some(kernels.into()), ..needs() };
        let refused = check_capabilities(&gpu, &wanted("unfused")).unwrap_err().to_string();
        assert!(refused.contains("it computes on vulkan:0"), "{refused}");
        assert_eq!(check_capabilities(&gpu, &wanted("vulkan:0")), Ok(()));
        assert_eq!(check_capabilities(&gpu, &needs()), Ok(()));
    }

    fn node(stages: u32, memory_limit: u64) -> Option<NodePart> {
        Some(NodePart { stages, memory_limit, ..NodePart::default() })
    }

    #[test]
    fn absurd_claims_are_named() {
        assert_eq!(check_claims(&worker()), Ok(()));
        type Change = fn(&mut Capabilities);
        let cases: [(&str, Change); 16] = [
            ("gb_per_second is NaN", |c| c.gb_per_second = f64::NAN),
            ("gb_per_second is inf", |c| c.gb_per_second = f64::INFINITY),
            ("gb_per_second is 0", |c| c.gb_per_second = 0.0),
            ("gop_per_second is -1", |c| c.gop_per_second = -1.0),
            ("gop_per_second is 1000000000000", |c| c.gop_per_second = 1e12),
            ("products.q6_k is 0", |c| c.products = Some(ProductSpeeds::default())),
            ("products.f16 is inf", |c| {
                let (q6_k, q8_0, f16) = (1.0, 1.0, f64::INFINITY);
                c.products = Some(ProductSpeeds { q6_k, q8_0, f16 });
            }),
            ("memory_limit is 0", |c| c.memory_limit = 0),
            ("memory_limit is 18446744073709551615", |c| c.memory_limit = u64::MAX),
            ("memory_free is 1073741825", |c| c.memory_free = (1 << 30) + 1),
            ("node.memory_limit is 1", |c| c.node = node(2, 1)),
            ("node.stages is 65", |c| c.node = node(65, 1 << 31)),
            ("threads is 0", |c| c.threads = 0),
            ("threads is 4294967295", |c| c.threads = u32::MAX),
            ("architectures is 257", |c| c.architectures = vec!["x".into(); 257]),
            ("host_id is 4097 bytes", |c| c.host_id = "x".repeat(4097)),
        ];
        for (words, change) in cases {
            let mut caps = worker();
            change(&mut caps);
            let reason = check_claims(&caps).unwrap_err().to_string();
            assert!(reason.contains(words), "{words}: {reason}");
        }
    }

    #[test]
    fn the_newest_version_that_both_know_is_spoken() {
        let (old, new) = (OLDEST_WIRE_VERSION, WIRE_VERSION);
        // From before there was a range.
        assert_eq!(check_version(old, 0, "brigade 8"), Ok(old));
        assert_eq!(check_version(new, 0, "brigade 9"), Ok(new));
        assert_eq!(check_version(old, new, "brigade 9"), Ok(new));
        assert_eq!(check_version(new, new + 1, "brigade 10"), Ok(new));
        assert_eq!(check_version(old - 1, old, "brigade 8"), Ok(old));
    }

    #[test]
    fn another_version_is_refused_with_both_numbers_and_what_to_do() {
        for (oldest, newest, theirs) in [
            (WIRE_VERSION + 1, WIRE_VERSION + 2, WIRE_VERSION + 1),
            (WIRE_VERSION + 1, 0, WIRE_VERSION + 1),
            (OLDEST_WIRE_VERSION - 2, OLDEST_WIRE_VERSION - 1, OLDEST_WIRE_VERSION - 1),
            (0, 0, 0),
        ] {
            let reason = check_version(oldest, newest, "brigade 99").unwrap_err().to_string();
            let theirs = format!("version {theirs} of the wire (brigade 99)");
            let ours = format!("{OLDEST_WIRE_VERSION} to {WIRE_VERSION}");
            assert!(reason.contains(&theirs) && reason.contains(&ours), "{reason}");
            assert!(reason.contains("upgrade the older"), "{reason}");
        }
    }
}
