//! The index of records in both tiers, memory and disk. Both tiers keep to their limits at every moment: the longest
//! unused bundle makes room first. Stages of a node share the room of each tier.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::MAX_BUNDLES;
use crate::machine::ledger::Ledger;
use crate::machine::ledger::room::{Medium, Room};
use crate::records::folder::{Folder, Found, Home, LET_GO_WITHIN, Sort, on_disk};
use crate::records::record::{Bundle, Id, Record, Whose, verify};
use crate::records::{Key, MAX_AGE};

/// How long after its start a worker looks for folders that are left over: those who share the cache have started then.
const OTHERS_START_WITHIN: Duration = Duration::from_secs(60);

/// How much the tiers may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Limit of bytes in memory.
    pub ram: u64,
    /// Bytes on the disk.
    pub disk: u64,
}

impl Sizes {
    /// Whether anything is kept.
    pub fn any(&self) -> bool {
        self.ram > 0 || self.disk > 0
    }
}

/// Bytes in use by both tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes used in memory.
    pub ram: u64,
    /// Bytes on the disk.
    pub disk: u64,
    /// Number of bundles in either tier.
    pub bundles: u64,
}

/// The room of both tiers.
#[derive(Debug)]
pub struct Rooms {
    /// In memory.
    pub ram: Room,
    /// On the disk.
    pub disk: Room,
}

impl Rooms {
    /// That of a worker with this ledger, whose node may take so much.
    pub fn of(ledger: &Ledger, limits: Sizes) -> Self {
        let Sizes { ram, disk } = limits;
        Self { ram: ledger.room(Medium::Ram, ram), disk: ledger.room(Medium::Disk, disk) }
    }
}

/// One of the two tiers.
#[derive(Debug)]
struct Tier {
    room: Room,
    /// What it may take now.
    limit: u64,
    used: u64,
    /// Bundles by their last use.
    by_use: BTreeSet<(u64, u64)>,
}

impl Tier {
    fn new(room: Room) -> Self {
        Self { room, limit: 0, used: 0, by_use: BTreeSet::new() }
    }

    /// Asks for room for `more` bytes.
    fn ask(&mut self, more: u64) {
        self.limit = self.room.ask(self.used.saturating_add(more));
    }

    /// Gives back what it does not use.
    fn settle(&self) {
        self.room.settle(self.used);
    }

    fn has_room(&self, nbytes: u64) -> bool {
        self.used.saturating_add(nbytes) <= self.limit
    }

    fn oldest(&self) -> Option<u64> {
        self.by_use.first().map(|(_, no)| *no)
    }
}

/// A bundle that is here.
#[derive(Debug)]
struct Held {
    bundle: Arc<Bundle>,
    /// All of its bytes, if they are in memory.
    memory: Option<Bytes>,
    is_on_disk: bool,
    used: u64,
    read_at: SystemTime,
}

#[derive(Debug)]
struct Inner {
    bundles: BTreeMap<u64, Held>,
    /// For each record its bundle, and its place there.
    ids: BTreeMap<Id, (u64, usize)>,
    ram: Tier,
    disk: Tier,
    uses: u64,
    next: u64,
}

/// Where a record is.
struct Place {
    /// Number of its bundle.
    no: u64,
    bundle: Arc<Bundle>,
    /// Index of the record in the bundle.
    at: usize,
    /// All of the bundle's bytes, if they are in memory.
    memory: Option<Bytes>,
}

impl Place {
    fn record(&self) -> &Record {
        &self.bundle.records[self.at]
    }

    fn range(&self) -> Range<u64> {
        self.bundle.place(self.record())
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        self.no == next.no && self.range().end == next.range().start
    }
}

/// A record that was read.
#[derive(Debug)]
pub struct Read {
    /// The head of its bundle.
    pub bundle: Arc<Bundle>,
    /// Index of the record in the bundle.
    pub at: usize,
    /// The record's bytes.
    pub bytes: Bytes,
}

impl Read {
    /// The record's contents and properties.
    pub fn record(&self) -> &Record {
        &self.bundle.records[self.at]
    }
}

/// All records of this worker.
#[derive(Debug)]
pub struct Store {
    inner: Mutex<Inner>,
    home: Arc<Home>,
    folder: Option<Arc<Folder>>,
    /// Held while a bundle is written. When folders that are left over are looked for.
    writing: Mutex<Option<Instant>>,
}

impl Store {
    /// Opens the folder at home, if the disk may be used at all, and lists its bundles. `limits` are those of `rooms`. Blocks.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open(home: Arc<Home>, limits: Sizes, rooms: Rooms) -> io::Result<Self> {
        let mut inner = Inner::new(rooms);
        let (folder, found) = match limits.disk {
            0 => {
                Folder::expire(home.dir());
                (None, Vec::new())
            }
            _ => home.folder(LET_GO_WITHIN).map(|(folder, found)| (Some(folder), found))?,
        };
        inner.insert_found(found);
        let looks = Instant::now() + OTHERS_START_WITHIN;
        let (inner, writing) = (Mutex::new(inner), Mutex::new(Some(looks)));
        let store = Self { inner, home, folder, writing };
        let mut inner = store.inner();
        store.take_room(&mut inner, 0);
        inner.settle();
        let (bundles, used) = (inner.bundles.len(), inner.disk.used);
        tracing::info!(bundles, on_disk = used, ?limits, "records of kept prefixes");
        drop(inner);
        Ok(store)
    }

    /// Where the records lie.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Whether a record is here.
    pub fn has(&self, id: &Id) -> bool {
        self.inner().ids.contains_key(id)
    }

    /// The bundle that has a record, and the record's index there; `None`: it is not here.
    pub fn find(&self, id: &Id) -> Option<(Arc<Bundle>, usize)> {
        self.inner().place(id).map(|Place { bundle, at, .. }| (bundle, at))
    }

    /// Bytes in use by both tiers.
    pub fn used(&self) -> Used {
        let inner = self.inner();
        Used { ram: inner.ram.used, disk: inner.disk.used, bundles: inner.bundles.len() as u64 }
    }

    /// Keeps a bundle in every tier that has room for it. Returns the bytes that it takes on the disk. Blocks.
    ///
    /// # Errors
    /// The disk refuses. Earlier bundles stay valid.
    pub fn put(&self, bytes: Vec<u8>) -> io::Result<u64> {
        let mut looks = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.take_if(|at| *at <= Instant::now()).is_some()
            && let Err(error) = self.take_over()
        {
            tracing::warn!(%error, "records that a worker has left cannot be taken over");
        }
        let bundle = Bundle::decode(&bytes)
            .ok_or_else(|| io::Error::other("it is not a file of records (bundle)"))?;
        let (nbytes, takes) = (bytes.len() as u64, on_disk(bytes.len() as u64));
        let (no, writes, keeps) = {
            let mut inner = self.inner();
            self.take_room(&mut inner, nbytes);
            inner.next += 1;
            let writes = self.folder.is_some() && inner.disk.has_room(takes);
            if writes {
                // It counts while it is written.
                inner.disk.used += takes;
            }
            (inner.next - 1, writes, inner.ram.has_room(nbytes))
        };
        let written = match &self.folder {
            Some(folder) if writes => folder.write(Sort::Prefix, no, &[&bytes]).map(drop),
            _ => Ok(()),
        };
        let mut inner = self.inner();
        if writes {
            inner.disk.used -= takes;
        }
        let is_on_disk = writes && written.is_ok();
        let memory = keeps.then(|| Bytes::from(bytes));
        if is_on_disk || memory.is_some() {
            inner.insert(no, bundle, memory, is_on_disk, SystemTime::now());
        }
        inner.settle();
        written.map(|()| if is_on_disk { takes } else { 0 })
    }

    /// Takes over what workers have left that do not start again. Blocks.
    fn take_over(&self) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let next = self.inner().next;
        // Numbers are given out under the writer's lock.
        let found = folder.take_over(next)?;
        let mut inner = self.inner();
        inner.insert_found(found);
        inner.order_by_reading();
        self.take_room(&mut inner, 0);
        inner.settle();
        Ok(())
    }

    /// Drops the longest unused bundles for which other stages of the node leave no room any more. Blocks.
    pub fn give_back(&self) {
        let mut inner = self.inner();
        inner.ram.limit = inner.ram.room.most();
        inner.disk.limit = inner.disk.room.most();
        self.make_room(&mut inner, 0);
        inner.settle();
    }

    /// Takes room for a bundle of `nbytes` beside what is there, as far as the node's other stages leave it, and drops the
    /// longest unused bundles where that is too little.
    fn take_room(&self, inner: &mut Inner, nbytes: u64) {
        // What is there in the end was asked for: others may have taken what was left, while bundles were dropped.
        for _ in 0..2 {
            inner.ram.ask(nbytes);
            inner.disk.ask(on_disk(nbytes));
            self.make_room(inner, nbytes);
        }
    }

    /// Records with their bundles and their bytes, checked, in the order of `ids`. Records that lie behind each other
    /// in one file are read at once. Blocks. A bundle with a damaged one goes.
    ///
    /// # Errors
    /// One is not here, or damaged.
    pub fn read(&self, ids: &[Id]) -> io::Result<Vec<Read>> {
        let found: Vec<Place> = {
            let inner = self.inner();
            ids.iter().map(|id| inner.place(id)).collect::<Option<_>>()
        }
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut all = Vec::with_capacity(ids.len());
        for run in found.chunk_by(Place::is_followed_by) {
            match self.read_run(run) {
                Ok(read) => all.extend(read),
                Err(error) => {
                    let bundle = run[0].no;
                    tracing::warn!(bundle, %error, "a record of a prefix cannot be read, and is dropped");
                    self.drop_bundle(&mut self.inner(), bundle);
                    return Err(error);
                }
            }
        }
        Ok(all)
    }

    /// Records of one bundle that lie behind each other.
    fn read_run(&self, run: &[Place]) -> io::Result<Vec<Read>> {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let whole = first.range().start..last.range().end;
        let bytes = match (&first.memory, &self.folder) {
            (Some(bytes), _) => bytes.slice(whole.start as usize..whole.end as usize),
            (None, Some(folder)) => folder.read(first.no, whole.clone())?,
            (None, None) => return Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let read = |place: &Place| {
            let Range { start, end } = place.range();
            let own = (start - whole.start) as usize..(end - whole.start) as usize;
            let bytes = verify(place.record(), bytes.slice(own))?;
            Ok(Read { bundle: place.bundle.clone(), at: place.at, bytes })
        };
        run.iter().map(read).collect()
    }

    /// Notes a use of these records: their bundles stay longer. Blocks.
    pub fn touch<'a>(&self, ids: impl Iterator<Item = &'a Id>) {
        let mut inner = self.inner();
        let nos: BTreeSet<u64> =
            ids.filter_map(|id| inner.ids.get(id).map(|(no, _)| *no)).collect();
        let mut on_disk = Vec::new();
        for no in nos {
            if inner.used_now(no) {
                on_disk.push(no);
            }
        }
        drop(inner);
        on_disk.into_iter().for_each(|no| self.folder.iter().for_each(|folder| folder.touch(no)));
    }

    /// How many pages of `chain`, whose first key stands for none, are here one after the other, and the first's record.
    pub fn pages(&self, chain: &[Key], line: Key) -> (u32, Option<Record>) {
        let inner = self.inner();
        let of = |chain: &Key| inner.ids.get(&Id { chain: *chain, line, tail: None });
        let n = chain.iter().skip(1).take_while(|key| of(key).is_some()).count();
        let first = chain.get(1).and_then(of).and_then(|place| inner.record(place.0, place.1));
        (n as u32, first.cloned())
    }

    /// The records of rests behind each of `chain`.
    pub fn rests(&self, chain: &[Key], line: Key) -> Vec<(usize, Record)> {
        let inner = self.inner();
        let mut rests = Vec::new();
        for (n, key) in chain.iter().enumerate() {
            let at = |tail: Key| Id { chain: *key, line, tail: Some(tail) };
            let places = inner.ids.range(at([0; 16])..=at([u8::MAX; 16]));
            rests.extend(
                places.filter_map(|(_, place)| Some((n, inner.record(place.0, place.1)?.clone()))),
            );
        }
        rests
    }

    /// Drops all bundles that have something of these pages.
    pub fn forget(&self, chain: &[Key]) {
        let mut inner = self.inner();
        let chain: HashSet<&Key> = chain.iter().collect();
        let spoilt = inner.ids.iter().filter(|(id, _)| chain.contains(&id.chain));
        let spoilt: BTreeSet<u64> = spoilt.map(|(_, (no, _))| *no).collect();
        spoilt.into_iter().for_each(|no| self.drop_bundle(&mut inner, no));
    }

    /// Drops the bundles of this realm whose owner is not in `owners`; returns their number.
    pub fn keep_owners(&self, realm: Key, owners: &HashSet<Key>) -> usize {
        let mut inner = self.inner();
        let is_gone = |whose: &Whose| whose.realm == realm && !owners.contains(&whose.owner);
        let gone = inner.bundles.iter().filter(|(_, held)| is_gone(&held.bundle.whose));
        let gone: Vec<u64> = gone.map(|(no, _)| *no).collect();
        gone.iter().for_each(|no| self.drop_bundle(&mut inner, *no));
        gone.len()
    }

    /// Drops bundles that are too old, and then the longest unused ones, until there is room for a bundle of
    /// `nbytes`. A bundle that is larger than a tier has no place there, and evicts nothing.
    fn make_room(&self, inner: &mut Inner, nbytes: u64) {
        let takes = on_disk(nbytes);
        let now = SystemTime::now();
        let is_old = |held: &Held| now.duration_since(held.read_at).is_ok_and(|age| age > MAX_AGE);
        while let Some(no) = inner.disk.oldest() {
            let too_full = takes <= inner.disk.limit && !inner.disk.has_room(takes);
            let too_many = inner.bundles.len() >= MAX_BUNDLES;
            if !too_full && !too_many && !inner.bundles.get(&no).is_some_and(is_old) {
                break;
            }
            inner.leave_disk(no);
            self.folder.iter().for_each(|folder| folder.remove(no));
        }
        while let Some(no) = inner.ram.oldest() {
            let too_full = nbytes <= inner.ram.limit && !inner.ram.has_room(nbytes);
            if !too_full && inner.bundles.len() < MAX_BUNDLES {
                break;
            }
            inner.leave_memory(no);
        }
    }

    fn drop_bundle(&self, inner: &mut Inner, no: u64) {
        if inner.leave_disk(no) {
            self.folder.iter().for_each(|folder| folder.remove(no));
        }
        inner.leave_memory(no);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn new(rooms: Rooms) -> Self {
        let Rooms { ram, disk } = rooms;
        let (ram, disk) = (Tier::new(ram), Tier::new(disk));
        Self { bundles: BTreeMap::new(), ids: BTreeMap::new(), ram, disk, uses: 0, next: 0 }
    }

    fn settle(&self) {
        self.ram.settle();
        self.disk.settle();
    }

    /// Adds bundles that are on the disk already.
    fn insert_found(&mut self, mut found: Vec<Found>) {
        found.sort_by_key(|found| found.read_at);
        for Found { no, bundle, read_at } in found {
            self.next = self.next.max(no.saturating_add(1));
            self.insert(no, bundle, None, true, read_at);
        }
    }

    /// Orders bundles by the time of their last reading, as all workers have noted it; the oldest goes first from now
    /// on.
    fn order_by_reading(&mut self) {
        let read_at = |(no, held): (&u64, &Held)| (held.read_at, *no);
        let mut all: Vec<(SystemTime, u64)> = self.bundles.iter().map(read_at).collect();
        all.sort_unstable();
        for (_, no) in all {
            self.goes_last(no);
        }
    }

    fn place(&self, id: &Id) -> Option<Place> {
        let (no, at) = *self.ids.get(id)?;
        let Held { bundle, memory, .. } = self.bundles.get(&no)?;
        Some(Place { no, bundle: bundle.clone(), at, memory: memory.clone() })
    }

    fn record(&self, no: u64, at: usize) -> Option<&Record> {
        self.bundles.get(&no)?.bundle.records.get(at)
    }

    fn insert(
        &mut self,
        no: u64,
        bundle: Bundle,
        memory: Option<Bytes>,
        is_on_disk: bool,
        read_at: SystemTime,
    ) {
        self.uses += 1;
        let used = self.uses;
        let nbytes = bundle.nbytes();
        for (at, record) in bundle.records.iter().enumerate() {
            self.ids.insert(record.about.id, (no, at));
        }
        if memory.is_some() {
            self.ram.used += nbytes;
            self.ram.by_use.insert((used, no));
        }
        if is_on_disk {
            self.disk.used += on_disk(nbytes);
            self.disk.by_use.insert((used, no));
        }
        let bundle = Arc::new(bundle);
        self.bundles.insert(no, Held { bundle, memory, is_on_disk, used, read_at });
    }

    /// Notes a use; whether it is on the disk.
    fn used_now(&mut self, no: u64) -> bool {
        let Some(held) = self.goes_last(no) else { return false };
        held.read_at = SystemTime::now();
        held.is_on_disk
    }

    /// Moves a bundle to the end of the order of eviction.
    fn goes_last(&mut self, no: u64) -> Option<&mut Held> {
        self.uses += 1;
        let held = self.bundles.get_mut(&no)?;
        for tier in [&mut self.ram, &mut self.disk] {
            if tier.by_use.remove(&(held.used, no)) {
                tier.by_use.insert((self.uses, no));
            }
        }
        held.used = self.uses;
        Some(held)
    }

    /// Whether it was there.
    fn leave_disk(&mut self, no: u64) -> bool {
        let Some(held) = self.bundles.get_mut(&no).filter(|held| held.is_on_disk) else {
            return false;
        };
        held.is_on_disk = false;
        self.disk.used -= on_disk(held.bundle.nbytes());
        self.disk.by_use.remove(&(held.used, no));
        self.forget_if_gone(no);
        true
    }

    fn leave_memory(&mut self, no: u64) {
        let Some(held) = self.bundles.get_mut(&no).filter(|held| held.memory.is_some()) else {
            return;
        };
        held.memory = None;
        self.ram.used -= held.bundle.nbytes();
        self.ram.by_use.remove(&(held.used, no));
        self.forget_if_gone(no);
    }

    fn forget_if_gone(&mut self, no: u64) {
        let is_gone = |held: &Held| !held.is_on_disk && held.memory.is_none();
        if !self.bundles.get(&no).is_some_and(is_gone) {
            return;
        }
        let Some(held) = self.bundles.remove(&no) else { return };
        for record in &held.bundle.records {
            // Another bundle may have the same record by now.
            if self.ids.get(&record.about.id).is_some_and(|(of, _)| *of == no) {
                self.ids.remove(&record.about.id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
