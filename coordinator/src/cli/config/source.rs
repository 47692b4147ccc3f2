//! Reads the file and its drop-ins: the values of options, their places, and all problems.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::loaded::Loaded;
use super::one_file::OneFile;
use super::place::{Place, Problem};

/// Longest file: it is written by hand.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Limit of the number of drop-ins.
const MAX_DROP_INS: usize = 100;
/// The ending of drop-ins.
const ENDING: &str = "toml";

/// Reads the file at `path` and the drop-ins beside it. Problems are part of the result.
pub fn read(path: &Path) -> Loaded {
    let mut loaded = Loaded::default();
    let folder = path.with_extension("d");
    let drop_ins = match drop_ins(&folder) {
        Ok(paths) => paths,
        Err(error) => {
            loaded.problems.push(unreadable(folder, &error));
            Vec::new()
        }
    };
    // Drop-ins alone are enough.
    let is_read = drop_ins.is_empty() || is_there(path);
    for path in is_read.then(|| path.to_owned()).into_iter().chain(drop_ins) {
        let file_no = loaded.files.len();
        match text_of(&path) {
            Ok(text) => OneFile { path: &path, text: &text, file_no }.add_to(&mut loaded),
            Err(error) => loaded.problems.push(unreadable(path.clone(), &error)),
        }
        loaded.files.push(path);
    }
    loaded.problems.sort();
    loaded
}

fn unreadable(file: PathBuf, error: &io::Error) -> Problem {
    Problem { at: Place { file, line: 0 }, key: String::new(), what: error.to_string() }
}

/// Whether a file or folder exists. If this cannot be determined, it counts as there, so that reading it reports the
/// reason.
pub fn is_there(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// The drop-ins of a folder, in the order of their names.
fn drop_ins(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            paths.push(path);
        }
    }
    if paths.len() > MAX_DROP_INS {
        return Err(io::Error::other(format!(
            "{} drop-ins are too many: at most {MAX_DROP_INS}",
            paths.len()
        )));
    }
    paths.sort();
    Ok(paths)
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let mut file = File::open(path)?.take(MAX_FILE_BYTES + 1);
    match file.read_to_string(&mut text) {
        Ok(n) if n as u64 > MAX_FILE_BYTES => {
            Err(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes")))
        }
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(io::Error::other("it is not UTF-8 text"))
        }
        Err(error) => Err(error),
    }
}
