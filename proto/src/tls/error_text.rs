//! Error messages about TLS connections that say what to do. TLS itself has numbers only.

use std::error::Error as StdError;

use rustls::{AlertDescription, CertificateError, Error};

use super::verify::{Refused, expired_words, not_yet_words};

/// The kind of trouble with a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The message.
    pub words: String,
    /// The peer does not speak TLS at all.
    pub is_plain: bool,
    /// Whether one side refuses the other's certificate: trying again changes nothing.
    pub is_refusal: bool,
}

/// The trouble with TLS that `error` is or was caused by; `None` where it was something else.
pub fn trouble(error: &(dyn StdError + 'static)) -> Option<Trouble> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<Error>() {
            return Some(of_tls(tls));
        }
        // An io::Error names its inner error as its source's source only.
        if let Some(inner) =
            error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref)
            && let Some(found) = trouble(inner)
        {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn of_tls(error: &Error) -> Trouble {
    let refusal = |words: String| Trouble { words, is_plain: false, is_refusal: true };
    match error {
        Error::InvalidCertificate(why) => refusal(of_certificate(why)),
        Error::AlertReceived(alert) => match of_alert(*alert) {
            Some(words) => refusal(words.to_owned()),
            None => Trouble { words: error.to_string(), is_plain: false, is_refusal: false },
        },
        Error::InvalidMessage(_) => Trouble {
            words:
                "it does not speak TLS: was it started without a token, or is this another port?"
                    .to_owned(),
            is_plain: true,
            is_refusal: false,
        },
        other => Trouble { words: other.to_string(), is_plain: false, is_refusal: false },
    }
}

/// Why we do not believe the peer.
fn of_certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::ExpiredContext { time, not_after } => {
            expired_words(time.as_secs(), not_after.as_secs())
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            not_yet_words(time.as_secs(), not_before.as_secs())
        }
        CertificateError::UnknownIssuer => Refused::OtherAuthority.to_string(),
        CertificateError::Revoked => Refused::Revoked.to_string(),
        CertificateError::Other(inner) => inner.to_string(),
        other => format!("its certificate is not valid: {other:?}"),
    }
}

/// Why the peer does not believe us.
fn of_alert(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateExpired => {
            "it says that this node's certificate has expired or has not begun: it renews by itself while the \
             coordinator is reached; see that the clocks of both machines are right"
        }
        AlertDescription::CertificateRevoked => {
            "it says that this node's certificate was revoked: this node may not join again"
        }
        AlertDescription::UnknownCA => {
            "it does not know the authority of this node's certificate, which is of another cluster: join its cluster with a token of it"
        }
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            "it asks for a certificate and this node has none: join with a token"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError => {
            "it refuses this node's certificate: another role, key or form was expected there; its log says which"
        }
        _ => return None,
    })
}
