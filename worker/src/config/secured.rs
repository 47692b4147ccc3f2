//! By what a worker is known to its peers: the source of its TLS credentials, and its name.

use std::path::PathBuf;

use brigade_proto::tls::party::{MAX_PARTY_NAME_BYTES, check_name};
use brigade_proto::tls::{External, Token};

use super::{ConfigError, RawConfig, bad, default_data_dir};

/// The source of a worker's TLS credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secured {
    /// The worker speaks plain TCP.
    No,
    /// The credentials come from the coordinator that started it, on standard input.
    Parent,
    /// The certificates of an external authority.
    External(External),
    /// The worker is a stage of a node, which is a member and vouches for it.
    OfNode,
    /// The worker is a member of a coordinator's cluster.
    Member {
        /// Where its key and its certificate are kept.
        data_dir: PathBuf,
        /// The token for the first enrolment.
        token: Option<Token>,
        /// The name that it asks for.
        name: String,
    },
}

/// The source of credentials: the parent process, files of somebody else's authority, a data folder that is given, that a token
/// fills, or that an earlier start has filled; or none.
pub(super) fn secured(
    raw: &RawConfig,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Secured, ConfigError> {
    if raw.is_vouched {
        return Ok(Secured::OfNode);
    }
    if raw.credentials_on_stdin {
        return Ok(Secured::Parent);
    }
    if let Some(files) = &raw.external {
        return match raw.token {
            Some(_) => Err(bad("--token", "", "and --cluster-cert exclude each other")),
            None => Ok(Secured::External(files.clone())),
        };
    }
    let data_dir = match (&raw.data_dir, &raw.token, &raw.joined_dir) {
        (Some(dir), _, _) => dir.clone(),
        (None, Some(_), _) => default_data_dir(env)?,
        // The worker was started before, and has its credentials from then.
        (None, None, Some(dir)) if raw.join.is_some() && !raw.insecure_network => dir.clone(),
        (None, None, _) => return Ok(Secured::No),
    };
    if raw.join.is_none() {
        let problem = "needs --join: there the certificate comes from, and is renewed";
        return Err(match raw.data_dir {
            Some(_) => bad("--data-dir", data_dir.display().to_string(), problem),
            // A token is a secret, and is not shown.
            None => bad("--token", "", problem),
        });
    }
    let name = match &raw.name {
        Some(name) => name.clone(),
        None => node_name(),
    };
    check_name(&name)?;
    let token = raw.token.as_deref().map(str::parse).transpose()?;
    Ok(Secured::Member { data_dir, token, name })
}

/// The name of this machine, as a node's.
pub fn node_name() -> String {
    fit_name(&rustix::system::uname().nodename().to_string_lossy())
}

/// A machine's name as a node's: what no name can have becomes a hyphen.
pub(super) fn fit_name(machine: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = machine.chars().map(fit).take(MAX_PARTY_NAME_BYTES).collect();
    match name.trim_matches(['-', '.']) {
        "" => "worker".to_owned(),
        name => name.to_owned(),
    }
}
