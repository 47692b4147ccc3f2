//! Weights pushed to a worker: pieces in any order and of any size. A blob is complete only with the bytes of its
//! hash.

#![no_main]

use std::sync::OnceLock;

use brigade_worker::machine::reading_threads::Pool;
use brigade_worker::weights::cache::Cache;
use libfuzzer_sys::fuzz_target;

/// The contents of the blob.
const BLOB: &[u8] = b"the bytes of a tensor, which are known by their hash";

fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("brigade-fuzz-push-{}", std::process::id()));
        Cache::open(&folder, 1 << 20, Pool::new(1, &[]).expect("one thread"))
    })
}

// Each piece: an offset, a length, and whether its bytes are the right ones.
fuzz_target!(|pieces: Vec<(u8, u8, bool)>| {
    let hash = blake3::hash(BLOB);
    let Ok(mut writer) = cache().receive(hash, BLOB.len() as u64) else { return };
    for (offset, length, right) in pieces {
        let (from, to) = (offset as usize, (offset as usize + length as usize).min(BLOB.len()));
        let data = match BLOB.get(from..to) {
            Some(data) if right => data.to_vec(),
            _ => vec![offset; length.into()],
        };
        if writer.write(offset.into(), &data).is_err() {
            return;
        }
        if writer.is_complete(u64::from(offset) + data.len() as u64) {
            if let Ok(blob) = writer.finish() {
                assert_eq!(std::fs::read(&blob.path).expect("it is there"), BLOB);
                std::fs::remove_file(blob.path).expect("the next round begins with nothing");
            }
            return;
        }
    }
});
