//! Peers that lie to a worker. They cannot make it abort, or hold more memory than the named caps, and it goes on
//! serving others. Memory is the process's own peak, not an estimate.

use std::time::Duration;

use brigade_proto::WIRE_VERSION;
use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::{
    Blob, HealthRequest, HelloRequest, PrepareRequest, StageSpec, TensorRef, UnloadRequest,
};
use brigade_proto::limits::*;
use brigade_proto::net::dial;
use brigade_tests::fakes::in_runtime;
use brigade_tests::hostile::*;
use bytes::Bytes;
use prost::Message;

const LANE: &str = "/brigade.pipeline.Pipeline/Lane";
const PREPARE: &str = "/brigade.control.Worker/Prepare";
const PUSH: &str = "/brigade.control.Worker/PushTensors";
const HELLO: &str = "/brigade.control.Worker/Hello";
const UNLOAD: &str = "/brigade.control.Worker/Unload";

/// gRPC's code InvalidArgument.
const INVALID: u32 = 3;
/// The allowance for memory that no cap counts: pieces being copied, HTTP/2's own buffers.
const SLACK: u64 = 64 << 20;

async fn connect(victim: &Victim) -> Peer {
    Peer::connect(victim.address, HOSTILE).await.unwrap()
}

fn grown(victim: &Victim, before: u64) -> u64 {
    victim.peak().expect("the worker lives") - before
}

fn lengths_that_are_only_claimed_reserve_nothing() {
    in_runtime(async {
        let victim = Victim::ours();
        let before = victim.peak().unwrap();
        let mut open = Vec::new();
        for path in [LANE, PREPARE, PUSH, HELLO] {
            for _ in 0..15 {
                let peer = connect(&victim).await;
                let (answer, mut body) = peer.begin(path).await.unwrap();
                push(&mut body, claim(250 << 20)).await.unwrap();
                open.push((peer, answer, body));
            }
        }
        for (_peer, answer, _body) in open {
            let (status, why) = outcome(answer).await.expect("an answer");
            assert_eq!(status, INVALID, "{why}");
            assert!(why.contains("a message of 262144000 bytes"), "{why}");
        }
        assert!(victim.serves().await);
        let grown = grown(&victim, before);
        println!("60 claims of 250 MB: {grown} bytes more");
        assert!(grown < SLACK, "{grown}");
    });
}

fn fields_are_counted_before_they_are_decoded() {
    in_runtime(async {
        let victim = Victim::ours();
        let before = victim.peak().unwrap();
        let peer = connect(&victim).await;
        // Empty tensors: two bytes each, more than a hundred when they are decoded.
        let tensors = framed(&field(6, &[]).repeat(8 << 20));
        let (answer, _body) = peer.send(PREPARE, tensors).await.unwrap();
        let (status, why) = outcome(answer).await.unwrap();
        assert_eq!(status, INVALID);
        assert!(why.contains("prepare.tensors count is 100001"), "{why}");
        // A lane's first frame is small: 16 MB of empty ops do not even arrive.
        let ops = framed(&field(2, &field(4, &[]).repeat(8 << 20)));
        let (answer, _body) = peer.send(LANE, ops).await.unwrap();
        let (status, why) = outcome(answer).await.unwrap();
        assert_eq!(status, INVALID);
        assert!(why.contains(&format!("the limit is {MAX_SMALL_BYTES}")), "{why}");
        assert!(victim.serves().await);
        let grown = grown(&victim, before);
        println!("16 MB of empty fields twice: {grown} bytes more");
        // One message of 16 MB as it arrived, and once more in one piece.
        assert!(grown < (32 << 20) + SLACK, "{grown}");
    });
}

fn messages_that_are_never_complete_have_one_cap_for_all() {
    in_runtime(async {
        let victim = Victim::ours();
        let before = victim.peak().unwrap();
        let mut open = Vec::new();
        let most = Bytes::from(vec![0xff; MAX_CONTROL_BYTES - 1]);
        // 640 MiB, a byte short of complete each.
        for _ in 0..20 {
            let peer = connect(&victim).await;
            let (answer, mut body) = peer.begin(PREPARE).await.unwrap();
            let sent = async {
                push(&mut body, claim(MAX_CONTROL_BYTES as u32)).await?;
                push(&mut body, most.clone()).await
            };
            let _ = sent.await;
            open.push((peer, answer, body));
        }
        assert!(victim.serves().await);
        let grown = grown(&victim, before);
        println!("20 Prepares of 32 MiB without an end: {grown} bytes more");
        // One of them may be copied while its buffer grows.
        let most = (MAX_PEER_BYTES + MAX_CONTROL_BYTES) as u64;
        assert!(grown < most + SLACK, "{grown}");
        // From another address a whole Prepare still comes through, to be refused for what it says.
        let friend = Peer::connect(victim.address, FRIENDLY).await.unwrap();
        let named = PrepareRequest { coordinator_id: "c".into(), epoch: 1, ..Default::default() };
        let padded = [named.encode_to_vec(), field(4, &vec![b'x'; 20 << 20])].concat();
        let (answer, _body) = friend.send(PREPARE, framed(&padded)).await.unwrap();
        let (status, why) = outcome(answer).await.unwrap();
        assert_eq!((status, why.as_str()), (INVALID, "prepare.spec is missing"));
    });
}

fn a_message_in_single_bytes_takes_what_it_has() {
    in_runtime(async {
        let victim = Victim::ours();
        let before = victim.peak().unwrap();
        let peer = connect(&victim).await;
        let hello = HelloRequest { wire_version: WIRE_VERSION, ..HelloRequest::default() };
        let (answer, mut body) = peer.begin(HELLO).await.unwrap();
        let long = [hello.encode_to_vec(), field(2, &[b'x'; 20_000])].concat();
        for byte in framed(&long).chunks(1) {
            push(&mut body, Bytes::copy_from_slice(byte)).await.unwrap();
        }
        body.send_data(Bytes::new(), true).unwrap();
        assert_eq!(outcome(answer).await.unwrap().0, 0);
        assert!(grown(&victim, before) < SLACK);
    });
}

fn connections_have_caps_and_those_that_say_nothing_are_closed() {
    in_runtime(async {
        let victim = Victim::ours();
        let mut open = Vec::new();
        for _ in 0..2 * MAX_PEER_CONNECTIONS {
            open.push(silent(victim.address, HOSTILE).await.unwrap());
        }
        // Full for this address, not for others.
        assert!(victim.serves().await);
        let mut n_closed = 0;
        for stream in &mut open[MAX_PEER_CONNECTIONS..] {
            n_closed += usize::from(is_closed(stream, Duration::from_secs(5)).await);
        }
        assert_eq!(n_closed, MAX_PEER_CONNECTIONS, "turned away at once");
        let mut greeted = Vec::new();
        let patience = Duration::from_millis(2 * FIRST_CALL_MS);
        for stream in &mut open[..MAX_PEER_CONNECTIONS] {
            assert!(is_closed(stream, patience).await, "a silent connection stays");
        }
        // Their places are free again.
        for _ in 0..MAX_PEER_CONNECTIONS / 4 {
            let peer = connect(&victim).await;
            let hello = HelloRequest { wire_version: WIRE_VERSION, ..HelloRequest::default() };
            assert_eq!(peer.call(HELLO, &hello).await.unwrap().0, 0);
            greeted.push(peer);
        }
    });
}

/// A coordinator that had no call to make for a while finds the worker as before.
fn a_connection_that_was_closed_for_its_silence_is_made_again() {
    in_runtime(async {
        let victim = Victim::ours();
        let channel = dial(&victim.address.into(), false).await.unwrap();
        let mut client = WorkerClient::new(channel);
        tokio::time::sleep(Duration::from_millis(FIRST_CALL_MS + 3000)).await;
        client.health(HealthRequest::default()).await.unwrap();
    });
}

/// Whether the other end closes a connection within `patience`.
async fn is_closed(stream: &mut tokio::net::TcpStream, patience: Duration) -> bool {
    use tokio::io::AsyncReadExt;
    let ended = async {
        let mut buffer = [0; 1024];
        while !matches!(stream.read(&mut buffer).await, Ok(0) | Err(_)) {}
    };
    tokio::time::timeout(patience, ended).await.is_ok()
}

fn prepare(coordinator_id: &str, epoch: u64) -> PrepareRequest {
    let spec = StageSpec {
        n_stages: 1,
        layer_end: 1,
        max_seqs: 1,
        n_blocks: 1,
        max_ctx: 64,
        max_rows: 1,
        kv_type: 1,
        wire_type: 1,
        ..StageSpec::default()
    };
    PrepareRequest {
        coordinator_id: coordinator_id.into(),
        epoch,
        spec: Some(spec),
        header: Some(Blob { blake3: vec![7; HASH_BYTES].into(), nbytes: 10 }),
        ..PrepareRequest::default()
    }
}

fn the_manifest_of_the_largest_model_comes_through() {
    in_runtime(async {
        let victim = Victim::ours();
        let tensor = |i: usize| TensorRef {
            name: format!("blk.{i}.ffn_gate_up_down_exps.weight"),
            blob: Some(Blob { blake3: blake3_like(i), nbytes: 1 << 10 }),
        };
        let tensors = (0..60_000).map(tensor).collect();
        let peer = Peer::connect(victim.address, FRIENDLY).await.unwrap();
        let request = PrepareRequest { tensors, ..prepare("c", 1) };
        assert!(request.encoded_len() > 4 << 20, "{}", request.encoded_len());
        assert_eq!(peer.call(PREPARE, &request).await.unwrap().0, 0);
    });
}

fn blake3_like(i: usize) -> Bytes {
    let mut hash = vec![0; HASH_BYTES];
    hash[..8].copy_from_slice(&(i as u64).to_le_bytes());
    hash.into()
}

fn epochs_of_one_peer_do_not_bar_another() {
    in_runtime(async {
        let victim = Victim::ours();
        let peer = connect(&victim).await;
        for absurd in [u64::MAX, u64::MAX - 1] {
            let (status, why) = peer.call(PREPARE, &prepare("rogue", absurd)).await.unwrap();
            assert_eq!(status, INVALID, "{why}");
            assert!(why.contains("start a lower one"), "{why}");
        }
        // As far as it may go, and given back.
        assert_eq!(peer.call(PREPARE, &prepare("rogue", MAX_EPOCH_STEP)).await.unwrap().0, 0);
        let unload = UnloadRequest { epoch: MAX_EPOCH_STEP, coordinator_id: "rogue".into() };
        assert_eq!(peer.call(UNLOAD, &unload).await.unwrap().0, 0);
        let friend = Peer::connect(victim.address, FRIENDLY).await.unwrap();
        assert_eq!(friend.call(PREPARE, &prepare("coordinator", 1)).await.unwrap().0, 0);
    });
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        lengths_that_are_only_claimed_reserve_nothing,
        fields_are_counted_before_they_are_decoded,
        messages_that_are_never_complete_have_one_cap_for_all,
        a_message_in_single_bytes_takes_what_it_has,
        a_connection_that_was_closed_for_its_silence_is_made_again,
        the_manifest_of_the_largest_model_comes_through,
        epochs_of_one_peer_do_not_bar_another,
        connections_have_caps_and_those_that_say_nothing_are_closed;
];
