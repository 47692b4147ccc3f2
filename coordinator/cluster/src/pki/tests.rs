//! Tests of issuing and refusing certificates, with a folder of files for each test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use brigade_proto::tls::verify::{Authorities, party_of};
use brigade_proto::tls::{KeyId, NodeKey, Party, PublicKey, Role, Token, unix_now, voucher};

use super::enrol::{Issued, Pki, Refusal};
use super::roster::{Node, Standing};
use super::tokens::BadToken;
use super::{Folder, PkiError, new_authority};

const HOUR: Duration = Duration::from_secs(3600);

/// A data folder that ends with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("brigade-pki-{}-{n}", std::process::id()));
        // Remains of a test that was killed.
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    fn folder(&self) -> Folder {
        Folder::within(&self.0)
    }

    fn pki(&self) -> Pki {
        Pki::open(&self.0, HOUR).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A public key as TLS would have it proved.
fn key() -> PublicKey {
    let key = NodeKey::generate().unwrap();
    let shown = brigade_proto::tls::authority::newcomer_certificate(&key, "n", unix_now()).unwrap();
    let key = brigade_proto::tls::verify::public_key_of(&shown).unwrap();
    assert_eq!(party_of(&shown).unwrap().role, Role::Newcomer);
    key
}

fn enrol(pki: &Pki, key: &PublicKey, name: &str, token: &Token) -> Result<Issued, Refusal> {
    pki.enrol(key, name, Some((&token.id, &token.secret)))
}

#[test]
fn a_token_lets_one_in_and_is_worth_nothing_then() {
    let scratch = Scratch::new();
    let (pki, key) = (scratch.pki(), key());
    let token = pki.create_token(HOUR, 1).unwrap();
    let issued = enrol(&pki, &key, "lab", &token).unwrap();
    let party = party_of(&issued.certificate).unwrap();
    assert_eq!((party.role, party.name.as_str(), party.key), (Role::Worker, "lab", key.id()));
    let authorities = Authorities::new("ca", &[issued.authority]).unwrap();
    let usage = webpki_usage();
    assert_eq!(authorities.check(&issued.certificate, &[], unix_now(), usage), Ok(party));
    let again = enrol(&pki, &self::key(), "attic", &token).unwrap_err();
    assert!(matches!(again, Refusal::Token(BadToken::Used)), "{again}");
    // The key that joined needs no token any more.
    assert_eq!(pki.enrol(&key, "other", None).unwrap().name, "lab");
}

fn webpki_usage() -> brigade_proto::tls::verify::KeyUsage {
    brigade_proto::tls::verify::KeyUsage::client_auth()
}

#[test]
fn tokens_that_let_nobody_in() {
    let scratch = Scratch::new();
    let (pki, key) = (scratch.pki(), key());
    let refusal = |token: &Token| match enrol(&pki, &key, "lab", token).unwrap_err() {
        Refusal::Token(why) => why,
        other => panic!("{other}"),
    };
    let good = pki.create_token(HOUR, 1).unwrap();
    let mut guessed = good.clone();
    guessed.secret[0] ^= 1;
    assert_eq!(refusal(&guessed), BadToken::Unknown);
    let never = Token::generate(KeyId::of_spki(b"x")).unwrap();
    assert_eq!(refusal(&never), BadToken::Unknown);
    let over = pki.create_token(Duration::ZERO, 1).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(refusal(&over), BadToken::Expired);
    assert!(matches!(pki.enrol(&key, "lab", None).unwrap_err(), Refusal::Stranger));
    assert!(matches!(pki.enrol(&key, "a b", None).unwrap_err(), Refusal::Tls(_)));
    // None of these attempts used the token up.
    enrol(&pki, &key, "lab", &good).unwrap();
}

#[test]
fn no_secret_is_kept_as_it_is() {
    let scratch = Scratch::new();
    let token = scratch.pki().create_token(HOUR, 1).unwrap();
    let text = token.to_string();
    let secret = text.split('_').nth(2).unwrap();
    for entry in std::fs::read_dir(scratch.folder().path()).unwrap() {
        let path = entry.unwrap().path();
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(!kept.contains(secret), "{}", path.display());
        use std::os::unix::fs::PermissionsExt;
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} has {mode:o}", path.display());
    }
}

#[test]
fn who_is_revoked_does_not_come_back_and_neither_does_its_token() {
    let scratch = Scratch::new();
    let (pki, folder) = (scratch.pki(), scratch.folder());
    let (lab, attic) = (key(), key());
    let token = pki.create_token(HOUR, 9).unwrap();
    enrol(&pki, &lab, "lab", &token).unwrap();
    enrol(&pki, &attic, "attic", &token).unwrap();
    let unknown = Pki::revoke(&folder, "cellar").unwrap_err();
    assert!(matches!(unknown, PkiError::NoSuchNode { .. }), "{unknown}");
    assert_eq!(Pki::revoke(&folder, "lab").unwrap().len(), 1);
    let refused = pki.enrol(&lab, "lab", None).unwrap_err();
    assert!(matches!(refused, Refusal::Revoked), "{refused}");
    assert!(matches!(enrol(&pki, &lab, "lab", &token).unwrap_err(), Refusal::Revoked));
    let refused = enrol(&pki, &key(), "lab", &token).unwrap_err();
    assert!(matches!(refused, Refusal::Token(BadToken::Unknown)), "{refused}");
    let by_key = attic.id().to_string();
    assert_eq!(Pki::revoke(&folder, &by_key[..8]).unwrap()[0].name, "attic");
    let standings = Pki::nodes(&folder).unwrap();
    let standings: Vec<Standing> = standings.iter().map(|n| n.standing(unix_now())).collect();
    assert_eq!(standings, [Standing::Revoked, Standing::Revoked]);
}

/// A node that has joined under this name: its key.
fn joined(pki: &Pki, name: &str) -> NodeKey {
    let node = NodeKey::generate().unwrap();
    enrol(pki, &node.public(), name, &pki.create_token(HOUR, 1).unwrap()).unwrap();
    node
}

#[test]
fn a_stage_is_certified_on_its_nodes_word_alone() {
    let scratch = Scratch::new();
    let pki = scratch.pki();
    let (node, stage, now) = (joined(&pki, "lab"), key(), unix_now());
    let word = voucher::vouch(&node, 2, &stage.id(), now).unwrap();
    let issued = pki.enrol_stage(&stage, &word).unwrap();
    assert_eq!(issued.name, "lab.2");
    assert!(issued.renew_in <= HOUR / 2, "as long as its node's certificate, and no longer");
    let party = party_of(&issued.certificate).unwrap();
    assert_eq!((party.role, party.key, party.node), (Role::Worker, stage.id(), Some(node.id())));
    let authorities = Authorities::new("ca", std::slice::from_ref(&issued.authority)).unwrap();
    let usage = brigade_proto::tls::verify::KeyUsage::client_auth();
    assert_eq!(authorities.check(&issued.certificate, &[], now, usage).unwrap(), party);
    assert_eq!(Pki::nodes(&scratch.folder()).unwrap().len(), 1, "the books have the node alone");
    // The node renews its certificate, for a day, or for no time at all.
    let for_time = |time: Duration| {
        let pki = Pki::open(&scratch.0, time).unwrap();
        pki.enrol(&node.public(), "lab", None).unwrap();
        pki.enrol_stage(&stage, &word)
    };
    assert_eq!(
        for_time(HOUR * 24).unwrap().renew_in,
        HOUR * 2,
        "good for hours, and not for a day"
    );
    let refused = for_time(Duration::ZERO).unwrap_err();
    assert!(matches!(refused, Refusal::NodeAway), "{refused}");
    // Another's word, and a word for another.
    let stranger = NodeKey::generate().unwrap();
    let of_stranger = voucher::vouch(&stranger, 2, &stage.id(), now).unwrap();
    let refused = pki.enrol_stage(&stage, &of_stranger).unwrap_err();
    assert!(matches!(refused, Refusal::Stranger), "{refused}");
    let refused = pki.enrol_stage(&key(), &word).unwrap_err();
    assert!(matches!(refused, Refusal::Tls(_)), "{refused}");
    Pki::revoke(&scratch.folder(), "lab").unwrap();
    assert!(matches!(pki.enrol_stage(&stage, &word).unwrap_err(), Refusal::Revoked));
}

#[test]
fn a_node_is_known_by_its_stages_and_goes_with_all_of_them() {
    let scratch = Scratch::new();
    let (pki, folder) = (scratch.pki(), scratch.folder());
    let (lab, attic) = (joined(&pki, "lab"), joined(&pki, "attic"));
    let seen = |name: &str, node: &NodeKey, address: &str| {
        let node = Some(node.id());
        let party = Party { role: Role::Worker, name: name.into(), key: key().id(), node };
        pki.seen(&party, address).unwrap();
    };
    // Each start of a stage has another key.
    for _ in 0..2 {
        seen("lab.1", &lab, "10.0.0.2:7070");
        seen("lab.2", &lab, "10.0.0.2:7070/2");
        seen("attic.1", &attic, "10.0.0.3:7070");
    }
    seen("cellar.1", &NodeKey::generate().unwrap(), "10.0.0.4:7070");
    let listed: Vec<Node> = Pki::nodes(&folder).unwrap().iter().flat_map(Node::listed).collect();
    let names: Vec<&str> = listed.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["lab.1", "lab.2", "attic.1"], "no stage of an unknown node is in the books");
    let address_of = |which: &str| Pki::address_of(&folder, which).unwrap();
    assert_eq!(address_of("lab").as_deref(), Some("10.0.0.2:7070"));
    assert_eq!(address_of("lab.2").as_deref(), Some("10.0.0.2:7070/2"));
    assert_eq!(address_of("lab.3"), None);
    let refused = Pki::revoke(&folder, "lab.2").unwrap_err().to_string();
    assert!(refused.contains("stage of the node lab"), "{refused}");
    let revoked = Pki::revoke(&folder, "10.0.0.2:7070/2").unwrap();
    assert_eq!(revoked.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["lab"]);
    assert_eq!(Pki::revoke(&folder, "attic").unwrap().len(), 1);
}

#[test]
fn equal_names_get_numbers() {
    let scratch = Scratch::new();
    let pki = scratch.pki();
    let token = pki.create_token(HOUR, 9).unwrap();
    let names = |n: usize| enrol(&pki, &key(), &"x".repeat(n), &token).unwrap().name;
    assert_eq!([names(1), names(1), names(1)], ["x", "x-2", "x-3"]);
    assert_eq!(names(63).len(), 63);
    assert_eq!(names(63).len(), 63, "a long name is cut for its number");
    // A revoked node's name is free; its token is taken back.
    Pki::revoke(&scratch.folder(), "x-2").unwrap();
    let token = pki.create_token(HOUR, 1).unwrap();
    assert_eq!(enrol(&pki, &key(), "x", &token).unwrap().name, "x-2");
}

#[test]
fn a_lost_authority_is_not_made_again_by_itself() {
    let scratch = Scratch::new();
    let pki = scratch.pki();
    let first = pki.authority().unwrap().id();
    enrol(&pki, &key(), "lab", &pki.create_token(HOUR, 1).unwrap()).unwrap();
    assert_eq!(scratch.pki().authority().unwrap().id(), first, "it is kept");
    std::fs::remove_file(scratch.folder().file("ca.key")).unwrap();
    let lost = Pki::open(&scratch.0, HOUR).unwrap_err().to_string();
    assert!(lost.contains("--new-ca") && lost.contains("lab"), "{lost}");
    let certificate = scratch.folder().file("ca.pem");
    let kept = std::fs::read(&certificate).unwrap();
    std::fs::remove_file(&certificate).unwrap();
    let lost = Pki::open(&scratch.0, HOUR).unwrap_err().to_string();
    assert!(lost.contains("--new-ca") && lost.contains("lab"), "both halves are gone: {lost}");
    std::fs::write(&certificate, kept).unwrap();
    let (nodes, aside) = new_authority(&scratch.0).unwrap();
    assert_eq!(nodes, "lab");
    assert!(aside.join("ca.pem").is_file());
    std::fs::remove_dir_all(aside).unwrap();
    assert_ne!(scratch.pki().authority().unwrap().id(), first);
    assert!(Pki::nodes(&scratch.folder()).unwrap().is_empty());
}

#[test]
fn a_node_of_another_authority_is_in_the_books_when_it_was_seen() {
    let scratch = Scratch::new();
    let pki = Pki::of_foreign(&scratch.0);
    let refused = pki.enrol(&key(), "lab", None).unwrap_err();
    assert!(matches!(refused, Refusal::Foreign), "{refused}");
    let party = brigade_proto::tls::Party {
        role: Role::Worker,
        name: "lab".into(),
        key: key().id(),
        node: None,
    };
    pki.seen(&party, "10.0.0.2:7070").unwrap();
    pki.seen(&party, "10.0.0.2:7070").unwrap();
    let nodes: Vec<Node> = Pki::nodes(&scratch.folder()).unwrap();
    assert_eq!((nodes.len(), nodes[0].address.as_str()), (1, "10.0.0.2:7070"));
    pki.seen(&party, "10.0.0.3:7070").unwrap();
    let nodes: Vec<Node> = Pki::nodes(&scratch.folder()).unwrap();
    assert_eq!((nodes.len(), nodes[0].address.as_str()), (1, "10.0.0.3:7070"), "it moved");
    assert_eq!(Pki::revoke(&scratch.folder(), "lab").unwrap().len(), 1);
}
