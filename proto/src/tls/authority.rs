//! The cluster's own authority: the key that signs certificates.

use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::CertificateDer;

use super::TlsError;
use super::identity::one_certificate;
use super::key::{KeyId, NodeKey, hex, random_bytes};
use super::party::{Role, check_name, node_uri, uri};

/// Time an authority's own certificate is good for.
const AUTHORITY_FOR: Duration = Duration::from_secs(20 * 365 * 86_400);
/// Time that certificates begin before they are issued: the clocks of two machines differ.
const BEFORE: Duration = Duration::from_secs(3600);
/// Bytes of a serial number, below the 20 that RFC 5280 allows.
const SERIAL_BYTES: usize = 16;
/// The use of every certificate of ours: both ends of a connection.
const BOTH_ENDS: [ExtendedKeyUsagePurpose; 2] =
    [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

/// The time in which a certificate is valid, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First second, since the Unix epoch.
    pub not_before: u64,
    /// Last second, since the Unix epoch.
    pub not_after: u64,
}

impl Validity {
    /// A validity of `time` from `now` on, with a margin before.
    pub fn from_now(now: u64, time: Duration) -> Self {
        let not_before = now.saturating_sub(BEFORE.as_secs());
        Self { not_before, not_after: now.saturating_add(time.as_secs()) }
    }
}

/// An authority with its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    id: KeyId,
}

impl Authority {
    /// A new authority; its key and its certificate, as [`Authority::load`] takes them.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn create(now: u64) -> Result<(NodeKey, String), TlsError> {
        let key = NodeKey::generate()?;
        let certificate = authority_params(&key.id(), now)?.self_signed(key.pair());
        let pem = certificate.map_err(|e| TlsError::crypto("sign a certificate", e))?.pem();
        Ok((key, pem))
    }

    /// An authority from its key and its certificate; `what` names the certificate in errors.
    ///
    /// # Errors
    /// The key and the certificate do not belong together.
    pub fn load(key: NodeKey, what: &str, certificate: &str) -> Result<Self, TlsError> {
        let certificate = one_certificate(what, certificate)?;
        let id = key.id();
        let of = super::verify::key_of(&certificate)
            .ok_or_else(|| TlsError::malformed(what, "no certificate that can be read"))?;
        if of != id {
            let problem =
                "it belongs to another key than the one beside it: restore both from one backup";
            return Err(TlsError::malformed(what, problem));
        }
        // Of the parameters only the name and the uses count when it signs.
        let issuer = Issuer::new(authority_params(&id, 0)?, key.into_pair());
        Ok(Self { issuer, certificate, id })
    }

    /// The id of its key, which tokens pin.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The authority's own certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Issues a certificate to the holder of `key`.
    ///
    /// # Errors
    /// The name is invalid, or the system gives no randomness.
    pub fn issue(
        &self,
        key: &impl PublicKeyData,
        role: Role,
        name: &str,
        validity: Validity,
    ) -> Result<CertificateDer<'static>, TlsError> {
        let signed = party_params(role, name, validity)?.signed_by(key, &self.issuer);
        Ok(signed.map_err(|e| TlsError::crypto("sign a certificate", e))?.der().clone())
    }

    /// Issues a certificate to a stage, which has `key`, of the node with the key `node`.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_to_stage(
        &self,
        key: &impl PublicKeyData,
        name: &str,
        node: &KeyId,
        validity: Validity,
    ) -> Result<CertificateDer<'static>, TlsError> {
        let mut params = party_params(Role::Worker, name, validity)?;
        params.subject_alt_names.push(uri_name(&node_uri(node))?);
        let signed = params.signed_by(key, &self.issuer);
        Ok(signed.map_err(|e| TlsError::crypto("sign a certificate", e))?.der().clone())
    }

    /// The same as [`Authority::issue`], for a key of our own.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_to(
        &self,
        key: &NodeKey,
        role: Role,
        name: &str,
        validity: Validity,
    ) -> Result<CertificateDer<'static>, TlsError> {
        self.issue(key.pair(), role, name, validity)
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({})", self.id.short())
    }
}

/// The self-signed certificate of a process that has none yet. TLS proves that the process has the key; its name and
/// role are not trusted.
///
/// # Errors
/// The name is invalid, or the system gives no randomness.
pub fn newcomer_certificate(
    key: &NodeKey,
    name: &str,
    now: u64,
) -> Result<CertificateDer<'static>, TlsError> {
    let validity = Validity::from_now(now, BEFORE);
    let signed = party_params(Role::Newcomer, name, validity)?.self_signed(key.pair());
    Ok(signed.map_err(|e| TlsError::crypto("sign a certificate", e))?.der().clone())
}

fn authority_params(id: &KeyId, now: u64) -> Result<CertificateParams, TlsError> {
    let mut params = params(Validity::from_now(now, AUTHORITY_FOR))?;
    // The key is in the name, so that certificates of another cluster are seen to be that.
    let name = format!("brigade cluster {}", hex(&id.as_bytes()[..8]));
    params.distinguished_name = common_name(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn party_params(role: Role, name: &str, validity: Validity) -> Result<CertificateParams, TlsError> {
    check_name(name)?;
    let mut params = params(validity)?;
    params.subject_alt_names = vec![uri_name(&uri(role, name))?];
    params.distinguished_name = common_name(name.to_owned());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = BOTH_ENDS.to_vec();
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn uri_name(uri: &str) -> Result<SanType, TlsError> {
    let name = Ia5String::try_from(uri);
    Ok(SanType::URI(name.map_err(|e| TlsError::crypto("write a name", e))?))
}

fn params(validity: Validity) -> Result<CertificateParams, TlsError> {
    let at = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    let mut params = CertificateParams::default();
    params.not_before = at(validity.not_before);
    params.not_after = at(validity.not_after);
    params.serial_number = Some(SerialNumber::from_slice(&random_bytes::<SERIAL_BYTES>()?));
    Ok(params)
}

fn common_name(name: String) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
