//! Maps slots to the requests that they compute for, so that the worker's log names the same request as the
//! coordinator's. This belongs to one lane. The executor keeps it, because it sees every operation.

use std::collections::BTreeMap;

use brigade_proto::pipeline::{SeqOp, seq_op};

/// The requests of a lane's open slots.
#[derive(Debug, Default)]
pub struct Requests {
    by_slot: BTreeMap<u32, String>,
}

impl Requests {
    /// Follows a ubatch's operations, and logs which sequences open and close.
    pub fn follow(&mut self, ops: &[SeqOp]) {
        for op in ops.iter().filter_map(|op| op.op.as_ref()) {
            match op {
                seq_op::Op::Open(open) => self.open(open.slot, &open.request),
                seq_op::Op::Copy(copy) => self.open(copy.dst, &copy.request),
                seq_op::Op::Truncate(_) | seq_op::Op::Adapt(_) | seq_op::Op::Draw(_) => {}
                seq_op::Op::Name(_) | seq_op::Op::Checkpoint(_) | seq_op::Op::Grow(_) => {}
                seq_op::Op::Draft(_) => {}
                seq_op::Op::Close(close) => {
                    let request = self.by_slot.remove(&close.slot);
                    tracing::debug!(slot = close.slot, request, "sequence closes");
                }
            }
        }
    }

    /// The request in `slot`.
    pub fn of(&self, slot: u32) -> Option<&str> {
        self.by_slot.get(&slot).map(String::as_str)
    }

    fn open(&mut self, slot: u32, request: &str) {
        tracing::debug!(slot, request, "sequence opens");
        self.by_slot.insert(slot, request.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use brigade_proto::pipeline::{CloseOp, CopyOp, OpenOp};

    use super::*;

    #[test]
    fn a_slot_has_the_request_that_opened_it_last() {
        let op = |op| SeqOp { op: Some(op) };
        let open = |slot, request: &str| {
            op(seq_op::Op::Open(OpenOp { slot, request: request.into(), ..OpenOp::default() }))
        };
        let close = |slot| op(seq_op::Op::Close(CloseOp { slot }));
        let copy = CopyOp { src: 1, dst: 2, request: "c".into(), ..CopyOp::default() };
        let mut requests = Requests::default();
        requests.follow(&[open(1, "a"), close(1), open(1, "b"), op(seq_op::Op::Copy(copy))]);
        assert_eq!((requests.of(1), requests.of(2), requests.of(3)), (Some("b"), Some("c"), None));
        requests.follow(&[close(1)]);
        assert_eq!(requests.of(1), None);
    }
}
