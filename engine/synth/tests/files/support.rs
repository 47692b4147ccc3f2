//! Helpers for the tests of this folder: the folder of test data, and paths that are removed again.

use std::path::PathBuf;

/// The folder named by `BRIGADE_TEST_DATA`, with `golden/` and `vocabs/`; `None`, said aloud, without it.
pub fn test_data() -> Option<PathBuf> {
    let dir = std::env::var_os("BRIGADE_TEST_DATA").map(PathBuf::from);
    if dir.is_none() {
        println!("skipped: set BRIGADE_TEST_DATA to a folder that holds golden/ and vocabs/");
    }
    dir
}

/// A path for a file of this test process, removed when dropped.
pub struct TempPath(pub PathBuf);

impl TempPath {
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("brigade-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir.join(name))
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        // A test that failed before it wrote the file has nothing to remove.
        let _ = std::fs::remove_file(&self.0);
    }
}
