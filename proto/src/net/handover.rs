//! What a node gives to the process of a stage, over a pair of Unix sockets: accepted connections, as open sockets
//! (SCM_RIGHTS), and its word for the stage. The node keeps nothing of a connection that it has given away, and no byte of
//! it passes through the node.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair,
};

use crate::limits::MAX_WORD_BYTES;

/// Begins a message with a connection.
const CONNECTION: u8 = 1;
/// Begins a message with the node's word.
const WORD: u8 = 2;

/// What a stage is given.
#[derive(Debug)]
pub enum Given {
    /// An accepted connection.
    Connection(TcpStream),
    /// The node's word for the stage.
    Word(Vec<u8>),
}

/// The node's end of the way to a stage; clones share it.
#[derive(Clone, Debug)]
pub struct Giver(Arc<OwnedFd>);

impl Giver {
    /// The node's end, and the end that the stage's process has as its standard input.
    ///
    /// # Errors
    /// The system's.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        // Messages stay whole, and are closed by a process's end.
        let (own, stages) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // A stage that takes nothing must not hold up the node, and one has nothing to tell it.
        rustix::io::ioctl_fionbio(&own, true)?;
        shutdown(&own, Shutdown::Read)?;
        Ok((Self(Arc::new(own)), stages))
    }

    /// Gives the stage a connection, which is the caller's to close.
    ///
    /// # Errors
    /// The stage is gone, or has not taken what came before.
    pub fn give(&self, socket: impl AsFd) -> io::Result<()> {
        let sockets: [BorrowedFd<'_>; 1] = [socket.as_fd()];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("no room for an open socket in a message"));
        }
        self.send(&[CONNECTION], &mut control)
    }

    /// Tells the stage the node's word for it: at most [`MAX_WORD_BYTES`].
    ///
    /// # Errors
    /// As [`Giver::give`].
    pub fn tell(&self, word: &[u8]) -> io::Result<()> {
        self.send(&[&[WORD], word].concat(), &mut SendAncillaryBuffer::default())
    }

    fn send(
        &self,
        message: &[u8],
        control: &mut SendAncillaryBuffer<'_, '_, '_>,
    ) -> io::Result<()> {
        let message = [IoSlice::new(message)];
        retry_on_intr(|| sendmsg(&*self.0, &message, control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Tells the stage that there is nothing more, which ends it.
    pub fn end(&self) {
        // An error means that it has ended already.
        let _ = shutdown(&*self.0, Shutdown::Both);
    }
}

/// The next thing that a stage is given at `from`, its end of the way; `None`: the node is gone. Waits.
///
/// # Errors
/// `from` is no such end.
pub fn take(from: impl AsFd) -> io::Result<Option<Given>> {
    loop {
        let mut message = [0; 1 + MAX_WORD_BYTES];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let received = recvmsg(
            &from,
            &mut [IoSliceMut::new(&mut message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let received = match received {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        let mut sockets = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        });
        match message[..received.bytes].split_first() {
            None => return Ok(None),
            Some((&WORD, word)) => return Ok(Some(Given::Word(word.to_vec()))),
            // Where this process has no room for another open file, none comes: the connection is closed.
            Some(_) => {
                if let Some(socket) = sockets.next().and_then(|mut sockets| sockets.next()) {
                    return Ok(Some(Given::Connection(TcpStream::from(socket))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn taken(end: &OwnedFd) -> TcpStream {
        match take(end).unwrap() {
            Some(Given::Connection(connection)) => connection,
            other => panic!("{other:?}"),
        }
    }

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
            let mut taken = taken(&end);
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
    fn the_nodes_word_comes_whole_and_in_order_with_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_client, accepted) = connection(&listener);
        let (giver, end) = Giver::pair().unwrap();
        let words = [vec![7; MAX_WORD_BYTES], vec![], vec![1, 2]];
        for word in &words {
            giver.tell(word).unwrap();
            giver.give(&accepted).unwrap();
        }
        for word in &words {
            assert!(matches!(take(&end).unwrap(), Some(Given::Word(told)) if told == *word));
            taken(&end);
        }
        drop(giver);
        assert!(take(&end).unwrap().is_none());
    }

    /// The error is that of a stage that has ended, with messages on their way or without.
    fn is_gone(error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
    }

    #[test]
    fn a_stage_that_is_gone_or_takes_nothing_gets_nothing_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut client, accepted) = connection(&listener);
        let (giver, end) = Giver::pair().unwrap();
        giver.give(&accepted).unwrap();
        let full = (0..1 << 20).find_map(|_| giver.give(&accepted).err()).unwrap();
        // So many sockets are open on the way, or there is no more room for bytes.
        assert!(!is_gone(&full), "{full}");
        // It ends with connections on the way to it: they are closed.
        drop((end, accepted));
        let gone = giver.give(&listener).unwrap_err();
        assert!(is_gone(&gone), "{gone}");
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
    }
}
