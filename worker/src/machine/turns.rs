//! Stages of one machine compute one after the other: each has all cores, or the whole GPU, for a ubatch, instead of a part
//! of them always.
//!
//! The turn is a lock that the system gives back when its holder dies. There are two locks: the stage that waits for
//! the turn holds `next`, so others wait behind it. A stage that computes again and again cannot take the turn twice
//! while another one waits. Which of them waits first is a matter of time: one that has computed longer than another lets that
//! one go before ([`fair_time`](super::fair_time)).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, MemfdFlags, fcntl_lock, ftruncate, memfd_create};
use rustix::io::retry_on_intr;

use super::fair_time::{self, FairTime};

/// How often a stage that lets others go first looks whether it is its turn.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// Numbers of the two files, as a process inherits them: `next`, and that of the turn itself.
pub type Inherited = [i32; 2];

/// The locks, as the node makes them; stages inherit them.
#[derive(Debug)]
pub struct Locks {
    next: OwnedFd,
    turn: OwnedFd,
}

impl Locks {
    /// Two files in memory that all processes have which this one starts.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        let file = |name: &str| memfd_create(name, MemfdFlags::empty());
        let locks = Self { next: file("next")?, turn: file("turn")? };
        ftruncate(&locks.turn, fair_time::BYTES)?;
        Ok(locks)
    }

    /// A stage's process has ended: the others no longer wait for it.
    pub fn forget(&self, number: usize) {
        let file = self.turn.try_clone().map(File::from);
        if let Err(error) = file.and_then(|file| FairTime::forget(&file, number)) {
            tracing::error!(stage = number, %error, "the turns of a stage that has ended cannot be given up");
        }
    }

    /// The locks' file descriptors, for a stage's process.
    pub fn inherited(&self) -> Inherited {
        [self.next.as_raw_fd(), self.turn.as_raw_fd()]
    }
}

/// Where a stage waits for its turn. One of a process.
#[derive(Debug)]
pub struct Turns {
    next: File,
    turn: File,
    time: FairTime,
    /// The turn that this process has. The locks are the process's, so it must not take one twice.
    taken: Mutex<Weak<Lock>>,
}

impl Turns {
    /// Opens the inherited locks, for stage `number`.
    ///
    /// # Errors
    /// There are no such files.
    pub fn open(inherited: Inherited, number: usize) -> io::Result<Arc<Self>> {
        let open = |number: i32| {
            OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{number}"))
        };
        let [next, turn] = inherited;
        let turn = open(turn)?;
        let time = FairTime::new(turn.try_clone()?, number);
        Ok(Arc::new(Self { next: open(next)?, turn, time, taken: Mutex::default() }))
    }

    /// Waits until no other stage computes. A stage that has the turn has it for this ubatch too.
    ///
    /// # Errors
    /// The system has no locks left.
    pub fn take(self: &Arc<Self>) -> io::Result<Turn> {
        let mut last = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = last.upgrade() {
            return Ok(Turn(turn));
        }
        self.time.comes()?;
        while !self.time.may_go()? {
            std::thread::sleep(LOOK_EVERY);
        }
        lock(&self.next)?;
        let taken = lock(&self.turn);
        unlock(&self.next);
        taken?;
        let turn = Arc::new(Lock { turns: self.clone(), since: Instant::now() });
        *last = Arc::downgrade(&turn);
        Ok(Turn(turn))
    }

    /// Whether another stage waits for the turn, of one that has it.
    pub fn is_wanted(&self) -> bool {
        self.time.is_wanted().unwrap_or(true)
    }
}

/// The turn, until it and its clones are dropped.
#[derive(Clone, Debug)]
pub struct Turn(#[allow(dead_code, reason = "held, not read")] Arc<Lock>);

/// The lock of a turn, until it is dropped.
#[derive(Debug)]
struct Lock {
    turns: Arc<Turns>,
    since: Instant,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = self.turns.time.goes(self.since.elapsed()) {
            tracing::error!(%error, "the time of a turn cannot be written: the others may wait for this stage");
        }
        unlock(&self.turns.turn);
    }
}

fn lock(file: impl AsFd) -> io::Result<()> {
    Ok(retry_on_intr(|| fcntl_lock(file.as_fd(), FlockOperation::LockExclusive))?)
}

fn unlock(file: impl AsFd) {
    // Of a lock that is held; the system frees it at the process's end in any case.
    if let Err(error) = fcntl_lock(file, FlockOperation::Unlock) {
        tracing::error!(%error, "the turn cannot be given back");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Says to a test that it is one of the processes, and which files it has inherited.
    const INHERITED: &str = "BRIGADE_TEST_TURNS";
    /// The variable with the folder in which test processes meet.
    const FOLDER: &str = "BRIGADE_TEST_TURNS_FOLDER";
    const TURNS: usize = 300;

    /// One of the processes: it takes many turns, or one without an end.
    fn process(folder: &Path, inherited: &str) {
        let numbers: Vec<i32> = inherited.split(',').map(|text| text.parse().unwrap()).collect();
        let turns = Turns::open([numbers[0], numbers[1]], numbers[3] as usize).unwrap();
        let inside = folder.join("inside");
        if numbers[2] == 1 {
            let _turn = turns.take().unwrap();
            // For another ubatch, of which one end leaves the turn with the other.
            drop(turns.take().unwrap());
            assert!(!turns.is_wanted(), "no stage has been started that could wait");
            println!("\nhas the turn");
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
        for _ in 0..TURNS {
            let _turn = turns.take().unwrap();
            // If another stage were inside, the file would exist.
            File::create_new(&inside).unwrap();
            std::fs::remove_file(&inside).unwrap();
        }
    }

    fn start(folder: &Path, inherited: Inherited, number: usize, for_ever: bool) -> Child {
        let [next, turn] = inherited;
        let mut command = Command::new(std::env::current_exe().unwrap());
        // The name of a test has no crate.
        let (_, module) = module_path!().split_once("::").unwrap();
        let test = format!("{module}::one_computes_at_a_time");
        command.args(["--exact", &test, "--nocapture"]);
        command.env(FOLDER, folder);
        command.env(INHERITED, format!("{next},{turn},{},{number}", i32::from(for_ever)));
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn one_computes_at_a_time() {
        if let Ok(inherited) = std::env::var(INHERITED) {
            return process(&PathBuf::from(std::env::var_os(FOLDER).unwrap()), &inherited);
        }
        let folder = std::env::temp_dir().join(format!("brigade-turns-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let locks = Locks::new().unwrap();
        let mut holder = start(&folder, locks.inherited(), 1, true);
        let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("has the turn")));
        let others: Vec<Child> =
            (2..5).map(|number| start(&folder, locks.inherited(), number, false)).collect();
        let own = Turns::open(locks.inherited(), 1).unwrap();
        while !own.is_wanted() {
            std::thread::yield_now();
        }
        // The lock of a killed process is free.
        holder.kill().unwrap();
        holder.wait().unwrap();
        locks.forget(1);
        for other in others {
            let output = other.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
