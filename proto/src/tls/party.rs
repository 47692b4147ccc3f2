//! The identity of a process: role and name, as its certificate has them (`brigade://ROLE/NAME`). Also the rule that
//! binds a coordinator's id to its key.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::TlsError;
use super::key::{KeyId, PublicKey};

/// How a certificate's name begins.
const SCHEME: &str = "brigade://";
/// How the second name in the certificate of a node's stage begins; the id of the node's key follows. Releases that know no
/// stages do not look at it.
const NODE_SCHEME: &str = "urn:brigade:node:";
/// Bytes of a party's name.
pub const MAX_PARTY_NAME_BYTES: usize = 63;
/// The separator between the parts of a coordinator's id. No name has one.
const SEPARATOR: char = ':';

/// The role of a process, which decides what it may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Takes workers and gives them layers.
    Coordinator,
    /// Runs layers, and sends to the worker after it.
    Worker,
    /// May only ask for a certificate: the role that a process claims before it has one.
    Newcomer,
}

impl Role {
    /// The role's name in certificates.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Worker => "worker",
            Self::Newcomer => "newcomer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = [Self::Coordinator, Self::Worker, Self::Newcomer];
        all.into_iter().find(|role| role.name() == text).ok_or(())
    }
}

/// The owner of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// The owner's role.
    pub role: Role,
    /// The owner's name.
    pub name: String,
    /// The id of the owner's key.
    pub key: KeyId,
    /// The key of the node whose stage the owner is; it is believed as long as that one is.
    pub node: Option<KeyId>,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (key {})", self.role, self.name, self.key.short())
    }
}

/// The peer at the other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Who {
    /// A plain connection: any process that can reach this socket.
    #[default]
    Anybody,
    /// A party whose certificate the cluster's authority signed.
    Known(Arc<Party>),
    /// A party that has proved that it has this key, and nothing else.
    Stranger(PublicKey),
}

impl Who {
    /// The party, where it is known.
    pub fn party(&self) -> Option<&Party> {
        match self {
            Self::Known(party) => Some(party),
            Self::Anybody | Self::Stranger(_) => None,
        }
    }

    /// Whether it may speak as the coordinator `id`: over a plain connection that is a secret, over TLS the
    /// id must be one of the peer's own key.
    pub fn speaks_for(&self, id: &str) -> bool {
        match self {
            Self::Anybody => bound_parts(id).is_none(),
            Self::Known(party) => bound_parts(id)
                .is_some_and(|(name, key)| name == party.name && key == party.key.to_string()),
            Self::Stranger(_) => false,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anybody => f.write_str("a plain connection"),
            Self::Known(party) => party.fmt(f),
            Self::Stranger(key) => write!(f, "a stranger (key {})", key.id().short()),
        }
    }
}

/// A coordinator's id that is bound to its certificate: its name, its key, and what tells its processes apart.
pub fn coordinator_id(party: &Party, unique: &str) -> String {
    format!("{}{SEPARATOR}{}{SEPARATOR}{unique}", party.name, party.key)
}

/// Name and key of an id that [`coordinator_id`] made.
fn bound_parts(id: &str) -> Option<(&str, &str)> {
    let (name, rest) = id.split_once(SEPARATOR)?;
    let (key, _) = rest.split_once(SEPARATOR)?;
    Some((name, key))
}

/// The name of the coordinator `id` that others may see: the name in its certificate, without the part that tells its
/// processes apart.
pub fn holder_name(id: &str) -> Option<String> {
    let (name, key) = bound_parts(id)?;
    Some(format!("{name} (key {})", key.get(..8).unwrap_or(key)))
}

/// Whether the coordinator `id` has this key.
pub fn is_of_key(id: &str, key: &KeyId) -> bool {
    bound_parts(id).is_some_and(|(_, of)| of == key.to_string())
}

/// Checks a party's name: 1 to 63 letters, digits, dots and hyphens, not at its ends.
///
/// # Errors
/// [`TlsError::Malformed`].
pub fn check_name(name: &str) -> Result<(), TlsError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let at_ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits = name.len() <= MAX_PARTY_NAME_BYTES
        && name.chars().all(inner)
        && at_ends(name.chars().next())
        && at_ends(name.chars().last());
    if fits {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_PARTY_NAME_BYTES).collect();
    let problem = format!(
        "\"{shown}\" cannot be a node's name: write 1 to {MAX_PARTY_NAME_BYTES} letters, digits, dots and hyphens"
    );
    Err(TlsError::malformed("name", problem))
}

/// The name in a certificate.
pub(super) fn uri(role: Role, name: &str) -> String {
    format!("{SCHEME}{role}/{name}")
}

/// The name of a node's key, in the certificate of its stage.
pub(super) fn node_uri(node: &KeyId) -> String {
    format!("{NODE_SCHEME}{node}")
}

/// The node's key that a certificate's name is of; `None` for any other name.
pub(super) fn parse_node_uri(uri: &str) -> Option<KeyId> {
    uri.strip_prefix(NODE_SCHEME)?.parse().ok()
}

/// Role and name of a certificate's name; `None` for any other.
pub(super) fn parse_uri(uri: &str) -> Option<(Role, String)> {
    let (role, name) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    check_name(name).ok()?;
    Some((role.parse().ok()?, name.to_owned()))
}
