//! What the user typed ([`RawConfig`]), and what a worker runs with ([`Config`]). One pure function turns the
//! first into the second, before anything is bound, created or measured.

use std::path::PathBuf;

use brigade_proto::address::{Address, AddressError};

/// Bytes of weights kept on disk unless `--cache-limit` says otherwise.
pub const DEFAULT_CACHE_LIMIT_BYTES: u64 = 64 << 30;
/// Compute threads accepted.
pub const MAX_THREADS: usize = 1024;
/// CPU numbers accepted.
pub const MAX_CPUS: usize = 4096;

/// The command line of `brigade worker`, as typed.
#[derive(Clone, Debug, Default)]
pub struct RawConfig {
    /// `--listen`: HOST:PORT (port 0: any free one) or unix:PATH.
    pub listen: String,
    /// `--join`: the coordinator's control address.
    pub join: Option<String>,
    /// `--advertise`: where others dial this worker; defaults to where it listens.
    pub advertise: Option<String>,
    /// `--memory`: bytes with an optional suffix, as in 12G.
    pub memory: Option<String>,
    /// `--threads`.
    pub threads: Option<usize>,
    /// `--kernels`.
    pub kernels: Option<String>,
    /// `--cpus`: a list as in 0-3,8.
    pub cpus: Option<String>,
    /// `--cache-dir`.
    pub cache_dir: Option<PathBuf>,
    /// `--cache-limit`: bytes with an optional suffix.
    pub cache_limit: Option<String>,
    /// `--no-model-files`.
    pub no_model_files: bool,
    /// `--insecure-network`.
    pub insecure_network: bool,
    /// `--exit-with-stdin`: leave when standard input ends (the parent is gone).
    pub exit_with_stdin: bool,
}

/// A worker's settings, all of them valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where to listen.
    pub listen: Address,
    /// Coordinator to join.
    pub join: Option<Address>,
    /// Where others dial this worker; `None`: where it listens.
    pub advertise: Option<Address>,
    /// Bytes a stage may take; `None`: what the machine or its cgroup leaves.
    pub memory_bytes: Option<u64>,
    /// Compute threads; `None`: one a CPU of `cpus`, or one a core.
    pub threads: Option<usize>,
    /// Kernel table; `None`: the best this CPU runs.
    pub kernels: Option<String>,
    /// CPUs that threads are pinned to; empty: not pinned.
    pub cpus: Vec<usize>,
    /// Where pushed weights and hashes are kept.
    pub cache_dir: PathBuf,
    /// Bound of the cache's size.
    pub cache_limit_bytes: u64,
    /// Whether a model file that the coordinator names may be read; otherwise weights are pushed.
    pub model_files: bool,
    /// Allows addresses beyond loopback.
    pub insecure_network: bool,
    /// Leave when standard input ends.
    pub exit_with_stdin: bool,
}

/// What is wrong with a setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An address.
    #[error("{option}: {source}")]
    Address {
        /// Which option.
        option: &'static str,
        /// What is wrong.
        source: AddressError,
    },
    /// A CPU that this process cannot have.
    #[error("{option} names CPU {cpu}, and this process may use {allowed}")]
    Cpu {
        /// Which option.
        option: &'static str,
        /// Which CPU.
        cpu: usize,
        /// Those it may use, as in 0-3,8.
        allowed: String,
    },
    /// Anything else.
    #[error("{option}: \"{value}\" {problem}")]
    Value {
        /// Which option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
}

impl Config {
    /// Checks and completes what was typed. `env` looks up environment variables (for the default
    /// cache directory).
    ///
    /// # Errors
    /// [`ConfigError`], naming the option.
    pub fn validate(
        raw: RawConfig,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let address = |option, text: &str| {
            text.parse::<Address>().map_err(|source| ConfigError::Address { option, source })
        };
        let join = raw.join.as_deref().map(|text| address("--join", text)).transpose()?;
        let advertise =
            raw.advertise.as_deref().map(|text| address("--advertise", text)).transpose()?;
        if advertise.is_some() && join.is_none() {
            let problem = "is only said to a coordinator: give --join too";
            return Err(bad("--advertise", raw.advertise.unwrap_or_default(), problem));
        }
        if let Some(threads) = raw.threads.filter(|n| !(1..=MAX_THREADS).contains(n)) {
            let problem = format!("must be 1 to {MAX_THREADS}");
            return Err(bad("--threads", threads.to_string(), problem));
        }
        let bytes = |option, text: &Option<String>| {
            text.as_deref().map(|text| parse_bytes(option, text)).transpose()
        };
        Ok(Self {
            listen: address("--listen", &raw.listen)?,
            join,
            advertise,
            memory_bytes: bytes("--memory", &raw.memory)?,
            threads: raw.threads,
            kernels: raw.kernels,
            cpus: raw.cpus.as_deref().map(parse_cpus).transpose()?.unwrap_or_default(),
            cache_dir: match raw.cache_dir {
                Some(dir) => dir,
                None => default_cache_dir(env)?,
            },
            cache_limit_bytes: bytes("--cache-limit", &raw.cache_limit)?
                .unwrap_or(DEFAULT_CACHE_LIMIT_BYTES),
            insecure_network: raw.insecure_network,
            model_files: !raw.no_model_files,
            exit_with_stdin: raw.exit_with_stdin,
        })
    }
}

/// `$XDG_CACHE_HOME/brigade`, or `~/.cache/brigade`.
///
/// # Errors
/// Neither variable is set.
pub fn default_cache_dir(env: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf, ConfigError> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let problem = "has no default, because neither XDG_CACHE_HOME nor HOME is set: give one";
    Ok(base.ok_or_else(|| bad("--cache-dir", String::new(), problem))?.join("brigade"))
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
    let mut cpus = Vec::new();
    for item in text.split(',') {
        let (first, last) = item.trim().split_once('-').unwrap_or((item.trim(), item.trim()));
        let first: usize = first.trim().parse().map_err(|_| wrong())?;
        let last: usize = last.trim().parse().map_err(|_| wrong())?;
        if first > last || last >= MAX_CPUS {
            return Err(wrong());
        }
        for cpu in first..=last {
            if !cpus.contains(&cpu) {
                cpus.push(cpu);
            }
        }
    }
    Ok(cpus)
}

fn bad(option: &'static str, value: impl Into<String>, problem: impl Into<String>) -> ConfigError {
    ConfigError::Value { option, value: value.into(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
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
        assert!(Config::validate(raw(), &|_| None).is_err());
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
    fn each_wrong_option_is_named() {
        let cases = [
            (RawConfig { listen: "nowhere".into(), ..raw() }, "--listen"),
            (RawConfig { join: Some("x".into()), ..raw() }, "--join"),
            (RawConfig { advertise: Some("h:1".into()), ..raw() }, "--advertise"),
            (RawConfig { memory: Some("much".into()), ..raw() }, "--memory"),
            (RawConfig { threads: Some(0), ..raw() }, "--threads"),
            (RawConfig { cpus: Some("x".into()), ..raw() }, "--cpus"),
            (RawConfig { cache_limit: Some("0".into()), ..raw() }, "--cache-limit"),
        ];
        for (raw, option) in cases {
            let reason = Config::validate(raw, &home).unwrap_err().to_string();
            assert!(reason.contains(option), "{reason}");
        }
    }
}
