//! Keys of processes and their ids. Keys are ECDSA over P-256; an id is the SHA-256 of the public key in the form
//! that certificates have.

use std::fmt;
use std::str::FromStr;

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::TlsError;

/// Bytes of a [`KeyId`].
pub const KEY_ID_BYTES: usize = 32;
/// Characters of a key's id that people are shown.
const SHORT: usize = 8;
/// How a P-256 public key begins in a certificate (RFC 5480): an elliptic curve, prime256v1, and an
/// uncompressed point of 65 bytes.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Bytes of an uncompressed point.
const POINT_BYTES: usize = 65;

/// A key's name: SHA-256 of its public half (`SubjectPublicKeyInfo`, DER). Printed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; KEY_ID_BYTES]);

impl KeyId {
    /// The id of a public key as a certificate has it.
    pub fn of_spki(spki: &[u8]) -> Self {
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(digest(&SHA256, spki).as_ref());
        Self(id)
    }

    /// An id from its bytes; `None` for another number of them.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    /// The id's bytes.
    pub fn as_bytes(&self) -> &[u8; KEY_ID_BYTES] {
        &self.0
    }

    /// The beginning of the id, for logs.
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(SHORT);
        text
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({})", self.short())
    }
}

impl FromStr for KeyId {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Self, TlsError> {
        let id = unhex(text).and_then(|bytes| Self::from_bytes(&bytes));
        id.ok_or_else(|| TlsError::malformed("key id", "64 hexadecimal digits are needed"))
    }
}

/// A process's own key.
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// A new key, from the system's randomness.
    ///
    /// # Errors
    /// The system has none.
    pub fn generate() -> Result<Self, TlsError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
        pair.map(Self).map_err(|e| TlsError::crypto("make a key", e))
    }

    /// A key as [`NodeKey::to_pem`] wrote it; `what` names its source in errors.
    ///
    /// # Errors
    /// The text is no P-256 key in PKCS #8.
    pub fn from_pem(what: &str, pem: &str) -> Result<Self, TlsError> {
        let pair = KeyPair::from_pkcs8_pem_and_sign_algo(pem, &PKCS_ECDSA_P256_SHA256);
        let bad = |e| TlsError::malformed(what, format!("no P-256 key in PKCS #8: {e}"));
        pair.map(Self).map_err(bad)
    }

    /// The key, secret as it is.
    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// The key as TLS takes it.
    pub fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.0.serialize_der()))
    }

    /// The key's id.
    pub fn id(&self) -> KeyId {
        KeyId::of_spki(&self.0.subject_public_key_info())
    }

    /// Its public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.subject_public_key_info())
    }

    /// Signs a statement (ECDSA, SHA-256, ASN.1).
    pub(super) fn sign(&self, statement: &[u8]) -> Result<Vec<u8>, TlsError> {
        self.0.sign(statement).map_err(|e| TlsError::crypto("sign", e))
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.0
    }

    pub(super) fn into_pair(self) -> KeyPair {
        self.0
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({})", self.id().short())
    }
}

/// A P-256 public key that a peer has proved to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

impl PublicKey {
    /// The key that a certificate carries (`SubjectPublicKeyInfo`, DER); `None` for one of another kind.
    pub fn from_spki(spki: &[u8]) -> Option<Self> {
        let is_p256 =
            spki.len() == P256_PREFIX.len() + POINT_BYTES && spki.starts_with(&P256_PREFIX);
        is_p256.then(|| Self(spki.to_vec()))
    }

    /// The key's id.
    pub fn id(&self) -> KeyId {
        KeyId::of_spki(&self.0)
    }

    /// The key as a certificate has it (`SubjectPublicKeyInfo`, DER).
    pub(super) fn as_spki(&self) -> &[u8] {
        &self.0
    }

    /// The key's point alone.
    pub(super) fn as_point(&self) -> &[u8] {
        &self.0[P256_PREFIX.len()..]
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        self.as_point()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// Random bytes of the system, for secrets.
///
/// # Errors
/// The system has none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], TlsError> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| TlsError::crypto("make a secret", "the system gives no random bytes"))?;
    Ok(bytes)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of hexadecimal digits in lower case; `None` for anything else.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_p256_key_is_one() {
        let whole = [&P256_PREFIX[..], &[4; POINT_BYTES]].concat();
        assert!(PublicKey::from_spki(&whole).is_some());
        let mut another_kind = whole.clone();
        another_kind[P256_PREFIX.len() - 1] ^= 1;
        let too_long = [&whole[..], &[4]].concat();
        for bad in [&another_kind[..], &whole[..whole.len() - 1], &too_long, &P256_PREFIX, &[]] {
            assert_eq!(PublicKey::from_spki(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn no_two_secrets_are_alike() {
        let secrets: [[u8; 16]; 2] = std::array::from_fn(|_| random_bytes().unwrap());
        assert_ne!(secrets[0], secrets[1]);
    }
}
