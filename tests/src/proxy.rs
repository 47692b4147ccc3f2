//! A TCP proxy on this machine. A test can cut or delay its connections, and set the distance to the machine behind
//! it. It needs no special rights.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Forwards every connection to one address.
pub struct Proxy {
    /// The address on which it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    open: Mutex<Vec<TcpStream>>,
    held_until: Mutex<Instant>,
    /// How long bytes are on their way, in either direction.
    distance: Duration,
}

impl Proxy {
    /// Listens on a free port, for as long as the process lives.
    ///
    /// # Panics
    /// If no port is free.
    pub fn to(target: SocketAddr) -> Self {
        Self::far_from(target, Duration::ZERO)
    }

    /// Likewise; what goes either way arrives after so long, however much is on its way.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn far_from(target: SocketAddr, distance: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (open, held_until) = (Mutex::default(), Mutex::new(Instant::now()));
        let shared = Arc::new(Shared { open, held_until, distance });
        let of_connections = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Nothing listens there: the client sees a connection that ends.
                let Ok(server) = TcpStream::connect(target) else { continue };
                connect(client, server, &of_connections);
            }
        });
        Self { address, shared }
    }

    /// Closes all connections. New ones are made as before.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..) {
            // One that has ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Passes nothing on for so long.
    pub fn hold(&self, time: Duration) {
        *self.shared.held_until.lock().unwrap() = Instant::now() + time;
    }
}

fn connect(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    let both = [(&client, &server), (&server, &client)];
    for (from, to) in both {
        // A connection that is gone already needs no pump.
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
        let shared = shared.clone();
        std::thread::spawn(move || pump(from, to, &shared));
    }
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let mut open = shared.open.lock().unwrap();
    open.retain(|stream| stream.peer_addr().is_ok());
    open.extend([client, server]);
}

/// Passes bytes on until one end is closed; then the other one is too.
fn pump(mut from: TcpStream, to: TcpStream, shared: &Shared) {
    let (read, written) = mpsc::channel::<(Instant, Vec<u8>)>();
    let Ok(mut out) = to.try_clone() else { return };
    let writer = std::thread::spawn(move || {
        for (at, bytes) in written {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if out.write_all(&bytes).is_err() {
                // The reader is gone: the other end is told.
                let _ = out.shutdown(Shutdown::Both);
                break;
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n) = from.read(&mut buffer) {
        let until = *shared.held_until.lock().unwrap();
        let at = until.max(Instant::now() + shared.distance);
        if n == 0 || read.send((at, buffer[..n].to_vec())).is_err() {
            break;
        }
    }
    drop(read);
    // It has ended, or is past helping.
    let _ = writer.join();
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
