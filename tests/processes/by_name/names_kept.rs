//! Files of other programs are used in place and never deleted. Files that brigade has fetched are deleted when no
//! process uses them, and nothing else is.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use brigade_tests::hub::{File, Mood, sha256};
use brigade_tests::named::{Machine, NAME, PATH, model};
use brigade_tests::process::Running;

/// Hugging Face's cache, as its own programs lay it out.
fn hugging_face(machine: &Machine, commit: &str) -> PathBuf {
    let repo = machine.dir.join("hf/hub/models--user--repo");
    let (blob, link) =
        (repo.join("blobs").join(sha256(&model())), repo.join("snapshots").join(commit).join(PATH));
    for folder in [blob.parent().unwrap(), link.parent().unwrap(), &repo.join("refs")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(&blob, model()).unwrap();
    std::fs::write(repo.join("refs/main"), commit).unwrap();
    symlink(Path::new("../../../blobs").join(sha256(&model())), &link).unwrap();
    link
}

/// llama.cpp's cache: one folder, paths with underscores.
fn llama_cpp(machine: &Machine) -> PathBuf {
    let file = machine.dir.join("llama").join(format!("user_repo_{}", PATH.replace('/', "_")));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, model()).unwrap();
    file
}

/// Ollama's store: manifests, and blobs by their hash.
fn ollama(machine: &Machine) -> PathBuf {
    let store = machine.dir.join("ollama");
    let digest = sha256(&model());
    let manifest = store.join("manifests/registry.ollama.ai/library/small/1b");
    let blob = store.join(format!("blobs/sha256-{digest}"));
    for file in [&manifest, &blob] {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    }
    let layers = serde_json::json!([
        { "mediaType": "application/vnd.ollama.image.template", "digest": "sha256:0", "size": 1 },
        { "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{digest}"), "size": model().len() },
    ]);
    std::fs::write(
        &manifest,
        serde_json::json!({ "schemaVersion": 2, "layers": layers }).to_string(),
    )
    .unwrap();
    std::fs::write(&blob, model()).unwrap();
    blob
}

/// All files of a machine's other programs.
fn theirs(machine: &Machine) -> Vec<Vec<String>> {
    ["hf", "llama", "ollama"].iter().map(|folder| machine.files(folder)).collect()
}

fn other_programs_files_are_used_where_they_lie_and_stay() {
    let plain = Machine::new();
    let by_name = plain.ids(NAME);
    for (lay_out, name, store) in [
        (
            &(|m: &Machine| hugging_face(m, &"1".repeat(40))) as &dyn Fn(&Machine) -> PathBuf,
            NAME,
            "Hugging Face",
        ),
        (&llama_cpp, NAME, "llama.cpp"),
        (&ollama, "ollama:small:1b", "Ollama"),
    ] {
        for offline in [true, false] {
            let machine = Machine::new();
            let path = lay_out(&machine);
            let before = theirs(&machine);
            let listed = machine.out(&["models"]);
            assert!(
                listed.contains(store) && listed.contains("Q8_0") | listed.contains("1b"),
                "{listed}"
            );
            let mut args = vec![
                "run",
                "-m",
                name,
                "--tokens",
                "1,266,278",
                "-n",
                "8",
                "--temp",
                "0",
                "--ids",
                "--workers",
                "1",
            ];
            args.extend(offline.then_some("--offline"));
            assert_eq!(machine.out(&args), by_name, "{store}");
            assert_eq!(machine.hub.sent(), 0, "{store}: fetched although it is there");
            assert_eq!(machine.files("data/models"), [""; 0], "{store}: copied");
            let lock = std::fs::read_to_string(machine.dir.join("data/models.lock")).unwrap();
            assert!(lock.contains(path.to_str().unwrap()), "{lock}");
            let error = machine.error(&["rm", name]);
            assert!(
                error.contains("another program's store") && error.contains("stays there"),
                "{error}"
            );
            machine.out(&["prune", "--unused-since", "0", "--yes"]);
            assert_eq!(theirs(&machine), before, "{store}");
            assert_eq!(machine.out(&args), by_name);
        }
    }
}

fn a_cache_with_other_bytes_is_not_trusted() {
    let machine = Machine::new();
    let path = hugging_face(&machine, &"1".repeat(40));
    let mut bytes = model();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let out = machine.run(&["pull", NAME]);
    assert!(
        out.status.success()
            && String::from_utf8_lossy(&out.stderr).contains("another file than the source's")
    );
    assert_eq!(machine.hub.sent(), model().len() as u64);
}

fn models_are_listed_and_pruned_when_nobody_uses_them() {
    let machine = Machine::new();
    machine.out(&["pull", NAME]);
    let listed = machine.out(&["models", "--json"]);
    for word in [NAME, "\"Q8_0\"", "apache-2.0", "\"brigade\"", "last_used"] {
        assert!(listed.contains(word), "{word} is not in {listed}");
    }
    let before = machine.files("data/models");
    assert!(machine.out(&["prune"]).contains("0 files"), "it was used within 30 days");
    let said = machine.out(&["prune", "--unused-since", "0"]);
    assert!(
        said.contains("would delete hf:user/repo:Q8_0") && said.contains("--yes deletes them"),
        "{said}"
    );
    assert_eq!(machine.files("data/models"), before);
    let mut configured = machine.command(&["prune", "--unused-since", "0", "--yes"]);
    let kept = configured.env("BRIGADE_MODEL", "hf:user/repo:Q8_0").output().unwrap();
    let kept = String::from_utf8(kept.stdout).unwrap();
    assert!(kept.contains("the configuration names it") && kept.contains("0 files"), "{kept}");
    // A file of options keeps models as well. If it cannot be parsed, its models are unknown.
    let file = machine.dir.join("brigade.toml");
    for (text, says) in [
        (
            "version = 1\n[[model]]\nname = \"small\"\nmodel = \"hf:user/repo:Q8_0\"\n",
            "the configuration names it",
        ),
        ("version = 1\n[serve]\nmodel = \"hf:user/repo:Q8_0\"\n", "the configuration names it"),
        ("version = 1\n[serve]\nmodle = \"x\"\n", "correct the file first"),
    ] {
        std::fs::write(&file, text).unwrap();
        let mut command = machine.command(&["prune", "--unused-since", "0", "--yes"]);
        let said = command.env("BRIGADE_CONFIG", &file).output().unwrap();
        let said = [said.stdout, said.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains(says), "{text}: {said}");
        assert_eq!(machine.files("data/models"), before, "{text}");
    }
    let said = machine.out(&["prune", "--unused-since", "0", "--yes"]);
    assert!(said.contains("deleted hf:user/repo:Q8_0 (11111111)"), "{said}");
    assert_eq!(machine.files("data/models"), [""; 0]);
    assert!(machine.out(&["models"]).contains("no models yet"));
}

fn folders_of_the_file_of_options_are_those_of_all_commands() {
    let machine = Machine::new();
    let [data, models] = ["kept", "fetched"].map(|name| machine.dir.join(name));
    let file = machine.dir.join("brigade.toml");
    let text = format!(
        "version = 1\n[serve]\ndata-dir = {data:?}\ndownload-dir = {models:?}\n[worker]\ncache-dir = \"/nowhere\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let said = |args: &[&str]| {
        let mut command = machine.command(args);
        let output =
            command.env("BRIGADE_CONFIG", &file).env_remove("BRIGADE_DATA_DIR").output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(said(&["pull", NAME]).contains(models.to_str().unwrap()));
    assert!(data.join("models.lock").is_file() && machine.files("data/models").is_empty());
    assert!(said(&["models"]).contains(NAME));
    assert!(said(&["prune", "--unused-since", "0", "--yes"]).contains("deleted hf:user/repo:Q8_0"));
    assert!(said(&["models"]).contains("no models yet"));
}

fn what_runs_is_not_deleted() {
    let machine = Machine::new();
    machine.out(&["pull", NAME]);
    let by_path = machine.models().join(&machine.files("data/models")[0]);
    for model in [NAME, by_path.to_str().unwrap()] {
        let serve =
            machine.command(&["serve", "-m", model, "--listen", "127.0.0.1:0", "--workers", "1"]);
        let server = Running::spawn(serve, "brigade serve listening on ");
        assert!(machine.error(&["rm", NAME]).contains("is in use"), "{model}");
        let pruned = machine.out(&["prune", "--unused-since", "0", "--yes"]);
        assert!(pruned.contains("is in use") && pruned.contains("0 files"), "{pruned}");
        assert!(by_path.is_file());
        drop(server);
    }
    assert!(machine.out(&["rm", NAME]).contains("deleted hf:user/repo:Q8_0"));
    assert_eq!(machine.files("data/models"), [""; 0]);
    let error = machine.error(&["rm", NAME]);
    assert!(error.contains("was not fetched by brigade"), "{error}");
}

fn a_folder_that_two_have_keeps_what_either_names() {
    let machine = Machine::new();
    let shared = machine.dir.join("shared");
    let of = |data: &str, args: &[&str]| {
        let mut command = machine.command(args);
        let command = command.env("BRIGADE_DOWNLOAD_DIR", &shared);
        let output = command.env("BRIGADE_DATA_DIR", machine.dir.join(data)).output().unwrap();
        (
            output.status.success(),
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
        )
    };
    let done = |data: &str, args: &[&str]| {
        let (is_done, said) = of(data, args);
        assert!(is_done, "{data}: {args:?}: {said}");
        said
    };
    done("desk", &["pull", NAME]);
    let files = machine.files("shared");
    let all = ["prune", "--unused-since", "0", "--yes"];
    // A server whose lock does not name the file does not delete it, and neither does one while another lock names
    // it.
    assert!(done("lab", &all).contains("0 files"));
    done("lab", &["pull", NAME]);
    let said = done("lab", &["rm", NAME]);
    assert!(said.contains("deleted hf:user/repo:Q8_0") && said.contains(", 0 B"), "{said}");
    assert_eq!(machine.files("shared"), files);
    // A lock that cannot be read may name anything.
    done("lab", &["pull", NAME]);
    let lock = machine.dir.join("desk/models.lock");
    let text = std::fs::read(&lock).unwrap();
    std::fs::write(&lock, &text[..text.len() / 2]).unwrap();
    let (is_done, said) = of("lab", &all);
    assert!(!is_done && said.contains("desk/models.lock") && said.contains("damaged"), "{said}");
    assert_eq!(machine.files("shared"), files);
    std::fs::write(&lock, text).unwrap();
    done("lab", &all);
    assert_eq!(machine.files("shared"), files);
    done("desk", &all);
    assert_eq!(machine.files("shared"), [""; 0]);
}

fn ends_of_downloads_and_files_of_others_in_the_folder() {
    let machine = Machine::with(&[(PATH, File::new(model()))]);
    machine.hub.mood(Mood::Dead(300_000, 1));
    machine.error(&["pull", NAME]);
    // Files that brigade did not put there stay.
    std::fs::write(machine.models().join("mine.gguf"), "x").unwrap();
    assert_eq!(machine.files("data/models").len(), 3);
    let said = machine.out(&["prune", "--unused-since", "0", "--yes"]);
    assert!(said.contains("left over: hf/user/repo/"), "{said}");
    assert_eq!(machine.files("data/models"), ["mine.gguf"]);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        other_programs_files_are_used_where_they_lie_and_stay,
        a_cache_with_other_bytes_is_not_trusted,
        models_are_listed_and_pruned_when_nobody_uses_them,
        folders_of_the_file_of_options_are_those_of_all_commands,
        what_runs_is_not_deleted,
        a_folder_that_two_have_keeps_what_either_names,
        ends_of_downloads_and_files_of_others_in_the_folder;
];
