//! The one port of a node: it accepts connections and hands each to the stage that the connection names. It looks at the
//! first bytes without taking them, so that the stage reads them itself.
//!
//! Limits: connections that have not said yet whom they want are counted like those of any listener, and have
//! [`FIRST_CALL_MS`] and [`MAX_GREETING_BYTES`] for it. From then on the stage's own limits hold.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::NetError;
use super::admission::{Door, LOOK_EVERY, Peer, TurnedAway};
use super::handover::Giver;
use super::listener::listen_tcp;
use crate::address::{Address, FIRST_STAGE};
use crate::limits::{FIRST_CALL_MS, MAX_GREETING_BYTES};
use crate::tls::server_name::Greeting;

/// Time in which a connection says whom it wants.
const SAID_WITHIN: Duration = Duration::from_millis(FIRST_CALL_MS);

/// How the stages behind a port speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// Over TLS alone.
    Tls,
    /// Plain.
    Plain {
        /// Also beyond this machine.
        insecure_network: bool,
    },
}

/// The bound port of a node.
#[derive(Debug)]
pub struct Front {
    address: Address,
    listener: TcpListener,
}

/// The ways to the stages that take connections.
#[derive(Debug, Default)]
pub struct Stages(Mutex<Vec<Option<Giver>>>);

impl Stages {
    /// Stage `number`, from 1 on, takes connections from now on.
    pub fn open(&self, number: usize, to: Giver) {
        let mut all = self.lock();
        if all.len() < number {
            all.resize(number, None);
        }
        all[number - 1] = Some(to);
    }

    /// The stage takes none any more.
    pub fn close(&self, number: usize) {
        if let Some(to) = self.lock().get_mut(number - 1) {
            *to = None;
        }
    }

    fn way_to(&self, number: u8) -> Option<Giver> {
        self.lock().get(usize::from(number - FIRST_STAGE))?.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Giver>>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a connection reaches no stage.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("it did not say within {FIRST_CALL_MS} ms which stage it is for")]
    Silent,
    #[error("its first message has more than {MAX_GREETING_BYTES} bytes")]
    TooLong,
    #[error("it names no stage of this node")]
    NoStage,
    #[error("stage {0} is not there, or not ready")]
    NotThere(u8),
    #[error("stage {stage} does not take it: {error}")]
    NotTaken { stage: u8, error: io::Error },
    #[error("it is gone: {0}")]
    Gone(#[from] io::Error),
}

impl Front {
    /// Binds the port of a node whose stages speak so; port 0 takes a free one.
    ///
    /// # Errors
    /// [`NetError::Address`] for plain stages beyond this machine; [`NetError::Bind`].
    pub async fn bind(address: &Address, speech: Speech) -> Result<Self, NetError> {
        let resolved = match speech {
            Speech::Tls => address.resolve_anywhere().await?,
            Speech::Plain { insecure_network } => address.resolve(insecure_network).await?,
        };
        let failed = |source| NetError::Bind { address: address.clone(), source };
        let listener = listen_tcp(&resolved).map_err(failed)?;
        let address = Address::from(listener.local_addr().map_err(failed)?);
        Ok(Self { address, listener })
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Hands connections to the stages for ever.
    pub async fn serve(self, stages: Arc<Stages>) -> std::convert::Infallible {
        let (door, mut turned_away) = (Door::new(), TurnedAway::default());
        let mut unsaid = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        let peer = Peer::of(SocketAddr::ip(&from));
                        match door.admit(peer) {
                            Some(counted) => {
                                let stages = stages.clone();
                                unsaid.spawn(async move {
                                    if let Err(why) = hand_over(stream, &stages).await {
                                        tracing::debug!(%peer, %why, "a connection was closed");
                                    }
                                    drop(counted);
                                });
                            }
                            None => turned_away.one(peer),
                        }
                    }
                    // Out of file descriptors, perhaps: asking again at once would only burn a core.
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(LOOK_EVERY).await;
                    }
                },
                Some(_) = unsaid.join_next() => {}
            }
        }
    }
}

async fn hand_over(stream: TcpStream, stages: &Stages) -> Result<(), Lost> {
    let said = timeout(SAID_WITHIN, wanted(&stream)).await;
    let (number, line_bytes) = said.map_err(|_| Lost::Silent)??;
    let to = stages.way_to(number).ok_or(Lost::NotThere(number))?;
    if line_bytes > 0 {
        // They have been seen, so they are there.
        stream.try_io(Interest::READABLE, || {
            let mut line = vec![0; line_bytes];
            recv(stream.as_fd(), &mut line[..], RecvFlags::empty())?;
            Ok(())
        })?;
    }
    to.give(&stream).map_err(|error| Lost::NotTaken { stage: number, error })
}

/// The stage that a connection wants, and the bytes of the line that says so. They are read and stay to be read.
async fn wanted(stream: &TcpStream) -> Result<(u8, usize), Lost> {
    let mut seen = vec![0; MAX_GREETING_BYTES];
    let look = || {
        let peeked = recv(stream.as_fd(), &mut seen[..], RecvFlags::PEEK);
        let (_, nbytes) = peeked?;
        match Greeting::read(&seen[..nbytes]) {
            Greeting::Stage { number, line_bytes } => Ok(Ok((number, line_bytes))),
            Greeting::NoStage => Ok(Err(Lost::NoStage)),
            Greeting::Cut if nbytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            Greeting::Cut if nbytes == seen.len() => Ok(Err(Lost::TooLong)),
            // The next bytes that come wake it.
            Greeting::Cut => Err(Errno::AGAIN.into()),
        }
    };
    stream.async_io(Interest::READABLE, look).await?
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::limits::MAX_PEER_CONNECTIONS;
    use crate::net::handover::{Given, take};

    /// A front at a free port with two stages; the second is ready.
    async fn front() -> (Address, Arc<Stages>, OwnedFd) {
        let at = "127.0.0.1:0".parse().unwrap();
        let front = Front::bind(&at, Speech::Plain { insecure_network: false }).await.unwrap();
        let (stages, (giver, second)) = (Arc::new(Stages::default()), Giver::pair().unwrap());
        stages.open(2, giver);
        let address = front.address().clone();
        tokio::spawn(front.serve(stages.clone()));
        (address, stages, second)
    }

    /// A client that says this, and what it hears until the connection is closed.
    fn hears(address: &Address, said: &[u8]) -> Vec<u8> {
        let mut client = TcpStream::connect(address.to_string()).unwrap();
        let mut heard = Vec::new();
        // The other side may have closed it already, with bytes that nobody has read.
        let _ = client.write_all(said).and_then(|()| client.read_to_end(&mut heard));
        heard
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_reaches_the_stage_that_it_names_with_all_its_bytes() {
        let (address, stages, second) = front().await;
        let client = move || {
            let mut client = TcpStream::connect(address.to_string()).unwrap();
            // In pieces, as a network may deliver them.
            for piece in ["STA", "GE 2", "\nhello", " there"] {
                client.write_all(piece.as_bytes()).unwrap();
                std::thread::yield_now();
            }
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let mut heard = String::new();
            client.read_to_string(&mut heard).unwrap();
            heard
        };
        let heard = tokio::task::spawn_blocking(client);
        let stage = move || {
            let Some(Given::Connection(mut taken)) = take(&second).unwrap() else {
                panic!("no connection comes");
            };
            taken.set_nonblocking(false).unwrap();
            let mut said = String::new();
            taken.read_to_string(&mut said).unwrap();
            taken.write_all(b"good day").unwrap();
            said
        };
        assert_eq!(tokio::task::spawn_blocking(stage).await.unwrap(), "hello there");
        assert_eq!(heard.await.unwrap(), "good day");
        drop(stages);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_names_no_stage_that_is_there_is_closed_without_a_word() {
        let (address, stages, second) = front().await;
        // A record of 16000 bytes, most of which never come.
        let huge = [&[0x16, 3, 1, 62, 128, 1, 0, 62, 124][..], &[0; MAX_GREETING_BYTES]].concat();
        let at = address.clone();
        let closed = move || {
            for said in [&huge[..], b"STAGE 3\n", b"STAGE 9999\n", b"PRI * HTTP/2.0"] {
                assert_eq!(hears(&at, said), b"", "{said:?}");
            }
        };
        tokio::task::spawn_blocking(closed).await.unwrap();
        // A stage that has ended, and whose end nobody has noticed yet.
        drop(second);
        let at = address.clone();
        let unnoticed = tokio::task::spawn_blocking(move || hears(&at, b"STAGE 2\n"));
        assert_eq!(unnoticed.await.unwrap(), b"");
        stages.close(2);
        let noticed = tokio::task::spawn_blocking(move || hears(&address, b"STAGE 2\n"));
        assert_eq!(noticed.await.unwrap(), b"");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_keeps_silent_takes_no_more_than_his_connections() {
        let (address, _stages, _second) = front().await;
        let silent = move || {
            let connect = || TcpStream::connect(address.to_string()).unwrap();
            let mut open: Vec<TcpStream> = (0..MAX_PEER_CONNECTIONS).map(|_| connect()).collect();
            assert_eq!(connect().read(&mut [0]).unwrap_or(0), 0, "one too many is closed");
            for stream in &mut open {
                stream.set_nonblocking(true).unwrap();
                let waits = stream.read(&mut [0]).unwrap_err();
                assert_eq!(waits.kind(), io::ErrorKind::WouldBlock, "it has time to say more");
            }
        };
        tokio::task::spawn_blocking(silent).await.unwrap();
    }

    #[tokio::test]
    async fn plain_stages_are_on_this_machine_unless_the_user_says_otherwise() {
        let bind = async |speech| Front::bind(&"0.0.0.0:0".parse().unwrap(), speech).await;
        let refused = bind(Speech::Plain { insecure_network: false }).await;
        assert!(matches!(refused, Err(NetError::Address(_))), "{refused:?}");
        bind(Speech::Plain { insecure_network: true }).await.unwrap();
        bind(Speech::Tls).await.unwrap();
    }
}
