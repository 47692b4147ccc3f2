//! Refuses requests that two programs could read in two ways (request smuggling). Lines must end with CR LF, though
//! the parser of heads also takes a bare LF. And a head may give its body's length once only: as a number or in
//! chunks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The byte that takes the place of a bare LF: no head may have it.
const FORBIDDEN: u8 = 0;

/// Bytes of a line that are kept: the two fields that give a body's length are shorter.
const LOOKED_AT: usize = 256;

/// CR LF after the bytes of a chunk.
const CHUNK_END: u64 = 2;

/// A connection whose requests are watched as they are read.
#[derive(Debug)]
pub(crate) struct Strict<S> {
    inner: S,
    lines: Lines,
}

/// A connection's place in its requests.
#[derive(Debug, Default)]
struct Lines {
    part: Part,
    /// The line so far, up to [`LOOKED_AT`], and its last byte.
    line: Vec<u8>,
    last: u8,
    /// The head so far: whether it has begun, and how its body's length is given.
    begun: bool,
    length: Option<u64>,
    chunked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    ChunkSize,
    Trailer,
    /// So many bytes of a body are left; the next head follows.
    Body(u64),
    /// So many bytes of a chunk are left; the next chunk follows.
    Chunk(u64),
    /// The request is invalid; the parser refuses the rest.
    Broken,
}

impl Lines {
    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let read = match self.part {
                Part::Broken => return,
                Part::Body(left) | Part::Chunk(left) => self.skip(left, bytes.len()),
                Part::Head | Part::ChunkSize | Part::Trailer => self.read_line(bytes),
            };
            bytes = &mut bytes[read..];
        }
    }

    fn skip(&mut self, left: u64, there: usize) -> usize {
        let read = left.min(there as u64);
        let left = left - read;
        self.part = match (self.part, left) {
            (Part::Body(_), 0) => self.next_head(),
            (Part::Body(_), left) => Part::Body(left),
            (_, 0) => Part::ChunkSize,
            (_, left) => Part::Chunk(left),
        };
        read as usize
    }

    /// Reads up to the end of a line; how much.
    fn read_line(&mut self, bytes: &mut [u8]) -> usize {
        let end = bytes.iter().position(|&b| b == b'\n');
        let text = &bytes[..end.unwrap_or(bytes.len())];
        let room = LOOKED_AT.saturating_sub(self.line.len());
        self.line.extend_from_slice(&text[..text.len().min(room)]);
        self.last = text.last().copied().unwrap_or(self.last);
        let Some(end) = end else { return bytes.len() };
        let ends_head = self.part == Part::Head && self.begun && self.line == b"\r";
        let is_told_twice = ends_head && self.chunked && self.length.is_some();
        if self.last != b'\r' || is_told_twice {
            bytes[end..=end].fill(FORBIDDEN);
            self.part = Part::Broken;
            return end + 1;
        }
        self.part = self.after_line();
        self.line.clear();
        self.last = 0;
        end + 1
    }

    fn after_line(&mut self) -> Part {
        let is_empty = self.line == b"\r";
        match self.part {
            Part::Head if is_empty && !self.begun => Part::Head,
            Part::Head if is_empty && self.chunked => Part::ChunkSize,
            Part::Head if is_empty => match self.length {
                Some(length @ 1..) => Part::Body(length),
                _ => self.next_head(),
            },
            Part::Trailer if is_empty => self.next_head(),
            Part::Head => {
                self.begun = true;
                self.note_field();
                Part::Head
            }
            Part::ChunkSize => match chunk_size(&self.line) {
                Some(0) => Part::Trailer,
                Some(size) => Part::Chunk(size.saturating_add(CHUNK_END)),
                None => Part::Broken,
            },
            part => part,
        }
    }

    fn next_head(&mut self) -> Part {
        (self.begun, self.length, self.chunked) = (false, None, false);
        Part::Head
    }

    fn note_field(&mut self) {
        let Ok(line) = std::str::from_utf8(&self.line) else { return };
        let Some((name, value)) = line.split_once(':') else { return };
        if name.eq_ignore_ascii_case("content-length") {
            self.length = Some(value.trim().parse().unwrap_or(0));
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            self.chunked = value.to_ascii_lowercase().contains("chunked");
        }
    }
}

/// The number at the beginning of a chunk's first line; what follows it are extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits: String =
        line.iter().map(|&b| char::from(b)).take_while(char::is_ascii_hexdigit).collect();
    u64::from_str_radix(&digits, 16).ok()
}

impl<S> Strict<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, lines: Lines::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Strict<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        self.lines.pass(&mut buf.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Strict<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
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
    use super::*;

    /// The bytes that pass when they come in pieces of `size`.
    fn passed(bytes: &[u8], size: usize) -> Vec<u8> {
        let mut lines = Lines::default();
        let mut out = bytes.to_vec();
        for piece in out.chunks_mut(size) {
            lines.pass(piece);
        }
        out
    }

    #[test]
    fn lines_that_end_well_pass_and_bodies_are_nobodys_business() {
        let requests = "\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n\
            POST /a HTTP/1.1\r\nContent-Length: 6\r\n\r\na\nb\n\nc\
            POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\n\n\n\n\r\n2\r\n\r\n\r\n0\r\nt: v\r\n\r\n\
            GET /c HTTP/1.1\r\n\r\n";
        for size in 1..=requests.len() {
            assert_eq!(passed(requests.as_bytes(), size), requests.as_bytes(), "{size}");
        }
    }

    #[test]
    fn what_two_programs_could_read_differently_is_marked() {
        let long = format!("GET / HTTP/1.1\r\nx: {}\n\r\n", "y".repeat(2 * LOOKED_AT));
        for bad in [
            "\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\nhost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\n\n",
            "GET / HTTP/1.1\r\n\r\nGET /b HTTP/1.1\n\n",
            "POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n\n\nGET / HTTP/1.1\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\nabc\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nt: v\n\r\n",
            long.as_str(),
        ] {
            let whole = passed(bad.as_bytes(), bad.len());
            assert_eq!(whole.iter().filter(|&&b| b == FORBIDDEN).count(), 1, "{bad:?}");
            for size in 1..bad.len() {
                assert_eq!(passed(bad.as_bytes(), size), whole, "{bad:?} in pieces of {size}");
            }
        }
    }
}
