//! Confines the worker's process: it may read all that its user may read, write to its own folders and to GPUs, and
//! start no program. A node may start its own program file only. A peer that took over the process by a fault would
//! be confined as well.
//!
//! The kernel enforces this (Landlock, since Linux 5.13). Where it cannot, the worker logs that and runs on: the
//! rights of its user and the limits of a service manager hold anyway.

use std::io::Read;
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
    /// All rules are in force.
    Whole,
    /// The kernel is older than some of them.
    InPart,
    /// The kernel has no such rules.
    NotAtAll,
}

/// Confines the calling thread to reading, to writing beneath `writable`, folders that are made if they are not there, and to
/// starting the program `own`, if it may start any. Threads that run already are not confined: call it before there are any.
///
/// # Errors
/// The kernel refuses a rule; nothing is confined then.
pub fn enter(writable: &[PathBuf], own: Option<&Path>) -> Result<Confined, RulesetError> {
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
    for program in own.into_iter().flat_map(|own| [Some(own.to_owned()), loader_of(own)]).flatten()
    {
        rules = rules.add_rules(beneath(program, AccessFs::ReadFile | AccessFs::Execute))?;
    }
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Confined::Whole,
        RulesetStatus::PartiallyEnforced => Confined::InPart,
        RulesetStatus::NotEnforced => Confined::NotAtAll,
    })
}

/// Bytes of a program's file that are looked at; its table of segments lies there.
const PROGRAM_HEAD: u64 = 64 << 10;

/// The program by which the system loads `program`, as its file says (ELF, 64 bits); `None`: it needs none.
fn loader_of(program: &Path) -> Option<PathBuf> {
    const TABLE_AT: usize = 32;
    const ENTRY_BYTES: usize = 54;
    const ENTRIES: usize = 56;
    const IS_LOADER: u32 = 3;
    let mut head = Vec::new();
    std::fs::File::open(program).ok()?.take(PROGRAM_HEAD).read_to_end(&mut head).ok()?;
    let is_elf = head.starts_with(b"\x7fELF\x02\x01");
    let table = usize::try_from(number::<8>(&head, TABLE_AT)?).ok().filter(|_| is_elf)?;
    let bytes = usize::try_from(number::<2>(&head, ENTRY_BYTES)?).ok()?;
    let entries = usize::try_from(number::<2>(&head, ENTRIES)?).ok()?;
    let mut entries = (0..entries).filter_map(|i| table.checked_add(i * bytes));
    let of = entries.find(|at| number::<4>(&head, *at) == Some(u64::from(IS_LOADER)))?;
    let begin = usize::try_from(number::<8>(&head, of + 8)?).ok()?;
    let length = usize::try_from(number::<8>(&head, of + 32)?).ok()?;
    let name = head.get(begin..begin.checked_add(length)?)?;
    let name = name.split(|byte| *byte == 0).next()?;
    Some(PathBuf::from(std::str::from_utf8(name).ok()?))
}

/// A number of so many bytes of a program's file, least first.
fn number<const N: usize>(head: &[u8], at: usize) -> Option<u64> {
    let bytes = head.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Device files that GPU drivers open: Linux's own interface, and NVIDIA's and AMD's beside it.
fn gpu_devices() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().filter_map(Result::ok);
    let is_gpu = |name: &str| name == "dri" || name == "kfd" || name.starts_with("nvidia");
    entries.filter(move |e| e.file_name().to_str().is_some_and(is_gpu)).map(|e| e.path())
}

/// The rule for everything beneath `path`, if `path` exists.
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
            let confined =
                enter(&[inside.join("made"), "/dev/null/no-folder".into()], None).unwrap();
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

    #[test]
    fn a_node_starts_its_own_program_alone_and_that_starts_none() {
        let programs = folder("programs");
        let (own, other) = (programs.join("own"), programs.join("other"));
        // A shell, so that what it may start shows: built in is `echo`, and `env` is a program.
        for copy in [&own, &other] {
            std::fs::copy("/bin/sh", copy).unwrap();
        }
        let work = move || {
            if enter(&[], Some(&own)).unwrap() == Confined::NotAtAll {
                println!("skipped: this kernel has no Landlock");
                return;
            }
            let said = |program: &Path, what: &str| {
                let output = Command::new(program).args(["-c", what]).output();
                output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            };
            assert_eq!(said(&own, "echo here").unwrap(), "here\n");
            assert_eq!(said(&own, "/usr/bin/env true || echo denied").unwrap(), "denied\n");
            assert_eq!(said(&other, "echo here").unwrap_err().kind(), ErrorKind::PermissionDenied);
            // A stage confines itself further: it may start no program.
            let stage = std::thread::spawn(move || {
                enter(&[], None).unwrap();
                said(&own, "echo here").unwrap_err().kind()
            });
            assert_eq!(stage.join().unwrap(), ErrorKind::PermissionDenied);
        };
        std::thread::spawn(work).join().unwrap();
        std::fs::remove_dir_all(programs).unwrap();
    }
}
