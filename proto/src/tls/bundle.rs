//! A key with its certificates, as one text. A coordinator passes it to a worker that it starts itself, through a
//! pipe that only the two have. It is never written to a disk.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::authority::{Authority, Validity};
use super::credentials::Credentials;
use super::identity::{Identity, certificates, private_key, to_pem};
use super::key::NodeKey;
use super::party::Role;
use super::verify::Authorities;
use super::{TlsError, unix_now};

/// Ends a bundle in its pipe.
const END: &str = "-----END BUNDLE-----";
/// Limit of a bundle's bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Time a child's certificate is good for: its key dies with its process.
const CHILD_FOR: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A key with its certificates.
#[derive(Debug)]
pub struct Bundle {
    key: NodeKey,
    /// The process's certificate, then the authority's.
    chain: Vec<CertificateDer<'static>>,
}

impl Bundle {
    /// A new key and certificate for a worker of this process.
    ///
    /// # Errors
    /// The name is invalid, or the system gives no randomness.
    pub fn for_child(authority: &Authority, name: &str) -> Result<Self, TlsError> {
        let key = NodeKey::generate()?;
        let validity = Validity::from_now(unix_now(), CHILD_FOR);
        let certificate = authority.issue_to(&key, Role::Worker, name, validity)?;
        Ok(Self { key, chain: vec![certificate, authority.certificate().clone()] })
    }

    /// The text for the pipe.
    pub fn to_text(&self) -> String {
        format!("{}{}{END}\n", self.key.to_pem(), to_pem(&self.chain))
    }

    /// Reads one bundle from a pipe, up to its end and no further.
    ///
    /// # Errors
    /// The pipe ends early, or has no valid bundle.
    pub fn credentials_from(pipe: &mut impl BufRead) -> Result<Credentials, TlsError> {
        let failed = |source: io::Error| TlsError::File { path: "standard input".into(), source };
        let (mut text, mut pipe) = (String::new(), pipe.take(MAX_BYTES));
        loop {
            let before = text.len();
            if pipe.read_line(&mut text).map_err(failed)? == 0 {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            if text[before..].trim_end() == END {
                break;
            }
        }
        let what = "the bundle on standard input";
        let chain = certificates(what, &text)?;
        let authority = chain.last().cloned().into_iter().collect::<Vec<_>>();
        let authorities = Authorities::new(what, &authority)?;
        let identity = Identity::new(chain, &private_key(what, &text)?)?;
        Ok(Credentials::new(Arc::new(identity), authorities))
    }
}
