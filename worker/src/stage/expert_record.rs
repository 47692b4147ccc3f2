//! A record on the disk of which experts of a model were used, so that the next stage of it begins with copies of the best.
//!
//! One file for each model, named by the hash of its header. It holds counts by layer, so stages with other layers and other
//! workers of this machine keep theirs in it. A file is written under another name and renamed, and its bytes are
//! checked when they are read. A record that is damaged or foreign counts as missing: no answer depends on it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use blake3::Hash;
use brigade_engine::device::ExpertUses;

/// Where records lie, in the cache's folder.
pub(super) const FOLDER: &str = "experts";

/// Most bytes of a record: models with hundreds of experts in each of hundreds of layers take less.
const MAX_BYTES: usize = 4 << 20;

/// Most models with a record; those that were written longest ago go first.
const MAX_RECORDS: usize = 64;

/// A record that was not written for so long goes.
const MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// The first bytes of a record of this form.
const MAGIC: &[u8; 16] = b"brigade experts1";

/// The ending of a record's name, of that of one which is not whole, and the name of the file that is locked.
const ENDING: &str = "uses";
const DRAFT: &str = "draft";
const LOCK_FILE: &str = "lock";

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Why a record is of no use.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is of another release, or no record")]
    Form,
    #[error("it is of another model")]
    Model,
    #[error("its bytes are damaged")]
    Damaged,
    #[error("it has more than {MAX_BYTES} bytes")]
    TooLarge,
}

/// The folder of records.
#[derive(Clone, Debug)]
pub(super) struct ExpertRecords {
    dir: PathBuf,
}

impl ExpertRecords {
    /// Records in the folder of a cache. Nothing is made before there is something to keep. Old records are removed. Blocks.
    pub(super) fn open(cache_dir: &Path) -> Self {
        let records = Self { dir: cache_dir.join(FOLDER) };
        records.expire(SystemTime::now());
        records
    }

    /// Uses of the experts of a model; none where there is no sound record. Blocks.
    pub(super) fn read(&self, model: &Hash) -> Vec<ExpertUses> {
        match self.try_read(model) {
            Ok(uses) => uses,
            Err(RecordError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                tracing::info!(
                    "no record of which experts of this model are used most: they are learned"
                );
                Vec::new()
            }
            Err(error) => {
                let path = self.path(model);
                tracing::warn!(path = %path.display(), %error, "the record of which experts are used most cannot be used: they are learned anew");
                Vec::new()
            }
        }
    }

    /// Keeps uses of the experts of some layers of a model, beside those of its other layers. Failing costs only speed, so it is
    /// logged, not returned. Blocks.
    pub(super) fn write(&self, model: &Hash, uses: &[ExpertUses]) {
        if let Err(error) = self.try_write(model, uses) {
            let path = self.path(model);
            tracing::warn!(path = %path.display(), %error, "which experts are used most cannot be recorded");
        }
    }

    fn try_read(&self, model: &Hash) -> Result<Vec<ExpertUses>, RecordError> {
        let mut bytes = Vec::new();
        File::open(self.path(model))?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        decode(&bytes, model)
    }

    fn try_write(&self, model: &Hash, uses: &[ExpertUses]) -> Result<(), RecordError> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.dir)?;
        // Other workers of this machine may keep layers of the same model.
        let lock = create(&self.dir.join(LOCK_FILE))?;
        lock.lock()?;
        let is_new = |old: &ExpertUses| uses.iter().all(|new| new.layer != old.layer);
        let old = self.try_read(model).unwrap_or_default();
        let all: Vec<ExpertUses> =
            uses.iter().cloned().chain(old.into_iter().filter(is_new)).collect();
        let bytes = encode(&all, model);
        if bytes.len() > MAX_BYTES {
            return Err(RecordError::TooLarge);
        }
        let draft = self.dir.join(DRAFT);
        let written = create(&draft)
            .and_then(|mut file| file.write_all(&bytes))
            .and_then(|()| fs::rename(&draft, self.path(model)));
        if written.is_err() {
            // The rest of the draft takes room for nothing.
            let _ = fs::remove_file(&draft);
        }
        self.expire(SystemTime::now());
        Ok(written?)
    }

    /// Removes records that are old, and those that are too many.
    fn expire(&self, now: SystemTime) {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let records = entries.map(|entry| entry.path());
        let records = records.filter(|path| path.extension().is_some_and(|it| it == ENDING));
        let age = |path: &PathBuf| {
            let written = fs::metadata(path).and_then(|about| about.modified()).ok()?;
            Some(now.duration_since(written).unwrap_or_default())
        };
        let mut aged: Vec<(Duration, PathBuf)> =
            records.filter_map(|path| Some((age(&path)?, path))).collect();
        aged.sort();
        let n_young = aged.iter().take_while(|(age, _)| *age <= MAX_AGE).count();
        for (_, path) in aged.split_off(n_young.min(MAX_RECORDS)) {
            // One that cannot be removed now is tried again at the next start.
            let _ = fs::remove_file(path);
        }
    }

    fn path(&self, model: &Hash) -> PathBuf {
        self.dir.join(format!("{}.{ENDING}", model.to_hex()))
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(true).write(true).mode(FILE_MODE).open(path)
}

/// The form: [`MAGIC`], the model's hash, then for each layer its name's length and name, the number of its experts and their
/// counts, and at the end the hash of all that. Numbers are little-endian, lengths of 32 bits, and counts f32.
fn encode(uses: &[ExpertUses], model: &Hash) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], model.as_bytes()].concat();
    let len = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    for ExpertUses { layer, counts } in uses {
        bytes.extend(len(layer.len()));
        bytes.extend(layer.as_bytes());
        bytes.extend(len(counts.len()));
        bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
    }
    let sum = blake3::hash(&bytes);
    bytes.extend(sum.as_bytes());
    bytes
}

fn decode(bytes: &[u8], model: &Hash) -> Result<Vec<ExpertUses>, RecordError> {
    if bytes.len() > MAX_BYTES {
        return Err(RecordError::TooLarge);
    }
    let inner = bytes.strip_prefix(MAGIC).ok_or(RecordError::Form)?;
    let (inner, sum) = inner.split_last_chunk::<32>().ok_or(RecordError::Damaged)?;
    if blake3::hash(&bytes[..bytes.len() - sum.len()]) != Hash::from_bytes(*sum) {
        return Err(RecordError::Damaged);
    }
    let mut layers = inner.strip_prefix(model.as_bytes()).ok_or(RecordError::Model)?;
    let mut uses = Vec::new();
    while !layers.is_empty() {
        uses.push(next_layer(&mut layers).ok_or(RecordError::Damaged)?);
    }
    Ok(uses)
}

/// Takes a layer off the front.
fn next_layer(bytes: &mut &[u8]) -> Option<ExpertUses> {
    let layer = String::from_utf8(taken(bytes, 1)?.to_vec()).ok()?;
    let (counts, _) = taken(bytes, size_of::<f32>())?.as_chunks::<4>();
    let counts: Vec<f32> = counts.iter().map(|count| f32::from_le_bytes(*count)).collect();
    let are_counts = counts.iter().all(|count| (0.0..=f32::MAX).contains(count));
    are_counts.then_some(ExpertUses { layer, counts })
}

/// Takes a length off the front, and so many items of `size` bytes.
fn taken<'a>(bytes: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let nbytes = usize::try_from(u32::from_le_bytes(*len)).ok()?.checked_mul(size)?;
    let (items, rest) = rest.split_at_checked(nbytes)?;
    *bytes = rest;
    Some(items)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn uses(layer: &str, counts: &[f32]) -> ExpertUses {
        ExpertUses { layer: layer.to_owned(), counts: counts.to_vec() }
    }

    /// An empty folder for a cache.
    fn cache(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_kept_is_read_and_only_its_owner_reads_it() {
        let dir = cache("expert-record");
        let records = ExpertRecords::open(&dir);
        let (model, other) = (blake3::hash(b"a model"), blake3::hash(b"another"));
        assert_eq!(records.read(&model), []);
        assert!(!dir.exists(), "nothing is made before there is something to keep");
        let first = [uses("blk.0.exps", &[1.5, 0.0, 200.0]), uses("blk.1.exps", &[0.25])];
        records.write(&model, &first);
        assert_eq!(records.read(&model), first);
        assert_eq!(records.read(&other), []);
        let path = records.path(&model);
        assert_eq!((mode(&path), mode(&records.dir)), (FILE_MODE, FOLDER_MODE));
        // A stage of other layers of the model keeps its own beside them.
        let second = [uses("blk.1.exps", &[3.0]), uses("blk.2.exps", &[4.0, 5.0])];
        records.write(&model, &second);
        assert_eq!(records.read(&model), [&second[..], &first[..1]].concat());
        records.write(&other, &first);
        assert_eq!(records.read(&model).len(), 3);
        // A record under another model's name is foreign.
        fs::copy(&path, records.path(&other)).unwrap();
        assert!(matches!(records.try_read(&other), Err(RecordError::Model)));
        assert_eq!(records.read(&other), []);
        // A damaged one is replaced.
        fs::write(&path, b"no record").unwrap();
        assert!(matches!(records.try_read(&model), Err(RecordError::Form)));
        records.write(&model, &second);
        assert_eq!(records.read(&model), second);
        let names = fs::read_dir(&records.dir).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.into_iter().all(|name| name != DRAFT), "no draft is left");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn any_damage_is_noticed() {
        let model = blake3::hash(b"a model");
        let whole = encode(&[uses("blk.0", &[1.0, 2.0]), uses("blk.1", &[3.0])], &model);
        assert_eq!(decode(&whole, &model).unwrap().len(), 2);
        for len in 0..whole.len() {
            assert!(decode(&whole[..len], &model).is_err(), "the first {len} bytes");
        }
        for at in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            assert!(decode(&bytes, &model).is_err(), "bit {at}");
        }
        let large = vec![0; MAX_BYTES + 1];
        assert!(matches!(decode(&large, &model), Err(RecordError::TooLarge)));
        // Whole, but with what is no count, or with lengths beyond the end.
        for counts in [[f32::NAN], [f32::INFINITY], [-1.0]] {
            let bytes = encode(&[uses("blk.0", &counts)], &model);
            assert!(matches!(decode(&bytes, &model), Err(RecordError::Damaged)), "{counts:?}");
        }
        let mut bytes = [&MAGIC[..], model.as_bytes(), &u32::MAX.to_le_bytes()].concat();
        bytes.extend(*blake3::hash(&bytes).as_bytes());
        assert!(matches!(decode(&bytes, &model), Err(RecordError::Damaged)));
    }

    #[test]
    fn old_records_go_and_so_do_those_that_are_too_many() {
        let dir = cache("expert-records-old");
        let records = ExpertRecords::open(&dir);
        let now = SystemTime::now();
        let model = |i: usize| blake3::hash(&i.to_le_bytes());
        for i in 0..MAX_RECORDS + 3 {
            records.write(&model(i), &[uses("blk.0", &[1.0])]);
            let written = now - Duration::from_secs(1000 - i as u64);
            let file = File::options().append(true).open(records.path(&model(i))).unwrap();
            file.set_modified(written).unwrap();
        }
        records.expire(now);
        let is_there = |i: usize| records.path(&model(i)).exists();
        assert_eq!((0..MAX_RECORDS + 3).filter(|i| is_there(*i)).count(), MAX_RECORDS);
        assert!(!is_there(2) && is_there(3), "those written longest ago went");
        records.expire(now + MAX_AGE - Duration::from_secs(990));
        assert!(!is_there(9) && is_there(10), "those older than the greatest age went");
        records.expire(now + 2 * MAX_AGE);
        assert!(!(0..MAX_RECORDS + 3).any(is_there));
        fs::remove_dir_all(&dir).unwrap();
    }
}
