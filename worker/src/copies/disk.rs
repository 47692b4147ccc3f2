//! Copies on the worker's own disk: they survive the process, and the machine.
//!
//! A sequence has a folder for each range of layers that was copied. The file `pages` grows. A file `at-N` has the
//! state that is valid at position N alone. It is written and renamed last, when all pages before it are on the disk,
//! so a position is either complete or absent. Every record has a hash. After a crash, everything behind the first
//! bad record is cut off.
//!
//! Workers of one machine may share the folder, and have one limit there ([`space`]). Each writes files of its own layers, which it
//! has locked for as long as it runs. Where there is no room, the sequence goes that nobody has locked and that was written
//! longest ago.

mod space;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_engine::batch::{CopyName, TokenMark};
use brigade_proto::copies::{CopyPart, copy_part};
use brigade_proto::limits::{COPY_POSITIONS, MAX_SMALL_BYTES};
use bytes::Bytes;
use prost::Message;

use self::space::{Space, bytes_in, folders, sequences};
use super::RESTS_KEPT;
use super::parts::{self, Assembler, Event};
use super::piece::Piece;
use super::store::{Budget, Head, Item, Store, What};
use super::taker::Taken;

/// Bytes of copies in a folder at most, of all workers that share it.
pub const DISK_BYTES: u64 = 64 << 30;

/// Bytes of a record's hash.
const CHECK_BYTES: usize = 16;

/// Bytes of a record beside the item's own, at most.
const RECORD_BYTES: u64 = 256;

/// Where full pages are, in a sequence's folder.
const PAGES: &str = "pages";

/// Begins the name of a position's file.
const AT: &str = "at-";

/// Copies on a disk.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    /// The index of copies in the folder.
    pub store: Arc<Store>,
    space: Space,
    /// Whether copies had no room when they were last written.
    is_full: AtomicBool,
    open: Mutex<HashMap<CopyName, Open>>,
}

/// A folder that is written to.
#[derive(Debug)]
struct Open {
    folder: PathBuf,
    head: Head,
    /// It is locked: no other worker removes it.
    pages: Arc<File>,
    len: u64,
}

impl Disk {
    /// Opens a folder of copies and lists the files in it. Blocks.
    ///
    /// # Errors
    /// The folder cannot be made or read. A sequence that cannot be read is left out with a warning.
    pub fn open(dir: PathBuf, limit: u64) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        // The index has all that is there; what may be written is the folder's affair.
        let budget = Arc::new(Budget::default());
        budget.set_limit(u64::MAX);
        let (store, space) = (Arc::new(Store::new(budget)), Space::open(&dir, limit)?);
        let disk =
            Self { dir, store, space, is_full: AtomicBool::new(false), open: Mutex::default() };
        for folder in folders(&disk.dir)?.iter().flat_map(|of| folders(of).unwrap_or_default()) {
            if let Err(error) = disk.recover(&folder) {
                let path = folder.display();
                tracing::warn!(%path, %error, "a checkpoint cannot be read");
            }
        }
        Ok(disk)
    }

    /// Writes a copy; returns its bytes. Nothing is written where there is no room.
    ///
    /// # Errors
    /// The disk refuses. Earlier copies stay valid.
    pub fn write(&self, taken: &Taken) -> io::Result<usize> {
        let mut all = self.all();
        let (head, room) = (&taken.head, most_bytes(taken));
        let has_room = self.make_room(room)?;
        if self.is_full.swap(!has_room, Ordering::Relaxed) == has_room {
            let dir = self.dir.display();
            tracing::warn!(%dir, has_room, "there is room for checkpoints again, or there is none: all that is there belongs to streams that run");
        }
        if !has_room {
            return Ok(0);
        }
        let folder = self.folder_of(head.name, &head.layers);
        let before = bytes_in(&folder);
        let written = self.write_to(&mut all, taken);
        self.space.replace(room.saturating_add(before), bytes_in(&folder))?;
        written
    }

    /// Lets go of sequences whose files another worker has removed: the disk frees their bytes when nobody has them open. Blocks.
    pub fn forget_removed(&self) {
        let all = self.all();
        for name in self.store.all_names() {
            if !all.contains_key(&name) && !self.folder(name).exists() {
                self.store.forget(name);
            }
        }
    }

    /// The bytes that all workers' copies take in the folder, and their limit. Blocks.
    pub fn used(&self) -> Option<[u64; 2]> {
        self.space.used()
    }

    fn write_to(&self, all: &mut HashMap<CopyName, Open>, taken: &Taken) -> io::Result<usize> {
        let head = &taken.head;
        if all.get(&head.name).is_none_or(|open| open.head != *head) {
            all.insert(head.name, self.begin(head)?);
        }
        let Some(open) = all.get_mut(&head.name) else { return Ok(0) };
        let (mut nbytes, mut rests, mut spoilt) = (0, Vec::new(), false);
        for (item, bytes) in &taken.items {
            if let What::Rest { .. } = item.what {
                rests.push((*item, bytes.clone()));
            } else if !self.store.has_pages(head, *item) {
                let piece = open.append(*item, bytes)?;
                nbytes += bytes.len();
                spoilt |= !self.store.put(head, *item, piece);
            }
        }
        if let Some((len, mark)) = taken.at.filter(|_| !spoilt) {
            open.pages.sync_data()?;
            nbytes += self.write_at(open, len, mark, &rests)?;
        }
        Ok(nbytes)
    }

    /// Removes a sequence's copies of these layers.
    pub fn forget(&self, name: CopyName, layers: &Range<u32>) {
        self.all().remove(&name);
        self.store.forget(name);
        // Files that cannot be removed are tried again at the next start. Files of other layers belong to another
        // worker.
        self.remove(&self.folder_of(name, layers), bytes_in);
        let _ = fs::remove_dir(self.folder(name));
    }

    /// Removes a folder of so many bytes as `measured`. What cannot be counted is, when the folder is measured again.
    fn remove(&self, folder: &Path, measured: impl Fn(&Path) -> u64) {
        let before = measured(folder);
        let _ = fs::remove_dir_all(folder);
        let _ = self.space.replace(before, measured(folder));
    }

    fn folder(&self, name: CopyName) -> PathBuf {
        self.dir.join(name.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    fn folder_of(&self, name: CopyName, layers: &Range<u32>) -> PathBuf {
        self.folder(name).join(format!("{}-{}", layers.start, layers.end))
    }

    /// The folder of some layers of a sequence: as it is, if it has copies of the same kind, else empty.
    fn begin(&self, head: &Head) -> io::Result<Open> {
        let folder = self.folder_of(head.name, &head.layers);
        let path = folder.join(PAGES);
        let before = fs::read(&path).ok();
        let before = before.as_deref().and_then(records);
        let good = before.filter(|(of, ..)| of.head() == Some(head)).map(|(.., good)| good);
        if good.is_none() {
            if folder.exists() {
                fs::remove_dir_all(&folder)?;
            }
            fs::create_dir_all(&folder)?;
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
        // Another worker that has it would have other layers.
        let _ = file.try_lock();
        let len = good.unwrap_or(0) as u64;
        file.set_len(len)?;
        let mut open = Open { folder, head: head.clone(), len, pages: Arc::new(file) };
        if len == 0 {
            open.write(&record(&parts::head(head), &[]))?;
        }
        Ok(open)
    }

    fn write_at(
        &self,
        open: &Open,
        len: u32,
        mark: TokenMark,
        rests: &[(Item, Bytes)],
    ) -> io::Result<usize> {
        let mut bytes = record(&parts::head(&open.head), &[]);
        let mut places = Vec::new();
        for (item, data) in rests {
            let begun = record(&item_message(*item, data), data);
            places.push((bytes.len() + begun.len() - CHECK_BYTES - data.len(), data.len()));
            bytes.extend(begun);
        }
        bytes.extend(record(&parts::end(Some((len, mark))), &[]));
        let (path, draft) = (open.folder.join(format!("{AT}{len}")), open.folder.join("draft"));
        let mut file = File::create(&draft)?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        fs::rename(&draft, &path)?;
        let file = Arc::new(File::open(&path)?);
        let mut kept = true;
        for ((item, _), (offset, len)) in rests.iter().zip(places) {
            let (offset, len) = (offset as u64, len as u64);
            kept &=
                self.store.put(&open.head, *item, Piece::File { file: file.clone(), offset, len });
        }
        if kept {
            self.store.commit(&open.head, len, mark);
        }
        let most = if rests.is_empty() { COPY_POSITIONS } else { RESTS_KEPT };
        let old = positions(&open.folder)?;
        for len in &old[..old.len().saturating_sub(most)] {
            fs::remove_file(open.folder.join(format!("{AT}{len}")))?;
        }
        Ok(bytes.len())
    }

    /// Takes room for so many bytes, and drops sequences that no worker writes while there is too little; whether there is room.
    fn make_room(&self, nbytes: u64) -> io::Result<bool> {
        if self.space.take(nbytes)? {
            return Ok(true);
        }
        self.space.measure()?;
        for sequence in sequences(&self.dir)? {
            if self.space.take(nbytes)? {
                return Ok(true);
            }
            let folder = &sequence.folder;
            if is_written(folder) {
                continue;
            }
            if let Some(name) = named(folder) {
                self.store.forget(name);
            }
            self.remove(folder, |folder| if folder.exists() { sequence.nbytes } else { 0 });
        }
        self.space.take(nbytes)
    }

    fn recover(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(PAGES);
        let bytes = fs::read(&path)?;
        let missing = || io::Error::other("the checkpoint has no head that names its sequence");
        let (assembler, items, _) = records(&bytes).ok_or_else(missing)?;
        let head = assembler.head().ok_or_else(missing)?.clone();
        let file = Arc::new(File::open(&path)?);
        for (item, offset, len) in items {
            self.store.put(&head, item, Piece::File { file: file.clone(), offset, len });
        }
        for len in positions(folder)? {
            let path = folder.join(format!("{AT}{len}"));
            let bytes = fs::read(&path)?;
            let Some((mark, items)) = position(&bytes, &head, len) else { continue };
            let file = Arc::new(File::open(&path)?);
            for (item, offset, n) in items {
                let item = Item { what: What::Rest { len }, ..item };
                self.store.put(&head, item, Piece::File { file: file.clone(), offset, len: n });
            }
            self.store.commit(&head, len, mark);
        }
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<CopyName, Open>> {
        // A write that failed half-way is noticed by its record's hash.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Appends an item; where its bytes are.
    fn append(&mut self, item: Item, data: &Bytes) -> io::Result<Piece> {
        let record = record(&item_message(item, data), data);
        let offset = self.len + (record.len() - CHECK_BYTES - data.len()) as u64;
        self.write(&record)?;
        Ok(Piece::File { file: self.pages.clone(), offset, len: data.len() as u64 })
    }

    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        (&*self.pages).write_all(record)?;
        self.len += record.len() as u64;
        Ok(())
    }
}

/// The message that announces an item.
fn item_message(item: Item, data: &Bytes) -> CopyPart {
    parts::item(item, data.clone()).next().unwrap_or_default()
}

/// Length of the message, message, data, hash.
fn record(message: &CopyPart, data: &[u8]) -> Vec<u8> {
    let header = message.encode_to_vec();
    let mut bytes = (header.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(data);
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(&hash.as_bytes()[..CHECK_BYTES]);
    bytes
}

/// An item and where its bytes are.
type Place = (Item, u64, u64);

/// The good records at the beginning of a file: whose they are, their items, and where they end.
fn records(bytes: &[u8]) -> Option<(Assembler, Vec<Place>, usize)> {
    let mut assembler = Assembler::default();
    let (mut items, mut good) = (Vec::new(), 0);
    while let Some((message, data, end)) = next_record(bytes, good) {
        let offset = data.start as u64;
        match assembler.take(message).ok()? {
            None if data.is_empty() => {}
            None => {
                items.push((assembler.skip()?, offset, data.len() as u64));
            }
            Some(_) => return Some((assembler, items, good)),
        }
        good = end;
    }
    assembler.head()?;
    Some((assembler, items, good))
}

/// The mark and the items of a position's file, if it is whole and of the sequence and layers of `head`.
fn position(bytes: &[u8], head: &Head, len: u32) -> Option<(TokenMark, Vec<Place>)> {
    let (mut assembler, items, good) = records(bytes)?;
    let (last, _, _) = next_record(bytes, good)?;
    match assembler.take(last).ok()? {
        Some(Event::End(Some((at, mark)))) if at == len && assembler.head() == Some(head) => {
            Some((mark, items))
        }
        _ => None,
    }
}

/// The record that begins at `at`, if its hash is right: message, place of the data, end.
fn next_record(bytes: &[u8], at: usize) -> Option<(CopyPart, Range<usize>, usize)> {
    let (size, rest) = bytes.get(at..)?.split_first_chunk::<4>()?;
    let size = u32::from_le_bytes(*size) as usize;
    if size > MAX_SMALL_BYTES * COPY_POSITIONS {
        return None;
    }
    let message = CopyPart::decode(rest.get(..size)?).ok()?;
    let nbytes = match &message.part {
        Some(copy_part::Part::Item(item)) => usize::try_from(item.nbytes).ok()?,
        _ => 0,
    };
    let begin = at + 4 + size;
    let data = begin..begin.checked_add(nbytes)?;
    let end = data.end.checked_add(CHECK_BYTES)?;
    let check = bytes.get(data.end..end)?;
    let hash = blake3::hash(&bytes[at..data.end]);
    (hash.as_bytes()[..CHECK_BYTES] == *check).then_some((message, data, end))
}

/// The bytes that a copy takes at most.
fn most_bytes(taken: &Taken) -> u64 {
    let head = record(&parts::head(&taken.head), &[]).len() as u64;
    let items = taken.items.iter().map(|(_, bytes)| bytes.len() as u64 + RECORD_BYTES);
    // Both files begin with the head, and one ends with a mark.
    items.sum::<u64>() + 2 * head + RECORD_BYTES
}

/// Whether a worker writes a sequence, of whatever layers.
fn is_written(folder: &Path) -> bool {
    let is_locked = |layers: &PathBuf| {
        File::open(layers.join(PAGES)).is_ok_and(|pages| pages.try_lock().is_err())
    };
    folders(folder).unwrap_or_default().iter().any(is_locked)
}

/// The name of the sequence that a folder is of.
fn named(folder: &Path) -> Option<CopyName> {
    let text = folder.file_name()?.to_str()?;
    let mut name = [0; 16];
    for (i, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(CopyName(name))
}

/// Positions that have a file, ascending.
fn positions(folder: &Path) -> io::Result<Vec<u32>> {
    let mut found = HashSet::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(AT));
        found.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    let mut found: Vec<u32> = found.into_iter().collect();
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: CopyName = CopyName([1; 16]);
    const MARK: TokenMark = TokenMark([2; 16]);

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

    #[test]
    fn what_was_written_is_there_after_a_restart() {
        let dir = scratch("restart");
        let disk = Disk::open(dir.clone(), 10_000).unwrap();
        disk.write(&taken(0, 2, None)).unwrap();
        assert!(whole(&disk).is_empty());
        disk.write(&taken(2, 1, Some(192))).unwrap();
        disk.write(&taken(3, 1, Some(256))).unwrap();
        let expected = [[0u8; 10], [1; 10], [2; 10]].concat().into_iter().chain([192; 7]);
        let expected: Vec<u8> = expected.collect();
        let again = Disk::open(dir.clone(), 10_000).unwrap();
        for disk in [&disk, &again] {
            assert_eq!(whole(disk), [192, 256]);
            assert_eq!(bytes_at(disk, 192), expected);
        }
        // The next one goes on where it was.
        again.write(&taken(4, 1, Some(320))).unwrap();
        assert_eq!(whole(&Disk::open(dir.clone(), 10_000).unwrap()), [192, 256, 320]);
        again.forget(NAME, &(4..6));
        assert!(whole(&Disk::open(dir.clone(), 10_000).unwrap()).is_empty());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_a_crash_leaves_half_written_is_not_there() {
        let dir = scratch("crash");
        let disk = Disk::open(dir.clone(), 10_000).unwrap();
        disk.write(&taken(0, 3, Some(192))).unwrap();
        let before = fs::read(dir.join("01".repeat(16)).join("4-6").join(PAGES)).unwrap().len();
        disk.write(&taken(3, 1, Some(256))).unwrap();
        let folder = dir.join("01".repeat(16)).join("4-6");
        let (pages, at) = (folder.join(PAGES), folder.join("at-256"));
        let (all, position) = (fs::read(&pages).unwrap(), fs::read(&at).unwrap());
        for n in before..all.len() {
            fs::write(&pages, &all[..n]).unwrap();
            assert_eq!(whole(&Disk::open(dir.clone(), 10_000).unwrap()), [192], "cut at {n}");
        }
        fs::write(&pages, &all).unwrap();
        for n in 0..position.len() {
            let mut damaged = position.clone();
            damaged[n] ^= 0x10;
            fs::write(&at, damaged).unwrap();
            assert_eq!(whole(&Disk::open(dir.clone(), 10_000).unwrap()), [192], "byte {n}");
        }
        // Written to again, the bad end is cut off.
        fs::write(&pages, &all[..all.len() - 1]).unwrap();
        let again = Disk::open(dir.clone(), 10_000).unwrap();
        again.write(&taken(3, 1, Some(256))).unwrap();
        assert_eq!(whole(&Disk::open(dir.clone(), 10_000).unwrap()), [192, 256]);
        fs::remove_dir_all(dir).unwrap();
    }

    /// A copy of one page of so many bytes, and of no state beside it, of layer 4.
    fn page_of(name: u8, nbytes: usize) -> Taken {
        let (name, prints) = (CopyName([name; 16]), vec![blake3::hash(b"4")]);
        let head = Head { name, kind: [3; 32], layers: 4..5, prints };
        let pages = Item { layer: 4, block: 0, paged: true, what: What::Pages { first: 0, n: 1 } };
        Taken::of(head, Some((64, MARK)), vec![(pages, Bytes::from(vec![name.0[0]; nbytes]))])
    }

    fn used(disk: &Disk) -> u64 {
        let [used, _] = disk.used().unwrap();
        used
    }

    #[test]
    fn workers_that_share_a_folder_have_one_limit() {
        let dir = scratch("shared");
        let [first, second] = [0; 2].map(|_| Disk::open(dir.clone(), 10_000).unwrap());
        let has = |disk: &Disk, name: u8| !disk.store.find(CopyName([name; 16])).is_empty();
        assert!(first.write(&page_of(1, 6000)).unwrap() > 6000);
        assert!((6000..7000).contains(&used(&second)), "each sees what the other has");
        // What another worker writes stays.
        assert_eq!(second.write(&page_of(2, 4000)).unwrap(), 0);
        assert!(!has(&second, 2));
        assert!(second.write(&page_of(2, 2000)).unwrap() > 2000);
        // A worker that has ended writes nothing: the sequence of longest ago goes, that of the other stays.
        drop(first);
        assert!(second.write(&page_of(3, 4000)).unwrap() > 4000);
        let third = Disk::open(dir.clone(), 10_000).unwrap();
        assert_eq!([1, 2, 3].map(|name| has(&third, name)), [false, true, true]);
        second.forget(CopyName([3; 16]), &(4..5));
        third.forget_removed();
        assert_eq!([2, 3].map(|name| has(&third, name)), [true, false]);
        assert!((2000..3000).contains(&used(&third)));
        // A number that a killed process left wrong is measured again when it matters.
        fs::write(dir.with_extension("bytes"), 10_000u64.to_le_bytes()).unwrap();
        assert!(second.write(&page_of(4, 4000)).unwrap() > 4000);
        assert!((6000..7500).contains(&used(&third)));
        fs::remove_dir_all(dir).unwrap();
    }
}
