//! Messages of peers (control, frames of the lane, copies), counted before they are decoded. A message that passes the count is decoded or refused,
//! and a decoded message survives being encoded again.

#![no_main]

use brigade_proto::control as c;
use brigade_proto::copies as k;
use brigade_proto::count::{Countable, count_fields};
use brigade_proto::pipeline as p;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fn check<M: Countable + Message + Default + PartialEq>(bytes: &[u8]) {
    if count_fields::<M>(bytes).is_err() {
        return;
    }
    if let Ok(message) = M::decode(bytes) {
        let again = message.encode_to_vec();
        assert!(count_fields::<M>(&again).is_ok(), "what was counted is counted again");
        // A NaN is not equal to itself: its bytes are.
        let copy = M::decode(again.as_slice()).expect("what was decoded is encoded well");
        assert_eq!(copy.encode_to_vec(), again);
    }
}

fuzz_target!(|bytes: &[u8]| {
    check::<c::JoinRequest>(bytes);
    check::<c::HelloRequest>(bytes);
    check::<c::HelloReply>(bytes);
    check::<c::PrepareRequest>(bytes);
    check::<c::PrepareReply>(bytes);
    check::<c::FetchRequest>(bytes);
    check::<c::GatherRequest>(bytes);
    check::<c::FetchEvent>(bytes);
    check::<c::LoadRequest>(bytes);
    check::<c::HealthReply>(bytes);
    check::<c::RetireRequest>(bytes);
    check::<k::KeepRequest>(bytes);
    check::<k::FindReply>(bytes);
    check::<k::FetchRequest>(bytes);
    check::<k::WeightsRequest>(bytes);
    check::<k::WeightsPart>(bytes);
    check::<k::PutBackRequest>(bytes);
    check::<k::SettleRequest>(bytes);
    check::<p::LaneFrame>(bytes);
    check::<p::ResultFrame>(bytes);
});
