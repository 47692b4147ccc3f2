//! The first steps of a new user. Prompts come in every form. Messages name a file once and say what would help.
//! Files are not replaced. Models may be damaged, or unable to run.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use brigade_tests::process::{brigade, run, synth};
use serde_json::Value;

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("brigade-first-{}-{name}", std::process::id()))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", errors(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refusal(args: &[&str]) -> String {
    let output = run(args);
    assert!(
        !output.status.success(),
        "{args:?} should fail: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    errors(&output)
}

/// A command with a text piped in.
fn piped(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(brigade());
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn a_prompt_may_be_typed_named_or_piped() {
    let model = synth("llama", "tiny");
    let m = model.to_str().unwrap();
    let how = ["-n", "6", "--temp", "0", "--ids", "--workers", "1"];
    let (named, demo) = ([&["run", "-m", m], &how[..]].concat(), [&["run"], &how[..]].concat());
    for (start, prompt) in [(named, "some words"), (demo, "And he said")] {
        let ids = |more: &[&str], input| text(&piped(&[&start[..], more].concat(), input));
        let whole = ids(&["-p", prompt], "");
        assert_eq!(ids(&[prompt], ""), whole, "as an argument");
        assert_eq!(ids(&[], prompt), whole, "piped");
        assert_eq!(ids(&["-"], prompt), whole, "- is standard input");
    }
    assert!(refusal(&["run", "-m", m]).contains("on standard input"));
    std::fs::remove_file(model).unwrap();
}

fn a_file_that_is_not_there_is_named_once_and_before_the_prompt() {
    let missing = "/no/such/model.gguf";
    for args in [
        vec!["run", "-m", missing],
        vec!["run", "-m", missing, "-f", "/no/such/prompt.txt"],
        vec!["inspect", missing],
        vec!["plan", "-m", missing],
        vec!["tokenize", "-m", missing, "x"],
        vec!["logits", "-m", missing, "--tokens", "1", "--out", "/no/such/out.npy"],
    ] {
        let error = refusal(&args);
        assert_eq!(error.matches(missing).count(), 1, "{args:?}: {error}");
        assert!(!error.contains("prompt"), "{args:?}: {error}");
    }
}

fn another_chat_template_is_used_where_one_is_named() {
    let file = scratch("template.jinja");
    std::fs::write(&file, "{{ messages[0].content }}").unwrap();
    let how = ["run", "In the beginning", "-n", "6", "--temp", "0", "--ids", "--workers", "1"];
    let with = |more: &[&str]| text(&run(&[&how[..], more].concat()));
    let bare = with(&["--chat", "--chat-template", file.to_str().unwrap()]);
    assert_eq!(bare, with(&[]), "this template adds nothing to the prompt");
    assert_ne!(with(&["--chat", "--chat-template", "chatml"]), bare);
    let error = refusal(&[&how[..], &["--chat", "--chat-template", "nameless"]].concat());
    assert!(error.contains("give chatml or a file"), "{error}");
    std::fs::write(&file, "{{ messages[0").unwrap();
    let error =
        refusal(&[&how[..], &["--chat", "--chat-template", file.to_str().unwrap()]].concat());
    assert!(error.contains("--chat-template"), "{error}");
    std::fs::remove_file(file).unwrap();
}

fn cpus_that_are_not_there_are_refused() {
    let error = refusal(&["run", "-n", "1", "--workers", "2", "--worker-cpus", "0/4000"]);
    assert!(error.contains("names CPU 4000") && error.contains("may use"), "{error}");
}

fn files_are_not_replaced_without_force() {
    let (model, out) = (scratch("m.gguf"), scratch("l.npy"));
    let (m, o) = (model.to_str().unwrap(), out.to_str().unwrap());
    let synth = ["synth", "--arch", "llama", "--size", "tiny", "--out", m];
    let logits = ["logits", "--tokens", "1,2", "--workers", "1", "--out", o];
    for (args, file) in [(&synth[..], &model), (&logits[..], &out)] {
        text(&run(args));
        let first = std::fs::read(file).unwrap();
        std::fs::write(file, "mine").unwrap();
        let error = refusal(args);
        assert!(error.contains("is there already: --force replaces it"), "{error}");
        assert_eq!(std::fs::read(file).unwrap(), b"mine");
        text(&run(&[args, &["--force"]].concat()));
        assert!(std::fs::read(file).unwrap() == first, "the same again");
        let part = format!("{}.part", file.display());
        assert!(!std::path::Path::new(&part).exists(), "nothing is left beside it");
        std::fs::remove_file(file).unwrap();
    }
    let error = refusal(&["logits", "--tokens", "1", "--force", "--out", "/dev/null"]);
    assert!(error.contains("not a regular file"), "{error}");
}

fn inspect_shows_what_it_can_of_damaged_and_unknown_models() {
    let model = synth("qwen3", "tiny");
    let bytes = std::fs::read(&model).unwrap();
    let file = scratch("inspected.gguf");
    let f = file.to_str().unwrap();

    std::fs::write(&file, &bytes[..bytes.len() - 1000]).unwrap();
    let shown = text(&run(&["inspect", f]));
    assert!(shown.contains("warning: its tensors are not all there"), "{shown}");
    assert!(shown.contains("general.architecture") && shown.contains("layer"), "{shown}");

    let mut unknown = bytes.clone();
    let at = |from: usize| unknown[from..].windows(5).position(|w| w == b"qwen3").map(|i| i + from);
    let places: Vec<usize> = std::iter::successors(at(0), |place| at(place + 1)).collect();
    for place in places {
        unknown[place..place + 5].copy_from_slice(b"eliza");
    }
    std::fs::write(&file, &unknown).unwrap();
    let shown = text(&run(&["inspect", f]));
    assert!(shown.contains("this program cannot run it") && shown.contains("eliza"), "{shown}");
    assert!(shown.contains("eliza.block_count") && shown.contains("tensors"), "{shown}");
    let json: Value = serde_json::from_str(&text(&run(&["inspect", f, "--json"]))).unwrap();
    assert!(json["cannot_run"].is_string() && json["missing_data"].is_null(), "{json}");

    std::fs::write(&file, &bytes).unwrap();
    let shown = text(&run(&["inspect", f]));
    assert!(!shown.contains("warning") && !shown.contains("cannot"), "{shown}");
    std::fs::remove_file(file).unwrap();
    std::fs::remove_file(model).unwrap();
}

fn plan_says_what_the_cache_holds_without_being_asked_to_explain() {
    let plan =
        text(&run(&["plan", "--workers", "2", "--max-seqs", "3", "--ctx", "256", "--keep", "0"]));
    let room =
        "room: KV cache for 768 positions: 3 sequences of up to 256 at once, 0 kept beside them";
    assert!(plan.contains(room), "{plan}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_prompt_may_be_typed_named_or_piped,
        a_file_that_is_not_there_is_named_once_and_before_the_prompt,
        another_chat_template_is_used_where_one_is_named,
        cpus_that_are_not_there_are_refused,
        files_are_not_replaced_without_force,
        inspect_shows_what_it_can_of_damaged_and_unknown_models,
        plan_says_what_the_cache_holds_without_being_asked_to_explain;
];
