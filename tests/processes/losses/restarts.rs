//! Streams outlive the coordinator and their connections: a client that comes back reads on where it was cut, byte
//! for byte, and workers keep what they have loaded.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, Server, brigade, get_with, run, signal};
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// A worker that outlives its coordinator.
fn worker() -> Running {
    // All are told the same speed: what else this machine does must not decide the cut.
    let args = ["worker", "--listen", "127.0.0.1:0", "--speed", "20,200"];
    Running::start(&args, brigade_worker::run::READY_PREFIX)
}

fn folder(name: &str) -> PathBuf {
    let name = format!("restarts-{name}-{}", std::process::id());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    // One that a killed test has left.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn request(tokens: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me about the sea"}],
        "max_tokens": tokens, "temperature": 0.9, "seed": 5, "ignore_eos": true, "n": 2, "logprobs": true,
        "top_logprobs": 2, "stream": true, "resumable": true,
    })
}

/// Events of a stream: id and data of each.
type Events = Vec<(String, String)>;

/// Reads at most `most` events of a streamed answer, and hangs up.
fn read(response: ureq::http::Response<ureq::Body>, most: usize) -> Events {
    assert_eq!(response.status(), 200);
    let (mut events, mut id) = (Vec::new(), String::new());
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let line = line.unwrap_or_else(|error| {
            panic!("the connection broke after {} events: {error}", events.len())
        });
        if let Some(rest) = line.strip_prefix("id: ") {
            rest.clone_into(&mut id);
        } else if let Some(data) = line.strip_prefix("data: ") {
            events.push((id.clone(), data.to_owned()));
            if events.len() == most || data == "[DONE]" {
                break;
            }
        }
    }
    events
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(PATIENCE)).build().into()
}

fn ask(server: &Server, body: &Value, most: usize) -> Events {
    let post = agent().post(server.url("/v1/chat/completions"));
    let response = post.header("content-type", "application/json").send(body.to_string());
    read(response.unwrap(), most)
}

fn read_on(server: &Server, last: &str, most: usize) -> Events {
    let (stream, _) = last.rsplit_once('/').unwrap();
    let get = agent().get(server.url(&format!("/v1/streams/{stream}")));
    read(get.header("last-event-id", last).call().unwrap(), most)
}

/// Each choice of some events, put together: all that a client must get byte for byte.
fn choices(events: &Events) -> Vec<Value> {
    let mut choices = vec![json!({"text": "", "logprobs": [], "finish": null}); 2];
    for (_, data) in events.iter().filter(|(_, data)| data != "[DONE]") {
        let event: Value = serde_json::from_str(data).unwrap();
        assert!(event.get("error").is_none(), "{event}");
        for choice in event["choices"].as_array().unwrap() {
            let of = &mut choices[choice["index"].as_u64().unwrap() as usize];
            let text = of["text"].as_str().unwrap().to_owned()
                + choice["delta"]["content"].as_str().unwrap_or("");
            of["text"] = text.into();
            if let Some(content) = choice["logprobs"]["content"].as_array() {
                of["logprobs"].as_array_mut().unwrap().extend(content.iter().cloned());
            }
            if !choice["finish_reason"].is_null() {
                of["finish"] = choice["finish_reason"].clone();
            }
        }
    }
    choices
}

/// A free port.
fn port() -> u16 {
    free_address().rsplit(':').next().unwrap().parse().unwrap()
}

struct Cluster {
    workers: Vec<Running>,
    folder: PathBuf,
    port: u16,
}

impl Cluster {
    fn new(name: &str) -> Self {
        Self { workers: vec![worker(), worker()], folder: folder(name), port: port() }
    }

    fn serve(&self, log: &Path) -> Server {
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = std::process::Command::new(brigade());
        command.args(["serve", "--listen", &listen, "--keep", "0", "--data-dir"]).arg(&self.folder);
        for worker in &self.workers {
            command.args(["--worker", worker.ready.trim()]);
        }
        command.stderr(std::fs::File::create(log).unwrap());
        let process = Running::spawn(command, "brigade serve listening on ");
        let server = Server { process };
        server.wait_healthy(PATIENCE);
        server
    }
}

/// Bytes that each "stage loaded" of a log read.
fn read_bytes(log: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text.lines().filter(|line| line.contains("stage loaded"));
    let bytes =
        |line: &str| line.split("read_bytes=").nth(1)?.split_whitespace().next()?.parse().ok();
    lines.map(|line| bytes(line).unwrap()).collect()
}

fn a_killed_coordinator_goes_on_with_streams_and_workers() {
    kill_coordinators("killed", &request(300));
}

fn a_killed_coordinator_goes_on_with_guided_streams() {
    let mut body = request(300);
    body["guidance_scale"] = json!(1.5);
    body["negative_prompt"] = json!("You are asleep.");
    kill_coordinators("guided", &body);
}

/// Kills two coordinators, one after the other, in the midst of a stream.
fn kill_coordinators(name: &str, body: &Value) {
    let cluster = Cluster::new(name);
    let log = |n: usize| cluster.folder.join(format!("serve-{n}.log"));
    let mut server = cluster.serve(&log(0));
    let undisturbed = choices(&ask(&server, body, usize::MAX));
    assert!(read_bytes(&log(0)).iter().all(|bytes| *bytes > 0));
    let mut got = ask(&server, body, 90);
    assert_eq!(got.len(), 90);
    for (n, most) in [(1, 150), (2, usize::MAX)] {
        signal("KILL", server.process.pid());
        let killed = Instant::now();
        drop(server);
        server = cluster.serve(&log(n));
        println!("restart {n}: the line is up after {:?}", killed.elapsed());
        assert_eq!(read_bytes(&log(n)), [0, 0], "what is loaded is loaded again");
        let last = got.last().unwrap().0.clone();
        let more = read_on(&server, &last, most);
        println!("{} events before, {} after", got.len(), more.len());
        got.extend(more);
    }
    assert_eq!(got.last().unwrap().1, "[DONE]");
    assert_eq!(choices(&got), undisturbed);
    drop(server);
    std::fs::remove_dir_all(&cluster.folder).unwrap();
}

/// Makes a journal one of the release before, whose lines have no sums, and damages it: a number of sequences of its first
/// request, a token of its second.
fn damage(journal: &Path) {
    let text = std::fs::read_to_string(journal).unwrap();
    let mut tokens_of_second = 0;
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().remove("sum");
        if line.get("brigade_journal").is_some() {
            line["brigade_journal"] = json!(1);
        }
        if line["open"]["no"] == 0 {
            line["open"]["opened"]["sequences"] = json!(u64::MAX);
        }
        if line["token"]["no"] == 1 {
            tokens_of_second += 1;
            if tokens_of_second == 10 {
                line["token"]["token"]["id"] = json!(u32::MAX);
            }
        }
        line.to_string() + "\n"
    };
    let damaged: String = text.lines().map(line).collect();
    assert!(tokens_of_second >= 10, "{tokens_of_second} tokens were noted");
    std::fs::write(journal, damaged + "no line at all \u{1}\n").unwrap();
}

fn a_damaged_journal_costs_its_own_request_alone() {
    let cluster = Cluster::new("damaged");
    let log = |n: usize| cluster.folder.join(format!("serve-{n}.log"));
    let body = |seed: u64| {
        let mut body = request(200);
        body["seed"] = json!(seed);
        body
    };
    let server = cluster.serve(&log(0));
    let seeds = [1, 2, 3];
    let undisturbed = seeds.map(|seed| {
        choices(&ask(
            &server,
            &{
                let mut body = body(seed);
                body["resumable"] = json!(false);
                body
            },
            usize::MAX,
        ))
    });
    let got = seeds.map(|seed| ask(&server, &body(seed), 90));
    signal("KILL", server.process.pid());
    drop(server);
    let journal = cluster.folder.join(format!("serve-{}/requests.journal", cluster.port));
    damage(&journal);
    let damaged = std::fs::read(&journal).unwrap();
    let server = cluster.serve(&log(1));
    for at in [1, 2] {
        let mut got = got[at].clone();
        let last = got.last().unwrap().0.clone();
        got.extend(read_on(&server, &last, usize::MAX));
        assert_eq!(choices(&got), undisturbed[at], "stream {at}");
    }
    let (gone, _) = got[0].last().unwrap().0.rsplit_once('/').unwrap();
    let get = agent().get(server.url(&format!("/v1/streams/{gone}"))).call().unwrap();
    assert_eq!(get.status(), 404, "the request whose line was damaged is gone");
    let text = std::fs::read_to_string(log(1)).unwrap();
    assert!(text.contains("the damaged journal is kept here"), "{text}");
    assert_eq!(std::fs::read(journal.with_extension("damaged")).unwrap(), damaged);
    drop(server);
    std::fs::remove_dir_all(&cluster.folder).unwrap();
}

fn a_client_that_was_cut_off_reads_on() {
    let server = Server::start(&["--workers", "2", "--keep", "0"]);
    let undisturbed = ask(&server, &request(120), usize::MAX);
    let ids: std::collections::BTreeSet<_> = undisturbed.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), undisturbed.len(), "ids tell events apart");
    let mut got = ask(&server, &request(120), 30);
    while got.last().unwrap().1 != "[DONE]" {
        let last = got.last().unwrap().0.clone();
        got.extend(read_on(&server, &last, 50));
    }
    assert_eq!(choices(&got), choices(&undisturbed));
    // From the beginning, and the same request again with the header.
    let id = got[0].0.rsplit_once('/').unwrap().0.to_owned();
    let get = agent().get(server.url(&format!("/v1/streams/{id}"))).call().unwrap();
    assert_eq!(choices(&read(get, usize::MAX)), choices(&undisturbed));
    let post =
        agent().post(server.url("/v1/chat/completions")).header("last-event-id", &got[100].0);
    let rest = read(post.send("{}").unwrap(), usize::MAX);
    assert_eq!(rest.len(), got.len() - 101);
    // The client deleted the stream: it is gone.
    let url = server.url(&format!("/v1/streams/{id}"));
    assert_eq!(agent().delete(&url).call().unwrap().status(), 204);
    assert_eq!(agent().get(&url).call().unwrap().status(), 404);
}

fn a_stream_belongs_to_the_key_that_asked_for_it() {
    let cluster = Cluster::new("keys");
    let key = |args: &[&str]| {
        let data = ["--data-dir", cluster.folder.to_str().unwrap()];
        let output = run(&[&["key"], args, &data].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        format!("Bearer {}", String::from_utf8(output.stdout).unwrap().trim())
    };
    let (alice, bob) = (key(&["create", "alice"]), key(&["create", "bob"]));
    let log = |n: usize| cluster.folder.join(format!("serve-{n}.log"));
    let server = cluster.serve(&log(0));
    let begin = |server: &Server, secret: &str, most: usize| {
        let post = agent().post(server.url("/v1/chat/completions"));
        let post = post.header("authorization", secret).header("content-type", "application/json");
        read(post.send(request(200).to_string()).unwrap(), most)
    };
    let undisturbed = choices(&begin(&server, &alice, usize::MAX));
    let mut got = begin(&server, &alice, 30);
    let of_bob = begin(&server, &bob, 5).pop().unwrap().0;
    let last = got.last().unwrap().0.clone();
    let id = last.rsplit_once('/').unwrap().0.to_owned();
    let path = format!("/v1/streams/{id}");
    let is_none_of_bobs = |server: &Server| {
        let url = server.url(&path);
        let as_bob = get_with(&url, "authorization", &bob).unwrap();
        assert_eq!(as_bob.status, 404, "{}", as_bob.body);
        let post = agent().post(server.url("/v1/chat/completions")).header("authorization", &bob);
        assert_eq!(post.header("last-event-id", &last).send("{}").unwrap().status(), 404);
        let delete = agent().delete(&url).header("authorization", &bob);
        assert_eq!(delete.call().unwrap().status(), 404);
        assert_eq!(agent().get(&url).call().unwrap().status(), 401, "nobody's neither");
    };
    is_none_of_bobs(&server);
    // The next coordinator knows its owner. A stream that no key may read any more does not go on.
    signal("KILL", server.process.pid());
    drop(server);
    key(&["revoke", "bob"]);
    let bob_again = key(&["create", "bob2"]);
    let server = cluster.serve(&log(1));
    let as_bob2 =
        agent().get(server.url(&format!("/v1/streams/{}", of_bob.rsplit_once('/').unwrap().0)));
    let as_bob2 = as_bob2.header("authorization", &bob_again).call().unwrap();
    assert_eq!(as_bob2.status(), 404);
    let said = std::fs::read_to_string(log(1)).unwrap();
    assert!(said.contains("does not go on after a restart"), "{said}");
    let get = agent().get(server.url(&path)).header("authorization", &alice);
    got.extend(read(get.header("last-event-id", &last).call().unwrap(), usize::MAX));
    assert_eq!(choices(&got), undisturbed);
    drop(server);
    std::fs::remove_dir_all(&cluster.folder).unwrap();
}

fn who_does_not_ask_for_it_is_cancelled_by_leaving() {
    let server = Server::start(&["--workers", "2"]);
    let mut body = request(2000);
    body.as_object_mut().unwrap().remove("resumable");
    let events = ask(&server, &body, 10);
    let deadline = Instant::now() + PATIENCE;
    while server.metric("brigade_requests_total{outcome=\"cancelled\"}") < 2.0 {
        assert!(Instant::now() < deadline, "it was not cancelled");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (stream, _) = events[0].0.rsplit_once('/').unwrap();
    let get = agent().get(server.url(&format!("/v1/streams/{stream}"))).call().unwrap();
    assert_eq!(get.status(), 404);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_killed_coordinator_goes_on_with_streams_and_workers,
        a_killed_coordinator_goes_on_with_guided_streams,
        a_damaged_journal_costs_its_own_request_alone,
        a_client_that_was_cut_off_reads_on,
        a_stream_belongs_to_the_key_that_asked_for_it,
        who_does_not_ask_for_it_is_cancelled_by_leaving;
];
