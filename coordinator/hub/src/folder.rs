//! A folder of models that the operator fills (`--models-dir`). Its files are used where they lie, by their names,
//! and never changed or deleted. Nothing is cached: every call lists the folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::choice::{is_model, label, split_of};
use super::error::HubError;
use super::lock::mtime_ns;
use super::own_folder::FOLDERS;

/// Folders below it, at most.
const MAX_DEPTH: usize = 6;

/// Files and folders that are looked at.
const MAX_ENTRIES: usize = 100_000;

/// A file that was written to within this time is looked at twice.
const FRESH: Duration = Duration::from_secs(2);

/// Endings of files that are being written. aria2 gives a file its full length at once.
const UNFINISHED: [&str; 3] = ["aria2", "part", "incomplete"];

/// A model of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filed {
    /// The name of the model's file without ending and number, behind the folders that lead to it.
    pub name: String,
    /// The name of its quantisation.
    pub quant: String,
    /// The model's files, the first one first.
    pub paths: Vec<PathBuf>,
    /// Bytes of all its files.
    pub size: u64,
    /// Why it cannot be used, as far as names tell.
    pub wrong: Option<String>,
}

/// All models in `folder`, by name. Hidden files, links to folders, and what brigade has put into `own` are left out.
///
/// # Errors
/// The folder cannot be read, lies where brigade deletes, or has too many files.
pub fn list(folder: &Path, own: &Path) -> Result<Vec<Filed>, HubError> {
    check(folder, own)?;
    let skipped = fs::canonicalize(own).ok();
    let mut walk = Walk { own: skipped, files: Vec::new(), seen: 0 };
    walk.enter(folder, folder, 0)?;
    Ok(filed(folder, walk.files))
}

/// The first file of the model that is called `name`, which must not change while it is checked. `None`: there is no
/// such model.
///
/// # Errors
/// As [`list`]; or several models have this name, files are missing, or one is being written.
pub fn find(folder: &Path, own: &Path, name: &str) -> Result<Option<PathBuf>, HubError> {
    let all = list(folder, own)?;
    let base = |name: &str| name.rsplit('/').next().unwrap_or(name).to_string();
    let by_path: Vec<&Filed> = all.iter().filter(|filed| is_called(filed, name)).collect();
    let found = if by_path.is_empty() {
        all.iter().filter(|filed| base(&filed.name) == stem(name)).collect()
    } else {
        by_path
    };
    let wrong =
        |why: String| HubError::Filed { name: name.to_string(), folder: folder.into(), why };
    match found[..] {
        [] => Ok(None),
        [one] => {
            if let Some(why) = &one.wrong {
                return Err(wrong(why.clone()));
            }
            let changed = |path: &PathBuf| is_changing(path, &|| std::thread::sleep(FRESH));
            match one.paths.iter().find(|path| changed(path)) {
                Some(path) => Err(wrong(format!(
                    "{} is being written to; wait until it is whole",
                    path.display()
                ))),
                None => Ok(one.paths.first().cloned()),
            }
        }
        _ => {
            let names: Vec<&str> = found.iter().map(|filed| filed.name.as_str()).collect();
            Err(wrong(format!(
                "several files have this name, give one with its folder: {}",
                names.join(", ")
            )))
        }
    }
}

/// The text as a possible name of a model in the folder: it must be a relative path that does not leave the folder.
pub fn may_be_name(text: &Path) -> Option<&str> {
    use std::path::Component::Normal;
    text.components().all(|part| matches!(part, Normal(_))).then(|| text.to_str()).flatten()
}

/// The folder must not lie where `rm` and `prune` delete.
fn check(folder: &Path, own: &Path) -> Result<(), HubError> {
    let here = fs::canonicalize(folder).map_err(HubError::io("read", folder))?;
    let Ok(own) = fs::canonicalize(own) else { return Ok(()) };
    let inside = here.strip_prefix(&own).ok().and_then(|rest| rest.components().next());
    if inside.is_some_and(|first| FOLDERS.iter().any(|name| first.as_os_str() == *name)) {
        return Err(HubError::Outside {
            path: folder.into(),
            why: "--models-dir is a folder of files that brigade never deletes, and this one is part of its own".into(),
        });
    }
    Ok(())
}

struct Walk {
    /// Brigade's own folder, which is left out.
    own: Option<PathBuf>,
    /// Relative paths of the files, with their bytes.
    files: Vec<(String, u64)>,
    seen: usize,
}

impl Walk {
    fn enter(&mut self, root: &Path, folder: &Path, depth: usize) -> Result<(), HubError> {
        let is_own = self.own.is_some() && fs::canonicalize(folder).ok() == self.own;
        let entries = match fs::read_dir(folder) {
            Err(error) if depth == 0 => return Err(HubError::io("read", folder)(error)),
            // An unreadable folder below it counts as one without models.
            Err(_) => return Ok(()),
            Ok(entries) => entries,
        };
        for entry in entries.flatten() {
            self.seen += 1;
            if self.seen > MAX_ENTRIES {
                let why = std::io::Error::other(format!("it has more than {MAX_ENTRIES} files"));
                return Err(HubError::io("list", root)(why));
            }
            let path = entry.path();
            let Some(relative) = path.strip_prefix(root).ok().and_then(Path::to_str) else {
                continue;
            };
            let name = entry.file_name();
            let is_hidden = name.to_str().is_none_or(|name| name.starts_with('.'));
            let is_ours = is_own && FOLDERS.iter().any(|ours| name == *ours);
            if is_hidden || is_ours {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => {
                    self.enter(root, &path, depth + 1)?;
                }
                // A link to a file is that file.
                Ok(kind) if !kind.is_dir() => {
                    let meta = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
                    self.files.extend(meta.map(|meta| (relative.to_string(), meta.len())));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The models among these files.
fn filed(folder: &Path, mut files: Vec<(String, u64)>) -> Vec<Filed> {
    files.sort();
    let mut parts = BTreeMap::<(String, usize), BTreeMap<usize, (String, u64)>>::new();
    for (path, size) in files.iter().filter(|(path, _)| is_model(path)) {
        let (stem, no, count) = split_of(path);
        let of = parts.entry((stem.to_string(), count)).or_default();
        of.insert(no, (path.clone(), *size));
    }
    let is_there =
        |path: &str| files.binary_search_by(|(other, _)| other.as_str().cmp(path)).is_ok();
    let one = |((name, count), parts): ((String, usize), BTreeMap<usize, (String, u64)>)| {
        let missing = (1..=count).find(|no| !parts.contains_key(no));
        let unfinished = parts.values().find_map(|(path, _)| {
            let beside = UNFINISHED.iter().map(|ending| format!("{path}.{ending}"));
            beside.into_iter().find(|beside| is_there(beside))
        });
        let wrong = match (missing, unfinished) {
            (Some(no), _) => Some(format!(
                "it is split into {count} files, and file {no:05} of {count:05} is not there"
            )),
            (None, Some(beside)) => {
                Some(format!("its download is not finished: {beside} is there"))
            }
            (None, None) => None,
        };
        Filed {
            quant: label(&name),
            paths: parts.values().map(|(path, _)| folder.join(path)).collect(),
            size: parts.values().map(|(_, size)| size).sum(),
            name,
            wrong,
        }
    };
    parts.into_iter().map(one).collect()
}

/// Whether `name` is what leads to it, with the ending or without.
fn is_called(filed: &Filed, name: &str) -> bool {
    filed.name == stem(name)
}

/// A name without the ending and number of a file.
fn stem(name: &str) -> &str {
    split_of(name).0
}

/// Whether a file that was written to just now is other after `pause`.
fn is_changing(path: &Path, pause: &dyn Fn()) -> bool {
    let look =
        || fs::metadata(path).ok().map(|meta| (meta.len(), mtime_ns(&meta), meta.modified().ok()));
    let before = look();
    let written = before.as_ref().and_then(|(_, _, at)| *at);
    let is_fresh = written
        .is_some_and(|at| SystemTime::now().duration_since(at).map_or(true, |since| since < FRESH));
    if !is_fresh {
        return false;
    }
    pause();
    look() != before
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn scratch(name: &str, files: &[&str]) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("brigade-folder-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        for file in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "weights").unwrap();
            let old = SystemTime::now() - Duration::from_secs(60);
            fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        }
        dir
    }

    fn names(folder: &Path, own: &Path) -> Vec<String> {
        list(folder, own).unwrap().into_iter().map(|filed| filed.name).collect()
    }

    #[test]
    fn whole_files_are_models_and_split_ones_are_one() {
        let dir = scratch(
            "names",
            &[
                "a-Q8_0.gguf",
                "user/b.gguf",
                "user/b.gguf.part",
                "c.gguf.incomplete",
                "d-00001-of-00002.gguf",
                "d-00002-of-00002.gguf",
                "e-00001-of-00002.gguf",
                "f.gguf",
                "f.gguf.aria2",
                "mmproj-x.gguf",
                ".hidden/g.gguf",
                "README.md",
            ],
        );
        let own = dir.join("nothing");
        symlink(dir.join("user"), dir.join("linked")).unwrap();
        symlink(dir.join("a-Q8_0.gguf"), dir.join("also.gguf")).unwrap();
        let all = list(&dir, &own).unwrap();
        let told: Vec<_> = all.iter().map(|f| (f.name.as_str(), f.wrong.is_some())).collect();
        let wanted = [
            ("a-Q8_0", false),
            ("also", false),
            ("d", false),
            ("e", true),
            ("f", true),
            ("user/b", true),
        ];
        assert_eq!(told, wanted);
        assert_eq!((all[2].paths.len(), all[2].size, all[0].quant.as_str()), (2, 14, "Q8_0"));
        let path = |name: &str| find(&dir, &own, name).unwrap();
        for name in ["a-Q8_0", "a-Q8_0.gguf"] {
            assert_eq!(path(name).unwrap(), dir.join("a-Q8_0.gguf"));
        }
        for name in ["d", "d.gguf", "d-00001-of-00002.gguf"] {
            assert_eq!(path(name).unwrap(), dir.join("d-00001-of-00002.gguf"));
        }
        assert_eq!((path("x"), path("b.gguf.part")), (None, None));
        for (name, word) in
            [("e", "file 00002 of 00002"), ("f", "f.gguf.aria2"), ("b", "b.gguf.part")]
        {
            let error = find(&dir, &own, name).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_name_with_several_models_wants_a_folder() {
        let dir = scratch("several", &["x/m.gguf", "y/m.gguf"]);
        let own = dir.join("nothing");
        let error = find(&dir, &own, "m").unwrap_err().to_string();
        assert!(error.contains("x/m, y/m"), "{error}");
        assert_eq!(find(&dir, &own, "y/m").unwrap().unwrap(), dir.join("y/m.gguf"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_brigade_fetched_is_not_the_operators() {
        let dir = scratch("own", &["m.gguf", "hf/u/r/c/x.gguf", "inner/heads/y.gguf"]);
        assert_eq!(names(&dir, &dir), ["inner/heads/y", "m"]);
        assert_eq!(names(&dir, &dir.join("inner")), ["hf/u/r/c/x", "m"]);
        let error = list(&dir.join("hf/u"), &dir).unwrap_err().to_string();
        assert!(error.contains("--models-dir"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_grows_is_not_used() {
        let dir = scratch("grows", &["m.gguf"]);
        let file = dir.join("m.gguf");
        let never = || panic!("a file that was still for long is not waited for");
        assert!(!is_changing(&file, &never));
        let now = SystemTime::now() + Duration::from_secs(3600);
        fs::File::options().write(true).open(&file).unwrap().set_modified(now).unwrap();
        assert!(!is_changing(&file, &|| ()));
        assert!(is_changing(&file, &|| fs::write(&file, "weights and more").unwrap()));
        fs::File::options().write(true).open(&file).unwrap().set_modified(now).unwrap();
        assert!(is_changing(&file, &|| fs::remove_file(&file).unwrap()));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn only_plain_names_are_looked_up() {
        for (text, is) in
            [("a", true), ("a/b.gguf", true), ("/a", false), ("../a", false), ("./a", false)]
        {
            assert_eq!(may_be_name(Path::new(text)).is_some(), is, "{text}");
        }
    }
}
