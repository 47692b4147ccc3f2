//! Accepted connections on their way from a node to the process of a stage: open sockets over a pair of Unix sockets
//! (SCM_RIGHTS). The node keeps nothing of a connection that it has given away, and no byte of it passes through the node.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Stands for one socket: an open file travels with a byte at least.
const MARK: u8 = 1;

/// The node's end of the way to a stage; clones share it.
#[derive(Clone, Debug)]
pub struct Giver(Arc<UnixStream>);

impl Giver {
    /// The node's end, and the end that the stage's process has as its standard input.
    ///
    /// # Errors
    /// The system's.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (own, stages) = UnixStream::pair()?;
        // A stage that takes nothing must not hold up the node, and one has nothing to tell it.
        own.set_nonblocking(true)?;
        own.shutdown(Shutdown::Read)?;
        Ok((Self(Arc::new(own)), stages.into()))
    }

    /// Gives the stage a connection, which is the caller's to close.
    ///
    /// # Errors
    /// The stage is gone, or has not taken those before it.
    pub fn give(&self, socket: impl AsFd) -> io::Result<()> {
        let sockets: [BorrowedFd<'_>; 1] = [socket.as_fd()];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("no room for an open socket in a message"));
        }
        let byte = [IoSlice::new(&[MARK])];
        retry_on_intr(|| sendmsg(&*self.0, &byte, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Tells the stage that there is nothing more, which ends it.
    pub fn end(&self) {
        // An error means that it has ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// The next connection that a stage is given at `from`, its end of the way; `None`: the node is gone. Waits.
///
/// # Errors
/// `from` is no such end.
pub fn take(from: impl AsFd) -> io::Result<Option<TcpStream>> {
    loop {
        let mut byte = [0];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let received = recvmsg(
            &from,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let received = match received {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut sockets = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        });
        // Where this process has no room for another open file, the byte comes alone: the connection is closed.
        if let Some(socket) = sockets.next().and_then(|mut sockets| sockets.next()) {
            return Ok(Some(TcpStream::from(socket)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A connection over loopback: the client's end, and the accepted one.
    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn connections_arrive_in_order_and_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (giver, end) = Giver::pair().unwrap();
        let mut clients = Vec::new();
        for n in 0..3_u8 {
            let (mut client, accepted) = connection(&listener);
            // Bytes that are there before the connection is given away.
            client.write_all(&[n]).unwrap();
            giver.give(&accepted).unwrap();
            clients.push(client);
        }
        for (n, client) in (0..).zip(&mut clients) {
            let mut taken = take(&end).unwrap().unwrap();
            let mut first = [9];
            taken.read_exact(&mut first).unwrap();
            taken.write_all(&[n + 10]).unwrap();
            drop(taken);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert_eq!(
                (first[0], answer),
                (n, vec![n + 10]),
                "nobody else has the connection open"
            );
        }
        giver.end();
        assert!(take(&end).unwrap().is_none());
    }

    #[test]
    fn a_stage_that_is_gone_or_takes_nothing_gets_nothing_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut client, accepted) = connection(&listener);
        let (giver, end) = Giver::pair().unwrap();
        giver.give(&accepted).unwrap();
        let full = (0..1 << 20).find_map(|_| giver.give(&accepted).err()).unwrap();
        // So many sockets are open on the way, or there is no more room for bytes.
        assert_ne!(full.kind(), io::ErrorKind::BrokenPipe);
        // It ends with connections on the way to it: they are closed.
        drop((end, accepted));
        assert_eq!(giver.give(&listener).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
    }
}
