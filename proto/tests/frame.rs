//! Checks of frames as bytes: accepted frames are within the stage's limits, for any input.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use brigade_proto::control::WireType;
use brigade_proto::frame::{
    BoundaryShape, FrameError, FrameLimits, check_ubatch, decode_lane_frame, wire_row_bytes,
};
use brigade_proto::limits::MAX_REQUEST_ID_BYTES;
use brigade_proto::pipeline::{
    Boundary, CloseOp, CopyOp, GrowOp, LaneFrame, LogitBias, OpenOp, SamplerSetup, SeqOp, SeqPart,
    TruncateOp, Ubatch, Want, lane_frame, seq_op,
};
use proptest::prelude::*;
use prost::Message;

const LIMITS: FrameLimits = FrameLimits {
    max_rows: 8,
    max_seqs: 4,
    n_blocks: 16,
    max_ctx: 100,
    n_vocab: 50,
    input_width: Some(3),
};

fn frame(ubatch: Ubatch) -> Vec<u8> {
    LaneFrame { body: Some(lane_frame::Body::Ubatch(ubatch)) }.encode_to_vec()
}

fn op(op: seq_op::Op) -> SeqOp {
    SeqOp { op: Some(op) }
}

fn sampler() -> SamplerSetup {
    let logit_bias = vec![LogitBias { token: 49, bias: f32::NEG_INFINITY }];
    SamplerSetup { top_logprobs: Some(5), logit_bias, ..SamplerSetup::default() }
}

/// Everything a ubatch can hold, two rows.
fn full() -> Ubatch {
    let blocks = vec![0, 15];
    let request = "r".repeat(MAX_REQUEST_ID_BYTES);
    let copy = CopyOp { src: 0, dst: 2, len: 9, blocks: blocks.clone(), sampler: None, request };
    let request = "req-1".to_owned();
    Ubatch {
        ops: vec![
            op(seq_op::Op::Open(OpenOp { slot: 0, blocks, sampler: Some(sampler()), request })),
            op(seq_op::Op::Copy(copy)),
            op(seq_op::Op::Truncate(TruncateOp { slot: 1, len: 3, from: None, to: None })),
            op(seq_op::Op::Close(CloseOp { slot: 3 })),
            op(seq_op::Op::Grow(GrowOp { slot: 1, blocks: vec![3] })),
        ],
        parts: vec![
            SeqPart {
                slot: 0,
                pos: 99,
                tokens: vec![49],
                want: Want::Logits.into(),
                mu: None,
                ahead: None,
            },
            SeqPart {
                slot: 1,
                pos: 0,
                tokens: vec![0],
                want: Want::Nothing.into(),
                mu: None,
                ahead: None,
            },
        ],
        boundary: Some(Boundary {
            dtype: WireType::F32.into(),
            n_rows: 2,
            width: 3,
            data: vec![0; 24].into(),
        }),
        ..Ubatch::default()
    }
}

fn sampler_of(ubatch: &mut Ubatch) -> &mut SamplerSetup {
    match &mut ubatch.ops[0].op {
        Some(seq_op::Op::Open(open)) => open.sampler.as_mut().unwrap(),
        _ => unreachable!("the first op opens"),
    }
}

#[test]
fn a_full_frame_passes_and_its_shape_is_told() {
    decode_lane_frame(&frame(full()), &LIMITS).unwrap();
    let shape = BoundaryShape { n_rows: 2, width: 3, dtype: WireType::F32 };
    assert_eq!(check_ubatch(&full(), &LIMITS), Ok(Some(shape)));
}

#[test]
fn a_ubatch_of_ops_alone_has_an_empty_boundary() {
    let mut ubatch = Ubatch { parts: vec![], ..full() };
    let boundary = ubatch.boundary.as_mut().unwrap();
    (boundary.n_rows, boundary.data) = (0, vec![].into());
    assert_eq!(check_ubatch(&ubatch, &LIMITS).unwrap().unwrap().n_rows, 0);
    ubatch.boundary.as_mut().unwrap().data = vec![0; 4].into();
    assert!(check_ubatch(&ubatch, &LIMITS).is_err());
}

#[test]
fn a_boundary_has_all_bytes_of_its_rows_and_no_more() {
    for n_bytes in [0, 23, 25] {
        let mut ubatch = full();
        ubatch.boundary.as_mut().unwrap().data = vec![0; n_bytes].into();
        let refused = check_ubatch(&ubatch, &LIMITS).unwrap_err().to_string();
        assert!(refused.contains("boundary.data bytes"), "{n_bytes}: {refused}");
    }
}

#[test]
fn the_first_stage_takes_no_boundary() {
    let limits = FrameLimits { input_width: None, ..LIMITS };
    let ubatch = Ubatch { boundary: None, ..full() };
    assert_eq!(check_ubatch(&ubatch, &limits), Ok(None));
    assert!(check_ubatch(&full(), &limits).is_err());
}

#[test]
fn every_prefix_of_a_frame_is_refused_or_checked() {
    let bytes = frame(full());
    for len in 0..bytes.len() {
        assert!(decode_lane_frame(&bytes[..len], &LIMITS).is_err(), "{len} bytes");
    }
}

#[test]
fn ops_and_samplers_out_of_range_are_named() {
    type Change = fn(&mut Ubatch);
    let cases: [(&str, Change); 13] = [
        ("ubatch.ops.op", |u| u.ops[0].op = None),
        ("copy.dst is 4", |u| {
            u.ops[1].op = Some(seq_op::Op::Copy(CopyOp { dst: 4, ..CopyOp::default() }));
        }),
        ("truncate.len is 101", |u| {
            u.ops[2].op =
                Some(seq_op::Op::Truncate(TruncateOp { slot: 0, len: 101, from: None, to: None }));
        }),
        ("grow.slot is 9", |u| {
            u.ops[4].op = Some(seq_op::Op::Grow(GrowOp { slot: 9, blocks: Vec::new() }));
        }),
        ("block id is 16", |u| {
            u.ops[4].op = Some(seq_op::Op::Grow(GrowOp { slot: 1, blocks: vec![16] }));
        }),
        ("close.slot is 9", |u| u.ops[3].op = Some(seq_op::Op::Close(CloseOp { slot: 9 }))),
        ("blocks count is 17", |u| {
            let blocks = vec![0; 17];
            u.ops[0].op = Some(seq_op::Op::Open(OpenOp { blocks, ..OpenOp::default() }));
        }),
        ("request bytes is 129", |u| {
            let request = "r".repeat(MAX_REQUEST_ID_BYTES + 1);
            u.ops[0].op = Some(seq_op::Op::Open(OpenOp { request, ..OpenOp::default() }));
        }),
        ("control characters", |u| {
            let request = "a\nforged line".to_owned();
            u.ops[1].op = Some(seq_op::Op::Copy(CopyOp { request, ..CopyOp::default() }));
        }),
        ("not finite", |u| sampler_of(u).temperature = f32::NAN),
        ("top_logprobs is 5000", |u| sampler_of(u).top_logprobs = Some(5000)),
        ("logit_bias.token is 50", |u| sampler_of(u).logit_bias[0].token = 50),
        ("finite or -inf", |u| sampler_of(u).logit_bias[0].bias = f32::INFINITY),
    ];
    for (word, change) in cases {
        let mut ubatch = full();
        change(&mut ubatch);
        let reason = check_ubatch(&ubatch, &LIMITS).unwrap_err().to_string();
        assert!(reason.contains(word), "{word}: {reason}");
    }
}

#[test]
fn what_is_not_a_frame_is_a_decode_error() {
    assert_eq!(decode_lane_frame(&[], &LIMITS), Err(FrameError::Missing("frame.body")));
    let error = decode_lane_frame(&[0xff; 40], &LIMITS).unwrap_err();
    assert!(matches!(error, FrameError::Decode(_)), "{error}");
}

/// The promise about accepted frames, stated a second time.
fn assert_within_limits(ubatch: &Ubatch) {
    let rows: usize = ubatch.parts.iter().map(|p| p.tokens.len()).sum();
    assert!(rows <= 8 && ubatch.parts.len() <= 4);
    for part in &ubatch.parts {
        assert!(part.slot < 4 && !part.tokens.is_empty());
        assert!(part.tokens.iter().all(|&t| t < 50));
        assert!(part.pos as usize + part.tokens.len() <= 100);
    }
    let boundary = ubatch.boundary.as_ref().unwrap();
    let row = wire_row_bytes(WireType::try_from(boundary.dtype).unwrap(), 3).unwrap();
    assert_eq!(boundary.data.len(), rows * row);
}

proptest! {
    #[test]
    fn mutated_frames_never_panic_and_accepted_ones_are_within_limits(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut bytes = frame(full());
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(LaneFrame { body: Some(lane_frame::Body::Ubatch(ubatch)) }) =
            decode_lane_frame(&bytes, &LIMITS)
        {
            assert_within_limits(&ubatch);
        }
    }

    #[test]
    fn noise_is_never_more_than_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(LaneFrame { body: Some(lane_frame::Body::Ubatch(ubatch)) }) =
            decode_lane_frame(&bytes, &LIMITS)
        {
            assert_within_limits(&ubatch);
        }
    }
}
