//! API keys over a real server: made, used, limited and revoked by commands while it runs. Also the addresses that
//! need no key, and the contents of the logs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use brigade_tests::process::{Reply, Server, get, get_with, post, post_with, run};
use serde_json::{Value, json};

/// How long a change of keys may take to be in force beside other tests: on a machine that does nothing else it is 2 s.
const IN_FORCE: Duration = Duration::from_secs(20);

/// Nothing on a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

const COMPLETIONS: &str = "/v1/completions";

/// A folder of its own for each test, empty.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("keys-{name}"));
    // One that an earlier run has left.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The standard output of `brigade key ...`.
fn key(data: &Path, args: &[&str]) -> String {
    let data = data.to_str().unwrap();
    let output = run(&[&["key"], args, &["--data-dir", data]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn server(data: &Path, more: &[&str]) -> Server {
    let data = data.to_str().unwrap();
    Server::start(&[&["--workers", "1", "--data-dir", data], more].concat())
}

fn body(max_tokens: u32) -> String {
    json!({ "prompt": "In the", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true })
        .to_string()
}

fn ask(server: &Server, secret: &str) -> Reply {
    let bearer = format!("Bearer {secret}");
    post_with(&server.url(COMPLETIONS), &body(2), "authorization", &bearer).unwrap()
}

fn parsed(reply: &Reply) -> Value {
    serde_json::from_str(&reply.body).unwrap()
}

fn error(reply: &Reply) -> Value {
    let error = &parsed(reply)["error"];
    for field in ["message", "type", "param", "code"] {
        assert!(error.get(field).is_some(), "OpenAI's shape has {field}: {error}");
    }
    error.clone()
}

/// How long it takes until `holds`.
fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}

fn keys_come_into_force_and_go_out_of_it_while_a_server_runs() {
    let data = folder("force");
    let server = server(&data, &[]);
    assert_eq!(post(&server.url(COMPLETIONS), &body(1)).unwrap().status, 200, "no key was made");
    let secret = key(&data, &["create", "me"]);
    assert!(secret.starts_with("bgd-") && secret.len() > 40, "{secret}");
    let refused = || post(&server.url(COMPLETIONS), &body(1)).unwrap().status == 401;
    let made = until("the key's force", refused);
    let url = server.url(COMPLETIONS);
    for header in ["x-api-key", "api-key"] {
        assert_eq!(post_with(&url, &body(1), header, &secret).unwrap().status, 200, "{header}");
    }
    assert_eq!(ask(&server, &secret).status, 200);
    assert_eq!(get(&server.url("/v1/models")).unwrap().status, 401);
    assert_eq!(get(&server.url("/nothing")).unwrap().status, 401, "not even what there is");
    assert_eq!(get(&server.url("/health")).unwrap().status, 200, "health is for all");
    let bearer = format!("Bearer {secret}");
    let models = get_with(&server.url("/v1/models"), "authorization", &bearer).unwrap();
    assert_eq!(models.status, 200);
    for wrong in ["", "bgd-", "x", &secret[..secret.len() - 1], &format!("{secret}0")] {
        let reply = ask(&server, wrong);
        assert_eq!((reply.status, &error(&reply)["code"]), (401, &json!("invalid_api_key")));
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        assert!(wrong.len() < 20 || !reply.body.contains(wrong), "the answer repeats no key");
    }
    let list = key(&data, &["list", "--json"]);
    assert!(list.contains("\"me\"") && !list.contains(&secret) && !list.contains("hash"), "{list}");
    assert!(key(&data, &["revoke", "me"]).contains("me"));
    let revoked = until("the end of the key", || ask(&server, &secret).status == 401);
    println!("a new key was in force after {made:?}, a revoked one out of force after {revoked:?}");
    assert!(made <= IN_FORCE && revoked <= IN_FORCE, "{made:?} {revoked:?}");
    assert_eq!(post(&url, &body(1)).unwrap().status, 401, "the last key's end opens nothing");
}

/// A companion's tokens are computed, and so they count; the answer says nothing of them.
fn a_key_pays_for_both_sequences_of_a_guided_request() {
    let data = folder("guided");
    let [plain, guided] =
        ["plain", "guided"].map(|name| key(&data, &["create", name, "--tokens-per-minute", "60"]));
    let server = server(&data, &[]);
    let used = |secret: &str, more: Value| {
        let mut asked: Value = serde_json::from_str(&body(2)).unwrap();
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let bearer = format!("Bearer {secret}");
        let url = server.url(COMPLETIONS);
        let reply = post_with(&url, &asked.to_string(), "authorization", &bearer).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let answer: Value = serde_json::from_str(&reply.body).unwrap();
        let left = reply.header("x-ratelimit-remaining-tokens").unwrap();
        (60 - left.parse::<i64>().unwrap(), answer["usage"]["total_tokens"].as_i64().unwrap())
    };
    let (taken, total) = used(&plain, json!({}));
    assert!((1..=total).contains(&taken), "{taken} of {total}");
    let negative = "In the beginning God created the heaven and the earth";
    let (more, same) = used(&guided, json!({"guidance_scale": 2, "negative_prompt": negative}));
    assert_eq!(same, total);
    assert!(more >= taken + 8, "{more} beside {taken}");
    drop(server);
    std::fs::remove_dir_all(data).unwrap();
}

fn limits_of_a_key_hold_and_are_told() {
    let data = folder("limits");
    let few = key(&data, &["create", "few", "--requests-per-minute", "2"]);
    let tokens = key(&data, &["create", "tokens", "--tokens-per-minute", "6"]);
    let single = key(&data, &["create", "single", "--concurrent", "1"]);
    let other = key(&data, &["create", "other", "--models", "another-model,and-one-more"]);
    let this = key(&data, &["create", "this", "--models", "brigade-demo"]);
    let admin = key(&data, &["create", "boss", "--admin"]);
    let short = key(&data, &["create", "short", "--expires", "1s"]);
    let server = server(&data, &[]);
    for remaining in ["1", "0"] {
        let reply = ask(&server, &few);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(reply.header("x-ratelimit-remaining-requests"), Some(remaining));
        assert!(reply.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
    }
    let reply = ask(&server, &few);
    let retry: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert_eq!((reply.status, &error(&reply)["code"]), (429, &json!("rate_limit_exceeded")));
    assert!((1..=30).contains(&retry), "{retry}");
    assert!(error(&reply)["message"].as_str().unwrap().contains("2 requests per minute"));
    // A prompt and two tokens: more than six tokens are paid back before the next request.
    let statuses: Vec<u16> = (0..4).map(|_| ask(&server, &tokens).status).collect();
    assert!(statuses[0] == 200 && statuses[3] == 429, "{statuses:?}");
    let reply = ask(&server, &tokens);
    assert_eq!(reply.header("x-ratelimit-remaining-tokens"), Some("0"));
    let bearer = format!("Bearer {single}");
    let (url, long) = (server.url(COMPLETIONS), body(1000));
    let running = || server.metric("brigade_requests_running{phase=\"decode\"}");
    let refused_beside_it = || {
        until("those before it to end", || running() == 0.0);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| post_with(&url, &long, "authorization", &bearer).unwrap());
            until("the first one to run", || running() == 1.0 || first.is_finished());
            let status = ask(&server, &single).status;
            assert_eq!(first.join().unwrap().status, 200);
            status == 429
        })
    };
    // Where this machine is busy, the first one may end before the second is there.
    until("a second one beside the first", refused_beside_it);
    (0..20).for_each(|_| assert_eq!(ask(&server, &single).status, 200, "its place is free again"));
    let reply = ask(&server, &other);
    assert_eq!((reply.status, &error(&reply)["code"]), (403, &json!("model_not_allowed")));
    assert_eq!(ask(&server, &this).status, 200);
    assert_eq!(ask(&server, &admin).status, 403, "an admin's key opens the admin listener only");
    until("the end of the short key", || ask(&server, &short).status == 401);
    assert!(ask(&server, &short).body.contains("expired"));
    let usage: Value =
        serde_json::from_str(&get(&server.admin("/admin/keys")).unwrap().body).unwrap();
    let of = |name: &str| {
        let all = usage["keys"].as_array().unwrap();
        all.iter().find(|key| key["name"] == name).unwrap().clone()
    };
    assert_eq!(of("few")["requests"]["limit_per_minute"], 2);
    assert_eq!(of("single")["running"], 0);
    assert_eq!(of("short")["expired"], true);
}

fn nothing_listens_beyond_this_machine_without_a_key() {
    let data = folder("beyond");
    let at = data.to_str().unwrap();
    let serve = |more: &[&str]| {
        let output = run(&[&["serve", "--workers", "1", "--data-dir", at], more].concat());
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let open = ["--listen", "0.0.0.0:0", "--insecure-network"];
    let error = serve(&open);
    assert!(error.contains("brigade key create") && error.contains("--no-auth"), "{error}");
    assert!(error.contains(at), "it names the folder: {error}");
    let error = serve(&["--listen", "0.0.0.0:0"]);
    assert!(error.contains("--tls-cert") && error.contains("--insecure-network"), "{error}");
    key(&data, &["create", "me"]);
    let admin = ["--listen", "127.0.0.1:0", "--admin-listen", "0.0.0.0:0", "--insecure-network"];
    let error = serve(&admin);
    assert!(error.contains("--admin-listen") && error.contains("--admin"), "{error}");
    let admin = key(&data, &["create", "boss", "--admin"]);
    let args = [&["--workers", "1", "--data-dir", at][..], &["--admin-listen", "0.0.0.0:0"]];
    let server = Server::start(&[args.concat(), vec!["--insecure-network"]].concat());
    let metrics = server.admin("/metrics").replace("0.0.0.0", "127.0.0.1");
    assert_eq!(get(&metrics).unwrap().status, 401);
    let bearer = format!("Bearer {admin}");
    assert_eq!(get_with(&metrics, "authorization", &bearer).unwrap().status, 200);
    assert_eq!(get(&server.url("/metrics")).unwrap().status, 401, "not where clients are");
    drop(server);
    key(&data, &["revoke", "me"]);
    let error = serve(&open);
    assert!(error.contains("brigade key create"), "a key that is revoked is none: {error}");
}

fn logs_hold_no_key_and_no_prompt() {
    let data = folder("logs");
    let secret = key(&data, &["create", "me"]);
    let (log, audit) = (data.join("log"), data.join("audit.jsonl"));
    let (prompt, answer_of) = ("Planted prompt Qx7", "Planted system Zy9");
    let chat = json!({ "messages": [{ "role": "system", "content": answer_of },
                                    { "role": "user", "content": prompt }],
                       "max_tokens": 3, "temperature": 0, "ignore_eos": true })
    .to_string();
    let serve = |more: &[&str]| {
        let args = ["--workers", "1", "--data-dir", data.to_str().unwrap(), "--audit-log"];
        let server =
            Server::start_logged(&[&args[..], &[audit.to_str().unwrap()], more].concat(), &log);
        let url = server.url("/v1/chat/completions");
        let bearer = format!("Bearer {secret}");
        let reply = post_with(&url, &chat, "authorization", &bearer).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        post_with(&format!("{url}?key={secret}"), &chat, "x-api-key", "bgd-planted-wrong").unwrap();
        post_with(&url, &format!("{{\"messages\": \"{prompt}\"}}"), "api-key", &secret).unwrap();
        // The token that ends this answer is of no piece of its text.
        let mut ending: Value = serde_json::from_str(&chat).unwrap();
        ending["grammar"] = json!("root ::= \"Yes\"");
        (ending["ignore_eos"], ending["max_tokens"]) = (json!(false), json!(8));
        let reply = post_with(&url, &ending.to_string(), "authorization", &bearer).unwrap();
        let ended = parsed(&reply);
        assert_eq!(ended["choices"][0]["finish_reason"], "stop", "{ended}");
        assert_eq!(server.process.stop(PATIENCE), Some(0));
        let entries = std::fs::read_to_string(&audit).unwrap();
        std::fs::remove_file(&audit).unwrap();
        (std::fs::read_to_string(&log).unwrap(), entries, ended["usage"].clone())
    };
    let (said, entries, usage) = serve(&[]);
    for planted in [&secret[10..], prompt, answer_of, "bgd-planted-wrong"] {
        assert!(!said.contains(planted), "the log holds {planted:?}:\n{said}");
        assert!(!entries.contains(planted), "the audit log holds {planted:?}:\n{entries}");
    }
    let entries: Vec<Value> =
        entries.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [answered, refused, bad, ended] = &entries[..] else { panic!("{entries:?}") };
    println!("{answered}\n{refused}\n{bad}\n{ended}");
    assert_eq!(ended["generated_tokens"], usage["completion_tokens"], "of {usage}");
    assert_eq!((&answered["key"], &answered["status"]), (&json!("me"), &json!(200)));
    assert_eq!(answered["generated_tokens"], 3);
    assert!(answered["prompt_tokens"].as_u64() > Some(5) && answered["model"] == "brigade-demo");
    assert_eq!(answered["endpoint"], "/v1/chat/completions");
    assert!(said.contains(answered["id"].as_str().unwrap()), "one id in both");
    assert_eq!((&refused["key"], &refused["status"]), (&Value::Null, &json!(401)));
    assert_eq!((&bad["key"], &bad["outcome"]), (&json!("me"), &json!("refused")));
    let (said, entries, _) = serve(&["--audit-content"]);
    assert!(entries.contains(prompt), "asked for, it is there:\n{entries}");
    assert!(!entries.contains(&secret[10..]) && !said.contains(prompt));
}

fn a_requests_own_time_limit_ends_it() {
    let data = folder("timeout");
    let server = server(&data, &[]);
    let long = json!({ "prompt": "In the", "max_tokens": 4000, "n": 16, "temperature": 0,
                       "ignore_eos": true, "timeout": 0.3 });
    let began = Instant::now();
    let reply = server.post(COMPLETIONS, &long);
    let took = began.elapsed();
    assert_eq!((reply.status, &error(&reply)["code"]), (408, &json!("timeout")), "{}", reply.body);
    assert_eq!(reply.header("x-should-retry"), Some("false"));
    println!("a limit of 0.3 s ended it after {took:?}");
    assert!(took > Duration::from_millis(290) && took < Duration::from_secs(20), "{took:?}");
    until("free pages", || server.metric("brigade_kv_blocks_used") == 0.0);
    for bad in [json!(0), json!(-1), json!("soon"), json!(1e9)] {
        let reply = server.post(COMPLETIONS, &json!({ "prompt": "a", "timeout": bad }));
        assert_eq!((reply.status, &error(&reply)["param"]), (400, &json!("timeout")), "{bad}");
    }
}

/// Posts a request of a key that would run for longer than this test; returns its outcome, and when it ended.
fn post_endless(server: &Server, secret: &str, more: Value) -> (Reply, Instant) {
    let mut body = json!({ "prompt": "In the", "max_tokens": 50_000, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (url, bearer) = (server.url(COMPLETIONS), format!("Bearer {secret}"));
    let reply = post_with(&url, &body.to_string(), "authorization", &bearer).unwrap();
    (reply, Instant::now())
}

/// The error that a whole answer is, or that is the last event of a stream.
fn end_of(reply: &Reply) -> Value {
    let events = reply.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<&str> = events.filter(|event| *event != "[DONE]").collect();
    let Some(last) = events.last() else { return error(reply) };
    assert!(events.len() > 2, "some of it came before: {events:?}");
    error(&Reply { status: reply.status, headers: Vec::new(), body: (*last).to_owned() })
}

fn what_runs_ends_with_its_key() {
    let data = folder("ends");
    let audit = data.join("audit.jsonl");
    let [gone, stays] = ["gone", "stays"].map(|name| key(&data, &["create", name]));
    let server = server(&data, &["--ctx", "60000", "--audit-log", audit.to_str().unwrap()]);
    std::thread::scope(|scope| {
        let streamed = scope.spawn(|| post_endless(&server, &gone, json!({ "stream": true })));
        let whole = scope.spawn(|| post_endless(&server, &gone, json!({})));
        let other = scope.spawn(|| post_endless(&server, &stays, json!({ "timeout": 12 })));
        let running = || server.metric("brigade_requests_running{phase=\"decode\"}");
        until("all to run", || running() == 3.0);
        key(&data, &["revoke", "gone"]);
        let revoked = Instant::now();
        for (request, status) in [(streamed, 200), (whole, 401)] {
            let (reply, ended) = request.join().unwrap();
            let (took, error) = (ended.saturating_duration_since(revoked), end_of(&reply));
            println!("ended {took:?} after its key was revoked, status {}: {error}", reply.status);
            assert!(took <= IN_FORCE, "{took:?}");
            assert_eq!((reply.status, &error["code"]), (status, &json!("invalid_api_key")));
            assert!(error["message"].as_str().unwrap().contains("was revoked"), "{error}");
        }
        let (reply, _) = other.join().unwrap();
        assert_eq!(error(&reply)["code"], "timeout", "another key's runs on, until its own end");
    });
    let lifetime = Duration::from_secs(5);
    let made = Instant::now();
    let old = key(&data, &["create", "old", "--expires", "5s"]);
    until("the key's force", || ask(&server, &old).status == 200);
    let (reply, ended) = post_endless(&server, &old, json!({ "stream": true }));
    let (lived, error) = (ended - made, end_of(&reply));
    println!("ended {lived:?} after its key was made for {lifetime:?}: {error}");
    assert!(error["message"].as_str().unwrap().contains("has expired"), "{error}");
    // Its end is stored in whole seconds.
    assert!(lived + Duration::from_secs(1) >= lifetime && lived <= lifetime + IN_FORCE);
    assert_eq!(server.process.stop(PATIENCE), Some(0));
    let entries = std::fs::read_to_string(&audit).unwrap();
    let count = |outcome: &str| entries.lines().filter(|line| line.contains(outcome)).count();
    assert_eq!(count("its key was revoked"), 2, "{entries}");
    assert_eq!(count("its key has expired"), 1, "{entries}");
}

/// Nothing is reused across keys, unless the operator says so; a salt narrows further.
fn prompts_of_a_key_begin_none_of_another_but_where_the_operator_says_so() {
    let data = folder("apart");
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| key(&data, &["create", name]));
    let unknown = run(&[
        "serve",
        "--data-dir",
        data.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--share-prefix",
        "ann,zoe",
    ]);
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(!unknown.status.success() && said.contains("there is no key zoe"), "{said}");
    let server = server(&data, &["--share-prefix", "ann,bob"]);
    let text = "Once upon a time there was a line of workers that read no prompt twice. ".repeat(4);
    let cached = |secret: &str, salt: Option<&str>| {
        let body = json!({ "prompt": text, "max_tokens": 1, "temperature": 0, "cache_salt": salt });
        let bearer = format!("Bearer {secret}");
        let reply =
            post_with(&server.url(COMPLETIONS), &body.to_string(), "authorization", &bearer);
        let reply = reply.unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let answer: Value = serde_json::from_str(&reply.body).unwrap();
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (cached, usage["prompt_tokens"].as_u64().unwrap())
    };
    let (first, all) = cached(&ann, None);
    assert_eq!(first, 0);
    assert_eq!(cached(&eve, None).0, 0, "another key");
    assert_eq!(cached(&eve, None).0, all - 1, "its own");
    assert_eq!(cached(&bob, None).0, all - 1, "a key that shares");
    assert_eq!(cached(&ann, Some("s")).0, 0, "a salt");
    assert_eq!(cached(&bob, Some("s")).0, all - 1, "the same salt");
    assert_eq!(cached(&bob, Some("t")).0, 0, "another salt");
    assert_eq!(cached(&eve, Some("s")).0, 0, "another key's salt");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        prompts_of_a_key_begin_none_of_another_but_where_the_operator_says_so,
        a_key_pays_for_both_sequences_of_a_guided_request,
        limits_of_a_key_hold_and_are_told,
        nothing_listens_beyond_this_machine_without_a_key,
        logs_hold_no_key_and_no_prompt,
        a_requests_own_time_limit_ends_it,
        keys_come_into_force_and_go_out_of_it_while_a_server_runs,
        what_runs_ends_with_its_key;
];
