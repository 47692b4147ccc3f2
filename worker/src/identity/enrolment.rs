//! How a process asks a coordinator for a certificate, and what it accepts as an answer: with a token, with its node's word,
//! or by a key that the cluster knows.

use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::control::cluster_client::ClusterClient;
use brigade_proto::control::{EnrolReply, EnrolRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::net::{NetError, Network};
use brigade_proto::tls::verify::{Authorities, Expected, key_of, party_of};
use brigade_proto::tls::{Credentials, Identity, KeyId, NodeKey, Role, TlsError, Token, unix_now};
use brigade_proto::{OLDEST_WIRE_VERSION, SOFTWARE, WIRE_VERSION};
use tokio::time::timeout;

/// Time for one attempt to enrol.
const ENROL_WITHIN: Duration = Duration::from_secs(10);
/// First and last wait between attempts that fail; it doubles in between.
pub const BACKOFF: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(250)..=Duration::from_secs(10);
/// Limits of the time between two renewals, in seconds, for any answer of the coordinator.
const RENEW_WITHIN: std::ops::RangeInclusive<u32> = 1..=7 * 86_400;

/// Certificates, the own one first.
pub type Chain = Vec<brigade_proto::tls::Der>;

/// The credentials of a process with this key and these certificates; `what` names them in errors.
///
/// # Errors
/// They are not the key's, or cannot be read.
pub fn credentials(what: &str, chain: Chain, key: &NodeKey) -> Result<Credentials, TlsError> {
    let authorities = Authorities::new(what, &chain[1..])?;
    let identity = Identity::new(chain, &key.to_der())?;
    Ok(Credentials::new(Arc::new(identity), authorities))
}

/// A worker's request for a certificate.
pub struct Asked<'a> {
    /// The key that is to be certified.
    pub key: &'a NodeKey,
    /// The name that it asks for.
    pub name: &'a str,
    /// Key of the cluster's authority.
    pub pin: KeyId,
    /// By what it is let in.
    pub by: By<'a>,
}

/// By what a process is let in.
#[derive(Clone, Copy)]
pub enum By<'a> {
    /// Its key is in the books.
    Key,
    /// A token.
    Token(&'a Token),
    /// Its node's word.
    Voucher(&'a [u8]),
}

/// A coordinator's answer: a certificate.
pub struct Given {
    /// The name that it has in the cluster.
    pub name: String,
    /// Its certificate, and the authority's.
    pub chain: Chain,
    /// When to ask again.
    pub renew_in: Duration,
    /// Whether the coordinator certifies stages of nodes: one of an older release does not.
    pub certifies_stages: bool,
}

impl Given {
    /// The credentials of the process that asked.
    ///
    /// # Errors
    /// As [`credentials`].
    pub fn credentials(&self, key: &NodeKey) -> Result<Credentials, TlsError> {
        credentials("the coordinator's answer", self.chain.clone(), key)
    }

    /// Checks an answer against the request. From now on the certificate is shown to all peers, so nothing else is
    /// accepted.
    fn of(reply: EnrolReply, asked: &Asked<'_>) -> Result<Self, NotGiven> {
        let EnrolReply { certificate, authority, renew_in_s, name, certifies_stages } = reply;
        let wrong = |why: &str| NotGiven::final_because(format!("its answer is wrong: {why}"));
        let chain = vec![certificate.to_vec().into(), authority.to_vec().into()];
        if key_of(&chain[1]) != Some(asked.pin) {
            return Err(wrong("the authority is another than the token's"));
        }
        let party = party_of(&chain[0]).map_err(|e| wrong(&e.to_string()))?;
        if (party.role, party.key, &party.name) != (Role::Worker, asked.key.id(), &name) {
            return Err(wrong("the certificate is not for this worker's key"));
        }
        let seconds = renew_in_s.clamp(*RENEW_WITHIN.start(), *RENEW_WITHIN.end());
        let renew_in = Duration::from_secs(seconds.into());
        Ok(Self { name, chain, renew_in, certifies_stages })
    }
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotGiven {
    /// The cause, in words.
    pub reason: String,
    /// Trying again changes nothing.
    pub is_final: bool,
}

impl NotGiven {
    fn final_because(reason: String) -> Self {
        Self { reason, is_final: true }
    }

    /// It may be given later.
    pub fn for_now(reason: String) -> Self {
        Self { reason, is_final: false }
    }

    /// An error on this side.
    pub fn of_ours(error: TlsError) -> Self {
        Self::for_now(error.to_string())
    }

    fn of_failure(failure: Failure) -> Self {
        let is_final = matches!(
            failure.kind(),
            FailureKind::Forbidden | FailureKind::Version | FailureKind::BadMessage
        );
        Self { reason: failure.reason, is_final }
    }
}

/// One attempt to get a certificate from a coordinator.
///
/// # Errors
/// [`NotGiven`].
pub async fn enrol(coordinator: &Address, asked: &Asked<'_>) -> Result<Given, NotGiven> {
    let shown = Credentials::of_newcomer(asked.key, asked.name, asked.pin, unix_now());
    let network = Network::with_credentials(Arc::new(shown.map_err(NotGiven::of_ours)?), false);
    let (token, voucher) = match asked.by {
        By::Key => (None, &[][..]),
        By::Token(token) => (Some(token), &[][..]),
        By::Voucher(voucher) => (None, voucher),
    };
    let request = EnrolRequest {
        wire_version: OLDEST_WIRE_VERSION,
        newest_wire_version: WIRE_VERSION,
        software: SOFTWARE.to_owned(),
        token_id: token.map_or_else(String::new, |token| token.id.clone()),
        token_secret: token.map_or_else(Vec::new, |token| token.secret.to_vec()).into(),
        name: asked.name.to_owned(),
        voucher: voucher.to_vec().into(),
    };
    let attempt = async {
        let expected = Expected { role: Role::Coordinator, key: None };
        let connection = network.dial(coordinator, Some(expected)).await.map_err(|e| match e {
            NetError::Refused { reason, .. } => NotGiven::final_because(reason),
            other => NotGiven::for_now(other.to_string()),
        })?;
        let reply = ClusterClient::new(connection).enrol(request).await;
        reply.map_err(|status| NotGiven::of_failure(Failure::from_status(&status)))
    };
    let late = |_| NotGiven::for_now(format!("no answer within {} s", ENROL_WITHIN.as_secs()));
    let reply = timeout(ENROL_WITHIN, attempt).await.map_err(late)??.into_inner();
    Given::of(reply, asked)
}
