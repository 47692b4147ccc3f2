//! Measures the share of time in which a completion of one token succeeds, while other workers misbehave. This tests
//! the promise "a line that can be up is up". `tests/cluster/up_share.rs` prints the table.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use serde_json::json;

use crate::fakes::{Fake, Phase, drain, hello};
use crate::process::Running;

/// The beginning of a worker's ready line.
const READY: &str = "brigade worker ready on ";

/// How long a completion may take before it counts as none.
const ANSWERS_WITHIN: Duration = Duration::from_secs(4);

/// Pause between two completions.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// How long a line of healthy workers may take to come up before anything is measured.
const UP_WITHIN: Duration = Duration::from_secs(120);

/// Lives of the crash-looping worker, one after the other: before, while and after it is used.
const LIVES_MS: [u64; 4] = [400, 900, 1700, 3100];

/// A client's observations in a window of time.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The length of the window.
    pub window: Duration,
    /// Time from the window's begin to the first answer.
    pub first: Option<Duration>,
    /// The part of the window in which requests succeeded.
    pub up: Duration,
    /// Longest time between two answers, the window's ends counted as answers.
    pub longest_gap: Duration,
    /// Whether the last completion of the window succeeded.
    pub at_the_end: bool,
}

impl Seen {
    /// Share of the window that the line was up, `0.0..=1.0`.
    pub fn share(&self) -> f64 {
        self.up.as_secs_f64() / self.window.as_secs_f64()
    }

    /// A row of the table.
    pub fn row(&self, case: &str) -> String {
        let first = self.first.map_or("never".into(), |d| format!("{:.1} s", d.as_secs_f64()));
        let gap = self.longest_gap.as_secs_f64();
        let window = self.window.as_secs_f64();
        format!("| {case} | {window:.0} s | {:.2} | {first} | {gap:.1} s |", self.share())
    }
}

/// Head of the table.
pub const HEAD: &str =
    "| case | window | up share | first answer | longest without |\n|---|---|---|---|---|";

/// Asks for a token again and again for `window`; `at_half` happens in the middle.
pub fn watch(url: &str, window: Duration, at_half: impl FnOnce()) -> Seen {
    let begin = Instant::now();
    let mut at_half = Some(at_half);
    let (mut first, mut up, mut longest_gap) = (None, Duration::ZERO, Duration::ZERO);
    let (mut before, mut last_answer, mut answered) = (begin, begin, false);
    while begin.elapsed() < window {
        if begin.elapsed() > window / 2
            && let Some(act) = at_half.take()
        {
            act();
        }
        answered = completes(url);
        let now = Instant::now();
        if answered {
            first.get_or_insert(now - begin);
            up += now - before;
            longest_gap = longest_gap.max(now - last_answer);
            last_answer = now;
        }
        before = now;
        std::thread::sleep(PROBE_EVERY);
    }
    let window = before - begin;
    longest_gap = longest_gap.max(before - last_answer);
    Seen { window, first, up, longest_gap, at_the_end: answered }
}

/// Whether a completion of one token succeeds.
pub fn completes(url: &str) -> bool {
    let config = ureq::Agent::config_builder().timeout_global(Some(ANSWERS_WITHIN));
    let agent: ureq::Agent = config.build().into();
    let body = json!({"prompt": "In the", "max_tokens": 1, "temperature": 0}).to_string();
    let request = agent.post(format!("{url}/v1/completions"));
    request.header("content-type", "application/json").send(body).is_ok()
}

/// A worker with one thread, listening on `listen`.
pub fn worker(listen: &str, more: &[&str]) -> Running {
    let mut args = vec!["worker", "--listen", listen, "--threads", "1"];
    args.extend(more);
    Running::start(&args, READY)
}

/// Ports below those that systems choose: they are given neither to listeners on any port nor to outgoing
/// connections.
const PORTS: Range<u32> = 12_000..32_000;

/// A free port of this machine, for a process that is told its own, and that no other test of this program is told.
///
/// # Panics
/// If all of them are taken.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", first_of_free_ports(1))
}

/// The first of so many free ports behind each other, as [`free_address`].
///
/// # Panics
/// If there are none.
pub fn first_of_free_ports(count: u16) -> u16 {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    // Programs that run at the same time begin at different ports.
    let begin = std::process::id().wrapping_mul(89);
    let all = PORTS.end - PORTS.start;
    let mut firsts = PORTS.map(|_| {
        let told = TOLD.fetch_add(count.into(), Ordering::Relaxed);
        PORTS.start + begin.wrapping_add(told) % all
    });
    let is_free = |port: u32| TcpListener::bind(format!("127.0.0.1:{port}")).is_ok();
    let are_free = |first: &u32| (*first..first + u32::from(count)).all(is_free);
    let first = firsts.find(are_free).expect("free ports");
    u16::try_from(first).expect("a port has 16 bits")
}

/// A server, up or not.
pub fn serve(more: &[&str]) -> Running {
    let mut args = vec!["serve", "--listen", "127.0.0.1:0"];
    args.extend(more);
    Running::start(&args, "brigade serve listening on ")
}

/// A server over these workers.
pub fn serve_over(addresses: &[String]) -> Running {
    let named: Vec<&str> = addresses.iter().flat_map(|a| ["--worker", a.as_str()]).collect();
    serve(&named)
}

/// Waits until it completes.
///
/// # Panics
/// If it does not.
pub fn wait_up(server: &Running) {
    let begin = Instant::now();
    while !completes(&server.ready) {
        assert!(begin.elapsed() < UP_WITHIN, "no line of healthy workers came up");
        std::thread::sleep(PROBE_EVERY);
    }
}

/// Three workers that listen, and their addresses.
pub fn three() -> (Vec<Running>, Vec<String>) {
    let workers: Vec<Running> = (0..3).map(|_| worker("127.0.0.1:0", &[])).collect();
    let addresses = workers.iter().map(|w| w.ready.trim().to_string()).collect();
    (workers, addresses)
}

/// Three joined workers, and a fourth that crashes, comes back on another port, and crashes, from before
/// the first line on.
pub fn crash_looping_fourth(window: Duration) -> Seen {
    let control = free_address();
    let server = serve(&["--control", &control, "--expect", "3"]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for ms in LIVES_MS.iter().cycle() {
                let worker = worker("127.0.0.1:0", &["--join", &control]);
                std::thread::sleep(Duration::from_millis(*ms));
                drop(worker);
                if over.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        let _healthy: Vec<Running> =
            (0..3).map(|_| worker("127.0.0.1:0", &["--join", &control])).collect();
        let seen = watch(&server.ready, window, || {});
        over.store(true, Ordering::SeqCst);
        seen
    })
}

/// Three named workers, one of which is lost for good when the window begins; the others have the memory.
pub fn one_of_three_lost(window: Duration) -> Seen {
    let (mut workers, addresses) = three();
    let server = serve_over(&addresses);
    wait_up(&server);
    drop(workers.remove(1));
    watch(&server.ready, window, || {})
}

/// Three healthy workers and four hung ones at different phases, all named; in the middle a healthy one is
/// restarted.
pub fn four_hung(window: Duration) -> Seen {
    let (mut workers, mut addresses) = three();
    let reply = hello(&addresses[0].parse().unwrap());
    let phases =
        [Phase::Accepts, Phase::Settings, Phase::NoHello, Phase::NoPrepare(Box::new(reply))];
    let fakes: Vec<Fake> = phases.into_iter().map(Fake::start).collect();
    addresses.extend(fakes.iter().map(|fake| fake.address.to_string()));
    let server = serve_over(&addresses);
    let restarted = addresses[1].clone();
    watch(&server.ready, window, || {
        drop(workers.remove(1));
        workers.insert(1, worker(&restarted, &[]));
    })
}

/// Three named workers, one of which drains; another is restarted when the window begins.
pub fn one_of_three_drains(window: Duration) -> Seen {
    let (mut workers, addresses) = three();
    let server = serve_over(&addresses);
    wait_up(&server);
    let address: Address = addresses[2].parse().unwrap();
    let _draining = drain(&address);
    std::thread::sleep(Duration::from_millis(500));
    drop(workers.remove(1));
    workers.insert(1, worker(&addresses[1], &[]));
    watch(&server.ready, window, || {})
}
