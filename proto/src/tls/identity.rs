//! A process's identity: a certificate and its key. The certificate can be replaced while the process runs, but the
//! key cannot: connections, epochs and revocations refer to it.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};

use super::TlsError;
use super::party::Party;
use super::verify::party_of;

/// The label of a certificate in PEM (RFC 7468).
const CERTIFICATE: &str = "CERTIFICATE";

/// A certificate and its key.
pub struct Identity {
    key: Arc<dyn SigningKey>,
    shown: RwLock<Shown>,
}

#[derive(Clone)]
struct Shown {
    certified: Arc<CertifiedKey>,
    party: Arc<Party>,
}

impl Identity {
    /// An identity; `chain` begins with its own certificate, and ends with the authority's.
    ///
    /// # Errors
    /// TLS cannot use the key, the certificate has no role and name, or it belongs to another key.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'_>,
    ) -> Result<Self, TlsError> {
        let key = any_supported_type(key)
            .map_err(|e| TlsError::malformed("private key", format!("cannot be used: {e}")))?;
        let shown = RwLock::new(show(chain, &key)?);
        Ok(Self { key, shown })
    }

    /// The identity in the certificate.
    pub fn party(&self) -> Arc<Party> {
        self.shown().party
    }

    /// Shows this certificate from now on, on new connections.
    ///
    /// # Errors
    /// The certificate has no role and name, or is another key's.
    pub fn replace(&self, chain: Vec<CertificateDer<'static>>) -> Result<(), TlsError> {
        let new = show(chain, &self.key)?;
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    fn shown(&self) -> Shown {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn show(chain: Vec<CertificateDer<'static>>, key: &Arc<dyn SigningKey>) -> Result<Shown, TlsError> {
    let own = chain
        .first()
        .ok_or_else(|| TlsError::malformed("certificate", "the chain of certificates is empty"))?;
    let party = party_of(own).map_err(|why| TlsError::malformed("certificate", why.to_string()))?;
    let certified = CertifiedKey::new(chain, key.clone());
    let unequal = |e| TlsError::malformed("certificate", format!("it is another key's: {e}"));
    certified.keys_match().map_err(unequal)?;
    Ok(Shown { certified: Arc::new(certified), party: Arc::new(party) })
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.party())
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown().certified)
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.shown().certified)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// All certificates of a PEM text; `what` names it in errors.
///
/// # Errors
/// The text has no certificate, or an invalid one.
pub fn certificates(what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(|e| TlsError::malformed(what, format!("is not PEM: {e}")))?;
    if all.is_empty() {
        return Err(TlsError::malformed(what, "has no certificate in PEM"));
    }
    Ok(all)
}

/// The first certificate of a PEM text.
pub(super) fn one_certificate(what: &str, pem: &str) -> Result<CertificateDer<'static>, TlsError> {
    let mut all = certificates(what, pem)?;
    Ok(all.swap_remove(0))
}

/// The private key of a PEM text, of any kind that TLS can use; `what` names it in errors.
///
/// # Errors
/// The text has no private key.
pub fn private_key(what: &str, pem: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|e| TlsError::malformed(what, format!("has no private key in PEM: {e}")))
}

/// Certificates as PEM, one behind the other.
pub fn to_pem(chain: &[CertificateDer<'_>]) -> String {
    chain.iter().map(|der| pem::encode(&pem::Pem::new(CERTIFICATE, der.to_vec()))).collect()
}
