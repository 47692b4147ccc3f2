//! Tests of the ledger: what holds over many grants, returns and deaths, in one process and in several.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::room::{Medium, Room};
use super::*;

/// What is left of the limit beside the processes of three stages.
const ROOM: u64 = 1 << 30;
const STAGES: usize = 3;

fn share(number: usize) -> Share {
    Share::new(number, STAGES)
}

fn limit() -> Amount {
    Amount { stage: ROOM + STAGES as u64 * PROCESS_BYTES, host: ROOM / 2 }
}

fn stage_of(book: &Book, number: usize) -> Ledger {
    Ledger::of_node(book.inherited(), share(number), limit()).unwrap()
}

fn all_stages(book: &Book) -> Vec<Ledger> {
    (1..=STAGES).map(|number| stage_of(book, number)).collect()
}

/// Numbers that look random; the same ones at each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        // Knuth's constants of a linear congruence; the upper bits are the good ones.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn a_worker_of_its_own_is_asked_for_nothing() {
    let ledger = Ledger::alone(Amount { stage: 100, host: 0 });
    let _held = ledger.stage(Amount::of_stage(1000)).unwrap();
    assert_eq!((ledger.limit().stage, ledger.part().stage), (100, 100));
    assert_eq!(ledger.beside_up_to(5, 50).unwrap().amount().stage, 50);
    assert_eq!(ledger.node(), None);
}

#[test]
fn a_stage_may_have_all_that_the_others_leave() {
    let book = Book::new(7).unwrap();
    let stages = all_stages(&book);
    let large = stages[0].stage(Amount::of_stage(ROOM / 2 + 1)).unwrap();
    assert_eq!(stages[0].limit().stage, ROOM, "its own counts as left");
    let lacking = stages[1].stage(Amount::of_stage(ROOM / 2)).unwrap_err();
    assert_eq!(lacking.left.stage, ROOM / 2 - 1);
    let rest = stages[1].stage(Amount::of_stage(ROOM / 2 - 1)).unwrap();
    assert_eq!(stages[2].limit().stage, 0);
    // The next stage of a worker takes the place of the one that is there.
    let next = stages[0].stage(Amount::of_stage(ROOM / 2)).unwrap();
    drop(large);
    assert_eq!((next.amount().stage, stages[2].limit().stage), (ROOM / 2, 1));
    let beside = stages[2].beside_up_to(10, 1 << 40).unwrap();
    assert_eq!(beside.amount().stage, 1, "as much as is left");
    let seen = stages[1].node().unwrap();
    assert_eq!((seen.granted, seen.limit.stage), (Amount::of_stage(limit().stage), limit().stage));
    assert_eq!(seen.own, Amount::of_stage(rest.amount().stage + PROCESS_BYTES));
}

#[test]
fn places_are_counted_apart() {
    let book = Book::new(7).unwrap();
    let stages = all_stages(&book);
    let all_of_host = Amount { stage: 1, host: ROOM / 2 };
    let _held = stages[0].stage(all_of_host).unwrap();
    assert!(stages[1].stage(Amount { stage: 0, host: 1 }).is_err());
    assert_eq!(stages[1].limit(), Amount::of_stage(ROOM - 1));
}

#[test]
fn the_first_stage_says_what_the_node_may_take() {
    let book = Book::new(7).unwrap();
    let first = stage_of(&book, 1);
    let less = Amount { stage: limit().stage / 2, host: 0 };
    let again = Ledger::of_node(book.inherited(), share(2), less).unwrap();
    assert_eq!(again.limit(), first.limit());
    assert_eq!([first.node(), again.node()].map(|node| node.unwrap().node), [7; 2]);
    let few = Book::new(7).unwrap();
    let limit = Amount::of_stage(STAGES as u64 * PROCESS_BYTES);
    let error = Ledger::of_node(few.inherited(), share(1), limit).unwrap_err().to_string();
    assert!(error.contains("fewer --stages or more --memory"), "{error}");
}

/// Random grants, returns, deaths and new starts: what was granted is never above the limit, what is granted is what is
/// counted, and at the end everything can be had again.
#[test]
fn never_above_the_limit_and_nothing_is_lost() {
    let (book, mut random) = (Book::new(7).unwrap(), Random(1));
    let mut stages = all_stages(&book);
    let mut held: Vec<(Vec<Held>, Vec<Held>)> = (0..STAGES).map(|_| Default::default()).collect();
    let (mut granted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let at = random.below(STAGES as u64) as usize;
        let amount = Amount { stage: random.below(ROOM / 2), host: random.below(ROOM / 4) };
        let (of_stage, beside) = &mut held[at];
        match random.below(10) {
            0..4 => match stages[at].stage(amount) {
                Ok(hold) => {
                    of_stage.push(hold);
                    granted += 1;
                }
                Err(Lacking { left }) => {
                    assert!(!amount.is_within(left) || !beside.is_empty(), "{amount:?} {left:?}");
                    refused += 1;
                }
            },
            4 => beside.extend(stages[at].beside(amount.stage)),
            5 => beside.extend(stages[at].beside_up_to(amount.stage, ROOM)),
            6..8 => drop((of_stage.pop(), beside.pop())),
            8 => drop((of_stage.drain(..).next(), beside.drain(..).next())),
            // Its process is killed: nothing that it has is dropped.
            _ => {
                let (of_stage, beside) = std::mem::take(&mut held[at]);
                of_stage.into_iter().chain(beside).for_each(std::mem::forget);
                book.forget(share(at + 1));
                stages[at] = stage_of(&book, at + 1);
            }
        }
        let sum = |holds: &(Vec<Held>, Vec<Held>)| {
            let stage = holds.0.iter().map(Held::amount).fold(Amount::default(), Amount::max);
            holds.1.iter().map(Held::amount).fold(stage, Amount::plus)
        };
        let all = held.iter().map(sum).fold(processes(STAGES), Amount::plus);
        assert!(all.is_within(limit()), "{all:?}");
        for (stage, holds) in stages.iter().zip(&held) {
            let NodeMemory { granted, own, .. } = stage.node().unwrap();
            assert_eq!((granted, own), (all, sum(holds).plus(processes(1))));
        }
    }
    assert!(granted > 1000 && refused > 1000, "{granted} granted, {refused} refused");
    drop(held);
    let all = Amount { stage: ROOM, host: ROOM / 2 };
    for stage in &stages {
        assert!(stage.stage(all).is_ok());
    }
}

/// Says to a test that it is one of the processes: the file that it has inherited, and its number.
const INHERITED: &str = "BRIGADE_TEST_LEDGER";
/// Grants that a process asks for.
const GRANTS: usize = 3000;

/// One of the processes. The second one holds half of the memory until it is killed.
fn process(inherited: &str) {
    let (file, number) = inherited.split_once(',').unwrap();
    let number: usize = number.parse().unwrap();
    let ledger = Ledger::of_node(file.parse().unwrap(), share(number), limit()).unwrap();
    if number == 2 {
        let _half = ledger.stage(Amount::of_stage(ROOM / 2)).unwrap();
        println!("\nhas half");
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    let (mut random, mut held) = (Random(number as u64), Vec::new());
    for _ in 0..GRANTS {
        held.extend(ledger.beside(random.below(ROOM / 8)));
        let NodeMemory { granted, limit, .. } = ledger.node().unwrap();
        assert!(granted.is_within(limit), "{granted:?}");
        if held.len() > random.below(6) as usize {
            held.swap_remove(random.below(held.len() as u64) as usize);
        }
    }
}

fn start(book: &Book, number: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // The name of a test has no crate.
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = format!("{module}::processes_together_stay_within_the_limit");
    command.args(["--exact", &test, "--nocapture"]);
    command.env(INHERITED, format!("{},{number}", book.inherited()));
    command.stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn processes_together_stay_within_the_limit() {
    if let Ok(inherited) = std::env::var(INHERITED) {
        return process(&inherited);
    }
    assert!(Path::new("/proc/self/fd").exists(), "an inherited file is found there");
    let book = Book::new(7).unwrap();
    let mut holder = start(&book, 2);
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("has half")));
    let others = [1, 3].map(|number| start(&book, number));
    holder.kill().unwrap();
    holder.wait().unwrap();
    let look = || read(&book.file().unwrap()).unwrap();
    assert_eq!(look()[row_of(share(2))], ROOM / 2, "it has given nothing back");
    book.forget(share(2));
    for other in others {
        let output = other.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    assert!(look()[HEADER..].iter().all(|word| *word == 0), "all of it was given back");
}

/// The bytes that stages have of a room, as one takes them for records of ten bytes.
fn takes(room: &Room, has: u64) -> u64 {
    let has = if room.ask(has + 10) >= has + 10 { has + 10 } else { has };
    room.settle(has);
    has
}

/// What a stage still has that looks whether it has too much.
fn gives_back(room: &Room, has: u64) -> u64 {
    let has = has.min(room.most() / 10 * 10);
    room.settle(has);
    has
}

#[test]
fn one_busy_stage_has_the_whole_room_and_each_is_sure_of_its_part() {
    let book = Book::new(7).unwrap();
    let rooms: Vec<Room> =
        all_stages(&book).iter().map(|ledger| ledger.room(Medium::Disk, 900)).collect();
    let mut has = [0; STAGES];
    for _ in 0..100 {
        has[0] = takes(&rooms[0], has[0]);
    }
    assert_eq!(has, [900, 0, 0], "two stages are idle");
    // The second needs some: the first gives back a part, once.
    has[1] = takes(&rooms[1], 0);
    assert_eq!(has[1], 0, "not before the first has looked");
    has[0] = gives_back(&rooms[0], has[0]);
    for _ in 0..100 {
        has[1] = takes(&rooms[1], has[1]);
        has[0] = takes(&rooms[0], has[0]);
    }
    assert_eq!(has, [600, 300, 0]);
    has[2] = takes(&rooms[2], 0);
    has = std::array::from_fn(|i| gives_back(&rooms[i], has[i]));
    for _ in 0..100 {
        has = std::array::from_fn(|i| takes(&rooms[i], has[i]));
    }
    assert_eq!(has, [300; STAGES]);
    // A stage that has ended has nothing, and the next takes what it had.
    book.forget(share(2));
    for _ in 0..100 {
        has[0] = takes(&rooms[0], has[0]);
    }
    assert_eq!(has[0], 600);
    // The other medium is another room.
    assert_eq!(stage_of(&book, 2).room(Medium::Ram, 900).ask(900), 900);
}

#[test]
fn a_room_is_never_overfull_and_no_stage_loses_of_its_part() {
    let book = Book::new(7).unwrap();
    let rooms: Vec<Room> =
        all_stages(&book).iter().map(|ledger| ledger.room(Medium::Ram, 1000)).collect();
    let (mut has, mut random) = ([0u64; STAGES], Random(3));
    for _ in 0..5000 {
        let i = random.below(STAGES as u64) as usize;
        let before = has[i];
        has[i] = match random.below(8) {
            0 => before - random.below(before + 1) / 10 * 10,
            1 | 2 => gives_back(&rooms[i], before),
            _ => takes(&rooms[i], before),
        };
        rooms[i].settle(has[i]);
        assert!(has.iter().sum::<u64>() <= 1000, "{has:?}");
        assert!(rooms.iter().zip(has).all(|(room, has)| room.most() >= has.min(333)), "{has:?}");
    }
}

#[test]
fn a_worker_of_its_own_has_a_room_of_its_own() {
    let room = Ledger::alone(Amount::of_stage(100)).room(Medium::Ram, 50);
    assert_eq!((room.ask(80), room.most()), (50, 50));
    room.settle(40);
}
