//! Verification of peers: their certificates must be signed by the cluster's authority, be valid now, and have the
//! wanted role. Names of hosts play no part.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, SignatureScheme,
};
pub use webpki::KeyUsage;
use webpki::{EndEntityCert, anchor_from_trusted_cert};

use super::TlsError;
use super::key::{KeyId, PublicKey};
use super::party::{Party, Role, Who, parse_node_uri, parse_uri};
use super::provider::provider;
use super::revoked::Revoked;

/// Seconds that the clocks of two machines may differ.
pub const CLOCK_SKEW_S: u64 = 300;

/// Why a certificate is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The certificate has expired.
    #[error("{}", expired_words(*.now, *.not_after))]
    Expired {
        /// The clock of this machine, in seconds since the Unix epoch.
        now: u64,
        /// The last second of its validity.
        not_after: u64,
    },
    /// The certificate is not valid yet.
    #[error("{}", not_yet_words(*.now, *.not_before))]
    NotYet {
        /// The clock of this machine, in seconds since the Unix epoch.
        now: u64,
        /// The first second of its validity.
        not_before: u64,
    },
    /// The certificate is signed by another authority.
    #[error("its certificate is of another cluster: join it with a token of this one")]
    OtherAuthority,
    /// The coordinator is not the one that the token is for.
    #[error(
        "the coordinator there is not the one that made the token: its authority has another key"
    )]
    NotPinned,
    /// The key was revoked.
    #[error("its certificate was revoked")]
    Revoked,
    /// The certificate has another role.
    #[error("it is a {is}, and a {wanted} was expected here")]
    Role {
        /// The peer's role.
        is: Role,
        /// The wanted role.
        wanted: Role,
    },
    /// The certificate has another key.
    #[error("its key is {is} and not {wanted}: another process has its address now")]
    Key {
        /// Beginning of its key's id.
        is: String,
        /// Beginning of the id that was expected.
        wanted: String,
    },
    /// The certificate cannot be parsed, or has no role and name.
    #[error("its certificate is not valid: {0}")]
    Malformed(String),
}

pub(super) fn expired_words(now: u64, not_after: u64) -> String {
    let ago = now.saturating_sub(not_after);
    format!(
        "its certificate expired {ago} s ago by this machine's clock ({CLOCK_SKEW_S} s of difference are \
         allowed): a worker renews its own while it reaches the coordinator; see that it does, and that the \
         clocks of both machines are right"
    )
}

pub(super) fn not_yet_words(now: u64, not_before: u64) -> String {
    let until = not_before.saturating_sub(now);
    format!(
        "its certificate begins in {until} s by this machine's clock ({CLOCK_SKEW_S} s of difference are \
         allowed): set the clock"
    )
}

impl Refused {
    /// The error in TLS's form: the alert that tells the peer most, and the details for [`error_text`](super::error_text).
    fn into_rustls(self) -> Error {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        Error::InvalidCertificate(match self {
            Self::Revoked => CertificateError::Revoked,
            Self::OtherAuthority => CertificateError::UnknownIssuer,
            Self::Expired { now, not_after } => {
                CertificateError::ExpiredContext { time: at(now), not_after: at(not_after) }
            }
            Self::NotYet { now, not_before } => {
                CertificateError::NotValidYetContext { time: at(now), not_before: at(not_before) }
            }
            other => CertificateError::Other(OtherError(Arc::new(other))),
        })
    }
}

/// Key of a certificate; `None` where it cannot be read.
pub fn key_of(certificate: &CertificateDer<'_>) -> Option<KeyId> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    Some(KeyId::of_spki(&parsed.subject_public_key_info()))
}

/// Role, name and key of a certificate, without a check of its signature.
///
/// # Errors
/// [`Refused::Malformed`].
pub fn party_of(certificate: &CertificateDer<'_>) -> Result<Party, Refused> {
    let bad = |e: webpki::Error| Refused::Malformed(e.to_string());
    let parsed = EndEntityCert::try_from(certificate).map_err(bad)?;
    let mut named = parsed.valid_uri_names().filter_map(parse_uri);
    let (Some((role, name)), None) = (named.next(), named.next()) else {
        let why = "it needs exactly one name of the form brigade://coordinator/NAME or \
                   brigade://worker/NAME among its URI names";
        return Err(Refused::Malformed(why.to_owned()));
    };
    let node = parsed.valid_uri_names().find_map(parse_node_uri);
    Ok(Party { role, name, key: KeyId::of_spki(&parsed.subject_public_key_info()), node })
}

/// The authorities that a process believes.
#[derive(Clone, Debug)]
pub struct Authorities(Vec<TrustAnchor<'static>>);

impl Authorities {
    /// Believes these certificates; `what` names them in errors.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn new(what: &str, certificates: &[CertificateDer<'_>]) -> Result<Self, TlsError> {
        let anchor = |der| anchor_from_trusted_cert(der).map(|anchor| anchor.to_owned());
        let anchors: Result<Vec<_>, _> = certificates.iter().map(anchor).collect();
        let anchors = anchors.map_err(|e| TlsError::malformed(what, e.to_string()))?;
        Ok(Self(anchors))
    }

    /// The owner of a certificate, if one of these authorities signed it and it is valid at `now`, in seconds since
    /// the Unix epoch, with a tolerance of [`CLOCK_SKEW_S`].
    ///
    /// # Errors
    /// [`Refused`].
    pub fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: u64,
        usage: KeyUsage,
    ) -> Result<Party, Refused> {
        let party = party_of(certificate)?;
        let at = |time| self.check_at(certificate, intermediates, time, usage);
        let checked = match at(now) {
            Err(Refused::Expired { not_after, .. }) if now <= not_after + CLOCK_SKEW_S => {
                at(not_after)
            }
            Err(Refused::NotYet { not_before, .. }) if now + CLOCK_SKEW_S >= not_before => {
                at(not_before)
            }
            checked => checked,
        };
        checked.map(|()| party)
    }

    fn check_at(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        time: u64,
        usage: KeyUsage,
    ) -> Result<(), Refused> {
        let bad = |e: webpki::Error| Refused::Malformed(e.to_string());
        let parsed = EndEntityCert::try_from(certificate).map_err(bad)?;
        let algorithms = provider().signature_verification_algorithms.all;
        let at = UnixTime::since_unix_epoch(Duration::from_secs(time));
        let anchors = &self.0;
        let checked =
            parsed.verify_for_usage(algorithms, anchors, intermediates, at, usage, None, None);
        checked.map(|_| ()).map_err(|error| match error {
            webpki::Error::CertExpired { not_after, .. } => {
                Refused::Expired { now: time, not_after: not_after.as_secs() }
            }
            webpki::Error::CertNotValidYet { not_before, .. } => {
                Refused::NotYet { now: time, not_before: not_before.as_secs() }
            }
            webpki::Error::UnknownIssuer => Refused::OtherAuthority,
            other => Refused::Malformed(other.to_string()),
        })
    }
}

/// The basis on which a process trusts its peers.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The authorities of its cluster.
    Cluster(Authorities),
    /// The key of the authority, which a token has named: the peer shows the authority's certificate.
    Pinned(KeyId),
}

impl Trust {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<Party, Refused> {
        let now = now.as_secs();
        match self {
            Self::Cluster(authorities) => authorities.check(certificate, intermediates, now, usage),
            Self::Pinned(key) => {
                let pinned = intermediates.iter().find(|der| key_of(der).as_ref() == Some(key));
                let pinned = pinned.ok_or(Refused::NotPinned)?;
                let authorities = Authorities::new("authority", std::slice::from_ref(pinned))
                    .map_err(|e| Refused::Malformed(e.to_string()))?;
                authorities.check(certificate, &[], now, usage)
            }
        }
    }
}

/// The peer that a process expects where it dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The peer's role.
    pub role: Role,
    /// The peer's key, where it is known.
    pub key: Option<KeyId>,
}

impl Expected {
    fn check(&self, party: &Party) -> Result<(), Refused> {
        if party.role != self.role {
            return Err(Refused::Role { is: party.role, wanted: self.role });
        }
        match self.key {
            Some(wanted) if wanted != party.key => {
                Err(Refused::Key { is: party.key.short(), wanted: wanted.short() })
            }
            _ => Ok(()),
        }
    }
}

/// The common part of both verifiers: signatures of TLS 1.3 with the algorithms of [`provider`]. No other version is
/// offered or accepted.
macro_rules! verifies_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &provider().signature_verification_algorithms;
            verify_tls13_signature(message, cert, dss, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

/// Verifies servers' certificates.
#[derive(Debug)]
pub(super) struct Servers {
    pub trust: Trust,
    pub expected: Expected,
    pub revoked: Arc<Revoked>,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let usage = KeyUsage::server_auth();
        let checked = self.trust.check(certificate, intermediates, now, usage).and_then(|party| {
            self.expected.check(&party)?;
            if self.revoked.has_party(&party) { Err(Refused::Revoked) } else { Ok(()) }
        });
        checked.map(|()| ServerCertVerified::assertion()).map_err(|why| why.into_rustls())
    }

    verifies_signatures!();
}

/// Verifies clients' certificates.
#[derive(Debug)]
pub(super) struct Clients {
    pub trust: Trust,
    /// Whether a party without a certificate of the cluster is let in, to ask for one.
    pub newcomers: bool,
    pub revoked: Arc<Revoked>,
}

impl Clients {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Refused> {
        let party = party_of(certificate)?;
        if party.role == Role::Newcomer && self.newcomers {
            // TLS proves that it has the key. That is all that is believed of it.
            return Ok(());
        }
        let party = self.trust.check(certificate, intermediates, now, KeyUsage::client_auth())?;
        if party.role == Role::Newcomer {
            return Err(Refused::OtherAuthority);
        }
        if self.revoked.has_party(&party) { Err(Refused::Revoked) } else { Ok(()) }
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let checked = self.check(certificate, intermediates, now);
        checked.map(|()| ClientCertVerified::assertion()).map_err(|why| why.into_rustls())
    }

    verifies_signatures!();
}

/// The public key of a certificate, if it is one of ours: of P-256.
pub fn public_key_of(certificate: &CertificateDer<'_>) -> Option<PublicKey> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    PublicKey::from_spki(&parsed.subject_public_key_info())
}

/// The owner of a certificate that a handshake has accepted.
pub(super) fn who_of(certificate: &CertificateDer<'_>) -> Option<Who> {
    let party = party_of(certificate).ok()?;
    if party.role != Role::Newcomer {
        return Some(Who::Known(Arc::new(party)));
    }
    public_key_of(certificate).map(Who::Stranger)
}
