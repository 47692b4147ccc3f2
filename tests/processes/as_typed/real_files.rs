//! Model files as they occur in practice: chat templates that are not valid Jinja, numbers of other types, tensors of
//! an image encoder beside the text's. Also a machine without a home folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use brigade_gguf::{GgufWriter, Value};
use brigade_model_tests::golden::Golden;
use brigade_model_tests::rewrite;
use brigade_tests::process::{Server, brigade, run};
use serde_json::{Value as Json, json};

/// A template of Ollama's, which is no Jinja.
const GO: &str =
    "{{ if .System }}{{ .System }}{{ end }}{{ range .Messages }}{{ .Content }}{{ end }}";

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brigade-real-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn golden() -> PathBuf {
    Golden::repository().folder.join("llama.gguf")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// `brigade run` of a file, greedily.
fn runs(file: &str, more: &[&str]) -> Output {
    let start = ["run", "-m", file, "--workers", "1", "--threads", "1", "-n", "3", "--temp", "0"];
    run(&[&start[..], more].concat())
}

/// Writes an invalid template.
type Broken<'a> = &'a dyn Fn(&mut GgufWriter);

fn a_bad_template_is_told_to_chats_alone() {
    let folder = Folder::new("template");
    let bad: [(&str, Broken<'_>); 4] = [
        ("a Go template", &|w| w.set("tokenizer.chat_template", GO).unwrap()),
        ("an open block", &|w| {
            w.set("tokenizer.chat_template", "{% for m in messages %}").unwrap()
        }),
        ("no UTF-8", &|w| w.set("tokenizer.chat_template", &b"\xff\xfe{{"[..]).unwrap()),
        ("a list", &|w| w.set("tokenizer.chat_template", &["a", "b"][..]).unwrap()),
    ];
    for (what, set) in bad {
        let file = folder.file("bad.gguf");
        let mut has_set = false;
        rewrite::model(
            &golden(),
            Path::new(&file),
            &mut |writer, key, _| {
                if !std::mem::replace(&mut has_set, true) {
                    set(writer);
                }
                key == "tokenizer.chat_template"
            },
            &[],
        );
        let tokens = ["--tokens", "1,2,3"];
        let output = runs(&file, &tokens);
        assert!(output.status.success(), "{what}: {}", text(&output));
        assert!(
            text(&output).contains("chat template"),
            "{what}: nothing is said: {}",
            text(&output)
        );
        let output = runs(&file, &[&tokens[..], &["--chat-template", "chatml"]].concat());
        assert!(output.status.success(), "{what}: {}", text(&output));
        assert!(!text(&output).contains("chat template"), "{what}: {}", text(&output));
        for args in [&["inspect", &file][..], &["plan", "-m", &file, "--workers", "1"]] {
            let output = run(args);
            assert!(output.status.success(), "{what}: {args:?}: {}", text(&output));
            assert!(
                text(&output).contains("--chat-template"),
                "{what}: {args:?}: {}",
                text(&output)
            );
        }
        let output = runs(&file, &["--chat", "hello"]);
        assert!(!output.status.success() && text(&output).contains("--chat-template"), "{what}");
    }
    let file = folder.file("bad.gguf");
    let server = Server::start(&["-m", &file, "--workers", "1", "--threads", "1"]);
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let chat =
        server.post("/v1/chat/completions", &json!({ "messages": messages, "max_tokens": 2 }));
    assert!(chat.status == 400 && chat.body.contains("--chat-template"), "{}", chat.body);
    let plain = server.post("/v1/completions", &json!({ "prompt": [1, 2], "max_tokens": 2 }));
    assert_eq!(plain.status, 200, "{}", plain.body);
}

/// A number as another type of the format.
fn set_as(writer: &mut GgufWriter, key: &str, number: f64, ty: &str) {
    let whole = number as i64;
    match ty {
        "u16" => writer.set(key, &(whole as u16)),
        "i32" => writer.set(key, &(whole as i32)),
        "u64" => writer.set(key, &(whole as u64)),
        "i64" => writer.set(key, &whole),
        "f32" => writer.set(key, &(number as f32)),
        _ => writer.set(key, &number),
    }
    .unwrap();
}

/// All counts of a file, and its numbers with a fraction, in each type that holds them.
fn numbers_of_other_types_are_the_same_model() {
    let folder = Folder::new("numbers");
    let tokens = ["--tokens", "1,2,3", "--ids"];
    let as_it_is = runs(golden().to_str().unwrap(), &tokens);
    assert!(as_it_is.status.success());
    for ty in ["u16", "i32", "u64", "i64", "f32", "f64"] {
        let (file, mut n) = (folder.file(&format!("{ty}.gguf")), 0);
        let mut other = |writer: &mut GgufWriter, key: &str, value: Value<'_>| {
            let number = value.number().map(brigade_gguf::Number::real);
            let Some(number) = number.filter(|x| x.fract() == 0.0 || ty.starts_with('f')) else {
                return false;
            };
            set_as(writer, key, number, ty);
            n += 1;
            true
        };
        rewrite::model(&golden(), Path::new(&file), &mut other, &[]);
        assert!(n > 5, "{n} numbers");
        let output = runs(&file, &tokens);
        assert!(output.status.success(), "{ty}: {}", text(&output));
        assert_eq!(output.stdout, as_it_is.stdout, "{ty}");
        println!("numbers | {n} keys as {ty} | the same ids");
    }
}

fn an_encoder_of_images_beside_the_text_is_left_where_it_is() {
    let folder = Folder::new("images");
    let file = folder.file("v.gguf");
    let extra: [(&str, &[usize]); 3] = [
        ("v.blk.0.attn_q.weight", &[32, 32]),
        ("v.patch_embd.weight", &[3, 5, 7]),
        ("mm.input_projection.weight", &[16, 32]),
    ];
    rewrite::model(&golden(), Path::new(&file), &mut |_, _, _| false, &extra);
    let tokens = ["--tokens", "1,2,3", "--ids"];
    let output = runs(&file, &tokens);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(output.stdout, runs(golden().to_str().unwrap(), &tokens).stdout);
    assert!(text(&output).contains("3 tensors are for images or sounds"), "{}", text(&output));
    let inspected: Json =
        serde_json::from_slice(&run(&["inspect", &file, "--json"]).stdout).unwrap();
    assert!(inspected["cannot_run"].is_null(), "{inspected}");
    assert!(inspected["notes"][0].as_str().unwrap().contains("images"), "{inspected}");
    // An unknown tensor is another matter: opening the file is refused.
    rewrite::model(&golden(), Path::new(&file), &mut |_, _, _| false, &[("x.weight", &[8])]);
    let inspected: Json =
        serde_json::from_slice(&run(&["inspect", &file, "--json"]).stdout).unwrap();
    assert!(inspected["cannot_run"].as_str().unwrap().contains("x.weight"), "{inspected}");
    for args in [&["plan", "-m", &file, "--workers", "1"][..], &["serve", "-m", &file]] {
        let output = run(args);
        assert!(!output.status.success() && text(&output).contains("x.weight"), "{args:?}");
    }
}

/// Runs without a home, and without any folder in the environment, like a service.
fn homeless(args: &[&str], temporary: &Path) -> Output {
    without_home(args, temporary).output().unwrap()
}

fn without_home(args: &[&str], temporary: &Path) -> Command {
    let mut command = Command::new(brigade());
    for name in
        ["HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "BRIGADE_DATA_DIR", "MESA_SHADER_CACHE_DIR"]
    {
        command.env_remove(name);
    }
    command.env("TMPDIR", temporary).args(args).stdin(Stdio::null());
    command
}

fn nothing_here_needs_a_home() {
    let folder = Folder::new("home");
    let model = golden();
    let model = model.to_str().unwrap();
    let line = ["--workers", "1", "--threads", "1", "-n", "3", "--temp", "0"];
    for args in [&["run", "-m", model, "--tokens", "1,2"][..], &["run", "-p", "In the"]] {
        let output = homeless(&[args, &line].concat(), &folder.0);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        assert!(text(&output).contains("HOME"), "{args:?}: a word about it: {}", text(&output));
    }
    for args in [
        &["inspect", model][..],
        &["tokenize", "-m", model, "--help"],
        &["plan", "-m", model, "--workers", "1"],
        &["chat", "-m", model, "--workers", "1", "--threads", "1", "--chat-template", "chatml"],
    ] {
        let output = homeless(args, &folder.0);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
    }
    // Where there is a folder to be named, the command has the option.
    let output = homeless(&["key", "list"], &folder.0);
    assert!(text(&output).contains("--data-dir"), "{}", text(&output));
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    // A home that nothing can be written to, as services and containers have it.
    let no_folder = folder.0.join("no-folder");
    std::fs::write(&no_folder, "x").unwrap();
    let args = [&["run", "-p", "In the"][..], &line].concat();
    for home in [no_folder.as_path(), Path::new("/proc/nowhere")] {
        let output = without_home(&args, &folder.0).env("HOME", home).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let home = home.to_str().unwrap();
        assert!(text(&output).contains(home), "a word about it: {}", text(&output));
    }
}

/// Runs a command whose output and remarks are not read.
fn unread(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(brigade());
    command.env("BRIGADE_DATA_DIR", std::env::temp_dir().join("brigade-test-unread"));
    let (out, into) = std::io::pipe().unwrap();
    drop(out);
    let mut child = command
        .args(args)
        .stdin(Stdio::null())
        .stdout(into)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

fn nobody_reads_and_that_is_no_error() {
    let model = golden();
    let model = model.to_str().unwrap();
    for args in [
        &["inspect", model][..],
        &["inspect", model, "--json"],
        &["plan", "-m", model, "--workers", "1"],
        &["plan", "-m", model, "--workers", "1", "--json"],
        &["completions", "bash"],
        &["--help"],
        &["devices"],
        &["devices", "--json"],
        &["key", "list", "--json"],
        &["tokenize", "a"],
        &["detokenize", "5,6"],
        &["run", "-m", model, "--tokens", "1,2", "-n", "4", "--workers", "1", "--threads", "1"],
        &[
            "run",
            "-m",
            model,
            "--tokens",
            "1,2",
            "-n",
            "4",
            "--workers",
            "1",
            "--threads",
            "1",
            "--json",
        ],
    ] {
        let (code, said) = unread(args);
        assert_eq!(code, Some(0), "{args:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("error"), "{args:?}: {said}");
    }
}

fn what_people_type_is_understood_or_told_better() {
    let model = golden();
    let line = [
        "run",
        "-m",
        model.to_str().unwrap(),
        "--tokens",
        "1,2",
        "--workers",
        "1",
        "--threads",
        "1",
    ];
    let more = ["--temperature", "0", "--max-tokens", "3", "--ctx-size", "64"];
    let output = run(&[&line[..], &more].concat());
    assert!(output.status.success(), "{}", text(&output));
    let output = run(&["run", "-p", "-5 + 3 =", "-n", "2", "--workers", "1", "--threads", "1"]);
    assert!(output.status.success(), "{}", text(&output));
    let output = run(&["serve", "--port", "80"]);
    assert!(
        !output.status.success() && text(&output).contains("--listen HOST:PORT"),
        "{}",
        text(&output)
    );
    // Before anything is started: how to go on, with an option that the command has.
    let output = run(&["chat", "-m", model.to_str().unwrap(), "--workers", "1"]);
    assert!(
        !output.status.success() && text(&output).contains("--chat-template chatml"),
        "{}",
        text(&output)
    );
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_bad_template_is_told_to_chats_alone, numbers_of_other_types_are_the_same_model,
    an_encoder_of_images_beside_the_text_is_left_where_it_is, nothing_here_needs_a_home,
    nobody_reads_and_that_is_no_error, what_people_type_is_understood_or_told_better;
];
