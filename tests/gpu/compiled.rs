//! What a GPU's driver compiled for one process, for workers whose cache is a folder of a test's own.

use std::path::Path;
use std::{fs, io};

use brigade_worker::config::default_cache_dir;

/// Where Mesa's drivers keep what they compiled, in a worker's cache.
const MESA: &str = "mesa_shader_cache";

/// Copies what drivers have compiled for workers with the usual cache into that of another worker. A driver in software
/// compiles a model's kernels for ten seconds; what it compiled depends on the kernels alone.
pub fn share(cache: &Path) {
    let usual = default_cache_dir(&|name| std::env::var(name).ok()).unwrap().join(MESA);
    if usual.is_dir() {
        copy(&usual, &cache.join(MESA)).unwrap();
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to)?;
        } else if let Err(error) = fs::copy(&path, &to) {
            // Another process has given it its whole name, or has removed what is old.
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}", path.display());
        }
    }
    Ok(())
}
