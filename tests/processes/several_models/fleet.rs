//! Several models behind one server: each answers as it does alone, and a fault of one does not affect the others.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use brigade_model_tests::golden::Encoders;
use brigade_tests::process::{Running, Server, brigade, get, run, signal, synth};
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

/// Nothing on a busy machine takes longer.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const CHAT: &str = "/v1/chat/completions";

/// A folder of its own for each test, with its files; it goes with the test.
pub struct Scratch {
    pub folder: PathBuf,
    models: Vec<PathBuf>,
}

impl Scratch {
    pub fn new(name: &str) -> Self {
        let name = format!("fleet-{name}-{}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        // One that a killed test has left.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self { folder, models: Vec::new() }
    }

    pub fn synth(&mut self, arch: &str) -> PathBuf {
        let path = synth(arch, "golden");
        self.models.push(path.clone());
        path
    }

    /// A file of options with these models, each with its own lines.
    pub fn config(&self, models: &[(&str, Option<&Path>, &str)]) -> String {
        let mut text = "version = 1\n".to_owned();
        for (name, file, more) in models {
            text += &format!("[[model]]\nname = \"{name}\"\n{more}\n");
            if let Some(file) = file {
                text += &format!("model = \"{}\"\n", file.display());
            }
        }
        let path = self.folder.join("brigade.toml");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn data(&self) -> String {
        self.folder.join("data").to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The folder is temporary: the system removes what is left.
        let _ = fs::remove_dir_all(&self.folder);
        self.models.iter().for_each(|model| drop(fs::remove_file(model)));
    }
}

pub fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

/// Waits until every one of these models takes requests.
pub fn wait_for_models(server: &Server, models: &[&str]) {
    let end = Instant::now() + PATIENCE;
    for model in models {
        let url = server.url(&format!("/health?model={model}"));
        while !get(&url).is_ok_and(|reply| reply.status == 200) {
            assert!(Instant::now() < end, "{model} is not up");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A request of a chat to `model`; the `i`th.
pub fn chat(model: &str, i: usize) -> Value {
    json!({
        "model": model, "messages": [{"role": "user", "content": format!("{i}. Tell me about the sea")}],
        "max_tokens": 24 + i, "temperature": 0.9, "seed": i, "ignore_eos": true, "logprobs": true,
    })
}

pub fn content(answer: &Value) -> Value {
    json!([answer["model"], answer["choices"][0]])
}

fn each_model_answers_as_it_does_alone() {
    let mut scratch = Scratch::new("alone");
    let (hybrid, encoder) =
        (scratch.synth("granitehybrid"), Encoders::repository().models["bert"].synth.make());
    let files = [("bible", None), ("hybrid", Some(hybrid.as_path())), ("vectors", Some(&*encoder))];
    let models = files.map(|(name, file)| (name, file, "workers = 2"));
    let server =
        Server::start(&["--config", &scratch.config(&models), "--data-dir", &scratch.data()]);
    wait_for_models(&server, &["bible", "hybrid", "vectors"]);
    let vector = json!({ "model": "vectors", "input": "In the beginning" });
    // All at once.
    let together: Vec<Value> = std::thread::scope(|scope| {
        let ask_chat = |model, i| content(&ask(&server, CHAT, &chat(model, i)));
        let chats =
            ["bible", "hybrid"].into_iter().flat_map(|model| (0..3).map(move |i| (model, i)));
        let asking: Vec<_> =
            chats.map(|(model, i)| scope.spawn(move || ask_chat(model, i))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let vectors = ask(&server, "/v1/embeddings", &vector)["data"].clone();
    let drawn = |model: &str| {
        let name = format!("brigade_generated_tokens_total{{model=\"{model}\"}}");
        server.metric(&name)
    };
    assert_eq!([drawn("bible"), drawn("hybrid"), drawn("vectors")], [75.0, 75.0, 0.0]);
    let status = |model: &str| {
        let data = scratch.data();
        run(&["cluster", "status", "--data-dir", &data, "--model", model])
    };
    assert!(status("hybrid").status.success() && !status("none").status.success());
    drop(server);
    for (i, (name, file)) in files.into_iter().enumerate() {
        let model = file.map(|file| vec!["-m", file.to_str().unwrap()]).unwrap_or_default();
        let alone = Server::start(&[&model[..], &["--workers", "1", "--alias", name]].concat());
        if name == "vectors" {
            assert_eq!(ask(&alone, "/v1/embeddings", &vector)["data"], vectors);
            continue;
        }
        let answers: Vec<Value> =
            (0..3).map(|k| content(&ask(&alone, CHAT, &chat(name, k)))).collect();
        assert_eq!(answers, together[3 * i..3 * i + 3], "{name}");
    }
}

/// The tokens' ids of a streamed answer, as they come; `seen` is told how many there are.
pub fn stream(url: &str, body: &Value, mut seen: impl FnMut(usize)) -> Vec<u64> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body["return_token_ids"] = json!(true);
    let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE));
    let agent: ureq::Agent = config.build().into();
    let post = agent.post(url).header("content-type", "application/json");
    let response = post.send(body.to_string()).unwrap();
    let mut ids = Vec::new();
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let Some(data) = line.unwrap().strip_prefix("data: ").map(str::to_owned) else { continue };
        if data == "[DONE]" {
            return ids;
        }
        let event: Value = serde_json::from_str(&data).unwrap();
        assert!(event.get("error").is_none(), "{event}");
        let new = event["choices"][0]["token_ids"].as_array();
        ids.extend(new.into_iter().flatten().map(|id| id.as_u64().unwrap()));
        seen(ids.len());
    }
    panic!("the stream was cut after {} tokens", ids.len());
}

fn a_lost_worker_is_its_own_models_alone() {
    let scratch = Scratch::new("lost");
    let models = ["first", "second"].map(|name| (name, None, "workers = 1\nreplace-after = \"0\""));
    let server =
        Server::start(&["--config", &scratch.config(&models), "--data-dir", &scratch.data()]);
    wait_for_models(&server, &["first", "second"]);
    let body = |model: &str| json!({ "model": model, "prompt": "In the beginning", "max_tokens": 700, "seed": 3, "ignore_eos": true });
    let url = server.url("/v1/completions");
    let undisturbed = stream(&url, &body("first"), |_| {});
    assert_eq!(undisturbed.len(), 700);
    let mut worker = Some(server.process.children()[0]);
    let kill = move |n: usize| {
        if n >= 100
            && let Some(pid) = worker.take()
        {
            signal("KILL", pid);
        }
    };
    let [first, second] = std::thread::scope(|scope| {
        let second = scope.spawn(|| stream(&url, &body("second"), |_| {}));
        let first = scope.spawn(|| stream(&url, &body("first"), kill));
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!(first, undisturbed, "the stream of the model whose worker was lost");
    assert_eq!(second, undisturbed, "the other's, which has the same weights");
    let lost =
        |model: &str| server.metric(&format!("brigade_line_down_total{{model=\"{model}\"}}"));
    assert_eq!(lost("first") + lost("second"), 1.0, "one line was lost, and one was not");
}

/// A server over workers that outlive it.
fn serve(config: &str, data: &str, port: u16) -> Server {
    let listen = format!("127.0.0.1:{port}");
    let mut command = std::process::Command::new(brigade());
    command.args(["serve", "--config", config, "--listen", &listen, "--data-dir", data]);
    let process = Running::spawn(command, "brigade serve listening on ");
    let server = Server { process };
    wait_for_models(&server, &["first", "second"]);
    server
}

fn a_killed_coordinator_goes_on_with_the_streams_of_all_models() {
    let scratch = Scratch::new("restart");
    let workers = [0, 1].map(|_| {
        let args = ["worker", "--listen", "127.0.0.1:0", "--speed", "20,200"];
        Running::start(&args, brigade_worker::run::READY_PREFIX)
    });
    let of = |i: usize| format!("worker = [\"{}\"]", workers[i].ready.trim());
    let own = [of(0), of(1)];
    let models = [("first", None, own[0].as_str()), ("second", None, &own[1])];
    let config = scratch.config(&models);
    let port: u16 = free_address().rsplit(':').next().unwrap().parse().unwrap();
    let server = serve(&config, &scratch.data(), port);
    let body = |model: &str| {
        let mut body = chat(model, 7);
        body["max_tokens"] = json!(400);
        body["stream"] = json!(true);
        body["resumable"] = json!(true);
        body
    };
    let text = |events: &[(String, String)]| -> String {
        let of = |data: &String| serde_json::from_str::<Value>(data).unwrap();
        let deltas = events.iter().filter(|(_, data)| data != "[DONE]").map(|(_, data)| of(data));
        deltas
            .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_owned())
            .collect()
    };
    let names = ["first", "second"];
    let undisturbed = names.map(|name| text(&events(&server, &body(name), None, usize::MAX)));
    assert_ne!(undisturbed[0], "");
    let mut got = names.map(|name| events(&server, &body(name), None, 60));
    signal("KILL", server.process.pid());
    drop(server);
    let server = serve(&config, &scratch.data(), port);
    for got in &mut got {
        let last = got.last().unwrap().0.clone();
        got.extend(events(&server, &Value::Null, Some(&last), usize::MAX));
    }
    assert_eq!(got.map(|events| text(&events)), undisturbed);
    assert_eq!(undisturbed[0], undisturbed[1], "both models are the demo");
}

/// At most `most` events of a new stream, or of one that is read on behind `last`.
fn events(server: &Server, body: &Value, last: Option<&str>, most: usize) -> Vec<(String, String)> {
    let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE));
    let agent: ureq::Agent = config.build().into();
    let response = match last {
        None => {
            let post = agent.post(server.url(CHAT)).header("content-type", "application/json");
            post.send(body.to_string()).unwrap()
        }
        Some(last) => {
            let (stream, _) = last.rsplit_once('/').unwrap();
            let get = agent.get(server.url(&format!("/v1/streams/{stream}")));
            get.header("last-event-id", last).call().unwrap()
        }
    };
    let (mut events, mut id) = (Vec::new(), String::new());
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let line = line.unwrap();
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

fn models_that_want_the_same_are_refused() {
    let scratch = Scratch::new("same");
    let refused = |models: &[(&str, Option<&Path>, &str)], more: &[&str]| {
        let config = scratch.config(models);
        let output =
            run(&[&["serve", "--listen", "127.0.0.1:0", "--config", &config], more].concat());
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let worker = "worker = [\"127.0.0.1:9\"]";
    let said = refused(&[("a", None, worker), ("b", None, worker)], &[]);
    assert!(said.contains("two models name the worker 127.0.0.1:9"), "{said}");
    let two = [("a", None, ""), ("b", None, "")];
    let trace = scratch.folder.join("t.json");
    let said = refused(&two, &["--trace", trace.to_str().unwrap()]);
    assert!(said.contains("--trace is of one line"), "{said}");
    let alias = "served-model-name = [\"x\"]\nworkers = 1";
    let said = refused(&[("a", None, alias), ("b", None, alias)], &[]);
    assert!(said.contains("two models are called \"x\""), "{said}");
}

fn a_stream_hears_of_its_model_until_it_is_there() {
    let scratch = Scratch::new("comments");
    let own = "load = \"demand\"\nworkers = 1";
    let broken = format!("{own}\nworker-cpus = \"4000\"");
    let config = scratch.config(&[("only", None, own), ("broken", None, &broken)]);
    let server = Server::start(&["--config", &config, "--data-dir", &scratch.data()]);
    let body = |model: &str| json!({ "model": model, "prompt": "In the beginning", "max_tokens": 20, "seed": 3, "stream": true });
    let all = |model: &str| {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE));
        let agent: ureq::Agent = config.http_status_as_error(false).build().into();
        let post = agent.post(server.url("/v1/completions"));
        let mut response = post.send(body(model).to_string()).unwrap();
        let lines = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), lines.lines().map(str::to_owned).collect::<Vec<_>>())
    };
    let (status, cold) = all("only");
    assert!(status == 200 && cold[0].starts_with(": "), "{cold:?}");
    let (_, warm) = all("only");
    let texts = |lines: &[String]| -> Vec<Value> {
        let data = lines.iter().filter_map(|line| line.strip_prefix("data: {"));
        let of = |data: &str| serde_json::from_str::<Value>(&format!("{{{data}")).unwrap();
        data.map(|data| of(data)["choices"][0]["text"].clone()).collect()
    };
    assert_eq!(texts(&cold), texts(&warm));
    assert!(texts(&warm).len() > 10 && warm.iter().all(|line| !line.starts_with(':')), "{warm:?}");
    assert_eq!(cold.last(), warm.last());
    let (status, refused) = all("broken");
    let said = refused.join(" ");
    assert!((status == 503 || status == 200) && said.contains("cannot be loaded"), "{said}");
}

/// A model's answer to request number `i`.
pub fn said(server: &Server, model: &str, i: usize) -> Value {
    content(&ask(server, CHAT, &chat(model, i)))
}

/// The state of each model in `/v1/models`.
pub fn words(server: &Server) -> Vec<(String, String)> {
    let list: Value = serde_json::from_str(&get(&server.url("/v1/models")).unwrap().body).unwrap();
    // Those that are loaded with the server have no word.
    let text = |value: &Value| value.as_str().unwrap_or("always").to_owned();
    let of = |model: &Value| (text(&model["id"]), text(&model["status"]["value"]));
    list["data"].as_array().unwrap().iter().map(of).collect()
}

fn models_come_when_they_are_asked_for_and_go_for_others() {
    let mut scratch = Scratch::new("demand");
    let hybrid = scratch.synth("granitehybrid");
    // Two of them are more than there is.
    let free = brigade_worker::machine::memory::available_bytes().unwrap();
    let own = format!("load = \"demand\"\nworkers = 1\nctx = 512\nmemory = \"{}\"", free / 5 * 3);
    let names = ["first", "second", "hybrid"];
    let files = [None, None, Some(hybrid.as_path())];
    let models: Vec<_> =
        names.iter().zip(files).map(|(name, file)| (*name, file, own.as_str())).collect();
    let server =
        Server::start(&["--config", &scratch.config(&models), "--data-dir", &scratch.data()]);
    assert_eq!(server.process.children(), [0u32; 0], "nothing is loaded");
    let word = |model: &str| words(&server).into_iter().find(|(name, _)| name == model).unwrap().1;
    assert!(names.iter().all(|name| word(name) == "unloaded"));
    // Requests that need no line load none.
    let tokens = ask(&server, "/tokenize", &json!({ "model": "hybrid", "content": "a b" }));
    assert!(tokens["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()), "{tokens}");
    assert!(server.process.children().is_empty());
    let first = said(&server, "first", 1);
    assert_eq!((word("first"), word("second")), ("loaded".to_owned(), "unloaded".to_owned()));
    let second = said(&server, "second", 1);
    assert_eq!(second[1], first[1], "it has the same weights");
    assert_eq!((word("first"), word("second")), ("unloaded".to_owned(), "loaded".to_owned()));
    assert_eq!(server.process.children().len(), 1, "one line at a time");
    // All at once, in no order: each answer is its model's, and no request waits for ever.
    let answers: Vec<(usize, Value)> = std::thread::scope(|scope| {
        let server = &server;
        let asking: Vec<_> =
            (0..12).map(|i| scope.spawn(move || (i % 3, said(server, names[i % 3], 1)))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let alone =
        Server::start(&["-m", hybrid.to_str().unwrap(), "--workers", "1", "--alias", "hybrid"]);
    let hybrid_alone = said(&alone, "hybrid", 1);
    for (model, answer) in answers {
        let expected = [&first, &second, &hybrid_alone][model];
        assert_eq!(&answer, expected, "{}", names[model]);
    }
    assert_eq!(server.process.children().len(), 1);
    assert_eq!(get(&server.url("/health")).unwrap().status, 200);
    // An operator's status shows which models are loaded.
    let data = scratch.data();
    let order = |args: &[&str]| {
        let output = run(&[&["cluster"], args, &["--data-dir", &data]].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    assert_eq!(order(&["load", "second"]), (true, "second is loaded\n".to_owned()));
    assert_eq!(word("second"), "loaded");
    assert!(order(&["pin", "second"]).0);
    let (_, listed) = order(&["models"]);
    let line = listed.lines().find(|line| line.starts_with("second")).unwrap();
    assert!(line.contains("loaded") && line.contains("yes"), "{listed}");
    assert!(order(&["unload", "none"]).1.contains("the names are first, second, hybrid"));
    let unloaded = "second is unloaded; it is pinned, and stays again once it is loaded\n";
    assert_eq!(order(&["unload", "second"]), (true, unloaded.to_owned()));
    assert_eq!(word("second"), "unloaded");
    assert!(order(&["drain", "x"]).1.contains("name its model with --model"));
    let pid = server.process.pid();
    assert_eq!(server.process.stop(PATIENCE), Some(0), "{pid} ends in order");
}

fn a_model_that_nobody_uses_goes_and_one_that_is_used_stays() {
    let scratch = Scratch::new("idle");
    let own = "load = \"demand\"\nunload-after = \"1s\"\nworkers = 1";
    let config = scratch.config(&[("only", None, own)]);
    let server = Server::start(&["--config", &config, "--data-dir", &scratch.data()]);
    let body =
        json!({ "prompt": "In the beginning", "max_tokens": 1000, "seed": 3, "ignore_eos": true });
    let mut seen = 0;
    // A slow reader still uses the model.
    let ids = stream(&server.url("/v1/completions"), &body, |n| {
        if n > seen + 150 {
            seen = n;
            std::thread::sleep(Duration::from_millis(400));
        }
    });
    assert_eq!(ids.len(), 1000);
    let end = Instant::now() + PATIENCE;
    while !server.process.children().is_empty() {
        assert!(Instant::now() < end, "it is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(stream(&server.url("/v1/completions"), &body, |_| {}), ids, "it comes again");
}

fn a_model_that_is_always_in_use_yields_to_one_that_waits() {
    let scratch = Scratch::new("yields");
    let own = "load = \"demand\"\nworkers = 1\nctx = 1024\nmemory = \"1G\"\nswap-after = \"1s\"";
    let config = scratch.config(&[("busy", None, own), ("waits", None, own)]);
    let text = fs::read_to_string(&config).unwrap();
    let server_wide = "version = 1\n[serve]\nmax-loaded = 1\n";
    fs::write(&config, text.replacen("version = 1\n", server_wide, 1)).unwrap();
    let server = Server::start(&["--config", &config, "--data-dir", &scratch.data()]);
    let url = server.url("/v1/completions");
    let body = |model: &str| json!({ "model": model, "prompt": "In the beginning", "max_tokens": 300, "seed": 3, "ignore_eos": true });
    let undisturbed = stream(&url, &body("busy"), |_| {});
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Two clients take turns, so that it is never idle.
        let busy = [0, 500].map(|ms| {
            let (is_answered, url, undisturbed) = (&is_answered, &url, &undisturbed);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(ms));
                let mut n = 0;
                while !is_answered.load(Ordering::Relaxed) || n == 0 {
                    assert_eq!(&stream(url, &body("busy"), |_| {}), undisturbed);
                    n += 1;
                }
                stream(url, &body("busy"), |_| {})
            })
        });
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(stream(&url, &body("waits"), |_| {}), undisturbed, "the same weights");
        is_answered.store(true, Ordering::Relaxed);
        // And back again.
        busy.into_iter().for_each(|busy| assert_eq!(busy.join().unwrap(), undisturbed));
    });
    assert_eq!(server.process.children().len(), 1, "one at a time");
    // Ollama's way to unload an idle model; it loads nothing for that.
    for model in ["busy", "waits"] {
        let answer = ask(&server, "/api/generate", &json!({ "model": model, "keep_alive": 0 }));
        assert_eq!(answer["done_reason"], "unload");
    }
    wait_for_word(&server, "busy", "unloaded");
    wait_for_word(&server, "waits", "unloaded");
    let bad = server.post("/api/generate", &json!({ "model": "busy", "keep_alive": "soon" }));
    assert!(bad.status == 400 && bad.body.contains("keep_alive is a number"), "{}", bad.body);
}

fn a_model_that_cannot_come_says_so_and_others_do() {
    let scratch = Scratch::new("never");
    let free = brigade_worker::machine::memory::available_bytes().unwrap();
    let large = format!("load = \"demand\"\nworkers = 1\nmemory = \"{}\"", free * 2);
    let small = "load = \"demand\"\nworkers = 1\nctx = 512\nmemory = \"1G\"";
    let broken = "load = \"demand\"\nworkers = 1\nmemory = \"1G\"\nworker-cpus = \"4000\"";
    let config = scratch.config(&[
        ("large", None, large.as_str()),
        ("broken", None, broken),
        ("small", None, small),
    ]);
    let log = scratch.folder.join("serve.log");
    let args = ["--config", &config, "--data-dir", &scratch.data()];
    let server = Server::start_logged(&args, &log);
    let reply = server.post(CHAT, &chat("large", 1));
    assert!(reply.status == 503 && reply.body.contains("large cannot be loaded"), "{}", reply.body);
    assert!(fs::read_to_string(&log).unwrap().contains("give it fewer with memory = SIZE"));
    let logged = |text: &str| fs::read_to_string(&log).unwrap().matches(text).count();
    for _ in 0..4 {
        assert_eq!(server.post(CHAT, &chat("broken", 1)).status, 503);
    }
    assert_eq!(logged("a request needs the model"), 3, "then nobody tries any more");
    assert_eq!(logged("its line has failed 3 times"), 1);
    assert_eq!(said(&server, "small", 1)[0], "small");
}

fn a_killed_coordinator_loads_first_what_has_streams_that_go_on() {
    let scratch = Scratch::new("goes-on");
    let own = "load = \"demand\"\nworkers = 1\nctx = 2048\nmemory = \"1G\"";
    let config = scratch.config(&[("first", None, own), ("second", None, own)]);
    let start = || Server::start(&["--config", &config, "--data-dir", &scratch.data()]);
    let mut body = chat("second", 7);
    for (name, value) in
        [("max_tokens", json!(400)), ("stream", json!(true)), ("resumable", json!(true))]
    {
        body[name] = value;
    }
    let server = start();
    let undisturbed = events(&server, &body, None, usize::MAX);
    let mut got = events(&server, &body, None, 60);
    signal("KILL", server.process.pid());
    drop(server);
    let server = start();
    wait_for_word(&server, "second", "loaded");
    assert!(words(&server).contains(&("first".to_owned(), "unloaded".to_owned())));
    let last = got.last().unwrap().0.clone();
    got.extend(events(&server, &Value::Null, Some(&last), usize::MAX));
    let text = |events: &[(String, String)]| -> Vec<Value> {
        let data = events.iter().filter(|(_, data)| data != "[DONE]");
        data.map(|(_, data)| serde_json::from_str::<Value>(data).unwrap()["choices"].clone())
            .collect()
    };
    assert_eq!(text(&got), text(&undisturbed));
}

/// Waits until a model is called so.
fn wait_for_word(server: &Server, model: &str, word: &str) {
    let end = Instant::now() + PATIENCE;
    while !words(server).contains(&(model.to_owned(), word.to_owned())) {
        assert!(Instant::now() < end, "{model} is not {word}: {:?}", words(server));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn orders_and_quarantines_outlive_the_server() {
    let scratch = Scratch::new("standing");
    let small = "load = \"demand\"\nworkers = 1\nctx = 512\nmemory = \"1G\"";
    let broken = format!("{small}\nworker-cpus = \"4000\"");
    let config = scratch.config(&[("small", None, small), ("broken", None, &broken)]);
    let (log, data) = (scratch.folder.join("serve.log"), scratch.data());
    let start = || Server::start_logged(&["--config", &config, "--data-dir", &data], &log);
    let order = |args: &[&str]| {
        let output = run(&[&["cluster"], args, &["--data-dir", &data]].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let server = start();
    for _ in 0..3 {
        assert_eq!(server.post(CHAT, &chat("broken", 1)).status, 503);
    }
    assert_eq!(order(&["load", "small"]), (true, "small is loaded\n".to_owned()));
    assert_eq!(order(&["pin", "small"]), (true, "small stays once it is loaded\n".to_owned()));
    assert_eq!(server.process.stop(PATIENCE), Some(0));
    let server = start();
    wait_for_word(&server, "small", "loaded");
    let (_, listed) = order(&["models"]);
    let line =
        |model: &str| listed.lines().find(|line| line.starts_with(model)).unwrap().to_owned();
    assert!(line("small").contains("yes") && line("small").contains("loaded by order"), "{listed}");
    assert!(line("broken").contains("quarantined") && line("broken").contains("4000"), "{listed}");
    let tried = || fs::read_to_string(&log).unwrap().matches("the model: it is loaded").count();
    let before = tried();
    let reply = server.post(CHAT, &chat("broken", 1));
    assert_eq!((reply.status, tried()), (503, before), "{}", reply.body);
    // An operator may try again, and take orders back.
    assert!(!order(&["load", "broken"]).0 && tried() == before + 1);
    assert!(order(&["unload", "small"]).0 && order(&["unload", "broken"]).0);
    assert_eq!(server.process.stop(PATIENCE), Some(0));
    let server = start();
    let (_, listed) = order(&["models"]);
    assert!(!listed.contains("by order") && !listed.contains("quarantined"), "{listed}");
    assert_eq!(said(&server, "small", 1)[0], "small");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_model_that_is_always_in_use_yields_to_one_that_waits, a_stream_hears_of_its_model_until_it_is_there, models_come_when_they_are_asked_for_and_go_for_others,
        a_model_that_nobody_uses_goes_and_one_that_is_used_stays, a_model_that_cannot_come_says_so_and_others_do,
        orders_and_quarantines_outlive_the_server,
        a_killed_coordinator_loads_first_what_has_streams_that_go_on, each_model_answers_as_it_does_alone, a_lost_worker_is_its_own_models_alone,
        a_killed_coordinator_goes_on_with_the_streams_of_all_models, models_that_want_the_same_are_refused;
];
