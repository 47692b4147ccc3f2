//! Classifier-free guidance: tokens and log-probabilities are those of two separate sequences' combined logits, bit
//! for bit, for any cut, any ubatches and any API.

use std::path::{Path, PathBuf};

use brigade_engine::batch::{Companion, SamplerSetup, SeqOp, SeqPart, SlotId, Want};
use brigade_engine::kernels::KvType;
use brigade_engine::sample::log_probs;
use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig, into_token};
use brigade_synth::{AdapterSpec, write_adapter};
use brigade_tests::process::{Server, run, synth};
use serde_json::{Value, json};

/// Attention, windows, recurrent layers, experts, rows kept over depth.
const MODELS: [&str; 6] = ["llama", "gemma3", "mamba", "qwen35", "deepseek2", "kimi-k3"];

/// Tokens drawn of each.
const N: usize = 12;

/// Alternatives reported with each.
const TOP: u32 = 5;

/// Slots of the sequence and of its companion.
const OWN: SlotId = SlotId(0);
const GUIDE: SlotId = SlotId(3);

/// A token, and the bits of its log-probability and of its alternatives'.
type Drawn = (u32, u32, Vec<(u32, u32)>);

fn bits(id: u32, logprob: f32, top: Vec<(u32, f32)>) -> Drawn {
    (id, logprob.to_bits(), top.into_iter().map(|(id, l)| (id, l.to_bits())).collect())
}

/// Token ids without a pattern, below the golden vocabularies' 288.
fn tokens(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| 3 + ((i * i * 31 + i * 17 + seed * 101) % 280) as u32).collect()
}

fn path(model: &str) -> PathBuf {
    Golden::repository().named(model)
}

fn part(slot: SlotId, pos: usize, tokens: &[u32], want: Want) -> SeqPart {
    SeqPart { slot, pos: pos as u32, tokens: tokens.to_vec(), want, mu: None, ahead: None }
}

/// `N` greedy tokens of a guided sequence. All of the companion's prompt but the last ubatch is computed first.
fn guided(
    line: &mut Line,
    prompt: &[u32],
    negative: &[u32],
    scale: f32,
    n_ubatch: usize,
) -> Vec<Drawn> {
    let companion = Some(Companion { scale });
    let setup = SamplerSetup { top_logprobs: Some(TOP), companion, ..Line::greedy() };
    line.run(vec![Line::open_slot(OWN.0, Some(setup)), Line::open_slot(GUIDE.0, None)], Vec::new());
    let mut left = [(GUIDE, negative, 0), (OWN, prompt, 0)];
    for (slot, tokens, pos) in &mut left {
        while tokens.len() - *pos > n_ubatch {
            let chunk = &tokens[*pos..*pos + n_ubatch];
            line.run(Vec::new(), vec![part(*slot, *pos, chunk, Want::Nothing)]);
            *pos += n_ubatch;
        }
    }
    let [of_companion, own] = left.map(|(_, tokens, pos)| (tokens[pos..].to_vec(), pos));
    let (mut out, mut next) = (Vec::new(), (own.0, of_companion.0));
    let (mut own_pos, mut guide_pos) = (own.1, of_companion.1);
    while out.len() < N {
        let parts = vec![
            part(GUIDE, guide_pos, &next.1, Want::Companion),
            part(OWN, own_pos, &next.0, Want::Sample),
        ];
        (own_pos, guide_pos) = (own_pos + next.0.len(), guide_pos + next.1.len());
        let mut rows = line.run(Vec::new(), parts);
        assert_eq!((rows.len(), rows[0].slot, rows[0].pos as usize), (1, OWN, own_pos - 1));
        let token = into_token(rows.remove(0));
        next = (vec![token.id], vec![token.id]);
        out.push(bits(token.id, token.logprob.unwrap(), token.top));
    }
    line.run([OWN, GUIDE].map(|slot| SeqOp::Close { slot }).to_vec(), Vec::new());
    out
}

/// The same from the logits of two sequences that are computed apart, one token's rows at a time.
fn apart(line: &mut Line, prompt: &[u32], negative: &[u32], scale: f32, n: usize) -> Vec<Drawn> {
    let mut answer: Vec<u32> = Vec::new();
    let mut out = Vec::new();
    while out.len() < n {
        let last = |line: &mut Line, prompt: &[u32]| {
            line.logits(&[prompt, &answer].concat(), 512).pop().unwrap()
        };
        let (row, companion) = (last(line, prompt), last(line, negative));
        let log_softmax = |row: &[f32]| -> Vec<f64> {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|l| f64::from(l - max).exp()).sum();
            row.iter().map(|l| f64::from(l - max) - sum.ln()).collect()
        };
        let (of_row, of_companion) = (log_softmax(&row), log_softmax(&companion));
        let combined = Companion { scale }.combine(&row, &companion).unwrap();
        for ((value, own), other) in combined.iter().zip(&of_row).zip(&of_companion) {
            let want = other + f64::from(scale) * (own - other);
            assert!(
                (f64::from(*value) - want).abs() < 1e-5 * want.abs().max(1.0),
                "{value} {want}"
            );
        }
        let best = brigade_model_tests::golden::argmax(&combined);
        let (logprob, top) = log_probs(&combined, best, TOP as usize).unwrap();
        out.push(bits(best, logprob, top));
        answer.push(best);
    }
    out
}

fn guided_draws_are_those_of_two_sequences_apart_for_every_cut_and_ubatch() {
    let (prompt, negative) = (tokens(150, 1), tokens(83, 2));
    for model in MODELS {
        let whole = LineConfig::default();
        let mut line = Line::open(&path(model), &whole);
        let n_layer = line.stages()[0].spec().n_layer();
        let expected = apart(&mut line, &prompt, &negative, 2.5, N);
        let alone: Vec<u32> = line.generate(&prompt, N, 512);
        assert_ne!(expected.iter().map(|t| t.0).collect::<Vec<_>>(), alone, "{model}: it guides");
        for (n, n_ubatch) in [(1, 512), (2, 64), (3, 7), (n_layer, 1)] {
            let cuts = Line::even_cuts(n_layer, n);
            let mut line = Line::open(&path(model), &LineConfig { cuts, ..whole.clone() });
            let drawn = guided(&mut line, &prompt, &negative, 2.5, n_ubatch);
            assert!(drawn == expected, "{model}: {n} stages, ubatch {n_ubatch}");
        }
        // A companion of one token, and a scale that is the companion's alone.
        let last = &prompt[prompt.len() - 1..];
        for scale in [0.0, 1.5] {
            let expected = apart(&mut line, &prompt, last, scale, N);
            assert!(guided(&mut line, &prompt, last, scale, 40) == expected, "{model}: {scale}");
        }
        println!("{model}: {N} tokens of 3 guides, 6 lines equal");
    }
}

/// A completion's choices, and how it counts.
fn complete(server: &Server, body: &Value) -> (Value, Value) {
    let reply = server.post("/v1/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let json: Value = serde_json::from_str(&reply.body).unwrap();
    (json["choices"].clone(), json["usage"].clone())
}

fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tokenized(server: &Server, text: &str) -> Vec<u32> {
    let reply = server.post("/tokenize", &json!({ "prompt": text }));
    let json: Value = serde_json::from_str(&reply.body).unwrap();
    serde_json::from_value(json["tokens"].clone()).unwrap()
}

/// Tokens and log-probabilities of a completion, as f32.
fn drawn(choice: &Value) -> Vec<(u32, f32)> {
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    let logprobs: Vec<f32> =
        serde_json::from_value(choice["logprobs"]["token_logprobs"].clone()).unwrap();
    ids.into_iter().zip(logprobs).collect()
}

fn guides_over_http(model: &Path, args: &[&str]) {
    let base = ["-m", model.to_str().unwrap(), "--max-seqs", "6"];
    let args: Vec<&str> = base.iter().chain(args).copied().collect();
    let server = Server::start(&args);
    let (prompt, negative) = (tokens(90, 3), "what it should not be like");
    let body = json!({
        "prompt": prompt, "max_tokens": N, "temperature": 0, "logprobs": 1, "ignore_eos": true,
        "return_token_ids": true, "guidance_scale": 2.5, "negative_prompt": negative,
    });
    let (choices, usage) = complete(&server, &body);
    let config = LineConfig { kv_type: KvType::F16, ..LineConfig::default() };
    let mut line = Line::open(model, &config);
    let companion = tokenized(&server, negative);
    let expected = apart(&mut line, &prompt, &companion, 2.5, N);
    let expected: Vec<_> = expected.into_iter().map(|t| (t.0, f32::from_bits(t.1))).collect();
    assert_eq!(drawn(&choices[0]), expected, "{args:?}");
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(90), &json!(N)));

    // Again, with the kept states of both.
    let (again, usage) = complete(&server, &body);
    assert_eq!(again, choices);
    let kept = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(kept > 0, !args.contains(&"--keep"), "{usage}");

    // Without a text the last token guides; a scale of 1 is no companion at all.
    let mut bare = body.clone();
    bare.as_object_mut().unwrap().remove("negative_prompt");
    let expected = apart(&mut line, &prompt, &prompt[89..], 2.5, N);
    let ids = |choices: &Value| drawn(&choices[0]).iter().map(|t| t.0).collect::<Vec<_>>();
    let bare = complete(&server, &bare).0;
    assert_eq!(ids(&bare), expected.iter().map(|t| t.0).collect::<Vec<_>>());
    let off = with(&body, json!({ "guidance_scale": 1 }));
    assert_eq!(ids(&complete(&server, &off).0), line.generate(&prompt, N, 512));

    // Several, each with a companion: as one by one, and beside others.
    let many = with(&body, json!({ "n": 3, "temperature": 0.9, "seed": 5, "repeat_penalty": 1.3 }));
    let many = complete(&server, &many).0;
    for i in 0..3 {
        let one = json!({ "temperature": 0.9, "seed": 5 + i, "repeat_penalty": 1.3 });
        let one = complete(&server, &with(&body, one)).0;
        assert_eq!(drawn(&one[0]), drawn(&many[i]), "choice {i}");
    }
}

fn a_guided_answer_over_http_has_the_same_bits() {
    let llama = path("llama");
    guides_over_http(&llama, &["--workers", "3"]);
    guides_over_http(&llama, &["--workers", "2", "--ubatch", "7", "--keep", "0"]);
    guides_over_http(&path("qwen35"), &["--workers", "2", "--ubatch", "64", "--keep", "0"]);
}

fn a_guide_passes_through_the_adapters_of_its_request() {
    let model = path("llama");
    let name = format!("brigade-guided-{}", std::process::id());
    let file = std::env::temp_dir().join(format!("{name}.gguf"));
    let spec = AdapterSpec { rank: 4, alpha: 8.0, seed: 1 };
    write_adapter(&Gguf::open(&model).unwrap(), &spec, &file).unwrap();
    let lora = format!("{}=0", file.display());
    let server = Server::start(&[
        "-m",
        model.to_str().unwrap(),
        "--max-seqs",
        "6",
        "--workers",
        "3",
        "--lora",
        &lora,
    ]);
    let (prompt, companion) = (tokens(90, 3), "what it should not be like");
    let body = json!({
        "prompt": prompt, "max_tokens": N, "temperature": 0, "logprobs": 1, "ignore_eos": true,
        "return_token_ids": true, "guidance_scale": 2.5, "negative_prompt": companion,
    });
    let companion = tokenized(&server, companion);
    let expected = |uses: Vec<(u32, f32)>| {
        let plain = LineConfig { kv_type: KvType::F16, ..LineConfig::default() };
        let config = LineConfig { adapters: vec![file.clone()], uses, ..plain };
        let drawn = apart(&mut Line::open(&model, &config), &prompt, &companion, 2.5, N);
        drawn.into_iter().map(|t| (t.0, f32::from_bits(t.1))).collect::<Vec<_>>()
    };
    let (adapted, bare) = (expected(vec![(0, 1.0)]), expected(vec![]));
    assert_ne!(adapted, bare);
    // The same prompts again: kept states of one are not reused by the other, and neither are those of guides.
    for (lora, expected) in [(json!([name]), &adapted), (json!([]), &bare)].iter().cycle().take(4) {
        let choices = complete(&server, &with(&body, json!({ "lora": lora }))).0;
        assert_eq!(&drawn(&choices[0]), *expected, "{lora}");
    }
    std::fs::remove_file(file).unwrap();
}

/// Texts of a stream's pieces together.
fn streamed(server: &Server, body: &Value) -> String {
    let reply = server.post("/v1/completions", &with(body, json!({ "stream": true })));
    let events = reply.body.lines().filter_map(|line| line.strip_prefix("data: {"));
    let piece = |event: &str| {
        let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
        event["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
    };
    events.map(piece).collect()
}

fn what_ends_and_holds_answers_holds_guided_ones() {
    // The demo model's own template drops system messages.
    let template = ["--chat-template", "chatml"];
    let args = [&["--workers", "2", "--max-seqs", "4"], &template[..]].concat();
    let server = Server::start(&args);
    let body = json!({
        "prompt": "And God said", "max_tokens": 40, "temperature": 0.7, "seed": 3,
        "guidance_scale": 1.8, "negative_prompt": "In the beginning",
    });
    let text = |choices: &Value| choices[0]["text"].as_str().unwrap().to_owned();
    let whole = text(&complete(&server, &body).0);
    assert_eq!(streamed(&server, &body), whole);
    assert_ne!(text(&complete(&server, &with(&body, json!({ "guidance_scale": 1 }))).0), whole);

    let word = whole.split_whitespace().nth(3).unwrap();
    let stopped = complete(&server, &with(&body, json!({ "stop": word }))).0;
    assert_eq!(text(&stopped), whole.split(word).next().unwrap());
    assert_eq!(stopped[0]["finish_reason"], "stop");

    let schema = json!({ "type": "object", "properties": { "x": { "type": "boolean" } },
        "required": ["x"], "additionalProperties": false });
    let form = json!({ "response_format": { "type": "json_object", "schema": schema } });
    let held = text(&complete(&server, &with(&body, form)).0);
    let held: Value = serde_json::from_str(&held).unwrap_or_else(|e| panic!("{e}: {held}"));
    assert!(held["x"].is_boolean(), "{held}");

    let mirostat = with(&body, json!({ "mirostat": 2, "mirostat_tau": 3 }));
    assert_eq!(complete(&server, &mirostat).0, complete(&server, &mirostat).0);

    // In a chat the text stands in the system message's place: with a scale of 0 it is all that counts.
    let chat = |system: &str, more: Value| -> Vec<f64> {
        let system = json!({ "role": "system", "content": system });
        let messages = json!([system, { "role": "user", "content": "Who?" }]);
        let body =
            json!({ "messages": messages, "max_tokens": 8, "temperature": 0, "logprobs": true });
        let reply = server.post("/v1/chat/completions", &with(&body, more));
        let json: Value = serde_json::from_str(&reply.body).unwrap();
        let tokens = json["choices"][0]["logprobs"]["content"].as_array().unwrap();
        tokens.iter().map(|token| token["logprob"].as_f64().unwrap()).collect()
    };
    let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
    let rude = |scale: u32| json!({ "guidance_scale": scale, "negative_prompt": "Be rude." });
    let (kind_alone, rude_alone) = (chat("Be kind.", json!({})), chat("Be rude.", json!({})));
    assert!(!close(&kind_alone, &rude_alone));
    assert!(close(&chat("Be kind.", rude(0)), &rude_alone));
    assert!(!close(&chat("Be kind.", rude(3)), &kind_alone));
    let no_system = json!({ "guidance_scale": 0, "negative_prompt": "" });
    assert!(!close(&chat("Be kind.", no_system), &rude_alone));

    for (more, says) in [
        (json!({ "echo": true, "logprobs": 1 }), "leave out guidance_scale, or echo"),
        (json!({ "guidance_scale": 101 }), "a number from 0 to 100"),
        (json!({ "guidance_scale": null }), "has no effect without guidance_scale"),
    ] {
        let reply = server.post("/v1/completions", &with(&body, more));
        assert!(reply.status == 400 && reply.body.contains(says), "{}", reply.body);
    }
    let alone = Server::start(&["--workers", "2", "--max-seqs", "1"]);
    let reply = alone.post("/v1/completions", &body);
    assert!(reply.status == 400 && reply.body.contains("--max-seqs 2"), "{}", reply.body);
    assert_eq!(
        alone.post("/v1/completions", &with(&body, json!({ "guidance_scale": 1 }))).status,
        200
    );
}

fn the_command_draws_what_the_server_does() {
    let model = synth("qwen35", "tiny");
    let file = model.to_str().unwrap();
    let command = |more: &[&str]| {
        let base = ["run", "-m", file, "--tokens", "5,6,7", "-n", "12", "--temp", "0", "--ids"];
        let output = run(&base.iter().chain(more).copied().collect::<Vec<_>>());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Vec<u32>>(&output.stdout).unwrap()
    };
    let scale = ["--guidance-scale", "4", "--negative-prompt", "abc"];
    let guided = command(&scale);
    assert_ne!(guided, command(&[]));
    assert_eq!(command(&["--guidance-scale", "1", "--negative-prompt", "abc"]), command(&[]));
    for cut in [&["--workers", "1"][..], &["--workers", "3", "--ubatch", "2"]] {
        assert_eq!(command(&[&scale[..], cut].concat()), guided, "{cut:?}");
    }
    let server = Server::start(&["-m", file, "--max-seqs", "2"]);
    let body = json!({
        "prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "guidance_scale": 4, "negative_prompt": "abc",
    });
    assert_eq!(complete(&server, &body).0[0]["token_ids"], json!(guided));
    std::fs::remove_file(model).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_guided_answer_over_http_has_the_same_bits,
        a_guide_passes_through_the_adapters_of_its_request,
        what_ends_and_holds_answers_holds_guided_ones,
        the_command_draws_what_the_server_does;
    computes: guided_draws_are_those_of_two_sequences_apart_for_every_cut_and_ubatch;
];
