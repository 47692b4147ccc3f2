//! Limits, order of eviction, and recovery after a crash.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::machine::ledger::{Amount, Book};
use crate::machine::share::Share;
use crate::records::BYTES_PER_SECOND;
use crate::records::folder::Home;
use crate::records::rate::Rate;
use crate::records::record::{About, NewRecord, encode};

const WHOSE: Whose = Whose { realm: [1; 16], owner: [2; 16] };

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("brigade-prefixes-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    dir
}

/// The store of a worker of its own.
fn opened(dir: &Path, limits: Sizes) -> Store {
    Store::open(
        Home::at(dir.to_owned(), Rate::new(BYTES_PER_SECOND)),
        limits,
        Rooms::of(&Ledger::alone(Amount::default()), limits),
    )
    .unwrap()
}

fn key(n: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&n.to_le_bytes());
    key
}

fn page(n: u64) -> Id {
    Id { chain: key(n), line: key(0), tail: None }
}

/// Bytes of a page's record: each has others.
fn bytes_of(n: u64, nbytes: usize) -> Bytes {
    vec![n as u8; nbytes].into()
}

fn read(store: &Store, n: u64) -> io::Result<Bytes> {
    store.read(&[page(n)]).map(|read| read[0].bytes.clone())
}

/// A bundle of one page.
fn bundle(whose: Whose, n: u64, nbytes: usize) -> Vec<u8> {
    let about = About {
        id: page(n),
        layer: 0,
        print: blake3::hash(b"0"),
        len: 64,
        has_pages: true,
        alone: true,
        pages: 1,
    };
    let record = NewRecord { about, parts: vec![(0, true, bytes_of(n, nbytes))] };
    encode(whose, [3; 32], &[record])
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir.join("0")).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> =
        all.filter(|path| path.file_name().is_some_and(|name| name.len() == 16)).collect();
    all.sort();
    all
}

/// Bytes of the folder's bundles, as the file system counts them.
fn on_disk_of(dir: &Path) -> u64 {
    files(dir).iter().map(|path| on_disk(fs::metadata(path).unwrap().len())).sum()
}

/// A number below `below`, of a sequence that a seed gives.
fn next(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// A model of the two tiers, longest unused first: number, bytes, and tiers.
#[derive(Default)]
struct Model {
    ram: Vec<(u64, u64)>,
    disk: Vec<(u64, u64)>,
}

impl Model {
    fn put(tier: &mut Vec<(u64, u64)>, limit: u64, n: u64, nbytes: u64) {
        if nbytes > limit {
            return;
        }
        while tier.iter().map(|(_, nbytes)| nbytes).sum::<u64>() + nbytes > limit {
            tier.remove(0);
        }
        tier.push((n, nbytes));
    }

    fn has(&self, n: u64) -> bool {
        self.ram.iter().chain(&self.disk).any(|(of, _)| *of == n)
    }

    fn used(&mut self, n: u64) {
        for tier in [&mut self.ram, &mut self.disk] {
            if let Some(at) = tier.iter().position(|(of, _)| *of == n) {
                let moved = tier.remove(at);
                tier.push(moved);
            }
        }
    }
}

/// A step of a random history.
fn step(store: &mut Option<Store>, model: &mut Model, dir: &Path, sizes: Sizes, seed: &mut u64) {
    let (what, n) = (next(seed, 12), next(seed, 12));
    let nbytes = |n: u64| n as usize * 1500;
    let here = store.as_ref().expect("it is open");
    match what {
        // Records that are here are not written again.
        0..=5 if here.has(&page(n)) => {}
        0..=5 => {
            let bytes = bundle(WHOSE, n, nbytes(n));
            Model::put(&mut model.ram, sizes.ram, n, bytes.len() as u64);
            Model::put(&mut model.disk, sizes.disk, n, on_disk(bytes.len() as u64));
            here.put(bytes).unwrap();
        }
        6..=9 => {
            let read = read(here, n).ok();
            assert_eq!(read, model.has(n).then(|| bytes_of(n, nbytes(n))));
            here.touch(std::iter::once(&page(n)));
            model.used(n);
        }
        10 => {
            here.forget(&[key(n)]);
            model.ram.retain(|(of, _)| *of != n);
            model.disk.retain(|(of, _)| *of != n);
        }
        _ => {
            *store = None;
            *store = Some(opened(dir, sizes));
            model.ram.clear();
        }
    }
}

#[test]
fn limits_are_kept_and_what_was_unused_longest_goes() {
    let dir = scratch("model");
    for history in 0..60 {
        let _ = fs::remove_dir_all(&dir);
        let mut seed = history;
        let ram = [0, 25_000][next(&mut seed, 2) as usize];
        let sizes = Sizes { ram, disk: 10 * 4096 * next(&mut seed, 2) };
        let (mut store, mut model) = (Some(opened(&dir, sizes)), Model::default());
        for _ in 0..60 {
            step(&mut store, &mut model, &dir, sizes, &mut seed);
            let store = store.as_ref().expect("it is open");
            for n in 0..12 {
                assert_eq!(store.has(&page(n)), model.has(n), "history {history}, record {n}");
            }
            let used = store.used();
            assert!(used.ram <= sizes.ram && used.disk <= sizes.disk, "{used:?}");
            assert_eq!(used.disk, on_disk_of(&dir));
        }
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_a_crash_leaves_is_never_read() {
    let dir = scratch("crash");
    let limits = Sizes { ram: 0, disk: 1 << 20 };
    let store = opened(&dir, limits);
    store.put(bundle(WHOSE, 1, 40)).unwrap();
    store.put(bundle(WHOSE, 2, 40)).unwrap();
    drop(store);
    let path = files(&dir)[1].clone();
    let whole = fs::read(&path).unwrap();
    for n in 0..whole.len() {
        // As killed while it was written, and as if that had its name already.
        fs::write(&path, &whole[..n]).unwrap();
        fs::write(dir.join("0/draft"), &whole[..n]).unwrap();
        let store = opened(&dir, limits);
        assert!(store.has(&page(1)) && !store.has(&page(2)), "cut at {n}");
        assert!(!path.exists() && !dir.join("0/draft").exists());
        let mut damaged = whole.clone();
        damaged[n] ^= 4;
        fs::write(&path, damaged).unwrap();
        drop(store);
        let store = opened(&dir, limits);
        assert!(read(&store, 2).is_err(), "byte {n}");
        assert!(!store.has(&page(2)) && !path.exists(), "it is dropped");
        assert_eq!(read(&store, 1).unwrap(), bytes_of(1, 40));
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn only_its_owner_reads_it_and_an_old_folder_is_emptied() {
    use std::os::unix::fs::PermissionsExt;
    let dir = scratch("form");
    let limits = Sizes { ram: 0, disk: 1 << 20 };
    let store = opened(&dir, limits);
    store.put(bundle(WHOSE, 1, 40)).unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(files(&dir)[0].clone()), mode(dir.join("0"))), (0o600, 0o700));
    // Another worker uses a folder of its own.
    let other = opened(&dir, limits);
    assert!(!other.has(&page(1)) && dir.join("1").exists());
    drop((store, other));
    fs::write(dir.join("0/form"), "0\n").unwrap();
    let store = opened(&dir, limits);
    assert!(!store.has(&page(1)) && files(&dir).is_empty());
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_is_old_goes_and_what_belongs_to_nobody_any_more() {
    let dir = scratch("age");
    let limits = Sizes { ram: 1 << 20, disk: 1 << 20 };
    let store = opened(&dir, limits);
    let other = Whose { owner: [9; 16], ..WHOSE };
    let foreign = Whose { realm: [8; 16], ..other };
    for (n, whose) in [(1, WHOSE), (2, other), (3, foreign)] {
        store.put(bundle(whose, n, 40)).unwrap();
    }
    assert_eq!(store.keep_owners(WHOSE.realm, &[WHOSE.owner].into()), 1);
    assert_eq!(
        [1, 2, 3].map(|n| store.has(&page(n))),
        [true, false, true],
        "another realm's stays"
    );
    assert_eq!(files(&dir).len(), 2);
    drop(store);
    let old = SystemTime::now() - MAX_AGE - Duration::from_secs(60);
    fs::File::options().append(true).open(&files(&dir)[0]).unwrap().set_modified(old).unwrap();
    let store = opened(&dir, limits);
    assert_eq!([1, 3].map(|n| store.has(&page(n))), [false, true]);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_folder_that_nobody_has_any_more_is_taken_over_within_the_limit() {
    let dir = scratch("left");
    let limits = Sizes { ram: 0, disk: 3 * on_disk(40) };
    let stores = [1, 3].map(|n| {
        let store = opened(&dir, limits);
        store.put(bundle(WHOSE, n, 40)).unwrap();
        store.put(bundle(WHOSE, n + 1, 40)).unwrap();
        store
    });
    drop(stores);
    let age = |seconds: u64| {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        for entry in fs::read_dir(dir.join("1")).unwrap() {
            let file = fs::File::options().append(true).open(entry.unwrap().path()).unwrap();
            file.set_modified(then).unwrap();
        }
    };
    let has = |store: &Store| [1, 2, 3, 4].map(|n| store.has(&page(n)));
    age(300);
    let store = opened(&dir, limits);
    store.take_over().unwrap();
    assert_eq!(has(&store), [true, true, false, false], "its worker may start again");
    drop(store);
    age(700);
    let store = opened(&dir, limits);
    assert_eq!(has(&store), [true, true, false, false], "not at once: its worker may start too");
    store.take_over().unwrap();
    assert_eq!(has(&store).iter().filter(|has| **has).count(), 3, "as many as there is room for");
    assert!(has(&store)[..2] == [true, true], "what was unused longest goes first");
    assert!(on_disk_of(&dir) <= limits.disk);
    for n in [1, 2, 3, 4] {
        let of = store.has(&page(n)).then(|| read(&store, n).unwrap());
        assert!(of.is_none_or(|bytes| bytes == bytes_of(n, 40)), "{n}");
    }
    drop(store);
    // Without room on the disk, records that are too old are dropped as well.
    let old = SystemTime::now() - MAX_AGE - Duration::from_secs(60);
    fs::File::options().append(true).open(&files(&dir)[0]).unwrap().set_modified(old).unwrap();
    drop(opened(&dir, Sizes { ram: 1 << 20, disk: 0 }));
    assert_eq!(files(&dir).len(), 2);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn records_of_several_bundles_come_in_the_order_they_were_asked_for() {
    let dir = scratch("runs");
    for limits in [Sizes { ram: 1 << 20, disk: 0 }, Sizes { ram: 0, disk: 1 << 20 }] {
        let store = opened(&dir, limits);
        let of = |layer: u64, n: u64| Id { line: key(layer), ..page(n) };
        let about = |id: Id| About {
            id,
            layer: 0,
            print: blake3::hash(b"0"),
            len: 64,
            has_pages: true,
            alone: true,
            pages: 1,
        };
        let value = |layer: u64, n: u64| bytes_of(10 * layer + n, 40 + layer as usize);
        let record = |layer: u64, n: u64| {
            let parts = vec![(0, true, value(layer, n))];
            NewRecord { about: about(of(layer, n)), parts }
        };
        for n in 1..3 {
            let layers: Vec<NewRecord> = (0..4).map(|layer| record(layer, n)).collect();
            store.put(encode(WHOSE, [3; 32], &layers)).unwrap();
        }
        let wanted = [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2), (2, 2), (0, 1)];
        let read = store.read(&wanted.map(|(layer, n)| of(layer, n))).unwrap();
        let bytes: Vec<Bytes> = read.iter().map(|read| read.bytes.clone()).collect();
        assert_eq!(bytes, wanted.map(|(layer, n)| value(layer, n)));
        assert!(read.iter().zip(wanted).all(|(r, (l, n))| r.record().about.id == of(l, n)));
        let absent = store.read(&[of(1, 1), of(1, 3)]).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_worker_that_follows_another_one_has_its_records_though_that_one_is_still_ending() {
    let dir = scratch("follow");
    let limits = Sizes { ram: 0, disk: 1 << 20 };
    let store = opened(&dir, limits);
    store.put(bundle(WHOSE, 1, 40)).unwrap();
    let next = std::thread::scope(|scope| {
        let next = scope.spawn(|| opened(&dir, limits));
        std::thread::sleep(Duration::from_millis(100));
        drop(store);
        next.join().unwrap()
    });
    assert!(next.has(&page(1)) && !dir.join("1").exists());
    drop(next);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn stages_of_a_node_share_the_room_by_need() {
    let dir = scratch("node");
    let limits = Sizes { ram: 0, disk: 4 * on_disk(40) };
    let book = Book::new(7).unwrap();
    let of_node = |number| {
        let memory = Amount::of_stage(1 << 40);
        let ledger = Ledger::of_node(book.inherited(), Share::new(number, 2), memory).unwrap();
        Store::open(
            Home::at(dir.clone(), Rate::new(BYTES_PER_SECOND)),
            limits,
            Rooms::of(&ledger, limits),
        )
        .unwrap()
    };
    let (first, second) = (of_node(1), of_node(2));
    let has = |store: &Store, ns: [u64; 4]| ns.map(|n| store.has(&page(n)));
    let put = |store: &Store, n| store.put(bundle(WHOSE, n, 40)).unwrap();
    let put_all = |store: &Store, ns: [u64; 4]| ns.map(|n| put(store, n));
    put_all(&first, [1, 2, 3, 4]);
    assert_eq!(has(&first, [1, 2, 3, 4]), [true; 4], "the other keeps nothing");
    assert_eq!(put(&second, 5), 0, "there is no room");
    first.give_back();
    assert_eq!(has(&first, [1, 2, 3, 4]), [false, false, true, true], "each is sure of a half");
    put_all(&second, [5, 6, 7, 8]);
    assert_eq!(has(&second, [5, 6, 7, 8]), [false, false, true, true]);
    assert!(on_disk_of(&dir) <= limits.disk);
    // A stage that comes again has what it left, if nobody has taken its room.
    drop(second);
    book.forget(Share::new(2, 2));
    let second = of_node(2);
    assert_eq!(has(&second, [5, 6, 7, 8]), [false, false, true, true]);
    put_all(&first, [1, 2, 3, 4]);
    assert_eq!(has(&first, [1, 2, 3, 4]), [false, false, true, true]);
    drop((first, second));
    fs::remove_dir_all(dir).unwrap();
}
