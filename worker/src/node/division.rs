//! Divides a node's resources among its stages: each stage is a worker with a share of them. Memory is not divided: a
//! ledger has it.

use brigade_proto::address::Address;

use crate::config::{Config, ConfigError, Secured, bad};
use crate::machine::share::Share;

/// The settings of a stage, of those of its node: an address and a name of its own, and as much room for records as the
/// others. Memory is for all of them, as each needs it; threads and CPUs are for all of them, in turn.
///
/// # Errors
/// There is too little of something for so many.
pub fn deal(share: Share, node: Config) -> Result<Config, ConfigError> {
    let mut stage = Config {
        listen: node.listen.map(|listen| address(share, "--listen", listen)).transpose()?,
        advertise: match node.advertise {
            Some(advertise) => Some(address(share, "--advertise", advertise)?),
            None => None,
        },
        exit_with_stdin: true,
        share: Some(share),
        ..node
    };
    stage.expert_cache_bytes /= share.of as u64;
    stage.prefixes.ram /= share.of as u64;
    stage.prefixes.disk /= share.of as u64;
    if let Secured::Member { data_dir, name, .. } = &mut stage.secured {
        *data_dir = share.folder(data_dir);
        *name = format!("{name}.{}", share.number);
    }
    Ok(stage)
}

/// A stage's address, from the node's: the ports of a node's stages follow each other.
fn address(share: Share, option: &'static str, node: Address) -> Result<Address, ConfigError> {
    match node {
        Address::Tcp { host, port: 0 } => Ok(Address::Tcp { host, port: 0 }),
        Address::Tcp { host, port } => {
            let last = usize::from(port) + share.of - 1;
            let own = u16::try_from(usize::from(port) + share.number - 1);
            match own.ok().filter(|_| last <= usize::from(u16::MAX)) {
                Some(port) => Ok(Address::Tcp { host, port }),
                None => {
                    let problem = format!(
                        "is the first of {} ports, of which the last would be {last}: name a lower one",
                        share.of
                    );
                    Err(bad(option, format!("{host}:{port}"), problem))
                }
            }
        }
        Address::Unix(path) => {
            let problem =
                "is one socket: a node's stages listen at HOST:PORT and the ports behind it";
            Err(bad(option, format!("unix:{}", path.display()), problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;
    use crate::prefixes::store::Sizes;

    fn dealt(raw: RawConfig, share: &str) -> Result<Config, String> {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
        let node = Config::validate(raw, &home).unwrap();
        deal(share.parse::<Share>()?, node).map_err(|error| error.to_string())
    }

    fn raw() -> RawConfig {
        RawConfig {
            listen: "10.0.0.2:7070".into(),
            join: Some("10.0.0.1:7000".into()),
            data_dir: Some("/data".into()),
            name: Some("lab".into()),
            memory: Some("12G".into()),
            prefixes: Sizes { ram: 3 << 30, disk: 0 },
            threads: Some(6),
            ..RawConfig::default()
        }
    }

    #[test]
    fn a_stage_has_its_part_and_a_name_of_its_own() {
        let stage = dealt(raw(), "2/3").unwrap();
        assert_eq!(stage.listen, Some("10.0.0.2:7071".parse().unwrap()));
        assert_eq!((stage.memory_bytes, stage.threads), (Some(12 << 30), Some(6)));
        assert_eq!(stage.prefixes.ram, 1 << 30);
        let (data_dir, name) = ("/data/stage-2".into(), "lab.2".to_owned());
        assert_eq!(stage.secured, Secured::Member { data_dir, token: None, name });
        assert!(stage.exit_with_stdin);
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        let at = |listen: &str| RawConfig { listen: listen.into(), ..raw() };
        assert_eq!(
            dealt(at("127.0.0.1:0"), "2/2").unwrap().listen,
            Some("127.0.0.1:0".parse().unwrap())
        );
        assert!(dealt(at("127.0.0.1:65534"), "1/3").unwrap_err().contains("name a lower one"));
        assert!(dealt(at("unix:/run/w"), "1/2").unwrap_err().contains("is one socket"));
        for text in ["0/2", "3/2", "1", "1/65", "a/b", "1/2:3,4", "1/2:a,b,c", "1/2:3,4,5,6"] {
            assert!(dealt(raw(), text).is_err(), "{text}");
        }
    }
}
