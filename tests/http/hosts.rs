//! Requests for another server, or written so that two programs could read them differently. A server without keys on
//! this machine answers none of them, on either of its listeners.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use brigade_tests::process::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// The complete answer of a listener at `url` to these bytes.
fn exchange(url: &str, send: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(send.as_bytes()).unwrap();
    let mut answer = String::new();
    // A refused connection may be reset behind its answer.
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn get(url: &str, path: &str, host: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    exchange(url, &head)
}

fn only_this_machines_names_are_answered() {
    let server = Server::start(&["--workers", "1", "--allow-host", "Chat.example"]);
    let (public, admin) = (server.url(""), server.admin(""));
    let port = public.rsplit(':').next().unwrap().to_owned();
    let paths = [(&public, "/"), (&public, "/health"), (&public, "/v1/models"), (&public, "/none")];
    let of_admin =
        [(&admin, "/health"), (&admin, "/metrics"), (&admin, "/admin/cluster"), (&admin, "/")];
    for (url, path) in paths.into_iter().chain(of_admin) {
        let answer = get(url, path, &format!("attacker.example:{port}"));
        assert!(status(&answer) == 421 && answer.contains("--allow-host"), "{path}: {answer}");
        for host in ["127.0.0.1", "localhost:1", "[::1]:8080", "chat.example"] {
            let answer = get(url, path, host);
            assert!([200, 404].contains(&status(&answer)), "{host} {path}: {answer}");
        }
    }
    let body = r#"{"prompt": "In", "max_tokens": 1}"#;
    let chat = |host: &str| {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange(&public, &head)
    };
    assert_eq!(status(&chat(&format!("attacker.example:{port}"))), 421);
    assert_eq!(status(&chat(&format!("127.0.0.1:{port}"))), 200);
    let answer = exchange(
        &public,
        "GET http://attacker.example/ HTTP/1.1\r\nhost: localhost\r\n\
                                    connection: close\r\n\r\n",
    );
    assert_eq!(status(&answer), 421, "{answer}");
}

fn requests_that_can_be_read_in_two_ways_are_refused() {
    let server = Server::start(&["--workers", "1"]);
    for url in [server.url(""), server.admin("")] {
        for head in [
            "GET /health HTTP/1.1\r\nconnection: close\r\n\r\n",
            "GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            "GET /health HTTP/1.1\nhost: localhost\nconnection: close\n\n",
            "GET /health HTTP/1.1\r\nhost: localhost\nconnection: close\r\n\r\n",
            "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\n",
            "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\
                connection: close\r\n\r\n0\r\n\r\n",
        ] {
            assert_eq!(status(&exchange(&url, head)), 400, "{head:?}");
        }
        assert_eq!(status(&exchange(&url, "GET /health HTTP/1.0\r\n\r\n")), 200);
    }
}

fn a_compressed_body_is_refused_with_what_is_taken() {
    let server = Server::start(&["--workers", "1"]);
    let send = |url: &str, path: &str, coding: &str| {
        let body = r#"{"prompt": "In", "max_tokens": 1}"#;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-encoding: {coding}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange(url, &head)
    };
    for coding in ["gzip", "deflate", "br", "zstd", "identity, gzip"] {
        for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/api/generate"] {
            let answer = send(&server.url(""), path, coding);
            assert_eq!(status(&answer), 415, "{coding}: {answer}");
            assert!(
                answer.contains("accept-encoding: identity") && answer.contains("uncompressed")
            );
        }
        assert_eq!(status(&send(&server.admin(""), "/admin/cluster", coding)), 415);
    }
    assert_eq!(status(&send(&server.url(""), "/v1/completions", "identity")), 200);
}

fn no_name_of_a_request_breaks_the_line() {
    let server = Server::start(&["--workers", "2"]);
    let body = r#"{"prompt": "In", "max_tokens": 1}"#;
    let long = "x".repeat(300);
    for id in
        ["a\tb", "a\" status=500", "\u{e9}", "\u{85}", "a, b", "\u{1f600}", long.as_str(), " ", "-"]
    {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(&server.url(""), &head);
        assert_eq!(status(&answer), 200, "{id:?}: {answer}");
    }
    assert_eq!(server.metric("brigade_line_down_total"), 0.0);
}

fn a_page_of_somebody_else_makes_no_browser_ask() {
    let server = Server::start(&["--workers", "1", "--cors", "https://chat.example"]);
    let body = r#"{"prompt": "In", "max_tokens": 1}"#;
    let ask = |origin: &str, kind: &str| {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\ncontent-type: {kind}\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange(&server.url(""), &head)
    };
    for origin in ["https://evil.example", "null"] {
        let answer = ask(origin, "text/plain");
        assert!(status(&answer) == 403 && answer.contains("--cors"), "{origin}: {answer}");
        // No browser sends this before it was allowed; programs do.
        assert_eq!(status(&ask(origin, "application/json")), 200, "{origin}");
    }
    for origin in ["https://chat.example", "http://localhost:3000", "http://localhost"] {
        assert_eq!(status(&ask(origin, "text/plain")), 200, "{origin}");
    }
}

fn pages_that_cors_allows_may_read() {
    let server = Server::start(&["--workers", "1", "--cors", "https://chat.example"]);
    let ask = |method: &str, origin: &str, host: &str| {
        let head = format!(
            "{method} /v1/models HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\nconnection: close\r\n\
             access-control-request-method: POST\r\naccess-control-request-headers: x-api-key\r\n\r\n"
        );
        exchange(&server.url(""), &head).to_ascii_lowercase()
    };
    for origin in ["https://chat.example", "http://localhost:3000"] {
        let may = format!("access-control-allow-origin: {origin}\r\n");
        let asked = ask("OPTIONS", origin, "localhost");
        assert!((200..300).contains(&status(&asked)) && asked.contains(&may), "{asked}");
        for line in ["allow-headers: x-api-key\r\n", "max-age: 600\r\n"] {
            assert!(asked.contains(&format!("access-control-{line}")), "{line}: {asked}");
        }
        for method in ["get", "post", "delete"] {
            let methods = asked.split("access-control-allow-methods: ").nth(1).unwrap_or_default();
            let methods = methods.lines().next().unwrap_or_default();
            assert!(methods.split(',').any(|one| one.trim() == method), "{method}: {asked}");
        }
        let answer = ask("GET", origin, "localhost");
        assert!(status(&answer) == 200 && answer.contains(&may), "{answer}");
        assert!(
            answer.contains("vary: origin\r\n") && answer.contains("x-request-id,"),
            "{answer}"
        );
        // What is refused is read too, so that a page can say why.
        let refused = ask("GET", origin, "evil.example");
        assert!(status(&refused) == 421 && refused.contains(&may), "{refused}");
    }
    for (origin, host, want) in
        [("https://evil.example", "localhost", 405), ("https://evil.example", "evil.example", 421)]
    {
        let asked = ask("OPTIONS", origin, host);
        assert!(status(&asked) == want && !asked.contains("access-control-"), "{asked}");
    }
}

fn refusals_have_the_form_of_the_api_that_was_asked() {
    let server = Server::start(&["--workers", "1"]);
    let ask = |path: &str, host: &str, coding: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-encoding: {coding}\r\nconnection: close\r\n\
             content-length: 2\r\n\r\n{{}}"
        );
        let answer = exchange(&server.url(""), &head);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status(&answer), serde_json::from_str::<serde_json::Value>(body).unwrap())
    };
    for (host, coding, want) in [("evil.example", "", 421), ("localhost", "gzip", 415)] {
        let (status, of_openai) = ask("/v1/completions", host, coding);
        assert!(status == want && of_openai["error"]["message"].is_string(), "{of_openai}");
        let (status, of_ollama) = ask("/api/chat", host, coding);
        assert!(status == want && of_ollama["error"].is_string(), "{of_ollama}");
        let (status, of_anthropic) = ask("/v1/messages", host, coding);
        assert!(status == want && of_anthropic["type"] == "error", "{of_anthropic}");
    }
    let (status, unknown) = ask("/api/none", "localhost", "");
    assert!(status == 404 && unknown["error"].is_string(), "{unknown}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        only_this_machines_names_are_answered,
        requests_that_can_be_read_in_two_ways_are_refused,
        no_name_of_a_request_breaks_the_line,
        a_page_of_somebody_else_makes_no_browser_ask,
        pages_that_cors_allows_may_read,
        refusals_have_the_form_of_the_api_that_was_asked,
        a_compressed_body_is_refused_with_what_is_taken;
];
