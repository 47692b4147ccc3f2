//! Files that other programs have downloaded: Hugging Face's cache, llama.cpp's, Ollama's store. They are used in
//! place, and never changed.

use std::fs;
use std::path::{Path, PathBuf};

use super::choice::{Choice, RemoteFile, choose};
use super::error::HubError;
use super::hash::is_sha256;
use super::huggingface::Resolved;
use super::name::{HubName, ModelName, OllamaName};
use super::own_folder::is_plain;
use super::registry;
use super::settings::Settings;

/// Most bytes of a manifest or a reference.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Folders below a snapshot.
const MAX_DEPTH: usize = 8;

/// A model in another program's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The name by which it can be run here.
    pub name: String,
    /// The program whose store it is in.
    pub store: &'static str,
    /// The name of its quantisation.
    pub quant: String,
    /// Paths of the model's files, the first one first.
    pub paths: Vec<PathBuf>,
}

/// Resolves `name` from files on this machine alone, and returns their paths. Hugging Face's cache comes before
/// llama.cpp's.
///
/// # Errors
/// The model is here, but lacks the requested quantisation.
pub fn resolve(
    settings: &Settings,
    name: &ModelName,
) -> Result<Option<(Resolved, Vec<PathBuf>)>, HubError> {
    match name {
        ModelName::Hub(name) => {
            if let Some(found) = hugging_face(settings, name)? {
                return Ok(Some(found));
            }
            llama_cpp(settings, name)
        }
        ModelName::Ollama(name) => Ok(ollama(settings, name)),
        ModelName::Address(_) | ModelName::Path(_) => Ok(None),
    }
}

/// Paths of all files of a resolved name, if they are here, by path and size. Callers must verify the hashes.
pub fn lookup(settings: &Settings, name: &ModelName, resolved: &Resolved) -> Option<Vec<PathBuf>> {
    let files = &resolved.choice.files;
    let all = |find: &dyn Fn(&RemoteFile) -> PathBuf| {
        let paths: Vec<PathBuf> = files.iter().map(find).collect();
        let fits = |(path, file): (&PathBuf, &RemoteFile)| {
            fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == file.size)
        };
        paths.iter().zip(files).all(fits).then_some(paths)
    };
    match name {
        ModelName::Hub(name) => {
            let snapshots = settings.hugging_face.iter().flat_map(|cache| snapshots(cache, name));
            let in_snapshot =
                snapshots.into_iter().find_map(|(_, folder)| all(&|file| folder.join(&file.path)));
            let flat = settings.llama_cpp.as_ref();
            in_snapshot.or_else(|| {
                flat.and_then(|cache| all(&|file| cache.join(flat_name(&name.repo, &file.path))))
            })
        }
        ModelName::Ollama(_) => {
            let blob = |store: &Path, file: &RemoteFile| {
                store.join(format!("blobs/sha256-{}", file.sha256.as_deref().unwrap_or("")))
            };
            settings.ollama.iter().find_map(|store| all(&|file| blob(store, file)))
        }
        ModelName::Address(_) | ModelName::Path(_) => None,
    }
}

/// The snapshots of a repository: the one that `main` means first.
fn snapshots(cache: &Path, name: &HubName) -> Vec<(String, PathBuf)> {
    let repo = cache.join(format!("models--{}", name.repo.replace('/', "--")));
    let main = small_text(&repo.join("refs/main")).unwrap_or_default();
    let mut found: Vec<(String, PathBuf)> = folders(&repo.join("snapshots"));
    found.sort_by_key(|(commit, _)| (commit != main.trim(), commit.clone()));
    found
}

fn hugging_face(
    settings: &Settings,
    name: &HubName,
) -> Result<Option<(Resolved, Vec<PathBuf>)>, HubError> {
    let Some(cache) = &settings.hugging_face else { return Ok(None) };
    let mut missing = None;
    for (commit, folder) in snapshots(cache, name) {
        let mut files = Vec::new();
        walk(&folder, &folder, 0, &mut files);
        match choose(name, &files) {
            Ok(choice) => {
                let paths = choice.files.iter().map(|file| folder.join(&file.path)).collect();
                return Ok(Some((resolved(commit, choice), paths)));
            }
            // A repository of which only other files were downloaded is as good as none.
            Err(error) => missing = missing.or((!files.is_empty()).then_some(error)),
        }
    }
    missing.map_or(Ok(None), |error| match error {
        HubError::NoQuant { .. } | HubError::Incomplete { .. } => Ok(None),
        other => Err(other),
    })
}

fn llama_cpp(
    settings: &Settings,
    name: &HubName,
) -> Result<Option<(Resolved, Vec<PathBuf>)>, HubError> {
    let Some(cache) = &settings.llama_cpp else { return Ok(None) };
    let start = flat_name(&name.repo, "");
    let all = files_in(cache);
    let of_repo = all.iter().filter_map(|(file, size)| {
        let path = file.strip_prefix(&start)?.to_string();
        Some(RemoteFile { path, size: *size, sha256: None, etag: None })
    });
    let files: Vec<RemoteFile> = of_repo.collect();
    // This may be all that was downloaded, so the first one counts as the default quantisation.
    match choose(name, &files) {
        Ok(choice) => {
            let paths = choice
                .files
                .iter()
                .map(|file| cache.join(flat_name(&name.repo, &file.path)))
                .collect();
            Ok(Some((resolved(String::new(), choice), paths)))
        }
        Err(HubError::NoQuant { .. } | HubError::Incomplete { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

fn ollama(settings: &Settings, name: &OllamaName) -> Option<(Resolved, Vec<PathBuf>)> {
    let manifest =
        format!("manifests/{}/{}/{}/{}", name.host, name.namespace, name.model, name.tag);
    settings.ollama.iter().find_map(|store| {
        let text = small_text(&store.join(&manifest))?;
        let file = registry::weights(&text, name).ok()?;
        let blob = store.join(format!("blobs/sha256-{}", file.sha256.as_deref()?));
        let is_whole = fs::metadata(&blob).is_ok_and(|meta| meta.len() == file.size);
        let choice = Choice { quant: name.tag.clone(), files: vec![file] };
        is_whole.then(|| (resolved(super::hash::of_text(&text), choice), vec![blob]))
    })
}

fn resolved(commit: String, choice: Choice) -> Resolved {
    Resolved { commit, licence: None, choice, urls: Vec::new() }
}

/// All models in other programs' stores.
pub fn all(settings: &Settings) -> Vec<Stored> {
    let mut found = Vec::new();
    for (folder, _) in settings.hugging_face.iter().flat_map(|cache| folders(cache)) {
        let Some(repo) = folder.strip_prefix("models--").map(|repo| repo.replacen("--", "/", 1))
        else {
            continue;
        };
        let name = HubName { repo, quant: None };
        for (_, snapshot) in
            settings.hugging_face.iter().flat_map(|cache| snapshots(cache, &name)).take(1)
        {
            let mut files = Vec::new();
            walk(&snapshot, &snapshot, 0, &mut files);
            found.extend(stored(&name, "Hugging Face", &files, &|path| snapshot.join(path)));
        }
    }
    if let Some(cache) = &settings.llama_cpp {
        // Where the repository's name ends in the file's is not written down: they are listed by path.
        let files =
            files_in(cache).into_iter().filter(|(file, _)| super::choice::is_first_model(file));
        found.extend(files.map(|(file, _)| Stored {
            name: cache.join(&file).display().to_string(),
            store: "llama.cpp",
            quant: super::choice::label(super::choice::split_of(&file).0),
            paths: vec![cache.join(&file)],
        }));
    }
    for store in &settings.ollama {
        found.extend(ollama_models(settings, store));
    }
    found
}

fn stored(
    name: &HubName,
    store: &'static str,
    files: &[RemoteFile],
    at: &dyn Fn(&str) -> PathBuf,
) -> Vec<Stored> {
    let firsts = files.iter().filter(|file| super::choice::is_first_model(&file.path));
    let of_file = |file: &RemoteFile| {
        let by_file = HubName { repo: name.repo.clone(), quant: Some(file.path.clone()) };
        let choice = choose(&by_file, files).ok()?;
        let by_quant = HubName { repo: name.repo.clone(), quant: Some(choice.quant.clone()) };
        let name = if choose(&by_quant, files).is_ok() { by_quant } else { by_file };
        let paths = choice.files.iter().map(|file| at(&file.path)).collect();
        Some(Stored { name: name.to_string(), store, quant: choice.quant, paths })
    };
    firsts.filter_map(of_file).collect()
}

fn ollama_models(settings: &Settings, store: &Path) -> Vec<Stored> {
    let mut found = Vec::new();
    for (host, folder) in folders(&store.join("manifests")) {
        for (namespace, folder) in folders(&folder) {
            for (model, folder) in folders(&folder) {
                for (tag, _) in files_in(&folder) {
                    let (host, namespace, model) = (host.clone(), namespace.clone(), model.clone());
                    let name = OllamaName { scheme: "https", host, namespace, model, tag };
                    let here = Settings { ollama: vec![store.to_path_buf()], ..settings.clone() };
                    let Some((resolved, paths)) = ollama(&here, &name) else { continue };
                    let (name, quant) = (name.to_string(), resolved.choice.quant);
                    found.push(Stored { name, store: "Ollama", quant, paths });
                }
            }
        }
    }
    found
}

/// How llama.cpp names a file of a repository in its cache.
fn flat_name(repo: &str, path: &str) -> String {
    format!("{repo}_{path}").replace('/', "_")
}

/// A snapshot's files: links to blobs that are named after their hashes.
fn walk(root: &Path, folder: &Path, depth: usize, found: &mut Vec<RemoteFile>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Ok(meta) = fs::metadata(&path) else { continue };
        let relative =
            path.strip_prefix(root).ok().filter(|path| is_plain(path)).and_then(Path::to_str);
        match relative {
            Some(_) if meta.is_dir() && depth < MAX_DEPTH => walk(root, &path, depth + 1, found),
            Some(relative) if meta.is_file() => {
                let blob = fs::read_link(&path).ok();
                let hash = blob.as_ref().and_then(|blob| blob.file_name()?.to_str());
                let sha256 = hash.filter(|hash| is_sha256(hash)).map(str::to_string);
                found.push(RemoteFile {
                    path: relative.to_string(),
                    size: meta.len(),
                    sha256,
                    etag: None,
                });
            }
            _ => {}
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
}

fn folders(of: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut found: Vec<_> = folders
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    found.sort();
    found
}

fn files_in(folder: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let meta = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
        Some((entry.file_name().into_string().ok()?, meta.len()))
    });
    let mut found: Vec<_> = files.collect();
    found.sort();
    found
}

fn small_text(path: &Path) -> Option<String> {
    let is_small =
        fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_TEXT_BYTES);
    is_small.then(|| fs::read_to_string(path).ok()).flatten()
}
