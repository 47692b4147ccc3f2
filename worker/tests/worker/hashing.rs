//! Remembered hashes of a model's file. They are right after any change, and are computed where the worker
//! computes.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::model::write_model;
use crate::common::scratch;
use blake3::Hash;
use brigade_gguf::Gguf;
use brigade_worker::machine::reading_threads::{Pool, THREAD_NAME};
use brigade_worker::weights::hashes::{HashError, HashStore};
use tokio_util::sync::CancellationToken;

/// Values of a tensor: short ones, and some that all threads hash together.
const SHORT: usize = 1_000;
const LONG: usize = 3 << 20;
/// A file that was written to as lately as this is not remembered.
const SETTLES_IN: Duration = Duration::from_millis(2_100);

fn write(dir: &Path, values: usize, addend: f32) -> Gguf {
    Gguf::open_files(write_model(dir, "m.gguf", 3, values, addend)).unwrap().0
}

/// The hashes of all tensors, and the threads that computed some.
fn hashes(dir: &Path) -> (Vec<Hash>, BTreeSet<String>) {
    let (model, files) = Gguf::open_files(dir.join("m.gguf")).unwrap();
    let store = HashStore::new(dir, Pool::new(2, &[]).unwrap());
    let threads = Mutex::<BTreeSet<String>>::default();
    let progress = |_, _| {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        threads.lock().unwrap().insert(name);
    };
    let tensors: Vec<_> = model.tensors().iter().collect();
    let never = CancellationToken::new();
    let hashes = store.tensor_hashes(&model, &files, &tensors, &progress, &never).unwrap();
    (hashes, threads.into_inner().unwrap())
}

#[test]
fn hashes_are_those_of_the_bytes_and_computed_by_the_workers_threads() {
    for values in [SHORT, LONG] {
        let dir = scratch();
        write(&dir, values, 10.0);
        let model = Gguf::open(dir.join("m.gguf")).unwrap();
        let (found, threads) = hashes(&dir);
        let data = model.tensors().iter().map(|t| model.data(t).unwrap());
        assert_eq!(found, data.map(blake3::hash).collect::<Vec<_>>());
        assert_eq!(threads, BTreeSet::from([THREAD_NAME.to_owned()]));
    }
}

#[test]
fn changed_bytes_under_a_kept_modification_time_are_hashed_again() {
    let dir = scratch();
    write(&dir, SHORT, 10.0);
    std::thread::sleep(SETTLES_IN);
    let (old, computed) = hashes(&dir);
    assert!(!computed.is_empty());
    let (again, computed) = hashes(&dir);
    assert_eq!((&again, computed.len()), (&old, 0), "they are remembered");
    let path = dir.join("m.gguf");
    let mtime = std::fs::metadata(&path).unwrap().modified().unwrap();
    write(&dir, SHORT, 11.0);
    File::options().write(true).open(&path).unwrap().set_modified(mtime).unwrap();
    assert_ne!(hashes(&dir).0, old);
}

#[test]
fn hashing_ends_when_nobody_waits_for_it() {
    let dir = scratch();
    let (model, files) = Gguf::open_files(write_model(&dir, "m.gguf", 3, LONG, 1.0)).unwrap();
    let store = HashStore::new(&dir, Pool::new(1, &[]).unwrap());
    let tensors: Vec<_> = model.tensors().iter().collect();
    let given_up = CancellationToken::new();
    let progress = |done: u64, total: u64| {
        assert!(done < total, "all was hashed");
        given_up.cancel();
    };
    let result = store.tensor_hashes(&model, &files, &tensors, &progress, &given_up);
    assert!(matches!(result, Err(HashError::GivenUp)), "{result:?}");
}
