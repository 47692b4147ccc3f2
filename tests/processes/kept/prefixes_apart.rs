//! Records of prefixes that must not be used: of other weights, adapters or kernels, of a revoked key, or with
//! invalid numbers. Also lines on which not every worker keeps records.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use brigade_gguf::Gguf;
use brigade_model_tests::golden::VectorRecipe;
use brigade_synth::{AdapterSpec, write_adapter};
use brigade_tests::older::Older;
use brigade_tests::process::{Running, run, synth};
use brigade_worker::records::record::{Bundle, Whose};
use serde_json::Value;

use crate::kept::records::{Place, ask, ask_as, metric, prompt, reply, settle_kept, until};

const TIERS: &[&str] = &["--prefix-disk", "64M", "--keep", "4"];

/// The whole pages of [`prompt`].
const PAGES: u64 = 256;

fn adapter(place: &Place, name: &str, seed: u64) -> String {
    let path = place.dir.join(format!("{name}.gguf"));
    let spec = AdapterSpec { rank: 4, alpha: 8.0, seed };
    write_adapter(&Gguf::open(&place.model).unwrap(), &spec, &path).unwrap();
    path.to_str().unwrap().to_owned()
}

fn vector(place: &Place, name: &str, seed: usize) -> String {
    let spec = brigade_models::describe(&Gguf::open(&place.model).unwrap()).unwrap();
    let path = place.dir.join(format!("{name}.gguf"));
    VectorRecipe { seed, scale: 1.0 }.make(spec.n_embd, 1..spec.n_layer(), &path);
    path.to_str().unwrap().to_owned()
}

/// A llama of the same shape with other weights.
fn other_weights(place: &Place) -> PathBuf {
    let path = place.dir.join("other-weights.gguf");
    let out = path.to_str().unwrap();
    let args = ["synth", "--arch", "llama", "--size", "tiny", "--seed", "9", "--out", out];
    assert!(run(&args).status.success());
    path
}

fn what_bits_depend_on_is_part_of_a_records_name() {
    let place = Place::new("apart", "llama");
    fs::create_dir_all(&place.dir).unwrap();
    let (lora_a, lora_b) = (adapter(&place, "lora-a", 1), adapter(&place, "lora-b", 2));
    let (vector_a, vector_b) = (vector(&place, "vector-a", 1), vector(&place, "vector-b", 2));
    let half = |file: &str| format!("{file}=0.5");
    let (lora_half, vector_half) = (half(&lora_a), half(&vector_a));
    let other = other_weights(&place);
    let settings: [(&Path, &[&str]); 13] = [
        (&place.model, &[]),
        (&other, &[]),
        (&place.model, &["--kernels", "unfused"]),
        (&place.model, &["--kv-type", "f32"]),
        (&place.model, &["--kv-type", "q8_0"]),
        (&place.model, &["--lora", &lora_a]),
        (&place.model, &["--lora", &lora_half]),
        (&place.model, &["--lora", &lora_b]),
        (&place.model, &["--control-vector", &vector_a]),
        (&place.model, &["--control-vector", &vector_half]),
        (&place.model, &["--control-vector", &vector_b]),
        (&place.model, &["--wire-type", "f16"]),
        (&place.model, &["--wire-type", "f16", "--cuts", "2"]),
    ];
    let serve = |(model, more): (&Path, &[&str])| {
        let cut: &[&str] = if more.contains(&"--cuts") { &[] } else { &["--cuts", "1"] };
        place.serve_of(model, "data", &[&["--workers", "2"], cut, TIERS, more].concat())
    };
    let mut said: Vec<Value> = Vec::new();
    for setting in settings {
        let server = serve(setting);
        let (answer, cached) = ask(&server, &prompt(1));
        assert_eq!(cached, 0, "{setting:?} begins with what another setting computed");
        settle_kept(&server, 1);
        said.push(answer);
    }
    // All have written, and each finds its own.
    for (setting, expected) in settings.into_iter().zip(said) {
        let server = serve(setting);
        assert_eq!(ask(&server, &prompt(1)), (expected, PAGES), "{setting:?}");
    }
}

fn key(place: &Place, args: &[&str]) -> String {
    let data = place.dir.join("data");
    let output = run(&[&["key"], args, &["--data-dir", data.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The owners of records on the disk. Files may come and go at the same time.
fn owners(place: &Place) -> BTreeSet<Whose> {
    let bundles = place.files().into_iter().filter_map(|path| fs::read(path).ok());
    bundles.filter_map(|bundle| Some(Bundle::decode(&bundle)?.whose)).collect()
}

fn a_key_finds_its_own_records_and_takes_them_along_when_it_goes() {
    let place = Place::new("keys", "llama");
    let keys = ["ann", "bob"].map(|name| key(&place, &["create", name]));
    let args = [&["--workers", "2", "--cuts", "1"], TIERS].concat();
    let server = place.serve("data", &args);
    for (key, n) in keys.iter().zip(1..) {
        assert_eq!(ask_as(&server, &prompt(1), key).1, 0, "nothing of another key");
        settle_kept(&server, n);
    }
    drop(server);
    // A server's first load is not weighed against reading: it has no times yet.
    let ask_first = |key: &str| {
        let server = place.serve("data", &args);
        assert_eq!(ask_as(&server, &prompt(1), key).1, PAGES);
        server
    };
    drop(ask_first(&keys[0]));
    let server = ask_first(&keys[1]);
    assert_eq!(owners(&place).len(), 2);
    key(&place, &["revoke", "ann"]);
    until("the records of a revoked key to go", || {
        // Records go when something happens on the line.
        reply(&server, &prompt(1), &keys[1]);
        owners(&place).len() == 1
    });
    assert_eq!(reply(&server, &prompt(1), &keys[0]).status, 401);
    drop(server);
    // The other's stay.
    ask_first(&keys[1]);
}

/// A token whose embedding is no number.
const BAD_TOKEN: u32 = 250;

/// Makes the embedding of [`BAD_TOKEN`] no number.
fn spoil(model: &Path) {
    let (begin, nbytes) = {
        let gguf = Gguf::open(model).unwrap();
        let embedding = gguf.tensor("token_embd.weight").unwrap();
        assert_eq!(format!("{:?}", embedding.ty), "F32");
        let row = embedding.ne[0] as u64 * 4;
        (embedding.offset + u64::from(BAD_TOKEN) * row, row as usize)
    };
    let file = fs::OpenOptions::new().write(true).open(model).unwrap();
    file.write_all_at(&f32::NAN.to_le_bytes().repeat(nbytes / 4), begin).unwrap();
}

fn what_a_row_of_no_numbers_used_is_in_no_tier() {
    let mut place = Place::new("spoilt", "llama");
    fs::remove_file(&place.model).unwrap();
    place.model = synth_f32();
    spoil(&place.model);
    let args = [&["--workers", "2", "--cuts", "1", "--prefix-ram", "64M"], TIERS].concat();
    let server = place.serve("data", &args);
    let (good, other) = (prompt(1), prompt(2));
    let expected = [(&good, 1), (&other, 2)].map(|(prompt, n)| {
        let (said, cached) = ask(&server, prompt);
        assert_eq!(cached, 0);
        settle_kept(&server, n);
        said
    });
    let bad = [&good[..280], &[BAD_TOKEN, 3, 4]].concat();
    let failed = reply(&server, &bad, "");
    assert_eq!(failed.status, 500, "{}", failed.body);
    assert_eq!(ask(&server, &good), (expected[0].clone(), 0), "it is computed anew");
    let cached = ask(&server, &other).1;
    assert!(cached >= PAGES, "what it did not use stays: {cached}");
    settle_kept(&server, 3);
    drop(server);
    let server = place.serve("data", &args);
    assert_eq!(ask(&server, &good), (expected[0].clone(), PAGES), "what was computed anew");
    drop(server);
}

/// A model whose embedding is in single precision.
fn synth_f32() -> PathBuf {
    let path = synth("llama", "tiny");
    let out = path.to_str().unwrap();
    let args = ["synth", "--arch", "llama", "--size", "tiny", "--quant", "F32", "--force"];
    assert!(run(&[&args[..], &["--out", out]].concat()).status.success());
    path
}

fn a_line_with_a_worker_that_keeps_no_records_goes_without() {
    let place = Place::new("mixed", "llama");
    let worker = |name: &str, more: &[&str]| {
        let cache = place.dir.join(name);
        let args = ["worker", "--listen", "127.0.0.1:0", "--cache-dir", cache.to_str().unwrap()];
        Running::start(&[&args[..], more].concat(), brigade_worker::run::READY_PREFIX)
    };
    let keeps = worker("one", &["--prefix-ram", "64M"]);
    let without = worker("two", &[]);
    let kept_by_older = worker("three", &["--prefix-ram", "64M"]);
    let older = Older::before(kept_by_older.ready.trim().parse().unwrap());
    let keeps = keeps.ready.trim().to_owned();
    // Places for two states: the slot is one of them between requests.
    let places = ["--cuts", "1", "--max-seqs", "1", "--keep", "1"];
    for other in [without.ready.trim().to_owned(), older.address.to_string()] {
        let far = [&["--worker", &keeps, "--worker", &other][..], &places].concat();
        let server = place.serve("data", &far);
        let (said, _) = ask(&server, &prompt(1));
        for other in [2, 3] {
            ask(&server, &prompt(other));
        }
        assert_eq!(ask(&server, &prompt(1)), (said, 0), "it had to go");
        assert_eq!(metric(&server, "brigade_prefix_states_saved_total"), 0);
        drop(server);
    }
    assert_eq!(older.unknown(), 0, "nobody asks it for records");
    older.upgrade();
    let address = older.address.to_string();
    let far = [&["--worker", &keeps, "--worker", &address][..], &places].concat();
    let server = place.serve("data", &far);
    ask(&server, &prompt(1));
    settle_kept(&server, 1);
    for other in [2, 3] {
        ask(&server, &prompt(other));
        settle_kept(&server, other.into());
    }
    assert_eq!(ask(&server, &prompt(1)).1, PAGES, "upgraded, it keeps them");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        what_bits_depend_on_is_part_of_a_records_name,
        a_key_finds_its_own_records_and_takes_them_along_when_it_goes,
        what_a_row_of_no_numbers_used_is_in_no_tier,
        a_line_with_a_worker_that_keeps_no_records_goes_without;
];
