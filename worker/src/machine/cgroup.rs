//! The cgroups that this process is in: where the system keeps its limits.

use std::path::{Path, PathBuf};

/// The two forms of cgroups, whose files have other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy for all.
    Two,
}

/// Folders of this process's cgroup and of those above it, in which `controller` may have limits. `cgroups` is the text of
/// /proc/self/cgroup, and `root` the folder in which cgroups are mounted.
pub(crate) fn folders(cgroups: &str, root: &Path, controller: &str) -> Vec<(PathBuf, Version)> {
    let mut folders = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (base, version) = match controllers {
            "" => (root.to_owned(), Version::Two),
            list if list.split(',').any(|c| c == controller) => {
                (root.join(controller), Version::One)
            }
            _ => continue,
        };
        let own = base.join(path.trim_start_matches('/'));
        let above = own.ancestors().take_while(|dir| dir.starts_with(&base));
        folders.extend(above.map(|dir| (dir.to_owned(), version)));
    }
    folders
}
