//! The order of loads, with simulated clients and a simulated clock.

use std::time::{Duration, Instant};

use super::turns::*;

/// Memory of one machine.
struct Memory {
    bytes: Vec<u64>,
    budget: u64,
    there: Vec<bool>,
}

impl Room for Memory {
    fn in_the_way(&self, model: usize, go: &[usize]) -> Option<Vec<usize>> {
        let taken: u64 =
            (0..self.bytes.len()).filter(|m| self.there[*m]).map(|m| self.bytes[m]).sum();
        let mut over = (taken + self.bytes[model]).saturating_sub(self.budget);
        let mut gone = Vec::new();
        for at in go {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(self.bytes[*at]);
            gone.push(*at);
        }
        (over == 0).then_some(gone)
    }

    fn kind(&self, _: usize) -> usize {
        0
    }
}

/// A moment is so long.
const TICK: Duration = Duration::from_millis(20);

/// A load takes so long.
const LOAD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
enum Doing {
    /// Until then there is no request.
    Rests(Instant),
    /// For a model since then, not at its line.
    Waits {
        model: usize,
        since: Instant,
        id: WishId,
    },
    /// At its line, which is not up.
    IsThere {
        model: usize,
        since: Instant,
    },
    /// Until then it is answered.
    Runs {
        model: usize,
        until: Instant,
    },
    Done,
}

struct Client {
    key: Key,
    doing: Doing,
    /// Requests that are left to it.
    left: usize,
    longest: Duration,
    /// Chooses the model of the client's next request.
    next: Box<dyn FnMut() -> usize>,
}

/// Models, clients and a clock that is turned by hand.
struct World {
    now: Instant,
    turns: Turns,
    memory: Memory,
    sights: Vec<Sight>,
    clients: Vec<Client>,
    answer: Duration,
    /// How long the end of a line takes, before another can begin in its place.
    end: Duration,
    /// Whether one line is ended and begun at a time.
    one_by_one: bool,
    busy_until: Instant,
    loads: Vec<usize>,
}

impl World {
    fn new(
        n_models: usize,
        room: u64,
        swap_after: impl Into<Option<Duration>>,
        max_loaded: Option<usize>,
    ) -> Self {
        let swap_after = swap_after.into();
        let now = Instant::now();
        let sight =
            Sight { stage: Stage::Away, is_used: false, used: now, stays: false, swap_after };
        let memory =
            Memory { bytes: vec![1; n_models], budget: room, there: vec![false; n_models] };
        let (sights, loads) = (vec![sight; n_models], vec![0; n_models]);
        let (turns, answer) = (Turns::new(max_loaded), LOAD / 4);
        let clients = Vec::new();
        let (end, one_by_one) = (LOAD / 2, false);
        Self {
            now,
            turns,
            memory,
            sights,
            clients,
            answer,
            end,
            one_by_one,
            busy_until: now,
            loads,
        }
    }

    fn client(&mut self, key: Key, left: usize, next: impl FnMut() -> usize + 'static) {
        let doing = Doing::Rests(self.now);
        let (longest, next) = (Duration::ZERO, Box::new(next));
        self.clients.push(Client { key, doing, left, longest, next });
    }

    fn uses(&self, model: usize) -> bool {
        let is_at = |client: &Client| match client.doing {
            Doing::IsThere { model: at, .. } | Doing::Runs { model: at, .. } => at == model,
            _ => false,
        };
        self.clients.iter().any(is_at)
    }

    /// The next step of a client.
    fn step(&mut self, at: usize) {
        let now = self.now;
        let takes = |world: &Self, model: usize| {
            world.sights[model].stage != Stage::Away && !world.turns.yields(model)
        };
        match self.clients[at].doing {
            Doing::Rests(until) if until <= now => {
                let client = &mut self.clients[at];
                if client.left == 0 {
                    client.doing = Doing::Done;
                    return;
                }
                client.left -= 1;
                let (model, key) = ((client.next)(), client.key);
                self.clients[at].doing = if takes(self, model) {
                    Doing::IsThere { model, since: now }
                } else {
                    Doing::Waits { model, since: now, id: self.turns.want(model, key) }
                };
            }
            Doing::Waits { model, since, id } if takes(self, model) => {
                self.turns.forget(id);
                self.clients[at].doing = Doing::IsThere { model, since };
            }
            Doing::IsThere { model, since }
                if matches!(self.sights[model].stage, Stage::Up { .. }) =>
            {
                let client = &mut self.clients[at];
                client.longest = client.longest.max(now - since);
                client.doing = Doing::Runs { model, until: now + self.answer };
            }
            Doing::Runs { until, .. } if until <= now => self.clients[at].doing = Doing::Rests(now),
            _ => {}
        }
    }

    fn tick(&mut self, begun: &mut [Option<Instant>]) {
        self.now += TICK;
        for (model, begun) in begun.iter_mut().enumerate() {
            if begun.is_some_and(|begun| self.now.saturating_duration_since(begun) >= LOAD) {
                *begun = None;
                self.sights[model].stage = Stage::Up { since: self.now, took: LOAD };
            }
        }
        for _ in 0..3 {
            (0..self.clients.len()).for_each(|at| self.step(at));
        }
        for model in 0..self.sights.len() {
            self.sights[model].is_used = self.uses(model);
            if self.sights[model].is_used {
                self.sights[model].used = self.now;
            }
        }
        while !self.one_by_one || self.busy_until <= self.now {
            let next = self.turns.next(self.now, &self.sights, &self.memory);
            let Next::Load { model, go } = next else { break };
            let ended = if go.is_empty() { self.now } else { self.now + self.end };
            self.busy_until = ended + LOAD / 5;
            for gone in go {
                assert!(!self.uses(gone) && !self.sights[gone].stays, "{gone} is in use");
                self.sights[gone].stage = Stage::Away;
                self.memory.there[gone] = false;
            }
            assert_eq!(self.sights[model].stage, Stage::Away, "{model} is loaded twice");
            self.sights[model].stage = Stage::Coming;
            self.memory.there[model] = true;
            self.loads[model] += 1;
            begun[model] = Some(ended);
            let there = self.memory.there.iter().filter(|there| **there).count() as u64;
            assert!(there <= self.memory.budget, "more than there is room for");
        }
    }

    /// Runs for a time; returns the longest wait of each client, in loads.
    fn run_for(&mut self, time: Duration) -> Vec<f64> {
        let (mut begun, end) = (vec![None; self.sights.len()], self.now + time);
        while self.now < end {
            self.tick(&mut begun);
        }
        self.clients.iter().map(|c| c.longest.div_duration_f64(LOAD)).collect()
    }

    /// Runs until all clients have all answers; returns the longest wait of each, in loads.
    fn run(&mut self) -> Vec<f64> {
        let mut begun = vec![None; self.sights.len()];
        for _ in 0..1_000_000 {
            if self.clients.iter().all(|client| matches!(client.doing, Doing::Done)) {
                return self.clients.iter().map(|c| c.longest.div_duration_f64(LOAD)).collect();
            }
            self.tick(&mut begun);
        }
        panic!("somebody waits for ever");
    }
}

/// A row of numbers that looks like chance, below `n`.
fn chance(seed: u64, n: usize) -> impl FnMut() -> usize {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    }
}

fn longest(of: &[f64]) -> f64 {
    of.iter().copied().fold(0.0, f64::max)
}

/// Eight clients that ask for one of five models with every request, where three have room; the longest wait, in loads, in some
/// worlds of chance.
fn eight_clients(change: impl Fn(&mut World)) -> f64 {
    let of_seed = |seed: u64| {
        let mut world = World::new(5, 3, 2 * LOAD, None);
        change(&mut world);
        (0..8).for_each(|client| world.client(None, 63, chance(seed * 100 + client, 5)));
        longest(&world.run())
    };
    (0..10).map(of_seed).fold(0.0, f64::max)
}

#[test]
fn two_hundred_requests_for_twenty_models_at_once_load_each_once() {
    let mut world = World::new(20, 3, Duration::from_secs(60), None);
    (0..200).for_each(|i| world.client(None, 1, move || i % 20));
    let waits = world.run();
    assert_eq!(world.loads, vec![1; 20]);
    // Three at a time, each of which stays as long as its load took, and ends in half of that.
    assert!(longest(&waits) <= 7.0 * 2.5, "{waits:?}");
}

#[test]
fn nobody_waits_long_where_three_of_five_models_have_room() {
    for answer in [LOAD / 4, LOAD, 3 * LOAD] {
        for end in [LOAD / 2, LOAD, 2 * LOAD] {
            let longest = eight_clients(|world| (world.answer, world.end) = (answer, end));
            println!("answers of {answer:?}, ends of {end:?}: {longest:.1} loads");
            assert!(longest <= 10.0, "answers of {answer:?}, ends of {end:?}: {longest}");
        }
    }
}

#[test]
fn what_makes_waits_long_is_who_is_never_idle_and_ends_that_are_waited_for() {
    let slow = |world: &mut World| (world.answer, world.end) = (3 * LOAD, 2 * LOAD);
    let never_yields = eight_clients(|world| {
        slow(world);
        world.sights.iter_mut().for_each(|sight| sight.swap_after = Some(Duration::MAX));
    });
    let one_by_one = eight_clients(|world| {
        slow(world);
        world.one_by_one = true;
    });
    println!("nobody yields: {never_yields:.1} loads; one line at a time: {one_by_one:.1} loads");
    assert!(never_yields > 10.0 && one_by_one > 10.0, "{never_yields} {one_by_one}");
}

/// The longest wait for each of some models that are always in use, in loads, and how many answers each gave, where `room` of
/// them have room.
fn always_in_use(models: usize, room: u64, swap_after: Option<Duration>) -> (Vec<f64>, Vec<usize>) {
    const CLIENTS: usize = 4;
    const REQUESTS: usize = 1_000_000;
    let mut world = World::new(models, room, swap_after, None);
    for client in 0..models * CLIENTS {
        world.client(None, REQUESTS, move || client / CLIENTS);
    }
    let waits = world.run_for(1000 * LOAD);
    let of = |model: usize| model * CLIENTS..(model + 1) * CLIENTS;
    let answers = |client: &Client| REQUESTS - client.left;
    let waits = (0..models).map(|model| longest(&waits[of(model)])).collect();
    let given = (0..models).map(|model| world.clients[of(model)].iter().map(answers).sum());
    (waits, given.collect())
}

#[test]
fn models_that_are_always_in_use_wait_equally_long_and_in_proportion_to_their_loads() {
    for (models, room) in [(2, 1), (3, 1), (5, 3)] {
        let (waits, given) = always_in_use(models, room, None);
        let [least, most] = [given.iter().min().unwrap(), given.iter().max().unwrap()];
        println!("{models} models, room for {room}: {waits:.1?} loads, {given:?} answers");
        // The others have their places one after the other, each with its load, and with an end.
        let turns = (models as f64 / room as f64).ceil() - 1.0;
        assert!(waits.iter().all(|wait| *wait <= 9.0 * turns + 2.0), "{waits:?}");
        // Where they do not come out even, a model shares a place with one other, or with two.
        let even = if (models as u64).is_multiple_of(room) { 1.1 } else { 1.6 };
        assert!(*most as f64 <= even * *least as f64, "{given:?}");
        // A fixed time makes them wait for longer, and gives not much more.
        let (long, more) = always_in_use(models, room, Some(60 * LOAD));
        assert!(longest(&long) > 4.0 * longest(&waits), "{long:?} {waits:?}");
        let [given, more] = [given, more].map(|all| all.iter().sum::<usize>() as f64);
        assert!(given > 0.75 * more, "{given} {more}");
    }
}

#[test]
fn a_key_that_asks_for_another_model_each_time_keeps_nobody_from_its_own() {
    let mut world = World::new(12, 3, 2 * LOAD, None);
    // Ten requests at once of one key, again and again, each for another cold model.
    for i in 0..10 {
        let mut n = i;
        world.client(Some(1), 30, move || {
            n += 7;
            n % 11
        });
    }
    let mut is_own = false;
    world.client(Some(2), 20, move || {
        is_own = !is_own;
        if is_own { 11 } else { 10 }
    });
    let waits = world.run();
    println!("the greedy key: {:.1} loads; the other: {:.1}", longest(&waits[..10]), waits[10]);
    assert!(waits[10] <= 6.0, "{waits:?}");
    assert!(longest(&waits[..10]) > 10.0, "it pays for itself: {waits:?}");
}

#[test]
fn no_more_are_loaded_than_may_be_and_what_stays_by_order_stays() {
    let mut world = World::new(4, 4, 2 * LOAD, Some(2));
    world.client(None, 1, || 0);
    world.run();
    world.sights[0].stays = true;
    (1..4).for_each(|at| world.client(None, 20, chance(at, 4)));
    world.run();
    assert_eq!(world.loads[0], 1, "it never went");
    assert_eq!(world.memory.there.iter().filter(|there| **there).count(), 2);
    // With all models pinned, the others have no room, and are told so.
    world.sights.iter_mut().for_each(|sight| sight.stays = sight.stage != Stage::Away);
    let cold = (0..4).find(|model| world.sights[*model].stage == Stage::Away).unwrap();
    world.turns.want(cold, None);
    assert_eq!(world.turns.next(world.now, &world.sights, &world.memory), Next::Wait);
    assert_eq!(world.turns.why(cold), Why::Lacks);
}

#[test]
fn who_yields_takes_again_when_nobody_waits_for_its_place_any_more() {
    let mut world = World::new(2, 1, 2 * LOAD, None);
    let up = Stage::Up { since: world.now, took: LOAD };
    (world.sights[0].stage, world.sights[0].is_used, world.memory.there[0]) = (up, true, true);
    let id = world.turns.want(1, None);
    let next = |world: &mut World| world.turns.next(world.now, &world.sights, &world.memory);
    assert_eq!(next(&mut world), Next::Wait);
    assert!(!world.turns.yields(0), "it has its time");
    assert_eq!(world.turns.why(1), Why::Used);
    world.now += 2 * LOAD;
    assert_eq!(next(&mut world), Next::Wait);
    assert!(world.turns.yields(0));
    world.turns.forget(id);
    assert_eq!(next(&mut world), Next::Wait);
    assert!(!world.turns.yields(0));
    world.turns.want(1, None);
    next(&mut world);
    world.turns.want(0, None);
    world.sights[0].is_used = false;
    assert_eq!(next(&mut world), Next::Load { model: 1, go: vec![0] });
}
