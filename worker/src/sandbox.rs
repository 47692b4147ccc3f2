//! What a worker's process may do to the files of its machine: read all that its user may read, write to its own
//! folders and to GPUs, and start no program. A peer that took the process over by a fault would be held to the same.
//!
//! The kernel keeps it (Landlock, since Linux 5.13). Where it cannot, the worker says so and runs on: the rights of its
//! user, and what a service manager takes away, hold anyway.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// Newest rules of the kernel that are asked for; an older kernel keeps those it has.
const NEWEST: ABI = ABI::V6;

/// How far the calling thread, and all that it starts, is confined from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confined {
    /// By all rules.
    Whole,
    /// The kernel is older than some of them.
    InPart,
    /// The kernel has no such rules.
    NotAtAll,
}

/// Confines the calling thread to reading, and to writing beneath `writable`, folders that are made if they are not
/// there. Threads that run already are not confined: call it before there are any.
///
/// # Errors
/// The kernel refuses a rule; nothing is confined then.
pub fn enter(writable: &[PathBuf]) -> Result<Confined, RulesetError> {
    let all = AccessFs::from_all(NEWEST);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(beneath("/", read))?;
    for device in gpu_devices() {
        rules =
            rules.add_rules(beneath(device, read | AccessFs::WriteFile | AccessFs::IoctlDev))?;
    }
    for folder in writable {
        // One that cannot be made is not written to either; who needs it says so.
        let _ = std::fs::create_dir_all(folder);
        rules = rules.add_rules(beneath(folder, all & !AccessFs::Execute))?;
    }
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Confined::Whole,
        RulesetStatus::PartiallyEnforced => Confined::InPart,
        RulesetStatus::NotEnforced => Confined::NotAtAll,
    })
}

/// What drivers of GPUs open: Linux's own interface, and NVIDIA's and AMD's beside it.
fn gpu_devices() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().filter_map(Result::ok);
    let is_gpu = |name: &str| name == "dri" || name == "kfd" || name.starts_with("nvidia");
    entries.filter(move |e| e.file_name().to_str().is_some_and(is_gpu)).map(|e| e.path())
}

/// The rule for what is beneath `path`, if that is there.
fn beneath(
    path: impl AsRef<Path>,
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<PathBeneath<PathFd>, RulesetError>> {
    PathFd::new(path).ok().into_iter().map(move |path| Ok(PathBeneath::new(path, access)))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::process::Command;

    use super::*;

    /// A folder of this test's own.
    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("brigade-sandbox-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_confined_thread_reads_and_writes_to_its_own_folders_alone() {
        let (own, other) = (folder("own"), folder("other"));
        std::fs::write(other.join("file"), "read me").unwrap();
        let inside = own.clone();
        let outside = other.clone();
        // A thread of its own: what holds for it holds for no other test.
        let work = move || {
            let confined = enter(&[inside.join("made"), "/dev/null/no-folder".into()]).unwrap();
            if confined == Confined::NotAtAll {
                println!("skipped: this kernel has no Landlock");
                return;
            }
            std::fs::write(inside.join("made/file"), "mine").unwrap();
            std::fs::remove_file(inside.join("made/file")).unwrap();
            assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "read me");
            let denied = |result: std::io::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
            };
            denied(std::fs::write(outside.join("file"), "changed"));
            denied(std::fs::write(outside.join("new"), "new"));
            denied(std::fs::remove_file(outside.join("file")));
            denied(std::fs::create_dir(inside.join("beside")));
            denied(Command::new("/bin/sh").arg("-c").arg("true").status().map(drop));
        };
        std::thread::spawn(work).join().unwrap();
        for folder in [own, other] {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}
