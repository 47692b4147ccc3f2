//! Divides a node's resources among its stages: each stage is a worker with a share of them. Memory is not divided, nor is the
//! room for records of prefixes: a ledger has them. Copies of experts are: a stage sets memory aside for them when it is
//! loaded, and keeps it until it is unloaded. By need the first one would have all of it for as long as it stays.

use brigade_proto::address::Address;
use brigade_proto::tls::party::check_name;

use crate::backend::expert_placement::ExpertCache;
use crate::config::{Config, ConfigError, Secured, bad};
use crate::machine::share::Share;

/// The settings of a stage, of those of its node: an address of its own, and as much room for copies of experts as the others.
/// Memory and room for records are for all of them, as each needs it; threads and CPUs are for all of them, in turn. `at` is where the node listens for all of
/// them, once it does.
///
/// # Errors
/// There is too little of something for so many.
pub fn deal(share: Share, node: Config, at: Option<&Address>) -> Result<Config, ConfigError> {
    let mut stage = Config {
        listen: listen(share, &node, at)?,
        advertise: advertise(share, &node)?,
        is_behind_node: at.is_some(),
        share: Some(share),
        ..node
    };
    stage.expert_cache = match stage.expert_cache {
        ExpertCache::Bytes(bytes) => ExpertCache::Bytes(bytes / share.of as u64),
        // The first stage would leave the others nothing.
        ExpertCache::Rest => {
            let problem = "takes what one stage leaves, and this node has several: give a size";
            return Err(bad("--expert-cache", ExpertCache::AUTO, problem));
        }
    };
    if share.inherited.is_none() {
        // It has no ledger.
        stage.prefixes.ram /= share.of as u64;
        stage.prefixes.disk /= share.of as u64;
    }
    if let Secured::Member { name, .. } = &stage.secured {
        // The name that it will have.
        check_name(&format!("{name}.{}", share.number))?;
    }
    Ok(stage)
}

/// Where a stage listens: at the port of the node under its number, or at a port of its own.
fn listen(
    share: Share,
    node: &Config,
    at: Option<&Address>,
) -> Result<Option<Address>, ConfigError> {
    let Some(ports) = node.stage_ports else {
        let listen = at.or(node.listen.as_ref());
        return listen.map(|listen| numbered(share, "--listen", listen)).transpose();
    };
    let wrong = |problem| Err(bad("--stage-ports", ports.to_string(), problem));
    if ports.count() < share.of {
        return wrong(format!("are {} ports, for {} stages", ports.count(), share.of));
    }
    match &node.listen {
        Some(Address::Tcp { port, .. }) if *port == ports.first() => {
            node.listen.as_ref().map(|listen| nth_port(share, "--listen", listen)).transpose()
        }
        _ => wrong(format!(
            "are ports of the host that --listen names: give --listen HOST:{}",
            ports.first()
        )),
    }
}

/// Where others dial a stage; `None`: where it listens.
fn advertise(share: Share, node: &Config) -> Result<Option<Address>, ConfigError> {
    let of_stage = if node.stage_ports.is_some() { nth_port } else { numbered };
    node.advertise.as_ref().map(|address| of_stage(share, "--advertise", address)).transpose()
}

/// The node's address with the stage's number.
fn numbered(share: Share, option: &'static str, node: &Address) -> Result<Address, ConfigError> {
    match node {
        Address::Tcp { .. } => Ok(node.clone().of_stage(share.in_address())),
        Address::Unix(path) => {
            let problem = "is one socket, of one worker: a node's stages listen at HOST:PORT";
            Err(bad(option, format!("unix:{}", path.display()), problem))
        }
    }
}

/// The node's address with the stage's port: ports of stages follow each other.
fn nth_port(share: Share, option: &'static str, node: &Address) -> Result<Address, ConfigError> {
    let Address::Tcp { host, port, .. } = node else { return numbered(share, option, node) };
    let last = usize::from(*port) + share.of - 1;
    let own = u16::try_from(usize::from(*port) + share.number - 1);
    match own.ok().filter(|_| last <= usize::from(u16::MAX)) {
        Some(port) => Ok(Address::tcp(host, port)),
        None => {
            let problem = format!(
                "is the first of {} ports, of which the last would be {last}: name a lower one",
                share.of
            );
            Err(bad(option, node.to_string(), problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;
    use crate::prefixes::store::Sizes;

    fn dealt_at(raw: RawConfig, share: &str, at: Option<&Address>) -> Result<Config, String> {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
        let node = Config::validate(raw, &home).unwrap();
        deal(share.parse::<Share>()?, node, at).map_err(|error| error.to_string())
    }

    fn dealt(raw: RawConfig, share: &str) -> Result<Config, String> {
        dealt_at(raw, share, None)
    }

    fn address(text: &str) -> Option<Address> {
        Some(text.parse().unwrap())
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
    fn a_stage_has_its_part_and_no_identity_of_the_nodes() {
        let stage = dealt(raw(), "2/3").unwrap();
        assert_eq!(stage.listen, address("10.0.0.2:7070/2"));
        assert_eq!((stage.memory_bytes, stage.threads), (Some(12 << 30), Some(6)));
        assert_eq!(stage.prefixes.ram, 1 << 30);
        let shares = dealt(raw(), "2/3:7,8,9").unwrap();
        assert_eq!(shares.prefixes.ram, 3 << 30, "a ledger has it");
        let vouched = RawConfig { is_vouched: true, ..raw() };
        assert_eq!(dealt(vouched, "2/3").unwrap().secured, Secured::OfNode);
        let long = RawConfig { name: Some("x".repeat(62)), ..raw() };
        assert!(dealt(long, "2/3").unwrap_err().contains("cannot be a node's name"));
    }

    #[test]
    fn stages_have_the_nodes_port_together_or_one_each() {
        let outside = || RawConfig { advertise: Some("lab:9000".into()), ..raw() };
        let at = address("10.0.0.2:41234");
        for (share, listen, advertise) in
            [("1/3", "10.0.0.2:41234", "lab:9000"), ("3/3", "10.0.0.2:41234/3", "lab:9000/3")]
        {
            let stage = dealt_at(outside(), share, at.as_ref()).unwrap();
            assert_eq!((stage.listen, stage.advertise), (address(listen), address(advertise)));
            assert!(stage.is_behind_node);
        }
        let each = |ports: &str| RawConfig { stage_ports: ports.parse().ok(), ..outside() };
        let stage = dealt(each("7070-7073"), "3/3").unwrap();
        assert_eq!(
            (stage.listen, stage.advertise),
            (address("10.0.0.2:7072"), address("lab:9002"))
        );
        assert!(!stage.is_behind_node);
        let refused = |raw| dealt(raw, "1/3").unwrap_err();
        assert!(refused(each("7070-7071")).contains("are 2 ports, for 3 stages"));
        assert!(refused(each("7071-7073")).contains("give --listen HOST:7071"));
        let no_listen = RawConfig { listen: String::new(), ..each("7070-7073") };
        assert!(refused(no_listen).contains("give --listen HOST:7070"));
        let high = RawConfig { advertise: Some("lab:65534".into()), ..each("7070-7073") };
        assert!(refused(high).contains("name a lower one"));
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        let unix = RawConfig { listen: "unix:/run/w".into(), ..raw() };
        assert!(dealt(unix, "1/2").unwrap_err().contains("is one socket"));
        let cache = |size: &str| RawConfig { expert_cache: Some(size.into()), ..raw() };
        assert!(dealt(cache("auto"), "1/2").unwrap_err().contains("give a size"));
        let half = dealt(cache("4G"), "1/2").unwrap();
        assert_eq!(half.expert_cache, ExpertCache::Bytes(2 << 30));
        for text in ["0/2", "3/2", "1", "1/65", "a/b", "1/2:3,4", "1/2:a,b,c", "1/2:3,4,5,6"] {
            assert!(dealt(raw(), text).is_err(), "{text}");
        }
    }
}
