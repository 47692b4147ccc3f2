//! Data about a server's models that holds over restarts: operators' orders, and models in quarantine.
//!
//! Orders take precedence over the configuration file. They are stored in the server's data folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Name of the file in the data folder.
const FILE: &str = "orders.json";

/// Version of the file's form.
const VERSION: u32 = 1;

/// Most bytes of it that are read.
const MAX_BYTES: u64 = 1 << 20;

/// The orders and quarantines of all models.
#[derive(Debug)]
pub struct Standings {
    /// `None`: nothing is kept.
    file: Option<PathBuf>,
    book: Mutex<Book>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    version: u32,
    #[serde(default)]
    models: BTreeMap<String, Standing>,
}

/// The orders and the quarantine of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standing {
    /// Whether it stays loaded.
    #[serde(default)]
    pub pinned: bool,
    /// Whether it is loaded with the server.
    #[serde(default)]
    pub loaded: bool,
    /// The reason for which it is not loaded, if it is in quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
}

/// Why a model is not loaded again, until an operator orders it or its file is another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quarantine {
    /// The reason, in words.
    pub reason: String,
    /// The files that it was said of.
    pub files: String,
}

impl Standings {
    /// Reads the file in a server's folder.
    ///
    /// # Errors
    /// The file cannot be read, or a newer release wrote it.
    pub fn open(folder: Option<&Path>) -> Result<Self> {
        let file = folder.map(|folder| folder.join(FILE));
        let book = match &file {
            Some(file) => read(file).with_context(|| {
                let file = file.display();
                format!("{file}, which keeps orders about models over restarts, cannot be read: move it away to start without them")
            })?,
            None => None,
        };
        let book = Mutex::new(book.unwrap_or(Book { version: VERSION, models: BTreeMap::new() }));
        Ok(Self { file, book })
    }

    /// Whether orders outlive the server.
    pub fn are_kept(&self) -> bool {
        self.file.is_some()
    }

    /// The orders and the quarantine of a model.
    pub fn of(&self, model: &str) -> Standing {
        self.book().models.get(model).cloned().unwrap_or_default()
    }

    /// Changes what holds of a model.
    ///
    /// # Errors
    /// The file cannot be written; then nothing has changed.
    pub fn change(&self, model: &str, change: impl FnOnce(&mut Standing)) -> io::Result<()> {
        let mut book = self.book();
        let mut next = book.clone();
        let standing = next.models.entry(model.to_owned()).or_default();
        change(standing);
        if *standing == Standing::default() {
            next.models.remove(model);
        }
        if next == *book {
            return Ok(());
        }
        if let Some(file) = &self.file {
            write(file, &next)?;
        }
        *book = next;
        Ok(())
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // It is changed as a whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(file: &Path) -> Result<Option<Book>> {
    let open = match File::open(file) {
        Ok(open) => open,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = String::new();
    open.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= MAX_BYTES, "it has more than {MAX_BYTES} bytes");
    let book: Book = serde_json::from_str(&text)?;
    let version = book.version;
    ensure!(version == VERSION, "its version is {version}, and this release knows {VERSION}");
    Ok(Some(book))
}

fn write(file: &Path, book: &Book) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let beside = file.with_extension("new");
    let mut new =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    new.write_all(&serde_json::to_vec_pretty(book)?)?;
    new.sync_data()?;
    fs::rename(&beside, file)?;
    // The name is on the disk when its folder is.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_was_ordered_holds_after_a_restart() {
        let folder = folder("standing");
        let quarantine = Quarantine { reason: "it broke".into(), files: "one".into() };
        let first = Standings::open(Some(&folder)).unwrap();
        first.change("a", |a| a.pinned = true).unwrap();
        first.change("b", |b| b.quarantine = Some(quarantine.clone())).unwrap();
        first.change("c", |c| c.loaded = true).unwrap();
        first.change("c", |c| c.loaded = false).unwrap();
        let second = Standings::open(Some(&folder)).unwrap();
        assert_eq!(second.of("a"), Standing { pinned: true, ..Standing::default() });
        assert_eq!(second.of("b").quarantine, Some(quarantine));
        assert_eq!(second.of("c"), Standing::default());
        assert!(second.are_kept() && !Standings::open(None).unwrap().are_kept());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_another_form_is_refused_and_kept() {
        let folder = folder("standing-bad");
        let file = folder.join(FILE);
        for text in ["", "{", r#"{"version": 2}"#, r#"{"version": 1, "models": {"a": {"x": 1}}}"#] {
            fs::write(&file, text).unwrap();
            let why = format!("{:#}", Standings::open(Some(&folder)).unwrap_err());
            assert!(why.contains("move it away") && why.contains(FILE), "{why}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_cannot_be_kept_does_not_hold() {
        let folder = folder("standing-full");
        let standings = Standings::open(Some(&folder)).unwrap();
        // A folder stands where the file is made.
        fs::create_dir_all(folder.join(FILE).with_extension("new")).unwrap();
        standings.change("a", |a| a.pinned = true).unwrap_err();
        assert_eq!(standings.of("a"), Standing::default());
        fs::remove_dir_all(folder).unwrap();
    }
}
