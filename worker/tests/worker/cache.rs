//! The disk cache by itself: keeping, verifying and evicting blobs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use blake3::Hash;
use brigade_worker::machine::reading_threads::Pool;
use brigade_worker::weights::cache::{
    BlobState, Cache, CacheError, Needed, Pinned, Purpose, Shares, Standing,
};

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("brigade-cache-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    dir
}

fn open(dir: &Path, limit_bytes: u64) -> Cache {
    Cache::open(dir, limit_bytes, Pool::new(1, &[]).unwrap())
}

fn put(cache: &Cache, bytes: &[u8]) -> (Hash, PathBuf) {
    let (hash, nbytes) = (blake3::hash(bytes), bytes.len() as u64);
    let mut writer = cache.receive(hash, nbytes).unwrap();
    writer.write(0, bytes).unwrap();
    assert!(writer.is_complete(nbytes));
    writer.finish().unwrap();
    (hash, cache.lookup(&hash, nbytes).unwrap().unwrap().path)
}

/// A name of bytes that are to come.
fn to_come(name: u8, nbytes: u64) -> Needed {
    Needed { hash: blake3::hash(&[name]), nbytes, may_be_absent: false }
}

fn here(hash: Hash, nbytes: u64) -> Needed {
    Needed { hash, nbytes, may_be_absent: false }
}

fn pin(cache: &Cache, needed: &[Needed]) -> Result<Pinned, CacheError> {
    cache.pin("m", needed, Purpose::Stage)
}

fn pin_files(dir: &Path) -> usize {
    fs::read_dir(dir.join("pins")).unwrap().count() - 1
}

/// Makes a blob look as if it was last used `seconds` ago.
fn age(path: &Path, seconds: u64) {
    let used = SystemTime::now() - Duration::from_secs(seconds);
    let note = path.to_str().unwrap().replace("blobs", "verified");
    let file = fs::File::open(note).unwrap();
    file.set_times(fs::FileTimes::new().set_accessed(used)).unwrap();
}

#[test]
fn a_blob_that_was_written_to_is_noticed_and_deleted() {
    let cache = open(&scratch("tamper"), 1 << 20);
    let (hash, path) = put(&cache, b"weights");
    fs::write(&path, b"WEIGHTS").unwrap();
    assert_eq!(cache.lookup(&hash, 7).unwrap(), None);
    assert_eq!(cache.state(&hash, 7).unwrap(), BlobState::Partial(0));
    assert!(!path.exists());
}

#[test]
fn a_blob_that_was_rewritten_as_it_was_is_kept() {
    let cache = open(&scratch("rewrite"), 1 << 20);
    let (hash, path) = put(&cache, b"weights");
    fs::write(&path, b"weights").unwrap();
    assert_eq!(cache.lookup(&hash, 7).unwrap().unwrap().path, path);
}

#[test]
fn a_truncated_blob_is_deleted() {
    let cache = open(&scratch("truncate"), 1 << 20);
    let (hash, path) = put(&cache, b"weights");
    fs::File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
    assert_eq!(cache.lookup(&hash, 7).unwrap(), None);
}

#[test]
fn an_incomplete_part_says_where_to_go_on_and_a_wrong_one_is_dropped() {
    let cache = open(&scratch("parts"), 1 << 20);
    let hash = blake3::hash(b"0123456789");
    let mut writer = cache.receive(hash, 10).unwrap();
    writer.write(0, b"0123").unwrap();
    assert!(matches!(writer.write(5, b"5"), Err(CacheError::Gap { have: 4, .. })));
    assert!(matches!(writer.write(4, b"456789x"), Err(CacheError::Gap { .. })));
    drop(writer);
    assert_eq!(cache.state(&hash, 10).unwrap(), BlobState::Partial(4));
    let mut writer = cache.receive(hash, 10).unwrap();
    writer.write(4, b"xxxxxx").unwrap();
    assert!(matches!(writer.finish(), Err(CacheError::Corrupt { .. })));
    assert_eq!(cache.state(&hash, 10).unwrap(), BlobState::Partial(0));
}

#[test]
fn a_part_completed_before_a_crash_is_published() {
    let dir = scratch("crash");
    let cache = open(&dir, 1 << 20);
    let hash = blake3::hash(b"complete");
    fs::write(dir.join("parts").join(hash.to_hex().as_str()), b"complete").unwrap();
    assert!(matches!(cache.state(&hash, 8).unwrap(), BlobState::Complete(_)));
    // One that is too long, or wrong, is not.
    let other = blake3::hash(b"other");
    let part = dir.join("parts").join(other.to_hex().as_str());
    fs::write(&part, b"longer than other").unwrap();
    assert_eq!(cache.state(&other, 5).unwrap(), BlobState::Partial(0));
    fs::write(&part, b"wrong").unwrap();
    assert_eq!(cache.state(&other, 5).unwrap(), BlobState::Partial(0));
    assert!(!part.exists());
}

#[test]
fn the_longest_unused_go_first_and_what_is_needed_stays() {
    let cache = open(&scratch("evict"), 100);
    let blobs: Vec<(Hash, PathBuf)> = (0..4).map(|i| put(&cache, &[i; 25])).collect();
    for (i, (_, path)) in blobs.iter().enumerate() {
        age(path, 1000 - i as u64);
    }
    let kept = here(blobs[0].0, 25);
    let pinned = pin(&cache, &[kept, to_come(9, 30)]).unwrap();
    let there: Vec<bool> = blobs.iter().map(|(_, path)| path.exists()).collect();
    assert_eq!(there, [true, false, false, true]);
    drop(pinned);
    let error = pin(&cache, &[kept, to_come(9, 80)]).unwrap_err();
    assert!(error.to_string().contains("needs 105 bytes of the cache"), "{error}");
    assert!(blobs[3].1.exists(), "a request that cannot be met evicts nothing");
}

#[test]
fn a_part_in_use_by_another_worker_is_not_evicted() {
    let cache = open(&scratch("locked"), 100);
    let hash = blake3::hash(&[1; 60]);
    let mut writer = cache.receive(hash, 60).unwrap();
    writer.write(0, &[1; 50]).unwrap();
    let _pinned = pin(&cache, &[to_come(9, 70)]).unwrap();
    writer.write(50, &[1; 10]).unwrap();
    writer.finish().unwrap();
    assert!(cache.lookup(&hash, 60).unwrap().is_some());
}

#[test]
fn two_receivers_of_one_blob_end_with_one_blob() {
    let cache = open(&scratch("both"), 1 << 20);
    let bytes = vec![3; 100_000];
    let hash = blake3::hash(&bytes);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut writer = cache.receive(hash, bytes.len() as u64).unwrap();
                for (i, chunk) in bytes.chunks(1000).enumerate() {
                    writer.write(i as u64 * 1000, chunk).unwrap();
                }
                writer.finish().unwrap();
            });
        }
    });
    assert!(cache.lookup(&hash, bytes.len() as u64).unwrap().is_some());
    assert_eq!(fs::read_dir(cache.dir().join("parts")).unwrap().count(), 0);
}

#[test]
fn changed_bytes_under_a_kept_modification_time_are_noticed() {
    let cache = open(&scratch("kept-mtime"), 1 << 20);
    let (hash, path) = put(&cache, b"weights");
    let mtime = fs::metadata(&path).unwrap().modified().unwrap();
    // Longer than a tick of the clock that stamps files.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&path, b"WEIGHTS").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(mtime).unwrap();
    assert_eq!(cache.lookup(&hash, 7).unwrap(), None);
    assert!(!path.exists());
}

#[test]
fn what_is_in_a_blobs_place_and_is_no_file_is_an_error_that_names_it() {
    let dir = scratch("directory");
    let cache = open(&dir, 1 << 20);
    let hash = blake3::hash(b"weights");
    for sub in ["parts", "blobs"] {
        let path = dir.join(sub).join(hash.to_hex().as_str());
        fs::create_dir(&path).unwrap();
        let error = cache.state(&hash, 7).unwrap_err();
        assert!(matches!(error, CacheError::NotAFile { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert!(cache.receive(hash, 7).is_err());
        fs::remove_dir(&path).unwrap();
    }
    put(&cache, b"weights");
}

#[test]
fn more_than_the_disk_has_is_refused_with_the_numbers() {
    let dir = scratch("full");
    let cache = open(&dir, u64::MAX);
    let error = pin(&cache, &[to_come(9, 1 << 60)]).unwrap_err();
    let CacheError::NoSpace { needed_bytes, free_bytes, .. } = error else { panic!("{error}") };
    assert_eq!(needed_bytes, 1 << 60);
    assert!(free_bytes < 1 << 60);
    assert!(error.to_string().contains(dir.to_str().unwrap()), "{error}");
}

#[test]
fn a_directory_that_cannot_be_written_serves_nothing_new_and_says_so() {
    // A file in the directory's place: that stops root as well, whom rights do not stop.
    let dir = scratch("no-directory");
    fs::write(&dir, b"").unwrap();
    let cache = open(&dir, 1 << 20);
    let error = pin(&cache, &[to_come(9, 10)]).unwrap_err();
    assert!(matches!(error, CacheError::Unwritable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(dir.to_str().unwrap()) && text.contains("--cache-dir"), "{text}");
    fs::remove_file(dir).unwrap();
}

#[test]
fn fetches_together_are_promised_no_more_than_the_bound() {
    let cache = open(&scratch("reserved"), 100);
    let fetch = |name, nbytes| cache.pin("m", &[to_come(name, nbytes)], Purpose::Fetch);
    let first = fetch(1, 60).unwrap();
    let error = fetch(2, 60).unwrap_err();
    assert!(matches!(error, CacheError::Pinned { new_bytes: 60, .. }), "{error}");
    // A refused one holds nothing, and neither does one that has ended.
    let second = fetch(2, 40).unwrap();
    first.release();
    let third = fetch(3, 60).unwrap();
    drop((second, third));
    fetch(4, 100).unwrap();
}

#[test]
fn what_any_process_has_pinned_is_not_evicted_and_counts_once() {
    let dir = scratch("pins");
    // Caches of one folder are as those of several processes.
    let [first, second, third] = [0; 3].map(|_| open(&dir, 100));
    let (shared, path) = put(&first, &[1; 40]);
    let (_, unpinned) = put(&first, &[2; 30]);
    age(&path, 1000);
    let one = first.pin("a", &[here(shared, 40)], Purpose::Stage).unwrap();
    let two = second.pin("b", &[here(shared, 40), to_come(7, 20)], Purpose::Stage).unwrap();
    assert!(unpinned.exists(), "there is room for all three");
    let standing = Standing { nbytes: 60, stages: 2, models: 2 };
    assert_eq!(third.standing(), Some(standing));
    let shares = |own_bytes| Some(Shares { nbytes: 60, own_bytes });
    let of_each = [&first, &second, &third].map(Cache::shares);
    assert_eq!(of_each, [shares(0), shares(20), shares(0)], "what both need stays if one ends");
    assert_eq!(first.folder(), third.folder());
    let error = pin(&third, &[here(shared, 40), to_come(8, 50)]).unwrap_err();
    assert!(matches!(error, CacheError::Pinned { new_bytes: 50, .. }), "{error}");
    for word in ["needs 50 bytes more", "60 bytes are pinned by 2", "of 2 models", "is 100: unload"]
    {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    assert!(unpinned.exists(), "a request that is refused evicts nothing");
    let three = pin(&third, &[here(shared, 40), to_come(8, 40)]).unwrap();
    assert!(path.exists() && !unpinned.exists(), "the one used longest ago is pinned");
    drop((one, two, three));
    assert_eq!((third.standing(), pin_files(&dir)), (Some(Standing::default()), 0));
    pin(&third, &[to_come(9, 100)]).unwrap();
    assert!(!path.exists(), "nobody needs it any more");
}

#[test]
fn pins_of_a_process_that_has_ended_do_not_count() {
    let dir = scratch("dead-pins");
    let cache = open(&dir, 100);
    let left = dir.join("pins").join("00000000000000aa-0");
    fs::write(&left, format!("\"m\"\n{} 90\n", blake3::hash(b"x").to_hex())).unwrap();
    let held = fs::File::open(&left).unwrap();
    held.lock().unwrap();
    assert!(matches!(pin(&cache, &[to_come(1, 20)]), Err(CacheError::Pinned { .. })));
    // The system gives back the lock of a process that is killed.
    drop(held);
    let _pinned = pin(&cache, &[to_come(1, 20)]).unwrap();
    assert!(!left.exists());
}

#[test]
fn a_stage_takes_the_place_of_its_processs_and_one_that_is_loaded_ahead_stands_beside_it() {
    let cache = open(&scratch("place"), 100);
    let running = pin(&cache, &[to_come(1, 60)]).unwrap();
    let ahead = |name| cache.pin("m", &[to_come(name, 60)], Purpose::Ahead);
    assert!(matches!(ahead(2), Err(CacheError::Pinned { .. })));
    let next = pin(&cache, &[to_come(2, 60)]).unwrap();
    drop(running);
    // Bytes that are on their way to it under names of their own are its own.
    let fetch = cache.pin("m", &[to_come(3, 60)], Purpose::Fetch).unwrap();
    drop((next, fetch));
    ahead(2).unwrap();
}

#[test]
fn what_is_fetched_before_its_hash_is_known_is_pinned_when_it_is() {
    let dir = scratch("named");
    let (cache, other) = (open(&dir, 100), open(&dir, 100));
    let key = to_come(1, 60);
    let pinned = std::sync::Arc::new(cache.pin("m", &[key], Purpose::Fetch).unwrap());
    let fetching = cache.clone().pinning(pinned.clone());
    let mut writer = fetching.receive_unnamed(key.hash, 60).unwrap();
    writer.write(0, &[5; 60]).unwrap();
    let (_, blob) = writer.publish().unwrap();
    assert!(matches!(pin(&other, &[to_come(2, 60)]), Err(CacheError::Pinned { .. })));
    assert_eq!(other.standing().map(|standing| standing.nbytes), Some(60));
    drop((fetching, pinned));
    pin(&other, &[to_come(2, 60)]).unwrap();
    assert!(!blob.path.exists());
}

#[test]
fn blobs_whose_bytes_are_in_memory_are_pinned_where_they_are_and_not_sent_again() {
    let dir = scratch("optional");
    let cache = open(&dir, 100);
    let (hash, path) = put(&cache, &[1; 40]);
    let in_memory = |needed: Needed| Needed { may_be_absent: true, ..needed };
    let needed = [in_memory(here(hash, 40)), in_memory(to_come(2, 90)), to_come(3, 50)];
    let pinned = pin(&cache, &needed).unwrap();
    assert_eq!(cache.standing().map(|standing| standing.nbytes), Some(90));
    let other = open(&dir, 100);
    pin(&other, &[to_come(4, 10)]).unwrap();
    assert!(path.exists());
    drop(pinned);
}
