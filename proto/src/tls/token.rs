//! The token for a new machine. It is one word with a secret that lets the machine in once, and with the hash of the
//! authority's key. The hash proves that the coordinator is the right one.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};

use super::TlsError;
use super::key::{KeyId, hex, random_bytes, unhex};

/// Begins every token: a name to search leaked files for, and the version of its form.
pub const TOKEN_PREFIX: &str = "brg1";
/// Bytes of a token's id.
const ID_BYTES: usize = 6;
/// Bytes of a token's secret: 128 bits.
pub const SECRET_BYTES: usize = 16;
/// Longest text that is looked at as a token.
const MAX_TOKEN_CHARS: usize = 256;

/// A parsed token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Names it, in lists and logs. No secret.
    pub id: String,
    /// Lets its bearer in.
    pub secret: [u8; SECRET_BYTES],
    /// The key of the authority whose coordinator it is for.
    pub authority: KeyId,
}

impl Token {
    /// A new token, from the system's randomness.
    ///
    /// # Errors
    /// The system has none.
    pub fn generate(authority: KeyId) -> Result<Self, TlsError> {
        let id = hex(&random_bytes::<ID_BYTES>()?);
        Ok(Self { id, secret: random_bytes()?, authority })
    }
}

/// The hash of a secret, which is stored instead of it: a reader of the file cannot join with it.
pub fn hash_secret(secret: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret).as_ref());
    hash
}

/// Whether two hashes are equal, in a time that does not tell where they differ.
pub fn equal_hashes(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| std::hint::black_box(differs | (a ^ b))) == 0
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TOKEN_PREFIX}_{}_{}_{}", self.id, hex(&self.secret), self.authority)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

impl FromStr for Token {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Self, TlsError> {
        let bad = || {
            let problem =
                "this is not a token: give the last word that `brigade token create` printed";
            TlsError::malformed("--token", problem)
        };
        let text = text.trim();
        if text.len() > MAX_TOKEN_CHARS {
            return Err(bad());
        }
        let parts: Vec<&str> = text.split('_').collect();
        let [TOKEN_PREFIX, id, secret, authority] = parts[..] else { return Err(bad()) };
        let is_id = unhex(id).is_some_and(|bytes| bytes.len() == ID_BYTES);
        let secret = unhex(secret).and_then(|bytes| bytes.try_into().ok());
        match (is_id, secret, authority.parse()) {
            (true, Some(secret), Ok(authority)) => {
                Ok(Self { id: id.to_owned(), secret, authority })
            }
            _ => Err(bad()),
        }
    }
}
