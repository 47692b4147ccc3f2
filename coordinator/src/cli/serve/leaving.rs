//! The end of a server: running answers get time, and the service manager hears how long that is.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::cli::running::interrupt::Interrupt;

/// How long lines may take to end behind their answers, and connections to close.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// The variable by which a service manager says where it hears from its services: sd_notify(3).
const NOTIFY: &str = "NOTIFY_SOCKET";

/// Ends a server that has stopped: running answers get `within`. Returns whether all of them ended.
pub async fn wait_for_answers(
    server: &mut JoinHandle<()>,
    interrupt: &mut Interrupt,
    within: Duration,
) -> bool {
    tracing::info!(seconds = within.as_secs(), "no new requests; waiting for running answers");
    if let Some(socket) = env::var_os(NOTIFY)
        && let Err(error) = tell(&socket, within.saturating_add(ENDS_WITHIN))
    {
        tracing::warn!(%error, "the service manager did not hear how long answers may run: its own time for a stop counts");
    }
    tokio::select! {
        _ = server => return true,
        () = tokio::time::sleep(within) => tracing::warn!("cutting answers that still run"),
        () = interrupt.received() => tracing::warn!("second signal: cutting answers"),
    }
    false
}

/// Tells the service manager that the service ends, within this time.
fn tell(socket: &OsStr, within: Duration) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let text = format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", within.as_micros());
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_manager_hears_how_long_a_stop_takes() {
        let folder = env::temp_dir().join(format!("brigade-notify-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("notify");
        let heard = |manager: &UnixDatagram| {
            let mut text = [0; 100];
            let n = manager.recv(&mut text).unwrap();
            String::from_utf8_lossy(&text[..n]).into_owned()
        };
        let manager = UnixDatagram::bind(&path).unwrap();
        tell(path.as_os_str(), Duration::from_secs(70)).unwrap();
        assert_eq!(heard(&manager), "STOPPING=1\nEXTEND_TIMEOUT_USEC=70000000");
        let name = format!("brigade-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        tell(OsStr::new(&format!("@{name}")), Duration::from_secs(1)).unwrap();
        assert!(heard(&manager).ends_with("=1000000"));
        std::fs::remove_dir_all(folder).unwrap();
        assert!(tell(path.as_os_str(), Duration::ZERO).is_err(), "nobody is there");
    }
}
