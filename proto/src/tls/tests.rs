//! Tests of accepted and refused peers, and of the error messages: keys and certificates without a network, then
//! pairs of sockets.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::authority::{Validity, newcomer_certificate};
use super::error_text::{Trouble, trouble};
use super::party::{check_name, coordinator_id, holder_name};
use super::stream::{Dialling, Offer, Transport};
use super::verify::{Authorities, CLOCK_SKEW_S, Expected, KeyUsage, Refused};
use super::*;
use crate::address::FIRST_STAGE;

const NOW: u64 = 1_800_000_000;
const HOUR: Duration = Duration::from_secs(3600);

fn authority() -> Authority {
    let (key, certificate) = Authority::create(unix_now()).unwrap();
    Authority::load(key, "ca", &certificate).unwrap()
}

fn authorities(authority: &Authority) -> Authorities {
    Authorities::new("ca", std::slice::from_ref(authority.certificate())).unwrap()
}

/// Credentials of `role`, believing `of`'s cluster.
fn member(of: &Authority, role: Role, name: &str) -> Credentials {
    let key = NodeKey::generate().unwrap();
    let certificate = of.issue_to(&key, role, name, Validity::from_now(unix_now(), HOUR)).unwrap();
    let chain = vec![certificate, of.certificate().clone()];
    Credentials::new(Arc::new(Identity::new(chain, &key.to_der()).unwrap()), authorities(of))
}

fn any(role: Role) -> Expected {
    Expected { role, key: None }
}

#[test]
fn keys_come_back_from_pem_and_have_one_id() {
    let key = NodeKey::generate().unwrap();
    let again = NodeKey::from_pem("key", &key.to_pem()).unwrap();
    assert_eq!(key.id(), again.id());
    assert_eq!(key.id().to_string().parse::<KeyId>().unwrap(), key.id());
    let shown = newcomer_certificate(&key, "lab", NOW).unwrap();
    assert_eq!(verify::key_of(&shown), Some(key.id()));
    for bad in ["", "xyz", &"0".repeat(63), &"G".repeat(64)] {
        assert!(bad.parse::<KeyId>().is_err(), "{bad}");
    }
    assert!(NodeKey::from_pem("key", "-----BEGIN NOTHING-----").is_err());
}

#[test]
fn tokens_come_back_and_nothing_else_is_one() {
    let token = Token::generate(NodeKey::generate().unwrap().id()).unwrap();
    let text = token.to_string();
    assert_eq!(text.parse::<Token>().unwrap(), token);
    assert!(!format!("{token:?}").contains(&key::hex(&token.secret)));
    let cut = &text[..text.len() - 1];
    let upper = text.to_uppercase();
    for bad in ["", "brg1", "brg1_a_b_c", cut, &upper, &text.replace("brg1", "brg2")] {
        let reason = bad.parse::<Token>().unwrap_err().to_string();
        assert!(reason.contains("token create"), "{reason}");
    }
    assert!("x".repeat(10_000).parse::<Token>().is_err());
}

#[test]
fn hashes_are_equal_in_all_bytes_or_not_at_all() {
    let hash = token::hash_secret(b"secret");
    assert!(token::equal_hashes(&hash, &hash.clone()));
    // In one byte, and in two by the same bits.
    for changed in [&[0][..], &[31], &[3, 17]] {
        let mut other = hash;
        changed.iter().for_each(|i| other[*i] ^= 1);
        assert!(!token::equal_hashes(&hash, &other), "{changed:?}");
    }
}

#[test]
fn names_of_nodes() {
    for good in ["a", "lab", "gpu-1.rack2", &"x".repeat(63)] {
        assert!(check_name(good).is_ok(), "{good}");
    }
    for bad in ["", "-a", "a.", "a b", "a/b", "a:b", "ä", &"x".repeat(64)] {
        assert!(check_name(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_coordinators_id_is_its_keys() {
    let of = authority();
    let (desk, other) =
        (member(&of, Role::Coordinator, "desk"), member(&of, Role::Coordinator, "desk"));
    let id = coordinator_id(&desk.party(), "17-secret");
    assert!(Who::Known(desk.party()).speaks_for(&id));
    assert!(!Who::Known(other.party()).speaks_for(&id), "the same name is not enough");
    assert!(!Who::Known(desk.party()).speaks_for("17-secret"));
    let shown = holder_name(&id).unwrap();
    assert!(shown.starts_with("desk (key ") && !shown.contains("secret"), "{shown}");
    assert_eq!(holder_name("17-secret"), None);
}

#[test]
fn a_certificate_is_good_for_its_time_and_what_clocks_may_differ() {
    let of = authority();
    let key = NodeKey::generate().unwrap();
    let (begin, end) = (NOW, NOW + 100);
    let validity = Validity { not_before: begin, not_after: end };
    let certificate = of.issue_to(&key, Role::Worker, "lab", validity).unwrap();
    let at = |now| authorities(&of).check(&certificate, &[], now, KeyUsage::server_auth());
    for good in [begin - CLOCK_SKEW_S, begin, end, end + CLOCK_SKEW_S] {
        assert_eq!(at(good).map(|party| party.key), Ok(key.id()), "{good}");
    }
    let early = at(begin - CLOCK_SKEW_S - 1).unwrap_err();
    assert_eq!(early, Refused::NotYet { now: begin - CLOCK_SKEW_S - 1, not_before: begin });
    let until = CLOCK_SKEW_S + 1;
    assert!(early.to_string().contains(&format!("begins in {until} s")), "{early}");
    let late = at(end + CLOCK_SKEW_S + 1).unwrap_err();
    assert_eq!(late, Refused::Expired { now: end + CLOCK_SKEW_S + 1, not_after: end });
    assert!(late.to_string().contains("expired 301 s ago"), "{late}");
    let usage = KeyUsage::server_auth();
    let other = authorities(&authority()).check(&certificate, &[], NOW, usage);
    assert_eq!(other, Err(Refused::OtherAuthority));
}

#[test]
fn a_certificate_without_a_role_is_none() {
    let of = authority();
    let as_party = verify::party_of(of.certificate()).unwrap_err();
    assert!(as_party.to_string().contains("brigade://worker/NAME"), "{as_party}");
    assert!(
        of.issue_to(
            &NodeKey::generate().unwrap(),
            Role::Worker,
            "a b",
            Validity::from_now(0, HOUR)
        )
        .is_err()
    );
}

#[test]
fn a_certificate_is_replaced_by_one_of_the_same_key_only() {
    let of = authority();
    let key = NodeKey::generate().unwrap();
    let issue = |key: &NodeKey, name: &str| {
        of.issue_to(key, Role::Worker, name, Validity::from_now(unix_now(), HOUR)).unwrap()
    };
    let identity = Identity::new(vec![issue(&key, "lab")], &key.to_der()).unwrap();
    identity.replace(vec![issue(&key, "attic")]).unwrap();
    assert_eq!(identity.party().name, "attic");
    assert!(identity.replace(vec![issue(&NodeKey::generate().unwrap(), "x")]).is_err());
    assert!(identity.replace(Vec::new()).is_err());
    assert_eq!(identity.party().name, "attic");
}

#[test]
fn a_bundle_goes_through_a_pipe() {
    let of = authority();
    let text = Bundle::for_child(&of, "local-0").unwrap().to_text() + "and what comes after";
    let mut pipe = text.as_bytes();
    let credentials = Bundle::credentials_from(&mut pipe).unwrap();
    assert_eq!(
        (credentials.party().role, credentials.party().name.as_str()),
        (Role::Worker, "local-0")
    );
    assert_eq!(pipe, b"and what comes after");
    for bad in ["", "-----END BUNDLE-----\n", &text[..100]] {
        assert!(Bundle::credentials_from(&mut bad.as_bytes()).is_err());
    }
}

#[test]
fn revoked_keys_cross_the_wire_whole_or_not_at_all() {
    let revoked = Revoked::default();
    let keys: Vec<KeyId> = (0..3).map(|_| NodeKey::generate().unwrap().id()).collect();
    revoked.add(&keys);
    let bytes = revoked.to_bytes();
    let mut again = Revoked::from_bytes(&bytes).unwrap();
    again.sort_unstable();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(again, sorted);
    assert_eq!(Revoked::from_bytes(&bytes[1..]), None);
    assert_eq!(Revoked::from_bytes(&vec![0; 32 * (revoked::MAX_REVOKED + 1)]), None);
    revoked.set([keys[0]]);
    assert!(revoked.has(&keys[0]) && !revoked.has(&keys[1]));
}

/// A server that says hello to whom it believes, and a client; how each fared.
async fn meet(
    server: &Credentials,
    client: &Credentials,
    expected: Expected,
) -> (io::Result<Transport>, io::Result<Transport>) {
    let (near, far) = UnixStream::pair().unwrap();
    let offer = Offer::tls(server, false).unwrap();
    let serve = async {
        let mut stream = offer.accept(near.into(), Arc::default()).await?;
        stream.write_all(b"hello").await?;
        stream.flush().await?;
        Ok(stream)
    };
    let dialling = Dialling::new(client, expected, FIRST_STAGE).unwrap();
    tokio::join!(serve, dialling.connect(far.into()))
}

fn why(failed: io::Result<Transport>) -> Trouble {
    let error = failed.expect_err("a handshake that should fail");
    trouble(&error).unwrap_or_else(|| panic!("{error}"))
}

#[tokio::test]
async fn two_of_one_cluster_know_each_other() {
    let of = authority();
    let (worker, desk) = (member(&of, Role::Worker, "lab"), member(&of, Role::Coordinator, "desk"));
    let (server, client) = meet(&worker, &desk, any(Role::Worker)).await;
    let (server, mut client) = (server.unwrap(), client.unwrap());
    assert_eq!(server.who(), &Who::Known(desk.party()));
    assert_eq!(client.who(), &Who::Known(worker.party()));
    let mut words = [0; 5];
    client.read_exact(&mut words).await.unwrap();
    assert_eq!(&words, b"hello", "what was read early is not lost");
}

#[tokio::test]
async fn what_is_said_to_those_who_are_not_believed() {
    let (of, other) = (authority(), authority());
    let worker = member(&of, Role::Worker, "lab");
    let stranger = member(&other, Role::Coordinator, "desk");
    // Neither knows the other's authority; the client, who looks first, says so.
    let (_, client) = meet(&worker, &stranger, any(Role::Worker)).await;
    assert!(why(client).words.contains("of another cluster"));
    // A client that believes the server, and is not believed.
    let key = NodeKey::generate().unwrap();
    let issue =
        |by: &Authority, validity| by.issue_to(&key, Role::Coordinator, "desk", validity).unwrap();
    let shows = |certificate| {
        let identity = Identity::new(vec![certificate], &key.to_der()).unwrap();
        Credentials::new(Arc::new(identity), authorities(&of))
    };
    let now = unix_now();
    let over = Validity { not_before: now - 7200, not_after: now - 3600 };
    let cases = [
        (issue(&other, Validity::from_now(now, HOUR)), "another cluster", "another cluster"),
        (issue(&of, over), "expired", "expired 3"),
        (
            newcomer_certificate(&key, "n", now).unwrap(),
            "does not know the authority",
            "another cluster",
        ),
    ];
    for (certificate, told, said) in cases {
        let (server, client) = meet(&worker, &shows(certificate), any(Role::Worker)).await;
        let (server, client) = (why(server), why(client));
        assert!(client.words.contains(told) && client.is_refusal, "{client:?}");
        assert!(server.words.contains(said), "{server:?}");
    }
}

#[tokio::test]
async fn who_is_dialled_must_be_who_is_expected() {
    let of = authority();
    let (worker, desk) = (member(&of, Role::Worker, "lab"), member(&of, Role::Coordinator, "desk"));
    let (_, client) = meet(&worker, &desk, any(Role::Coordinator)).await;
    assert!(why(client).words.contains("it is a worker, and a coordinator was expected"));
    let key = Some(desk.party().key);
    let (_, client) = meet(&worker, &desk, Expected { role: Role::Worker, key }).await;
    assert!(why(client).words.contains("another process has its address"));
}

#[tokio::test]
async fn a_newcomer_is_let_in_where_newcomers_are_and_knows_whom_it_meets() {
    let (of, other) = (authority(), authority());
    let desk = member(&of, Role::Coordinator, "desk").with_newcomers();
    let key = NodeKey::generate().unwrap();
    let newcomer = |pin| Credentials::of_newcomer(&key, "lab", pin, unix_now()).unwrap();
    let (server, client) = meet(&desk, &newcomer(of.id()), any(Role::Coordinator)).await;
    let Who::Stranger(proved) = server.unwrap().who().clone() else { panic!("not a stranger") };
    assert_eq!(proved.id(), key.id());
    assert_eq!(client.unwrap().who(), &Who::Known(desk.party()));
    let (_, client) = meet(&desk, &newcomer(other.id()), any(Role::Coordinator)).await;
    assert!(why(client).words.contains("not the one that made the token"));
}

#[tokio::test]
async fn a_revoked_key_gets_nothing_and_loses_what_it_has() {
    let of = authority();
    let (worker, desk) = (member(&of, Role::Worker, "lab"), member(&of, Role::Coordinator, "desk"));
    let (server, client) = meet(&worker, &desk, any(Role::Worker)).await;
    let (mut server, _client) = (server.unwrap(), client.unwrap());
    let revoked = worker.revoked().clone();
    let key = desk.party().key;
    let reading = tokio::spawn(async move { server.read_u8().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!reading.is_finished(), "nothing was sent");
    revoked.add(&[key]);
    let ended = tokio::time::timeout(Duration::from_secs(5), reading).await.unwrap().unwrap();
    assert!(ended.is_err(), "a reader that waits is woken");
    let (server, client) = meet(&worker, &desk, any(Role::Worker)).await;
    assert!(why(server).words.contains("revoked"));
    assert!(why(client).words.contains("this node's certificate was revoked"));
}

#[tokio::test]
async fn a_server_without_tls_is_seen_to_be_one() {
    let path = std::env::temp_dir().join(format!("brigade-tls-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let desk = member(&authority(), Role::Coordinator, "desk");
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        // As an HTTP/2 server begins: an empty SETTINGS frame.
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        stream
    };
    let dialling = Dialling::new(&desk, any(Role::Worker), FIRST_STAGE).unwrap();
    let socket = UnixStream::connect(&path).await.unwrap();
    let (_open, client) = tokio::join!(serve, dialling.connect(socket.into()));
    std::fs::remove_file(&path).unwrap();
    assert!(why(client).is_plain);
}
