//! The algorithms that TLS and certificates use here.

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};

/// The algorithms in use. AES-128 comes first: processors have instructions for it, and it takes fewer rounds than
/// AES-256.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..default_provider() })
});

/// The provider of all algorithms.
pub(super) fn provider() -> &'static Arc<CryptoProvider> {
    &PROVIDER
}
