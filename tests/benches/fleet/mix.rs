//! Requests of a seeded mix for five models, by several clients at once, where not all models fit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_tests::process::{Reply, Server, post_with};
use serde_json::Value;

use crate::Options;
use crate::fleet::{Fleet, Model, Watched, alone, order, quantile, random};

/// Different requests to each model.
const REQUESTS: usize = 4;
const TOKENS: usize = 24;

/// What the clients have seen.
#[derive(Default)]
struct Seen {
    answered: AtomicUsize,
    refused: AtomicUsize,
    different: AtomicUsize,
    waits: Mutex<Vec<Duration>>,
}

/// What a request is compared with.
struct Known {
    expected: Vec<Vec<Value>>,
    /// How long an answer takes where its model is loaded.
    warm: Vec<Duration>,
}

struct Client<'a> {
    models: &'a [Model],
    server: &'a Server,
    key: String,
    known: &'a Known,
}

fn ask(server: &Server, key: &str, model: &Model, i: usize) -> Reply {
    let (path, body) = model.request(i, TOKENS);
    let bearer = format!("Bearer {key}");
    post_with(&server.url(path), &body.to_string(), "authorization", &bearer).unwrap()
}

fn content(model: &Model, reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.body);
    model.content(&serde_json::from_str::<Value>(&reply.body).unwrap())
}

impl Client<'_> {
    fn one(&self, which: usize, i: usize, seen: &Seen) {
        let model = &self.models[which];
        let begun = Instant::now();
        let reply = ask(self.server, &self.key, model, i);
        let took = begun.elapsed().saturating_sub(self.known.warm[which]);
        seen.waits.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        if reply.status != 200 {
            println!("{} was refused: {}", model.name, reply.body);
            seen.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        seen.answered.fetch_add(1, Ordering::Relaxed);
        if content(model, &reply) != self.known.expected[which][i] {
            seen.different.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs the mix, and then the same with the first client asking for another model each time.
pub fn run(options: &Options) -> Result<(), String> {
    let models = Model::five(&options.size);
    let expected = alone(&models, |model, server| {
        (0..REQUESTS).map(|i| content(model, &ask(server, "none", model, i))).collect()
    });
    let fleet = Fleet::start(options, &models, "load = \"demand\"\nctx = 512\nmax-seqs = 4");
    let keys: Vec<String> = (0..options.clients)
        .map(|n| fleet.cluster.admin(&["key", "create", &format!("k{n}")]))
        .collect();
    let (known, load) = measure(&fleet, &models, &keys[0], expected);
    println!("a load takes {} ms, the slowest {} ms", load[0].as_millis(), load[1].as_millis());
    println!(
        "| clients | answered | other bytes | loads | of ms each | unloads | wait p50 ms | p95 | max | in loads alone | in these loads | most MiB of a node |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut well = true;
    for of_another in [false, true] {
        let (seen, before) = (Seen::default(), Loads::of(&fleet));
        let watched = Watched::new(&fleet.nodes);
        let turns = options.mix.div_ceil(options.clients);
        std::thread::scope(|scope| {
            for (n, key) in keys.iter().enumerate() {
                let (seen, models, known, server) = (&seen, &models, &known, fleet.server());
                let client = Client { models, server, key: key.clone(), known };
                let mut next = random(options.seed + n as u64);
                scope.spawn(move || {
                    for turn in 0..turns {
                        let which = if of_another && n == 0 { turn } else { next() as usize };
                        client.one(which % models.len(), next() as usize % REQUESTS, seen);
                    }
                });
            }
        });
        let most = watched.end();
        let Loads { loads, unloads, us } = Loads::of(&fleet).since(&before);
        // While others compute and load, on the same cores.
        let each = Duration::from_secs_f64(us / 1e6 / loads.max(1.0));
        let waits = seen.waits.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (answered, refused) = (seen.answered.into_inner(), seen.refused.into_inner());
        let different = seen.different.into_inner();
        let longest = quantile(&waits, 1.0);
        println!(
            "| {}{} | {answered} of {} | {different} | {loads} | {} | {unloads} | {} | {} | {} | {:.1} | {:.1} | {most:?} of {} |",
            options.clients,
            if of_another { ", one asks for another model each time" } else { "" },
            answered + refused,
            each.as_millis(),
            quantile(&waits, 0.5).as_millis(),
            quantile(&waits, 0.95).as_millis(),
            longest.as_millis(),
            longest.as_secs_f64() / load[0].as_secs_f64(),
            longest.as_secs_f64() / each.as_secs_f64(),
            options.memory,
        );
        well &= different == 0;
    }
    if well {
        Ok(())
    } else {
        Err("answers have other bytes than from a line of their own".to_owned())
    }
}

/// The server's counts of loads.
struct Loads {
    loads: f64,
    unloads: f64,
    /// Microseconds that the loads took, each from its beginning until its line was up.
    us: f64,
}

impl Loads {
    fn of(fleet: &Fleet) -> Self {
        let sum = |of: &str| fleet.sum(&format!("brigade_model_{of}_total"));
        Self { loads: sum("loads"), unloads: sum("unloads"), us: sum("load_microseconds") }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            loads: self.loads - before.loads,
            unloads: self.unloads - before.unloads,
            us: self.us - before.us,
        }
    }
}

/// Asks each model alone: how long it takes cold and warm. The mean of the loads, and the longest.
fn measure(
    fleet: &Fleet,
    models: &[Model],
    key: &str,
    expected: Vec<Vec<Value>>,
) -> (Known, [Duration; 2]) {
    let server = fleet.server();
    let timed = |model: &Model| {
        let begun = Instant::now();
        content(model, &ask(server, key, model, 0));
        begun.elapsed()
    };
    let mut loads = Vec::new();
    let mut warm = Vec::new();
    for model in models {
        // Its weights come to the workers.
        timed(model);
        assert!(order(&fleet.cluster, &["cluster", "unload", model.name]), "{} stays", model.name);
        let cold = timed(model);
        warm.push(timed(model));
        loads.push(cold.saturating_sub(warm[warm.len() - 1]));
        assert!(order(&fleet.cluster, &["cluster", "unload", model.name]), "{} stays", model.name);
    }
    let mean = loads.iter().sum::<Duration>() / loads.len() as u32;
    (Known { expected, warm }, [mean, quantile(&loads, 1.0)])
}
