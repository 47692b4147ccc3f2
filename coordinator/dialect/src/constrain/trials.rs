//! Grammars that clients send are compiled before they are used. This module orders and limits these compilations,
//! and measures them.
//!
//! A request is read in the scope of its owner ([`Trials::within`]). There a compilation runs on a thread of
//! low priority, and owners take turns ([`Turns`]). A request may compile [`MAX_TRIED_BYTES`]. The limit is in
//! bytes, so that the load of the machine does not decide whether a request is accepted. Results are remembered for
//! each owner, so that equal grammars of its requests are compiled once. They are not shared between owners, since
//! the time would reveal that another owner has sent this text. A request that waits for a compilation leaves its
//! reading place to others. When its client has left ([`Asker`]), nothing is compiled for it any more.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use brigade_engine::constraint::turns::Turns;
use brigade_engine::constraint::{ConstraintError, WorkTime, check_grammar, check_grammar_while};

use super::MAX_GRAMMAR_BYTES;
use super::bounds::LOWEST;

/// Bytes of all grammars that are compiled for one request, those that a mistake is looked for in among them.
pub const MAX_TRIED_BYTES: usize = 4 * MAX_GRAMMAR_BYTES;

/// Grammars whose trial is remembered; of the owner that has most of them, the one that was used longest ago goes first.
const MAX_KNOWN: usize = 256;

type Name = [u8; 32];
type Verdict = Result<(), ConstraintError>;

/// The threads that try grammars, and what is known of those that were tried.
#[derive(Debug)]
pub struct Trials {
    turns: Turns,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_name: BTreeMap<Name, Tried>,
    uses: u64,
    tried: u64,
}

#[derive(Debug)]
struct Tried {
    owner: u64,
    last_use: u64,
    verdict: Verdict,
}

/// The place at which a request is read. It is free for others while the request waits for a compilation.
pub trait Place: Send {
    /// Leaves the place.
    fn leave(&mut self);
    /// Waits for a free place and takes it.
    fn come_back(&mut self);
}

/// A flag that says whether the client of a request still waits. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct Asker(Arc<AtomicBool>);

/// While this lives its [`Asker`] waits.
#[derive(Debug)]
pub struct Waits(Asker);

impl Asker {
    /// A guard for a waiting client. When it is dropped the client has left.
    pub fn waits(&self) -> Waits {
        Waits(self.clone())
    }

    fn has_left(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}

/// The cost of the grammars that were compiled for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compiling {
    /// The number of grammars.
    pub grammars: u32,
    /// The time of them all.
    pub took: Duration,
}

/// A request that is being read.
struct Scope {
    asker: Asker,
    trials: Arc<Trials>,
    place: Box<dyn Place>,
    owner: u64,
    left: usize,
    spent: Compiling,
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

impl Default for Trials {
    fn default() -> Self {
        Self { turns: Turns::new("grammars"), known: Mutex::default() }
    }
}

impl Trials {
    /// Reads an owner's request by `work` on this thread, for `asker`. Returns its result and the grammars that were
    /// compiled for it.
    pub fn within<T>(
        self: &Arc<Self>,
        owner: u64,
        asker: Asker,
        place: Box<dyn Place>,
        work: impl FnOnce() -> T,
    ) -> (T, Compiling) {
        let (trials, left, spent) = (self.clone(), MAX_TRIED_BYTES, Compiling::default());
        SCOPE.set(Some(Scope { asker, trials, place, owner, left, spent }));
        let _end = End;
        let result = work();
        let spent = SCOPE.take().map_or(Compiling::default(), |scope| scope.spent);
        (result, spent)
    }

    /// The threads that compile.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// How many grammars were compiled so far.
    pub fn n_tried(&self) -> u64 {
        self.known().tried
    }

    fn try_for(&self, owner: u64, asker: &Asker, grammar: &str) -> (Verdict, Compiling) {
        let name = name(owner, grammar);
        if let Some(verdict) = self.known().recall(name) {
            return (verdict, Compiling::default());
        }
        at_the_place(|place| place.leave());
        let (verdict, took) = self.try_now(owner, asker, grammar);
        at_the_place(|place| place.come_back());
        let is_tried = verdict != Err(ConstraintError::Unwanted);
        if is_tried {
            self.known().remember(name, owner, verdict.clone());
        }
        (verdict, Compiling { grammars: is_tried.into(), took })
    }

    fn try_now(&self, owner: u64, asker: &Asker, grammar: &str) -> (Verdict, Duration) {
        let (tell, told) = mpsc::channel();
        let (text, asker) = (grammar.to_owned(), asker.clone());
        self.turns.push(owner, move || {
            let began = WorkTime::now();
            let verdict = check_grammar_while(&text, || !asker.has_left());
            // The request may be gone.
            let _ = tell.send((verdict, began.elapsed()));
        });
        let failed = || {
            ConstraintError::Grammar(
                "trying the grammar failed; the server's log says more".to_owned(),
            )
        };
        told.recv().unwrap_or_else(|_| (Err(failed()), Duration::ZERO))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while it is held; if it did, the map would still be whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at_the_place(act: impl FnOnce(&mut dyn Place)) {
    SCOPE.with_borrow_mut(|scope| {
        if let Some(scope) = scope {
            act(&mut *scope.place);
        }
    });
}

/// Ends the scope, also where `work` panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        SCOPE.take();
    }
}

impl Known {
    fn recall(&mut self, name: Name) -> Option<Verdict> {
        self.uses += 1;
        let now = self.uses;
        let tried = self.by_name.get_mut(&name)?;
        tried.last_use = now;
        Some(tried.verdict.clone())
    }

    fn remember(&mut self, name: Name, owner: u64, verdict: Verdict) {
        self.tried += 1;
        self.by_name.insert(name, Tried { owner, last_use: self.uses, verdict });
        if self.by_name.len() <= MAX_KNOWN {
            return;
        }
        let mut held: BTreeMap<u64, usize> = BTreeMap::new();
        self.by_name.values().for_each(|tried| *held.entry(tried.owner).or_default() += 1);
        let rank = |(_, tried): &(&Name, &Tried)| {
            (held.get(&tried.owner).copied(), Reverse(tried.last_use))
        };
        if let Some(next) = self.by_name.iter().max_by_key(rank).map(|(name, _)| *name) {
            self.by_name.remove(&next);
        }
    }
}

fn name(owner: u64, grammar: &str) -> Name {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&owner.to_le_bytes());
    hasher.update(grammar.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Compiles a grammar for the request that is being read on this thread. Outside of any request it is compiled at
/// once, on this thread.
///
/// # Errors
/// The grammar is invalid, or the request has too many of them.
pub(super) fn tried(grammar: &str) -> Verdict {
    // The library turns the sign of a range's one number again and again where that is the lowest i64, until the stack ends.
    if grammar.contains("json") && has_below(grammar, LOWEST as f64) {
        let why = format!("it has a number below {LOWEST}, which cannot be held: take another one");
        return Err(ConstraintError::Grammar(why));
    }
    let taken = SCOPE.with_borrow_mut(|scope| {
        scope.as_mut().map(|scope| match scope.left.checked_sub(grammar.len()) {
            Some(left) => {
                scope.left = left;
                Ok((scope.trials.clone(), scope.owner, scope.asker.clone()))
            }
            None => {
                scope.left = 0;
                let why = format!(
                    "the grammars and schemas of a request may have {MAX_TRIED_BYTES} bytes in all: send smaller ones, \
                     or fewer"
                );
                Err(ConstraintError::Grammar(why))
            }
        })
    });
    match taken {
        None => check_grammar(grammar),
        Some(Err(error)) => Err(error),
        Some(Ok((_, _, asker))) if asker.has_left() => Err(ConstraintError::Unwanted),
        Some(Ok((trials, owner, asker))) => {
            let (verdict, more) = trials.try_for(owner, &asker, grammar);
            SCOPE.with_borrow_mut(|scope| {
                scope.iter_mut().for_each(|scope| {
                    scope.spent.grammars += more.grammars;
                    scope.spent.took += more.took;
                });
            });
            verdict
        }
    }
}

/// Whether a text has a number below `lowest`.
fn has_below(text: &str, lowest: f64) -> bool {
    text.match_indices('-').any(|(at, _)| {
        let rest = &text.as_bytes()[at + 1..];
        let mut end = 0;
        while let Some(byte) = rest.get(end) {
            let is_sign =
                matches!(byte, b'+' | b'-') && end > 0 && matches!(rest[end - 1], b'e' | b'E');
            if !(byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E') || is_sign) {
                break;
            }
            end += 1;
        }
        let number = text[at..at + 1 + end].parse::<f64>();
        number.is_ok_and(|number| number < lowest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_would_end_the_stack_is_refused_wherever_it_stands() {
        for grammar in [
            r#"{"grammars": [{"json_schema": {"const": -9223372036854775808}}]}"#,
            r##"{"grammars": [{"json_schema": {"$ref": "#/default", "default": {"enum": [-1e19]}}}]}"##,
            r#"{"grammars": [{"lark_grammar": "start: %json {\"const\": -9223372036854775808}"}]}"#,
        ] {
            let why = tried(grammar).unwrap_err().to_string();
            assert!(why.contains("cannot be held"), "{grammar}: {why}");
        }
        let held = r#"{"grammars": [{"json_schema": {"const": -9223372036854774784}}]}"#;
        assert_eq!(tried(held), Ok(()));
    }

    /// How often it was left, and come back to.
    #[derive(Clone, Default)]
    struct Counted(Arc<Mutex<[u32; 2]>>);

    impl Place for Counted {
        fn leave(&mut self) {
            self.0.lock().unwrap()[0] += 1;
        }

        fn come_back(&mut self) {
            self.0.lock().unwrap()[1] += 1;
        }
    }

    #[test]
    fn equal_grammars_of_an_owner_are_tried_once() {
        let trials = Arc::new(Trials::default());
        let place = Counted::default();
        let read = |owner, grammar: &str| {
            trials.within(owner, Asker::default(), Box::new(place.clone()), || tried(grammar)).0
        };
        for _ in 0..13 {
            assert_eq!(read(1, "start: \"a\""), Ok(()));
            assert!(read(1, "start: b").is_err());
        }
        assert_eq!(trials.n_tried(), 2);
        assert_eq!(read(2, "start: \"a\""), Ok(()), "and anew for another one");
        assert_eq!(trials.n_tried(), 3);
        assert_eq!(*place.0.lock().unwrap(), [3, 3], "a place is left while a grammar is compiled");
    }

    #[test]
    fn who_sends_many_grammars_does_not_make_those_of_others_forgotten() {
        let mut known = Known::default();
        known.remember(name(2, "polite"), 2, Ok(()));
        for n in 0..2 * MAX_KNOWN {
            known.recall(name(1, &n.to_string()));
            known.remember(name(1, &n.to_string()), 1, Ok(()));
        }
        assert_eq!(known.by_name.len(), MAX_KNOWN);
        assert_eq!(known.recall(name(2, "polite")), Some(Ok(())));
        assert_eq!(known.recall(name(1, "0")), None);
    }

    #[test]
    fn nothing_is_compiled_for_a_client_that_has_left() {
        let trials = Arc::new(Trials::default());
        let (release, held) = mpsc::channel::<()>();
        // Nothing of this owner is compiled before this is released.
        trials.turns().push(1, move || held.recv().unwrap_or(()));
        let asker = Asker::default();
        let waits = asker.waits();
        let (tell, told) = mpsc::channel();
        let reading = std::thread::spawn({
            let trials = trials.clone();
            move || {
                let read = || {
                    tell.send(()).unwrap();
                    [tried("start: \"a\""), tried("start: \"b\"")]
                };
                trials.within(1, asker, Box::new(Counted::default()), read)
            }
        });
        told.recv().unwrap();
        drop(waits);
        release.send(()).unwrap();
        let (verdicts, spent) = reading.join().unwrap();
        assert_eq!(verdicts, [Err(ConstraintError::Unwanted), Err(ConstraintError::Unwanted)]);
        assert_eq!((trials.n_tried(), spent.grammars), (0, 0));
        // A trial that was given up says nothing about the grammar.
        let again = || tried("start: \"a\"");
        let place = Box::new(Counted::default());
        assert_eq!(trials.within(1, Asker::default(), place, again).0, Ok(()));
    }

    #[test]
    fn a_request_compiles_so_much_and_no_more() {
        let trials = Arc::new(Trials::default());
        let large = format!("start: \"a\" // {}\n", "x".repeat(MAX_GRAMMAR_BYTES - 100));
        let read = || {
            let all = || (0..10).map(|n| tried(&format!("{large} // {n}\n"))).collect::<Vec<_>>();
            trials.within(1, Asker::default(), Box::new(Counted::default()), all).0
        };
        let verdicts = read();
        let n = verdicts.iter().filter(|verdict| verdict.is_ok()).count();
        assert_eq!(n, MAX_TRIED_BYTES / MAX_GRAMMAR_BYTES);
        assert!(verdicts[9].as_ref().unwrap_err().to_string().contains("bytes in all"));
        assert_eq!(verdicts, read(), "the next request has as much");
    }
}
