//! Converts the coordinator's types to the messages of the pipeline, and result frames back. No other file of
//! this crate converts them.

use brigade_engine::batch::{
    AdapterUse, Constraint, DraftedToken, MAX_DRAFTED, MAX_FORCED, Planes, RowOutput, RowValue,
    SampledToken, SamplerSetup, SeqOp, SeqPart, SlotId, UBatch, Want,
};
use brigade_proto::failure::cut_reason;
use brigade_proto::pipeline as pb;
use brigade_proto::sampling::settings_to_wire;
use thiserror::Error;

/// A fault in a result frame.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ResultError {
    /// A row without a value.
    #[error("a result row of slot {slot} at position {pos} has no value")]
    NoValue {
        /// Slot of the row.
        slot: u32,
        /// Position of the row.
        pos: u32,
    },
    /// A token that the model does not have.
    #[error("a result row names token {token}, but the vocabulary has {n_vocab}")]
    Token {
        /// The invalid id.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
    /// A mu that is no number.
    #[error("a result row has a mu of {mu}: a finite number is needed")]
    Mu {
        /// The received value.
        mu: f32,
    },
    /// Odds of a draft that are none.
    #[error("a result row has a draft with odds of {odds}: a number from 0 to 1 is needed")]
    Odds {
        /// The received value.
        odds: f32,
    },
    /// A hidden row that is no row of f32 values.
    #[error("a hidden row has {nbytes} bytes: at least one value of 4 bytes is needed")]
    HiddenSize {
        /// Bytes received.
        nbytes: usize,
    },
    /// A logits row of another size.
    #[error("a logits row has {nbytes} bytes instead of {expected}")]
    RowSize {
        /// Bytes received.
        nbytes: usize,
        /// Four times the vocabulary.
        expected: usize,
    },
}

/// The frame that carries a ubatch to stage 0.
pub fn ubatch_frame(ubatch: UBatch, epoch: u64, lane: u32, later: bool) -> pb::LaneFrame {
    let message = pb::Ubatch {
        id: ubatch.id,
        epoch,
        lane,
        ops: ubatch.ops.into_iter().map(|change| op(change, later)).collect(),
        parts: ubatch.parts.into_iter().map(part).collect(),
        timings: Vec::new(),
        boundary: None,
    };
    pb::LaneFrame { body: Some(pb::lane_frame::Body::Ubatch(message)) }
}

fn op(op: SeqOp, later: bool) -> pb::SeqOp {
    use pb::seq_op::Op;
    let op = match op {
        SeqOp::Open { slot, blocks, sampler: setup, request } => Op::Open(pb::OpenOp {
            slot: slot.0,
            blocks: blocks.into_iter().map(|b| b.0).collect(),
            sampler: setup.as_deref().map(|setup| sampler(setup, later)),
            request: request.to_string(),
        }),
        SeqOp::Copy { src, dst, len, blocks, sampler: setup, request } => Op::Copy(pb::CopyOp {
            src: src.0,
            dst: dst.0,
            len,
            blocks: blocks.into_iter().map(|b| b.0).collect(),
            sampler: setup.as_deref().map(|setup| sampler(setup, later)),
            request: request.to_string(),
        }),
        SeqOp::Truncate { slot, len, planes } => {
            let (from, to) = (planes.map(|planes| planes.from.0), planes.map(|planes| planes.to.0));
            Op::Truncate(pb::TruncateOp { slot: slot.0, len, from, to })
        }
        SeqOp::Close { slot } => Op::Close(pb::CloseOp { slot: slot.0 }),
        SeqOp::Draw { slot } => Op::Draw(pb::DrawOp { slot: slot.0 }),
        SeqOp::Draft { slot } => Op::Draft(pb::DraftOp { slot: slot.0 }),
        SeqOp::Grow { slot, blocks } => {
            let blocks = blocks.into_iter().map(|b| b.0).collect();
            Op::Grow(pb::GrowOp { slot: slot.0, blocks })
        }
        SeqOp::Adapt { slot, adapters } => {
            let used = |used: &AdapterUse| {
                let AdapterUse { adapter, scale } = *used;
                pb::AdapterUse { adapter, scale }
            };
            Op::Adapt(pb::AdaptOp { slot: slot.0, adapters: adapters.iter().map(used).collect() })
        }
        SeqOp::Name { slot, name } => Op::Name(pb::NameOp {
            slot: slot.0,
            name: name.map(|name| name.0.to_vec()).unwrap_or_default().into(),
        }),
        SeqOp::Checkpoint { slot, len, mark, plane, parting } => {
            let mark = mark.0.to_vec().into();
            Op::Checkpoint(pb::CheckpointOp {
                slot: slot.0,
                len,
                mark,
                parting,
                plane: plane.map(|plane| plane.0),
            })
        }
    };
    pb::SeqOp { op: Some(op) }
}

fn part(part: SeqPart) -> pb::SeqPart {
    let want = match part.want {
        Want::Nothing => pb::Want::Nothing,
        Want::Sample => pb::Want::Sample,
        Want::Companion => pb::Want::Companion,
        Want::Verify => pb::Want::Verify,
        Want::Logits => pb::Want::Logits,
        Want::Hidden => pb::Want::Hidden,
        Want::HiddenFirst => pb::Want::HiddenFirst,
        Want::HiddenLast => pb::Want::HiddenLast,
    };
    let SeqPart { slot, pos, tokens, mu, ahead, .. } = part;
    let planes = |p: Planes| pb::Planes { from: p.from.0, to: p.to.0 };
    let ahead = ahead.map(|a| pb::Ahead {
        sure: a.sure,
        planes: a.planes.map(planes),
        known: a.known,
        drafts: a.drafts,
    });
    pb::SeqPart { slot: slot.0, pos, tokens, want: want.into(), mu, ahead }
}

fn sampler(setup: &SamplerSetup, later: bool) -> pb::SamplerSetup {
    pb::SamplerSetup {
        seed: setup.seed,
        top_logprobs: setup.top_logprobs,
        not_before: (!setup.not_before.tokens.is_empty()).then(|| pb::NotBefore {
            pos: setup.not_before.pos,
            tokens: setup.not_before.tokens.to_vec(),
        }),
        constraint: setup.constraint.as_deref().map(|held| constraint(held, later)),
        guidance: setup.companion.map(|g| pb::Guidance { scale: g.scale }),
        ..settings_to_wire(&setup.params)
    }
}

fn constraint(constraint: &Constraint, later: bool) -> pb::Constraint {
    pb::Constraint {
        answer_at: constraint.answer_at,
        grammars: constraint
            .grammars
            .iter()
            .map(|g| pb::Grammar { text: g.text.clone(), then_free: g.then_free })
            .collect(),
        first: constraint.first,
        unless: constraint.unless.clone(),
        markers: constraint
            .markers
            .iter()
            .map(|m| pb::Marker { text: m.text.clone(), grammar: m.grammar })
            .collect(),
        later,
        owner: constraint.owner,
    }
}

/// The rows of a result frame, checked against the vocabulary.
///
/// # Errors
/// [`ResultError`]; a stage that sends such a frame is broken.
pub fn rows(rows: Vec<pb::RowResult>, n_vocab: u32) -> Result<Vec<RowOutput>, ResultError> {
    rows.into_iter().map(|row| row_output(row, n_vocab)).collect()
}

fn row_output(row: pb::RowResult, n_vocab: u32) -> Result<RowOutput, ResultError> {
    use pb::row_result::Value;
    let (slot, pos) = (row.slot, row.pos);
    let value = match row.value.ok_or(ResultError::NoValue { slot, pos })? {
        Value::Sampled(sampled) => RowValue::Sampled(sampled_token(sampled, n_vocab)?),
        Value::Logits(bytes) => {
            let expected = n_vocab as usize * size_of::<f32>();
            if bytes.len() != expected {
                return Err(ResultError::RowSize { nbytes: bytes.len(), expected });
            }
            let (values, _) = bytes.as_chunks::<4>();
            RowValue::Logits(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
        }
        Value::Hidden(bytes) => {
            let (values, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() || values.is_empty() {
                return Err(ResultError::HiddenSize { nbytes: bytes.len() });
            }
            RowValue::Hidden(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
        }
        Value::Failed(why) => RowValue::Failed(cut_reason(why)),
        Value::NotYet(_) => RowValue::NotYet,
        Value::Refuted(_) => RowValue::Refuted,
    };
    Ok(RowOutput { slot: SlotId(slot), pos, value, mask_us: row.mask_us })
}

fn sampled_token(sampled: pb::Sampled, n_vocab: u32) -> Result<SampledToken, ResultError> {
    let top: Vec<(u32, f32)> = sampled.top.iter().map(|t| (t.token, t.logprob)).collect();
    let mut forced = sampled.forced;
    // A later release may tell of more.
    forced.truncate(MAX_FORCED);
    let drafted = sampled.drafted.iter().take(MAX_DRAFTED);
    let drafted: Vec<DraftedToken> =
        drafted.map(|d| DraftedToken { id: d.token, odds: d.odds }).collect();
    let told = top.iter().map(|(token, _)| *token).chain([sampled.token]);
    let told = told.chain(drafted.iter().map(|d| d.id));
    for token in told.chain(forced.iter().copied()) {
        if token >= n_vocab {
            return Err(ResultError::Token { token, n_vocab });
        }
    }
    if let Some(mu) = sampled.mu.filter(|mu| !mu.is_finite()) {
        return Err(ResultError::Mu { mu });
    }
    if let Some(draft) = drafted.iter().find(|draft| !(0.0..=1.0).contains(&draft.odds)) {
        return Err(ResultError::Odds { odds: draft.odds });
    }
    let pb::Sampled { token, logprob, mu, .. } = sampled;
    Ok(SampledToken { id: token, logprob, top, mu, forced, drafted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{
        Drawing, Guiding, Limits, MAX_GUIDANCE_SCALE, MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, Request,
    };
    use brigade_engine::batch::{Mirostat, PageId, SamplingParams};
    use brigade_proto::frame::{FrameLimits, check_ubatch};
    use brigade_proto::limits::MAX_SAMPLER_TOKENS;
    use brigade_sampling::{MinusOne, Rule, SETTINGS, Value};
    use brigade_sched::Work;
    use std::sync::Arc;

    #[test]
    fn every_field_of_a_ubatch_reaches_the_frame() {
        let params = SamplingParams { logit_bias: vec![(5, -1.5)], ..SamplingParams::default() };
        let setup =
            SamplerSetup { params, seed: 99, top_logprobs: Some(3), ..SamplerSetup::default() };
        let ubatch = UBatch {
            id: 7,
            ops: vec![
                SeqOp::Close { slot: SlotId(1) },
                SeqOp::Open {
                    slot: SlotId(2),
                    blocks: vec![PageId(4), PageId(6)],
                    sampler: Some(Arc::new(setup)),
                    request: "req-1".into(),
                },
                SeqOp::Grow { slot: SlotId(2), blocks: vec![PageId(9)] },
            ],
            parts: vec![SeqPart {
                slot: SlotId(2),
                pos: 0,
                tokens: vec![8, 9],
                want: Want::Sample,
                mu: None,
                ahead: None,
            }],
        };
        let Some(pb::lane_frame::Body::Ubatch(frame)) = ubatch_frame(ubatch, 3, 0, true).body
        else {
            panic!("a ubatch frame holds a ubatch");
        };
        assert_eq!((frame.id, frame.epoch), (7, 3));
        let Some(pb::seq_op::Op::Open(open)) = frame.ops[1].op.clone() else { panic!("open") };
        assert_eq!((open.blocks.as_slice(), open.request.as_str()), ([4, 6].as_slice(), "req-1"));
        let Some(pb::seq_op::Op::Grow(grow)) = &frame.ops[2].op else { panic!("grow") };
        assert_eq!((grow.slot, grow.blocks.as_slice()), (2, [9].as_slice()));
        let setup = open.sampler.unwrap();
        assert_eq!((setup.seed, setup.top_logprobs), (99, Some(3)));
        assert_eq!(setup.logit_bias[0].bias, -1.5);
        assert_eq!(frame.parts[0].tokens, [8, 9]);
        assert_eq!(frame.parts[0].want(), pb::Want::Sample);
    }

    #[test]
    fn a_worker_takes_whatever_is_taken_from_a_client() {
        let limits = Limits { n_ctx: 4096, n_vocab: 1 << 17, answer: 1024, encoder: None };
        let of_worker = FrameLimits {
            max_rows: 512,
            max_seqs: 4,
            n_blocks: 64,
            max_ctx: limits.n_ctx,
            n_vocab: limits.n_vocab,
            input_width: None,
        };
        let at_an_end = |is_high: bool| {
            let bias = |id| (id, f32::NEG_INFINITY);
            let mut params = SamplingParams {
                logit_bias: (0..MAX_LOGIT_BIAS as u32).map(bias).collect(),
                mirostat: Some(Mirostat::default()),
                ..SamplingParams::default()
            };
            params.dry.breakers = (0..MAX_SAMPLER_TOKENS as u32).collect();
            for setting in SETTINGS {
                let value = match setting.rule {
                    Rule::Number { low, high, .. } => {
                        Value::Number(if is_high { high } else { low })
                    }
                    Rule::Count { .. } if !is_high => Value::Count(0),
                    Rule::Count { minus_one: Some(MinusOne::Context) } => {
                        Value::Count(limits.n_ctx)
                    }
                    Rule::Count { .. } => Value::Count(u32::MAX),
                    Rule::Switch { on, .. } => Value::Count(on),
                };
                setting.set(&mut params, value);
            }
            params
        };
        let extremes = [at_an_end(false), at_an_end(true)];
        let long = "\u{e9}".repeat(300);
        for label in ["", "a\tb", "a\nb\u{1b}[31m", "\u{85}\u{9f}", "\u{7f}", long.as_str()] {
            for params in extremes.clone() {
                let drawing = Drawing {
                    params,
                    seed: u64::MAX,
                    top_logprobs: Some(MAX_TOP_LOGPROBS),
                    ends: (0..100).collect(),
                    min_tokens: u32::MAX,
                    companion: Some(Guiding { scale: MAX_GUIDANCE_SCALE, negative: None }),
                    ..Drawing::default()
                };
                let request = Request::generate(vec![1; 4095], drawing, &limits).unwrap();
                let request = request.named(label);
                let Work::Generate { sampler, .. } = request.work else { panic!("generates") };
                let (slot, sampler, request) = (SlotId(0), Some(sampler), request.label);
                let ops = vec![SeqOp::Open { slot, blocks: Vec::new(), sampler, request }];
                let frame = ubatch_frame(UBatch { id: 1, ops, parts: Vec::new() }, 1, 0, true);
                let Some(pb::lane_frame::Body::Ubatch(frame)) = frame.body else {
                    panic!("a ubatch frame holds a ubatch");
                };
                assert_eq!(check_ubatch(&frame, &of_worker), Ok(None), "{label:?}");
            }
        }
    }

    fn result(value: pb::row_result::Value) -> Vec<pb::RowResult> {
        vec![pb::RowResult { slot: 1, pos: 2, value: Some(value), mask_us: 0 }]
    }

    #[test]
    fn rows_are_checked() {
        let bytes: Vec<u8> = [1.0f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let good = result(pb::row_result::Value::Logits(bytes.into()));
        assert_eq!(rows(good.clone(), 2).unwrap()[0].value, RowValue::Logits(vec![1.0, -2.0]));
        assert_eq!(rows(good, 3).unwrap_err(), ResultError::RowSize { nbytes: 8, expected: 12 });
        let sampled = pb::Sampled { token: 10, ..pb::Sampled::default() };
        let row = result(pb::row_result::Value::Sampled(sampled));
        assert_eq!(rows(row.clone(), 11).unwrap().len(), 1);
        assert_eq!(rows(row, 10).unwrap_err(), ResultError::Token { token: 10, n_vocab: 10 });
        let sampled = pb::Sampled { forced: vec![3; MAX_FORCED + 2], ..pb::Sampled::default() };
        let told = rows(result(pb::row_result::Value::Sampled(sampled.clone())), 10).unwrap();
        let RowValue::Sampled(token) = &told[0].value else { panic!("{told:?}") };
        assert_eq!(token.forced, [3; MAX_FORCED], "a later release may tell of more");
        let row = result(pb::row_result::Value::Sampled(sampled));
        assert_eq!(rows(row, 3).unwrap_err(), ResultError::Token { token: 3, n_vocab: 3 });
        let drafted = |odds| pb::Sampled {
            drafted: vec![pb::Drafted { token: 3, odds }; MAX_DRAFTED + 2],
            ..pb::Sampled::default()
        };
        let row = |odds| result(pb::row_result::Value::Sampled(drafted(odds)));
        let told = rows(row(0.5), 10).unwrap();
        let RowValue::Sampled(token) = &told[0].value else { panic!("{told:?}") };
        assert_eq!(token.drafted, [DraftedToken { id: 3, odds: 0.5 }; MAX_DRAFTED]);
        assert_eq!(rows(row(0.5), 3).unwrap_err(), ResultError::Token { token: 3, n_vocab: 3 });
        assert_eq!(rows(row(1.5), 10).unwrap_err(), ResultError::Odds { odds: 1.5 });
        let sampled = pb::Sampled { mu: Some(f32::INFINITY), ..pb::Sampled::default() };
        let row = result(pb::row_result::Value::Sampled(sampled));
        assert_eq!(rows(row, 10).unwrap_err(), ResultError::Mu { mu: f32::INFINITY });
        let failed = result(pb::row_result::Value::Failed("NaN".into()));
        assert_eq!(rows(failed, 10).unwrap()[0].value, RowValue::Failed("NaN".into()));
        let empty = vec![pb::RowResult { slot: 1, pos: 2, value: None, mask_us: 0 }];
        assert_eq!(rows(empty, 10).unwrap_err(), ResultError::NoValue { slot: 1, pos: 2 });
    }
}
