//! The HTTP server with real workers behind it, as clients see it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, get, post, run, signal, synth};
use serde_json::{Value, json};

/// For waits that end by themselves on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}"))
}

fn completion(server: &Server, body: &Value) -> Value {
    let reply = server.post("/v1/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    json_of(&reply.body)
}

fn greedy(prompt: &str, max_tokens: u32) -> Value {
    json!({ "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true })
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn answers_agree_with_each_other() {
    let server = Server::start(&["--workers", "2"]);
    let whole = completion(&server, &greedy("In the beginning", 12));
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 12);

    // The same tokens, given as ids.
    let ids = json_of(
        &server
            .post(
                "/tokenize",
                &json!({
        "content": "In the beginning", "add_special": true }),
            )
            .body,
    )["tokens"]
        .clone();
    let mut by_ids = greedy("", 12);
    by_ids["prompt"] = ids.clone();
    assert_eq!(completion(&server, &by_ids)["choices"][0]["text"], text);
    assert_eq!(
        whole["usage"]["prompt_tokens"].as_u64().unwrap() as usize,
        ids.as_array().unwrap().len()
    );

    // Cut at a stop string from the middle of it.
    let (from, to) = (text.len() / 2, text.len() / 2 + 3);
    let stop = text.get(from..to).expect("the demo writes ASCII");
    let mut stopped = greedy("In the beginning", 12);
    stopped["stop"] = json!([stop]);
    let stopped = completion(&server, &stopped);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["text"].as_str().unwrap(), &text[..text.find(stop).unwrap()]);

    // Echo puts the prompt in front.
    let mut echoed = greedy("In the beginning", 12);
    echoed["echo"] = json!(true);
    let echoed = completion(&server, &echoed)["choices"][0]["text"].clone();
    assert_eq!(echoed.as_str().unwrap(), format!("In the beginning{text}"));

    // Two choices of two prompts, each with its own seed, repeatable.
    let several = json!({ "prompt": ["In the", "And he"], "n": 2, "max_tokens": 8, "seed": 5,
                          "temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "ignore_eos": true });
    let first = completion(&server, &several);
    let texts: Vec<&Value> =
        first["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
    assert_eq!(texts.len(), 4);
    assert_ne!(texts[0], texts[1], "seeds differ between choices");
    assert_eq!(completion(&server, &several)["choices"], first["choices"]);
}

fn the_best_of_several_answers_are_those_with_the_most_probable_tokens() {
    let server = Server::start(&["--workers", "2"]);
    let body = |more: Value| {
        let mut body =
            json!({ "prompt": "And the LORD said", "max_tokens": 12, "seed": 3, "logprobs": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let choices = |more: Value| -> Vec<Value> {
        serde_json::from_value(completion(&server, &body(more))["choices"].clone()).unwrap()
    };
    let mean = |choice: &Value| {
        let logprobs: Vec<f64> =
            serde_json::from_value(choice["logprobs"]["token_logprobs"].clone()).unwrap();
        logprobs.iter().sum::<f64>() / logprobs.len() as f64
    };
    let mut all = choices(json!({ "n": 6 }));
    all.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let best = choices(json!({ "n": 2, "best_of": 6 }));
    assert!(mean(&all[0]) > mean(&all[5]), "the answers differ");
    for (i, (best, all)) in best.iter().zip(&all).enumerate() {
        assert_eq!((&best["text"], &best["index"]), (&all["text"], &json!(i)));
    }
    assert_eq!(best.len(), 2);
    // All drawn tokens are counted, and values that were not asked for are not shown.
    let reply = completion(&server, &body(json!({ "best_of": 3, "logprobs": null })));
    assert_eq!(reply["choices"].as_array().unwrap().len(), 1);
    assert!(reply["choices"][0]["logprobs"].is_null());
    assert!(reply["usage"]["completion_tokens"].as_u64().unwrap() > 12, "{reply}");
}

fn an_unfinished_answer_goes_on_where_it_stands() {
    let server = Server::start(&["--workers", "2"]);
    let messages = json!([{ "role": "user", "content": "Go on" },
                          { "role": "assistant", "content": "In the beginning" }]);
    let mut chat =
        json!({ "messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": true });
    let text = |chat: &Value| {
        let reply = server.post("/v1/chat/completions", chat);
        let body = json_of(&reply.body);
        assert_eq!(reply.status, 200, "{body}");
        body["choices"][0]["message"]["content"].as_str().unwrap().to_string()
    };
    let prompt = "<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\nIn the beginning";
    let plain = completion(&server, &greedy(prompt, 12))["choices"][0]["text"].clone();
    let continued = text(&chat);
    assert_eq!(continued, plain.as_str().unwrap());
    chat["continue_final_message"] = json!(false);
    assert_ne!(text(&chat), continued, "a new answer begins behind it");
}

/// The demo model was never trained on tools: it continues the beginning of a call like any text. The result is the
/// same for any cut, and no markup of the beginning appears as content.
fn a_forced_call_is_the_same_for_any_cut() {
    let parameters = json!({ "type": "object", "properties": { "verse": { "type": "string" } } });
    let tool =
        json!({ "type": "function", "function": { "name": "quote", "parameters": parameters } });
    let body = json!({ "messages": [{ "role": "user", "content": "Quote a verse" }], "tools": [tool],
                       "tool_choice": "required", "max_tokens": 24, "seed": 3 });
    let message = |workers: &str| {
        let server = Server::start(&["--workers", workers]);
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        json_of(&reply.body)["choices"][0]["message"].clone()
    };
    let one = message("1");
    let content = one["content"].as_str().unwrap_or_default();
    assert!(!content.contains("tool_call") && !content.contains("\"name\""), "{one}");
    assert_eq!(one, message("3"), "to the byte");
}

fn logprobs_do_not_depend_on_the_number_of_workers() {
    let body = json!({ "messages": [{ "role": "user", "content": "Who is he?" }], "max_tokens": 6,
                       "temperature": 0, "logprobs": true, "top_logprobs": 3, "ignore_eos": true });
    let content = |workers: &str| {
        let server = Server::start(&["--workers", workers]);
        let reply = server.post("/v1/chat/completions", &body);
        json_of(&reply.body)["choices"][0]["logprobs"]["content"].clone()
    };
    let one = content("1");
    let tokens = one.as_array().unwrap();
    assert_eq!(tokens.len(), 6);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["token"], token["token"], "greedy draws the most probable one");
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(values.windows(2).all(|w| w[0] >= w[1]) && values[0] <= 0.0, "{values:?}");
        assert!(values.iter().map(|v| v.exp()).sum::<f64>() <= 1.0 + 1e-6);
    }
    assert_eq!(one, content("3"), "bit for bit");
}

fn what_cannot_be_done_is_refused_with_the_reason() {
    let server = Server::start(&["--workers", "1", "--ctx", "32"]);
    let long = "word ".repeat(100);
    let cases = [
        ("/v1/completions", "{\"prompt\": ".to_owned(), 400, "JSON"),
        ("/v1/completions", "[]".to_owned(), 400, "an array"),
        ("/v1/completions", json!({ "prompt": long }).to_string(), 400, "32"),
        ("/v1/completions", json!({ "prompt": "a", "top_p": 2 }).to_string(), 400, "top_p"),
        ("/v1/completions", json!({ "prompt": [4_000_000_000u32] }).to_string(), 400, "4000000000"),
        (
            "/v1/completions",
            json!({ "prompt": "a", "grammar": "root ::= x" }).to_string(),
            400,
            "grammar",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user" }], "tools": [{}] }).to_string(),
            400,
            "tools",
        ),
        ("/v1/chat/completions", json!({ "messages": "hello" }).to_string(), 400, "messages"),
        ("/nothing", "{}".to_owned(), 404, "/nothing"),
        ("/health", "{}".to_owned(), 405, "POST"),
    ];
    for (path, body, status, word) in &cases {
        let reply = post(&server.url(path), body).unwrap();
        assert_eq!(reply.status, *status, "{path} {body}: {}", reply.body);
        let error = &json_of(&reply.body)["error"];
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(word), "{path} {body}: {message}");
        assert!(reply.header("x-request-id").is_some());
        println!("{path} {}: {status} {message}", body.get(..40).unwrap_or(body));
    }
    let reply = server.post("/v1/completions", &json!({ "prompt": long }));
    let error = &json_of(&reply.body)["error"];
    assert_eq!((&error["code"], &error["n_ctx"]), (&json!("context_length_exceeded"), &json!(32)));
    assert!(error["n_prompt_tokens"].as_u64().unwrap() > 32);
}

fn a_full_queue_says_429_and_when_to_come_back() {
    let server =
        Arc::new(Server::start(&["--workers", "1", "--max-seqs", "1", "--max-queue", "1"]));
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || server.post("/v1/completions", &greedy("a", 900)).status)
        })
        .collect();
    wait_for("one running and one waiting", || server.metric("brigade_requests_waiting") == 1.0);
    let refused = server.post("/v1/completions", &greedy("a", 5));
    assert_eq!(refused.status, 429, "{}", refused.body);
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    println!("refused with Retry-After: {seconds}");
    for client in clients {
        assert_eq!(client.join().unwrap(), 200);
    }
}

fn a_client_that_leaves_makes_room() {
    let server = Server::start(&["--workers", "2", "--max-seqs", "1"]);
    let address = server.process.ready.strip_prefix("http://").unwrap();
    let mut body = greedy("In the", 900);
    body["stream"] = json!(true);
    let body = body.to_string();
    let mut client = TcpStream::connect(address).unwrap();
    write!(
        client,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
    wait_for("the first piece", || lines.next().unwrap().unwrap().starts_with("data: "));
    client.shutdown(std::net::Shutdown::Both).unwrap();
    drop((client, lines));
    wait_for("the cancellation", || {
        server.metric("brigade_requests_total{outcome=\"cancelled\"}") == 1.0
    });
    wait_for("free pages", || server.metric("brigade_kv_blocks_used") == 0.0);
    assert_eq!(completion(&server, &greedy("In the", 3))["usage"]["completion_tokens"], 3);
}

fn a_stop_signal_lets_running_answers_end() {
    let server = Arc::new(Server::start(&["--workers", "2"]));
    // A number of tokens that takes two seconds of the twenty that the server waits, however busy the machine is.
    let few = 20;
    completion(&server, &greedy("In the", few));
    let began = Instant::now();
    completion(&server, &greedy("In the", few));
    let each = began.elapsed() / few;
    let n = (Duration::from_secs(2).as_nanos() / each.as_nanos().max(1)).clamp(few.into(), 400);
    let request = json!({ "messages": [{ "role": "user", "content": "Go on" }], "max_tokens": n as u32,
                          "temperature": 0, "ignore_eos": true });
    // The metrics follow the scheduler: they may still show the last completion.
    let running = || server.metric("brigade_requests_running{phase=\"decode\"}");
    wait_for("an idle line", || running() == 0.0);
    let streaming = {
        let (server, request) = (Arc::clone(&server), request.clone());
        std::thread::spawn(move || server.chat_stream(&request))
    };
    wait_for("the stream", || running() == 1.0);
    signal("TERM", server.process.pid());
    let seen = streaming.join().unwrap();
    assert_eq!(seen.error, None);
    assert!(seen.done && seen.finish_reason.as_deref() == Some("length"), "{seen:?}");
    wait_for("the end of the server", || get(&server.url("/health")).is_err());
}

fn metrics_and_models_say_what_is_there() {
    let server = Server::start(&["--workers", "2"]);
    completion(&server, &greedy("In the", 8));
    let models = json_of(&get(&server.url("/v1/models")).unwrap().body);
    assert_eq!(models["data"][0]["id"], "brigade-demo");
    let text = get(&server.admin("/metrics")).unwrap().body;
    for name in [
        "brigade_prompt_tokens_total",
        "brigade_requests_waiting",
        "brigade_requests_running",
        "brigade_kv_blocks",
        "brigade_stage_busy_microseconds_total{stage=\"1\",worker=\"local worker 1\"}",
        "brigade_wire_bytes_total{stage=\"1\",worker=\"local worker 1\"}",
        "brigade_workers{state=\"spare\"}",
        "brigade_wire_seconds_bucket",
        "brigade_time_to_first_token_seconds_count",
        "brigade_inter_token_seconds_bucket",
    ] {
        assert!(text.lines().any(|l| l.starts_with(name)), "{name} is missing in\n{text}");
    }
    assert_eq!(server.metric("brigade_generated_tokens_total"), 8.0);
}

fn nothing_plain_beyond_loopback_without_permission() {
    // `--control` beyond loopback speaks TLS: see `cluster_tls.rs` and `attacks.rs`.
    for args in [
        ["serve", "--listen", "0.0.0.0:0"],
        ["worker", "--listen", "0.0.0.0:0"],
        ["run", "--worker", "192.0.2.1:7070"],
    ] {
        let output = run(&args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{args:?}");
        assert!(error.contains("--insecure-network"), "{args:?}: {error}");
    }
}

/// The official client library is the judge of the JSON's shape.
/// The context of the model is 32,768 positions. All of them are in the cache, which eight share: 4096 are sure for each.
fn an_answer_without_a_length_goes_on_beyond_its_share_while_nobody_needs_the_room() {
    const SURE: u64 = 4096;
    let model = synth("llama", "tiny");
    let args = ["-m", model.to_str().unwrap(), "--workers", "2", "--max-seqs", "8"];
    let server = Server::start(&args);
    let pages = |name: &str| server.metric(name) as u64;
    // The line says what it has with its first report.
    wait_for("the line's pages", || pages("brigade_kv_blocks") > 0);
    assert_eq!(pages("brigade_kv_blocks") * 64 / 8, SURE);
    // Each token is a letter, so that there is an event for each.
    let body = json!({
        "messages": [{ "role": "user", "content": "Go on" }], "ignore_eos": true, "logit_bias": { "87": 100 },
    });
    let server = &server;
    std::thread::scope(|scope| {
        let long = scope.spawn(|| server.chat_hang_up(&body, SURE as usize + 200));
        wait_for("its first page", || pages("brigade_kv_blocks_used") > 0);
        let reserved = pages("brigade_kv_blocks_used") * 64;
        assert!((SURE..SURE + 256).contains(&reserved), "{reserved} positions are reserved");
        long.join().unwrap();
    });
    println!("{} tokens of an answer for which {SURE} were sure", SURE + 200);
    std::fs::remove_file(model).unwrap();
}

fn the_openai_python_client_is_content() {
    let has_client = Command::new("python3").args(["-c", "import openai"]).output();
    if !has_client.is_ok_and(|o| o.status.success()) {
        println!("skipped: python3 with the openai package is not there (pip install openai)");
        return;
    }
    let server = Server::start(&["--workers", "2"]);
    let script = brigade_model_tests::places::of_tests("python/openai_client.py");
    let output = Command::new("python3").arg(script).arg(server.url("/v1")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{errors}");
    println!("{said}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        answers_agree_with_each_other,
        the_best_of_several_answers_are_those_with_the_most_probable_tokens,
        an_unfinished_answer_goes_on_where_it_stands,
        a_forced_call_is_the_same_for_any_cut,
        logprobs_do_not_depend_on_the_number_of_workers,
        what_cannot_be_done_is_refused_with_the_reason,
        a_full_queue_says_429_and_when_to_come_back,
        an_answer_without_a_length_goes_on_beyond_its_share_while_nobody_needs_the_room,
        a_client_that_leaves_makes_room,
        a_stop_signal_lets_running_answers_end,
        metrics_and_models_say_what_is_there,
        nothing_plain_beyond_loopback_without_permission,
        the_openai_python_client_is_content;
];
