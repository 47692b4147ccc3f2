//! The process that started this one: its end is seen at standard input. A node also hands over connections there, and its
//! word for this stage.

use std::io;
use std::net::TcpStream;
use std::thread::{Builder, sleep};
use std::time::Duration;

use brigade_proto::net::handover::{Given, take};
use tokio::sync::{mpsc, oneshot, watch};

use crate::identity::word::{Word, Words};

/// Connections from the node that wait for this process to look at them; more are on their way, and then refused.
const HANDED_QUEUE: usize = 32;
/// Time limit for a worker whose parent has gone to leave in order. No other process would end it later.
const ORPHANED_FOR: Duration = Duration::from_secs(30);

/// What a stage has from its node.
#[derive(Debug)]
pub struct FromNode {
    /// Connections that the node has accepted for it.
    pub accepted: mpsc::Receiver<TcpStream>,
    /// The node's word for it.
    pub words: Words,
}

/// Takes what comes from the node, until that is gone: then the second is ready.
///
/// # Errors
/// The system refuses a thread.
pub fn of_node() -> io::Result<(FromNode, oneshot::Receiver<()>)> {
    let (hand, accepted) = mpsc::channel(HANDED_QUEUE);
    let (tell, words) = watch::channel(None);
    let ended = until_ended(move || pass_on(&hand, &tell))?;
    Ok((FromNode { accepted, words }, ended))
}

/// Ready when standard input ends.
pub async fn ended() {
    // Data on standard input is ignored; only its end counts.
    match until_ended(|| drop(io::copy(&mut io::stdin().lock(), &mut io::sink()))) {
        Ok(ended) => drop(ended.await),
        Err(error) => {
            tracing::error!(%error, "cannot watch standard input: leaving");
        }
    }
}

/// Reads standard input to its end, and says when that has come. A thread of its own, because a read cannot be cancelled; it
/// ends the process if what runs in it does not let it end.
fn until_ended(read: impl FnOnce() + Send + 'static) -> io::Result<oneshot::Receiver<()>> {
    let (ended, wait) = oneshot::channel();
    Builder::new().name("stdin".into()).spawn(move || {
        read();
        let _ = ended.send(());
        sleep(ORPHANED_FOR);
        tracing::error!("the parent process is gone, and a task of this worker does not end: it exits without waiting");
        std::process::exit(1);
    })?;
    Ok(wait)
}

/// Passes on what the node gives until it is gone.
fn pass_on(hand: &mpsc::Sender<TcpStream>, tell: &watch::Sender<Option<Word>>) {
    loop {
        match take(io::stdin()) {
            // A server that has ended takes none: they are closed.
            Ok(Some(Given::Connection(connection))) => drop(hand.blocking_send(connection)),
            Ok(Some(Given::Word(word))) => match Word::from_bytes(&word) {
                Some(word) => drop(tell.send_replace(Some(word))),
                None => tracing::error!(
                    "the node's word for this stage is cut off: it is of another release"
                ),
            },
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "standard input is no way from a node: leaving");
                return;
            }
        }
    }
}
