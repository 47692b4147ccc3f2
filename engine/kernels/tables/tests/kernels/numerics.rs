//! The version of the kernels' numerics is set by hand. Here it is held to the bits: a hash of every result that all
//! tables agree on is in a file, beside the number. A change of bits needs a new [`NUMERICS`], and `BRIGADE_BLESS=1`
//! then writes the file anew (with `--test-threads 1`).

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use brigade_kernels::NUMERICS;

/// Begins the line with the number.
const NUMBER: &str = "numerics ";

/// Held while the file is written.
static WRITING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Number of results of each name in this test.
    static SEEN: RefCell<HashMap<String, usize>> = RefCell::default();
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/numerics.txt")
}

/// The number of a file, and the hashes of its results by name.
fn read(text: &str) -> (Option<u32>, BTreeMap<String, String>) {
    let number = text.lines().find_map(|line| line.strip_prefix(NUMBER)?.parse().ok());
    let hashes = text.lines().filter_map(|line| line.split_once('\t'));
    (number, hashes.map(|(name, hash)| (name.to_owned(), hash.to_owned())).collect())
}

fn written(hashes: &BTreeMap<String, String>) -> String {
    let mut text = format!("{NUMBER}{NUMERICS}\n");
    for (name, hash) in hashes {
        writeln!(text, "{name}\t{hash}").unwrap();
    }
    text
}

/// FNV-1a: bits that change by mistake do not keep it.
fn hash(values: &[f32]) -> String {
    let bytes = values.iter().flat_map(|value| value.to_bits().to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Checks a result with this hash. The error says what is wrong.
fn check(
    number: Option<u32>,
    known: &BTreeMap<String, String>,
    name: &str,
    hash: &str,
) -> Result<(), String> {
    match known.get(name) {
        _ if number != Some(NUMERICS) => Err("the number has changed".to_owned()),
        Some(before) if before == hash => Ok(()),
        Some(_) => Err(format!(
            "{name} has other bits than before: NUMERICS, now {NUMERICS}, needs another number, or states of two \
             releases are mixed"
        )),
        None => Err(format!("{name} is not in the file")),
    }
}

/// Holds a result to the number.
pub fn hold(what: &str, values: &[f32]) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let name = format!("{test}: {what}");
    let n = SEEN.with_borrow_mut(|seen| {
        let n = seen.entry(name.clone()).or_default();
        *n += 1;
        *n
    });
    let (name, hash) = (format!("{name} {n}"), hash(values));
    if std::env::var_os("BRIGADE_BLESS").is_none() {
        let (number, known) = read(include_str!("numerics.txt"));
        let held = check(number, &known, &name, &hash);
        return held
            .unwrap_or_else(|why| panic!("{why}: BRIGADE_BLESS=1 writes numerics.txt anew"));
    }
    let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let (number, mut known) = read(&std::fs::read_to_string(path()).unwrap_or_default());
    if number != Some(NUMERICS) {
        known.clear();
    }
    let is_changed = known.get(&name).is_some_and(|before| *before != hash);
    assert!(!is_changed, "{name} has other bits than before: NUMERICS needs another number first");
    known.insert(name, hash);
    std::fs::write(path(), written(&known)).unwrap();
}

#[test]
fn changed_bits_without_a_changed_number_are_found_out() {
    let known = BTreeMap::from([("a 1".to_owned(), hash(&[1.0, 2.0]))]);
    let (number, again) = read(&written(&known));
    assert_eq!((number, &again), (Some(NUMERICS), &known));
    let of = |number, name: &str, values: &[f32]| check(number, &known, name, &hash(values));
    assert_eq!(of(number, "a 1", &[1.0, 2.0]), Ok(()));
    assert!(of(number, "a 1", &[1.0, 2.000_000_2]).unwrap_err().contains("other bits"));
    assert!(of(number, "b 1", &[1.0]).unwrap_err().contains("not in the file"));
    assert!(of(Some(NUMERICS + 1), "a 1", &[1.0, 2.0]).is_err());
}
