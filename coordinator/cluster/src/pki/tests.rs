//! Tests of issuing and refusing certificates, with a folder of files for each test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use brigade_proto::tls::verify::{Authorities, party_of};
use brigade_proto::tls::{KeyId, NodeKey, PublicKey, Role, Token, unix_now};

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

#[test]
fn a_node_is_revoked_with_all_of_its_stages_and_no_other() {
    let scratch = Scratch::new();
    let (pki, folder) = (scratch.pki(), scratch.folder());
    let token = pki.create_token(HOUR, 9).unwrap();
    for name in ["lab.1", "lab.2", "lab.x", "labs", "lab2.1", "a-lab.1"] {
        enrol(&pki, &key(), name, &token).unwrap();
    }
    let names = |which: &str| -> Vec<String> {
        Pki::revoke(&folder, which).unwrap().into_iter().map(|node| node.name).collect()
    };
    assert_eq!(names("lab"), ["lab.1", "lab.2"]);
    assert_eq!(names("lab2.1"), ["lab2.1"], "one stage");
    // By its address: stages have it together, and a number each.
    for (name, address) in [
        ("at.1", "10.0.0.9:1"),
        ("at.2", "10.0.0.9:1/2"),
        ("at.3", "10.0.0.9:1/3"),
        ("by", "10.0.0.9:12"),
    ] {
        let of = key();
        enrol(&pki, &of, name, &pki.create_token(HOUR, 1).unwrap()).unwrap();
        let party =
            brigade_proto::tls::Party { role: Role::Worker, name: name.into(), key: of.id() };
        pki.seen(&party, address).unwrap();
    }
    assert_eq!(names("10.0.0.9:1/2"), ["at.2"], "one stage");
    assert_eq!(names("10.0.0.9:1"), ["at.1", "at.3"], "all that are left");
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
    let party =
        brigade_proto::tls::Party { role: Role::Worker, name: "lab".into(), key: key().id() };
    pki.seen(&party, "10.0.0.2:7070").unwrap();
    pki.seen(&party, "10.0.0.2:7070").unwrap();
    let nodes: Vec<Node> = Pki::nodes(&scratch.folder()).unwrap();
    assert_eq!((nodes.len(), nodes[0].address.as_str()), (1, "10.0.0.2:7070"));
    pki.seen(&party, "10.0.0.3:7070").unwrap();
    let nodes: Vec<Node> = Pki::nodes(&scratch.folder()).unwrap();
    assert_eq!((nodes.len(), nodes[0].address.as_str()), (1, "10.0.0.3:7070"), "it moved");
    assert_eq!(Pki::revoke(&scratch.folder(), "lab").unwrap().len(), 1);
}
