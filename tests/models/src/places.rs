//! Paths within the repository, the same for all packages.

use std::path::{Path, PathBuf};

/// Root folder of the repository.
pub fn root() -> PathBuf {
    of_tests("..")
}

/// A file or folder of `tests`.
pub fn of_tests(path: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("this package lies in `tests`").join(path)
}
