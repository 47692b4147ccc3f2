//! The process that started this one: its end is seen at standard input. A node also hands over connections there.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use brigade_proto::net::handover::take;
use tokio::sync::{mpsc, oneshot};

/// Connections from the node that wait for this process to look at them; more are on their way, and then refused.
const HANDED_QUEUE: usize = 32;
/// Time limit for a worker whose parent has gone to leave in order. No other process would end it later.
const ORPHANED_FOR: Duration = Duration::from_secs(30);

/// The two ends of the queue for connections that a node hands over.
pub fn handed() -> (mpsc::Sender<TcpStream>, mpsc::Receiver<TcpStream>) {
    mpsc::channel(HANDED_QUEUE)
}

/// Ready when standard input ends. Connections that come there go `to` the server, if it has a node. A thread of its own,
/// because a read cannot be cancelled; it ends the process if what runs in it does not let it end.
pub async fn ended(to: Option<mpsc::Sender<TcpStream>>) {
    let (ended, wait) = oneshot::channel();
    let spawned = std::thread::Builder::new().name("stdin".into()).spawn(move || {
        match to {
            Some(to) => pass_on(&to),
            // Data on standard input is ignored; only its end counts.
            None => drop(io::copy(&mut io::stdin().lock(), &mut io::sink())),
        }
        let _ = ended.send(());
        std::thread::sleep(ORPHANED_FOR);
        tracing::error!("the parent process is gone, and a task of this worker does not end: it exits without waiting");
        std::process::exit(1);
    });
    match spawned {
        Ok(_) => drop(wait.await),
        Err(error) => {
            tracing::error!(%error, "cannot watch standard input: leaving");
        }
    }
}

/// Passes connections on until the node is gone.
fn pass_on(to: &mpsc::Sender<TcpStream>) {
    loop {
        match take(io::stdin()) {
            // A server that has ended takes none: they are closed.
            Ok(Some(connection)) => drop(to.blocking_send(connection)),
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "standard input is no way from a node: leaving");
                return;
            }
        }
    }
}
