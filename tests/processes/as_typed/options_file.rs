//! The configuration file: precedence of options, problems with their places, and servers and workers that run from
//! it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_tests::documents::root;
use brigade_tests::process::{Running, brigade, get, post, synth};
use brigade_tests::secure::Cluster;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);
const SERVING: &str = "brigade serve listening on ";
const READY: &str = "brigade worker ready on ";
/// Variables with options, which tests set: the program has none of them from outside.
const VARIABLES: [&str; 5] =
    ["BRIGADE_CONFIG", "BRIGADE_DATA_DIR", "BRIGADE_MODEL", "BRIGADE_SPEED", "BRIGADE_TOKEN"];

/// A folder of a test, which ends with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("brigade-options-{}-{n}", std::process::id()));
        // Remains of a test that was killed.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// Writes a file, and the folders that it is in.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(brigade());
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.args(args).envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

fn output(args: &[&str], variables: &[(&str, &str)]) -> Output {
    command(args, variables).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The value of one option of a command line in `config show`, and its source.
fn shown(line: &[&str], key: &str, variables: &[(&str, &str)], file: &Path) -> (Value, String) {
    let args = [&["config", "show", "--json", "--config", file.to_str().unwrap()], line].concat();
    let output = output(&args, variables);
    assert!(output.status.success(), "{}", errors(&output));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let options = all[line[0]].as_array().unwrap();
    let one = options.iter().find(|option| option["key"] == key).unwrap();
    (one["value"].clone(), one["from"].as_str().unwrap().to_owned())
}

fn a_flag_counts_before_a_variable_and_that_before_the_file() {
    let scratch = Scratch::new();
    let text = "version = 1\n[serve]\nmodel = \"file.gguf\"\ndata-dir = \"/file\"\nctx = 64\n\
                workers = 3\nallow-host = [\"a\", \"b\"]\n[worker]\njoin = \"10.0.0.1:1\"\nspeed = \"1,1\"\n";
    let file = scratch.write("brigade.toml", text);
    let at = |line: u32| format!("{}:{line}", file.display());
    let serve = |more: &[&str], key: &str, variables: &[(&str, &str)]| {
        shown(&[&["serve"], more].concat(), key, variables, &file)
    };
    let model = ("BRIGADE_MODEL", "variable.gguf");
    assert_eq!(serve(&[], "model", &[]), (json!("file.gguf"), at(3)));
    let by_variable = serve(&[], "model", &[model]);
    assert_eq!(
        by_variable,
        (json!("variable.gguf"), "environment variable BRIGADE_MODEL".to_owned())
    );
    let by_flag = serve(&["-m", "flag.gguf"], "model", &[model]);
    assert_eq!(by_flag, (json!("flag.gguf"), "command line".to_owned()));
    let data = ("BRIGADE_DATA_DIR", "/variable");
    assert_eq!(serve(&[], "data-dir", &[]), (json!("/file"), at(4)));
    assert_eq!(serve(&[], "data-dir", &[data]).0, "/variable");
    assert_eq!(serve(&["--data-dir", "/flag"], "data-dir", &[data]).0, "/flag");
    assert_eq!(serve(&[], "ctx", &[]), (json!(64), at(5)));
    assert_eq!(serve(&["--ctx-size", "9"], "ctx", &[]), (json!(9), "command line".to_owned()));
    assert_eq!(serve(&[], "kv-type", &[]), (json!("f16"), "default".to_owned()));
    // A flag that excludes what the file has takes its place, and a list of flags the whole list.
    assert_eq!(serve(&["--worker", "b:1"], "workers", &[]), (Value::Null, "not set".to_owned()));
    assert_eq!(serve(&["--allow-host", "c"], "allow-host", &[]).0, json!(["c"]));
    let worker = |more: &[&str], variables: &[(&str, &str)]| {
        shown(&[&["worker"], more].concat(), "speed", variables, &file)
    };
    let speed = ("BRIGADE_SPEED", "2,2");
    assert_eq!(worker(&[], &[]), (json!("1,1"), at(10)));
    assert_eq!(worker(&[], &[speed]).0, "2,2");
    assert_eq!(worker(&["--speed", "3,3"], &[speed]).0, "3,3");
    // The file itself may be named by a variable; `none` is no file.
    let named =
        output(&["config", "show", "worker"], &[("BRIGADE_CONFIG", file.to_str().unwrap())]);
    assert!(String::from_utf8_lossy(&named.stdout).contains("join = \"10.0.0.1:1\""));
    let none = shown(&["serve"], "ctx", &[], Path::new("none"));
    assert_eq!(none, (Value::Null, "not set".to_owned()));
}

fn a_switch_of_the_file_is_turned_off_by_a_flag_or_a_variable() {
    let scratch = Scratch::new();
    let text = "version = 1\n[serve]\noffline = true\npush = true\nfast-math = true\n";
    let file = scratch.write("brigade.toml", text);
    let serve = |more: &[&str], key: &str, variables: &[(&str, &str)]| {
        shown(&[&["serve"], more].concat(), key, variables, &file)
    };
    assert_eq!(serve(&[], "push", &[]), (json!(true), format!("{}:4", file.display())));
    let off = (json!(false), "command line".to_owned());
    assert_eq!(serve(&["--push=false"], "push", &[]), off);
    assert_eq!(serve(&["--offline=false"], "offline", &[("BRIGADE_OFFLINE", "1")]), off);
    let variable = (json!(false), "environment variable BRIGADE_OFFLINE".to_owned());
    assert_eq!(serve(&[], "offline", &[("BRIGADE_OFFLINE", "0")]), variable);
    // A switch that is turned off excludes nothing.
    assert_eq!(serve(&["--fast-math=false", "--no-coopmat"], "no-coopmat", &[]).0, json!(true));
    let refused = output(&["serve", "--push=maybe"], &[]);
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
}

/// Faulty files, each with the line of the problem, and with words that its message must have.
const WRONG: [(&str, &str, usize, &str); 20] = [
    ("a misspelt option", "version = 1\n[serve]\nlisen = \"a:1\"\n", 3, "did you mean \"listen\""),
    ("an underscore", "version = 1\n[serve]\nmax_seqs = 4\n", 3, "did you mean \"max-seqs\""),
    ("another program's name", "version = 1\n[serve]\nport = 80\n", 3, "--listen HOST:PORT"),
    ("an alias", "version = 1\n[serve]\nctx-size = 80\n", 3, "it is called \"ctx\" here"),
    ("an option of another section", "version = 1\n[serve]\njoin = \"a:1\"\n", 3, "[worker] has"),
    ("an option outside of sections", "version = 1\nctx = 4\n", 2, "[serve], [run]"),
    ("a misspelt section", "version = 1\n\n[sevre]\nctx = 4\n", 3, "did you mean \"serve\""),
    ("a word for a number", "version = 1\n[run]\nctx = \"many\"\n", 3, "ctx"),
    ("a number beyond its range", "version = 1\n[serve]\nubatch = 100000\n", 3, "1..=8192"),
    ("none of the choices", "version = 1\n[serve]\nkv-type = \"f61\"\n", 3, "f32, f16, q8_0"),
    ("a text for a switch", "version = 1\n[serve]\nno-auth = \"yes\"\n", 3, "true or false"),
    ("a list for one value", "version = 1\n[serve]\nctx = [1, 2]\n", 3, "not a list"),
    ("a size without a unit that there is", "version = 1\n[run]\nmemory = \"12Q\"\n", 3, "12Q"),
    ("a time that is none", "version = 1\n[serve]\n\nslow-after = \"soon\"\n", 4, "soon"),
    (
        "two that exclude each other",
        "version = 1\n[run]\nworkers = 2\nworker = [\"a:1\"]\n",
        4,
        "--workers",
    ),
    ("one that needs another", "version = 1\n[serve]\nctx = 9\nexpect = 2\n", 4, "--control"),
    ("a text without its end", "version = 1\n[serve]\nlisten = \"a:1\nctx = 4\n", 3, "string"),
    ("no version", "[serve]\nctx = 4\n", 1, "version = 1"),
    ("a model without a name", "version = 1\n[[model]]\nctx = 4\n", 2, "name"),
    (
        "an option of the server at a model",
        "version = 1\n[[model]]\nname = \"a\"\nlisten = \"a:1\"\n",
        4,
        "[serve]",
    ),
];

fn twenty_wrong_files_are_found_with_their_lines() {
    let scratch = Scratch::new();
    let mut missed = Vec::new();
    for (what, text, line, says) in WRONG {
        let file = scratch.write("wrong.toml", text);
        let output = output(&["config", "check", "--config", file.to_str().unwrap()], &[]);
        let said = errors(&output);
        let place = format!("{}:{line}: ", file.display());
        let first = said.lines().find(|said| said.starts_with(&place)).unwrap_or_default();
        println!("{what}: {}", first.replace(&*file.to_string_lossy(), "FILE"));
        if output.status.success() || !first.contains(says) {
            missed.push(format!("{what}: {said}"));
        }
    }
    println!(
        "config check: {} of {} found with their lines",
        WRONG.len() - missed.len(),
        WRONG.len()
    );
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn all_that_is_wrong_is_said_at_once_and_nothing_starts() {
    let scratch = Scratch::new();
    let file = scratch
        .write("b.toml", "version = 1\n[serve]\nlisen = 1\nctx = \"x\"\n[run]\ntemp = true\n");
    scratch.write("b.d/a.toml", "[worker]\nthreads = -1\n");
    let file = file.to_str().unwrap();
    let whole = output(&["config", "check", "--json", "--config", file], &[]);
    let json: Value = serde_json::from_slice(&whole.stdout).unwrap();
    let of = |problem: &Value| {
        (problem["key"].as_str().unwrap().to_owned(), problem["at"]["line"].clone())
    };
    let found: Vec<_> = json["wrong"].as_array().unwrap().iter().map(of).collect();
    let wanted = [("threads", 2), ("lisen", 3), ("ctx", 4), ("temp", 6)];
    assert_eq!(found, wanted.map(|(key, line)| (key.to_owned(), json!(line))));
    // A server says the same, and does not start.
    let refused = output(&["serve", "--config", file], &[]);
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
    assert!(errors(&refused).contains("b.toml:3: lisen"), "{}", errors(&refused));
    let missing = output(&["serve", "--config", &scratch.path("nothing.toml")], &[]);
    assert!(errors(&missing).contains("nothing.toml: No such file"), "{}", errors(&missing));
}

fn a_newer_version_is_refused_by_name() {
    let scratch = Scratch::new();
    let file = scratch.write("b.toml", "\nversion = 2\n[serve]\nwhat-is-new = 1\n");
    for args in [["config", "check"], ["serve", "-mnone"]] {
        let said =
            errors(&output(&[&args[..], &["--config", file.to_str().unwrap()]].concat(), &[]));
        assert!(said.contains("b.toml:2: version: this file has version 2"), "{said}");
        assert!(said.contains("reads version 1") && !said.contains("what-is-new"), "{said}");
    }
}

fn drop_ins_count_in_the_order_of_their_names() {
    let scratch = Scratch::new();
    let file = scratch
        .write("b.toml", "version = 1\n[serve]\nctx = 1\nmax-seqs = 1\nkeep = 1\nworkers = 2\n");
    let last = scratch.write("b.d/20-last.toml", "[serve]\nctx = 3\nworker = [\"a:1\"]\n");
    let first = scratch.write("b.d/10-first.toml", "[serve]\nctx = 2\nmax-seqs = 2\n");
    scratch.write("b.d/30-no.conf", "[serve]\nctx = 4\n");
    let of = |key: &str| shown(&["serve"], key, &[], &file);
    assert_eq!(of("ctx"), (json!(3), format!("{}:2", last.display())));
    assert_eq!(of("max-seqs"), (json!(2), format!("{}:3", first.display())));
    assert_eq!(of("keep"), (json!("1"), format!("{}:5", file.display())));
    assert_eq!(of("workers").0, Value::Null, "a later file names other workers");
    // They are enough without the file that they lie beside.
    std::fs::remove_file(&file).unwrap();
    scratch.write("b.d/00-version.toml", "version = 1\n");
    assert_eq!(of("ctx").0, 3);
}

fn secrets_are_not_shown() {
    let scratch = Scratch::new();
    let secret = "brg1_0123456789abcdef";
    let text = format!("version = 1\n[worker]\njoin = \"127.0.0.1:1\"\ntoken = \"{secret}\"\n");
    let file = scratch.write("b.toml", &text);
    let file = file.to_str().unwrap();
    for args in [
        &["config", "show", "--config", file][..],
        &["config", "show", "--json", "--config", file],
        &["config", "show", "--config", file, "worker"],
        &["config", "check", "--config", file],
        // An error about the options that it stands among.
        &["worker", "--config", file, "--token-file", "x", "--name", ""],
    ] {
        let output = output(args, &[]);
        let said = errors(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains(&secret[5..]), "{args:?}: {said}");
        if args[1] == "check" {
            assert!(
                said.contains("b.toml:4: token: every user of this machine can read"),
                "{said}"
            );
        }
    }
    let (value, from) = shown(&["worker"], "token", &[], Path::new(file));
    assert_eq!((value, from), (json!("(secret)"), format!("{file}:4")));
}

fn what_init_writes_says_nothing_and_is_not_written_twice() {
    let scratch = Scratch::new();
    let file = scratch.path("b.toml");
    let init = || output(&["config", "init", "--config", &file], &[]);
    assert!(init().status.success());
    let check = output(&["config", "check", "--config", &file], &[]);
    assert!(check.status.success(), "{}", errors(&check));
    let show = |file: &str| output(&["config", "show", "--config", file], &[]).stdout;
    assert_eq!(show(&file), show("none"), "it changes nothing");
    let again = init();
    assert!(errors(&again).contains("--force replaces it"), "{}", errors(&again));
    // With every default written out it says the same.
    let text = std::fs::read_to_string(&file).unwrap();
    let defaults = shown_defaults(&show("none"));
    let mut section = String::new();
    let with_defaults: Vec<String> = text
        .lines()
        .map(|line| {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']).to_owned();
            }
            let key = line.strip_prefix('#').and_then(|rest| rest.split(" = ").next());
            let is_default =
                key.is_some_and(|key| defaults.contains(&(section.clone(), key.to_owned())));
            if is_default { line[1..].to_owned() } else { line.to_owned() }
        })
        .collect();
    let written = scratch.write("all.toml", &with_defaults.join("\n"));
    let written = written.to_str().unwrap();
    let values = |shown: Vec<u8>| -> Vec<String> {
        let text = String::from_utf8(shown).unwrap();
        text.lines().map(|line| line.split(" # ").next().unwrap().trim_end().to_owned()).collect()
    };
    let check = output(&["config", "check", "--config", written], &[]);
    println!("{}", String::from_utf8_lossy(&check.stdout));
    assert_eq!(values(show(written)), values(show("none")), "{}", errors(&check));
}

/// Sections and keys of what `config show` says to be defaults, and that need nothing else.
fn shown_defaults(shown: &[u8]) -> Vec<(String, String)> {
    let (mut section, mut found) = (String::new(), Vec::new());
    for line in std::str::from_utf8(shown).unwrap().lines() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
        }
        let key = line.strip_suffix("# default").and_then(|rest| rest.split(" = ").next());
        found.extend(
            key.filter(|key| *key != "expect").map(|key| (section.clone(), key.to_owned())),
        );
    }
    found
}

/// Whether a server has a line.
fn is_up(server: &Running) -> bool {
    get(&format!("{}/health", server.admin())).is_ok_and(|reply| reply.status == 200)
}

/// The answer of a server to a request for `model`.
fn asked(server: &Running, model: &str) -> (u16, Value) {
    let begin = Instant::now();
    while !is_up(server) {
        assert!(begin.elapsed() < PATIENCE, "the line does not come up");
        std::thread::sleep(Duration::from_millis(50));
    }
    let body = json!({"model": model, "prompt": "Once", "max_tokens": 3, "temperature": 0});
    let reply = post(&format!("{}/v1/completions", server.ready), &body.to_string()).unwrap();
    (reply.status, serde_json::from_str(&reply.body).unwrap())
}

fn one_file_starts_the_server_and_the_workers_that_join_it() {
    let (scratch, cluster) = (Scratch::new(), Cluster::new());
    let model = synth("llama", "tiny");
    let text = format!(
        "version = 1\n\n[serve]\nlisten = \"127.0.0.1:0\"\nadmin-listen = \"127.0.0.1:0\"\ncontrol = \"{control}\"\n\
         expect = 2\ndata-dir = \"{desk}\"\n\n[[model]]\nname = \"small\"\nmodel = \"{model}\"\nctx = 128\n\n[worker]\n\
         join = \"{control}\"\nlisten = \"127.0.0.1:0\"\nthreads = 1\ntoken-file = \"$CREDENTIALS_DIRECTORY/token\"\n",
        control = cluster.control,
        desk = cluster.data("desk"),
        model = model.display(),
    );
    let file = scratch.write("brigade.toml", &text);
    let check = output(&["config", "check", "--config", file.to_str().unwrap()], &[]);
    assert!(check.status.success(), "{}", errors(&check));
    let config = ("BRIGADE_CONFIG", file.to_str().unwrap());
    let server = Running::spawn(command(&["serve"], &[config]), SERVING);
    scratch.write("credentials/token", &cluster.join_line(&["--uses", "2"]));
    let credentials = ("CREDENTIALS_DIRECTORY", &*scratch.path("credentials"));
    // Outside of a service the folder is not set.
    let refused = output(&["worker"], &[config]);
    assert!(errors(&refused).contains("$CREDENTIALS_DIRECTORY is not set"), "{}", errors(&refused));
    let worker = |name: &str| {
        // The machines differ in their data folders.
        let data = cluster.data(name);
        let variables = [config, credentials, ("BRIGADE_DATA_DIR", &*data)];
        Running::spawn(command(&["worker", "--name", name], &variables), READY)
    };
    let workers = [worker("lab"), worker("attic")];
    let (status, answer) = asked(&server, "small");
    assert_eq!((status, &answer["model"]), (200, &json!("small")), "{answer}");
    drop((server, workers));
    std::fs::remove_file(model).unwrap();
}

fn a_model_of_several_is_chosen_by_its_name() {
    let scratch = Scratch::new();
    let model = synth("llama", "tiny");
    // This machine is a worker for another server too: local workers have nothing to do with that.
    let text = format!(
        "version = 1\n[serve]\nlisten = \"127.0.0.1:0\"\nadmin-listen = \"127.0.0.1:0\"\nworkers = 2\n\
         [worker]\njoin = \"127.0.0.1:1\"\nname = \"other\"\nmemory = \"1\"\n\
         [[model]]\nname = \"big\"\nmodel = \"/nowhere/big.gguf\"\n\
         [[model]]\nname = \"small\"\nmodel = \"{}\"\nworkers = 1\n",
        model.display()
    );
    let file = scratch.write("brigade.toml", &text);
    let config = ["--config", file.to_str().unwrap()];
    // `run` has one model, and `serve` all of them.
    let refused = output(&[&["run"], &config[..]].concat(), &[]);
    assert!(errors(&refused).contains("there are 2 models"), "{}", errors(&refused));
    assert!(errors(&refused).contains("big, small"), "{}", errors(&refused));
    let refused = output(&[&["serve"], &config[..]].concat(), &[]);
    assert!(errors(&refused).contains("/nowhere/big.gguf"), "{}", errors(&refused));
    let refused = output(&[&["serve", "-m", "big"], &config[..]].concat(), &[]);
    assert!(errors(&refused).contains("/nowhere/big.gguf"), "{}", errors(&refused));
    let by_flag = [&["serve", "-m", "small"], &config[..]].concat();
    let server = Running::spawn(command(&by_flag, &[]), SERVING);
    assert_eq!(asked(&server, "small").0, 200);
    assert_eq!(server.children().len(), 1, "the model's own number of workers");
    drop(server);
    let by_name = [&["run", "Once", "-n", "3", "--ids"], &config[..]].concat();
    let run = output(&by_name, &[("BRIGADE_MODEL", "small")]);
    assert!(run.status.success(), "{}", errors(&run));
    std::fs::remove_file(model).unwrap();
}

fn files_for_operators_have_nothing_wrong_in_them() {
    for name in ["deploy/systemd/brigade.toml", "deploy/compose.toml"] {
        let file = root().join(name);
        let check = output(&["config", "check", "--config", file.to_str().unwrap()], &[]);
        assert!(check.status.success(), "{name}: {}", errors(&check));
    }
}

fn the_schema_is_for_the_same_options() {
    let schema = output(&["config", "schema"], &[]);
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    for command in ["serve", "run", "worker"] {
        let help = output(&[command, "--help"], &[]);
        let help = String::from_utf8(help.stdout).unwrap();
        let of_help = help.lines().filter_map(|line| line.trim_start().strip_prefix('-'));
        let long = of_help.filter_map(|line| line.split("--").nth(1).or(line.strip_prefix('-')));
        let mut options: Vec<&str> =
            long.filter_map(|line| line.split([' ', ',']).next()).collect();
        options.retain(|option| !["help", "version", "config"].contains(option));
        options.sort_unstable();
        let mut keys: Vec<&str> = schema["properties"][command]["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, options, "{command}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        one_file_starts_the_server_and_the_workers_that_join_it,
        a_model_of_several_is_chosen_by_its_name,
        a_flag_counts_before_a_variable_and_that_before_the_file,
        a_switch_of_the_file_is_turned_off_by_a_flag_or_a_variable,
        twenty_wrong_files_are_found_with_their_lines,
        all_that_is_wrong_is_said_at_once_and_nothing_starts,
        a_newer_version_is_refused_by_name,
        drop_ins_count_in_the_order_of_their_names,
        secrets_are_not_shown,
        what_init_writes_says_nothing_and_is_not_written_twice,
        files_for_operators_have_nothing_wrong_in_them,
        the_schema_is_for_the_same_options;
];
