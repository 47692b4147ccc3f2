//! Certificates of an external authority: three files, as cert-manager mounts them, read again when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::credentials::Credentials;
use super::files::require;
use super::identity::{Identity, certificates, private_key};
use super::verify::Authorities;
use super::{Role, TlsError};

/// The time between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Where the three files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The certificate, and those between it and the authority's, in PEM.
    pub certificate: PathBuf,
    /// The file of the certificate's private key in PEM: PKCS #8, SEC 1 or PKCS #1. PKCS #8, SEC 1 or PKCS #1.
    pub key: PathBuf,
    /// The authorities that are believed, in PEM.
    pub authorities: PathBuf,
}

impl External {
    /// Reads all three files.
    ///
    /// # Errors
    /// A file is missing or invalid, or the certificate does not have the role `role`.
    pub fn load(&self, role: Role) -> Result<Credentials, TlsError> {
        let (chain, what) = (self.chain()?, name(&self.certificate));
        let key = private_key(&name(&self.key), &require(&self.key)?)?;
        let identity = Identity::new(chain, &key)
            .map_err(|e| TlsError::malformed(what.as_str(), e.to_string()))?;
        let is = identity.party().role;
        if is != role {
            let problem = format!("it is of a {is}, and a {role} is needed here");
            return Err(TlsError::malformed(what, problem));
        }
        let authorities = name(&self.authorities);
        let believed = certificates(&authorities, &require(&self.authorities)?)?;
        Ok(Credentials::new(Arc::new(identity), Authorities::new(&authorities, &believed)?))
    }

    /// Shows the certificate anew whenever its file changes. A file that is no good leaves things as they are, and is
    /// an error in the log. The key and the authorities are read at the start only.
    pub async fn keep_loading(self, credentials: Arc<Credentials>) -> std::convert::Infallible {
        let mut seen = changed_at(&self.certificate);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = changed_at(&self.certificate);
            if now == seen {
                continue;
            }
            seen = now;
            let replaced = self.chain().and_then(|chain| credentials.replace(chain));
            match replaced {
                Ok(()) => tracing::info!(file = name(&self.certificate), "certificate read anew"),
                Err(error) => tracing::error!(
                    %error,
                    "the new certificate is not used: its key must stay the same while this process runs"
                ),
            }
        }
    }

    fn chain(&self) -> Result<Vec<rustls::pki_types::CertificateDer<'static>>, TlsError> {
        certificates(&name(&self.certificate), &require(&self.certificate)?)
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

fn changed_at(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}
