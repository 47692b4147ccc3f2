//! A process's TLS credentials: its certificate, the authorities that it trusts, and revoked keys.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use super::TlsError;
use super::authority::newcomer_certificate;
use super::identity::Identity;
use super::key::{KeyId, NodeKey};
use super::party::Party;
use super::provider::provider;
use super::revoked::Revoked;
use super::verify::{Authorities, Clients, Expected, Servers, Trust};

/// The protocol that both ends negotiate (ALPN): HTTP/2, as gRPC needs it.
const PROTOCOL: &[u8] = b"h2";

/// A process's certificate, key, trusted authorities and revocations.
#[derive(Clone, Debug)]
pub struct Credentials {
    identity: Arc<Identity>,
    trust: Trust,
    newcomers: bool,
    revoked: Arc<Revoked>,
}

impl Credentials {
    /// Shows `identity`, and believes the certificates of these authorities.
    pub fn new(identity: Arc<Identity>, authorities: Authorities) -> Self {
        let trust = Trust::Cluster(authorities);
        Self { identity, trust, newcomers: false, revoked: Arc::default() }
    }

    /// Lets in, as a server, those that have a key and no certificate yet.
    #[must_use]
    pub fn with_newcomers(self) -> Self {
        Self { newcomers: true, ..self }
    }

    /// Credentials for requesting a certificate for `key` from a coordinator whose authority has the key `pin`.
    ///
    /// # Errors
    /// The name is invalid, or the system gives no randomness.
    pub fn of_newcomer(key: &NodeKey, name: &str, pin: KeyId, now: u64) -> Result<Self, TlsError> {
        let shown = newcomer_certificate(key, name, now)?;
        let identity = Arc::new(Identity::new(vec![shown], &key.to_der())?);
        Ok(Self { identity, trust: Trust::Pinned(pin), newcomers: false, revoked: Arc::default() })
    }

    /// The identity in this process's own certificate.
    pub fn party(&self) -> Arc<Party> {
        self.identity.party()
    }

    /// Shows these certificates from now on.
    ///
    /// # Errors
    /// As [`Identity::replace`].
    pub fn replace(&self, chain: Vec<CertificateDer<'static>>) -> Result<(), TlsError> {
        self.identity.replace(chain)
    }

    /// Whom it no longer believes.
    pub fn revoked(&self) -> &Arc<Revoked> {
        &self.revoked
    }

    pub(super) fn client(
        &self,
        expected: Expected,
        says_name: bool,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let verifier =
            Servers { trust: self.trust.clone(), expected, revoked: self.revoked.clone() };
        let builder = ClientConfig::builder_with_provider(provider().clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| TlsError::crypto("set up TLS", e))?;
        let mut config = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(self.identity.clone());
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.enable_sni = says_name;
        // Every connection shows a certificate as it is now.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    pub(super) fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let verifier = Clients {
            trust: self.trust.clone(),
            newcomers: self.newcomers,
            revoked: self.revoked.clone(),
        };
        let builder = ServerConfig::builder_with_provider(provider().clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| TlsError::crypto("set up TLS", e))?;
        let mut config = builder
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(self.identity.clone());
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}
