//! Hostile joins: no message of a joining peer ends the coordinator or fills its memory.

use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use brigade_proto::control::HelloReply;
use brigade_proto::{OLDEST_WIRE_VERSION, WIRE_VERSION};
use brigade_tests::fakes::{Fake, Phase, hello, join};
use brigade_tests::process::{get, is_alive};
use brigade_tests::up_share::{completes, free_address, serve, wait_up, worker};

/// How long a bad peer is given to do its harm.
const HARM_WITHIN: Duration = Duration::from_secs(3);

/// Hung addresses that join.
const FLOOD: usize = 80;

/// Time between two of them.
const OUT_OF_STEP: Duration = Duration::from_millis(70);

/// Tries until the coordinator's control address answers.
fn join_soon(control: &Address, address: &str) {
    let begin = Instant::now();
    while let Err(refused) = join(control, address) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{refused}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn a_worker_that_is_none_ends_nothing() {
    let control = free_address();
    let server = serve(&["--control", &control]);
    let address: Address = control.parse().unwrap();
    let healthy = worker("127.0.0.1:0", &[]);
    let good = hello(&healthy.ready.trim().parse().unwrap());
    let fake = |change: fn(&mut HelloReply)| {
        let mut reply = good.clone();
        change(&mut reply);
        Fake::start(Phase::NoPrepare(Box::new(reply)))
    };
    let liars = [
        fake(|hello| hello.wire_version = OLDEST_WIRE_VERSION - 1),
        fake(|hello| hello.wire_version = WIRE_VERSION + 1),
        fake(|hello| hello.capabilities.as_mut().unwrap().gb_per_second = f64::NAN),
        fake(|hello| hello.capabilities.as_mut().unwrap().gop_per_second = 0.0),
        fake(|hello| hello.capabilities.as_mut().unwrap().architectures.clear()),
        fake(|hello| hello.capabilities = None),
    ];
    for liar in &liars {
        join_soon(&address, &liar.address.to_string());
    }
    // Any other gRPC server refuses what a worker is asked: this one's own control address.
    join_soon(&address, &control);
    std::thread::sleep(HARM_WITHIN);
    assert!(is_alive(server.pid()), "one join ended the coordinator");
    let health = get(&format!("{}/health", server.ready)).unwrap();
    assert_eq!(health.status, 503, "{}", health.body);
    // The first that can serve is used.
    join_soon(&address, healthy.ready.trim());
    wait_up(&server);
    for liar in &liars {
        join_soon(&address, &liar.address.to_string());
    }
    std::thread::sleep(HARM_WITHIN);
    assert!(completes(&server.ready), "the line is not disturbed");
}

/// Addresses that do not answer, more of them than are dialled at once, do not keep other workers out.
fn a_flood_of_joins_keeps_nobody_out() {
    let control = free_address();
    let server = serve(&["--control", &control]);
    let address: Address = control.parse().unwrap();
    join_soon(&address, "127.0.0.1:9");
    let hung: Vec<Fake> = (0..FLOOD).map(|_| Fake::start(Phase::Accepts)).collect();
    for fake in &hung {
        // A refusal for being too many is an answer too.
        let _ = join(&address, &fake.address.to_string());
        std::thread::sleep(OUT_OF_STEP);
    }
    let _healthy = worker("127.0.0.1:0", &["--join", &control]);
    wait_up(&server);
    assert!(is_alive(server.pid()));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_worker_that_is_none_ends_nothing, a_flood_of_joins_keeps_nobody_out;
];
