//! Processes that a test program leaves behind, for example the workers of a killed server.

use std::time::{Duration, Instant};
use std::{fs, process, thread};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How long processes may take to notice, on a busy machine, that their parent has gone.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// From now on, a process whose parent ends becomes a child of this one.
pub fn take_in() {
    // On a system without it, processes that are left behind are not known.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Waits until this process has no children, but no longer than `within`; then kills those it still has. Their ids and
/// command lines.
pub fn ended_within(within: Duration) -> Vec<String> {
    let begin = Instant::now();
    while begin.elapsed() < within {
        if alive().is_empty() {
            return Vec::new();
        }
        thread::sleep(Duration::from_millis(20));
    }
    let mut left = Vec::new();
    // Processes that a killed one leaves behind are killed as well.
    loop {
        let pids = alive();
        if pids.is_empty() {
            return left;
        }
        for pid in pids {
            left.push(format!("{} {}", pid.as_raw_nonzero(), command_line(pid)));
            // One that has just ended is no matter.
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

/// Children that still run. Children that have ended are waited for.
fn alive() -> Vec<Pid> {
    let mut alive = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Behind the name, which may hold anything: state and parent.
        let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let (state, parent) = (fields.next(), fields.next());
        if parent.and_then(|parent| parent.parse().ok()) != Some(process::id()) {
            continue;
        }
        if state == Some("Z") {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        } else {
            alive.push(pid);
        }
    }
    alive
}

fn command_line(pid: Pid) -> String {
    let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    fs::read_to_string(path).unwrap_or_default().replace('\0', " ")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// One test, because both would see each other's children.
    #[test]
    fn children_of_children_are_taken_in_waited_for_and_killed() {
        take_in();
        let leaves = |command: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]).stdout(Stdio::null());
            assert!(shell.status().unwrap().success());
        };
        leaves("sleep 0.2 &");
        assert!(ended_within(Duration::from_secs(60)).is_empty(), "it ends by itself");
        // It may be stopped before the shell has become the command.
        leaves("sleep 1000 & kill -STOP $!");
        let left = ended_within(Duration::from_millis(50));
        assert!(matches!(&left[..], [one] if one.contains("sleep 1000")), "{left:?}");
        assert!(alive().is_empty());
    }
}
