//! Copies on the worker's own disk: they survive the process, and the machine.
//!
//! They lie beside other records, as bundles of the same form ([`record`](crate::records::record)). Each copy is a bundle
//! of the pages that are new, and where a position is whole with it, a second one of what is valid there alone. That is
//! written last, so a position is either complete or absent. Old positions are removed, pages stay. When the worker
//! starts again, all bundles are verified, and a damaged one is left out with all pages behind it.
//!
//! Workers of one machine may share the folder, and have one limit there ([`space`](crate::records::space)). Each writes
//! files of its own, and finds those of all. The first file of a sequence is locked for as long as a worker writes that.
//! Where there is no room, the sequence goes that nobody has locked and that was written longest ago.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use brigade_engine::batch::{CopyName, TokenMark};
use brigade_engine::kernels::KV_PAGE;
use brigade_proto::limits::COPY_POSITIONS;
use bytes::Bytes;

use super::RESTS_KEPT;
use super::piece::Piece;
use super::store::{Budget, Head, Item, Store, What};
use super::taker::Taken;
use crate::records::folder::{CheckpointFile, Folder, Home, Sort, checkpoints, on_disk};
use crate::records::record::{About, Bundle, Checkpoint, Id, NewRecord, Record, checkpoint_head};
use crate::records::space::{Space, sequences};

/// Bytes of copies in a folder at most, of all workers that share it.
pub const DISK_BYTES: u64 = 64 << 30;

/// Copies on a disk.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    folder: Arc<Folder>,
    /// The index of copies in the folder.
    pub store: Arc<Store>,
    space: Space,
    /// Whether copies had no room when they were last written.
    is_full: AtomicBool,
    files: Mutex<Files>,
}

/// The files that are known, in whatever worker's folder.
#[derive(Debug, Default)]
struct Files {
    /// The sequences that are written.
    open: HashMap<CopyName, Open>,
    all: HashMap<CopyName, Vec<Kept>>,
    /// The next file's number.
    next: u64,
}

/// A sequence that is written.
#[derive(Debug)]
struct Open {
    head: Head,
    /// It is locked: no other worker removes the sequence.
    _first: File,
}

/// A file of a sequence.
#[derive(Debug)]
struct Kept {
    head: Arc<Head>,
    path: Arc<Path>,
    nbytes: u64,
    /// The position that is whole with it.
    at: Option<u32>,
}

/// A bundle that is to be written.
struct Draft {
    at: Option<(u32, TokenMark)>,
    items: Vec<(Item, Bytes)>,
    head: Vec<u8>,
    nbytes: u64,
}

impl Draft {
    fn of(head: &Head, at: Option<(u32, TokenMark)>, items: Vec<(Item, Bytes)>) -> Self {
        let records: Vec<NewRecord> =
            items.iter().map(|(item, bytes)| record_of(head, *item, bytes.clone())).collect();
        let Head { name, kind, layers, prints } = head.clone();
        let at_key = at.map(|(len, mark)| (len, mark.0));
        let of = Checkpoint { name: name.0, layers, prints, at: at_key };
        let head = checkpoint_head(&of, kind, &records);
        let data: usize = items.iter().map(|(_, bytes)| bytes.len()).sum();
        let nbytes = (head.len() + data) as u64;
        Self { at, items, head, nbytes }
    }
}

/// A bundle that was found.
struct Found {
    /// Where it belongs in the order of reading: pages first, by their places, then positions.
    order: (bool, u32, u64),
    written: SystemTime,
    at: Option<(u32, TokenMark)>,
    items: Vec<(Item, Piece)>,
    kept: Kept,
}

/// Bundles of one sequence and some of its layers.
struct Group {
    head: Arc<Head>,
    all: Vec<Found>,
}

impl Disk {
    /// Opens the folder of copies and lists the files in it. Blocks.
    ///
    /// # Errors
    /// The folder cannot be made or read. What cannot be read in it is left out.
    pub fn open(home: &Home, limit: u64) -> io::Result<Self> {
        // Copies are found in every worker's folder: any free one is as good.
        let (folder, _) = home.folder(Duration::ZERO)?;
        let dir = home.dir().to_owned();
        // The index has all that is there; what may be written is the folder's affair.
        let budget = Arc::new(Budget::default());
        budget.set_limit(u64::MAX);
        let store = Arc::new(Store::new(budget));
        let files = recover(&dir, &folder, &store)?;
        let (space, files) = (Space::open(&dir, limit)?, Mutex::new(files));
        Ok(Self { dir, folder, store, space, is_full: AtomicBool::new(false), files })
    }

    /// Writes a copy; returns its bytes. Nothing is written where there is no room.
    ///
    /// # Errors
    /// The disk refuses. Earlier copies stay valid.
    pub fn write(&self, taken: &Taken) -> io::Result<usize> {
        let (mut files, head) = (self.files(), &taken.head);
        let is_open = files.open.get(&head.name).is_some_and(|open| open.head == *head);
        let (rests, mut pages): (Vec<_>, Vec<_>) = taken
            .items
            .iter()
            .cloned()
            .partition(|(item, _)| matches!(item.what, What::Rest { .. }));
        pages.retain(|(item, _)| !self.store.has_pages(head, *item));
        let first = (!is_open).then(|| Draft::of(head, None, Vec::new()));
        let pages = (!pages.is_empty()).then(|| Draft::of(head, None, pages));
        let last = taken.at.map(|at| Draft::of(head, Some(at), rests));
        let drafts: Vec<Draft> = first.into_iter().chain(pages).chain(last).collect();
        let mut room = drafts.iter().map(|draft| on_disk(draft.nbytes)).sum();
        let has_room = self.make_room(&mut files, room)?;
        if self.is_full.swap(!has_room, Ordering::Relaxed) == has_room {
            let dir = self.dir.display();
            tracing::warn!(%dir, has_room, "there is room for checkpoints again, or there is none: all that is there belongs to streams that run");
        }
        if !has_room {
            return Ok(0);
        }
        if !is_open {
            let is_other = |kept: &Kept| kept.head.layers == head.layers && *kept.head != *head;
            self.remove(&mut files, head.name, is_other);
        }
        let written = self.write_all(&mut files, head, drafts, &mut room);
        self.space.give_back(room)?;
        written
    }

    /// Lets go of sequences whose files another worker has removed. Blocks.
    pub fn forget_removed(&self) {
        let mut files = self.files();
        for name in self.store.all_names() {
            let is_there = |kept: &Kept| kept.path.exists();
            let all = files.all.get(&name);
            if !files.open.contains_key(&name) && !all.is_some_and(|all| all.iter().any(is_there)) {
                self.store.forget(name);
                files.all.remove(&name);
            }
        }
    }

    /// The bytes that all workers' copies take in the folder, and their limit. Blocks.
    pub fn used(&self) -> Option<[u64; 2]> {
        self.space.used()
    }

    /// Removes a sequence's copies of these layers. Files of other layers belong to another worker.
    pub fn forget(&self, name: CopyName, layers: &Range<u32>) {
        let mut files = self.files();
        files.open.remove(&name);
        self.store.forget(name);
        self.remove(&mut files, name, |kept| kept.head.layers == *layers);
        files.all.remove(&name);
    }

    /// Writes bundles one after the other, of which those that follow a gap are left out. Takes what is written from `room`.
    fn write_all(
        &self,
        files: &mut Files,
        head: &Head,
        drafts: Vec<Draft>,
        room: &mut u64,
    ) -> io::Result<usize> {
        let (mut nbytes, head) = (0, Arc::new(head.clone()));
        for draft in drafts {
            let all = self.write_one(files, &head, &draft)?;
            *room -= on_disk(draft.nbytes);
            nbytes += draft.nbytes as usize;
            if !all {
                break;
            }
            if let Some((len, mark)) = draft.at {
                self.store.commit(&head, len, mark);
                let most = if draft.items.is_empty() { COPY_POSITIONS } else { RESTS_KEPT };
                self.drop_old(files, &head, most);
            }
        }
        Ok(nbytes)
    }

    /// Whether all of it is of use in the index.
    fn write_one(&self, files: &mut Files, head: &Arc<Head>, draft: &Draft) -> io::Result<bool> {
        let parts = draft.items.iter().map(|(_, bytes)| &bytes[..]);
        let parts: Vec<&[u8]> = std::iter::once(&draft.head[..]).chain(parts).collect();
        let path = self.folder.write(Sort::Checkpoint(head.name.0), files.next, &parts)?;
        files.next += 1;
        if files.open.get(&head.name).is_none_or(|open| open.head != **head) {
            let first = File::open(&path)?;
            // Nobody else has locked it: it is new.
            let _ = first.try_lock();
            files.open.insert(head.name, Open { head: (**head).clone(), _first: first });
        }
        let path: Arc<Path> = path.into();
        let (mut all, mut offset) = (true, draft.head.len() as u64);
        for (item, bytes) in &draft.items {
            let len = bytes.len() as u64;
            all &= self.store.put(head, *item, Piece::File { path: path.clone(), offset, len });
            offset += len;
        }
        let at = draft.at.map(|(len, _)| len);
        let kept = Kept { head: head.clone(), path, nbytes: on_disk(draft.nbytes), at };
        files.all.entry(head.name).or_default().push(kept);
        Ok(all)
    }

    /// Removes the files of positions that were written again, and of all but the newest `most`.
    fn drop_old(&self, files: &mut Files, head: &Head, most: usize) {
        let all = files.all.get(&head.name).map(Vec::as_slice).unwrap_or_default();
        let of_head = all.iter().filter(|kept| *kept.head == *head);
        let by_position: BTreeMap<u32, Arc<Path>> =
            of_head.filter_map(|kept| Some((kept.at?, kept.path.clone()))).collect();
        let newest: BTreeSet<Arc<Path>> = by_position.into_values().rev().take(most).collect();
        let is_old =
            |kept: &Kept| kept.at.is_some() && *kept.head == *head && !newest.contains(&kept.path);
        self.remove(files, head.name, is_old);
    }

    /// Removes some of a sequence's files. Those that cannot be removed are tried again at the next start.
    fn remove(&self, files: &mut Files, name: CopyName, is_gone: impl Fn(&Kept) -> bool) {
        let all = files.all.entry(name).or_default();
        for kept in all.extract_if(.., |kept| is_gone(kept)) {
            if fs::remove_file(&kept.path).is_ok() {
                // A number that is too high is measured again when it matters.
                let _ = self.space.give_back(kept.nbytes);
            }
        }
    }

    /// Takes room for so many bytes, and drops sequences that no worker writes while there is too little; whether there is room.
    fn make_room(&self, files: &mut Files, nbytes: u64) -> io::Result<bool> {
        if self.space.take(nbytes)? {
            return Ok(true);
        }
        self.space.measure()?;
        for sequence in sequences(&self.dir)? {
            if self.space.take(nbytes)? {
                return Ok(true);
            }
            if sequence.is_written() {
                continue;
            }
            let name = CopyName(sequence.name);
            self.store.forget(name);
            files.all.remove(&name);
            sequence.files.iter().for_each(|path| drop(fs::remove_file(path)));
            self.space.give_back(sequence.nbytes)?;
        }
        self.space.take(nbytes)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        // A file that was written and is not listed is of no use to the index either.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists the files of all workers' folders, and removes from the own one what is of no use.
fn recover(dir: &Path, own: &Folder, store: &Store) -> io::Result<Files> {
    let (mut files, mut useless) = (Files::default(), Vec::new());
    let mut by_name: BTreeMap<CopyName, Vec<Group>> = BTreeMap::new();
    for file in checkpoints(dir)? {
        files.next = files.next.max(file.no + 1);
        let bytes = match fs::read(&file.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => Bytes::from(read.unwrap_or_default()),
        };
        let Some(found) = found_in(&file, &bytes) else {
            useless.push(file.path);
            continue;
        };
        let groups = by_name.entry(found.kept.head.name).or_default();
        match groups.iter_mut().find(|group| group.head == found.kept.head) {
            Some(group) => group.all.push(found),
            None => groups.push(Group { head: found.kept.head.clone(), all: vec![found] }),
        }
    }
    let n_damaged = useless.len();
    for (name, mut groups) in by_name {
        // Of several kinds the newest stays in the index.
        groups.sort_by_key(|group| group.all.iter().map(|found| found.written).max());
        for Group { head, mut all } in groups {
            all.sort_by_key(|found| found.order);
            for Found { at, items, kept, .. } in all {
                let put = |(item, piece)| store.put(&head, item, piece);
                if items.into_iter().map(put).filter(|put| !put).count() > 0 {
                    // Pages before it are missing.
                    useless.push(kept.path.to_path_buf());
                    continue;
                }
                if let Some((len, mark)) = at {
                    store.commit(&head, len, mark);
                }
                files.all.entry(name).or_default().push(kept);
            }
        }
    }
    if !useless.is_empty() {
        let (dir, n) = (dir.display(), useless.len());
        tracing::warn!(%dir, n, n_damaged, "checkpoints are damaged, or pages before them are, and left out");
    }
    useless.iter().filter(|path| own.has(path)).for_each(|path| drop(fs::remove_file(path)));
    Ok(files)
}

/// The bundle in a file, if all of it is good.
fn found_in(file: &CheckpointFile, bytes: &Bytes) -> Option<Found> {
    let bundle = Bundle::verified(bytes)?;
    let Checkpoint { name, layers, prints, at } = bundle.checkpoint.clone()?;
    if name != file.name {
        return None;
    }
    let head = Head { name: CopyName(name), kind: bundle.kind, layers, prints };
    let path: Arc<Path> = file.path.as_path().into();
    let item = |record: &Record| {
        let Range { start: offset, .. } = bundle.place(record);
        let piece = Piece::File { path: path.clone(), offset, len: record.nbytes() };
        Some((item_of(record)?, piece))
    };
    let items: Vec<(Item, Piece)> = bundle.records.iter().map(item).collect::<Option<_>>()?;
    let begins = items.iter().map(|(item, _)| match item.what {
        What::Pages { first, .. } => first,
        What::Rest { len } => len,
    });
    let at = at.map(|(len, mark)| (len, TokenMark(mark)));
    let order = (at.is_some(), begins.min().unwrap_or_default(), file.no);
    let len = at.map(|(len, _)| len);
    let kept = Kept { head: Arc::new(head), path: path.clone(), nbytes: file.nbytes, at: len };
    Some(Found { order, written: file.written, at, items, kept })
}

/// An item as a record.
fn record_of(head: &Head, item: Item, bytes: Bytes) -> NewRecord {
    let Item { layer, block, paged, what } = item;
    let (len, pages) = match what {
        What::Pages { first, n } => ((first + n) * KV_PAGE as u32, n),
        What::Rest { len } => (len, 0),
    };
    let print = head.prints[(layer - head.layers.start) as usize];
    // The file's name says which sequence it is of; it has no keys of tokens.
    let id = Id { chain: head.name.0, line: [0; 16], tail: None };
    let about = About { id, layer, print, len, has_pages: paged, alone: false, pages };
    NewRecord { about, parts: vec![(block, paged, bytes)] }
}

/// The item that a record is of.
fn item_of(record: &Record) -> Option<Item> {
    let (about, part) = (&record.about, record.parts.first()?);
    let what = match about.pages {
        0 => What::Rest { len: about.len },
        n => What::Pages { first: (about.len / KV_PAGE as u32).checked_sub(n)?, n },
    };
    Some(Item { layer: about.layer, block: part.block, paged: part.paged, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::rate::Rate;
    use crate::records::{BYTES_PER_SECOND, MAX_AGE};

    const NAME: CopyName = CopyName([1; 16]);
    const MARK: TokenMark = TokenMark([2; 16]);

    /// Ten blocks of the file system.
    const LIMIT: u64 = 40 << 10;

    fn scratch(name: &str) -> PathBuf {
        let folder = format!("brigade-checkpoints-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    /// Ten bytes a page from page `first` on, seven bytes of a recurrent state.
    fn taken(first: u32, n: u32, at: Option<u32>) -> Taken {
        let prints = vec![blake3::hash(b"4"), blake3::hash(b"5")];
        let head = Head { name: NAME, kind: [3; 32], layers: 4..6, prints };
        let pages = Item { layer: 4, block: 0, paged: true, what: What::Pages { first, n } };
        let bytes: Vec<u8> = (first..first + n).flat_map(|page| [page as u8; 10]).collect();
        let mut items = vec![(pages, Bytes::from(bytes))];
        items.extend(at.map(|len| {
            let rest = Item { layer: 5, block: 0, paged: false, what: What::Rest { len } };
            (rest, Bytes::from(vec![len as u8; 7]))
        }));
        Taken::of(head, at.map(|len| (len, MARK)), items)
    }

    fn whole(disk: &Disk) -> Vec<u32> {
        disk.store.common(NAME, 4..6).into_iter().map(|(len, _)| len).collect()
    }

    fn bytes_at(disk: &Disk, len: u32) -> Vec<u8> {
        let pieces = disk.store.pieces(NAME, 4..6, len).unwrap();
        let all = pieces.blocks.iter().flat_map(|block| {
            block.pages.iter().map(|(_, piece)| piece).chain(&block.rest).collect::<Vec<_>>()
        });
        all.flat_map(|piece| piece.read().unwrap()).collect()
    }

    fn limited(dir: &Path, limit: u64) -> Disk {
        Disk::open(&Home::at(dir.to_owned(), Rate::new(BYTES_PER_SECOND)), limit).unwrap()
    }

    fn opened(dir: &Path) -> Disk {
        limited(dir, DISK_BYTES)
    }

    /// The files of checkpoints, in the order in which they were written.
    fn files(dir: &Path) -> Vec<PathBuf> {
        let mut all = checkpoints(dir).unwrap();
        all.sort_by_key(|file| file.no);
        all.into_iter().map(|file| file.path).collect()
    }

    #[test]
    fn what_was_written_is_there_after_a_restart() {
        let dir = scratch("restart");
        let disk = opened(&dir);
        disk.write(&taken(0, 2, None)).unwrap();
        assert!(whole(&disk).is_empty());
        disk.write(&taken(2, 1, Some(192))).unwrap();
        disk.write(&taken(3, 1, Some(256))).unwrap();
        let expected = [[0u8; 10], [1; 10], [2; 10]].concat().into_iter().chain([192; 7]);
        let expected: Vec<u8> = expected.collect();
        let again = opened(&dir);
        for disk in [&disk, &again] {
            assert_eq!(whole(disk), [192, 256]);
            assert_eq!(bytes_at(disk, 192), expected);
        }
        // The next one goes on where it was.
        again.write(&taken(4, 1, Some(320))).unwrap();
        again.write(&taken(5, 1, Some(384))).unwrap();
        assert_eq!(whole(&opened(&dir)), [256, 320, 384], "old positions go");
        again.forget(NAME, &(4..6));
        assert!(files(&dir).is_empty() && whole(&opened(&dir)).is_empty());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_a_crash_leaves_half_written_is_not_there() {
        let dir = scratch("crash");
        let disk = opened(&dir);
        disk.write(&taken(0, 3, Some(192))).unwrap();
        disk.write(&taken(3, 1, Some(256))).unwrap();
        let all = files(&dir);
        // The first one opens the sequence, then pages and a position follow twice.
        let [_, first_pages, _, pages, at] = &all[..] else { panic!("{all:?}") };
        for path in [pages, at] {
            let good = fs::read(path).unwrap();
            for n in 0..good.len() {
                fs::write(path, &good[..n]).unwrap();
                assert_eq!(whole(&opened(&dir)), [192], "{path:?} cut at {n}");
                let mut damaged = good.clone();
                damaged[n] ^= 0x10;
                fs::write(path, damaged).unwrap();
                assert_eq!(whole(&opened(&dir)), [192], "{path:?} byte {n}");
            }
            fs::write(path, &good).unwrap();
        }
        assert_eq!(whole(&opened(&dir)), [192, 256]);
        // The worker whose folder it is removes what is damaged, and writes it again.
        fs::write(pages, b"brg").unwrap();
        drop(disk);
        let again = opened(&dir);
        assert!(!pages.exists());
        again.write(&taken(3, 1, Some(256))).unwrap();
        assert_eq!(whole(&opened(&dir)), [192, 256]);
        // Pages behind a gap are of no use.
        let pages = files(&dir)[4].clone();
        drop(again);
        fs::remove_file(first_pages).unwrap();
        assert!(whole(&opened(&dir)).is_empty() && !pages.exists());
        fs::remove_dir_all(dir).unwrap();
    }

    /// A copy of one page of so many bytes, and of no state beside it, of layer 4.
    fn page_of(name: u8, nbytes: usize) -> Taken {
        let (name, prints) = (CopyName([name; 16]), vec![blake3::hash(b"4")]);
        let head = Head { name, kind: [3; 32], layers: 4..5, prints };
        let pages = Item { layer: 4, block: 0, paged: true, what: What::Pages { first: 0, n: 1 } };
        Taken::of(head, Some((64, MARK)), vec![(pages, Bytes::from(vec![name.0[0]; nbytes]))])
    }

    /// Blocks of the file system that all copies take.
    fn used(disk: &Disk) -> u64 {
        disk.used().unwrap()[0] / on_disk(1)
    }

    #[test]
    fn workers_that_share_a_folder_have_one_limit() {
        let dir = scratch("shared");
        let [first, second] = [0; 2].map(|_| limited(&dir, LIMIT));
        let has = |disk: &Disk, name: u8| !disk.store.find(CopyName([name; 16])).is_empty();
        // Two files of a block each are about the pages.
        assert!(first.write(&page_of(1, 6000)).unwrap() > 6000);
        assert_eq!(used(&second), 4, "each sees what the other has");
        // What another worker writes stays.
        assert_eq!(second.write(&page_of(2, 20_000)).unwrap(), 0);
        assert!(!has(&second, 2));
        assert!(second.write(&page_of(2, 2000)).unwrap() > 2000);
        // A worker that has ended writes nothing: the sequence of longest ago goes, that of the other stays.
        drop(first);
        assert!(second.write(&page_of(3, 10_000)).unwrap() > 10_000);
        let third = limited(&dir, LIMIT);
        assert_eq!([1, 2, 3].map(|name| has(&third, name)), [false, true, true]);
        second.forget(CopyName([3; 16]), &(4..5));
        third.forget_removed();
        assert_eq!([2, 3].map(|name| has(&third, name)), [true, false]);
        assert_eq!(used(&third), 3);
        // A number that a killed process left wrong is measured again when it matters.
        fs::write(dir.with_extension("checkpoint-bytes"), LIMIT.to_le_bytes()).unwrap();
        assert!(second.write(&page_of(4, 10_000)).unwrap() > 10_000);
        assert_eq!(used(&third), 8);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn old_checkpoints_go_and_those_of_other_workers_stay() {
        let dir = scratch("old");
        let [first, second] = [0; 2].map(|_| opened(&dir));
        first.write(&page_of(1, 100)).unwrap();
        second.write(&page_of(2, 100)).unwrap();
        let old = SystemTime::now() - MAX_AGE - Duration::from_secs(60);
        for path in files(&dir) {
            File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
        }
        drop(first);
        let third = opened(&dir);
        let has = |name: u8| !third.store.find(CopyName([name; 16])).is_empty();
        assert_eq!([1, 2].map(has), [false, true], "it runs, and its files are its own");
        assert_eq!((files(&dir).len(), used(&third)), (3, 3));
        fs::remove_dir_all(dir).unwrap();
    }
}
