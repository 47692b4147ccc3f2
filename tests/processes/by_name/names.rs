//! Models by name: fetched once, run like the file itself, and found where other programs have put them.

use std::path::Path;

use brigade_gguf::Gguf;
use brigade_tests::hub::{File, Mood, TOKEN, sha256};
use brigade_tests::named::{Machine, NAME, PATH, model};

fn a_model_is_fetched_once_and_gives_the_same_as_its_file() {
    let machine = Machine::new();
    let file = machine.dir.join("same.gguf");
    std::fs::write(&file, model()).unwrap();
    let by_path = machine.ids(file.to_str().unwrap());
    assert_eq!(machine.ids(NAME), by_path);
    let seen = machine.hub.seen();
    let size = model().len() as u64;
    assert_eq!(machine.hub.sent(), size, "each byte once");
    // The token is for the hub alone.
    let bearer = format!("Bearer {TOKEN}");
    for request in &seen {
        let token = request.head.get("authorization");
        assert_eq!(token, (request.host == "hub").then_some(&bearer), "{request:?}");
    }
    assert!(seen.iter().any(|request| request.host == "second"));
    // From now on no server is asked, whichever way the name is written.
    for name in [NAME, "hf.co/user/repo:q8_0"] {
        assert_eq!(machine.ids(name), by_path);
        assert!(machine.hub.seen().is_empty(), "{name}");
    }
    assert!(machine.out(&["tokenize", "-m", NAME, "--offline", "a"]).starts_with('['));
    assert!(machine.out(&["inspect", NAME, "--offline"]).contains("general.architecture"));
    assert!(machine.out(&["plan", "-hf", "user/repo:Q8_0", "--workers", "2"]).contains("stage"));
    assert!(machine.hub.seen().is_empty());
    // Nothing tells the signed address.
    let lock = std::fs::read_to_string(machine.dir.join("data/models.lock")).unwrap();
    assert!(lock.contains(&sha256(&model())) && lock.contains(&"1".repeat(40)));
    assert!(!lock.contains("a-signature") && !lock.contains(TOKEN));
}

fn a_file_of_options_names_models_by_name() {
    let machine = Machine::new();
    let by_name = machine.ids(NAME);
    let file = machine.dir.join("brigade.toml");
    let text = format!(
        "version = 1\n[[model]]\nname = \"small\"\nmodel = \"{NAME}\"\nworkers = 1\n\
         [run]\noffline = true\ntemp = 0\n"
    );
    std::fs::write(&file, text).unwrap();
    // Whether it is chosen by the file's name for it or because it is the only one.
    for model in [&["-m", "small"][..], &[]] {
        let args = [&["run"], model, &["--tokens", "1,266,278", "-n", "8", "--ids"]].concat();
        let output = machine.command(&args).env("BRIGADE_CONFIG", &file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), by_name, "{model:?}");
    }
}

fn pull_takes_a_new_state_and_keeps_the_name() {
    let machine = Machine::new();
    let first = machine.out(&["pull", NAME]);
    assert!(
        first.contains("commit 11111111, licence apache-2.0") && !first.contains("as before"),
        "{first}"
    );
    assert!(machine.out(&["pull", NAME]).contains("as before"));
    let mut bytes = model();
    *bytes.last_mut().unwrap() ^= 1;
    machine.hub.put(PATH, File::new(bytes));
    machine.hub.commit(&"2".repeat(40));
    machine.hub.seen();
    // A name means what it meant until it is pulled again.
    let before = machine.ids(NAME);
    assert!(machine.hub.seen().is_empty() && !before.is_empty());
    let second = machine.out(&["pull", NAME]);
    assert!(second.contains("commit 22222222") && !second.contains("as before"), "{second}");
    assert_eq!(machine.files("data/models").len(), 2, "both states are there until one is pruned");
}

fn without_a_quantisation_it_is_the_usual_one() {
    let small = model();
    let machine = Machine::with(&[
        ("a-F16.gguf", File::new(vec![0; 9])),
        ("b-Q4_K_M.gguf", File::new(small)),
        ("mmproj-F16.gguf", File::new(vec![0; 9])),
    ]);
    let out = machine.out(&["pull", "hf:user/repo", "--json"]);
    assert!(out.contains("\"hf:user/repo:Q4_K_M\""), "{out}");
    machine.hub.seen();
    machine.ids("hf:user/repo");
    assert!(machine.hub.seen().is_empty(), "the lock knows what the name without one means");
}

fn two_pulls_of_one_file_are_one() {
    let machine = Machine::new();
    let pulls: Vec<_> = (0..3)
        .map(|_| {
            let mut command = machine.command(&["pull", NAME]);
            command
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for pull in pulls {
        let output = pull.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(machine.hub.sent(), model().len() as u64);
}

fn broken_connections_go_on_where_they_broke() {
    let machine = Machine::new();
    machine.hub.mood(Mood::Cut(60_000));
    machine.out(&["pull", NAME]);
    assert_eq!(machine.hub.sent(), model().len() as u64, "no byte twice");
    let seen = machine.hub.seen();
    let second: Vec<_> = seen.iter().filter(|request| request.host == "second").collect();
    assert!(
        second.len() > 2
            && second[1..]
                .iter()
                .all(|r| r.head.contains_key("if-range") && r.head["range"].starts_with("bytes="))
    );
    machine.ids(NAME);
}

/// A model in two files, the first of which has no tensors, as large ones are uploaded.
pub fn split_in_two(bytes: &[u8], folder: &Path) -> [Vec<u8>; 2] {
    let whole = folder.join("whole.gguf");
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(&whole, bytes).unwrap();
    let gguf = Gguf::open(&whole).unwrap();
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let first_tensor = text(&gguf.tensors()[0].name);
    let directory =
        bytes.windows(first_tensor.len()).position(|part| part == first_tensor).unwrap();
    let n_tensors = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    let n_keys = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let data = gguf.tensors().iter().map(|tensor| tensor.offset).min().unwrap() as usize;
    let short = |key: &str, value: u16| {
        [&text(key)[..], &2u32.to_le_bytes(), &value.to_le_bytes()].concat()
    };
    let count = |value: u64| {
        [&text("split.tensors.count")[..], &5u32.to_le_bytes(), &(value as i32).to_le_bytes()]
            .concat()
    };
    let head = |tensors: u64, keys: u64| {
        [b"GGUF", &3u32.to_le_bytes()[..], &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
    };
    let of_file =
        |no: u16| [short("split.no", no), short("split.count", 2), count(n_tensors)].concat();
    let padded = |mut bytes: Vec<u8>| {
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes
    };
    let first = padded([&head(0, n_keys + 3)[..], &bytes[24..directory], &of_file(0)].concat());
    let names = &bytes[directory..end_of_directory(bytes, directory, n_tensors)];
    let second = padded([&head(n_tensors, 3)[..], &of_file(1), names].concat());
    [first, [&second[..], &bytes[data..]].concat()]
}

/// Where the list of tensors ends that begins at `at`.
fn end_of_directory(bytes: &[u8], mut at: usize, n_tensors: u64) -> usize {
    let number = |at: usize, n: usize| {
        let mut le = [0; 8];
        le[..n].copy_from_slice(&bytes[at..at + n]);
        u64::from_le_bytes(le) as usize
    };
    for _ in 0..n_tensors {
        at += 8 + number(at, 8);
        // The number of dimensions, each of them, the type and the offset.
        at += 4 + 8 * number(at, 4) + 4 + 8;
    }
    at
}

fn split_models_in_folders_are_one_model() {
    let whole = model();
    let plain = Machine::new();
    let [first, second] = split_in_two(&whole, &plain.dir);
    let machine = Machine::with(&[
        ("UD-Q8_0/big-UD-Q8_0-00001-of-00002.gguf", File::new(first)),
        ("UD-Q8_0/big-UD-Q8_0-00002-of-00002.gguf", File::new(second)),
    ]);
    assert_eq!(machine.ids("hf:user/repo:Q8_0"), plain.ids(NAME));
    machine.hub.seen();
    machine.ids("hf:user/repo:UD-Q8_0");
    machine.ids("hf:user/repo:Q8_0");
    assert!(machine.hub.seen().is_empty());
}

fn what_needs_no_weights_fetches_none() {
    let whole = model();
    let plain = Machine::new();
    let [first, second] = split_in_two(&whole, &plain.dir);
    let file = plain.dir.join("whole.gguf");
    let parts = [
        ("a/b-00001-of-00002.gguf", File::new(first)),
        ("a/b-00002-of-00002.gguf", File::new(second)),
    ];
    for (machine, name) in [(Machine::new(), NAME), (Machine::with(&parts), "hf:user/repo")] {
        for args in [
            vec!["inspect", "--json"],
            vec!["plan", "--workers", "2", "--json", "-m"],
            vec!["tokenize", "hello", "-m"],
        ] {
            let of = |machine: &Machine, model: &str| machine.out(&[&args[..], &[model]].concat());
            let (by_name, by_path) = (of(&machine, name), of(&plain, file.to_str().unwrap()));
            if args[0] == "tokenize" {
                assert_eq!(by_name, by_path);
            }
            if args[0] == "inspect" {
                let [a, b] = [by_name, by_path]
                    .map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap());
                assert_eq!((&a["layers"], &a["tensor_types"]), (&b["layers"], &b["tensor_types"]));
                assert!(
                    a["missing_data"].is_null()
                        && a["notes"][0].as_str().unwrap().contains("its weights were not fetched")
                );
            }
            let sent = machine.hub.sent();
            assert!(sent < whole.len() as u64 / 2, "{args:?}: {sent} bytes");
        }
        assert!(!machine.dir.join("data/models.lock").exists());
    }
}

fn addresses_and_registries_are_names_too() {
    let machine = Machine::new();
    let by_name = machine.ids(NAME);
    let address = format!("{}/files/{PATH}?key=a-secret", machine.hub.url);
    assert_eq!(machine.ids(&address), by_name);
    let host = machine.hub.url.strip_prefix("http://").unwrap();
    assert_eq!(machine.ids(&format!("ollama:http://{host}/library/x:1b")), by_name);
    machine.hub.seen();
    assert_eq!(machine.ids(&address), by_name);
    assert!(machine.hub.seen().is_empty());
    let lock = std::fs::read_to_string(machine.dir.join("data/models.lock")).unwrap();
    assert!(!lock.contains("a-secret") && lock.contains("/files/"), "{lock}");
}

/// The time of a start by name on a warm cache, beside the same file by path. Prints pairs.
fn a_name_starts_as_fast_as_a_path() {
    const PAIRS: usize = 20;
    let machine = Machine::with(&[]);
    let made = machine.dir.join("large.gguf");
    let path = made.to_str().unwrap();
    machine.out(&["synth", "--arch", "llama", "--size", "0.6b", "--quant", "Q8_0", "--out", path]);
    machine.hub.put(PATH, File::new(std::fs::read(&made).unwrap()));
    machine.out(&["pull", NAME]);
    machine.hub.seen();
    // The same file: one that was written at once is read faster from memory than one that came in pieces.
    let fetched = machine.models().join(&machine.files("data/models")[0]);
    let path = fetched.to_str().unwrap();
    let started = |model: &str| {
        let begin = std::time::Instant::now();
        machine.out(&[
            "run",
            "-m",
            model,
            "--tokens",
            "1,2,3",
            "-n",
            "1",
            "--ids",
            "--workers",
            "1",
        ]);
        begin.elapsed().as_secs_f64() * 1e3
    };
    let (mut by_name, mut by_path) = (Vec::new(), Vec::new());
    // The first of each is not counted: it reads the file.
    for pair in 0..=PAIRS {
        // The order alternates, so that other load favours neither.
        let (a, b) = match pair % 2 {
            0 => (started(NAME), started(path)),
            _ => {
                let b = started(path);
                (started(NAME), b)
            }
        };
        if pair > 0 {
            println!("pair {pair}: by name {a:.0} ms, by path {b:.0} ms");
            by_name.push(a);
            by_path.push(b);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let faster = by_name.iter().zip(&by_path).filter(|(a, b)| a <= b).count();
    println!(
        "{PAIRS} pairs: median by name {:.0} ms, by path {:.0} ms; by name was faster in {faster}",
        median(&mut by_name),
        median(&mut by_path)
    );
    assert!(machine.hub.seen().is_empty(), "nobody was asked");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_model_is_fetched_once_and_gives_the_same_as_its_file,
        a_file_of_options_names_models_by_name,
        pull_takes_a_new_state_and_keeps_the_name,
        without_a_quantisation_it_is_the_usual_one,
        two_pulls_of_one_file_are_one,
        broken_connections_go_on_where_they_broke,
        split_models_in_folders_are_one_model,
        what_needs_no_weights_fetches_none,
        addresses_and_registries_are_names_too;
    alone:
        a_name_starts_as_fast_as_a_path
            ignored("a minute: prints how long a model takes to start by name and by path, in pairs");
];
