//! Counting fields before they are decoded: too many are refused by the cap's name, and legitimate messages
//! pass, however large.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use brigade_proto::control::{
    Blob, Capabilities, FileHint, HelloReply, PrepareReply, PrepareRequest, TensorRef, WireType,
};
use brigade_proto::count::{Countable, count_fields};
use brigade_proto::frame::{FrameError, FrameLimits, check_ubatch, decode_lane_frame};
use brigade_proto::limits::*;
use brigade_proto::pipeline::*;
use proptest::prelude::*;
use prost::Message;

/// Encodes a length-delimited field.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(value.len(), &mut bytes).unwrap();
    bytes.extend_from_slice(value);
    bytes
}

fn over<M: Countable>(bytes: &[u8]) -> (&'static str, u64) {
    match count_fields::<M>(bytes) {
        Err(FrameError::OverLimit { field, limit, .. }) => (field, limit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_repeated_field_has_its_cap() {
    let ubatch = |inner: Vec<u8>| field(2, &inner);
    let ops = ubatch(field(4, &[]).repeat(MAX_OPS + 1));
    assert_eq!(over::<LaneFrame>(&ops), ("ubatch.ops count", MAX_OPS as u64));
    let parts = ubatch(field(5, &[]).repeat(MAX_SEQS as usize + 1));
    assert_eq!(over::<LaneFrame>(&parts).0, "ubatch.parts count");
    let tokens = ubatch(field(5, &field(3, &vec![1; MAX_ROWS as usize + 1])));
    assert_eq!(over::<LaneFrame>(&tokens).0, "part.tokens count");
    // Not packed: a key and a value each.
    let tokens = ubatch(field(5, &[3 << 3, 1].repeat(MAX_ROWS as usize + 1)));
    assert_eq!(over::<LaneFrame>(&tokens).0, "part.tokens count");
    let blocks = ubatch(field(4, &field(1, &field(2, &vec![1; MAX_BLOCKS as usize + 1]))));
    assert_eq!(over::<LaneFrame>(&blocks).0, "ops.blocks count");
    let blocks = ubatch(field(4, &field(2, &field(4, &vec![1; MAX_BLOCKS as usize + 1]))));
    assert_eq!(over::<LaneFrame>(&blocks).0, "ops.blocks count");
    let bias = ubatch(field(4, &field(1, &field(3, &field(10, &[]).repeat(MAX_FRAME_BIAS + 1)))));
    assert_eq!(over::<LaneFrame>(&bias).0, "sampler.logit_bias count");
    let timings = ubatch(field(6, &[]).repeat(MAX_STAGES + 1));
    assert_eq!(over::<LaneFrame>(&timings).0, "ubatch.timings count");
    let tensors = field(6, &[]).repeat(MAX_TENSORS + 1);
    assert_eq!(over::<PrepareRequest>(&tensors), ("prepare.tensors count", MAX_TENSORS as u64));
    let files = field(7, &[]).repeat(MAX_FILES + 1);
    assert_eq!(over::<PrepareRequest>(&files).0, "prepare.files count");
    let missing = field(3, &[]).repeat(MAX_TENSORS + 2);
    assert_eq!(over::<PrepareReply>(&missing).0, "reply.missing count");
    let names = field(3, &field(1, &[]).repeat(MAX_ABILITIES + 1));
    assert_eq!(over::<HelloReply>(&names).0, "capabilities.architectures count");
    let rows = field(4, &[]).repeat(MAX_ROWS as usize + 1);
    assert_eq!(over::<ResultFrame>(&rows).0, "result.rows count");
    let top = field(4, &field(3, &field(3, &[]).repeat(MAX_FRAME_TOPS + 1)));
    assert_eq!(over::<ResultFrame>(&top).0, "sampled.top count");
}

#[test]
fn numbers_are_counted_and_not_their_bytes() {
    // Each is two bytes, of which the first has no bit but the highest.
    let tokens = |n: usize| field(2, &field(5, &field(3, &[0x80, 1].repeat(n))));
    count_fields::<LaneFrame>(&tokens(MAX_ROWS as usize)).unwrap();
    assert_eq!(over::<LaneFrame>(&tokens(MAX_ROWS as usize + 1)).0, "part.tokens count");
}

#[test]
fn a_field_in_parts_is_counted_once_and_whole() {
    // Decoding joins the parts of a message that comes twice.
    let half = field(2, &field(4, &[]).repeat(MAX_OPS / 2 + 1));
    count_fields::<LaneFrame>(&half).unwrap();
    let both = [half.clone(), half].concat();
    assert_eq!(over::<LaneFrame>(&both).0, "ubatch.ops count");
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let cut = field(2, &[0; 100]);
    for bad in [&cut[..50], &[0xff; 40], &[0x80; 9], &[3 << 3 | 3], &[3 << 3 | 4], &[5 << 3 | 5]] {
        assert!(matches!(count_fields::<LaneFrame>(bad), Err(FrameError::Decode(_))), "{bad:?}");
        assert!(LaneFrame::decode(bad).is_err() || bad.len() == 1, "{bad:?}");
    }
}

/// The largest model: its manifest on one worker, with hashes and long names.
#[test]
fn a_manifest_of_tens_of_thousands_of_tensors_passes() {
    let tensor = |i: usize| TensorRef {
        name: format!("blk.{i}.ffn_gate_up_down_exps_shared_somewhere.weight"),
        blob: Some(Blob { blake3: vec![7; HASH_BYTES].into(), nbytes: 1 << 34 }),
    };
    let request = PrepareRequest {
        tensors: (0..90_000).map(tensor).collect(),
        files: vec![FileHint { path: "x".repeat(200), ..FileHint::default() }; 900],
        ..PrepareRequest::default()
    };
    let bytes = request.encode_to_vec();
    assert!(bytes.len() < MAX_CONTROL_BYTES, "{}", bytes.len());
    count_fields::<PrepareRequest>(&bytes).unwrap();
}

/// 512 rows of what crosses a cut of Kimi K3, nine vectors of 7168.
#[test]
fn the_activations_of_a_large_prefill_pass() {
    let (n_rows, width) = (512, 9 * 7168);
    let limits = FrameLimits {
        max_rows: n_rows,
        max_seqs: 512,
        n_blocks: 100_000,
        max_ctx: 1 << 20,
        n_vocab: 200_000,
        input_width: Some(width),
    };
    let op = |slot| {
        let open = OpenOp { slot, blocks: (0..16_384).collect(), ..OpenOp::default() };
        SeqOp { op: Some(seq_op::Op::Open(open)) }
    };
    let data = vec![1; 4 * (n_rows * width) as usize].into();
    let ubatch = Ubatch {
        ops: (0..64).map(op).collect(),
        parts: vec![SeqPart { tokens: vec![199_999; n_rows as usize], ..SeqPart::default() }],
        boundary: Some(Boundary { dtype: WireType::F32.into(), n_rows, width, data }),
        ..Ubatch::default()
    };
    check_ubatch(&ubatch, &limits).unwrap();
    let bytes = LaneFrame { body: Some(lane_frame::Body::Ubatch(ubatch)) }.encode_to_vec();
    assert!(bytes.len() <= limits.max_frame_bytes(), "{}", bytes.len());
    assert!(limits.max_frame_bytes() < MAX_FRAME_BYTES);
    decode_lane_frame(&bytes, &limits).unwrap();
}

#[test]
fn abilities_of_a_real_worker_pass() {
    let names = |n: usize| (0..n).map(|i| format!("architecture-{i}")).collect::<Vec<_>>();
    let capabilities = Capabilities {
        architectures: names(60),
        quant_types: names(40),
        wire_types: vec![1, 2, 3, 4],
        kernel_tables: names(5),
        kv_types: vec![1, 2, 3],
        gb_per_second: 100.0,
        host_id: "x".repeat(64),
        ..Capabilities::default()
    };
    let reply = HelloReply { capabilities: Some(capabilities), ..HelloReply::default() };
    let bytes = reply.encode_to_vec();
    assert!(bytes.len() < MAX_SMALL_BYTES);
    count_fields::<HelloReply>(&bytes).unwrap();
}

proptest! {
    /// Every message that prost decodes has been counted to its end: none of them is refused as invalid.
    #[test]
    fn what_decodes_is_counted(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let has_groups = matches!(count_fields::<LaneFrame>(&bytes),
            Err(FrameError::Decode(why)) if why.starts_with("wire type"));
        if LaneFrame::decode(&bytes[..]).is_ok() && !has_groups {
            prop_assert!(count_fields::<LaneFrame>(&bytes).is_ok());
        }
    }
}
