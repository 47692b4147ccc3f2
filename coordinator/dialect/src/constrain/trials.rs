//! Grammars that clients send are compiled before they are used. This says at whose turn, how much of it, and what it took.
//!
//! Whoever reads a request does so in the scope of its owner ([`Trials::within`]). There a compile runs on a thread of
//! the lowest priority, in turns with those of others ([`Turns`]). A request may compile [`MAX_TRIED_BYTES`], counted in
//! bytes because the same request must be taken or refused whatever else the machine does. What an owner has tried is
//! remembered: equal grammars of its requests are compiled once. Who reads leaves its place to others while it waits. Others' are not looked at: the time would say that
//! somebody has sent this text.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use brigade_engine::constraint::turns::Turns;
use brigade_engine::constraint::{ConstraintError, check_grammar};

use super::MAX_GRAMMAR_BYTES;
use super::bounds::LOWEST;

/// Bytes of all grammars that are compiled for one request, those that a mistake is looked for in among them.
pub const MAX_TRIED_BYTES: usize = 4 * MAX_GRAMMAR_BYTES;

/// Grammars whose trial is remembered; the one that was used longest ago goes first.
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
    by_name: BTreeMap<Name, (u64, Verdict)>,
    uses: u64,
    tried: u64,
}

/// The place where a request is read. Whoever waits for a compile leaves it to others.
pub trait Place: Send {
    /// Leaves it.
    fn leave(&mut self);
    /// Takes one again.
    fn come_back(&mut self);
}

/// A request that is being read.
struct Scope {
    trials: Arc<Trials>,
    place: Box<dyn Place>,
    owner: u64,
    left: usize,
    spent: Duration,
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
    /// Reads an owner's request by `work` on this thread. Beside its result: how long grammars were compiled for it.
    pub fn within<T>(
        self: &Arc<Self>,
        owner: u64,
        place: Box<dyn Place>,
        work: impl FnOnce() -> T,
    ) -> (T, Duration) {
        let (trials, left, spent) = (self.clone(), MAX_TRIED_BYTES, Duration::ZERO);
        SCOPE.set(Some(Scope { trials, place, owner, left, spent }));
        let _end = End;
        let result = work();
        let spent = SCOPE.take().map_or(Duration::ZERO, |scope| scope.spent);
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

    fn try_for(&self, owner: u64, grammar: &str) -> (Verdict, Duration) {
        let name = name(owner, grammar);
        if let Some(verdict) = self.known().recall(name) {
            return (verdict, Duration::ZERO);
        }
        at_the_place(|place| place.leave());
        let tried = self.try_now(owner, grammar);
        at_the_place(|place| place.come_back());
        self.known().remember(name, tried.0.clone());
        tried
    }

    fn try_now(&self, owner: u64, grammar: &str) -> (Verdict, Duration) {
        let (tell, told) = mpsc::channel();
        let text = grammar.to_owned();
        self.turns.push(owner, move || {
            let began = Instant::now();
            let verdict = check_grammar(&text);
            // Whoever asked may be gone.
            let _ = tell.send((verdict, began.elapsed()));
        });
        let failed = || ConstraintError::Grammar("trying it failed; the log says more".to_owned());
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
        let (used, verdict) = self.by_name.get_mut(&name)?;
        *used = now;
        Some(verdict.clone())
    }

    fn remember(&mut self, name: Name, verdict: Verdict) {
        self.tried += 1;
        self.by_name.insert(name, (self.uses, verdict));
        if self.by_name.len() > MAX_KNOWN {
            let oldest = self.by_name.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(name, _)| *name) {
                self.by_name.remove(&oldest);
            }
        }
    }
}

fn name(owner: u64, grammar: &str) -> Name {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&owner.to_le_bytes());
    hasher.update(grammar.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Tries a grammar for whoever is being read. Nobody is where the program itself asks: then it is tried here.
///
/// # Errors
/// What is wrong with it, or that the request has too much of them.
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
                Ok((scope.trials.clone(), scope.owner))
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
        Some(Ok((trials, owner))) => {
            let (verdict, took) = trials.try_for(owner, grammar);
            SCOPE.with_borrow_mut(|scope| scope.iter_mut().for_each(|scope| scope.spent += took));
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
            trials.within(owner, Box::new(place.clone()), || tried(grammar)).0
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
    fn a_request_compiles_so_much_and_no_more() {
        let trials = Arc::new(Trials::default());
        let large = format!("start: \"a\" // {}\n", "x".repeat(MAX_GRAMMAR_BYTES - 100));
        let read = || {
            let all = || (0..10).map(|n| tried(&format!("{large} // {n}\n"))).collect::<Vec<_>>();
            trials.within(1, Box::new(Counted::default()), all).0
        };
        let verdicts = read();
        let n = verdicts.iter().filter(|verdict| verdict.is_ok()).count();
        assert_eq!(n, MAX_TRIED_BYTES / MAX_GRAMMAR_BYTES);
        assert!(verdicts[9].as_ref().unwrap_err().to_string().contains("bytes in all"));
        assert_eq!(verdicts, read(), "the next request has as much");
    }
}
