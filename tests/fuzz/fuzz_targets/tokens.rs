//! Tokens of machines, ids of keys, names of nodes, and nodes' words for their stages. A text that parses is written back
//! unchanged, and nothing else parses.

#![no_main]

use brigade_proto::tls::party::{check_name, coordinator_id, holder_name, is_of_key};
use brigade_proto::tls::{KeyId, Party, Role, Token, Who, voucher};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.to_string(), text.trim());
        assert!(
            !format!("{token:?}").contains(&text.trim()[18..]),
            "a log does not have the secret"
        );
    }
    if let Ok(key) = text.parse::<KeyId>() {
        assert_eq!(key.to_string(), text);
    }
    let key = KeyId::of_spki(b"a key");
    // No such words stand for another key.
    let other = Party { role: Role::Coordinator, name: "desk".to_owned(), key, node: None };
    assert!(!is_of_key(text, &key) || text.contains(&key.to_string()));
    assert!(!Who::Known(other.into()).speaks_for(text) || text.contains(&key.to_string()));
    let _ = holder_name(text);
    // Nobody has signed it.
    assert!(voucher::check(text.as_bytes(), &key, 0).is_err());
    if check_name(text).is_ok() {
        let party = Party { role: Role::Coordinator, name: text.to_owned(), key, node: None };
        let id = coordinator_id(&party, "a process");
        assert!(is_of_key(&id, &key) && holder_name(&id).is_some_and(|name| name.contains(text)));
        assert!(Who::Known(party.into()).speaks_for(&id));
    }
});
