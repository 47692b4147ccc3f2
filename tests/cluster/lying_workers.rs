//! Workers that lie to a coordinator. A false capability is refused by the name of the field. A false epoch number
//! reaches no other worker.

use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::{Capabilities, HelloReply, HelloRequest};
use brigade_proto::net::dial;
use brigade_proto::{SOFTWARE, WIRE_VERSION};
use brigade_tests::fakes::in_runtime;
use brigade_tests::hostile::Victim;
use brigade_tests::liar::Liar;
use brigade_tests::process::run;

/// The handshake of an honest worker.
async fn honest(worker: &Victim) -> HelloReply {
    let channel = dial(&worker.address.into(), false).await.unwrap();
    let hello = HelloRequest {
        wire_version: WIRE_VERSION,
        newest_wire_version: 0,
        software: SOFTWARE.into(),
        coordinator_id: "test".into(),
    };
    WorkerClient::new(channel).hello(hello).await.unwrap().into_inner()
}

/// The standard error of `brigade run` over these workers.
async fn run_over(workers: Vec<String>) -> String {
    let ran = tokio::task::spawn_blocking(move || {
        let mut args = vec!["run", "-p", "In the beginning", "-n", "4"];
        workers.iter().for_each(|address| args.extend(["--worker", address.as_str()]));
        run(&args)
    });
    let output = ran.await.unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn the_epoch_that_a_worker_claims_is_ignored() {
    in_runtime(async {
        let worker = Victim::ours();
        let hello = HelloReply { last_epoch: u64::MAX - 1, ..honest(&worker).await };
        let liar = Liar::start(hello).await;
        let said = run_over(vec![liar.address.to_string(), worker.address.to_string()]).await;
        assert!(said.contains("never begun"), "{said}");
        assert_eq!(liar.epochs().first(), Some(&1), "{said}");
        // The honest one is as usable as before.
        let said = run_over(vec![worker.address.to_string()]).await;
        assert!(!said.contains("error"), "{said}");
    });
}

fn absurd_abilities_are_refused_by_their_name() {
    in_runtime(async {
        let worker = Victim::ours();
        let hello = honest(&worker).await;
        type Lie = fn(&mut Capabilities);
        let claims: [(&str, Lie); 4] = [
            ("gb_per_second is NaN", |c| c.gb_per_second = f64::NAN),
            ("gop_per_second is inf", |c| c.gop_per_second = f64::INFINITY),
            ("memory_limit is 0", |c| c.memory_limit = 0),
            ("memory_limit is 18446744073709551615", |c| c.memory_limit = u64::MAX),
        ];
        for (words, change) in claims {
            let mut lie = hello.clone();
            change(lie.capabilities.as_mut().unwrap());
            let liar = Liar::start(lie).await;
            let said = run_over(vec![liar.address.to_string()]).await;
            assert!(said.contains(words), "{words}: {said}");
            assert!(liar.epochs().is_empty(), "{words}");
        }
    });
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: the_epoch_that_a_worker_claims_is_ignored, absurd_abilities_are_refused_by_their_name;
];
