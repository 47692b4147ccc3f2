//! A message on its way in.
//!
//! The transport reserves memory by the length that a message claims. So it sees a stranger's message only when all
//! of it has arrived. Until then the bytes are kept as they came. They count against the caps of all strangers, and
//! have a time limit.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use super::admission::Caller;
use crate::failure::{Failure, FailureKind};
use crate::limits::{MAX_PEER_BYTES, MAX_STRANGER_BYTES, MESSAGE_MS, PREPARES_AT_ONCE};

/// Bytes before a message: whether it is compressed, and its length.
const HEAD_BYTES: usize = 5;
/// Smaller pieces are copied together, so that they occupy no more memory than their bytes.
const PIECE_BYTES: usize = 16 << 10;

/// The limits of a call's messages; in the extensions of every request.
#[derive(Clone, Debug)]
pub struct Intake(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The peer of the call; `None` for the answer to a call of our own.
    caller: Option<Caller>,
    /// Bytes of a message until the stream is accepted.
    first: usize,
    /// Bytes of a message from then on; 0 before.
    accepted: AtomicUsize,
    /// Whether it is a Prepare, of which there are few at a time.
    is_prepare: bool,
    /// Bytes held and the place taken until the call is answered.
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    place: Option<OwnedSemaphorePermit>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let taken = self.taken.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(caller) = &self.caller {
            caller.let_go(taken.bytes);
        }
    }
}

impl Intake {
    pub(super) fn new(caller: Option<Caller>, first: usize, is_prepare: bool) -> Self {
        let (accepted, taken) = (AtomicUsize::new(0), Mutex::default());
        Self(Arc::new(Inner { caller, first, accepted, is_prepare, taken }))
    }

    /// The peer may do what it asked for: its messages may have up to `max_bytes` from now on, in its
    /// own time, and are passed on as they come.
    pub fn accept(&self, max_bytes: usize) {
        self.0.accepted.store(max_bytes, Ordering::Relaxed);
        if let Some(caller) = &self.0.caller {
            caller.known();
        }
    }

    /// The call was answered, or will not be.
    pub(super) fn done(&self) {
        let taken = std::mem::take(&mut *self.taken());
        if let Some(caller) = &self.0.caller {
            caller.let_go(taken.bytes);
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accepted(&self) -> Option<usize> {
        Some(self.0.accepted.load(Ordering::Relaxed)).filter(|max| *max > 0)
    }

    fn hold(&self, nbytes: usize) -> Result<(), Failure> {
        let Some(caller) = &self.0.caller else { return Ok(()) };
        if caller.hold(nbytes) {
            self.taken().bytes += nbytes;
            return Ok(());
        }
        let why = format!(
            "too many bytes of unfinished messages: at most {MAX_STRANGER_BYTES}, {MAX_PEER_BYTES} \
             from one address; try again"
        );
        Err(Failure::refusal(FailureKind::Busy, why))
    }

    /// A message is complete: its bytes count no more, but those of a Prepare until it is answered.
    fn complete(&self) -> Result<(), Failure> {
        let Some(caller) = &self.0.caller else { return Ok(()) };
        if !self.0.is_prepare {
            self.done();
            return Ok(());
        }
        let Ok(place) = caller.door().prepares.clone().try_acquire_owned() else {
            let why = format!("{PREPARES_AT_ONCE} Prepares are being answered: try again");
            return Err(Failure::refusal(FailureKind::Busy, why));
        };
        self.taken().place = Some(place);
        Ok(())
    }
}

/// A body whose messages are passed on when they are complete.
pub(super) struct Gated {
    body: Body,
    intake: Intake,
    message: Message,
    ready: VecDeque<Bytes>,
    late: Option<Pin<Box<Sleep>>>,
    /// Whether the message is complete.
    is_over: bool,
}

/// The message that is arriving.
#[derive(Default)]
struct Message {
    head: [u8; HEAD_BYTES],
    n_head: usize,
    /// Bytes still to come after the head.
    left: usize,
    pieces: Vec<Bytes>,
    small: BytesMut,
}

impl Message {
    fn is_under_way(&self) -> bool {
        self.n_head > 0
    }

    /// Bytes of `data` that belong to the message, and whether it is complete with them.
    fn measure(&mut self, data: &[u8], max_bytes: usize) -> Result<(usize, bool), Failure> {
        let n = data.len().min(HEAD_BYTES - self.n_head);
        self.head[self.n_head..self.n_head + n].copy_from_slice(&data[..n]);
        let had_head = self.n_head == HEAD_BYTES;
        self.n_head += n;
        if self.n_head < HEAD_BYTES {
            return Ok((n, false));
        }
        if !had_head {
            let [_, a, b, c, d] = self.head;
            self.left = u32::from_be_bytes([a, b, c, d]) as usize;
            if self.left > max_bytes {
                let why = format!("a message of {} bytes, the limit is {max_bytes}", self.left);
                return Err(Failure::refusal(FailureKind::BadMessage, why));
            }
        }
        let body = self.left.min(data.len() - n);
        self.left -= body;
        Ok((n + body, self.left == 0))
    }

    fn keep(&mut self, piece: Bytes) {
        if piece.len() < PIECE_BYTES {
            self.small.extend_from_slice(&piece);
            return;
        }
        self.flush();
        self.pieces.push(piece);
    }

    fn flush(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push(self.small.split().freeze());
        }
    }

    /// Lets go of what has been kept.
    fn release(&mut self, ready: &mut VecDeque<Bytes>) {
        self.flush();
        ready.extend(self.pieces.drain(..));
    }
}

impl Gated {
    pub(super) fn new(body: Body, intake: Intake) -> Self {
        let (message, ready) = (Message::default(), VecDeque::new());
        Self { body, intake, message, ready, late: None, is_over: false }
    }

    /// Takes what has come.
    fn take(&mut self, mut data: Bytes) -> Result<(), Failure> {
        let accepted = self.intake.accepted();
        let max_bytes = accepted.unwrap_or(self.intake.0.first);
        if accepted.is_some() {
            self.message.release(&mut self.ready);
        } else if self.message.is_under_way() {
            let (n, is_complete) = self.message.measure(&data, max_bytes)?;
            let part = data.split_to(n);
            if !is_complete {
                return self.keep(part);
            }
            self.message.keep(part);
            self.message.release(&mut self.ready);
            self.message.n_head = 0;
            self.intake.complete()?;
        }
        // Messages that are complete in what came go on as they are.
        let (mut at, mut whole) = (0, 0);
        while at < data.len() {
            let (n, is_complete) = self.message.measure(&data[at..], max_bytes)?;
            at += n;
            if is_complete {
                self.message.n_head = 0;
                whole = at;
                if accepted.is_none() {
                    self.intake.complete()?;
                }
            }
        }
        let rest = if accepted.is_some() { Bytes::new() } else { data.split_off(whole) };
        if !data.is_empty() {
            self.ready.push_back(data);
        }
        self.keep(rest)
    }

    fn keep(&mut self, part: Bytes) -> Result<(), Failure> {
        if !part.is_empty() {
            self.intake.hold(part.len())?;
            self.message.keep(part);
        }
        Ok(())
    }

    /// Whether a stranger takes too long over its message.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        if self.intake.0.caller.is_none() || self.intake.accepted().is_some() {
            return false;
        }
        let patience = Duration::from_millis(MESSAGE_MS);
        self.late.get_or_insert_with(|| Box::pin(sleep(patience))).as_mut().poll(cx).is_ready()
    }

    fn fail(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.is_over = true;
        self.message = Message::default();
        self.body = Body::empty();
        self.intake.done();
        Poll::Ready(Some(Err(failure.into())))
    }
}

impl HttpBody for Gated {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            if self.is_late(cx) {
                let why = format!("the call's messages did not end within {MESSAGE_MS} ms");
                return self.fail(Failure::refusal(FailureKind::BadMessage, why));
            }
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(None) => {
                    // A message that was cut off: what came of it is for the transport to refuse.
                    let this = &mut *self;
                    this.message.release(&mut this.ready);
                    this.is_over = true;
                    continue;
                }
                other => return other,
            };
            match frame.into_data() {
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                Ok(data) => {
                    if let Err(failure) = self.take(data) {
                        return self.fail(failure);
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && (self.is_over || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BYTES: usize = 1 << 20;

    fn message(n: usize) -> Vec<u8> {
        let data = (0..n).map(|i| i as u8);
        [0].into_iter().chain((n as u32).to_be_bytes()).chain(data).collect()
    }

    #[test]
    fn a_message_is_whole_however_it_is_cut() {
        for n in [0, 1, 300, 3 * PIECE_BYTES] {
            let bytes = message(n);
            for step in [1, 2, 4, 5, 7, PIECE_BYTES, bytes.len()] {
                let (mut message, mut ready) = (Message::default(), VecDeque::new());
                let mut ends = Vec::new();
                for part in bytes.chunks(step) {
                    let (taken, is_complete) = message.measure(part, MAX_BYTES).unwrap();
                    assert_eq!(taken, part.len());
                    message.keep(Bytes::copy_from_slice(part));
                    ends.push(is_complete);
                }
                let last = ends.pop();
                assert_eq!(last, Some(true), "{n} bytes in parts of {step}");
                assert!(!ends.contains(&true), "{n} bytes in parts of {step}: {ends:?}");
                message.release(&mut ready);
                let most = 1 + 2 * (bytes.len() / PIECE_BYTES);
                assert!(ready.len() <= most, "{n} bytes in parts of {step}: {}", ready.len());
                assert!(
                    ready.iter().all(|piece| !piece.is_empty()),
                    "{n} bytes in parts of {step}"
                );
                assert_eq!(ready.make_contiguous().concat(), bytes, "in parts of {step}");
            }
        }
    }

    #[test]
    fn what_is_behind_a_message_is_not_of_it() {
        let bytes = [message(300), message(7)].concat();
        let mut first = Message::default();
        let (taken, is_complete) = first.measure(&bytes, MAX_BYTES).unwrap();
        assert_eq!((taken, is_complete), (HEAD_BYTES + 300, true));
        let why = Message::default().measure(&bytes, 299).unwrap_err().to_string();
        assert!(why.contains("a message of 300 bytes, the limit is 299"), "{why}");
    }
}
