//! The command line as the user typed it ([`RawConfig`]), and a worker's valid settings ([`Config`]). One function turns the
//! first into the second, before anything is bound or measured. Where there is no folder for a cache, it makes one in the system's
//! temporary place; it creates nothing else.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

mod error;
mod ports;
mod secured;

use brigade_engine::device::DeviceWish;
use brigade_proto::address::{Address, FIRST_STAGE};
use brigade_proto::tls::External;

pub use error::ConfigError;
pub(crate) use error::bad;
pub use ports::Ports;
use secured::secured;
pub use secured::{Secured, node_name};

use crate::backend::expert_placement::{ExpertCache, Experts, Raw, Wrong, device_of};
use crate::backend::measure::{MEASURED_VARIABLE, Measured, Speeds};
use crate::backend::product_class::ByClass;
use crate::machine::cpu_list;
use crate::machine::numa::Numa;
use crate::machine::share::Share;
use crate::prefixes::store::Sizes;
use crate::records::BYTES_PER_SECOND;

/// Bytes of weights kept on disk unless `--cache-limit` says otherwise.
pub const DEFAULT_CACHE_LIMIT_BYTES: u64 = 64 << 30;
/// Where a worker that joins listens unless `--listen` says otherwise.
pub const DEFAULT_PORT: u16 = 7070;
/// Limit of `--threads`.
pub const MAX_THREADS: usize = 1024;

/// The command line of `brigade worker`, as typed.
#[derive(Clone, Debug, Default)]
pub struct RawConfig {
    /// `--listen`: HOST:PORT (port 0: any free one) or unix:PATH; empty where it is not said.
    pub listen: String,
    /// `--join`: the coordinator's control address.
    pub join: Option<String>,
    /// `--advertise`: where others dial this worker; defaults to where it listens.
    pub advertise: Option<String>,
    /// `--stage-ports`.
    pub stage_ports: Option<Ports>,
    /// `--memory`: bytes with an optional suffix, as in 12G.
    pub memory: Option<String>,
    /// `--threads`.
    pub threads: Option<usize>,
    /// `--host-memory`: as `--memory`, where stages lie in the host's memory.
    pub host_memory: Option<String>,
    /// `--gpu-memory`: as `--memory`, where stages lie in a GPU's own memory.
    pub gpu_memory: Option<String>,
    /// `--device`.
    pub device: Option<String>,
    /// `--experts`.
    pub experts: Option<String>,
    /// `--cpu-moe`.
    pub cpu_moe: bool,
    /// `--n-cpu-moe`.
    pub n_cpu_moe: Option<u32>,
    /// `--expert-cache`: bytes as in `--memory`, or `auto`.
    pub expert_cache: Option<String>,
    /// `--no-coopmat`.
    pub no_coopmat: bool,
    /// `--fast-math`.
    pub fast_math: bool,
    /// `--gpu-lost-after`.
    pub gpu_lost_after: Option<u64>,
    /// `--kernels`.
    pub kernels: Option<String>,
    /// `--cpus`: a list as in 0-3,8.
    pub cpus: Option<String>,
    /// `--numa`: auto or off.
    pub numa: Option<String>,
    /// `--speed`: GB/s and GOP/s, as in 40,900.
    pub speed: Option<String>,
    /// `--cache-dir`.
    pub cache_dir: Option<PathBuf>,
    /// `--cache-limit`: bytes with an optional suffix.
    pub cache_limit: Option<String>,
    /// `--prefix-ram` and `--prefix-disk`.
    pub prefixes: Sizes,
    /// `--record-rate`: bytes with an optional suffix.
    pub record_rate: Option<String>,
    /// `--no-model-files`.
    pub no_model_files: bool,
    /// `--insecure-network`.
    pub insecure_network: bool,
    /// `--token`.
    pub token: Option<String>,
    /// `--name`.
    pub name: Option<String>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// The default data folder, if a worker has joined a cluster from there before: it is then used again without `--data-dir`.
    pub joined_dir: Option<PathBuf>,
    /// `--cluster-cert`, `--cluster-key` and `--cluster-ca`.
    pub external: Option<External>,
    /// `--credentials-on-stdin`: the parent says who this worker is.
    pub credentials_on_stdin: bool,
    /// `--vouched`: a node vouches for this stage.
    pub is_vouched: bool,
    /// `--exit-with-stdin`: leave when standard input ends (the parent is gone).
    pub exit_with_stdin: bool,
}

/// A worker's settings, all of them valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where to listen; `None`: on [`DEFAULT_PORT`] of the address by which this machine reaches the coordinator.
    pub listen: Option<Address>,
    /// The coordinator to join.
    pub join: Option<Address>,
    /// Where others dial this worker; `None`: where it listens.
    pub advertise: Option<Address>,
    /// Ports of a node's stages, one for each; `None`: they have the node's port together.
    pub stage_ports: Option<Ports>,
    /// Bytes a stage may take; `None`: what the machine, its cgroup or the GPU leaves.
    pub memory_bytes: Option<u64>,
    /// The same, for stages in the host's memory alone.
    pub host_memory_bytes: Option<u64>,
    /// The same, for stages in a GPU's own memory alone.
    pub gpu_memory_bytes: Option<u64>,
    /// Compute threads; `None`: one a CPU of `cpus`, or one a core.
    pub threads: Option<usize>,
    /// The device that computes.
    pub device: DeviceWish,
    /// Where routed experts are beside a GPU.
    pub experts: Experts,
    /// The GPU's memory for copies of those with the host that are used most.
    pub expert_cache: ExpertCache,
    /// Whether a GPU's matrix units are used.
    pub matrix_units: bool,
    /// Whether products of many rows are computed in f16 on a GPU, or in pairs of bfloat16 values, with bits of their own.
    pub fast_math: bool,
    /// For tests: the number of command batches after which the GPU counts as lost, once.
    pub gpu_lost_after: Option<u64>,
    /// CPUs that threads are pinned to; empty: not pinned.
    pub cpus: Vec<usize>,
    /// Whether threads and weights are placed on NUMA nodes.
    pub numa: Numa,
    /// Speeds to tell the planner; `None`: those measured at start.
    pub speeds: Option<Speeds>,
    /// What another stage of the node has measured.
    pub measured: Option<Measured>,
    /// Where pushed weights and hashes are kept.
    pub cache_dir: PathBuf,
    /// Bound of the cache's size.
    pub cache_limit_bytes: u64,
    /// How much records of kept prefixes may take, in memory and in `cache_dir`.
    pub prefixes: Sizes,
    /// Bytes a second that are written to records at most.
    pub record_rate: u64,
    /// Whether a model file that the coordinator names may be read; otherwise weights are pushed.
    pub model_files: bool,
    /// Allows plain connections beyond loopback.
    pub insecure_network: bool,
    /// The source of its TLS credentials.
    pub secured: Secured,
    /// Leave when standard input ends.
    pub exit_with_stdin: bool,
    /// The stage of a node that this process is; `None`: a worker of its own.
    pub share: Option<Share>,
    /// The node listens, and hands over connections on standard input.
    pub is_behind_node: bool,
}

impl Config {
    /// Checks the command line's values, and completes them. `env` looks up environment variables (for the default cache and
    /// data folders).
    ///
    /// # Errors
    /// [`ConfigError`], naming the option.
    pub fn validate(
        raw: RawConfig,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let address = |option, text: &str| {
            let address = text.parse::<Address>();
            let address = address.map_err(|source| ConfigError::Address { option, source })?;
            match address.stage() {
                FIRST_STAGE => Ok(address),
                _ => Err(bad(option, text, "names a stage of a node: leave its number out here")),
            }
        };
        let join = raw.join.as_deref().map(|text| address("--join", text)).transpose()?;
        let advertise =
            raw.advertise.as_deref().map(|text| address("--advertise", text)).transpose()?;
        if advertise.is_some() && join.is_none() {
            let problem = "is only said to a coordinator: give --join too";
            return Err(bad("--advertise", raw.advertise.unwrap_or_default(), problem));
        }
        let secured = secured(&raw, env)?;
        let listen = match raw.listen.as_str() {
            "" if join.is_some() => None,
            "" => return Err(bad("--listen", "", "is needed where there is no --join")),
            text => Some(address("--listen", text)?),
        };
        if let Some(threads) = raw.threads.filter(|n| !(1..=MAX_THREADS).contains(n)) {
            let problem = format!("must be 1 to {MAX_THREADS}");
            return Err(bad("--threads", threads.to_string(), problem));
        }
        if raw.fast_math && raw.no_coopmat {
            let problem = "uses the matrix units that --no-coopmat leaves alone: give one of them";
            return Err(bad("--fast-math", "", problem));
        }
        let (device, experts) = device_and_experts(&raw)?;
        let bytes = |option, text: &Option<String>| {
            text.as_deref().map(|text| parse_bytes(option, text)).transpose()
        };
        Ok(Self {
            listen,
            secured,
            join,
            advertise,
            stage_ports: raw.stage_ports,
            memory_bytes: bytes("--memory", &raw.memory)?,
            host_memory_bytes: bytes("--host-memory", &raw.host_memory)?,
            gpu_memory_bytes: bytes("--gpu-memory", &raw.gpu_memory)?,
            threads: raw.threads,
            device,
            experts,
            expert_cache: expert_cache(raw.expert_cache.as_deref())?,
            matrix_units: !raw.no_coopmat,
            fast_math: raw.fast_math,
            gpu_lost_after: raw.gpu_lost_after,
            cpus: raw.cpus.as_deref().map(parse_cpus).transpose()?.unwrap_or_default(),
            numa: raw.numa.as_deref().map_or(Ok(Numa::default()), parse_numa)?,
            speeds: raw.speed.as_deref().map(parse_speeds).transpose()?,
            // Of the node, and not typed: without it the stage measures.
            measured: env(MEASURED_VARIABLE).and_then(|text| serde_json::from_str(&text).ok()),
            cache_dir: raw.cache_dir.map_or_else(|| default_cache_dir(env), Ok)?,
            cache_limit_bytes: bytes("--cache-limit", &raw.cache_limit)?
                .unwrap_or(DEFAULT_CACHE_LIMIT_BYTES),
            prefixes: raw.prefixes,
            record_rate: bytes("--record-rate", &raw.record_rate)?.unwrap_or(BYTES_PER_SECOND),
            insecure_network: raw.insecure_network,
            model_files: !raw.no_model_files,
            exit_with_stdin: raw.exit_with_stdin,
            share: None,
            is_behind_node: false,
        })
    }
}

/// The memory for copies of experts, as typed.
fn expert_cache(text: Option<&str>) -> Result<ExpertCache, ConfigError> {
    match text {
        None => Ok(ExpertCache::Bytes(0)),
        Some(ExpertCache::AUTO) => Ok(ExpertCache::Rest),
        Some(size) => parse_bytes("--expert-cache", size).map(ExpertCache::Bytes),
    }
}

/// The device that computes, and the place of routed experts beside it.
fn device_and_experts(raw: &RawConfig) -> Result<(DeviceWish, Experts), ConfigError> {
    let said = Raw {
        device: raw.device.as_deref(),
        kernels: raw.kernels.as_deref(),
        fast_math: raw.fast_math,
        experts: raw.experts.as_deref(),
        cpu_moe: raw.cpu_moe,
        n_cpu_moe: raw.n_cpu_moe,
    };
    device_of(&said).map_err(|Wrong { option, value, problem }| bad(option, value, problem))
}

/// The default data folder: `$XDG_DATA_HOME/brigade`, or `~/.local/share/brigade`.
///
/// # Errors
/// Neither variable is set.
pub fn default_data_dir(env: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf, ConfigError> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    let problem = "has no default, because neither XDG_DATA_HOME nor HOME is set: give one";
    Ok(base.ok_or_else(|| bad("--data-dir", String::new(), problem))?.join("brigade"))
}

/// Environment variable that says where Mesa's drivers keep what they compiled.
pub const MESA_CACHE_VARIABLE: &str = "MESA_SHADER_CACHE_DIR";

/// `$XDG_CACHE_HOME/brigade`, or `~/.cache/brigade`, or where neither variable is set, a folder in the system's temporary
/// place, with a warning.
///
/// # Errors
/// The temporary folder cannot be made, or others can write to it.
pub fn default_cache_dir(env: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf, ConfigError> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    match base {
        Some(base) => Ok(base.join("brigade")),
        None => temporary_cache_dir(env, NO_HOME),
    }
}

/// A folder of this user's in the system's temporary place, with a warning that says `why` the one at home is not used.
///
/// # Errors
/// The folder cannot be made, or others can write to it.
pub fn temporary_cache_dir(
    env: &dyn Fn(&str) -> Option<String>,
    why: &str,
) -> Result<PathBuf, ConfigError> {
    let temporary = env("TMPDIR").filter(|value| !value.is_empty());
    homeless_cache_dir(Path::new(temporary.as_deref().unwrap_or("/tmp")), why)
}

/// Why there is no folder at home.
const NO_HOME: &str = "neither XDG_CACHE_HOME nor HOME is set";

/// Said once by each process.
static HOMELESS: Once = Once::new();

/// A folder in the system's temporary place for users without a home: cron, a container, a unit of systemd. Others
/// can write to that place, so the folder must belong to this user alone.
fn homeless_cache_dir(temporary: &Path, homeless: &str) -> Result<PathBuf, ConfigError> {
    let refuse = |folder: &Path, why: String| {
        let problem = format!(
            "cannot be used ({why}); {homeless}: set XDG_CACHE_HOME to a folder of this user's"
        );
        bad("the cache folder", folder.display().to_string(), problem)
    };
    let user = fs::metadata("/proc/self").or_else(|_| fs::metadata(temporary));
    let user = user.map_err(|error| refuse(temporary, error.to_string()))?.uid();
    let folder = temporary.join(format!("brigade-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(refuse(&folder, error.to_string())),
    }
    let found = fs::symlink_metadata(&folder).map_err(|e| refuse(&folder, e.to_string()))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        return Err(refuse(
            &folder,
            "it is not a folder that this user alone can write to".to_owned(),
        ));
    }
    HOMELESS.call_once(|| {
        tracing::warn!(
            folder = %folder.display(),
            "{homeless}: the cache is kept in this temporary folder, which the system may delete"
        );
    });
    Ok(folder)
}

/// A size as typed: a number with an optional suffix K, M, G or T, powers of 1024.
///
/// # Errors
/// [`ConfigError::Value`], naming `option`.
pub fn parse_bytes(option: &'static str, text: &str) -> Result<u64, ConfigError> {
    let upper = text.trim().to_ascii_uppercase();
    let trimmed = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match trimmed.char_indices().last() {
        Some((at, 'K')) => (&trimmed[..at], 10),
        Some((at, 'M')) => (&trimmed[..at], 20),
        Some((at, 'G')) => (&trimmed[..at], 30),
        Some((at, 'T')) => (&trimmed[..at], 40),
        _ => (trimmed, 0),
    };
    let unit = 1_u64 << shift;
    let nbytes = match (digits.parse::<u64>(), digits.parse::<f64>()) {
        (Ok(whole), _) => whole.checked_mul(unit),
        (_, Ok(part)) if part.is_finite() && part > 0.0 && shift > 0 => {
            // Fractions of a unit: f64 is exact far beyond any byte that matters here.
            Some((part * unit as f64) as u64)
        }
        _ => None,
    };
    nbytes.filter(|&n| n > 0).ok_or_else(|| {
        bad(option, text, "is not a size: write a number of bytes, or one with K, M, G or T (12G)")
    })
}

/// A CPU list as typed, in the order given, without repetitions.
///
/// # Errors
/// [`ConfigError::Value`].
pub fn parse_cpus(text: &str) -> Result<Vec<usize>, ConfigError> {
    let wrong = || bad("--cpus", text, "is not a CPU list: write numbers and ranges, as in 0-3,8");
    cpu_list::parse(text).ok_or_else(wrong)
}

/// Whether threads and weights are placed, as typed.
fn parse_numa(text: &str) -> Result<Numa, ConfigError> {
    text.parse().map_err(|_| bad("--numa", text, "is neither auto nor off"))
}

/// Speeds as typed: 10^9 bytes a second and 10^9 operations a second, which count for all classes of products.
///
/// # Errors
/// [`ConfigError::Value`].
pub fn parse_speeds(text: &str) -> Result<Speeds, ConfigError> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|v| v.is_finite() && *v > 0.0);
    let both = text.split_once(',').and_then(|(read, products)| {
        let gop_per_second = ByClass::all(number(products)?);
        Some(Speeds { gb_per_second: number(read)?, gop_per_second })
    });
    let problem = "is not a pair of speeds: write GB/s of memory and GOP/s of products (40,900), \
                   as a worker's log has them";
    both.ok_or_else(|| bad("--speed", text, problem))
}

#[cfg(test)]
mod tests {
    use brigade_proto::tls::party::check_name;
    use brigade_proto::tls::{KeyId, Token};

    use super::secured::fit_name;
    use super::*;

    fn raw() -> RawConfig {
        RawConfig { listen: "127.0.0.1:0".into(), ..RawConfig::default() }
    }

    fn home(name: &str) -> Option<String> {
        (name == "HOME").then(|| "/home/x".to_owned())
    }

    #[test]
    fn defaults_are_completed() {
        let config = Config::validate(raw(), &home).unwrap();
        assert_eq!(config.cache_dir, PathBuf::from("/home/x/.cache/brigade"));
        assert_eq!(config.cache_limit_bytes, DEFAULT_CACHE_LIMIT_BYTES);
    }

    #[test]
    fn without_a_home_the_cache_is_a_folder_of_ones_own_in_the_temporary_place() {
        let place = std::env::temp_dir().join(format!("brigade-homeless-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        let env = |name: &str| (name == "TMPDIR").then(|| place.to_str().unwrap().to_owned());
        let folder = Config::validate(raw(), &env).unwrap().cache_dir;
        assert_eq!(folder.parent(), Some(&*place));
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(Config::validate(raw(), &env).unwrap().cache_dir, folder, "it is there now");
        // A folder that another user may have made is not used.
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/", &folder).unwrap();
        let message = Config::validate(raw(), &env).unwrap_err().to_string();
        assert!(
            message.contains("XDG_CACHE_HOME") && !message.contains("--cache-dir"),
            "{message}"
        );
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn sizes() {
        for (text, nbytes) in [
            ("12G", 12 << 30),
            ("1.5g", 3 << 29),
            ("512MiB", 512 << 20),
            ("7", 7),
            ("2kb", 2048),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_bytes("--memory", text).unwrap(), nbytes, "{text}");
        }
        for text in ["", "G", "-1", "0", "1.5", "12X", "99999999999T", "nan", "infG"] {
            assert!(parse_bytes("--memory", text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("0-2,8, 1").unwrap(), [0, 1, 2, 8]);
        for text in ["", "a", "3-1", "1-", "0-99999999"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn speeds() {
        let speeds = Speeds { gb_per_second: 40.5, gop_per_second: ByClass::all(900.0) };
        assert_eq!(parse_speeds("40.5, 900").unwrap(), speeds);
    }

    #[test]
    fn a_token_or_a_folder_makes_a_member() {
        let join = || RawConfig { join: Some("127.0.0.1:7".into()), ..raw() };
        let token = Token { id: "0".repeat(12), secret: [7; 16], authority: KeyId::of_spki(b"ca") };
        let secured = |raw| Config::validate(raw, &home).map(|config| config.secured);
        assert_eq!(secured(join()).unwrap(), Secured::No);
        let with_token = || RawConfig { token: Some(token.to_string()), ..join() };
        let Secured::Member { data_dir, token: Some(given), name } = secured(with_token()).unwrap()
        else {
            panic!("a token makes no member");
        };
        assert_eq!(
            (data_dir, given),
            (PathBuf::from("/home/x/.local/share/brigade"), token.clone())
        );
        assert!(check_name(&name).is_ok(), "{name}");
        let folder =
            || RawConfig { data_dir: Some("/d".into()), name: Some("lab".into()), ..join() };
        let member = Secured::Member { data_dir: "/d".into(), token: None, name: "lab".into() };
        assert_eq!(secured(folder()).unwrap(), member);
        for (raw, word) in [
            (RawConfig { join: None, ..folder() }, "--data-dir"),
            (RawConfig { name: Some("a b".into()), ..folder() }, "a b"),
            (RawConfig { token: Some("brg1".into()), ..folder() }, "--token"),
            (RawConfig { listen: String::new(), join: None, ..raw() }, "--listen"),
        ] {
            let reason = Config::validate(raw, &home).unwrap_err().to_string();
            assert!(reason.contains(word), "{reason}");
        }
        let anywhere = RawConfig { listen: String::new(), ..with_token() };
        assert_eq!(Config::validate(anywhere, &home).unwrap().listen, None);
    }

    #[test]
    fn a_machines_name_becomes_a_nodes() {
        for (machine, name) in
            [("gpu_1", "gpu-1"), ("a.b", "a.b"), ("--", "worker"), ("", "worker")]
        {
            assert_eq!(fit_name(machine), name);
        }
    }

    #[test]
    fn each_wrong_option_is_named() {
        let cases = [
            (RawConfig { listen: "nowhere".into(), ..raw() }, "--listen"),
            (RawConfig { join: Some("x".into()), ..raw() }, "--join"),
            (RawConfig { listen: "127.0.0.1:7070/2".into(), ..raw() }, "--listen"),
            (RawConfig { advertise: Some("h:1".into()), ..raw() }, "--advertise"),
            (RawConfig { memory: Some("much".into()), ..raw() }, "--memory"),
            (RawConfig { threads: Some(0), ..raw() }, "--threads"),
            (RawConfig { numa: Some("on".into()), ..raw() }, "--numa"),
            (RawConfig { expert_cache: Some("all".into()), ..raw() }, "--expert-cache"),
            (RawConfig { cpus: Some("x".into()), ..raw() }, "--cpus"),
            (RawConfig { cache_limit: Some("0".into()), ..raw() }, "--cache-limit"),
            (RawConfig { fast_math: true, no_coopmat: true, ..raw() }, "--no-coopmat"),
            (RawConfig { speed: Some("40".into()), ..raw() }, "--speed"),
            (RawConfig { speed: Some("40,0".into()), ..raw() }, "--speed"),
            (RawConfig { speed: Some("inf,900".into()), ..raw() }, "--speed"),
        ];
        for (raw, option) in cases {
            let reason = Config::validate(raw, &home).unwrap_err().to_string();
            assert!(reason.contains(option), "{reason}");
        }
    }
}
