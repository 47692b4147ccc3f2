//! Certificates of strangers, before their signer is known, and lists of revoked keys. Any bytes get an answer, and
//! no certificate is accepted that the authority did not sign.

#![no_main]

use std::sync::OnceLock;

use brigade_proto::tls::authority::Validity;
use brigade_proto::tls::identity::{certificates, private_key};
use brigade_proto::tls::verify::{Authorities, KeyUsage, key_of, party_of, public_key_of};
use brigade_proto::tls::{Authority, Der, NodeKey, Revoked, Role, party};
use libfuzzer_sys::fuzz_target;

/// Now, for this target.
const NOW: u64 = 1_800_000_000;

/// A cluster, and the certificate of its one node.
fn cluster() -> &'static (Authorities, Der) {
    static CLUSTER: OnceLock<(Authorities, Der)> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let (key, pem) = Authority::create(NOW).expect("an authority");
        let authority = Authority::load(key, "ca", &pem).expect("as it was made");
        let validity = Validity { not_before: NOW - 1000, not_after: NOW + 1000 };
        let node = NodeKey::generate().expect("a key");
        let own = authority.issue_to(&node, Role::Worker, "lab", validity).expect("a certificate");
        let of = std::slice::from_ref(authority.certificate());
        (Authorities::new("ca", of).expect("its own"), own)
    })
}

// The first two bytes say where the node's certificate is changed, and how. The rest is a certificate of its own.
fuzz_target!(|bytes: &[u8]| {
    let (authorities, own) = cluster();
    let shown = Der::from(bytes.to_vec());
    if let Ok(party) = party_of(&shown) {
        assert_eq!(Some(party.key), key_of(&shown));
        assert!(party::check_name(&party.name).is_ok());
    }
    let key = public_key_of(&shown).map(|key| key.id());
    assert!(key.is_none() || key == key_of(&shown));
    for usage in [KeyUsage::client_auth(), KeyUsage::server_auth()] {
        let checked = authorities.check(&shown, &[own.clone()], NOW, usage);
        assert!(checked.is_err(), "nobody signed that");
    }
    if let [at, change, ..] = bytes
        && *change != 0
    {
        let mut changed = own.to_vec();
        let at = usize::from(*at) * changed.len() / 256;
        changed[at] ^= change;
        let checked = authorities.check(&changed.into(), &[], NOW, KeyUsage::client_auth());
        assert!(checked.is_err(), "a byte that was changed is found out");
    }
    if let Some(keys) = Revoked::from_bytes(bytes) {
        assert_eq!(keys.len() * 32, bytes.len());
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (certificates("a file", text), private_key("a file", text));
    }
});
