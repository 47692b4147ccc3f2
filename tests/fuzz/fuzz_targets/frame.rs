//! Messages of peers, decoded and checked as a worker does it. Any bytes get an answer. Accepted messages can be
//! converted, and keep to the limits.

#![no_main]

use brigade_proto::control::PrepareRequest;
use brigade_proto::frame::{FrameLimits, check_ubatch, decode_lane_frame};
use brigade_proto::pipeline::lane_frame::Body;
use brigade_worker::executor::wire::{BufferPool, boundary_from_wire, ubatch_from_wire};
use brigade_worker::loading::order::Order;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|bytes: &[u8]| {
    for input_width in [None, Some(4)] {
        let limits = FrameLimits {
            max_rows: 64,
            max_seqs: 8,
            n_blocks: 32,
            max_ctx: 2048,
            n_vocab: 1000,
            input_width,
        };
        if let Ok(frame) = decode_lane_frame(bytes, &limits) {
            let Some(Body::Ubatch(ubatch)) = frame.body else { continue };
            let shape = check_ubatch(&ubatch, &limits).expect("it was checked when decoded");
            let converted = ubatch_from_wire(&ubatch).expect("a checked frame converts");
            assert!(converted.n_rows() <= limits.max_rows as usize);
            if let (Some(shape), Some(boundary)) = (shape, &ubatch.boundary) {
                let rows = boundary_from_wire(&boundary.data, shape, &BufferPool::default());
                assert_eq!(rows.n_rows, converted.n_rows());
                assert_eq!(rows.data.len(), rows.n_rows * 4);
            }
        }
    }
    if let Ok(request) = PrepareRequest::decode(bytes)
        && let Ok(order) = Order::parse(request)
    {
        assert!(order.spec.layer_begin < order.spec.layer_end);
        assert!(order.blobs().is_none_or(|blobs| blobs.len() == order.tensors.len() + 1));
    }
});
