//! Limits of HTTP clients and their errors, against a real server: fields in the forms of other servers, requests
//! that never become complete, floods of connections, and errors that name no worker.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, Server, get, is_alive, post, signal};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}"))
}

fn connect(server: &Server, send: &str) -> TcpStream {
    let address: SocketAddr = server.process.ready.trim_start_matches("http://").parse().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(send.as_bytes()).unwrap();
    stream
}

fn fields_mean_what_they_mean_elsewhere() {
    let server = Server::start(&["--workers", "1", "--ctx", "256"]);
    let complete = |body: Value| {
        let reply = server.post("/v1/completions", &body);
        (reply.status, json_of(&reply.body))
    };
    let (status, body) = complete(json!({ "prompt": "In the", "repeat_last_n": -1,
                                          "repeat_penalty": 1.3, "max_tokens": 2 }));
    assert_eq!(status, 200, "{body}");
    let (_, body) = complete(json!({ "prompt": "In the", "temperature": 0, "ignore_eos": true }));
    assert_eq!(body["usage"]["completion_tokens"], 16, "OpenAI's default");
    let (status, body) = complete(json!({ "prompt": "In the", "top_k": 1u64 << 40 }));
    let message = body["error"]["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("to 4294967295"), "{message}");
    let reply = post(&server.url("/v1"), "{}").unwrap();
    assert!(reply.status == 404 && reply.body.contains("/v1/chat/completions"), "{}", reply.body);
}

fn control_tokens_have_names_among_the_alternatives() {
    let server = Server::start(&["--workers", "1", "--ctx", "256"]);
    let eos = json_of(&server.post("/tokenize", &json!({ "content": "<|im_end|>" })).body);
    let eos = eos["tokens"].as_array().unwrap().clone();
    assert_eq!(eos.len(), 1, "the demo's end of a message is one token: {eos:?}");
    let id = eos[0].as_u64().unwrap();
    // The bias makes it the most probable token everywhere.
    let mut body = json!({ "messages": [{ "role": "user", "content": "Who?" }], "temperature": 0,
                           "logprobs": true, "top_logprobs": 1, "max_tokens": 1, "ignore_eos": true });
    body["logit_bias"] = json!({ id.to_string(): 99 });
    let reply = server.post("/v1/chat/completions", &body);
    let answer = json_of(&reply.body);
    let drawn = &answer["choices"][0]["logprobs"]["content"][0];
    let bytes = json!("<|im_end|>".as_bytes());
    assert_eq!(
        (&drawn["token"], &drawn["bytes"]),
        (&json!("<|im_end|>"), &bytes),
        "{}",
        reply.body
    );
    assert_eq!(answer["choices"][0]["message"]["content"], "");
}

fn half_a_request_does_not_hold_up_the_end() {
    let server = Server::start(&["--workers", "1"]);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n";
    let _open: Vec<TcpStream> =
        ["", "POST /v1/completions HTTP/1.1\r\n", head].map(|half| connect(&server, half)).into();
    std::thread::sleep(Duration::from_millis(200));
    let (pid, began) = (server.process.pid(), Instant::now());
    signal("TERM", pid);
    while is_alive(pid) {
        // Answers that run have 20 s; there are none.
        assert!(began.elapsed() < Duration::from_secs(15), "it waits for half a request");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn a_body_that_does_not_come_is_given_up() {
    let server = Server::start(&["--workers", "1"]);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{";
    let mut answer = String::new();
    let mut stalled = connect(&server, head);
    // The server says so and closes; reading ends by itself.
    stalled.read_to_string(&mut answer).expect("the server answers before the client gives up");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("did not go on for 10 s"), "{answer}");
}

fn a_body_of_small_values_is_not_kept_as_a_tree() {
    let server = Server::start(&["--workers", "1"]);
    let values = "[],".repeat(5 << 20);
    let body = format!(
        r#"{{"messages": [{{"role": "user", "content": "x", "y": [{values}0]}}], "max_tokens": 1}}"#
    );
    let reply = post(&server.url("/v1/chat/completions"), &body).unwrap();
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.body.contains("65536"), "{}", reply.body);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 300 << 10, "a body of {} bytes took {kib} KiB", body.len());
}

fn whoever_asks_is_served_beside_any_number_of_silent_connections() {
    let server = Server::start(&["--workers", "1"]);
    let mut silent: Vec<TcpStream> = (0..600).map(|_| connect(&server, "")).collect();
    assert_eq!(get(&server.url("/health")).unwrap().status, 200);
    let sockets = std::fs::read_dir(format!("/proc/{}/fd", server.process.pid())).unwrap().count();
    assert!(sockets < 600, "{sockets} files are open");
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "the first one was closed");
}

fn clients_learn_no_workers_address() {
    let at = || Running::start(&["worker", "--listen", "127.0.0.1:0"], "brigade worker ready on ");
    let (a, b) = (at(), at());
    let server = Server::start(&[
        "--worker",
        &a.ready,
        "--worker",
        &b.ready,
        "--ctx",
        "8192",
        "--repair-within",
        "0",
    ]);
    let ports: Vec<String> =
        [&a, &b].iter().map(|w| w.ready.rsplit(':').next().unwrap().to_owned()).collect();
    let names_none = |text: &str| {
        for port in &ports {
            assert!(!text.contains(port.as_str()), "{text} names port {port}");
        }
    };
    let client = std::thread::spawn({
        let url = server.url("/v1/chat/completions");
        move || {
            let body = json!({ "messages": [{ "role": "user", "content": "Hello" }], "temperature": 0,
                               "max_tokens": 8000, "ignore_eos": true });
            post(&url, &body.to_string()).unwrap()
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    drop(b);
    let broken = client.join().unwrap();
    assert_eq!(broken.status, 503, "{}", broken.body);
    names_none(&broken.body);
    assert!(broken.body.contains("line of workers broke"), "{}", broken.body);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let health = get(&server.url("/health")).unwrap();
        names_none(&health.body);
        if health.body.contains("loading") || health.body.contains("down") {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = server.post("/v1/completions", &json!({ "prompt": "x" }));
    assert_eq!(refused.status, 503, "{}", refused.body);
    names_none(&refused.body);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        fields_mean_what_they_mean_elsewhere,
        control_tokens_have_names_among_the_alternatives,
        half_a_request_does_not_hold_up_the_end,
        a_body_that_does_not_come_is_given_up,
        a_body_of_small_values_is_not_kept_as_a_tree,
        clients_learn_no_workers_address;
    alone: whoever_asks_is_served_beside_any_number_of_silent_connections;
];
