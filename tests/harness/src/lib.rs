//! Runs the tests of a program, as many at once as their kind allows.
//!
//! Cargo runs one test program after the other, so the tests of a kind are modules of one program, which lists them:
//!
//! ```ignore
//! //! What commands do.
//! fn a_file_is_named_once() { ... }
//! fn ten_thousand_answers_fit() { ... }
//!
//! pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
//!     waits: a_file_is_named_once, ten_thousand_answers_fit ignored("many minutes: at night");
//! ];
//! ```
//!
//! and in `main.rs`, where the name of a module comes before those of its tests:
//!
//! ```ignore
//! mod commands;
//! fn main() -> std::process::ExitCode {
//!     brigade_harness::main(brigade_harness::modules![commands])
//! }
//! ```
//!
//! A function that is in no list is dead code, and so is a list that is not in `main.rs`; the lints reject both. An attribute
//! `#[test]` means nothing here, and hides its function from the lints: the repository's own rules reject it.
//!
//! All processes that a test starts end with it. The program adopts processes that are left behind, and fails with
//! the names of those that do not end. A reader of its output through a pipe would wait for them for ever.
//!
//! Tests begin in the order of these lists. A long one that begins last runs by itself at the end, and cores are idle: so
//! modules with the longest tests come first.
//!
//! Arguments are those of every test program. Tests need no processes of their own: they use different names for
//! everything that they start, and tests that measure their own process are `alone`.

use std::num::NonZero;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, FormatSetting, Trial};

mod left;

/// A test that takes longer is named while it runs, so that one that hangs is known.
const LONG: Duration = Duration::from_secs(60);

/// Tests that wait and run at once: so many that two cores are hardly ever idle, and none waits so long for one that a
/// heartbeat is missed.
const WAITING: usize = 12;

/// A test's use of the machine, which decides what may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The test waits, most of the time: for other processes, or for time to pass.
    Waits,
    /// The test computes in this process: one for each core.
    Computes,
    /// The test measures its process or the machine, or changes what the whole process has: nothing else runs.
    Alone,
}

impl Class {
    /// In this order one after the other.
    const ALL: [Self; 3] = [Self::Waits, Self::Computes, Self::Alone];

    /// Tests that run at once.
    fn at_once(self) -> usize {
        match self {
            Self::Waits => WAITING,
            Self::Computes => thread::available_parallelism().map_or(1, NonZero::get),
            Self::Alone => 1,
        }
    }
}

/// A test with its name and class. [`tests!`] makes them.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The test's name in its module.
    pub name: &'static str,
    /// The class of the test.
    pub class: Class,
    /// Why it runs only when that is asked for.
    pub ignored: Option<&'static str>,
    /// Panics if it fails.
    pub run: fn(),
}

/// The list of a module's tests by class, `waits`, `computes` and `alone`: see the head of this file.
#[macro_export]
macro_rules! tests {
    ($($class:ident: $($name:ident $(ignored($reason:expr))?),+ $(,)?;)+) => {
        &[$($($crate::Test {
            name: stringify!($name),
            class: $crate::tests!(@class $class),
            ignored: $crate::tests!(@ignored $($reason)?),
            run: $name,
        },)+)+]
    };
    (@class waits) => { $crate::Class::Waits };
    (@class computes) => { $crate::Class::Computes };
    (@class alone) => { $crate::Class::Alone };
    (@ignored) => { None };
    (@ignored $reason:expr) => { Some($reason) };
}

/// The modules of a program, each with its list `TESTS`.
#[macro_export]
macro_rules! modules {
    ($($module:ident),+ $(,)?) => { &[$((stringify!($module), $module::TESTS)),+] };
}

/// A test with its whole name.
struct Named {
    name: String,
    test: Test,
    /// Whether it is to run, by `--ignored` and similar options.
    is_run: bool,
}

/// How a test ended.
struct Ended<'a> {
    name: &'a str,
    passed: bool,
    took: Duration,
}

/// Runs the tests of all modules that the program's arguments select. Fails if one of them does.
pub fn main(modules: &[(&str, &[Test])]) -> ExitCode {
    let arguments = Arguments::from_args();
    let (named, n_filtered) = selected(modules, &arguments);
    if arguments.list {
        list(&named, &arguments);
        return ExitCode::SUCCESS;
    }
    let (begin, n) = (Instant::now(), named.len());
    println!("\nrunning {n} {}", if n == 1 { "test" } else { "tests" });
    left::take_in();
    let mut ended = Vec::new();
    for class in Class::ALL {
        let of_class: Vec<&Named> =
            named.iter().filter(|named| named.test.class == class).collect();
        let most = class.at_once().min(arguments.test_threads.unwrap_or(usize::MAX).max(1));
        ended.extend(run_all(&of_class, most));
    }
    let n_failed = summary(&mut ended);
    let left = left::ended_within(left::PATIENCE);
    for process in &left {
        println!("left behind by a test, and killed: {process}");
    }
    let (passed, ignored) = (ended.len() - n_failed, n - ended.len());
    println!(
        "\ntest result: {}. {passed} passed; {n_failed} failed; {ignored} ignored; 0 measured; {n_filtered} filtered out; \
         finished in {:.2}s\n",
        if n_failed == 0 && left.is_empty() { "ok" } else { "FAILED" },
        begin.elapsed().as_secs_f64()
    );
    // As test programs have it.
    if n_failed == 0 && left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// Tests that names and options select, and how many they do not.
fn selected(modules: &[(&str, &[Test])], arguments: &Arguments) -> (Vec<Named>, usize) {
    let (mut named, mut n_filtered) = (Vec::new(), 0);
    for (module, test) in
        modules.iter().flat_map(|(module, tests)| tests.iter().map(move |t| (module, t)))
    {
        let name = format!("{module}::{}", test.name);
        // That crate interprets the arguments.
        let trial = Trial::test(name.clone(), || Ok(())).with_ignored_flag(test.ignored.is_some());
        if arguments.is_filtered_out(&trial) {
            n_filtered += 1;
        } else {
            named.push(Named { name, test: *test, is_run: !arguments.is_ignored(&trial) });
        }
    }
    (named, n_filtered)
}

/// Names as test programs list them; reasons stand behind them, except for programs that read the list.
fn list(named: &[Named], arguments: &Arguments) {
    let is_read = matches!(arguments.format, Some(FormatSetting::Terse));
    for Named { name, test, .. } in named {
        match test.ignored {
            Some(reason) if !is_read => println!("{name}: test  (ignored: {reason})"),
            _ => println!("{name}: test"),
        }
    }
    if !is_read {
        println!("\n{} tests, 0 benchmarks", named.len());
    }
}

/// Runs tests, `most` of them at once, in their order.
fn run_all<'a>(named: &[&'a Named], most: usize) -> Vec<Ended<'a>> {
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(named) = named.get(next.fetch_add(1, Ordering::Relaxed)) {
            match named.test.ignored {
                Some(reason) if !named.is_run => {
                    println!("test {} ... ignored, {reason}", named.name)
                }
                _ if !named.is_run => println!("test {} ... ignored", named.name),
                _ => {
                    let one = run(named);
                    let result = if one.passed { "ok" } else { "FAILED" };
                    println!("test {} ... {result} <{:.3}s>", one.name, one.took.as_secs_f64());
                    ended.lock().expect("no thread that holds it panics").push(one);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..most.min(named.len()) {
            scope.spawn(work);
        }
    });
    ended.into_inner().expect("no thread that holds it panics")
}

/// Runs one test in a thread of its own: what panics says its name, and what a thread holds ends with the test.
fn run(named: &Named) -> Ended<'_> {
    let (begin, run) = (Instant::now(), named.test.run);
    let thread = thread::Builder::new().name(named.name.clone());
    let (over, is_over) = mpsc::channel::<()>();
    let thread = thread.spawn(move || {
        // Dropped at the end.
        let _over = over;
        catch_unwind(run).is_ok()
    });
    if is_over.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
        println!("test {} has been running for over {} seconds", named.name, LONG.as_secs());
    }
    let passed = thread.expect("a thread starts").join().unwrap_or(false);
    Ended { name: &named.name, passed, took: begin.elapsed() }
}

/// Prints what took longest and what failed; the number of the latter.
fn summary(ended: &mut [Ended<'_>]) -> usize {
    ended.sort_by_key(|one| std::cmp::Reverse(one.took));
    if !ended.is_empty() {
        println!("\nslowest:");
    }
    for one in ended.iter().take(10) {
        println!("{:10.1} s  {}", one.took.as_secs_f64(), one.name);
    }
    let failed: Vec<&str> = ended.iter().filter(|one| !one.passed).map(|one| one.name).collect();
    if !failed.is_empty() {
        println!("\nfailures:\n    {}", failed.join("\n    "));
    }
    failed.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes() {}
    fn fails() {
        panic!("as it should");
    }
    fn is_named() {
        assert_eq!(thread::current().name(), Some("module::is_named"));
    }

    const TESTS: &[Test] = tests![
        waits: passes, fails ignored("it fails");
        alone: is_named;
    ];

    fn names(arguments: &[&str]) -> (Vec<(String, bool)>, usize) {
        let arguments = Arguments::from_iter(["program"].iter().chain(arguments));
        let (named, n_filtered) = selected(&[("module", TESTS)], &arguments);
        (named.into_iter().map(|named| (named.name, named.is_run)).collect(), n_filtered)
    }

    #[test]
    fn lists_have_names_classes_and_reasons() {
        let seen: Vec<_> = TESTS.iter().map(|test| (test.name, test.class, test.ignored)).collect();
        let fails = ("fails", Class::Waits, Some("it fails"));
        assert_eq!(seen, [("passes", Class::Waits, None), fails, ("is_named", Class::Alone, None)]);
    }

    #[test]
    fn arguments_select_tests() {
        let all = ["passes", "fails", "is_named"].map(|name| format!("module::{name}"));
        let of = |which: &[(usize, bool)]| -> Vec<(String, bool)> {
            which.iter().map(|&(i, is_run)| (all[i].clone(), is_run)).collect()
        };
        assert_eq!(names(&[]), (of(&[(0, true), (1, false), (2, true)]), 0));
        assert_eq!(names(&["--include-ignored"]), (of(&[(0, true), (1, true), (2, true)]), 0));
        assert_eq!(names(&["--ignored", "--nocapture"]), (of(&[(1, true)]), 2));
        assert_eq!(names(&["le::is", "--test-threads", "1"]), (of(&[(2, true)]), 2));
        assert_eq!(names(&["--exact", "module::passes"]), (of(&[(0, true)]), 2));
        assert_eq!(names(&["--skip", "passes", "--skip", "named"]), (of(&[(1, false)]), 2));
    }

    #[test]
    fn every_test_that_is_selected_runs_once_and_failures_are_counted() {
        let arguments = Arguments::from_iter(["program", "--include-ignored"]);
        let (named, _) = selected(&[("module", TESTS)], &arguments);
        let mut ended = run_all(&named.iter().collect::<Vec<_>>(), 2);
        assert_eq!((ended.len(), summary(&mut ended)), (3, 1));
        assert!(ended.iter().all(|one| one.passed != (one.name == "module::fails")));
    }
}
