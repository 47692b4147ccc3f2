//! A socket that gives up on a client which does not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that a slow client must take within the limit of a [`Patient`]: about a kilobyte a second.
pub const PACE_BYTES: usize = 64 << 10;

/// A stream whose writes fail when its peer does not read, or reads too little to be served.
///
/// A spell begins when a write has to wait. If within the limit [`PACE_BYTES`] go through, the next wait begins
/// another one; a spell that is over when a write waits, with less than that, ends the connection. So a client that
/// takes a few bytes now and then does not hold its place for ever, and one that is only slow for a while does.
#[derive(Debug)]
pub(crate) struct Patient<S> {
    inner: S,
    limit: Duration,
    spell: Option<Spell>,
}

#[derive(Debug)]
struct Spell {
    over: Pin<Box<Sleep>>,
    /// Bytes written during the spell.
    bytes: usize,
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    pub(crate) fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit, spell: None }
    }

    /// The outcome of a write, or that it has waited too long.
    fn outcome(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            self.wrote(written.as_ref().copied().unwrap_or(0));
            return Poll::Ready(written);
        }
        let limit = self.limit;
        let spell =
            self.spell.get_or_insert_with(|| Spell { over: Box::pin(sleep(limit)), bytes: 0 });
        ready!(spell.over.as_mut().poll(cx));
        let problem = format!(
            "the client has read {} bytes in {} s: at least {PACE_BYTES} are expected",
            spell.bytes,
            limit.as_secs_f32()
        );
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, problem)))
    }

    fn wrote(&mut self, n: usize) {
        let Some(spell) = &mut self.spell else { return };
        spell.bytes += n;
        // Over while nothing waited: the client has caught up.
        if spell.bytes >= PACE_BYTES || spell.over.deadline() <= Instant::now() {
            self.spell = None;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.outcome(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.outcome(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(500);

    /// Writes for ever to a client that takes `bytes` every 10 ms; after how long it was given up, if it was `within`
    /// so many limits.
    async fn given_up(bytes: usize, within: u32) -> Option<Duration> {
        let (server, mut client) = duplex(16 << 10);
        let reading = tokio::spawn(async move {
            let mut taken = vec![0; bytes];
            loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
                if client.read_exact(&mut taken).await.is_err() {
                    return;
                }
            }
        });
        let began = Instant::now();
        let mut patient = Patient::new(server, LIMIT);
        let writing = async { while patient.write_all(&[b'x'; 1000]).await.is_ok() {} };
        let ended = tokio::time::timeout(within * LIMIT, writing).await;
        reading.abort();
        ended.is_ok().then(|| began.elapsed())
    }

    #[tokio::test]
    async fn a_client_that_takes_a_few_bytes_now_and_then_is_given_up_and_a_slow_one_is_not() {
        for few in [0, 100] {
            let trickling = given_up(few, 200).await.expect("too few bytes");
            assert!(LIMIT <= trickling, "{trickling:?}");
        }
        // Ten times the pace, so that a busy machine does not matter.
        assert_eq!(given_up(20 * PACE_BYTES / 100, 4).await, None, "enough bytes");
    }
}
