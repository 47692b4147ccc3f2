//! kill -9 of a stage, of a node and of the coordinator, in turn, while every model has a stream.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_tests::process::{children_of, is_alive, signal};
use serde_json::{Value, json};

use crate::Options;
use crate::fleet::{Fleet, Model, PATIENCE, quantile, random, wait};

const TOKENS: usize = 300;
/// A node is started again after so long, as its unit says (`RestartSec`).
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// A pause of a line that has no part on what was killed is told where it is longer.
const LONG: Duration = Duration::from_millis(100);
/// Different requests to each model.
const REQUESTS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Stage,
    Node,
    Coordinator,
}

/// One model's stream after the other, and what became of them.
struct Streams {
    stop: AtomicBool,
    streams: AtomicUsize,
    different: AtomicUsize,
    lost: AtomicUsize,
    /// When events came, over all streams.
    events: Mutex<Vec<Instant>>,
}

impl Streams {
    fn new() -> Self {
        let (streams, different, lost) = Default::default();
        Self { stop: AtomicBool::new(false), streams, different, lost, events: Mutex::default() }
    }

    fn events(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The longest time without an event since `begun`, and how long after that it began.
    fn pause(&self, begun: Instant) -> (Duration, Duration) {
        let events = self.events();
        let first = events.partition_point(|event| *event < begun);
        let since = events[first..].iter().copied();
        let all: Vec<Instant> = [begun].into_iter().chain(since).collect();
        let gaps = all.windows(2).map(|pair| (pair[1] - pair[0], pair[0] - begun));
        gaps.max_by_key(|(pause, _)| *pause).unwrap_or_default()
    }
}

fn request(model: &Model, i: usize) -> Value {
    let (_, mut body) = model.request(i, TOKENS);
    (body["stream"], body["resumable"]) = (json!(true), json!(true));
    body
}

/// Reads a stream to its end, over the ends of its connections, and returns its text. `None`: the server does not know it any
/// more.
fn read(url: &str, body: &Value, seen: &Streams) -> Option<String> {
    let (mut text, mut last) = (String::new(), None::<String>);
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE));
        let agent: ureq::Agent = config.http_status_as_error(false).build().into();
        let answer = match &last {
            None => agent.post(format!("{url}/v1/completions")).send(body.to_string()),
            Some(id) => {
                let stream = id.rsplit_once('/').map_or("", |(stream, _)| stream);
                let get = agent.get(format!("{url}/v1/streams/{stream}"));
                get.header("last-event-id", id).call()
            }
        };
        match answer {
            Ok(answer) if answer.status() == 200 => {
                if events(answer, &mut text, &mut last, seen)? {
                    // The server keeps only so many streams that have ended.
                    let stream = last.as_deref().and_then(|id| id.rsplit_once('/')).map(|id| id.0);
                    let of = |stream| agent.delete(format!("{url}/v1/streams/{stream}")).call();
                    drop(stream.map(of));
                    return Some(text);
                }
            }
            Ok(answer) if answer.status() == 404 && last.is_some() => return None,
            // The server is away, or takes nothing yet.
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    None
}

/// Reads a connection to its end; whether the stream ended as well. `None`: it ended with an error.
fn events(
    answer: ureq::http::Response<ureq::Body>,
    text: &mut String,
    last: &mut Option<String>,
    seen: &Streams,
) -> Option<bool> {
    use std::io::{BufRead, BufReader};
    let (mut id, lines) = (None, BufReader::new(answer.into_body().into_reader()).lines());
    for line in lines.map_while(Result::ok) {
        if let Some(new) = line.strip_prefix("id: ") {
            id = Some(new.to_owned());
        }
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return Some(true);
        }
        let event: Value = serde_json::from_str(data).ok()?;
        if let Some(error) = event.get("error") {
            println!("a stream ended with {error}");
            return None;
        }
        seen.events().push(Instant::now());
        *text += event["choices"][0]["text"].as_str().unwrap_or("");
        last.clone_from(&id);
    }
    Some(false)
}

fn client(url: &str, model: &Model, expected: &[String], seen: &Streams) {
    for i in (0..REQUESTS).cycle() {
        if seen.stop.load(Ordering::SeqCst) {
            return;
        }
        match read(url, &request(model, i), seen) {
            Some(text) if text == expected[i] => {}
            Some(text) => {
                println!(
                    "{}: request {i} has {} bytes in the place of {}",
                    model.name,
                    text.len(),
                    expected[i].len()
                );
                seen.different.fetch_add(1, Ordering::SeqCst);
            }
            None => drop(seen.lost.fetch_add(1, Ordering::SeqCst)),
        }
        seen.streams.fetch_add(1, Ordering::SeqCst);
    }
}

/// Processes of the stages of all nodes.
fn stages(fleet: &Fleet) -> Vec<u32> {
    fleet.nodes.iter().flat_map(|node| children_of(node.pid())).collect()
}

/// The process of a stage by its name, `node0.2`, and the number of its node.
fn process_of(fleet: &Fleet, name: &str) -> Option<(u32, usize)> {
    let (node, stage) = name.strip_prefix("node")?.split_once('.').unwrap_or((&name[4..], ""));
    let node: usize = node.parse().ok()?;
    let pid = fleet.nodes.get(node)?.pid();
    if stage.is_empty() {
        return Some((pid, node));
    }
    let is_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("--stage\0{stage}/"))
    };
    Some((children_of(pid).into_iter().find(is_it)?, node))
}

/// What has been seen of one kind of kill.
#[derive(Default)]
struct Table {
    /// Pauses of lines that had a part on what was killed, and of the others.
    touched: Vec<Duration>,
    others: Vec<Duration>,
    /// Stages that ended although they were not killed.
    restarted: usize,
    /// Bytes of weights that were read or sent again.
    bytes: u64,
}

pub fn run(options: &Options) -> Result<(), String> {
    let mut models = Model::five(&options.size);
    models.retain(|model| !model.is_encoder && model.name != "qwen3moe");
    let expected: Vec<Vec<String>> = crate::fleet::alone(&models, |model, server| {
        let of = |i| json!(read(&server.url(""), &request(model, i), &Streams::new()).unwrap());
        (0..REQUESTS).map(of).collect()
    })
    .into_iter()
    .map(|all| all.iter().map(|text| text.as_str().unwrap().to_owned()).collect())
    .collect();
    let mut fleet =
        Fleet::start(options, &models, "ctx = 1024\nmax-seqs = 4\nreplace-after = \"0\"");
    models.iter().for_each(|model| fleet.wait_for(model.name));
    let url = fleet.server().url("");
    let seen: Vec<Streams> = models.iter().map(|_| Streams::new()).collect();
    let tables = std::thread::scope(|scope| {
        for ((model, expected), seen) in models.iter().zip(&expected).zip(&seen) {
            let url = url.clone();
            scope.spawn(move || client(&url, model, expected, seen));
        }
        let tables = [Victim::Stage, Victim::Node, Victim::Coordinator].map(|victim| {
            let mut next = random(options.seed);
            let mut table = Table::default();
            for _ in 0..options.kills {
                std::thread::sleep(Duration::from_millis(300 + next() % 400));
                kill(victim, &mut fleet, options, &models, &seen, next() as usize, &mut table);
            }
            (victim, table)
        });
        seen.iter().for_each(|seen| seen.stop.store(true, Ordering::SeqCst));
        tables
    });
    println!(
        "| killed | times | pause of its lines p50 ms | max | of other lines p50 ms | p95 | max | stages that ended | MiB of weights again |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (victim, table) in &tables {
        let ms = |pauses: &[Duration], share| quantile(pauses, share).as_millis();
        println!(
            "| {victim:?} | {} | {} | {} | {} | {} | {} | {} | {} |",
            options.kills,
            ms(&table.touched, 0.5),
            ms(&table.touched, 1.0),
            ms(&table.others, 0.5),
            ms(&table.others, 0.95),
            ms(&table.others, 1.0),
            table.restarted,
            table.bytes >> 20
        );
    }
    let count = |of: fn(&Streams) -> &AtomicUsize| {
        seen.iter().map(|seen| of(seen).load(Ordering::SeqCst)).sum::<usize>()
    };
    let [streams, lost, different] =
        [count(|s| &s.streams), count(|s| &s.lost), count(|s| &s.different)];
    println!("{streams} streams, {lost} lost, {different} with other bytes");
    if lost + different > 0 {
        Err("streams were lost or have other bytes".to_owned())
    } else {
        Ok(())
    }
}

/// Kills something, and waits until every model's stream goes on.
fn kill(
    victim: Victim,
    fleet: &mut Fleet,
    options: &Options,
    models: &[Model],
    seen: &[Streams],
    draw: usize,
    table: &mut Table,
) {
    let lines: Vec<Vec<String>> = models.iter().map(|model| fleet.line(model.name)).collect();
    let name = lines[draw % lines.len()].first().cloned().unwrap_or_default();
    let Some((pid, node)) = process_of(fleet, &name) else { return };
    let before = stages(fleet);
    let bytes = fleet.weights_moved();
    let begun = Instant::now();
    match victim {
        Victim::Stage => signal("KILL", pid),
        Victim::Node => {
            signal("KILL", fleet.nodes[node].pid());
            std::thread::sleep(RESTART_AFTER);
            fleet.nodes[node] = fleet.node(node, options, None);
        }
        Victim::Coordinator => {
            signal("KILL", fleet.server().process.pid());
            fleet.serve();
            models.iter().for_each(|model| fleet.wait_for(model.name));
        }
    }
    let counts: Vec<usize> = seen.iter().map(|seen| seen.events().len()).collect();
    wait("all streams go on", || {
        seen.iter().zip(&counts).all(|(seen, before)| seen.events().len() > *before + 20)
    });
    let is_of = |worker: &String| match victim {
        Victim::Stage => *worker == name,
        Victim::Node => worker.starts_with(&format!("node{node}")),
        Victim::Coordinator => true,
    };
    for ((line, seen), model) in lines.iter().zip(seen).zip(models) {
        let (pause, after) = seen.pause(begun);
        if line.iter().any(is_of) {
            table.touched.push(pause);
            continue;
        }
        table.others.push(pause);
        if pause > LONG {
            let (name, pause, after) = (model.name, pause.as_millis(), after.as_millis());
            println!(
                "{victim:?}: {name} on {line:?} paused {pause} ms, from {after} ms after the kill"
            );
        }
    }
    if victim == Victim::Coordinator {
        table.restarted += before.iter().filter(|pid| !is_alive(**pid)).count();
        table.bytes += fleet.weights_moved().saturating_sub(bytes);
    }
    models.iter().for_each(|model| fleet.wait_for(model.name));
}
