//! Names of the files of a split model: `<prefix>-00001-of-00003.gguf`, counted from 1.

use std::path::{Path, PathBuf};

pub(super) const SPLIT_NO: &str = "split.no";
pub(super) const SPLIT_COUNT: &str = "split.count";
pub(super) const SPLIT_TENSORS: &str = "split.tensors.count";

/// Most shards accepted; the name has five digits, models have tens.
pub const MAX_SHARDS: usize = 4096;

const SUFFIX: &str = ".gguf";
const DIGITS: usize = 5;

/// Path of shard `no` (from 0) of `count`, from the path of the first; `None` when that does not
/// follow the pattern or tells another count.
pub(super) fn shard_path(first: &Path, no: usize, count: usize) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let prefix = name.strip_suffix(&tail(0, count))?;
    Some(first.with_file_name(format!("{prefix}{}", tail(no, count))))
}

fn tail(no: usize, count: usize) -> String {
    format!("-{:0DIGITS$}-of-{count:0DIGITS$}{SUFFIX}", no + 1)
}

/// Ending of the name of the first of `count` shards, for messages.
pub(super) fn first_tail(count: usize) -> String {
    tail(0, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_derive_from_the_first() {
        let first = Path::new("/m/kimi-00001-of-00012.gguf");
        assert_eq!(shard_path(first, 11, 12).unwrap(), Path::new("/m/kimi-00012-of-00012.gguf"));
        assert_eq!(shard_path(first, 1, 13), None);
        assert_eq!(shard_path(Path::new("/m/kimi-00002-of-00012.gguf"), 1, 12), None);
        assert_eq!(shard_path(Path::new("/m/kimi.gguf"), 0, 1), None);
    }
}
