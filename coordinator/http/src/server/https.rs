//! HTTPS: a certificate and its key from two PEM files, read again when they change.
//!
//! A pair that cannot be used changes nothing: the one read last serves on, and the log says why. Programs that
//! renew certificates replace one file after the other, so a pair that does not match yet is tried again.

use brigade_proto::task;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How often the files are looked at.
const POLL: Duration = Duration::from_secs(2);

/// Most certificates in a chain.
const MAX_CHAIN: usize = 16;

/// The protocol that TLS clients may negotiate.
const ALPN: &[u8] = b"http/1.1";

/// Where the certificate and its key are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM: the server's certificate, then those between it and the root.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read as PEM.
    #[error("{file} {path}: {reason}")]
    File {
        /// The option that names the file.
        file: &'static str,
        /// The file's path.
        path: String,
        /// The error of the system or the parser.
        reason: String,
    },
    /// The two do not go together, or are of a kind that is not known.
    #[error("the certificate {cert} and the key {key} cannot be used: {reason}")]
    Pair {
        /// Path of the certificate.
        cert: String,
        /// Path of its key.
        key: String,
        /// The error of the TLS library.
        reason: String,
    },
}

/// A pair that can be used.
#[derive(Clone, Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    names: Arc<[String]>,
}

/// The names that a server's certificate is for; none where it cannot be read as one, which its use tells.
fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let parsed = webpki::EndEntityCert::try_from(certificate);
    parsed.map_or_else(|_| Vec::new(), |c| c.valid_dns_names().map(str::to_owned).collect())
}

/// Metadata of the two files; it changes when a file does. `None`: the file cannot be seen.
type Stamp = [Option<(u64, u64, i64, i64)>; 2];

impl TlsFiles {
    fn load(&self) -> Result<Loaded, TlsError> {
        let wrong = |file, path: &PathBuf, reason: String| TlsError::File {
            file,
            path: path.display().to_string(),
            reason,
        };
        let bad_cert = |reason| wrong("--tls-cert", &self.cert, reason);
        let chain = CertificateDer::pem_file_iter(&self.cert)
            .and_then(|chain| chain.take(MAX_CHAIN + 1).collect::<Result<Vec<_>, _>>())
            .map_err(|e| bad_cert(e.to_string()))?;
        match chain.len() {
            0 => return Err(bad_cert("it holds no certificate in PEM form".to_string())),
            n if n > MAX_CHAIN => {
                return Err(bad_cert(format!("it holds more than {MAX_CHAIN} certificates")));
            }
            _ => {}
        }
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|e| wrong("--tls-key", &self.key, e.to_string()))?;
        let pair = |e: rustls::Error| TlsError::Pair {
            cert: self.cert.display().to_string(),
            key: self.key.display().to_string(),
            reason: e.to_string(),
        };
        let names = dns_names(&chain[0]).into();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(pair)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Loaded { config: Arc::new(config), names })
    }

    fn stamp(&self) -> Stamp {
        [&self.cert, &self.key].map(|path| {
            // A file that cannot be read has no stamp, so it is read again when it becomes readable.
            let data = fs::metadata(path).ok()?;
            Some((data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
        })
    }
}

/// The certificate in force; clones share it.
#[derive(Clone, Debug)]
pub struct Tls(watch::Receiver<Loaded>);

/// Keeps a [`Tls`] up to date.
#[derive(Debug)]
pub struct Renewer {
    files: TlsFiles,
    seen: Stamp,
    current: watch::Sender<Loaded>,
    /// The last thing that went wrong: each is told once.
    told: String,
}

impl Tls {
    /// Reads the files, and what follows their changes.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open(files: TlsFiles) -> Result<(Self, Renewer), TlsError> {
        let seen = files.stamp();
        let (current, tls) = watch::channel(files.load()?);
        Ok((Self(tls), Renewer { files, seen, current, told: String::new() }))
    }

    /// An acceptor with the newest pair, for one connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.borrow().config.clone())
    }

    /// The host names of the certificate.
    pub(crate) fn names(&self) -> Arc<[String]> {
        self.0.borrow().names.clone()
    }
}

impl Renewer {
    /// Reads the files again when they have changed, and on SIGHUP, until `stop`.
    ///
    /// # Errors
    /// The system refuses the signal's handler.
    pub fn run(self, stop: CancellationToken) -> io::Result<tokio::task::JoinHandle<()>> {
        let kind = tokio::signal::unix::SignalKind::hangup();
        let hangup = tokio::signal::unix::signal(kind)?;
        Ok(task::spawn(self.follow(hangup, stop)))
    }

    async fn follow(mut self, mut hangup: tokio::signal::unix::Signal, stop: CancellationToken) {
        loop {
            let told = tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(POLL) => false,
                _ = hangup.recv() => true,
            };
            let looked = tokio::task::spawn_blocking(move || {
                self.look(told);
                self
            });
            match looked.await {
                Ok(renewer) => self = renewer,
                Err(error) => {
                    tracing::error!(%error, "a new certificate is not seen any more; restart the server");
                    return;
                }
            }
        }
    }

    fn look(&mut self, told: bool) {
        let stamp = self.files.stamp();
        if stamp == self.seen && self.told.is_empty() && !told {
            return;
        }
        match self.files.load() {
            Ok(config) => {
                self.current.send_replace(config);
                (self.seen, self.told) = (stamp, String::new());
                tracing::info!(cert = %self.files.cert.display(), "the certificate was read again");
            }
            Err(error) => {
                let error = error.to_string();
                if error != self.told {
                    tracing::error!(
                        error,
                        "the new certificate cannot be used: the last good one stays in use"
                    );
                }
                self.told = error;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(folder: &std::path::Path, name: &str) -> TlsFiles {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let at = |end: &str| folder.join(format!("{name}.{end}"));
        fs::write(at("crt"), made.cert.pem()).unwrap();
        fs::write(at("key"), made.signing_key.serialize_pem()).unwrap();
        TlsFiles { cert: at("crt"), key: at("key") }
    }

    #[test]
    fn a_chain_may_be_so_long_and_no_longer() {
        let folder = std::env::temp_dir().join(format!("brigade-chain-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let files = pair(&folder, "a");
        let one = fs::read_to_string(&files.cert).unwrap();
        fs::write(&files.cert, one.repeat(MAX_CHAIN)).unwrap();
        assert!(files.load().is_ok());
        fs::write(&files.cert, one.repeat(MAX_CHAIN + 1)).unwrap();
        let error = files.load().unwrap_err().to_string();
        assert!(error.contains("--tls-cert") && error.contains("more than 16"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_new_pair_is_taken_and_a_bad_one_changes_nothing() {
        let folder = std::env::temp_dir().join(format!("brigade-https-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (a, b) = (pair(&folder, "a"), pair(&folder, "b"));
        let (tls, mut renewer) = Tls::open(a.clone()).unwrap();
        let first = tls.0.borrow().config.clone();
        assert_eq!(*tls.names(), ["localhost".to_string()]);
        renewer.look(false);
        assert!(Arc::ptr_eq(&first, &tls.0.borrow().config), "nothing has changed");
        fs::copy(&b.cert, &a.cert).unwrap();
        renewer.look(false);
        assert!(
            Arc::ptr_eq(&first, &tls.0.borrow().config),
            "certificate and key do not match yet"
        );
        assert!(renewer.told.contains("cannot be used"), "{}", renewer.told);
        fs::copy(&b.key, &a.key).unwrap();
        renewer.look(false);
        assert!(!Arc::ptr_eq(&first, &tls.0.borrow().config), "now they do");
        fs::write(&b.cert, "no certificate").unwrap();
        let error = Tls::open(b).unwrap_err().to_string();
        assert!(error.contains("--tls-cert") && error.contains("no certificate"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
}
