//! Every resource that API keys share, each called a room (docs/limits.md has the table), on one server. A greedy key takes
//! all that it gets, and a polite one is served beside it. A table of their shares is printed.
//!
//! Refusals are counted exactly. Where keys take turns, all of the greedy key's requests are there before the polite key's
//! request comes. Some of them are still without an answer when the polite key has its own. In one queue for all, the polite
//! key would have been the last. Unit tests of each room hold the order in detail.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, post_with, run};
use serde_json::{Value, json};

/// Nothing on a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(600);

/// The server's `--max-seqs`.
const MAX_SEQS: usize = 8;
const MAX_QUEUE: usize = 32;

/// Places of one key, as docs/limits.md has them.
const PLACES_OF_A_KEY: usize = MAX_SEQS * 3 / 4;
const STREAMS_OF_A_KEY: usize = 256;
const CONNECTIONS_OF_A_KEY: usize = 192;
/// Connections that the server takes from one address.
const CONNECTIONS: usize = 256;

struct Rooms {
    server: Server,
    greedy: String,
    polite: String,
}

/// A status and its body.
type Told = (u16, String);

impl Rooms {
    /// With keys that are made with `more`.
    fn open_with(more: &[&str]) -> Self {
        let data = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rooms");
        // One that an earlier run has left.
        let _ = std::fs::remove_dir_all(&data);
        let data = data.to_str().unwrap();
        let key = |name| {
            let made = run(&[&["key", "create", name, "--data-dir", data], more].concat());
            String::from_utf8(made.stdout).unwrap().trim().to_owned()
        };
        let (greedy, polite) = (key("greedy"), key("polite"));
        let (seqs, queue) = (MAX_SEQS.to_string(), MAX_QUEUE.to_string());
        let server = Server::start(&[
            "--workers",
            "1",
            "--data-dir",
            data,
            "--max-seqs",
            &seqs,
            "--max-queue",
            &queue,
            "--keep",
            "4",
        ]);
        Self { server, greedy, polite }
    }

    fn post(&self, secret: &str, path: &str, body: &Value) -> Told {
        let reply = post_with(&self.server.url(path), &body.to_string(), "api-key", secret);
        reply.map_or_else(|error| (0, error.to_string()), |reply| (reply.status, reply.body))
    }

    fn complete(&self, secret: &str, body: &Value) -> Told {
        self.post(secret, "/v1/completions", body)
    }

    /// The polite key's small request, which is always answered.
    fn polite_completes(&self, more: &Value) -> Told {
        let mut body = json!({ "prompt": "In the", "max_tokens": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = self.complete(&self.polite, &body);
        assert_eq!(status, 200, "{answer}");
        (status, answer)
    }

    /// A connection on which a request is begun: its head, and `body`, which may be shorter than the head declares.
    fn begin(&self, secret: &str, path: &str, length: usize, body: &[u8]) -> TcpStream {
        let ready = self.server.process.ready.trim_start_matches("http://");
        let address: SocketAddr = ready.parse().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let method = if length == 0 { "GET" } else { "POST" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\napi-key: {secret}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A client that is refused before its body is complete gets the refusal.
        let _ = stream.write_all(body);
        stream
    }

    fn row(&self, room: &str, greedy: &str, polite: &str) {
        println!("| {room} | {greedy} | {polite} |");
    }

    /// The greedy key's resumable streams go, so that the next room begins empty.
    fn cancel(&self, streams: &[String]) {
        for id in streams {
            let url = self.server.url(&format!("/v1/streams/{id}"));
            let request = ureq::delete(url).header("api-key", &self.greedy);
            // One that has ended by itself is not there.
            let _ = request.call();
        }
    }
}

/// The message of an error, or the body that came instead of one.
fn words(body: &str) -> String {
    let json = body.find('{').and_then(|at| serde_json::from_str::<Value>(&body[at..]).ok());
    let message = json.and_then(|json| Some(json["error"]["message"].as_str()?.to_owned()));
    message.unwrap_or_else(|| body.chars().take(100).collect())
}

/// The server's bytes on a connection, within its time limit.
fn read_some(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = [0; 4096];
    let n = stream.read(&mut bytes).ok().filter(|n| *n > 0)?;
    Some(String::from_utf8_lossy(&bytes[..n]).into_owned())
}

/// The beginning of an answer, if it comes within the time-out: its status, and all that has come.
fn read_head(stream: &mut TcpStream) -> Option<Told> {
    let text = read_some(stream)?;
    Some((text.split(' ').nth(1)?.parse().ok()?, text))
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what} did not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The id of the stream that these events are of.
fn stream_id(events: &str) -> String {
    let id = events.lines().find_map(|line| line.strip_prefix("id: ")).expect("events with ids");
    id.split('/').next().unwrap().to_owned()
}

/// Bodies of requests. The greedy key begins bodies of 4 MiB, sends 3 MiB of each, and then hardly anything: four of them are
/// held, each with 4 MiB of the room.
fn bodies(rooms: &Rooms) {
    const BEGUN: usize = 8;
    const HELD: usize = 4;
    let (over, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    let told = thread::scope(|scope| {
        let hold = || {
            let half = vec![b' '; 3 << 20];
            let mut stream = rooms.begin(&rooms.greedy, "/v1/completions", 4 << 20, &half);
            while !over.load(Ordering::SeqCst) {
                if let Some(told) = read_head(&mut stream) {
                    refused.fetch_add(1, Ordering::SeqCst);
                    return Some(told);
                }
                // A byte now and then, so that it goes on.
                let _ = stream.write_all(b" ");
            }
            None
        };
        let held: Vec<_> = (0..BEGUN).map(|_| scope.spawn(hold)).collect();
        until("all but four are refused", || refused.load(Ordering::SeqCst) == BEGUN - HELD);
        let text = "In the beginning ".repeat(25_000);
        let small = rooms.post(&rooms.polite, "/tokenize", &json!({ "content": text }));
        let filler = rooms.polite_completes(&json!({ "user": "x".repeat(15_000_000) }));
        over.store(true, Ordering::SeqCst);
        let told: Vec<Told> = held.into_iter().filter_map(|h| h.join().unwrap()).collect();
        assert_eq!((small.0, filler.0, told.len()), (200, 200, BEGUN - HELD));
        told
    });
    let (status, text) = &told[0];
    assert_eq!(*status, 429, "{text}");
    let greedy = format!("{HELD} half bodies of 4 MiB, then {status}: {}", words(text));
    rooms.row("bodies", &greedy, "200 for one of 425 kB and for one of 15 MB");
}

/// Requests of the greedy key that are all there at once, each on a thread of its own, and then one of the polite key.
/// How many of the former were answered when the latter was.
fn in_turns(
    room: &str,
    rooms: &Rooms,
    n: usize,
    greedy: impl Fn(usize) -> Told + Sync,
    polite: impl FnOnce() -> Told,
) {
    let (begun, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let ask = |i| {
        begun.fetch_add(1, Ordering::SeqCst);
        let (status, text) = greedy(i);
        assert!([200, 400, 429].contains(&status), "{status}: {text}");
        answered.fetch_add(1, Ordering::SeqCst);
    };
    let ask = &ask;
    let before = thread::scope(|scope| {
        (0..n).for_each(|i| drop(scope.spawn(move || ask(i))));
        until("all of the greedy key's begin", || begun.load(Ordering::SeqCst) == n);
        let at_first = answered.load(Ordering::SeqCst);
        let (status, text) = polite();
        assert_eq!(status, 200, "{text}");
        let at_last = answered.load(Ordering::SeqCst);
        assert!(at_last < n, "all of the greedy key's were before it");
        at_last - at_first
    });
    rooms.row(room, &format!("{n} requests at once"), &format!("200 after {before} of them"));
}

/// Readers: texts of half a MiB that are turned into tokens.
fn readers(rooms: &Rooms) {
    let text = |i| format!("{i} {}", "and the sons of men ".repeat(24_000));
    let ask = |i| rooms.post(&rooms.greedy, "/tokenize", &json!({ "content": text(i) }));
    in_turns("readers", rooms, 30, ask, || {
        rooms.post(&rooms.polite, "/tokenize", &json!({ "content": "In the beginning" }))
    });
    let large = |secret, i| {
        let text = text(i).repeat(3);
        rooms.post(secret, "/tokenize", &json!({ "content": text }))
    };
    in_turns("the large body", rooms, 7, |i| large(&rooms.greedy, i), || large(&rooms.polite, 99));
}

/// Grammars that take much to compile, no two alike.
fn hostile(i: usize) -> Value {
    let property = |n: usize| {
        (format!("p{n}"), json!({ "type": "string", "pattern": format!("^.*{i}x{n}.*$") }))
    };
    let properties: serde_json::Map<String, Value> = (0..1000).map(property).collect();
    let required: Vec<&String> = properties.keys().collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn grammars(rooms: &Rooms) {
    let ask = |i: usize| {
        rooms.complete(
            &rooms.greedy,
            &json!({ "prompt": "x", "max_tokens": 1, "guided_json": hostile(i) }),
        )
    };
    in_turns("threads that compile grammars", rooms, 12, ask, || {
        rooms.polite_completes(&json!({ "guided_regex": "[a-c]{1,4}" }))
    });
    let words = |i: usize| {
        let regex = format!("([a-z]{{1,8}}[ ,.]){{{}}}", 10_000 + i);
        let body = json!({ "prompt": "x", "max_tokens": 60, "guided_regex": regex });
        rooms.complete(&rooms.greedy, &body)
    };
    in_turns("threads that make masks", rooms, 24, words, || {
        rooms.polite_completes(&json!({ "guided_regex": "[a-d]{8,9}", "max_tokens": 8 }))
    });
}

/// Resumable streams of one token.
fn streams(rooms: &Rooms) {
    let body = json!({ "prompt": "In", "max_tokens": 1, "stream": true, "resumable": true });
    let mut ids = Vec::new();
    let (status, text) = loop {
        let (status, text) = rooms.complete(&rooms.greedy, &body);
        if status != 200 {
            break (status, text);
        }
        ids.push(stream_id(&text));
    };
    assert_eq!((ids.len(), status), (STREAMS_OF_A_KEY, 429), "{text}");
    rooms.polite_completes(&json!({ "stream": true, "resumable": true }));
    let greedy = format!("{} streams, then {status}: {}", ids.len(), words(&text));
    rooms.row("resumable streams", &greedy, "200 for one");
    rooms.cancel(&ids);
}

/// Events of streams: prompts come back with every token's alternatives, for many choices.
fn events(rooms: &Rooms) {
    let body = json!({
        "prompt": "In the beginning ".repeat(240), "max_tokens": 1, "n": 16, "echo": true, "logprobs": 20,
        "stream": true, "resumable": true, "ignore_eos": true,
    });
    let (mut ids, mut bytes) = (Vec::new(), 0);
    let last = loop {
        let (status, text) = rooms.complete(&rooms.greedy, &body);
        assert_eq!(status, 200, "{}", words(&text));
        ids.push(stream_id(&text));
        bytes += text.len();
        if let Some(at) = text.find("\"error\"") {
            break text[at..].chars().take(200).collect::<String>();
        }
        assert!(bytes < 256 << 20, "one key has {bytes} bytes of events");
    };
    let (_, polite) = rooms.polite_completes(&json!({ "stream": true, "resumable": true }));
    assert!(!polite.contains("\"error\""), "{polite}");
    assert!(last.contains("at their limit of size"), "{last}");
    let mib = bytes >> 20;
    let greedy = format!(
        "{mib} MiB in {} streams; the last one ended: {}",
        ids.len(),
        words(&format!("{{{last}"))
    );
    rooms.row("events of streams", &greedy, "200 for a whole one");
    rooms.cancel(&ids);
}

/// The journal: resumable requests with much that it has to remember.
fn journal(rooms: &Rooms) {
    let body = json!({
        "prompt": "In", "max_tokens": 1, "stream": true, "resumable": true, "user": "x".repeat(15_000_000),
    });
    let mut ids = Vec::new();
    let (status, text) = loop {
        let (status, text) = rooms.complete(&rooms.greedy, &body);
        if status != 200 {
            break (status, text);
        }
        ids.push(stream_id(&text));
        assert!(ids.len() < 16, "one key fills the journal");
    };
    assert_eq!(status, 429, "{text}");
    rooms.polite_completes(
        &json!({ "stream": true, "resumable": true, "user": "x".repeat(15_000_000) }),
    );
    let greedy = format!("{} requests of 15 MB, then {status}: {}", ids.len(), words(&text));
    rooms.row("the journal", &greedy, "200 for one of 15 MB");
    rooms.cancel(&ids);
}

/// Places of the line and of the queue: long answers, more of them than there are of both.
fn places(rooms: &Rooms) {
    const ASKED: usize = 2 * (MAX_SEQS + MAX_QUEUE);
    let (answered, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let body = json!({ "prompt": "In the beginning", "max_tokens": 200, "ignore_eos": true });
    let metric = |name: &str| rooms.server.metric(name) as usize;
    let ask = || match rooms.complete(&rooms.greedy, &body) {
        (200, _) => answered.fetch_add(1, Ordering::SeqCst),
        (429, _) => refused.fetch_add(1, Ordering::SeqCst),
        (status, text) => panic!("{status}: {text}"),
    };
    let ask = &ask;
    thread::scope(|scope| {
        (0..ASKED).for_each(|_| drop(scope.spawn(ask)));
        let waiting_and_running = || {
            let running = ["prefill", "decode"]
                .map(|phase| metric(&format!("brigade_requests_running{{phase=\"{phase}\"}}")));
            (metric("brigade_requests_waiting"), running.iter().sum::<usize>())
        };
        let full = (MAX_QUEUE, PLACES_OF_A_KEY);
        until("the line and the queue are full", || waiting_and_running() == full);
        rooms.polite_completes(&json!({}));
        assert!(answered.load(Ordering::SeqCst) < MAX_QUEUE, "it waited for the queue");
        let before = answered.load(Ordering::SeqCst);
        let row = format!("200 after {before} of the greedy key's {}", MAX_QUEUE + PLACES_OF_A_KEY);
        rooms.row("requests that wait", &format!("{MAX_QUEUE} of {ASKED}, others 429"), &row);
        rooms.row("places of the line", &format!("{PLACES_OF_A_KEY} of {MAX_SEQS}"), &row);
    });
    assert!(refused.into_inner() >= ASKED - MAX_QUEUE - MAX_SEQS);
}

/// Rows of ubatches, which prompts fill: each prompt is as long as the context, and no two are alike.
fn rows(rooms: &Rooms) {
    let body = |i: usize, max_tokens: u32| {
        let prompt = format!("{i} {}", "and the sons of men ".repeat(150));
        json!({ "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true })
    };
    in_turns(
        "rows of a ubatch",
        rooms,
        24,
        |i| rooms.complete(&rooms.greedy, &body(i, 1)),
        || rooms.complete(&rooms.polite, &body(99, 1)),
    );
}

/// Kept conversations: another prompt again and again.
fn kept(rooms: &Rooms) {
    let body = |word: &str| {
        let prompt = format!("{word} {}", "and the sons of men ".repeat(40));
        json!({ "prompt": prompt, "max_tokens": 1, "ignore_eos": true })
    };
    let cached = |answer: &str| {
        let json: Value = serde_json::from_str(answer).unwrap();
        json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    rooms.complete(&rooms.polite, &body("mine"));
    for i in 0..20 {
        assert_eq!(rooms.complete(&rooms.greedy, &body(&format!("{i}"))).0, 200);
    }
    let (_, answer) = rooms.complete(&rooms.polite, &body("mine"));
    assert!(cached(&answer) > 100, "{answer}");
    let polite = format!("{} tokens of its own that were still there", cached(&answer));
    rooms.row("kept conversations", "20 other conversations, in 4 places", &polite);
}

/// Connections: many that follow one stream, from the polite key's address.
fn connections(rooms: &Rooms) {
    let body = json!({
        "prompt": "In the beginning", "max_tokens": 900, "n": 30, "stream": true, "resumable": true, "ignore_eos": true,
    });
    let text = body.to_string();
    let mut first = rooms.begin(&rooms.greedy, "/v1/completions", text.len(), text.as_bytes());
    let mut events = String::new();
    until("the stream begins", || {
        events.push_str(&read_some(&mut first).unwrap_or_default());
        events.contains("\ndata: ")
    });
    let id = stream_id(&events);
    let path = format!("/v1/streams/{id}");
    let mut following = vec![first];
    let refused = loop {
        let mut stream = rooms.begin(&rooms.greedy, &path, 0, b"");
        let mut told = None;
        until("an answer", || {
            told = read_head(&mut stream);
            told.is_some()
        });
        let (status, text) = told.unwrap();
        if status != 200 {
            break (status, text);
        }
        following.push(stream);
        assert!(following.len() < CONNECTIONS, "one key has all connections");
    };
    assert_eq!((refused.0, following.len()), (429, CONNECTIONS_OF_A_KEY), "{}", refused.1);
    rooms.polite_completes(&json!({}));
    let greedy = format!(
        "{CONNECTIONS_OF_A_KEY} of {CONNECTIONS}, then {}: {}",
        refused.0,
        words(&refused.1)
    );
    rooms.row("connections of an address", &greedy, "200");
    drop(following);
    rooms.cancel(&[id]);
}

fn a_greedy_key_leaves_room_to_a_polite_one_in_every_room() {
    every(&[bodies, readers, grammars, streams, journal, places, rows, kept, connections]);
}

/// A test of its own: 128 MiB of events have to be computed to fill this room.
fn a_greedy_key_leaves_room_for_events_to_a_polite_one() {
    every(&[events]);
}

fn every(all: &[fn(&Rooms)]) {
    let rooms = Rooms::open_with(&[]);
    println!("| room | the greedy key got | the polite key got beside it |");
    println!("|---|---|---|");
    all.iter().for_each(|room| room(&rooms));
}

/// A key with a quota, that has used nothing, pays for compiling as for tokens: the next request waits for that.
fn a_key_pays_for_its_grammars() {
    let rooms = Rooms::open_with(&["--tokens-per-minute", "10"]);
    let asked = |secret: &str, grammar: Value| {
        let mut body = json!({ "prompt": "In the", "max_tokens": 1 });
        body.as_object_mut().unwrap().extend(grammar.as_object().unwrap().clone());
        let url = rooms.server.url("/v1/completions");
        post_with(&url, &body.to_string(), "api-key", secret).unwrap()
    };
    let metric = |name| rooms.server.metric(name);
    let plain = asked(&rooms.polite, json!({}));
    let next = asked(&rooms.polite, json!({}));
    assert_eq!((plain.status, next.status), (200, 200), "{}", next.body);
    assert_eq!(metric("brigade_grammars_compiled_total"), 0.0);
    // The greedy key pays for its grammar whether the server takes it or refuses it.
    let held = asked(&rooms.greedy, json!({ "guided_json": hostile(0) }));
    let ms = metric("brigade_grammar_microseconds_total") / 1e3;
    let compiled = metric("brigade_grammars_compiled_total");
    // 10 tokens a minute are one in 6 s, and a token's worth of compiling is about 1 ms: less than 11 ms would leave a token.
    assert!(compiled >= 1.0 && ms >= 11.0, "{compiled} grammars in {ms} ms are nothing to pay for");
    let next = asked(&rooms.greedy, json!({}));
    println!(
        "{}: {compiled} grammars in {ms:.0} ms; the next request: {}, come back in {:?} s: {}",
        held.status,
        next.status,
        next.header("retry-after"),
        words(&next.body)
    );
    assert_eq!((held.header("x-ratelimit-remaining-tokens"), next.status), (Some("0"), 429));
    assert!(next.body.contains("10 tokens per minute"), "{}", next.body);
}

/// Grammars are not compiled for clients that have hung up. Only those are whose compiling had begun by then.
fn nothing_is_compiled_for_clients_that_have_left() {
    const LEFT: usize = 24;
    let rooms = Rooms::open_with(&[]);
    let compiled = || rooms.server.metric("brigade_grammars_compiled_total") as usize;
    let ask = |i: usize| {
        let body = json!({ "prompt": "x", "max_tokens": 1, "guided_json": hostile(i) }).to_string();
        rooms.begin(&rooms.greedy, "/v1/completions", body.len(), body.as_bytes())
    };
    let left: Vec<TcpStream> = (0..LEFT).map(ask).collect();
    drop(left);
    // This request of the same key comes behind all of them.
    let last = json!({ "prompt": "x", "max_tokens": 1, "guided_regex": "[a-e]{1,4}" });
    let (status, text) = rooms.complete(&rooms.greedy, &last);
    assert_eq!(status, 200, "{text}");
    let compiled = compiled();
    println!("{LEFT} clients left: {compiled} grammars were compiled, the last one among them");
    assert!(compiled < LEFT, "{compiled} of {LEFT} and one");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone:
        a_greedy_key_leaves_room_to_a_polite_one_in_every_room,
        a_key_pays_for_its_grammars,
        nothing_is_compiled_for_clients_that_have_left,
        a_greedy_key_leaves_room_for_events_to_a_polite_one ignored("128 MiB of events are computed: cargo test --release --workspace --test http -- --ignored --nocapture rooms::");
];
