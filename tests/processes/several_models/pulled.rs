//! Models that requests have fetched: names that the operator opens, for keys that may load, within a room on the disk.

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_tests::hub::{File, Mood, Seen, sha256};
use brigade_tests::named::{Machine, NAME, model};
use brigade_tests::process::{Reply, Running, Server, brigade, get, get_with, post_with};
use serde_json::{Value, json};

use crate::several_models::fleet::PATIENCE;

/// The beginning of a server's ready line.
const SERVING: &str = "brigade serve listening on ";

/// A machine whose hub has the small model under several names, and one that says it is large.
fn machine() -> Machine {
    let of = |quant: &str| format!("{quant}/model-{quant}.gguf");
    let large = File { listed: 5 << 20, ..File::new(model()) };
    let other = File { sha256: sha256(b"other bytes"), ..File::new(model()) };
    let quants = ["Q8_0", "Q6_K", "Q5_0"].map(|quant| (of(quant), File::new(model())));
    let more = [(of("F32"), large), (of("Q4_0"), other)];
    let files: Vec<_> = quants.into_iter().chain(more).collect();
    Machine::with(
        &files.iter().map(|(path, file)| (path.as_str(), file.clone())).collect::<Vec<_>>(),
    )
}

fn key(machine: &Machine, name: &str, more: &[&str]) -> String {
    machine.out(&[&["key", "create", name], more].concat()).trim().to_owned()
}

/// A server on which requests may have the hub's models fetched.
fn serve(machine: &Machine, more: &[&str]) -> Server {
    Server { process: Running::spawn(machine.command(&options(more)), SERVING) }
}

fn options<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let own = ["--workers", "1", "--ctx", "512", "--memory", "1G", "--allow-pull", "hf:user/*"];
    [&["serve", "--listen", "127.0.0.1:0"], &own[..], more].concat()
}

fn ask(server: &Server, key: &str, model: &str) -> Reply {
    let body = json!({ "model": model, "prompt": "a", "max_tokens": 4, "temperature": 0 });
    let bearer = format!("Bearer {key}");
    post_with(&server.url("/v1/completions"), &body.to_string(), "authorization", &bearer).unwrap()
}

fn text(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str::<Value>(&reply.body).unwrap()["choices"][0]["text"].clone()
}

/// The models of a list that a key sees.
fn seen_by(server: &Server, key: &str, list: &str) -> String {
    let bearer = format!("Bearer {key}");
    get_with(&server.url(list), "authorization", &bearer).unwrap().body
}

/// The lines of a stream; `seen` is told each.
fn stream(server: &Server, key: &str, model: &str, mut seen: impl FnMut(&str)) -> Vec<String> {
    let body =
        json!({ "model": model, "prompt": "a", "max_tokens": 4, "temperature": 0, "stream": true });
    let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE));
    let agent: ureq::Agent = config.http_status_as_error(false).build().into();
    let post = agent.post(server.url("/v1/completions"));
    let post = post.header("authorization", format!("Bearer {key}"));
    let response = post.send(body.to_string()).unwrap();
    let lines = BufReader::new(response.into_body().into_reader()).lines();
    let mut all = Vec::new();
    for line in lines.map(Result::unwrap).filter(|line| !line.is_empty()) {
        seen(&line);
        all.push(line);
    }
    all
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn a_cold_name_is_fetched_once_for_all_who_want_it() {
    let machine = machine();
    let (loader, plain) = (key(&machine, "loader", &["--may-load"]), key(&machine, "plain", &[]));
    let server = serve(&machine, &["--pull-budget", "2M"]);
    machine.hub.mood(Mood::Held(100_000));
    let texts: Vec<Value> = std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..49).map(|_| scope.spawn(|| text(&ask(&server, &loader, NAME)))).collect();
        let (mut comments, mut is_held, hub) = (Vec::new(), true, machine.hub.clone());
        let lines = stream(&server, &loader, "hf.co/user/repo:q8_0", |line| {
            if is_held && line.starts_with(": fetching 11 %") {
                is_held = false;
                // The others wait too, and operators see it.
                let listed = machine.out(&["cluster", "models"]);
                assert!(listed.contains("fetching") && listed.contains(NAME), "{listed}");
                hub.mood(Mood::Good);
            }
            comments.extend(line.strip_prefix(": ").map(str::to_owned));
        });
        assert!(comments.iter().any(|said| said.starts_with("fetching 11 %")), "{comments:?}");
        assert_eq!(lines.last().unwrap(), "data: [DONE]");
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert!(texts.iter().all(|text| *text == texts[0] && text != ""), "{texts:?}");
    assert_eq!(machine.hub.sent(), model().len() as u64, "50 requests, each byte once");
    let counted = |name: &str| server.metric(name);
    assert_eq!(counted("brigade_model_fetches_total{outcome=\"done\"}"), 1.0);
    assert_eq!(counted("brigade_model_fetched_bytes_total"), model().len() as f64);
    let loads = format!("brigade_model_loads_total{{model=\"{NAME}\",outcome=\"done\"}}");
    assert_eq!(counted(&loads), 1.0);
    let listings = machine.hub.seen();
    assert_eq!(listings.iter().filter(|seen| seen.target.starts_with("/api/")).count(), 1);
    assert!(machine.out(&["models"]).contains("on request"), "it counts in the budget");
    let one = format!("/v1/models/{NAME}");
    assert!(seen_by(&server, &loader, &one).contains("\"id\""), "a slash may stand as it is");
    assert!(seen_by(&server, &plain, &one).contains("model_not_found"));
    for list in ["/v1/models", "/api/tags"] {
        assert!(seen_by(&server, &loader, list).contains(NAME), "{list}");
        assert!(!seen_by(&server, &plain, list).contains("hf:"), "{list}");
    }
    drop(server);
    // After a restart it is still there, for the same keys, and nobody is asked.
    let server = serve(&machine, &["--pull-budget", "2M"]);
    assert!(seen_by(&server, &loader, "/v1/models").contains(NAME));
    assert_eq!(ask(&server, &plain, NAME).status, 404);
    assert_eq!(text(&ask(&server, &loader, NAME)), texts[0]);
    assert!(machine.hub.seen().is_empty());
}

fn who_may_not_load_is_told_nothing_and_names_lead_nowhere_else() {
    let machine = machine();
    let (loader, plain) = (key(&machine, "loader", &["--may-load"]), key(&machine, "plain", &[]));
    let one = key(&machine, "one", &["--may-load", "--models", "hf:user/repo:Q6_K"]);
    let server = serve(&machine, &["--pull-budget", "2M"]);
    let is_unknown = |key: &str, model: &str| {
        let reply = ask(&server, key, model);
        let unknown = ask(&server, key, "nothing").body;
        assert_eq!(reply.status, 404, "{model}: {}", reply.body);
        assert!(reply.body.contains("is not served here"), "{model}: {}", reply.body);
        let plain = format!("{model:?}").replace('\\', "\\\\").replace('"', "\\\"");
        assert_eq!(reply.body.replace(&plain, "\\\"nothing\\\""), unknown, "{model}");
    };
    is_unknown(&plain, NAME);
    is_unknown(&one, NAME);
    for name in [
        "hf:other/repo:Q8_0",
        "hf:user/../etc",
        "hf:user/repo:../x.gguf",
        "hf:user/re po",
        "ollama:x:latest",
        "https://huggingface.co/user/repo",
        "http://127.0.0.1:9/x.gguf",
        "/etc/passwd",
        "../model.gguf",
    ] {
        is_unknown(&loader, name);
    }
    // Addresses that need no line have nothing fetched, and neither have those that do not exist.
    let bearer = format!("Bearer {loader}");
    let body = json!({ "model": NAME, "content": "a", "messages": [] }).to_string();
    for path in ["/tokenize", "/apply-template", "/api/show", "/v1/nothing"] {
        let reply = post_with(&server.url(path), &body, "authorization", &bearer).unwrap();
        assert_eq!(reply.status, 404, "{path}: {}", reply.body);
    }
    assert_eq!(
        get_with(&server.url(&format!("/props?model={NAME}")), "authorization", &bearer)
            .unwrap()
            .status,
        404
    );
    assert!(machine.hub.seen().is_empty(), "nobody was asked");
    // What is here is not known to other keys, and not to those without one.
    assert_eq!(ask(&server, &loader, NAME).status, 200);
    is_unknown(&plain, NAME);
    is_unknown(&one, NAME);
    assert_eq!(get(&server.url(&format!("/health?model={NAME}"))).unwrap().status, 404);
    assert_eq!(get(&server.url("/health")).unwrap().status, 200);
    assert_eq!(ask(&server, &one, "hf:user/repo:Q6_K").status, 200);
}

fn what_was_used_least_recently_makes_room_on_the_disk() {
    let machine = machine();
    let loader = key(&machine, "loader", &["--may-load"]);
    // What an operator has fetched takes nothing of the room, and stays.
    machine.out(&["pull", "hf:user/repo:Q5_0"]);
    let server = serve(&machine, &["--pull-budget", "1M", "--max-loaded", "1"]);
    let here = || seen_by(&server, &loader, "/v1/models");
    let asked = |quant: &str| {
        let mut reply = ask(&server, &loader, &format!("hf:user/repo:{quant}"));
        // A model stays as long as its load took.
        until("there is room", || {
            if reply.status == 503 {
                assert!(reply.header("retry-after").is_some(), "{}", reply.body);
                reply = ask(&server, &loader, &format!("hf:user/repo:{quant}"));
            }
            reply.status == 200
        });
        text(&reply)
    };
    let first = asked("Q8_0");
    assert!(here().contains("Q8_0"));
    assert_eq!(asked("Q6_K"), first);
    assert!(!here().contains("Q8_0") && here().contains("Q6_K"), "{}", here());
    assert_eq!(asked("Q5_0"), first);
    let files = machine.files("data/models");
    let has = |quant: &str| files.iter().any(|file| file.ends_with(&format!("{quant}.gguf")));
    assert!(!has("Q8_0") && has("Q6_K") && has("Q5_0"), "{files:?}");
    // A name that went is fetched again.
    assert_eq!(asked("Q8_0"), first);
    assert!(here().contains("Q5_0") && !here().contains("Q6_K"), "{}", here());
    machine.hub.seen();
    let large = ask(&server, &loader, "hf:user/repo:F32");
    assert_eq!(large.status, 400, "{}", large.body);
    assert!(
        large.body.contains("--pull-budget") && large.body.contains("smaller"),
        "{}",
        large.body
    );
    assert!(machine.hub.seen().iter().all(|seen| seen.host == "hub"), "it was not begun");
}

/// A name without a quantisation means a model that was fetched by its whole name before.
fn a_model_has_the_short_name_too_that_it_is_asked_by_later() {
    let machine = Machine::with(&[("model-Q8_0.gguf", File::new(model()))]);
    let loader = key(&machine, "loader", &["--may-load"]);
    let server = serve(&machine, &["--pull-budget", "10M"]);
    let asked = |name: &str| {
        let mut reply = ask(&server, &loader, name);
        // It is opened anew when it is idle.
        until("it has the name", || {
            if reply.status == 503 {
                reply = ask(&server, &loader, name);
            }
            reply.status != 503
        });
        text(&reply)
    };
    let whole = asked("hf:user/repo:Q8_0");
    assert_eq!(asked("hf:user/repo"), whole);
    assert_eq!(asked("hf:user/repo:Q8_0"), whole);
}

fn a_fetch_that_fails_is_a_clear_answer_and_leaves_nothing_wrong() {
    let machine = machine();
    let loader = key(&machine, "loader", &["--may-load"]);
    let server = serve(&machine, &["--pull-budget", "2M"]);
    let none = ask(&server, &loader, "hf:user/repo:Q2_K");
    assert!(none.status == 404 && none.body.contains("has no Q2_K"), "{}", none.body);
    let wrong = ask(&server, &loader, "hf:user/repo:Q4_0");
    assert!(wrong.status == 503 && wrong.body.contains("cannot be loaded"), "{}", wrong.body);
    assert_eq!(machine.files("data/models"), [] as [String; 0], "nothing of it is kept");
    assert!(!machine.dir.join("data/models/hf").exists(), "no folder either");
    let listed = machine.out(&["cluster", "models"]);
    assert!(listed.contains("not fetched") && listed.contains("has the hash"), "{listed}");
    // The same answer for a while, without asking the hub.
    machine.hub.seen();
    assert_eq!(ask(&server, &loader, "hf:user/repo:Q4_0").status, 503);
    assert!(machine.hub.seen().is_empty());
    machine.hub.mood(Mood::Dead(0, 0));
    let down = ask(&server, &loader, NAME);
    assert!(down.status == 503 && down.header("retry-after").is_some(), "{}", down.body);
    machine.hub.mood(Mood::Good);
    assert_eq!(ask(&server, &loader, "hf:user/repo:Q6_K").status, 200, "the server goes on");
    drop(server);
    // A disk that is full in the middle.
    let machine = self::machine();
    let loader = key(&machine, "loader", &["--may-load"]);
    let limited = "trap '' XFSZ; ulimit -f 500; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", limited]).arg(brigade());
    let command = machine.wrapped(shell, &options(&["--pull-budget", "2M"]));
    let server = Server { process: Running::spawn(command, SERVING) };
    let full = ask(&server, &loader, NAME);
    assert!(full.status == 503 && full.body.contains("cannot be loaded"), "{}", full.body);
    assert_eq!(machine.files("data/models"), [] as [String; 0], "others need the disk");
}

fn a_revoked_key_fetches_no_more() {
    let machine = machine();
    let loader = key(&machine, "loader", &["--may-load"]);
    let other = key(&machine, "other", &["--may-load"]);
    let server = serve(&machine, &["--pull-budget", "2M"]);
    machine.hub.mood(Mood::Held(100_000));
    let mut was_revoked = false;
    let lines = stream(&server, &loader, NAME, |line| {
        if line.starts_with(": fetching 11 %") && !was_revoked {
            machine.out(&["key", "revoke", "loader"]);
            was_revoked = true;
        }
    });
    let last = lines.iter().rfind(|line| line.starts_with("data: {")).unwrap();
    assert!(last.contains("was revoked"), "{lines:?}");
    // The hub says nothing more, and does not keep others from fetching.
    until("the download ends", || !machine.out(&["cluster", "models"]).contains("fetching"));
    let removed = machine.error(&["rm", NAME]);
    assert!(removed.contains("is not whole yet"), "{removed}");
    machine.hub.mood(Mood::Good);
    assert!(!seen_by(&server, &other, "/v1/models").contains("hf:"), "nobody wants it");
    // The part is gone on with, when the thread that waits for the hub has left it.
    machine.hub.seen();
    assert_eq!(ask(&server, &other, NAME).status, 200);
    let goes_on =
        |seen: &Seen| seen.head.get("range").is_some_and(|range| !range.starts_with("bytes=0-"));
    assert!(machine.hub.seen().iter().any(goes_on));
}

fn what_would_open_everything_is_refused_at_the_start() {
    let machine = machine();
    let refused = |more: &[&str]| {
        let args = [&["serve", "--listen", "127.0.0.1:0"], more].concat();
        let output = machine.run(&args);
        assert!(!output.status.success(), "{more:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for pattern in ["*", "hf:*", "hf:*/*", "hf:*/x", "ollama:*", "https://x/*", "hf:u/../*"] {
        let said = refused(&["--allow-pull", pattern, "--pull-budget", "1M"]);
        assert!(said.contains("is not a pattern of models' names"), "{pattern}: {said}");
    }
    let open = ["--allow-pull", "hf:user/*"];
    assert!(refused(&open).contains("--pull-budget"));
    let with = |more: &[&'static str]| [&open[..], &["--pull-budget", "1M"], more].concat();
    assert!(refused(&with(&["--no-auth"])).contains("--no-auth"));
    assert!(refused(&with(&["--offline"])).contains("--offline forbids"));
    let file = machine.dir.join("brigade.toml");
    std::fs::write(&file, "version = 1\n[serve]\nallow-pull = [\"*\"]\npull-budget = \"1M\"\n")
        .unwrap();
    let said = refused(&["--config", file.to_str().unwrap()]);
    assert!(said.contains("is not a pattern"), "{said}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_cold_name_is_fetched_once_for_all_who_want_it,
        who_may_not_load_is_told_nothing_and_names_lead_nowhere_else,
        what_was_used_least_recently_makes_room_on_the_disk,
        a_model_has_the_short_name_too_that_it_is_asked_by_later,
        a_fetch_that_fails_is_a_clear_answer_and_leaves_nothing_wrong,
        a_revoked_key_fetches_no_more,
        what_would_open_everything_is_refused_at_the_start;
];
