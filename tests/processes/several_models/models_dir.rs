//! A folder of models that the operator fills: its files go by their names, a bad one is listed with its reason, and nothing in it
//! is ever changed or deleted.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use brigade_tests::named::{Machine, NAME, model};
use brigade_tests::process::{Running, Server, get};
use serde_json::{Value, json};

use crate::several_models::fleet::PATIENCE;

use crate::by_name::names::split_in_two;

/// Writes a file as if that had been long ago.
fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let old = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
}

/// A machine whose folder `mine` has files of all kinds.
fn laid_out() -> Machine {
    let machine = Machine::new();
    let mine = machine.dir.join("mine");
    let whole = model();
    let [first, second] = split_in_two(&whole, &machine.dir.join("cut"));
    for (file, bytes) in [
        ("small-Q8_0.gguf", &whole[..]),
        ("user/repo/split-00001-of-00002.gguf", &first),
        ("user/repo/split-00002-of-00002.gguf", &second),
        ("alone-00001-of-00002.gguf", &first),
        ("half.gguf", &whole[..whole.len() / 2]),
        ("page.gguf", b"<html>log in</html>"),
        ("coming.gguf.part", &whole[..9]),
        ("hub.gguf.incomplete", &whole[..9]),
        ("notes.txt", b"mine"),
    ] {
        write(&mine.join(file), bytes);
    }
    machine
}

fn every_file(machine: &Machine) -> Vec<(String, Vec<u8>, SystemTime)> {
    let of = |file: String| {
        let path = machine.dir.join("mine").join(&file);
        let modified = path.metadata().unwrap().modified().unwrap();
        (file, fs::read(path).unwrap(), modified)
    };
    machine.files("mine").into_iter().map(of).collect()
}

fn a_file_of_the_folder_goes_by_its_name_in_every_command() {
    let machine = laid_out();
    let dir = machine.dir.join("mine");
    let dir = dir.to_str().unwrap();
    let by_path = machine.ids(&format!("{dir}/small-Q8_0.gguf"));
    let run = ["run", "--tokens", "1,266,278", "-n", "8", "--temp", "0", "--ids", "--workers", "1"];
    for name in
        ["small-Q8_0", "small-Q8_0.gguf", "split", "user/repo/split", "split-00001-of-00002.gguf"]
    {
        let out = machine.out(&[&run[..], &["--models-dir", dir, "-m", name]].concat());
        assert_eq!(out, by_path, "{name}");
    }
    let by_variable = |args: &[&str]| {
        let output = machine.command(args).env("BRIGADE_MODELS_DIR", dir).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(by_variable(&["inspect", "split"]).contains("general.architecture"));
    assert!(by_variable(&["plan", "-m", "split", "--workers", "2"]).contains("stage"));
    assert!(by_variable(&["tokenize", "-m", "small-Q8_0", "a"]).starts_with('['));
    let file = machine.dir.join("brigade.toml");
    let text = format!(
        "version = 1\n[run]\nmodels-dir = \"{dir}\"\n[[model]]\nname = \"mine\"\nmodel = \"split\"\n"
    );
    fs::write(&file, text).unwrap();
    let output = machine.command(&run).env("BRIGADE_CONFIG", &file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), by_path);
    let listed = machine.command(&["models"]).env("BRIGADE_CONFIG", &file).output().unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains("user/repo/split"));
    assert!(machine.hub.seen().is_empty(), "nobody was asked");
}

fn bad_files_are_listed_with_their_reason_and_not_used() {
    let machine = laid_out();
    let dir = machine.dir.join("mine");
    let dir = ["--models-dir", dir.to_str().unwrap()];
    let listed = machine.out(&[&["models", "--json"], &dir[..]].concat());
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let row = |name: &str| listed.iter().find(|row| row["name"] == name).unwrap();
    for name in ["small-Q8_0", "user/repo/split"] {
        assert!(
            row(name)["wrong"].is_null() && row(name)["store"] == "models-dir",
            "{}",
            row(name)
        );
    }
    let text = machine.out(&[&["models"], &dir[..]].concat());
    for (name, why) in [
        ("alone", "file 00002 of 00002 is not there"),
        ("half", "half.gguf"),
        ("page", "page.gguf"),
    ] {
        let wrong = row(name)["wrong"].as_str().unwrap();
        println!("{name}: {wrong}");
        assert!(wrong.contains(why), "{name}: {wrong}");
        assert!(text.contains(&format!("{name} cannot be used: ")), "{text}");
        let error = machine.error(&[&["run", "-m", name, "-n", "1", "a"], &dir[..]].concat());
        assert!(error.contains(why), "{name}: {error}");
    }
    assert_eq!(listed.len(), 5, "{listed:?}");
    for name in ["coming", "coming.gguf", "coming.gguf.part", "nothing"] {
        let error = machine.error(&[&["run", "-m", name, "-n", "1", "a"], &dir[..]].concat());
        assert!(
            error.contains("no model of that name") && error.contains("brigade models"),
            "{error}"
        );
    }
}

fn nothing_in_the_folder_is_ever_changed_or_deleted() {
    let machine = laid_out();
    let mine = machine.dir.join("mine");
    let dir = mine.to_str().unwrap();
    let before = every_file(&machine);
    let with = |args: &[&'static str]| [args, &["--models-dir", dir]].concat();
    machine.out(&with(&["run", "-m", "split", "-n", "1", "a", "--workers", "1"]));
    let error = machine.error(&with(&["rm", "small-Q8_0"]));
    assert!(error.contains("--models-dir") && error.contains("stays there"), "{error}");
    machine.out(&with(&["prune", "--unused-since", "0", "--yes"]));
    assert_eq!(every_file(&machine), before);
    // The same where brigade fetches into that folder too: only what it fetched goes.
    let own = |args: &[&'static str]| [with(args), vec!["--download-dir", dir]].concat();
    machine.out(&own(&["pull", NAME]));
    let listed = machine.out(&own(&["models"]));
    assert_eq!(listed.matches("hf:user/repo:Q8_0").count(), 1, "{listed}");
    assert!(!listed.contains("hf/user/repo"), "{listed}");
    machine.out(&own(&["prune", "--unused-since", "0", "--yes"]));
    assert_eq!(every_file(&machine), before);
    // The folder for fetched files, which prune may delete, cannot be the operator's folder.
    machine.out(&["pull", NAME]);
    let inner = machine.models().join("hf");
    let error = machine.error(&["models", "--models-dir", inner.to_str().unwrap()]);
    assert!(error.contains("part of its own"), "{error}");
}

/// A server of the models in the machine's folder.
fn serve(machine: &Machine, more: &[&str]) -> Server {
    let dir = machine.dir.join("mine");
    let args = ["serve", "--listen", "127.0.0.1:0", "--models-dir", dir.to_str().unwrap()];
    let own = ["--workers", "1", "--ctx", "512", "--memory", "1G"];
    let command = machine.command(&[&args[..], &own, more].concat());
    Server { process: Running::spawn(command, "brigade serve listening on ") }
}

fn ids(server: &Server) -> Vec<String> {
    let list: Value = serde_json::from_str(&get(&server.url("/v1/models")).unwrap().body).unwrap();
    let id = |model: &Value| model["id"].as_str().unwrap().to_owned();
    list["data"].as_array().unwrap().iter().map(id).collect()
}

fn a_folder_is_served_and_what_comes_into_it_without_a_restart() {
    let machine = laid_out();
    let server = serve(&machine, &[]);
    assert_eq!(ids(&server), ["small-Q8_0", "user/repo/split"], "and no demo model");
    assert!(server.process.children().is_empty(), "nothing is loaded");
    let ask = |model: &str| {
        let body = json!({ "model": model, "prompt": "a", "max_tokens": 4, "temperature": 0 });
        server.post("/v1/completions", &body)
    };
    let text = |model: &str| {
        let reply = ask(model);
        assert_eq!(reply.status, 200, "{model}: {}", reply.body);
        let answer: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(answer["model"], model);
        answer["choices"][0]["text"].clone()
    };
    let small = text("small-Q8_0");
    assert_eq!(text("user/repo/split"), small, "the same weights in two files");
    let damaged = ask("half");
    assert!(
        damaged.status == 503 && damaged.body.contains("its file is damaged"),
        "{}",
        damaged.body
    );
    assert_eq!(ask("nothing").status, 404);
    let listed = machine.out(&["cluster", "models"]);
    let row = listed.lines().find(|line| line.starts_with("half")).unwrap();
    assert!(row.contains("damaged") && row.contains("half.gguf"), "{listed}");
    // A new file is found by its name; a removed one is no longer there.
    write(&machine.dir.join("mine/new.gguf"), &model());
    let end = Instant::now() + PATIENCE;
    while ask("new").status != 200 {
        assert!(Instant::now() < end, "it is not found");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(text("new"), small);
    fs::remove_file(machine.dir.join("mine/new.gguf")).unwrap();
    while ids(&server).contains(&"new".to_owned()) {
        assert!(Instant::now() < end, "it is still there");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(ask("new").status, 404);
    drop(server);
    // A server that names its model serves that one alone.
    let server = serve(&machine, &["-m", "small-Q8_0"]);
    assert_eq!(ids(&server), ["small-Q8_0"]);
    drop(server);
    // Models of the file of options come first, and those of the folder behind them.
    let file = machine.dir.join("brigade.toml");
    fs::write(&file, "version = 1\n[[model]]\nname = \"demo\"\nload = \"demand\"\n").unwrap();
    let server = serve(&machine, &["--config", file.to_str().unwrap()]);
    assert_eq!(ids(&server), ["demo", "small-Q8_0", "user/repo/split"]);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_file_of_the_folder_goes_by_its_name_in_every_command,
        bad_files_are_listed_with_their_reason_and_not_used,
        nothing_in_the_folder_is_ever_changed_or_deleted,
        a_folder_is_served_and_what_comes_into_it_without_a_restart;
];
