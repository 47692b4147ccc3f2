//! HTTPS over a real server: a client that trusts the certificate is served, one that speaks plain HTTP is not, and a
//! new certificate is taken while the server runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, is_alive, run, signal};
use brigade_tests::talker::Talker;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const PATIENCE: Duration = Duration::from_secs(60);

const SERVING: &str = "brigade serve listening on https://";

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("https-{name}"));
    // One that a failed run has left has the keys of that run.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a new certificate for `localhost` and its key; the certificate.
fn certificate(folder: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("server.crt"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("server.key"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

fn serve(folder: &Path, more: &[&str]) -> (Running, SocketAddr) {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (cert, key) = (file("server.crt"), file("server.key"));
    let args = ["serve", "--workers", "1", "--tls-cert", &cert, "--tls-key", &key];
    let server = Running::start(&[&args[..], more].concat(), SERVING);
    let port = server.ready.rsplit(':').next().unwrap();
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    (server, address)
}

/// The status line of an answer over TLS, from a server with this certificate.
fn get(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    path: &str,
) -> Result<String, String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(address).map_err(|e| e.to_string())?;
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(connection, tcp);
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(|e| e.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| e.to_string())?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

fn until_ok(address: SocketAddr, trusted: &CertificateDer<'static>) -> Duration {
    let began = Instant::now();
    while get(address, trusted, "/health").is_err() {
        assert!(began.elapsed() < PATIENCE, "the new certificate is not served");
        std::thread::sleep(Duration::from_millis(50));
    }
    began.elapsed()
}

/// Waits until requests can be answered.
fn until_up(address: SocketAddr, trusted: &CertificateDer<'static>) {
    let began = Instant::now();
    while !get(address, trusted, "/health").is_ok_and(|status| status.contains(" 200 ")) {
        assert!(began.elapsed() < PATIENCE, "the line does not come up");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn https_is_served_and_a_new_certificate_is_taken() {
    let folder = folder("renew");
    let first = certificate(&folder);
    let (server, address) = serve(&folder, &["--listen", "127.0.0.1:0"]);
    assert_eq!(get(address, &first, "/v1/models").unwrap(), "HTTP/1.1 200 OK");
    let second = certificate(&folder);
    let by_itself = until_ok(address, &second);
    let error = get(address, &first, "/health").unwrap_err();
    assert!(error.contains("certificate"), "{error}");
    let third = certificate(&folder);
    signal("HUP", server.pid());
    let told = until_ok(address, &third);
    println!("a new certificate was served after {by_itself:?}, after SIGHUP {told:?}");
    std::fs::write(folder.join("server.crt"), "damaged").unwrap();
    signal("HUP", server.pid());
    std::thread::sleep(Duration::from_millis(300));
    assert!(get(address, &third, "/health").is_ok(), "a damaged one changes nothing");
    assert_eq!(server.stop(PATIENCE), Some(0), "SIGHUP did not end it");
}

fn a_chat_shows_its_key_to_a_server_that_it_trusts() {
    let folder = folder("chat");
    let trusted = certificate(&folder);
    let data = folder.join("data");
    let data = data.to_str().unwrap();
    let made = run(&["key", "create", "me", "--data-dir", data]);
    assert!(made.status.success(), "{made:?}");
    let key = String::from_utf8(made.stdout).unwrap();
    let key = key.trim();
    let (server, address) = serve(&folder, &["--listen", "127.0.0.1:0", "--data-dir", data]);
    until_up(address, &trusted);
    let url = format!("https://localhost:{}", address.port());
    let ca = folder.join("server.crt");
    let chat = ["--url", &url, "--set", "max_tokens=4"];
    let says = |more: &[&str]| {
        let mut talk = Talker::piped(&[&chat, more].concat());
        talk.types("Hello\n");
        let ended = talk.ends();
        (ended.success(), talk.remarks())
    };
    let trusted = ["--ca", ca.to_str().unwrap(), "--api-key"];
    let (ended, remarks) = says(&[&trusted[..], &[key]].concat());
    assert!(ended && remarks.contains("; prompt "), "{remarks}");
    let (ended, remarks) = says(&[&trusted[..], &["brg_other"]].concat());
    assert!(!ended && remarks.contains("not known here"), "{remarks}");
    let (ended, remarks) = says(&["--api-key", key]);
    assert!(!ended && remarks.contains("cannot reach https://localhost"), "{remarks}");
    assert!(!remarks.contains(key), "{remarks}");
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

fn whoever_does_not_speak_tls_or_never_ends_the_handshake_gets_nothing() {
    let folder = folder("strangers");
    let trusted = certificate(&folder);
    let (server, address) = serve(&folder, &["--listen", "127.0.0.1:0"]);
    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // A reset is a way to close too.
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
    let began = Instant::now();
    let mut silent = TcpStream::connect(address).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    silent.write_all(&[0x16, 0x03, 0x01]).unwrap();
    assert!(get(address, &trusted, "/health").is_ok(), "others are served meanwhile");
    let ended = silent.read(&mut [0; 16]);
    let took = began.elapsed();
    assert!(ended.map_or(true, |n| n == 0) && took < PATIENCE, "{took:?}");
    println!("a handshake that does not go on was given up after {took:?}");
    assert!(is_alive(server.pid()));
}

fn certificates_that_cannot_be_used_are_refused_at_the_start() {
    let (a, b) = (folder("bad-a"), folder("bad-b"));
    certificate(&a);
    certificate(&b);
    let at = |folder: &Path, name: &str| folder.join(name).to_str().unwrap().to_owned();
    let start = |cert: &str, key: &str| {
        let args = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key];
        let output = brigade_tests::process::run(&args);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = start(&at(&a, "server.crt"), &at(&b, "server.key"));
    assert!(error.contains("cannot be used"), "{error}");
    let error = start(&at(&a, "none.crt"), &at(&a, "server.key"));
    assert!(error.contains("--tls-cert") && error.contains("none.crt"), "{error}");
    let error = start(&at(&a, "server.crt"), &at(&a, "server.crt"));
    assert!(error.contains("--tls-key"), "{error}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        https_is_served_and_a_new_certificate_is_taken,
        a_chat_shows_its_key_to_a_server_that_it_trusts,
        whoever_does_not_speak_tls_or_never_ends_the_handshake_gets_nothing,
        certificates_that_cannot_be_used_are_refused_at_the_start;
];
