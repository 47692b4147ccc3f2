//! The demo model that is part of the binary, for commands without `-m`.
//!
//! Workers are processes of their own and read model files. So the model is written to a file once, in the
//! user's cache, in a folder named after its hash.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};
use brigade_worker::config::{default_cache_dir, temporary_cache_dir};

/// A small model that writes English after the King James Bible.
static DEMO: &[u8] = include_bytes!("../../../assets/demo.gguf");

/// The file's name, which is the model's name in requests and logs.
const FILE_NAME: &str = "brigade-demo.gguf";

/// Hex digits of the hash that the folder's name holds.
const NAME_DIGITS: usize = 16;

/// Where the demo model is; it is written there if it is not yet. Where the user's cache cannot be written to, it is in a
/// folder in the system's temporary place, with a warning.
///
/// # Errors
/// Neither folder can be found or written to.
pub fn path() -> Result<PathBuf> {
    let env = |name: &str| std::env::var(name).ok();
    let dir = default_cache_dir(&env).context("the demo model's file")?;
    written_to(&dir).or_else(|error| {
        let why = format!("{}: {error}", dir.display());
        let dir = temporary_cache_dir(&env, &why).context("the demo model's file")?;
        written_to(&dir).with_context(|| {
            format!("cannot write the demo model to {}: name a model with -m", dir.display())
        })
    })
}

/// The demo model's file in a cache folder.
fn written_to(dir: &Path) -> io::Result<PathBuf> {
    let hash = blake3::hash(DEMO).to_hex();
    let dir = dir.join(format!("demo-{}", &hash[..NAME_DIGITS]));
    let path = dir.join(FILE_NAME);
    // The same size under the hash: only a disk fault could make it another file.
    if fs::metadata(&path).is_ok_and(|m| m.len() == DEMO.len() as u64) {
        return Ok(path);
    }
    let part = path.with_extension(format!("{}.part", std::process::id()));
    fs::create_dir_all(&dir)?;
    fs::write(&part, DEMO)?;
    fs::rename(&part, &path)?;
    Ok(path)
}
